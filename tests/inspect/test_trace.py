"""A trace is the next training step, number by number, and leaves no mark on the model."""

import copy
import io
import sys

import numpy as np
import pytest

import phitodeep
from phitodeep import Sequential, loss
from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ShapeError, UnknownNameError
from phitodeep.inspect.hooks import Keys
from phitodeep.optimization.optimizers import SGD, Adam, AdamW
from phitodeep.testing.examples import data, made
from tests.conftest import check_refused, model_for
from tests.inspect.shared import Plain, X, Y, dense, gpt, rows, step
from tests.random_networks import Closed, Gate
from tests.rows import KINDS, LONG, TOOLS, over

RNG = np.random.default_rng(0)
S, YS = RNG.standard_normal((3, 5, 4)), RNG.standard_normal((3, 5, 2))
ROWS, LABELS = RNG.integers(0, 7, (2, 4)), np.array([[1, 2, 4, 0], [6, 2, 5, 3]])
# a TiedDense has the weights of a layer outside the model
PLAIN = [row for row in TOOLS if not (isinstance(row[0](), L.TiedDense) and row[1])]


def snapshot(model):
    """All that a trace must leave alone."""
    found = {"t": model.optimizer.t, "epoch": model.epoch, "memory": model.optimizer.state_dict()}
    for path, layer in model.walk():
        frame, generator = layer._frame, layer._generator
        cache = {k: a for k, a in frame.cache.items() if isinstance(a, np.ndarray)}
        found[path] = (
            *(sorted(frame.cache), frame.output, frame.passes),
            *(generator and repr(generator.bit_generator.state), dict(layer.params)),
            *(dict(layer.state), dict(frame.grads), cache),
        )
    return copy.deepcopy(found)


def next_step(model, X, y, **options):
    """The arrays of the model's next step, as training passes them to a watcher, and its update."""
    twin, found = model.copy(), dict[str, Array]()
    before = twin.get_weights()
    names = {"forwardbefore": "X", "forwardafter": "Y", "backwardbefore": "dY"}

    def watch(event):
        if event.what in ("forward", "backward"):
            name = names.get(event.what + event.when, "dX")
            if event.array is not None and not (event.what == "forward" and event.path in found):
                found[f"{event.path}.{name}"] = event.array.copy()
            if name == "dX":
                for n, gradient in event.source.grads.items():
                    found[f"{event.path}.d{n}"] = gradient.copy()
        elif event.what == "loss" and event.when == "after":
            found["loss"] = np.array(event.value)

    options = {"epochs": 1, "verbose": 0, "shuffle": False, "shortcuts": False} | options
    with phitodeep.watching(watch, recomputed=True):
        twin.train(X, y, **options)
    for path, layer in twin.walk():
        for n, a in layer.params.items():
            full = f"{path}.{n}".removeprefix(".")
            found[f"{path}.update.{n}"] = a - before[full]
    return found


def recorded(t):
    found = {"loss": np.array(t.loss)}
    for path, passes in t._passes.items():
        for n in ("X", "Y", "dY", "dX"):
            found[f"{path}.{n}"] = getattr(passes, n)
        found |= {f"{path}.d{n}": a for n, a in passes.grads.items()}
        found |= {f"{path}.update.{n}": a for n, a in t.updates.get(path, {}).items()}
    return found


def assert_next_step(model, X, y, *, train=None, **options):
    before = snapshot(model)
    t = model.trace(X, y, **options)
    np.testing.assert_equal(snapshot(model), before)
    wanted, found = next_step(model, X, y, **options, **(train or {})), recorded(t)
    assert wanted.keys() <= found.keys() | {k for k in wanted if ".update." in k}
    for name, array in wanted.items():
        moved = found.get(name)
        if moved is None and ".update." in name:
            moved = 0 * array  # frozen
        np.testing.assert_array_equal(moved, array, err_msg=name)
    check_entries(t, 1e-11 if model.dtype == np.float64 else 2e-3)
    return t


def check_entries(t, tolerance):
    """What the steps of the layers compute is what the fast passes computed."""
    for path, passes in t._passes.items():
        known = {"forward.Y": passes.Y, "backward.dX": passes.dX, "backward.dY": passes.dY}
        known |= {f"backward.d{n}": a for n, a in passes.grads.items()}
        for key, array in known.items():
            if array is not None:
                entry = t[f"{path}.{key}".removeprefix(".")]
                scale = tolerance * max(1.0, np.abs(array).max())
                np.testing.assert_allclose(entry.array, array, rtol=0, atol=scale, err_msg=key)
                assert entry.array.dtype == (np.float64 if array.dtype.kind == "f" else np.int64)


@over(PLAIN if LONG else KINDS)
def test_a_trace_is_the_next_step_and_changes_nothing(make, shape, tokens):
    model = model_for(shape[1:], made(make, shape), dtype="float64", seed=3, alpha=0.1)
    given, y = data(model, shape, tokens)
    model.train(given, y, epochs=1, verbose=0)
    model.forward(given)  # a backward pass is pending
    t = assert_next_step(model, given, y)
    model.backward(y)
    str(t)
    again = model.trace(given, y)
    shares = [t.by_sample(n) for n in range(shape[0])]
    assert sum(share.loss for share in shares) == pytest.approx(t.loss, rel=1e-12)
    for key, entry in t.items():
        entry.explain()
        assert entry.formula in repr(entry)
        if entry.array is None:
            assert again[key].array is None
            with pytest.raises(ShapeError, match="tokens have no gradient"):
                entry.why()
            continue
        np.testing.assert_array_equal(entry.array, again[key].array, err_msg=key)
        if key.endswith((".dX", ".dW", ".db", "dgamma")):
            total = sum(share[key].array for share in shares)
            np.testing.assert_allclose(total, entry.array, atol=1e-11, err_msg=key)


def classes(**options):
    return dense(L.Tanh(), loss_class=loss.SoftmaxCrossEntropy(**options))


def sequential(*layers, **options):
    return Sequential(*layers, **{"dtype": "float64", "seed": 0} | options)


def deep():
    parallel = L.Parallel(L.Tanh(), L.Dense(5, 5), merge="add")
    return dense(L.Residual(L.Dense(5, 5), parallel), Sequential(L.Dense(5, 5), L.GELU()))


def probabilities():
    return Sequential(L.Dense(4, 3), L.Softmax(), loss_class=loss.CategoricalCrossEntropy(), seed=0)


def distributed():
    inside = L.Chain(L.Dense(3), L.Dropout(0.5))
    return Sequential(L.TimeDistributed(inside), L.Dense(2), seed=2)


HOT = np.eye(2)[[0, 1, 0, 1, 1, 0]]
INSIDE = L.Dropout(0.4), L.Tanh(), L.Dense(5, 5)
CASES = {
    "weights": (dense, X, Y, {"sample_weight": np.linspace(0, 2, 6)}),
    "weights of positions": (
        lambda: sequential(L.LSTM(3), L.Dense(2)),
        *(S, YS, {"sample_weight": RNG.random((3, 5, 2))}),
    ),
    "lengths": (
        lambda: sequential(L.GRU(3), L.Dropout(0.3), L.Dense(2)),
        *(S, YS, {"lengths": [5, 3, 1]}),
    ),
    "labels": (classes, X, [0, 1, 1, 0, 1, 1], {}),
    "one-hot": (lambda: classes(label_smoothing=0.2), X, HOT, {}),
    "ignored": (lambda: classes(ignore_index=-1), X, [0, -1, 1, -1, 1, 1], {}),
    "all ignored": (lambda: classes(ignore_index=-1), X, [-1] * 6, {}),
    "softmax": (probabilities, X, [0, 1, 2, 0, 1, 2], {}),
    "binary": (lambda: dense(L.ReLU(), loss_class=loss.BinaryCrossEntropyWithLogits()), X, HOT, {}),
    "gpt": (gpt, ROWS, np.where(LABELS == 2, -1, LABELS), {}),
    "gpt in float32": (lambda: gpt(dtype="float32"), ROWS, LABELS, {}),
    "gpt with lengths": (gpt, ROWS, LABELS, {"lengths": [4, 3]}),
    "batch of 1": (lambda: dense(L.LayerNorm()), X[:1], Y[:1], {}),
    "norms and dropout": (
        lambda: dense(L.BatchNorm(), L.Dropout(0.4), L.ReLU(), dtype="float32"),
        *(X, Y, {}),
    ),
    "checkpoint": (lambda: dense(L.Chain(*INSIDE, checkpoint=True).copy()), X, Y, {}),
    "nested": (deep, X, Y, {}),
    "time distributed": (distributed, S, YS, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_options_of_training(name):
    make, given, y, options = CASES[name]
    model = make()
    model.build(np.shape(given)[1:])
    t = assert_next_step(model, given, y, **options)
    shares = [t.by_sample(n) for n in range(len(given))]
    assert sum(share.loss for share in shares) == pytest.approx(t.loss, rel=1e-5, abs=1e-12)
    for path, passes in t._passes.items():
        for n in passes.grads:
            key = f"{path}.backward.d{n}"
            total = sum(share[key].array for share in shares)
            np.testing.assert_allclose(total, t[key].array, atol=1e-6, err_msg=key)
    assert "loss.forward.L" in t
    assert float(t["loss.L"].array) == pytest.approx(t.loss, rel=1e-6)
    np.testing.assert_allclose(t["loss.dP"].array, t["backward.dY"].array, atol=1e-6)


OPTIMIZERS = [SGD(0.1, momentum=0.9), SGD(0.1, clip_norm=1e-3), Adam(0.1, clip_value=1e-3)]
OPTIMIZERS += [AdamW(0.1, weight_decay=0.3), Adam(lambda step: 0.1 / (1 + step))]


@pytest.mark.parametrize(
    "optimizer",
    [*OPTIMIZERS, "muon", "lion", "rmsprop"],
    ids=lambda optimizer: str(optimizer).partition(" at 0x")[0],
)
def test_the_update_is_that_of_the_optimizer(optimizer):
    model = dense(L.BatchNorm(), L.Tanh(), optimizer=optimizer, alpha=None)
    model.train(X, Y, epochs=3, batch_size=2, verbose=0)
    t = assert_next_step(model, X, Y)
    wanted = np.sqrt(np.mean(t["0.dW"].array ** 2))
    assert wanted > 1e-3 > 0  # the gradient itself, not what clipping leaves of it
    row = next(row for row in t.rows if row.path == "3")
    update, size = (
        np.linalg.norm(np.concatenate([t[f"3.{kind}.{n}"].array.ravel() for n in "Wb"]))
        for kind in ("update", "forward")
    )
    assert row.update == pytest.approx(update / size)


def test_updates_that_are_not_there():
    model = dense(optimizer="lbfgs", alpha=None)
    before = snapshot(model)
    t = model.trace(X, Y)
    np.testing.assert_equal(snapshot(model), before)
    assert "no update: L-BFGS measures the loss at several places" in str(t)
    assert not [key for key in t if ".update." in key]
    assert t["0.dW"].array.any()
    model = dense(L.BatchNorm(), L.Dense(5, 5))
    model.layers[1].trainable = model.layers[2].trainable = False
    t = assert_next_step(model, X, Y)
    assert not [key for key in t if key.startswith(("1.update", "2.update"))]
    notes = {row.path: row.note for row in t.rows}
    assert notes == {"0": "", "1": "frozen", "2": "frozen", "3": ""}


def test_an_unbuilt_model_is_built_and_a_trace_keeps_the_old_numbers():
    model = Sequential(L.Dense(3), L.ReLU(), L.Dense(2), seed=4)
    t = model.trace(X, Y)
    assert model.input_shape == (4,)
    twin = model_for((4,), L.Dense(3), L.ReLU(), L.Dense(2), seed=4)
    np.testing.assert_array_equal(twin.trace(X, Y)["0.W"].array, t["0.W"].array)
    model = dense(L.BatchNorm())
    mine, wanted = X.copy(), Y.copy()
    t = model.trace(mine, wanted)
    copies = {key: np.array(entry.array) for key, entry in model.trace(X, Y).items()}
    model.train(X, Y, epochs=5, verbose=0)
    mine[:], wanted[:] = 9, 9
    for key, array in copies.items():
        np.testing.assert_array_equal(t[key].array, array, err_msg=key)
    wanted = dense(L.BatchNorm()).trace(X, Y).by_sample(2)["0.dW"].array
    np.testing.assert_allclose(t.by_sample(2)["0.dW"].array, wanted, rtol=1e-12)


def test_notes_on_fused_pairs_and_nan_weights():
    layers = L.Dense(4, 5), L.ReLU(), L.Dense(5, 3), L.Softmax()
    model = Sequential(*layers, loss_class=loss.CategoricalCrossEntropy(), seed=0)
    notes = {row.path: row.note for row in model.trace(X, [0, 1, 2, 0, 1, 2]).rows}
    assert notes["3"] == "fused in training"
    assert notes["2"] == ""
    assert all(row.note == "" for row in dense().trace(X, Y).rows)
    model = dense(L.Tanh(), L.Dense(5, 5))
    model.layers[2].params["W"][0, 0] = np.nan
    with np.errstate(invalid="ignore"):
        t = model.trace(X, Y)
    assert np.isnan(t.loss)
    notes = {row.path: row.note.split(", ") for row in t.rows}
    assert "Y is not finite" in notes["2"]
    assert "Y is not finite" not in notes["1"]
    assert "dW is not finite" in notes["0"]
    assert "no update" in str(t)
    assert np.isnan(t["2.dW"].why(0, 0).total)
    assert np.isnan(t["2.Y"].array[:, 0]).all()
    assert np.isfinite(t["2.Y"].array[:, 1:]).all()


def test_the_numbers_of_the_table():
    model = dense(L.ReLU())
    t = model.trace(X, Y)
    W, b = (model.layers[0].params[n] for n in "Wb")
    A = X @ W + b
    first, second, _ = t.rows
    assert first.path == "0"
    assert first.Y == pytest.approx(np.sqrt(np.mean(A**2)))
    assert second.zeros == pytest.approx(np.mean(A <= 0))
    assert first.zeros == 0
    dA = t["1.dX"].array
    dW = np.concatenate([(X.T @ dA).ravel(), dA.sum(0)])
    assert first.dW == pytest.approx(np.sqrt(np.mean(dW**2)))
    assert first.dY == pytest.approx(np.sqrt(np.mean(dA**2)))
    assert second.dW is second.update is None
    lines = str(t).splitlines()
    assert lines[1].split() == ["path", "layer", "|Y|", "|dY|", "|dW|", "update/W", "zeros", "note"]
    assert f"{second.zeros:.0%}" in lines[3]
    assert t._repr_html_().startswith('<iframe srcdoc="&lt;!')


def test_the_terms_of_a_weight_are_its_samples_and_explain_shows_numbers():
    t = dense().trace(X, Y)
    dW, A, dY = t["0.backward.dW"], t["0.X"].array, t["0.dY"].array
    why = dW.why(1, 2)
    assert why.total == pytest.approx(dW.array[1, 2], rel=1e-12, abs=1e-15)
    assert [abs(term.value) for term in why] == sorted((abs(A[:, 1] * dY[:, 2])), reverse=True)
    top = why[0]
    n = int(np.abs(A[:, 1] * dY[:, 2]).argmax())
    assert top.at == {"n": n}
    assert top.factors == {"X": A[n, 1], "dY": dY[n, 2]}
    assert top.value == A[n, 1] * dY[n, 2]
    assert dW.formula == "dW_ij = Σ_n X_ni dY_nj"
    assert dW.why(-3, -3).total == dW.why(1, 2).total
    t = dense().trace(X[:1], Y[:1])
    text = str(t["2.backward.db"].explain())
    assert text.splitlines()[0] == "db_j = Σ_n dY_nj"
    for word in ("2.backward.db of Dense(5, 2)", "dY  (1, 2)", "db  (2,)"):
        assert word in text
    for number in t["2.db"].array:
        assert f"{number:.4f}".rstrip("0") in text


SAME = Keys({"0": {"forward": ["S"], "backward": ["S"]}})
REFUSED = r"""
SAME.find("0.S") -> UnknownNameError: '0.S' is ambiguous: write '0.forward.S' or '0.backward.S'.
t["0.dw"] -> UnknownNameError: there is no '0\.dw'.*mean.*'0\.dW'
t["0.backward.dZ"] -> UnknownNameError: 0 has forward: X, W, b, XW, Y; backward: dY, dW, db, dX; upd
t["0.forward.dW"] -> UnknownNameError: there is no
t["9.Y"] -> UnknownNameError: there are '0', '1', '2', 'loss'. Did you mean '2.Y' or '1.Y'
t["nope"] -> UnknownNameError: '2', 'loss'. The model has forward: X, Y_0, .*; backward: dY, .*X.$
t["forward.Q"] -> UnknownNameError: 'forward.Q'. The model has forward: X, .*Did you mean 'forward.Y
deep().trace(X, Y)["77.Y"] -> UnknownNameError: '1.layers.1', .*'loss', and others.$
t[""] -> UnknownNameError: '' is a path: add a symbol
t["."] -> UnknownNameError: there is no
t["0"] -> UnknownNameError: '0' is a path: add a symbol of it, which are forward: X, W, b, XW, Y
t["0.backward"] -> UnknownNameError: there is no
t["1.update.W"] -> UnknownNameError: there is no
t[3] -> UnknownNameError: keys are texts such as '0.forward.X', got 3
t["0.dW"].why() -> ShapeError: dW has shape \(4, 5\), so why takes 2 indices
t["0.dW"].why(9, 0) -> ShapeError: so why takes 2 indices
t["0.dW"].why(0, 0, 0) -> ShapeError: so why takes 2 indices
t["0.dW"].why("a", 0) -> ShapeError: so why takes 2 indices
t.by_sample(6) -> ArgumentError: by_sample: n must be
t.by_sample(-7) -> ArgumentError: by_sample: n must be
t.by_sample("a") -> ArgumentTypeError: by_sample: n must be
t.draw(6) -> ArgumentError: n must be
t.by_sample(True) -> ArgumentTypeError: by_sample: n must be
t.diff(dense()) -> ArgumentTypeError: compared with another one
t.diff(dense().trace(X[:2], Y[:2])) -> ShapeError: batches of the same shape.*Y of 0 has
t.diff(dense(L.Tanh(), L.Tanh()).trace(X, Y)) -> ArgumentError: only one of them has '3'
dense(L.Tanh(), L.Tanh()).trace(X, Y).diff(t) -> ArgumentError: only one of them has '3'
"""


@rows(REFUSED)
def test_what_is_refused(call, error):
    check_refused(call, error, {**globals(), "t": step()})


def test_a_trace_is_a_mapping_of_all_keys():
    words = gpt().trace(ROWS, LABELS)
    assert "0.dX" not in words  # tokens have no gradient
    np.testing.assert_array_equal(words["4.forward.W"].array, words["0.forward.W"].array)  # tied
    both = sequential(L.Parallel(L.Embedding(7, 2), L.Embedding(7, 3)), L.Dense(2))
    assert "0.dX" not in both.trace(ROWS, np.ones((2, 4, 2)))
    assert all(key not in step() for key in ("0.dw", "0.forward.dW", "9.Y", "", "0", None, 3))
    with pytest.raises(UnknownNameError) as caught:
        step()["backward"]
    named = str(caught.value).partition("Did you mean ")[2].rstrip("?'").split(" or ")
    assert len(named) == len(set(named))
    t = dense(L.LayerNorm()).trace(X, Y)
    assert len(list(t)) == len(t) == len(set(t))
    for key in t:
        assert key in t
        assert t[key].key == key
        direction = key.split(".")[-2]
        short = key.replace(f"{direction}.", "")
        if short in t:
            assert t[short].key in (key, key.replace("update", "forward"))


def test_differences_and_shares():
    model = dense()
    t = model.trace(X, Y)
    same = t.diff(model.trace(X, Y))
    assert all(row.Y == row.dY == 0 for row in same.rows)
    assert "the loss is the same" in str(same)
    model.layers[2].params["W"] *= 2
    moved = model.trace(X, Y).diff(t)
    first, _, last = moved.rows
    assert first.Y == 0
    assert (first.dY or 0) > 0
    Z = t["2.Y"].array
    Z2 = 2 * (Z - t["2.b"].array) + t["2.b"].array
    assert last.Y == pytest.approx(np.linalg.norm(Z2 - Z) / np.linalg.norm(Z))
    t = dense().trace(X, Y)
    share = t.by_sample(-1)
    assert share.sample == 5
    assert "sample 5 of 6" in str(share)
    alone = dense().trace(X[5:], Y[5:])
    np.testing.assert_allclose(6 * share["0.dW"].array, alone["0.dW"].array, rtol=1e-12)
    assert 6 * share.loss == pytest.approx(alone.loss)
    assert not share["loss.dP"].array[:5].any()
    assert not [key for key in share if ".update." in key]
    assert not t.by_sample(2).by_sample(3)["0.dW"].array.any()  # it has no part in that share


def test_layers_without_steps_and_traces_that_stay_small():
    cube = L.Lambda(np.square, lambda dY, X, Y: 2 * X * dY)
    gate = Gate(L.Dense(5, 5), L.Tanh())
    model = dense(Closed(), cube, gate, Closed(), loss_class=Plain())
    t = assert_next_step(model, X, Y)
    notes = {row.path: row.note for row in t.rows}
    assert [p for p, note in notes.items() if "no steps(): boundaries only" in note] == list("1234")
    assert t["1.dgain"].explain().startswith("dgain")
    assert t["1.dgain"].why(2).total == pytest.approx(t["1.dgain"].array[2])
    dW = t["3.inside.value.dW"]
    assert dW.why(1, 1).total == pytest.approx(dW.array[1, 1])
    assert t["loss.dP"].array == pytest.approx(2 * (t["Y"].array - Y) / 12, abs=1e-9)
    shares = [t.by_sample(n) for n in range(6)]
    for key in ("0.dW", "1.dgain", "3.inside.value.db", "3.dX"):
        total = sum(share[key].array for share in shares)
        np.testing.assert_allclose(total, t[key].array, atol=1e-11)
    # Symbols of a few layers are kept, however many are looked at.
    model = Sequential(*[L.Dense(8, 8) for _ in range(30)], seed=0)
    t = model.trace(np.ones((2, 8)), np.ones((2, 8)))
    for key in t:
        t[key]
    assert len(t._scopes) <= 8


# --- drawings: `Trace.draw` -----------------------------------------------------------------------

FEW = np.array([[0.0, 0.5], [1.5, 1.0], [-1.0, 2.0]])
ONES = np.array([[1.0], [0.0], [2.0]])


def small(*layers, X=FEW):
    return sequential(*layers).trace(X, ONES)


def test_it_shows_every_number_of_one_sample_and_its_share_of_the_gradients():
    t = small(L.Dense(2, 3), L.Tanh(), L.Dense(3, 1))
    text, share = t.draw(1), t.by_sample(1)
    for key, array in (
        *((f"{path}.forward.Y", share[f"{path}.forward.Y"].array[1]) for path in (0, 1, 2)),
        *((f"{path}.backward.dY", share[f"{path}.backward.dY"].array[1]) for path in (0, 1, 2)),
        *((k, share[k].array) for k in ("0.backward.dW", "0.backward.db", "2.backward.dW")),
        ("0.forward.W", t.model.layers[0].W),
    ):
        for row in np.atleast_2d(array):
            assert " ".join(f"{x:9.3g}" for x in row) in text, key
    assert text.startswith(f"loss {share.loss:.6g}: the share of sample 1 of 3")
    names = ("X", "0 Dense(2, 3)", "1 Tanh()", "2 Dense(3, 1)", "P", "MeanSquaredError()")
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert repr(text) == str(text)


def test_a_drawing_is_aligned_names_layers_inside_and_describes_large_arrays():
    lines = small(L.Dense(2, 3), L.ReLU(), L.Dense(3, 1)).draw().splitlines()[1:]
    rules = [line for line in lines if line.startswith(("┌", "└"))]
    assert len(rules) == 6
    assert len({len(line) for line in rules}) == 1
    assert max(map(len, lines)) == len(rules[0])
    columns = {line.index("d") for line in lines if " dW" in line or " db" in line}
    assert len(columns) == 1
    text = small(L.Dense(2, 3), L.Residual(L.Dense(3), L.ReLU()), L.Dense(3, 1)).draw()
    assert "1 Residual ─" in text
    assert "layers.0.W" in text
    assert "layers.0.dW" in text
    text = small(L.Dense(2, 9), L.Dense(9, 1)).draw()
    assert "(2, 9), root mean square" in text
    with pytest.raises(ArgumentError, match="at most 24 layers, got 26"):
        small(L.Dense(2, 1), *[L.ReLU() for _ in range(24)], L.Dense(1, 1)).draw()
    tokens = np.array([[1, 3], [0, 2], [2, 2]])
    text = small(L.Embedding(4, 2), L.Flatten(), L.Dropout(0.5), L.Dense(4, 1), X=tokens).draw(2)
    assert "2         2" in text
    assert "dX" not in text.splitlines()[1]  # tokens have no gradient


def test_ascii_by_request_and_where_stdout_needs_it(monkeypatch):
    t = small(L.Dense(2, 2), L.Dense(2, 1))
    assert t.draw(ascii=True).isascii()
    assert not t.draw(ascii=False).isascii()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="cp1250"))
    assert t.draw().isascii()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not t.draw().isascii()
