"""The debugger: the gradients of training, edits of every symbol, places, and what it refuses."""

import numpy as np
import pytest

from phitodeep import Sequential, SequentialBuilder
from phitodeep import layers as L
from phitodeep.errors import AnomalyError, ArgumentError, UnknownNameError
from phitodeep.model.network import Network
from phitodeep.testing.examples import data, made
from tests.conftest import check_refused, model_for
from tests.inspect.shared import LENGTHS, RNG, YS, Plain, S, X, Y, dense, rows, step
from tests.rows import KINDS, ONE_EACH, few, over


def model_of(*layers, **options):
    return Sequential(*layers, **({"seed": 1, "dtype": "float64"} | options))


def built(make, shape):
    layer = made(make, shape)
    parts = layer.layers if type(layer) is L.Chain else [layer]
    return model_for(shape[1:], *parts, dtype="float64", seed=1)


@over(KINDS)
def test_every_symbol_can_be_edited(make, shape, tokens):
    model = built(make, shape)
    X, y = data(model, shape, tokens)
    trace = model.trace(X, y)
    db = model.debug(X, y)
    db.cont()
    assert db.loss == pytest.approx(trace.loss, rel=1e-9)
    assert_gradients(db, trace)
    assert not any(row.Y or row.dY or row.dW for row in db.diff().rows)
    places = dict.fromkeys((p.scope.path, p.direction, p.step.symbol) for p in db._log)
    rng = np.random.default_rng(0)
    editable = [place for place in places if place[0]]
    for k in rng.permutation(len(editable))[:6]:
        path, direction, symbol = editable[k]
        where = [p for p in db._log if (p.scope.path, p.step.symbol) == (path, symbol)][-1]
        value = db._values[db._log.index(where)]
        if np.asarray(value).dtype.kind != "f" or where.direction != direction:
            continue
        db.edit(f"{path}.{symbol}", value + 0.25)
        db.cont()
        found = db.diff()
        if direction == "backward":
            assert found.loss == found.before
        db.restart()
        db.cont()


NESTED = [row for row in ONE_EACH if made(*row[:2]).children()]


@over(few(NESTED, 2))
def test_a_symbol_of_a_container_is_not_that_of_a_layer_inside(make, shape, tokens):
    model = model_for(shape[1:], made(make, shape), dtype="float64", seed=1)
    X, y = data(model, shape, tokens)
    trace, db = model.trace(X, y), model.debug(X, y)
    db.cont()
    for at in [at for at in db._log[1:] if getattr(at.scope.layer, "children", dict)()]:
        symbol = at.step.symbol
        for when in (None, "True"):
            db.restart()
            db.set_break(at.key, when)
            db.cont()
            found = db.last if when else db.position
            assert found is not None
            assert found.key == at.key
            db.clear_break()
        db.restart()
        db.until(at.key)
        assert db._log[-1].key == at.key
        if db.value is None:  # a gradient of tokens
            continue
        value = np.asarray(db.value)
        np.testing.assert_allclose(db.p(symbol), trace[at.key].array, atol=1e-9)
        cell = (0,) * value.ndim
        assert db.why(symbol, *cell).total == pytest.approx(value[cell], abs=1e-9)
        if value.dtype.kind == "f":
            db.edit(symbol, value + 0.25)
            assert db._log[-1].key == at.key
            np.testing.assert_array_equal(db.p(symbol), value + 0.25)


def test_keys_may_leave_out_the_direction_and_conditions_know_their_place():
    for key, whole in [
        ("2.dW", "2.backward.dW"),
        ("1.slope", "1.backward.slope"),
        ("loss.dP", "loss.backward.dP"),
    ]:
        here, there = (dense().debug(X, Y) for _ in range(2))
        assert here.until(key) == there.until(whole)
        assert here.count == there.count > 0
    model = Sequential(L.Residual(L.LayerNorm()), seed=0)
    db = model.debug(np.ones((4, 2)), np.ones((4, 2)))
    with pytest.raises(UnknownNameError, match="'X_hat' is not one of the symbols there"):
        db.set_break("0.forward.Y", when="abs(X_hat).max() > 1")
    db.set_break("0.forward", when="abs(X_hat).max() >= 0")
    assert "X_hat" in str(db.cont())
    model = model_of(L.RNN(3), L.Dense(2))
    largest = abs(model.trace(S, YS)["0.h_t"].array).max(axis=(0, 2))
    bound = float(np.sort(largest)[-2])
    db = model.debug(S, YS)
    db.set_break("0.forward.h_t", when=f"abs(h_t).max() >= {bound!r} and t >= 0")
    db.set_break("loss", when="total > 0 and w is None and share is not T")
    assert f"t = {int(np.argmax(largest >= bound))}" in str(db.cont())
    for when in WHEN:
        db = dense().debug(X, Y)
        db.set_break("2", when=when)
        assert db.cont()
        assert db.position is not None


def lstm():
    return model_for((5, 4), L.LSTM(3), L.Dropout(0.4), L.Dense(2), seed=0, dtype="float64")


def assert_gradients(db, trace):
    """The gradients of a debugger at the end are those of a trace."""
    for path, passes in trace._passes.items():
        for name, gradient in passes.grads.items():
            np.testing.assert_allclose(db._scopes[path][f"d{name}"], gradient, atol=1e-12)


def test_edits_of_activations_and_of_gradients_are_patches():
    model = dense(L.LayerNorm(), L.Tanh())
    db = model.debug(X, Y)
    db.until("1.forward.Y")
    db.edit("1.Y[0, 1]", 5.0)
    db.cont()
    A = model.trace(X, Y)["1.Y"].array.copy()
    A[0, 1] = 5
    patched = model.patch({"1.Y": A}).trace(X, Y)
    assert db.loss == pytest.approx(patched.loss, rel=1e-12)
    assert_gradients(db, patched)
    model = dense(optimizer="sgd")
    db, G = model.debug(X, Y), RNG.standard_normal((6, 5))
    db.until("2.backward.dX")
    db.edit("2.dX", G)
    db.cont()
    assert_gradients(db, model.patch({"2.dX": G}).trace(X, Y))
    moved = db.diff()
    assert moved.loss == moved.before
    first, _, last = moved.rows
    assert last.dW == last.update == 0
    assert (first.dW or 0) > 0
    np.testing.assert_allclose(db._scopes["0"]["dW"], X.T @ (G * (1 - db._scopes["1"]["Y"] ** 2)))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_a_step_inside_a_loop_is_edited_in_its_round(lengths):
    model = lstm()
    db = model.debug(S, YS, lengths=lengths)
    db.cont()
    trace = model.trace(S, YS, lengths=lengths)
    assert db.loss == pytest.approx(trace.loss, rel=1e-12)
    assert_gradients(db, trace)
    db.restart()
    for _ in range(3):
        db.until("0.forward.c_t")
    db.edit("c_t[0, 0]", 9.0)
    db.cont()
    C = db._scopes["0"]["c_t"]
    assert C[0, 2, 0] == 9
    wanted = trace["0.c_t"].array
    np.testing.assert_array_equal(C[:, :2], wanted[:, :2])
    np.testing.assert_array_equal(C[1:], wanted[1:])
    patched = model.patch({"0.c_t": C}).trace(S, YS, lengths=lengths)
    assert db.loss == pytest.approx(patched.loss, rel=1e-12)
    assert_gradients(db, patched)


def test_hooks_run_once_outside_the_layer_and_data_may_change_meanwhile():
    model, rng, calls = dense(), np.random.default_rng(1), list[str]()

    def noise(A, at):
        calls.append(at.key)
        return A + rng.standard_normal(A.shape)

    with model.hooks(fwd={"1.Y": noise}):
        db = model.debug(X, Y)
    db.cont()
    loss = db.loss
    db.back(6)
    db.cont()
    assert db.loss == loss
    assert calls == ["1.forward.Y"]
    model, mine = dense(L.Dropout(0.3)), X.copy()
    wanted = model.trace(X, Y)
    db = model.debug(mine, Y)
    mine[:] = 0
    model.train(X, Y, epochs=2, verbose=0)
    db.cont()
    assert db.loss == pytest.approx(wanted.loss, rel=1e-12)
    assert_gradients(db, wanted)
    # As in training, where it is a layer of its own: here the tanh' of Tanh is that of its Y.
    model = dense()
    with model.hooks(fwd={"1.Y": lambda A, at: 2 * A}):
        trace, db = model.trace(X, Y), model.debug(X, Y)
    db.cont()
    assert_gradients(db, trace)


REFUSED = r"""
db.set_break("9") -> UnknownNameError: there are '0', '1', '2', 'loss'. The model has .*A place is
db.set_break("9.dW") -> UnknownNameError: there is no '9.dW'
db.set_break("2.update.W") -> UnknownNameError: there is no '
db.set_break(3) -> UnknownNameError: keys are texts
db.set_break("2.dV") -> UnknownNameError: there is no '2.dV'. 2 has.*dY, dW
db.set_break("0", when=3) -> ArgumentTypeError: takes a condition as a text
db.set_break("2", when="dX >") -> ArgumentError: is not a Python expression
db.set_break("2", when="a = 1") -> ArgumentError: is not a Python expression
db.set_break("2", when="\0") -> ArgumentError: is not a Python expression
db.set_break("2.backward", when="no_such > 1") -> UnknownNameError: not one of the symbols there
db.set_break("2.Y", when="total > 0") -> UnknownNameError: 'total' is not one of the symbols there
db.set_break("loss", when="t > 0") -> UnknownNameError: 't' is not one of the symbols there
db.set_break("2", when="any(all(z > 0 for b in a) for a in X)") -> UnknownNameError: 'z' is not one
db.set_break("2", when="any(z > v for v in X)") -> UnknownNameError: 'z' is not one of the symbols
db.until("0.forwrd.Y") -> UnknownNameError: there is no '.*Did you mean '0.forward.Y'
db.until("3.forward.Y") -> UnknownNameError: there is no '3.forward.Y'
db.until("") -> ArgumentError: until takes a key with a symbol
db.until("0.XW") -> OrderError: '0\.XW' is not computed after this place
db.list(-1) -> ArgumentError: list: around must be
db.list(1.5) -> ArgumentTypeError: list: around must be
db.p(3) -> ArgumentTypeError: the debugger takes a .* as a text, got 3
db.edit(("0", "Y"), 1.0) -> ArgumentTypeError: the debugger takes a .* as a text, got
db.edit("Y[0, 99]", 1.0) -> ArgumentError: Y has shape \(6, 5\)\): index 99 is out of bounds
db.edit("0.Y[0, 0]", "x") -> ArgumentError: could not convert
db.edit("0.Y[0, 0]", 1j) -> ArgumentError: complex
db.edit("0.Y", np.ones(3)) -> ArgumentError: could not broadcast
db.edit("0.Y[0, 0]=3", 1.0) -> ArgumentError: cannot be set
db.edit("0.Y[foo]", 1.0) -> ArgumentError: cannot be set
db.edit("0.Y[", 1.0) -> ArgumentError: cannot be set
db.edit("0.Y[1/0]", 1.0) -> ArgumentError: cannot be set
db.edit("0.Y[0][1]", 1.0) -> ArgumentError: cannot be set
db.edit("0.Y", None) -> ArgumentError: cannot be set to None .*: None is not a number
db.edit("9.Y", 1.0) -> UnknownNameError: cannot be edited
db.edit("0.W[0, 0]", 1.0) -> UnknownNameError: 0 has so far X, XW, Y
db.edit("", 1.0) -> UnknownNameError: cannot be edited
"""


@rows(REFUSED)
def test_what_is_refused_changes_nothing(call, error):
    db = dense().debug(X, Y)
    db.until("0.forward.Y")
    count = db.count
    check_refused(call, error, {**globals(), "db": db})
    assert db.breaks == []
    assert db.count == count
    db.cont()
    assert db.loss == pytest.approx(step().loss, rel=1e-12)


@pytest.mark.parametrize("cell", [L.RNN, L.LSTM, L.GRU])
def test_the_last_step_of_a_round_is_seen_in_its_round(cell):
    db = model_of(cell(3), L.Dense(2)).debug(S, YS)
    shown = db.until("0.forward.h_t")
    assert "t = 0" in str(shown)
    first = db.p("h_t")
    assert first.shape == db.p("h_prev").shape == (6, 3)
    assert db.why("h_t", 1, 2).total == pytest.approx(first[1, 2], abs=1e-15)
    assert " *   h_t" in str(db.list())
    db.until("0.forward.h_t")
    np.testing.assert_array_equal(db.p("h_prev"), first)


def test_tokens_and_numbers_keep_their_kind_when_they_are_edited():
    model = model_of(L.Embedding(4, 2), L.Flatten(), L.Dense(2))
    db = model.debug(np.ones((6, 3), int), Y)
    db.until("0.forward.X")
    with pytest.raises(ArgumentError, match="its elements are int"):
        db.edit("0.X[0, 0]", 1.5)
    db.edit("0.X[0, 0]", 2.0)
    db.cont()
    assert db.p("0.X")[0, 0] == 2
    model = dense(L.SELU(), dtype="float32")
    db = model.debug(X, Y)
    db.cont()
    wanted = db.p("1.Y")
    scale = db.p("1.scale")
    assert isinstance(scale, float)
    db.edit("1.scale", scale)
    db.cont()
    np.testing.assert_array_equal(db.p("1.Y"), wanted)
    model = model_of(L.Parallel(L.Embedding(4, 2), L.Embedding(4, 2)), L.Flatten(), L.Dense(2))
    db = model.debug(np.ones((6, 3), int), Y)
    db.cont()
    known = zip(db._log, db._values, strict=True)
    none = next(p.step.symbol for p, value in known if p.scope.path == "0" and value is None)
    with pytest.raises(ArgumentError, match="it has no elements"):
        db.edit(f"0.{none}", 1.0)


def test_extreme_values_masks_that_end_losses_without_steps_and_nan_weights():
    for key, value in [("0.XW[0, 0]", 1e200), ("loss.P[0, 0]", np.inf), ("0.dW[0, 0]", np.nan)]:
        db = dense().debug(X, Y)
        db.cont()
        db.edit(key, value)
        while db.position is not None:
            assert db.step()
            assert db.list()
        assert "1" in str(db.diff())
    model = model_of(L.GRU(3, return_sequences=False), L.Chain(L.Reshape(3, 1), L.Softmax(1)))
    db = model.debug(S, RNG.standard_normal((6, 3, 1)), lengths=LENGTHS)
    assert "1.layers.1.backward.dX" in db.places()
    db.set_break("1.layers.1.backward")
    assert "backward of Softmax" in str(db.cont())
    assert db.until("1.layers.1.backward.dX")
    model = dense(loss_class=Unweighted())
    db = model.debug(X, Y)
    db.cont()
    assert db.loss == pytest.approx(((model.predict(X) - Y) ** 2).mean(), rel=1e-12)
    model = dense()
    model.layers[2].params["W"][0, 0] = np.nan
    db = model.debug(X, Y)
    assert str(db.cont()) == "the end: loss nan"
    db.diff()


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ("dX > 0", r"The truth value of an array .* use \.any\(\)"),
        ("dX.foo", "has no attribute 'foo'"),
        ("1 / 0", "division by zero"),
        ("dX + 'a'", "fails at 2.backward"),
        ("dX[99, 99]", "out of bounds"),
    ],
)
def test_conditions_that_fail_say_where(when, says):
    db = dense().debug(X, Y)
    db.set_break("2.backward", when=when)
    with pytest.raises(ArgumentError, match=f"the condition of the breakpoint 2.backward .*{says}"):
        db.cont()
    assert "backward of Dense(5, 2): a condition failed" in str(db.where())
    db.clear_break()
    db.cont()
    assert db.position is None


WHEN = [
    *("L > 0", "W.any()", "np.isfinite(dX).all()", "len(X) > 1", "any((v > 0).any() for v in X)"),
    "any((y := v).any() for v in X) and y.any()",
]


class Unweighted(Plain):
    def value(self, P, T, w, total):
        assert w is None
        return super().value(P, T, w, total)


def test_a_network_stops_at_its_values_and_shows_every_input():
    tower = L.Dense(3)
    uses = [(tower, ["a"], ["h"]), (L.Shared(tower), ["b"], ["k"]), (L.Add(), ["h", "k"], ["s"])]
    uses += [(L.Dense(2), ["s"], ["y"]), (L.Tanh(), ["h"], ["z"])]
    losses = {"y": "mse", "z": "huber"}
    net = Network(["a", "b"], uses, ["y", "z"], loss_class=losses, seed=0, dtype="float64")
    batch = (X, X[::-1]), (Y, X[:, :3])
    trace, db = net.trace(*batch), net.debug(*batch)  # which build it
    assert "2 Add() of h, k ──" in trace.draw(ascii=False)
    assert db.where() == "forward of Network\n-> X1 = the input"
    assert db.list().startswith("-> X1 = the input\n   X2 = the input")
    assert "* h = 0.forward(a)" in db.until("h")
    np.testing.assert_array_equal(db.p("h"), db.p("0.Y"))
    db.set_break("2.forward.X2")
    assert "-> X2 = the input" in db.cont()
    assert "loss.z.backward" in db.until("loss.z.backward.dP")
    assert "loss ━━╸" in db.progress()
    assert "-> dY2 = dL/dY" in [db.set_break("backward.dY2"), db.cont()][1]
    assert "dh = dh_4 + dh_2" in db.until("dh")
    db.cont()
    assert {row.path for row in db.diff().rows if row.update == 0} == {"0", "3"}
    assert_gradients(db, trace)
    shares = net.sample_gradients(*batch)["0.W"].sum(0)
    both = trace["0.backward.dW"].array + trace["1.backward.dW"].array
    np.testing.assert_allclose(shares, both, atol=1e-12)
    net.layers[3].W[1, 0] = np.inf
    with pytest.raises(AnomalyError, match=r"in layer 3, .*forward, in XW.*samples 0, .*, 5\."):
        net.train([batch], epochs=1, verbose=0, anomaly="raise")
    lengths = {"a": LENGTHS, "b": LENGTHS}
    net = SequentialBuilder(a=(5, 4), b=(5, 4)).at("a").lstm(4).add("b").output("y").build()
    given = {"a": S, "b": S}
    found = net.forward(S, S, lengths=lengths)
    np.testing.assert_allclose(found, net.predict(given, lengths=lengths), rtol=1e-6)
    assert not np.allclose(found, net.predict(given))
