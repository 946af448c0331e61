"""Hooks and patches do exactly what their functions say, wherever the model runs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from phitodeep import Sequential, watching
from phitodeep import layers as L
from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.run import Scope
from phitodeep.errors import ArgumentTypeError, ShapeError
from phitodeep.inspect.hooks import is_boundary, symbols_of
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.testing.examples import data, made
from tests.conftest import assert_weights, check_refused, model_for
from tests.inspect.shared import LABELS, RNG, ROWS, YS, S, X, Y, dense, rows
from tests.rows import KINDS, few, over


def scaling(k):
    """Y = k X, with its derivative."""
    return L.Lambda(lambda X: k * X, lambda dY, X, Y: k * dY, independent_samples=True)


def double(A, at):
    return 2 * A


def assert_equal(a, b):
    assert list(a.values())
    for found, wanted in zip(a.values(), b.values(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def changed(A):
    return 1.1 * A + 0.01


def listed(A, at):
    return A.tolist()


def inner(model):
    for path, leaf in model.walk():
        if not leaf.children():
            for direction in ("forward", "backward"):
                for symbol in symbols_of(leaf, direction):
                    if not is_boundary(symbol):
                        yield path, direction, symbol


@over(KINDS)
def test_a_hook_changes_what_follows_from_any_symbol(make, shape, tokens):
    model = model_for(shape[1:], made(make, shape), dtype="float64")
    given, dY = data(model, shape, tokens)
    for path, direction, symbol in few(inner(model), 7):
        place, calls = (path, direction, symbol), list[str]()

        def edit(position, value, place=place):
            here = (position.scope.path, position.direction, position.step.symbol)
            floats = value is not None and np.asarray(value).dtype.kind == "f"
            return changed(value) if here == place and floats else value

        def hook(A, at, calls=calls):
            calls.append(at.key)
            return changed(A) if np.asarray(A).dtype.kind == "f" else None

        with calling(step=3):
            wanted = Scope(model, X=given)
            stepwise.run(stepwise.forward(wanted), edit)
            stepwise.run(stepwise.backward(wanted, dY), edit)
        hooks = {"fwd" if direction == "forward" else "bwd": {f"{path}.{symbol}": hook}}
        with model.hooks(**hooks), calling(step=3):
            found = model.forward(given)
            dX = model.backward(dY)
        assert set(calls) == {".".join(place)} or wanted.find(symbol) is None
        np.testing.assert_allclose(found, wanted["Y"], rtol=1e-10, atol=1e-11, err_msg=str(place))
        if dX is not None:
            np.testing.assert_allclose(dX, wanted["dX"], rtol=1e-10, atol=1e-11)
        gradients = stepwise.gradients(wanted)
        for where, layer in model.walk():
            for n, gradient in layer.grads.items():
                full = f"{where}.{n}".removeprefix(".")
                np.testing.assert_allclose(gradient, gradients[full], rtol=1e-10, atol=1e-11)


def checkpoint(*more):
    return dense(L.Chain(L.Tanh(), *more, L.Dense(5, 5), checkpoint=True))


def networks():
    """A model, the same with a scaling by 2 inside, and the layer before it."""
    entropy = {"loss_class": SoftmaxCrossEntropy()}
    between = {
        "plain": (L.Tanh(), {}),
        "relu, which training fuses": (L.ReLU(), {}),
        "loss that training fuses": (L.Tanh(), entropy),
        "container": (L.Residual(L.Tanh()), {}),
    }
    found = {
        name: (dense(layer, **options), dense(layer.copy(), scaling(2), **options), "1")
        for name, (layer, options) in between.items()
    }
    return found | {"checkpoint": (checkpoint(), checkpoint(scaling(2)), "1.layers.0")}


def same_weights(model, other):
    weights = dict(zip(other.get_weights(), model.get_weights().values(), strict=True))
    other.set_weights(weights)


@pytest.mark.parametrize(("name", "accumulate"), [*((n, 1) for n in networks()), ("plain", 2)])
def test_training_with_hooks_is_training_of_the_changed_network(name, accumulate):
    model, other, path = networks()[name]
    hooks = {"fwd": {f"{path}.Y": double}, "bwd": {f"{path}.dY": double}}
    y = np.arange(6) % 2 if isinstance(model.loss, SoftmaxCrossEntropy) else Y
    same_weights(model, other)
    unhooked = model.copy()
    options = {"epochs": 3, "batch_size": 2, "accumulate": accumulate, "verbose": 0}
    with model.hooks(**hooks):
        model.train(X, y, **options)
        found = model.predict(X), model.evaluate(X, y)["loss"]
    other.train(X, y, shortcuts=False, **options)
    assert_equal(model.get_weights(), other.get_weights())
    np.testing.assert_allclose(found[0], other.predict(X), rtol=1e-12)
    assert found[1] == pytest.approx(other.evaluate(X, y)["loss"], rel=1e-12)
    unhooked.train(X, y, **options)
    assert not np.allclose(unhooked.predict(X), found[0])


def test_threads_that_share_a_batch_call_hooks_and_a_patch_serves_several(cut):
    cut(3)
    norm = dense(L.LayerNorm(), L.Tanh())
    hooks = {"fwd": {"1.X_hat": double, "2.Y": double}, "bwd": {"0.dW": double}}
    whole = norm.copy()
    seen = list[int]()
    hooks["fwd"]["0.Y"] = lambda A, at: seen.append(len(A))
    with norm.hooks(**hooks):
        norm.train(X, Y, epochs=2, verbose=0, threads=2)
        parts = norm.predict(X, threads=2)
    assert set(seen) == {2}
    seen.clear()
    cut(1)
    with whole.hooks(**hooks):
        whole.train(X, Y, epochs=2, verbose=0)
        np.testing.assert_allclose(parts, whole.predict(X), rtol=1e-12)
    assert set(seen) == {6}
    assert_equal(norm.get_weights(), whole.get_weights())
    model = dense()
    patched = model.patch({"1.Y": np.ones((6, 5))})
    wanted, plain, gate = patched.predict(X), model.predict(X), threading.Barrier(2, timeout=10)

    def meet(A, at):
        gate.wait()

    def work(_):
        np.testing.assert_array_equal(model.predict(X), plain)  # of another thread's hooks
        with model.hooks(fwd={"0.Y": meet}):
            np.testing.assert_array_equal(patched.predict(X), wanted)

    with patched.hooks, ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    inside, left = threading.Event(), threading.Event()

    def enter_last():
        with patched.hooks:
            inside.set()
            assert left.wait(10)

    with ThreadPoolExecutor(1) as pool:
        with patched.hooks:
            other = pool.submit(enter_last)
            assert inside.wait(10)
        left.set()
        other.result()


def test_hooks_of_gradients_of_tied_and_of_frozen_parameters():
    model, plain = dense(optimizer="sgd"), dense(optimizer="sgd")
    t0 = plain.trace(X, Y)
    before = model.get_weights()
    with model.hooks(bwd={"2.dW": double, "0.db": lambda A, at: 0 * A}):
        t = model.trace(X, Y)
        model.train(X, Y, epochs=1, verbose=0)
    plain.train(X, Y, epochs=1, verbose=0)
    for path, factor in {"0.W": 1, "0.b": 0, "2.W": 2, "2.b": 1}.items():
        moved = model.get_weights()[path] - before[path]
        wanted = factor * (plain.get_weights()[path] - before[path])
        np.testing.assert_allclose(moved, wanted, atol=1e-15)
        layer, name = path.split(".")
        np.testing.assert_allclose(t[f"{layer}.update.{name}"].array, moved, atol=1e-15)
        dW, dW0 = (trace[f"{layer}.d{name}"].array for trace in (t, t0))
        np.testing.assert_allclose(dW, factor * dW0, atol=1e-15)
    assert t.loss == t0.loss
    e = L.Embedding(7, 3)
    model = model_for((5,), e, L.Tanh(), L.TiedDense(e), loss_class=SoftmaxCrossEntropy(), seed=0)
    t0 = model.trace(ROWS, LABELS)
    with model.hooks(bwd={"2.dW": lambda A, at: 0 * A}):
        t = model.trace(ROWS, LABELS)
    np.testing.assert_array_equal(t["2.dW"].array, 0)
    np.testing.assert_allclose(t["0.dW"].array, t0["0.dW"].array, rtol=1e-12)
    assert not np.array_equal(t["0.update.W"].array, t0["0.update.W"].array)
    model.layers[0].trainable = False
    before = model.get_weights()
    with model.hooks(bwd={"0.dW": double, "0.onehot": lambda A, at: A, "2.dX": double}):
        model.train(ROWS, LABELS, epochs=1, verbose=0)
        model.trace(ROWS, LABELS)
    assert_equal(model.get_weights(), before)


def test_the_first_layer_has_a_dX_only_where_it_is_needed():
    model, seen = dense(L.LayerNorm()), list[str]()

    def see(A, at):
        seen.append(at.key)

    plain = dense(L.LayerNorm())
    plain.train(X, Y, epochs=1, verbose=0)
    with model.hooks(fwd={"1.Y": lambda A, at: None}, bwd={"0.dX": see, "0.dY": see}):
        model.train(X, Y, epochs=1, verbose=0)
        assert seen == ["0.backward.dY"]
        assert_weights(model, plain)  # hooks that return nothing change no bit
        model.trace(X, Y)
        assert seen[1:] == ["0.backward.dY", "0.backward.dX"]
    norm = Sequential(L.LayerNorm(), L.Dense(2), seed=0, dtype="float64")
    with norm.hooks(bwd={"0.s": double}):  # runs by its steps, as the first layer
        norm.train(X, Y, epochs=1, verbose=0)
    with model.hooks(fwd={"0.XW": double}):
        model.train(X, Y, epochs=1, verbose=0)


def test_hooks_are_nested_entered_again_and_leave_another_model_alone():
    for key in ["1.Y", "1.X_hat"]:
        model = dense(L.LayerNorm())
        with model.hooks(fwd={key: lambda A, at: A + 1}), model.hooks(fwd={key: double}):
            both = model.predict(X)
            loss = model.trace(X, Y).loss
        with model.hooks(fwd={key: lambda A, at: 2 * (A + 1)}):
            np.testing.assert_allclose(both, model.predict(X), rtol=1e-12)
            assert loss == pytest.approx(model.trace(X, Y).loss, rel=1e-12)
    model = dense()
    hooks = model.hooks(fwd={"1.Y": double})
    with hooks:
        once = model.predict(X)
        with hooks:
            twice = model.predict(X)
        np.testing.assert_array_equal(model.predict(X), once)
    assert not np.allclose(once, twice)
    plain = model.predict(X)
    with hooks:
        np.testing.assert_array_equal(model.predict(X), once)
    assert not np.allclose(once, plain)
    a, b = dense(), dense()
    zero = {"0.Y": lambda A, at: 0 * A}
    with a.hooks(fwd=zero):
        t, (P, cache) = b.trace(X, Y), b.run_with_cache(X)
        assert t["0.Y"].array.any()
        assert cache["0.Y"].any()
        np.testing.assert_array_equal(P, b.predict(X))
        b.sample_gradients(X, Y)["0.W"]
        with b.hooks(fwd={"2.Y": double}):
            assert not a.trace(X, Y)["0.Y"].array.any()
            assert not np.allclose(a.predict(X), b.predict(X))
            np.testing.assert_array_equal(a.predict(X), 0 * Y + a.layers[-1].params["b"])
            np.testing.assert_allclose(b.trace(X, Y)["2.Y"].array, 2 * P, rtol=1e-12)
            np.testing.assert_array_equal(b.predict(X), 2 * P)
    model, seen = dense(), list[Any]()
    with watching(seen.append), model.hooks(fwd={"1.Y": double}):
        model.predict(X)
    assert [e.path for e in seen] == ["", "0", "0", "1", "1", "2", "2", ""]


def test_a_hook_is_told_where_it_is_and_cannot_write_to_its_array():
    model, seen = Sequential(L.RNN(3), L.Dense(2), seed=0), list[Any]()
    model.build((5, 4))

    def see(A, at):
        seen.append((at, A.shape))

    with model.hooks(fwd={"0.h_t": see, "X": see}, bwd={"0.dh_t": see, "1.dW": see}):
        model.trace(S, YS)
    steps = ["0.forward.h_t"] * 5, ["0.backward.dh_t"] * 5
    assert [at.key for at, _ in seen] == ["forward.X", *steps[0], "1.backward.dW", *steps[1]]
    assert [at.t for at, _ in seen] == [None, 0, 1, 2, 3, 4, None, 4, 3, 2, 1, 0]
    assert {shape for at, shape in seen if at.t is not None} == {(6, 3)}
    assert isinstance(seen[1][0].layer, L.RNN)
    model, mine = dense(), X.copy()

    def in_place(A, at):
        A *= 2

    for run in (lambda: model.predict(mine), lambda: model.trace(mine, Y)):
        with model.hooks(fwd={"0.X": in_place}), pytest.raises(ValueError, match="read-only"):
            run()
    np.testing.assert_array_equal(mine, X)


def test_what_a_hook_returned_is_kept_and_runs_once():
    model, mine = dense(), np.ones((6, 5))
    with model.hooks(fwd={"1.Y": lambda A, at: mine}):
        t = model.trace(X, Y)
        given = X.copy()
        _, cache = model.run_with_cache(given)
        given[:] = 7
        np.testing.assert_array_equal(cache["0.X"], X)
    patched = model.patch({"1.Y": mine})
    wanted = patched.predict(X)
    mine[:] = 7
    for array in (t["1.Y"].array, t["2.X"].array, cache["1.Y"], cache["2.X"]):
        np.testing.assert_array_equal(array, 1)
    np.testing.assert_array_equal(patched.predict(X), wanted)
    # A hook may draw random numbers: what the trace shows later is what was used.
    model, rng, calls = dense(L.LayerNorm(), L.Tanh()), np.random.default_rng(1), list[str]()

    def noise(A, at):
        calls.append(at.key)
        return A + rng.standard_normal(A.shape)

    keys = {"fwd": {"1.X_hat": noise, "2.Y": noise}, "bwd": {"1.g": noise, "2.dX": noise}}
    with model.hooks(**keys):
        t = model.trace(X, Y)
    assert sorted(calls) == ["1.backward.g", "1.forward.X_hat", "2.backward.dX", "2.forward.Y"]
    np.testing.assert_allclose(t["2.Y"].array, t["3.X"].array, rtol=1e-12)
    np.testing.assert_allclose(t["1.Y"].array, t["2.X"].array, rtol=1e-12)
    np.testing.assert_allclose(t["2.dX"].array, t["1.dY"].array, rtol=1e-12)
    np.testing.assert_allclose(t["1.dX"].array, t["0.dY"].array, rtol=1e-12)
    assert len(calls) == 4
    model, rng = dense(L.Chain(L.Tanh(), L.Dense(5, 5), checkpoint=True)), np.random.default_rng(1)
    outputs = list[Array]()

    def noise(A, at):
        return A + rng.standard_normal(A.shape)

    def see(event):
        if (event.what, event.when, event.path) == ("forward", "before", "1.layers.1"):
            outputs.append(event.array.copy())

    with watching(see, recomputed=True), model.hooks(fwd={"1.layers.0.Y": noise}):
        model.train(X, Y, epochs=1, verbose=0)
        t = model.trace(X, Y)
    wanted = t["1.layers.0.Y"].array.T @ t["1.layers.1.dY"].array
    np.testing.assert_allclose(t["1.layers.1.dW"].array, wanted, atol=1e-12)


RETURNED = r"""
A[:1] -> ShapeError: 0\.forward\.Y.*array of shape \(6, 5\), got.*1, 5
0.0 -> ShapeError: got shape \(\)
"hello" -> ArgumentTypeError: real numbers
A * 1j -> ArgumentTypeError: complex
[[1], [1, 2]] -> ShapeError: unequal length
object() -> ArgumentTypeError: real numbers
"""


@rows(RETURNED)
def test_what_a_hook_may_not_return(call, error):
    model = dense()
    names = {"model": model, "X": X, "Y": Y}
    with model.hooks(fwd={"0.Y": lambda A, at: eval(call, {"A": A})}):
        check_refused("model.predict(X)", error, names)
        check_refused("model.train(X, Y, epochs=1, verbose=0)", error, names)
    assert np.isfinite(model.predict(X)).all()


def test_another_dtype_is_cast_but_tokens_stay_tokens():
    for dtype in ["float32", "float64"]:
        model = dense(L.LayerNorm(), dtype=dtype)
        wanted = model.predict(X)
        for other in (np.float32, np.float64):
            keys = {"0.Y": lambda A, at, to=other: A.astype(to), "1.X_hat": listed}
            with model.hooks(fwd=keys, bwd={"1.dgamma": listed}):
                found = model.predict(X)
                model.trace(X, Y)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    model = model_for((5,), L.Embedding(7, 3), L.Dense(2), seed=0)
    with model.hooks(fwd={"0.X": lambda A, at: A * 0 + 1}):
        np.testing.assert_array_equal(model.predict(ROWS), model.predict(ROWS * 0 + 1))
    with (
        model.hooks(fwd={"0.X": lambda A, at: A + 0.5}),
        pytest.raises(ArgumentTypeError, match="must return int64, got float64"),
    ):
        model.predict(ROWS)


def _fail(A, at):
    raise RuntimeError("mine")


@pytest.mark.parametrize("method", ["train", "trace", "predict"])
def test_a_hook_that_raises_leaves_the_model_alone(method):
    model = dense(L.LayerNorm(), L.Tanh())
    before = model.get_weights()
    args = (X,) if method == "predict" else (X, Y)
    options = {"epochs": 1, "verbose": 0} if method == "train" else {}
    for keys in ({"fwd": {"1.X_hat": _fail}}, {"bwd": {"1.g": _fail}}, {"bwd": {"0.dY": _fail}}):
        with model.hooks(**keys):
            if method == "predict" and "bwd" in keys:
                model.predict(X)
                continue
            with pytest.raises(RuntimeError, match="mine") as caught:
                getattr(model, method)(*args, **options)
            assert "in layer" in "".join(getattr(caught.value, "__notes__", ["in layer"]))
        assert_equal(model.get_weights(), before)
    model.train(X, Y, epochs=1, verbose=0)
    assert np.isfinite(model.predict(X)).all()


MEANINGLESS = r"""
dense().hooks(fwd={"0.Yy": print}) -> UnknownNameError: 'Yy' is not one of the symbols.*mean 'Y'
dense().hooks(fwd={"5.Y": print}) -> UnknownNameError: '5' is not one of the layers
dense().hooks(fwd={3: print}) -> ArgumentTypeError: keys are texts such as '1.Y', got 3
dense().hooks(fwd={"0.dX": print}) -> ArgumentError: backward pass: give it in bwd=
dense().hooks(bwd={"0.X": print}) -> ArgumentError: forward pass: give it in fwd=
dense().hooks(fwd={"0.backward.Y": print}) -> ArgumentError: backward pass: give it in bwd=
dense().hooks(fwd={"0.Y": 3}) -> ArgumentTypeError: functions of .array, at., got 3
dense().hooks(fwd={"Y_0": print}) -> ArgumentError: inside a container
dense().hooks(bwd={"loss.dP": print}) -> UnknownNameError: 'loss' is not one of the layers
dense().patch({"0.Yy": X}) -> UnknownNameError: Yy
dense().patch({"7.Y": X}) -> UnknownNameError: '7'
dense().patch({"0.update.W": X}) -> UnknownNameError: '0.update' is not one of the layers
dense().hooks(fwd={"0.update.Y": print}) -> UnknownNameError: '0.update' is not one of the layers
dense().patch({"0.W": X}) -> UnknownNameError: 'W' is not one of the symbols
dense().patch({"0.Y": X[:2]}).predict(X) -> ShapeError: '0.forward.Y' .* \(6, 5\), got \(2, 4\)
"""


@rows(MEANINGLESS)
def test_keys_that_mean_nothing(call, error):
    check_refused(call, error, globals())


@pytest.mark.parametrize("key", ["0.Y", "1.X_hat", "2.X", "X", "1.r"])
def test_a_patch_of_all_that_follows_is_the_other_prediction(key):
    model = dense(L.LayerNorm(), L.Tanh())
    X2 = X[::-1] * 2
    P2, cache = model.run_with_cache(X2)
    np.testing.assert_array_equal(P2, model.predict(X2))
    patched = model.patch({key: cache[key]})
    if key != "1.r":
        np.testing.assert_allclose(patched.predict(X), P2, rtol=1e-12)
    else:  # only the scale of each row
        C = X @ model.layers[0].params["W"] + model.layers[0].params["b"]
        X_hat = (C - C.mean(-1, keepdims=True)) * cache["1.r"]
        wanted = model.patch({"1.X_hat": X_hat}).predict(X)
        np.testing.assert_allclose(patched.predict(X), wanted, rtol=1e-12)
    t = patched.trace(X, Y)
    np.testing.assert_allclose(t[key].array, cache[key], rtol=1e-12)
    assert patched.run_with_cache(X)[1][key] == pytest.approx(cache[key])


def test_patches_of_loops_and_of_gradients():
    model = model_for((5, 4), L.LSTM(3), L.Dense(2), seed=0, dtype="float64")
    P2, cache = model.run_with_cache(2 * S)
    assert cache["0.c_t"].shape == (6, 5, 3)
    both = {"0.c_t": cache["0.c_t"], "0.h_t": cache["0.h_t"]}
    np.testing.assert_allclose(model.patch(both).predict(S), P2, rtol=1e-12)
    t = model.patch(both).trace(S, YS)
    np.testing.assert_array_equal(t["0.h_t"].array, cache["0.h_t"])
    with pytest.raises(ShapeError, match=r"patch: '0\.forward\.h_t' has shape \(6, 3\) for each"):
        model.patch({"0.h_t": cache["0.h_t"][:3]}).predict(S)
    model = dense(optimizer="sgd")
    t0, G = model.trace(X, Y), RNG.standard_normal((6, 5))
    t = model.patch({"1.dX": G, "2.backward.dW": np.zeros((5, 2))}).trace(X, Y)
    np.testing.assert_allclose(t["0.dW"].array, X.T @ G, rtol=1e-12)
    np.testing.assert_array_equal(t["2.dW"].array, 0)
    np.testing.assert_array_equal(t["2.update.W"].array, 0)
    assert t.loss == t0.loss
    d = {row.path: row for row in t.diff(t0).rows}
    assert d["2"].Y == d["1"].Y == d["2"].dY == 0
    assert (d["0"].dY or 0) > 0
    assert "the loss is the same" in str(t.diff(t0))


@over(KINDS)
def test_a_cache_is_the_prediction(make, shape, tokens):
    model = model_for(shape[1:], made(make, shape), dtype="float64", seed=1)
    given, _ = data(model, shape, tokens)
    P, cache = model.run_with_cache(given)
    np.testing.assert_array_equal(P, model.predict(given))
    np.testing.assert_array_equal(cache["Y"], P)
    np.testing.assert_array_equal(cache["0.X"], given)
    assert len(list(cache)) == len(cache)
    for key in cache:
        assert key in cache
        cache[key]
    for missing in ("0.dX", "update.W", "", None):
        assert missing not in cache


@pytest.mark.parametrize("between", [L.Tanh, L.Sigmoid, L.Softmax, L.LayerNorm])
def test_a_hook_of_what_a_layer_passes_on_is_outside_it(between):
    """The derivative of Tanh is that of its own Y, in the trace as in training."""
    model = dense(between())
    changed = dense(between(), scaling(2))
    same_weights(model, changed)
    wanted = changed.trace(X, Y)
    with model.hooks(fwd={"1.Y": double}, bwd={"1.dY": double}):
        np.testing.assert_allclose(model.trace(X, Y)["1.dX"].array, wanted["1.dX"].array)
    with model.hooks(fwd={"1.Y": double}, bwd={"1.dY": double, "1.dX": double}):
        t, g = model.trace(X, Y), model.sample_gradients(X, Y)
    assert t.loss == pytest.approx(wanted.loss, rel=1e-12)
    np.testing.assert_allclose(t["1.Y"].array, t["2.X"].array, rtol=1e-12)
    np.testing.assert_allclose(t["1.dX"].array, t["0.dY"].array, rtol=1e-12)
    np.testing.assert_allclose(t["1.dX"].array, 2 * wanted["1.dX"].array, rtol=1e-12)
    np.testing.assert_allclose(g["0.W"].sum(0), t["0.dW"].array, atol=1e-12)
    for key in ("1.Y", "1.dX"):
        assert "what a hook returned" in t[key].formula
        assert t[key].why(1, 2).total == t[key].array[1, 2]


def test_replaced_symbols_are_explained_and_shares_keep_the_hooks():
    model = model_for((5, 4), L.LayerNorm(), L.RNN(3), L.Dense(2), seed=0, dtype="float64")
    with model.hooks(fwd={"0.mu": double, "1.xW": double}, bwd={"2.dW": double}):
        t = model.trace(S, YS)
    for key, cell in {"0.mu": (1, 2, 0), "1.xW": (3, 4, 1), "2.dW": (1, 1)}.items():
        assert "what a hook returned" in t[key].formula
        assert t[key].why(*cell).total == t[key].array[cell]
    assert "hook" not in t["0.X_hat"].formula
    model = dense(L.LayerNorm(), L.Tanh())
    with model.hooks(fwd={"1.X_hat": double}, bwd={"2.dX": double, "1.g": double}):
        t, g = model.trace(X, Y), model.sample_gradients(X, Y)
        inside = t.by_sample(1)["0.dW"].array
        model.trace(3 * X, Y)  # another step must not leave its marks
    with model.hooks(bwd={"2.dX": lambda A, at: 0 * A}):
        np.testing.assert_array_equal(t.by_sample(1)["0.dW"].array, inside)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(t.by_sample, 1).result()
    np.testing.assert_array_equal(found["0.dW"].array, inside)
    for key in ("0.W", "1.gamma", "3.W"):
        total = t[key.replace(".", ".d")].array
        np.testing.assert_allclose(g[key].sum(0), total, atol=1e-12)
    shares = [t.by_sample(n) for n in range(6)]
    for key in ("0.dW", "1.dgamma", "1.g", "0.dX"):
        total = sum(share[key].array for share in shares)
        np.testing.assert_allclose(total, t[key].array, atol=1e-12)


def test_a_shared_layer_has_the_running_means_of_the_first_place():
    first = L.BatchNorm()
    model = Sequential(
        L.Dense(4, 3), first, L.Shared(first), seed=0, loss_class="mse", dtype="float64"
    )
    model.build((4,))
    X = RNG.standard_normal((6, 4))
    model.train(X, X[:, :3], epochs=2, verbose=0)
    Y, cache = model.run_with_cache(X)
    np.testing.assert_allclose(Y, model.predict(X), rtol=1e-6)
    np.testing.assert_allclose(cache["2.C"], cache["1.Y"] - first.running_mean, rtol=1e-6)
