"""Random nested networks, with frozen parts, masks, checkpoints and threads, keep what is promised.

A long run draws 20 times as many networks, and others each time: `--hypothesis-seed` repeats them.
"""

import copy
import inspect
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import phitodeep
from phitodeep import SGD, AdamW, Network, Sequential, check_gradients, layers
from phitodeep.core.call import calling, inference
from phitodeep.core.types import Array, each
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers import Chain, GradientReversal, Layer, Softmax, Tanh, Wired
from phitodeep.loss import CategoricalCrossEntropy, MeanSquaredError, SoftmaxCrossEntropy
from phitodeep.loss.heads import Heads
from phitodeep.model.callbacks import Callback, LambdaCallback, ModelCheckpoint
from phitodeep.testing.examples import passes
from tests import random_networks
from tests.conftest import arrays, assert_same, in_parts
from tests.random_networks import OWN, Centred, fitting, networks, one
from tests.rows import LONG, times

SHAPES = [(4,), (4, 6), (4, 4, 2)]
CLOSE = {"rtol": 1e-9, "atol": 1e-10}  # to rounding, which many layers enlarge


def examples(count):
    return settings(
        max_examples=times(count),
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def test_the_strategy_knows_every_public_layer():
    source = inspect.getsource(random_networks)
    fit = {type(make()) for shape in SHAPES for rows in fitting(shape, False) for make in rows}
    public = {name for name in layers.__all__ if issubclass(getattr(layers, name), Layer)}
    absent = {name for name in public if f"L.{name}" not in source}
    assert {getattr(layers, name) for name in absent} <= fit | {Layer}


@examples(5)
@given(networks(without=(GradientReversal,)), st.booleans())
def test_gradients_are_central_differences(net, training):
    check_gradients(net.layer, net.X, training=training, max_probes=4, rtol=1e-6)


@examples(6)
@given(networks(), st.sampled_from([np.float32, np.float64]))
def test_passes_keep_the_dtype_and_what_they_are_given(net, dtype):
    X, layer = net.cast(dtype), net.layer
    kept = copy.deepcopy(X)
    with calling(step=3):
        dY = net.dY(layer.forward(*each(X)))
    found = passes(layer, X, dY, step=3)
    np.testing.assert_equal((X, dY), (kept, net.dY(dY)))
    held = [[part.params, part.state, part.cache, part.grads] for _, part in layer.walk()]
    everything = [*arrays(held), *found.values()]
    assert {a.dtype for a in everything if a.dtype.kind == "f"} == {np.dtype(dtype)}


CALLS = [{"reuse": True}, {"step": None}, {"needs_dX": False}, {"training": False}]


@examples(12)
@given(networks(), st.sampled_from(CALLS))
def test_checkpoints_change_no_bit_and_keep_only_the_inputs(net, call):
    plain, lean, Xs = net.layer, checkpointed(net.layer.copy(), True), each(net.X)
    checkpointed(plain, False).checkpoint, lean.checkpoint = False, True
    dY = net.dY(net.layer.copy().forward(*Xs))
    for _ in range(2):
        assert_same(passes(lean, net.X, dY, **call), passes(plain, net.X, dY, **call))
    assert_same(lean.get_weights(), plain.get_weights())  # running statistics were noted once
    with calling(step=4):
        lean.forward(*Xs)
        with inference():
            lean.forward(*[X[::-1] for X in Xs])
        first = copy.deepcopy(each(lean.backward(*each(dY))))
        np.testing.assert_equal(each(lean.backward(*each(dY))), first)
    assert not any(part.cache for _, part in lean.walk() if part is not lean)


class Masked(NamedTuple):
    """What a network gives under a mask, and the steps of each Y that are there, or None."""

    Ys: list[Array]
    dXs: list[Array | None]
    grads: dict[str, Array]
    after: tuple[Array | None, ...]


def under(mask, net, X, training):
    """Both passes under a mask, with dY = 0 where Y has no step; None where it is refused."""
    masks = [mask] * len(each(X))
    with calling(mask=one(masks), training=training, step=1):
        try:
            after = each(net.layer.compute_mask(*masks))
            Ys = [Y.copy() for Y in each(net.layer.forward(*each(X)))]
        except (ArgumentError, ShapeError):
            event("refused")
            return None
        dYs = each(net.dY(one(Ys)))
        for dY, there in zip(dYs, after, strict=True):
            if there is not None:
                dY *= there.reshape(*there.shape, *[1] * (dY.ndim - 2))
        dXs = copy.deepcopy(each(net.layer.backward(*dYs)))
    return Masked(Ys, dXs, net.layer.gradients(), after)


LENGTHS = st.lists(st.integers(1, 3), min_size=4, max_size=4)
STEPS = {"kinds": ("sequences", "tokens"), "samples": (3, 4), "masked": True}


@examples(25)
@given(networks(**STEPS, without=(Centred,)), LENGTHS)
def test_a_padded_sample_is_as_it_is_alone(net, lengths):
    N, T = each(net.X)[0].shape[:2]
    count = np.minimum([T, *lengths], T)[:N]
    mask = np.arange(T) < count[:, None]
    whole = under(mask, net, net.X, training=False)
    if whole is None:
        return
    total = dict.fromkeys(whole.grads, 0)
    dYs = each(net.dY(one(whole.Ys)))
    for i, n in enumerate(count):
        steps = [None if after is None else int(after[i].sum()) for after in whole.after]
        if steps == [0]:
            continue
        with calling(training=False):
            try:
                Ys = each(net.layer.forward(*[X[i : i + 1, :n] for X in each(net.X)]))
            except ShapeError:
                event("too short to be alone")  # for a window before a pool, or a Reshape(4, 3)
                return
            for Y, alone, k in zip(whole.Ys, Ys, steps, strict=True):
                assert k is None or alone.shape[1] == k
                np.testing.assert_allclose(Y[i, :k], alone[0], **CLOSE)
            own = [dY[i : i + 1, :k] for dY, k in zip(dYs, steps, strict=True)]
            dXs = each(net.layer.backward(*own))
        for dX, alone in zip(whole.dXs, dXs, strict=True):
            if alone is not None:
                np.testing.assert_allclose(dX[i, :n], alone[0], **CLOSE)
        for path, g in net.layer.gradients().items():
            total[path] = total[path] + g
    assert_same(whole.grads, total, **CLOSE)


@examples(25)
@given(networks(**STEPS), st.integers(0, 2**12 - 1), st.booleans(), st.booleans())
def test_what_a_mask_leaves_out_changes_nothing(net, bits, holes, training):
    N, T = each(net.X)[0].shape[:2]
    there = np.array([bits >> k & 1 for k in range(N * T)], bool).reshape(N, T)
    mask = there if holes else np.arange(T) < there.sum(axis=1, keepdims=True)
    first = under(mask, net, net.X, training)
    if first is None:
        return
    others = copy.deepcopy(net.X)
    for X in each(others):
        X[~mask] = 4 - X[~mask]
    second = under(mask, net, others, training)
    for Y, other, after in zip(first.Ys, second.Ys, first.after, strict=True):
        at = slice(None) if after is None else after
        np.testing.assert_allclose(other[at], Y[at], **CLOSE)
    assert_same(second.grads, first.grads, **CLOSE)
    for dX, other in zip(first.dXs, second.dXs, strict=True):
        if dX is not None:
            np.testing.assert_allclose(other, dX, **CLOSE)
            np.testing.assert_allclose(dX[~mask], 0, atol=1e-13)


class Setting(NamedTuple):
    """How a model is trained, apart from threads and checkpoints."""

    target: str
    optimizer: str
    accumulate: int
    batch_size: int

    def loss(self):
        if self.target == "numbers":
            return MeanSquaredError()
        return SoftmaxCrossEntropy() if self.target == "logits" else CategoricalCrossEntropy(0.1)

    def optimize(self):
        if self.optimizer == "sgd":
            return SGD(0.05, momentum=0.9, clip_norm=1.0)
        return AdamW(0.02, eps=0.1, l2=0.01, ema=0.9, clip_norm=1.0)  # eps: rounding stays small


SETTINGS = st.builds(
    Setting,
    st.sampled_from(["numbers", "logits", "probabilities"]),
    st.sampled_from(["sgd", "adamw"]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 3]),
)
TRAINED = networks(samples=(5, 6))
EPOCHS, FACTORS = 2, (0.5, 2)  # those of the losses of the first outputs


def model_of(net, how, dtype=np.float64):
    """A model of the network, and targets for it that its outputs can meet."""
    layer, uses, losses, returns = copy.deepcopy(net.layer), [], {}, []
    targets = [how.target if shape[-1:] > (1,) else "numbers" for shape in layer._outs()]
    ends = {"numbers": [], "logits": [Tanh], "probabilities": [Tanh, Softmax]}  # no log is clipped
    options = {"optimizer": how.optimize(), "seed": net.seed, "dtype": dtype}
    if isinstance(layer, Chain):
        parts = [layer] if layer.checkpoint else layer.layers
        model = Sequential(loss_class=how._replace(target=targets[0]).loss(), **options)
        model.layers = [*parts, *[end() for end in ends[targets[0]]]]  # built from X on
        model._set_seed(net.seed)
    else:
        uses = [(layer, layer.takes, layer.returns)] if layer.checkpoint else layer.uses
        for name, target in zip(layer.returns, targets, strict=True):
            for end in ends[target]:
                uses.append((end(), [name], [name := f"{name}_{end.__name__}"]))
            returns.append(name)
            losses[name] = how._replace(target=target).loss()
        factors = dict(zip(returns, FACTORS, strict=False)) if len(returns) > 1 else {}
        options |= {"loss_class": losses, "loss_weights": factors}
        model = Network(layer.takes, uses, returns, **options)
    model.build(one([X.shape[1:] for X in each(net.X)]), dtype=dtype)
    rng, N = np.random.default_rng(net.seed + 2), len(each(net.X)[0])
    ys = [
        rng.standard_normal((N, *shape))
        if target == "numbers"
        else rng.integers(0, shape[-1], (N, *shape[:-1]))
        for shape, target in zip(layer._outs(), targets, strict=True)
    ]
    return model, one(ys)


def checkpointed(model, checkpoint):
    """The model with all checkpoints set, or left as they are."""
    for _, part in model.walk():
        if isinstance(part, Chain | Wired) and part is not model and checkpoint is not None:
            part.checkpoint = checkpoint
    return model


class Switch(Callback):
    """Freezes and thaws: plan[step] is the number of a part, and whether it learns from then on."""

    def __init__(self, plan):
        self.plan = plan

    def on_batch_end(self, model, step, loss):
        if step in self.plan:
            number, learns = self.plan[step]
            parts = [part for path, part in model.walk() if path]
            parts[number % len(parts)].trainable = learns


def train(model, X, y, how, parts=1, **more):
    """Train by `train`, with each batch in so many parts and threads, and return the weights."""
    given = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **more}
    with in_parts(parts):
        model.train(
            X, y, batch_size=how.batch_size, accumulate=how.accumulate, threads=parts, **given
        )
    return model.get_weights()


def train_by_hand(model, X, y, how, callback=None):
    """The same by forward, loss_gradient, backward and a step, which for SGD is by hand too."""
    optimizer, size = model.optimizer, how.batch_size
    Xs, ys, losses, factors = each(X), each(y), [model.loss], [1]
    if isinstance(model.loss, Heads):
        losses, factors = model.loss.losses.values(), [*FACTORS, *[1] * len(ys)]
    batches = [slice(at, at + size) for at in range(0, len(Xs[0]), size)]
    velocity = {}
    for group in [
        batches[at : at + how.accumulate]
        for _ in range(EPOCHS)
        for at in range(0, len(batches), how.accumulate)
    ]:
        totals, first = [sum(T[rows].size for rows in group) for T in ys], 0
        held = {}
        sums = {}
        for rows in group:
            with calling(step=optimizer.t, first=first):
                Ps = each(model.forward(*[A[rows] for A in Xs]))
                every = zip(losses, Ps, ys, totals, strict=True)
                dPs = [of.loss_gradient(P, T[rows], total=n) for of, P, T, n in every]
                model.backward(*[c * dP for c, dP in zip(factors, dPs, strict=False)])
            first += len(Ps[0])
            for _, part in model.walk():
                for name, g in part.grads.items():
                    held[part, name] = held.get((part, name), 0) + g
            for path, g in model.gradients().items():
                sums[path] = sums.get(path, 0) + g
        if isinstance(optimizer, SGD):
            step_by_hand(optimizer, model, sums, velocity)
        else:
            for _, part in model.walk():
                part.grads = {name: g for (owner, name), g in held.items() if owner is part}
            optimizer.step(model.layers)
        if callback is not None:
            callback.on_batch_end(model, optimizer.t, 0.0)
    return model.get_weights()


def step_by_hand(sgd, model, grads, velocity):
    """v <- mu v + g, W <- W - lr v for what learns, with the norm of all g clipped to 1."""
    learning = {
        f"{path}.{name}": W
        for path, part in model.walk()
        if part.trainable
        for name, W in part.params.items()
    }
    norm = np.sqrt(sum(np.sum(grads[path] ** 2) for path in learning))
    for path, W in learning.items():
        velocity[path] = sgd.momentum * velocity.get(path, 0) + grads[path] / max(norm, 1.0)
        W -= sgd.rate * velocity[path]
    sgd.t += 1


PLANS = st.dictionaries(st.integers(1, 4), st.tuples(st.integers(0, 9), st.booleans()))


@examples(8)
@given(
    networks(samples=(5, 6)),
    SETTINGS,
    st.integers(1, 3),
    st.sampled_from([None, False, True]),
    PLANS,
)
def test_train_is_the_loop_by_hand_though_parts_freeze_and_thaw(net, how, parts, checkpoint, plan):
    def trained():
        model = checkpointed(model_of(net, how)[0], checkpoint)
        return train(model, net.X, y, how, parts, callbacks=Switch(plan))

    other, y = model_of(net, how)
    found = trained()
    assert_same(found, train_by_hand(other, net.X, y, how, Switch(plan)), **CLOSE)
    assert_same(trained(), found)


@examples(4)
@given(networks(samples=(5, 6), without=OWN), SETTINGS, st.integers(1, 4), PLANS)
def test_training_that_is_killed_goes_on_to_the_bit_and_files_hold_all_of_it(net, how, at, plan):
    def trained(path, *callbacks, **more):
        model, y = model_of(net, how)
        keeper = ModelCheckpoint(path, every_steps=1)
        train(model, net.X, y, how, callbacks=[Switch(plan), *callbacks, keeper], **more)
        return model

    def kill(model, step, loss):
        if step > at:
            raise SystemExit

    with TemporaryDirectory() as folder:
        path, killed = Path(folder) / "whole.safetensors", Path(folder) / "killed.safetensors"
        whole = trained(path)
        with suppress(SystemExit):
            trained(killed, LambdaCallback(on_batch_end=kill))
        again = trained(killed, resume=killed)
        loaded = phitodeep.load(path)
    for other in (again, loaded):
        assert_same(other.get_weights(), whole.get_weights())
        np.testing.assert_equal(other.predict(net.X), whole.predict(net.X))
