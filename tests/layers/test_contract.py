"""What every layer promises, tested for each of them: one table, and no layer escapes it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling, inference, saliency
from phitodeep.core.types import Array, Shape
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackwardError,
    NotBuiltError,
    ShapeError,
)
from phitodeep.layers import (
    BatchNorm,
    Chain,
    Flatten,
    Layer,
    Parallel,
    Reshape,
    Residual,
    initialization,
)
from phitodeep.testing import check_gradients, examples
from phitodeep.testing.examples import made
from tests.conftest import assert_same
from tests.rows import KINDS, LONG, TOOLS, few

Make = examples.Make
EXAMPLES = examples.EXAMPLES
data = partial(examples.data, scale=2.0)
VIEWS = (Chain, Flatten, Reshape)  # may return a view of X


def over(rows: list[tuple[Make, Shape]]) -> pytest.MarkDecorator:
    names = [f"{make()} {shape}" for make, shape in rows]
    return pytest.mark.parametrize(("make", "shape"), rows, ids=names)


every = over(EXAMPLES)
one_each = over([(make, shape) for make, shape, tokens in TOOLS if not tokens])
kinds = over([(make, shape) for make, shape, tokens in (TOOLS if LONG else KINDS) if not tokens])
dtypes = pytest.mark.parametrize("dtype", few([np.float32, np.float64], 1))


def parts(layer: Layer) -> list[Layer]:
    return [part for _, part in layer.walk()]


def grads(layer: Layer) -> dict[str, Array]:
    return {f"{path}.{n}": a.copy() for path, p in layer.walk() for n, a in p.grads.items()}


def passes(layer: Layer, X: Array, dY: Array, **call: Any) -> dict[str, Array]:
    """Y, dX and all gradients of a forward and a backward pass, copied."""
    with calling(step=0) if not call else calling(**call):
        Y = layer.forward(X).copy()
        dX = layer.backward(dY)
    assert dX is not None
    return {"Y": Y, "dX": dX.copy(), **grads(layer)}


def arrays(value: Any) -> Iterator[Array]:
    """All arrays in a nest of dicts, lists and tuples."""
    if isinstance(value, dict | list | tuple):
        for v in value.values() if isinstance(value, dict) else value:
            yield from arrays(v)
    elif isinstance(value, np.ndarray):
        yield value


def everything(layer: Layer) -> Iterator[Array]:
    for part in parts(layer):
        yield from arrays([part.params, part.state, part.cache, part.grads])


# --- the table ---------------------------------------------------------------------------------


def test_table_covers_exactly_the_public_layers() -> None:
    public = {v for n in layers.__all__ if isinstance(v := getattr(layers, n), type)}
    tokens = {type(make()) for make, _, _ in examples.TOKENS}
    assert tokens | {type(make()) for make, _ in EXAMPLES} == {
        c for c in public if issubclass(c, Layer) and c is not Layer
    }


# --- derivatives -------------------------------------------------------------------------------


@every
def test_backward_is_the_derivative_of_forward(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    check_gradients(layer, data(layer, shape)[0])


@every
def test_backward_is_the_derivative_of_what_is_predicted(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X = data(layer, shape)[0]
    check_gradients(layer, X, training=False)
    with saliency():
        Y = layer.forward(X)
    with inference():
        np.testing.assert_array_equal(layer.forward(X), Y)


@one_each
def test_backward_twice_gives_the_same(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    first = passes(layer, X, dY)
    again = layer.backward(dY)
    assert again is not None
    assert_same({**first, "dX": again, **grads(layer)}, first)


@every
def test_gradients_are_linear_in_dY_and_not_divided_by_the_batch(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    once, twice = passes(layer, X, dY), passes(layer, X, 2 * dY)
    assert_same({**twice, "Y": 2 * twice["Y"]}, {n: 2 * a for n, a in once.items()}, rtol=1e-12)


# --- arrays ------------------------------------------------------------------------------------


@dtypes
@every
def test_dtype_is_kept(make: Make, shape: Shape, dtype: type) -> None:
    layer = made(make, shape, dtype)
    X, dY = data(layer, shape)
    for training in (True, False):
        found = passes(layer, X, dY, training=training)
        floats = {a.dtype for a in (*found.values(), *everything(layer)) if a.dtype.kind == "f"}
        assert floats == {np.dtype(dtype)}
        assert found["Y"].shape == dY.shape
        assert found["dX"].shape == X.shape
        for part in parts(layer):
            lent = {n: owner.params[p].shape for n, (owner, p) in part.tied.items()}
            own = {n: a.shape for n, a in part.params.items()}
            assert {n: a.shape for n, a in part.grads.items()} == own | lent


@one_each
def test_built_layer_casts_what_it_is_given(make: Make, shape: Shape) -> None:
    layer = made(make, shape, np.float32)
    whole = np.random.default_rng(4).integers(0, 5, shape)
    expected = passes(layer, whole.astype(np.float32), np.float32(data(layer, shape)[1]))
    for X in (whole, whole.astype(np.uint8), whole.astype(np.float64), whole.tolist()):
        found = passes(layer, X, data(layer, shape)[1].astype(np.float64).tolist())
        assert_same(found, expected)
        assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}


@one_each
def test_unbuilt_layer_without_parameters_keeps_the_dtype_of_X(make: Make, shape: Shape) -> None:
    if made(make, shape).get_weights() or isinstance(make(), Chain | Parallel):
        return
    for dtype in (np.float32, np.float64):
        built = made(make, shape, dtype)
        X, dY = data(built, shape)
        layer = make()
        layer._set_seed(1)
        found = passes(layer, X, dY)
        assert found["Y"].dtype == found["dX"].dtype == dtype
        assert_same(found, passes(built, X, dY))


@every
def test_bare_results_are_fresh(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    other_X, other_dY = data(layer, shape, seed=5)
    Y = layer.forward(X)
    dX = layer.backward(dY)
    before = [a for part in parts(layer) for a in part.grads.values()]
    kept = [a.copy() for a in (Y, dX, *before)]
    layer.forward(other_X)
    layer.backward(other_dY)
    for a, copy in zip((Y, dX, *before), kept, strict=True):
        np.testing.assert_array_equal(a, copy)
    if isinstance(layer, VIEWS) and not isinstance(layer, Residual):
        return
    for context in (calling, saliency):
        with context():
            assert not np.shares_memory(layer.forward(X), X)
            assert not np.shares_memory(layer.backward(dY), dY)
    with inference():
        assert not np.shares_memory(layer.forward(X), X)


@every
def test_reused_buffers_change_nothing(make: Make, shape: Shape) -> None:
    """Two batches, a short one and a full one again, as epochs bring them."""
    plain = made(make, shape)
    reusing = plain.copy()
    X, dY = data(plain, (8, *shape[1:]))
    batches = [(X[:4], dY[:4]), (X[4:], dY[4:]), (X[:3], dY[:3]), (X[2:6], dY[2:6])]
    for step, batch in enumerate(batches):
        expected = passes(plain, *batch, step=step)
        with calling(step=step, reuse=True):
            Y = reusing.forward(batch[0])
            with inference():  # as a callback may, in the middle of a step
                predicted = reusing.forward(X)
            dX = reusing.backward(batch[1])
            assert dX is not None
            assert_same({"Y": Y, "dX": dX, **grads(reusing)}, expected, rtol=1e-12)
            buffers = [b for part in parts(reusing) for b in part._frame.buffers.values()]
            assert not any(np.shares_memory(predicted, b) for b in buffers)
    Y = reusing.forward(X)
    assert not any(np.shares_memory(Y, b) for b in buffers)


# --- inference ---------------------------------------------------------------------------------


@one_each
def test_inference_does_not_disturb_a_pending_backward(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    expected = passes(layer.copy(), X, dY)
    with calling(step=0):
        Y = layer.forward(X)
        state = layer.get_weights()
        with inference():
            layer.forward(data(layer, shape, seed=5)[0])
        assert_same(layer.get_weights(), state)
        dX = layer.backward(dY)
    assert dX is not None
    assert_same({"Y": Y, "dX": dX, **grads(layer)}, expected)


@one_each
def test_inference_leaves_nothing_behind(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    weights = layer.get_weights()
    with inference():
        Y = layer.forward(X)
        np.testing.assert_array_equal(layer.forward(X), Y)
    assert_same(layer.get_weights(), weights)
    for part in parts(layer):
        assert not part.cache
        assert not part._frame.buffers
        assert part._frame.passes == 0
    with pytest.raises(BackwardError, match=f"{type(layer).__name__}.*forward pass in training"):
        layer.backward(dY)


@kinds
def test_threads_may_predict_at_once(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    batches = [data(layer, (n, *shape[1:]), seed=n)[0] for n in range(1, 9)]

    def predict(X: Array) -> Array:
        with inference():
            return layer.forward(X)

    with calling(step=0):
        layer.forward(X)
        expected = [predict(X) for X in batches]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(predict, batches * 4))
        for Y, wanted in zip(found, expected * 4, strict=True):
            np.testing.assert_array_equal(Y, wanted)
        dX = layer.backward(dY)
    assert dX is not None
    np.testing.assert_array_equal(dX, passes(made(make, shape), X, dY)["dX"])


# --- numbers -----------------------------------------------------------------------------------


@dtypes
@one_each
def test_large_numbers_stay_finite(make: Make, shape: Shape, dtype: type) -> None:
    layer = make()
    layer.build(shape[1:], seed=1, dtype=dtype)
    X, dY = data(layer, shape)
    signs = np.where(np.random.default_rng(3).random(shape) < 0.5, -1, 1)
    with np.errstate(all="raise", under="ignore"):
        for large in (1e4 * signs, np.full(shape, 1e4), np.full(shape, -1e4), 0 * X, 1e4 * X):
            for training in (True, False):
                for a in passes(layer, large.astype(dtype), dY, training=training).values():
                    assert np.isfinite(a).all()


# --- copies ------------------------------------------------------------------------------------


@one_each
def test_copy_is_independent(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    expected = passes(layer, X, dY)
    kept, weights = grads(layer), layer.get_weights()
    twin = layer.copy()
    for part in parts(twin):
        assert not part.cache
        assert not part.grads
    assert_same(twin.get_weights(), weights)
    twin.set_weights({n: a + 1 for n, a in weights.items()})
    passes(twin, data(layer, shape, seed=5)[0], dY)
    twin.trainable = False
    assert all(part.trainable for part in parts(layer))
    assert_same(layer.get_weights(), weights)
    assert_same(grads(layer), kept)
    layer.set_weights(weights)
    assert_same(passes(layer, X, dY), expected)


@one_each
def test_pickle_round_trip(make: Make, shape: Shape) -> None:
    layer = made(make, shape, np.float32)
    X, dY = data(layer, shape)
    layer.forward(X)
    bytes_ = pickle.dumps(layer)
    twin = pickle.loads(bytes_)
    assert not any(part.cache for part in parts(twin))
    assert repr(twin) == repr(layer)
    assert_same(twin.get_weights(), layer.get_weights())
    assert_same(passes(twin, X, dY), passes(layer, X, dY))


@kinds
def test_replica_shares_parameters_but_not_frames(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    expected = passes(layer.copy(), X, dY)
    twin = layer._replica()
    with calling(step=0):
        layer.forward(X)
        other = passes(twin, *data(layer, shape, seed=5))
        dX = layer.backward(dY)
    assert dX is not None
    np.testing.assert_array_equal(dX, expected["dX"])
    for (path, a), (path_b, b) in zip(layer.walk(), twin.walk(), strict=True):
        assert path == path_b
        assert a is not b
        assert a._frame is not b._frame
        for name in a.params:
            assert a.params[name] is b.params[name]
    assert_same(grads(twin), {n: g for n, g in other.items() if n not in ("Y", "dX")})


@one_each
def test_weights_round_trip(make: Make, shape: Shape) -> None:
    layer, other = made(make, shape), made(make, shape, seed=9)
    X, dY = data(layer, shape)
    other._set_seed(1)  # the same masks
    weights = layer.get_weights()
    other.set_weights(weights)
    assert_same(passes(other, X, dY), passes(layer, X, dY))
    layer.set_weights(weights)
    for a in weights.values():
        a += 1  # copies: the layers do not notice
    assert_same(layer.get_weights(), {n: a - 1 for n, a in weights.items()}, rtol=1e-12)


@kinds
def test_wrong_weights_are_refused_and_nothing_is_written(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    weights = layer.get_weights()
    wrong: list[dict[str, Any]] = [{n: a + 1 for n, a in weights.items()} | {"extra": np.ones(1)}]
    for name in weights:
        moved = {n: a + 1 for n, a in weights.items()}
        wrong.append({n: a for n, a in moved.items() if n != name})
        wrong.append(moved | {name: np.ones(99)})
    for bad in wrong:
        with pytest.raises((ArgumentError, ShapeError), match=type(layer).__name__):
            layer.set_weights(bad)
        assert_same(layer.get_weights(), weights)


@kinds
def test_weights_that_are_no_numbers_are_refused_and_nothing_is_written(
    make: Make, shape: Shape
) -> None:
    layer = made(make, shape)
    weights = layer.get_weights()
    for name, a in weights.items():
        for bad in (a.astype(str), np.full(a.shape, "a"), a + 1j, np.full(a.shape, None)):
            with pytest.raises(ArgumentTypeError, match=type(layer).__name__):
                layer.set_weights({n: w + 1 for n, w in weights.items()} | {name: bad})
            assert_same(layer.get_weights(), weights)


# --- building ----------------------------------------------------------------------------------


@kinds
def test_building_again_is_harmless(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    weights, output_shape = layer.get_weights(), layer.output_shape
    assert layer.build(shape[1:], seed=77) == output_shape
    assert_same(layer.get_weights(), weights)
    layer.build(shape[1:], dtype=np.float32)
    assert all(a.dtype == np.float32 for a in layer.get_weights().values())
    assert_same(layer.get_weights(), weights, rtol=1e-6)
    assert layer.forward(data(layer, shape)[0]).dtype == np.float32


@one_each
def test_one_seed_gives_the_same_bits(make: Make, shape: Shape) -> None:
    first, second, other = make(), make(), make()
    for layer, seed in ((first, 3), (second, 3), (other, 4)):
        layer.build(shape[1:], seed=seed, dtype=np.float64)
    assert_same(first.get_weights(), second.get_weights())
    for name, a in first.get_weights().items():
        if name.endswith("W"):
            assert not np.allclose(a, other.get_weights()[name])
    X, dY = data(first, shape)
    assert_same(passes(first, X, dY), passes(second, X, dY))


@one_each
def test_every_dtype_begins_alike(make: Make, shape: Shape) -> None:
    single, double = make(), make()
    single.build(shape[1:], seed=3, dtype=np.float32)
    double.build(shape[1:], seed=3, dtype=np.float64)
    assert_same(single.get_weights(), double.get_weights(), rtol=1e-6)


@kinds
def test_looking_makes_no_parameters(make: Make, shape: Shape) -> None:
    built, layer = made(make, shape), make()
    repr(layer)
    ghost = layer._measured(shape[1:])
    assert ghost.output_shape == built.output_shape
    assert ghost.count_params() == built.count_params()
    assert ghost.flops() == built.flops()
    assert built.count_params() == sum(a.size for p in parts(built) for a in p.params.values())
    for part in parts(layer):
        assert not part.params
        assert not part.state
        assert part.output_shape is None
    assert repr(layer) == repr(make())


@one_each
def test_repr_is_the_call_that_makes_it(make: Make, shape: Shape) -> None:
    for layer in (make(), made(make, shape)):
        names = vars(initialization) | vars(layers) | vars(examples)
        twin = eval(repr(layer), names)
        assert type(twin) is type(layer)
        assert repr(twin) == repr(layer)
        assert twin.build(shape[1:], seed=1) == layer.build(shape[1:], seed=1)
    assert re.fullmatch(r"\w+\(.*\)", repr(make()))


# --- randomness --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", few([1, 4], 1))
@one_each
def test_part_of_a_batch_sees_what_the_whole_would(make: Make, shape: Shape, k: int) -> None:
    layer = made(make, shape)
    if any(isinstance(part, BatchNorm) for part in parts(layer)):
        layer.trainable = False  # else a batch is not its samples
    X, dY = data(layer, (6, *shape[1:]))
    whole = passes(layer, X, dY, step=3)
    head = passes(layer, X[:k], dY[:k], step=3)
    tail = passes(layer, X[k:], dY[k:], step=3, first=k)
    for name in whole:
        both = (head[name], tail[name])
        together = np.concatenate(both) if name in ("Y", "dX") else sum(both)
        np.testing.assert_allclose(together, whole[name], rtol=1e-10, atol=1e-12, err_msg=name)


@one_each
def test_global_generator_is_not_touched(make: Make, shape: Shape) -> None:
    before = np.random.get_state()  # noqa: NPY002
    layer = make()
    layer.build(shape[1:])
    passes(layer, *data(layer, shape), step=None)
    after = np.random.get_state()  # noqa: NPY002
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    np.testing.assert_array_equal(before[1], after[1])


# --- refusals ----------------------------------------------------------------------------------


@kinds
def test_backward_before_forward_is_refused(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    with pytest.raises(BackwardError, match=f"{type(layer).__name__}.*run a forward pass"):
        layer.backward(data(layer, shape)[1])


@one_each
def test_wrong_dY_is_refused(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    layer.forward(X)
    wrong = [dY[..., None], dY[0], np.concatenate([dY, dY]), np.concatenate([dY, dY], axis=-1)]
    for bad in (*wrong, dY[:, :0], 1.0):
        with pytest.raises(ShapeError) as caught:
            layer.backward(bad)
        for said in (
            type(layer).__name__,
            f"Y of shape {dY.shape}",
            f"got dY of shape {np.shape(bad)}",
        ):
            assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (np.array([["a", "b"]]), "real numbers.*<U1"),
        (np.array([[None, 1.0]]), "real numbers.*object"),
        (np.array([[1j, 2.0]]), "real numbers.*complex"),
        (np.array([["2020-01-01"]], "M8[D]"), "real numbers.*datetime"),
        ([[1.0, 2.0], [3.0]], "unequal length"),
        (None, "real numbers.*object"),
        ({"X": 1}, "real numbers.*object"),
        (3.0, "rank 1.*single number"),
        (np.array(3.0), "rank 1.*single number"),
    ],
)
@kinds
def test_bad_X_is_refused(make: Make, shape: Shape, bad: Any, says: str) -> None:
    with pytest.raises((ShapeError, ArgumentTypeError), match=says) as caught:
        made(make, shape).forward(bad)
    assert type(make()).__name__ in str(caught.value)
    with pytest.raises((ShapeError, ArgumentTypeError, NotBuiltError)):
        make().forward(bad)


@one_each
def test_wrong_features_are_refused(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    if not layer.get_weights():
        return  # what has no parameters fits any features
    wrong = data(layer, (*shape[:-1], shape[-1] + 1))[0]
    with pytest.raises(ShapeError, match=r"\d.*got.*\d"):
        layer.forward(wrong)
    if layer.params:
        with pytest.raises(ShapeError) as caught:
            layer.forward(wrong)
        for said in (type(layer).__name__, str(shape[-1]), str(wrong.shape)):
            assert said in str(caught.value)
