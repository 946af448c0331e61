"""Random networks by their steps: the fast passes, the terms of cells, traces and the debugger."""

import contextlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phitodeep.core.call import calling
from phitodeep.core.types import each
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.terms import why
from phitodeep.errors import ArgumentError, OrderError, ShapeError
from phitodeep.inspect.debugger.debugger import _gradients
from phitodeep.model.callbacks import Callback
from phitodeep.optimization.optimizers import SGD
from tests.conftest import assert_weights
from tests.derivations.test_contract import assert_close, check_formulas, same_passes, scopes
from tests.random_networks import networks, one
from tests.test_random_networks import Setting, examples
from tests.test_random_networks import model_of as trained_model_of

DTYPES = {np.float64: 1e-10, np.float32: 1e-3}
NETWORKS = st.one_of(
    networks(samples=(1, 2, 4)), networks(kinds=("sequences", "tokens"), masked=True)
)
TARGETS = st.sampled_from(["numbers", "logits", "probabilities"])


def mask_of(net, rng, least):
    """The mask of random lengths, if all layers of the network take it."""
    if not net.steps or rng.random() < 0.3:
        return None
    N, T = each(net.X)[0].shape[:2]
    mask = np.arange(T) < rng.integers(least, T + 1, N)[:, None]
    mask = one([mask] * len(each(net.X)))
    try:
        with calling(training=False, caching=False, mask=mask):
            net.layer.forward(*each(net.X))
    except (ArgumentError, ShapeError):
        return None
    return mask


@examples(25)
@given(NETWORKS, st.booleans(), st.sampled_from([*DTYPES]))
def test_steps_equal_the_fast_passes(net, training, dtype):
    layer, X, rng = net.layer, net.cast(dtype), np.random.default_rng(net.seed)
    mode = {
        "training": training,
        "step": 3,
        "first": 2,
        "mask": mask_of(net, rng, int(rng.random() > 0.2)),
    }
    state = layer.get_weights()
    with calling(**mode):
        dY = net.dY(layer.forward(*each(X)))
    layer.set_weights(state)
    for scope in scopes(same_passes(layer, X, dY, DTYPES[dtype], **mode)):
        check_formulas(scope)
        check_cells(scope, rng, DTYPES[dtype])


def check_cells(scope, rng, tolerance):
    """The terms of a random cell of some symbols add up to it."""
    for step in scope.derivation.every():
        if step.symbol == "t" or scope.find(step.symbol) is None or rng.random() < 0.6:
            continue
        rounds = sorted(scope._series.get(step.symbol, {})) or [None]
        seen = scope.at(rounds[rng.integers(len(rounds))])
        A = np.asarray(seen[step.symbol])
        if not A.size:
            continue
        cell = tuple(int(rng.integers(n)) for n in A.shape)
        found = why(step, seen, *cell)
        if found.total != A[cell]:  # as -inf is
            size = max(1.0, *(abs(term.value) for term in found))
            assert abs(found.total - A[cell]) <= tolerance * size, (step, cell)


class Keep(Callback):
    """Keeps the gradients of the last step."""

    def on_batch_end(self, model, step, loss):
        self.loss = loss
        self.found = {
            f"{path}.{name}": dW.copy()
            for path, layer in model.walk()
            for name, dW in layer.grads.items()
        }


def model_of(net, target):
    model, y = trained_model_of(net, Setting(target, "sgd", 1, 2))
    model.setoptimizer(SGD(0.1))  # which leaves the gradients as they are
    return model, y


def options_of(model, net, rng):
    mask, options = mask_of(net, rng, 1), {}
    if mask is not None:
        several = isinstance(mask, tuple)
        options["lengths"] = dict(zip(model.takes, mask, strict=True)) if several else mask
    if rng.random() < 0.3:
        w = rng.uniform(0.1, 2, len(each(net.X)[0]))
        options["sample_weight"] = dict.fromkeys(model.returns, w) if model.outputs > 1 else w
    return options


def all_gradients(db):
    """The gradients that a debugger has computed, those of layers inside user classes included."""
    found = {}
    for path, scope in db._scopes.items():
        if not path.startswith("loss"):
            found |= {f"{path}.{name}": dW for name, dW in _gradients(scope).items()}
            for inner, layer in stepwise.below(scope):
                found |= {f"{inner}.{name}": dW.copy() for name, dW in layer.grads.items()}
    return found


@examples(5)
@given(NETWORKS, TARGETS)
def test_traces_and_the_debugger_have_the_gradients_of_training(net, target):
    model, y = model_of(net, target)
    options, X = options_of(model, net, np.random.default_rng(net.seed)), net.X
    before = model.get_weights()
    trace, db = model.trace(X, y, **options), model.debug(X, y, **options)
    db.cont()
    assert_weights(model, before)
    twin, keep = model.copy(), Keep()
    options |= {"epochs": 1, "batch_size": len(each(X)[0]), "shuffle": False, "verbose": 0}
    twin.train(X, y, shortcuts=False, threads=1, callbacks=[keep], **options)
    recorded = {
        f"{path}.{name}": dW for path, p in trace._passes.items() for name, dW in p.grads.items()
    }
    debugged = all_gradients(db)
    path_of = {id(layer): path for path, layer in model.walk()}
    for path, layer in model.walk():  # training leaves the sum of all uses with the owner
        for name, (owner, own) in layer.tied.items():
            total, use = f"{path_of[id(owner)]}.{own}", f"{path}.{name}"
            if use in keep.found:  # of a user's layer, which makes the array itself
                keep.found[total] = keep.found[total] + keep.found.pop(use)
            if not owner.trainable:  # training leaves out what a frozen parameter would get
                keep.found.pop(total, None)
                continue
            for found in (recorded, debugged):
                found[total] = found[total] + found[use]
    for name, wanted in keep.found.items():
        assert_close(recorded[name], wanted, name, 1e-9)
        assert_close(debugged[name], wanted, name, 1e-9)
    np.testing.assert_allclose([trace.loss, db.loss], keep.loss, rtol=1e-9)
    assert not any(row.Y or row.dY or row.dW or row.update for row in db.diff().rows)


def state_of(db):
    """All values of a debugger, by position and by symbol."""
    found = {f"{k} {p.key}": v for k, (p, v) in enumerate(zip(db._log, db._values, strict=True))}
    for path, scope in db._scopes.items():
        found |= {f"{path} {name}": value for name, value in scope.values.items()}
        for name, series in scope._series.items():
            found |= {f"{path} {name} {t}": value for t, value in series.items()}
    end = db.position is None
    return {**found, "where": "" if end or db.position is None else db.position.key}


@examples(5)
@given(NETWORKS, TARGETS, st.data())
def test_the_debugger_goes_back_to_where_it_was(net, target, data):
    model, y = model_of(net, target)
    rng = np.random.default_rng(net.seed)
    options = options_of(model, net, rng)
    db, other = (model.debug(net.X, y, **options) for _ in range(2))
    other.step(9)
    elsewhere, places = state_of(other), [p for p in db.places() if not p.endswith("ward")]
    places = [p for p in places if "ward." in p]
    moves = data.draw(
        st.lists(st.sampled_from(["step", "same", "edit", "until", "diff"]), max_size=6)
    )
    for move in moves:
        before, count, end = state_of(db), db.count, db.position is None
        if move == "step" and not end:
            db.step(int(rng.choice([1, 5, 40, 10**6])))
            db.back(db.count - count)
            np.testing.assert_equal(state_of(db), before)
            db.step(7)
        elif move in ("same", "edit") and count:
            position, value = db._log[-1], np.asarray(db._values[-1])
            key = f"{position.scope.path}.{position.step.symbol}".removeprefix(".")
            if value.dtype.kind == "f" and (position.scope.path or db._scope().path == ""):
                db.edit(key, value + 1 if move == "edit" else value)
                if move == "same":
                    np.testing.assert_equal(state_of(db), before)
        elif move == "until" and not end and places:
            with contextlib.suppress(OrderError):  # it is not computed after this place
                db.until(places[rng.integers(len(places))])
        elif move == "diff":
            db.diff()
            np.testing.assert_equal(state_of(db), before)
        assert db.where()
        assert db.list()
        assert db.progress()
    np.testing.assert_equal(state_of(other), elsewhere)
    db.restart()
    db.step(10**6)
    other.restart()
    other.cont()
    np.testing.assert_equal(state_of(db), state_of(other))
