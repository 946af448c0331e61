"""Random nested networks, with frozen parts, masks, checkpoints and threads, keep what is promised.

A long run draws 20 times as many networks, and others each time: `--hypothesis-seed` repeats them.
"""

import copy
import inspect
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from phitodeep import layers
from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers import BatchNorm, Chain, Layer, Softmax, Tanh
from phitodeep.loss import CategoricalCrossEntropy, MeanSquaredError, SoftmaxCrossEntropy
from phitodeep.model import Sequential
from phitodeep.model.callbacks import Callback
from phitodeep.optimization.optimizers import SGD, AdamW
from phitodeep.testing import check_gradients
from tests import random_networks
from tests.conftest import arrays, assert_same, in_parts
from tests.random_networks import Centred, Ladder, fitting, networks
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
    fit = {type(make()) for shape in SHAPES for rows in fitting(shape) for make in rows}
    public = {name for name in layers.__all__ if issubclass(getattr(layers, name), Layer)}
    absent = {name for name in public if f"L.{name}" not in source}
    wired = {kind for kind in map(vars(layers).get, public) if kind.inputs in (None, 2)}
    wired |= {layers.Shared, layers.GradientReversal}  # tests/random_wirings.py draws the others
    assert {getattr(layers, name) for name in absent} <= fit | wired | {Layer}


# --- gradients ---------------------------------------------------------------------------------


@examples(6)
@given(networks(), st.booleans())
def test_gradients_are_central_differences(net, training):
    if any(part.surrogate for _, part in net.chain.walk()):
        return
    check_gradients(net.chain, net.X, training=training, max_probes=4, rtol=1e-6)


@examples(6)
@given(networks(), st.sampled_from([np.float32, np.float64]))
def test_passes_keep_the_dtype_and_what_they_are_given(net, dtype):
    chain, X = net.chain, net.X if net.X.dtype.kind == "i" else net.X.astype(dtype)
    chain.cast(dtype)
    kept = X.copy()
    with calling(step=3):
        Y = chain.forward(X)
        dY = net.dY(Y)
        dX = chain.backward(dY)
    assert_same({"X": X, "dY": dY}, {"X": kept, "dY": net.dY(Y)})
    held = [[part.params, part.state, part.cache, part.grads] for _, part in chain.walk()]
    found = [Y, *arrays(held), *([] if dX is None else [dX])]
    assert {a.dtype for a in found if a.dtype.kind == "f"} == {np.dtype(dtype)}


# --- masks -------------------------------------------------------------------------------------


class Masked(NamedTuple):
    """What a network gives under a mask, and the steps of Y that are there, or None."""

    Y: Array
    dX: Array | None
    grads: dict[str, Array]
    after: Array | None


def under(mask, net, X, training):
    """Both passes under a mask, with dY = 0 where Y has no step; None where it is refused."""
    with calling(mask=mask, training=training, step=1):
        try:
            after = net.chain.compute_mask(mask)
            Y = net.chain.forward(X).copy()
        except (ArgumentError, ShapeError):
            event("refused")
            return None
        dY = net.dY(Y)
        if after is not None:
            dY *= after.reshape(*after.shape, *[1] * (Y.ndim - 2))
        dX = net.chain.backward(dY)
    dX = None if dX is None else dX.copy()
    return Masked(Y, dX, net.chain.gradients(), after)


LENGTHS = st.lists(st.integers(1, 3), min_size=4, max_size=4)
STEPS = {"kinds": ("sequences", "tokens"), "samples": (3, 4), "masked": True}


@examples(25)
@given(networks(**STEPS, without=(Centred,)), LENGTHS)
def test_a_padded_sample_is_as_it_is_alone(net, lengths):
    N, T = net.X.shape[:2]
    count = np.minimum([T, *lengths], T)[:N]
    mask = np.arange(T) < count[:, None]
    whole = under(mask, net, net.X, training=False)
    if whole is None:
        return
    total = dict.fromkeys(whole.grads, 0)
    dY = net.dY(whole.Y)
    for i, n in enumerate(count):
        steps = None if whole.after is None else int(whole.after[i].sum())
        if steps == 0:
            continue
        with calling(training=False):
            try:
                Y = net.chain.forward(net.X[i : i + 1, :n])
            except ShapeError:
                event("too short to be alone")  # for a window before a pool, or a Reshape(4, 3)
                return
            assert steps is None or Y.shape[1] == steps
            np.testing.assert_allclose(whole.Y[i, :steps], Y[0], **CLOSE)
            dX = net.chain.backward(dY[i : i + 1, :steps] if steps else dY[i : i + 1])
        if dX is not None:
            assert whole.dX is not None
            np.testing.assert_allclose(whole.dX[i, :n], dX[0], **CLOSE)
        for path, g in net.chain.gradients().items():
            total[path] = total[path] + g
    assert_same(whole.grads, total, **CLOSE)


@examples(25)
@given(networks(**STEPS), st.integers(0, 2**12 - 1), st.booleans(), st.booleans())
def test_what_a_mask_leaves_out_changes_nothing(net, bits, holes, training):
    N, T = net.X.shape[:2]
    there = np.array([bits >> k & 1 for k in range(N * T)], bool).reshape(N, T)
    mask = there if holes else np.arange(T) < there.sum(axis=1, keepdims=True)
    first = under(mask, net, net.X, training)
    if first is None:
        return
    X = net.X.copy()
    X[~mask] = 4 - X[~mask]
    second = under(mask, net, X, training)
    assert second is not None
    at = slice(None) if first.after is None else first.after
    np.testing.assert_allclose(second.Y[at], first.Y[at], **CLOSE)
    assert_same(second.grads, first.grads, **CLOSE)
    if first.dX is not None:
        assert second.dX is not None
        np.testing.assert_allclose(second.dX, first.dX, **CLOSE)
        np.testing.assert_allclose(first.dX[~mask], 0, atol=1e-13)


# --- training ----------------------------------------------------------------------------------


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
EPOCHS = 2


def model_of(net, how, dtype=np.float64):
    """A model of the network, and targets for it; with a target that its outputs can meet."""
    chain = copy.deepcopy(net.chain)
    parts = [chain] if chain.checkpoint else chain.layers
    shape = chain.output_shape or ()
    if not shape or shape[-1] == 1:
        how = how._replace(target="numbers")
    if how.target != "numbers":  # Tanh: no probability is so near 0 that its log is clipped
        parts = [*parts, Tanh(), *([Softmax()] if how.target == "probabilities" else [])]
    model = Sequential(loss_class=how.loss(), optimizer=how.optimize(), seed=net.seed, dtype=dtype)
    model.layers = [*parts]  # not in the constructor, which would build from Dense(4, 4) on
    model._set_seed(net.seed)
    model.build(net.X.shape[1:], dtype=dtype)
    rng, N = np.random.default_rng(net.seed + 2), len(net.X)
    if how.target == "numbers":
        return model, rng.standard_normal((N, *shape))
    return model, rng.integers(0, shape[-1], (N, *shape[:-1]))


def checkpointed(model, checkpoint):
    """The model with all checkpoints set, or left as they are."""
    for _, part in model.walk():
        if isinstance(part, Chain) and part is not model and checkpoint is not None:
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
    batches = [slice(at, at + size) for at in range(0, len(X), size)]
    velocity = {}
    for group in [
        batches[at : at + how.accumulate]
        for _ in range(EPOCHS)
        for at in range(0, len(batches), how.accumulate)
    ]:
        total, first = sum(y[rows].size for rows in group), 0
        held = {}
        sums = {}
        for rows in group:
            with calling(step=optimizer.t, first=first):
                P = model.forward(X[rows])
                model.backward(model.loss.loss_gradient(P, y[rows], total=total))
            first += len(X[rows])
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


@examples(6)
@given(TRAINED, SETTINGS, st.sampled_from([1, 2, 3]), st.sampled_from([None, False, True]))
def test_train_is_the_loop_by_hand(net, how, parts, checkpoint):
    model, y = model_of(net, how)
    checkpointed(model, checkpoint)
    found = train(model, net.X, y, how, parts)
    assert_same(found, train_by_hand(model_of(net, how)[0], net.X, y, how), **CLOSE)
    again = checkpointed(model_of(net, how)[0], checkpoint)
    assert_same(train(again, net.X, y, how, parts), found)


@examples(8)
@given(
    networks(samples=(5, 6), without=(BatchNorm, Ladder, Centred)),  # parts take all others
    SETTINGS,
    st.sampled_from([1, 2, 3]),
    st.integers(0, 4),
    st.dictionaries(st.integers(1, 4), st.tuples(st.integers(0, 9), st.booleans()), min_size=1),
)
def test_parts_may_freeze_and_thaw_in_the_middle(net, how, parts, frozen, plan):
    for part in [part for path, part in net.chain.walk() if path][:frozen]:
        part.trainable = False
    model, y = model_of(net, how)
    found = train(model, net.X, y, how, parts, callbacks=Switch(plan))
    other, switch = model_of(net, how)[0], Switch(plan)
    assert_same(found, train_by_hand(other, net.X, y, how, switch), **CLOSE)
