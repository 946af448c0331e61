"""What every layer promises, tested for each of them: one table, and no layer escapes it."""

from __future__ import annotations

import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from phitodeep import errors, layers
from phitodeep import layers as L
from phitodeep.core.call import calling, inference, saliency
from phitodeep.core.types import Shape
from phitodeep.testing import check_gradients, examples
from phitodeep.testing.examples import Make, made, passes
from tests.conftest import arrays, assert_same
from tests.rows import ALL, KINDS, LONG, LOOKS_AT_MASK, PROBES, TOOLS, few, masks

VIEWS = (L.Chain, L.Flatten, L.Permute, L.Reshape)  # may return a view of X


class Case(NamedTuple):
    """How to make a layer, the shape of X, and how many tokens there are, or 0."""

    make: Make
    shape: Shape
    tokens: int

    def layer(self, dtype=np.float64, seed=1):
        return made(self.make, self.shape, dtype, seed)

    def data(self, layer, N=0, seed=2):
        """X and dY, for a batch of N samples if that is given."""
        shape = (N or self.shape[0], *self.shape[1:])
        return examples.data(layer, shape, self.tokens, seed, scale=2.0)

    def built(self, dtype=np.float64):
        layer = self.layer(dtype)
        return layer, *self.data(layer)


def over(rows, *, tokens=True):
    cases = [Case(*row) for row in rows if tokens or not row[2]]
    return pytest.mark.parametrize("case", cases, ids=[f"{c.make()} {c.shape}" for c in cases])


every, one_each = over(ALL), over(TOOLS)
kinds = over(TOOLS if LONG else KINDS)
numbers, one_each_of_numbers = over(ALL, tokens=False), over(TOOLS, tokens=False)
dtypes = pytest.mark.parametrize("dtype", few([np.float32, np.float64], 1))


def parts(layer):
    return [part for _, part in layer.walk()]


def grads(layer):
    return {
        f"{path}.{n}".strip("."): a.copy() for path, p in layer.walk() for n, a in p.grads.items()
    }


def found_in(layer, Y, dX):
    return {"Y": Y, **({} if dX is None else {"dX": dX}), **grads(layer)}


# --- the table ---------------------------------------------------------------------------------


def test_table_covers_exactly_the_public_layers():
    public = {v for n in layers.__all__ if isinstance(v := getattr(layers, n), type)}
    assert {type(examples.subject(make())) for make, _, _ in ALL} == {
        c for c in public if issubclass(c, L.Layer) and c is not L.Layer
    }


# --- derivatives -------------------------------------------------------------------------------


@every
def test_backward_is_the_derivative_of_forward(case):
    layer, X, dY = case.built()
    if any(part.surrogate for part in parts(layer)):  # another gradient, on purpose
        return
    check_gradients(layer, X, max_probes=PROBES)
    with saliency():
        predicted = passes(layer, X, dY)
    with inference():
        np.testing.assert_array_equal(layer.forward(X), predicted["Y"])
    if any(not np.array_equal(a, predicted[n]) for n, a in passes(layer, X, dY).items()):
        check_gradients(layer, X, training=False, max_probes=PROBES)


@one_each
def test_backward_twice_gives_the_same(case):
    layer, X, dY = case.built()
    first = passes(layer, X, dY)
    assert_same(found_in(layer, first["Y"], layer.backward(dY)), first)


@one_each
def test_gradients_are_linear_in_dY_and_not_divided_by_the_batch(case):
    layer, X, dY = case.built()
    once, twice = passes(layer, X, dY), passes(layer, X, 2 * dY)
    assert_same({**twice, "Y": 2 * twice["Y"]}, {n: 2 * a for n, a in once.items()}, rtol=1e-12)


@one_each
def test_gradients_of_parameters_do_not_need_dX(case):
    layer, X, dY = case.built()
    whole = passes(layer, X, dY)
    with calling(step=0, needs_dX=False):
        layer.forward(X)
        layer.backward(dY)
    for name, a in grads(layer).items():
        np.testing.assert_allclose(a, whole[name], rtol=1e-12, atol=1e-14)


# --- arrays ------------------------------------------------------------------------------------


@dtypes
@every
def test_dtype_is_kept(case, dtype):
    layer, X, dY = case.built(dtype)
    given = [a.copy() for a in arrays((X, dY))]
    for training, mask in ((t, m) for m in masks(layer, case.shape) for t in (True, False)):
        found = passes(layer, X, dY, training=training, mask=mask)
        held = [[part.params, part.state, part.cache, part.grads] for part in parts(layer)]
        floats = {a.dtype for a in (*found.values(), *arrays(held)) if a.dtype.kind == "f"}
        assert floats == {np.dtype(dtype)}
        assert found["Y"].shape == dY.shape
        assert "dX" not in found or found["dX"].shape == X.shape
        for part in parts(layer):
            lent = {n: owner.params[p].shape for n, (owner, p) in part.tied.items()}
            own = {n: a.shape for n, a in part.params.items()}
            assert {n: a.shape for n, a in part.grads.items()} == own | lent
    for a, copy in zip(arrays((X, dY)), given, strict=True):
        np.testing.assert_array_equal(a, copy)


@one_each_of_numbers
def test_built_layer_casts_what_it_is_given(case):
    layer, _, dY = case.built(np.float32)
    whole = np.random.default_rng(4).integers(0, 5, case.shape)
    expected = passes(layer, whole.astype(np.float32), dY)
    for X in (whole, whole.astype(np.uint8), whole.astype(np.float64), whole.tolist()):
        found = passes(layer, X, dY.astype(np.float64).tolist())
        assert_same(found, expected)
        assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}


@one_each_of_numbers
def test_unbuilt_layer_without_parameters_keeps_the_dtype_of_X(case):
    if case.layer().get_weights() or isinstance(case.make(), L.Chain | L.Parallel):
        return
    for dtype in (np.float32, np.float64):
        built, X, dY = case.built(dtype)
        layer = case.make()
        layer._set_seed(1)
        found = passes(layer, X, dY)
        assert found["Y"].dtype == found["dX"].dtype == dtype
        assert_same(found, passes(built, X, dY))


@every
def test_bare_results_are_fresh(case):
    layer, X, dY = case.built()
    other_X, other_dY = case.data(layer, seed=5)
    Y = layer.forward(X)
    dX = layer.backward(dY)
    results = [Y, *arrays([dX]), *(a for part in parts(layer) for a in part.grads.values())]
    kept = [a.copy() for a in results]
    layer.forward(other_X)
    layer.backward(other_dY)
    for a, copy in zip(results, kept, strict=True):
        np.testing.assert_array_equal(a, copy)
    if isinstance(layer, VIEWS) and not isinstance(layer, L.Residual):
        return
    for context in (calling, saliency):
        with context():
            assert not np.shares_memory(layer.forward(X), X)
            dX = layer.backward(dY)
            assert dX is None or not np.shares_memory(dX, dY)
    with inference():
        assert not np.shares_memory(layer.forward(X), X)


@every
def test_reused_buffers_change_nothing(case):
    """Batches of several lengths, as epochs bring them, with predictions in between."""
    plain = case.layer()
    reusing = plain.copy()
    X, dY = case.data(plain, 8)
    rows = [(slice(i, j),) for i, j in ((0, 4), (4, 8), (0, 3), (2, 6), (5, 6))]
    if isinstance(plain, LOOKS_AT_MASK):  # sequences may be shorter, too
        rows[3:3] = [(slice(4), slice(2)), (slice(4),), (slice(2), slice(1))]
    for step, (mask, at) in enumerate(product(masks(plain, X.shape), rows)):
        call = {"step": step, "mask": None if mask is None else mask[at]}
        X_now, dY_now = X[at], dY[at if dY.shape[:2] == X.shape[:2] else at[0]]
        expected = passes(plain, X_now, dY_now, **call)
        with calling(**call, reuse=True):
            Y = reusing.forward(X_now)
            with inference(), calling(mask=None):  # as a callback may, in the middle of a step
                predicted = reusing.forward(X)
            dX = reusing.backward(dY_now)
            assert_same(found_in(reusing, Y, dX), expected, rtol=1e-12, atol=1e-14)
            buffers = [b for part in parts(reusing) for b in part._frame.buffers.values()]
            assert not any(np.shares_memory(predicted, b) for b in buffers)
    Y = reusing.forward(X)
    assert not any(np.shares_memory(Y, b) for b in buffers)


# --- inference ---------------------------------------------------------------------------------


@one_each
def test_inference_does_not_disturb_a_pending_backward(case):
    layer, X, dY = case.built()
    expected = passes(layer.copy(), X, dY)
    with calling(step=0):
        Y = layer.forward(X)
        state = layer.get_weights()
        with inference():
            layer.forward(case.data(layer, seed=5)[0])
        assert_same(layer.get_weights(), state)
        assert_same(found_in(layer, Y, layer.backward(dY)), expected)


@one_each
def test_inference_leaves_nothing_behind(case):
    layer, X, dY = case.built()
    weights = layer.get_weights()
    for mask in masks(layer, case.shape):
        with inference(), calling(mask=mask):
            Y = layer.forward(X)
            np.testing.assert_array_equal(layer.forward(X), Y)
        assert_same(layer.get_weights(), weights)
        for part in parts(layer):
            assert not part.cache
            assert not part._frame.buffers
            assert part._frame.passes == 0
        with pytest.raises(
            errors.BackwardError, match=f"{type(layer).__name__}.*forward pass in trai"
        ):
            layer.backward(dY)
        with calling(training=False, mask=mask):
            np.testing.assert_array_equal(layer.copy().forward(X), Y)


@kinds
def test_threads_may_predict_at_once(case):
    layer, X, dY = case.built()
    batches = [case.data(layer, n, seed=n)[0] for n in range(1, 9)]

    def predict(X):
        with inference():
            return layer.forward(X)

    with calling(step=0):
        Y = layer.forward(X)
        expected = [predict(X) for X in batches]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(predict, batches * 4))
        for one, wanted in zip(found, expected * 4, strict=True):
            np.testing.assert_array_equal(one, wanted)
        assert_same(found_in(layer, Y, layer.backward(dY)), passes(case.layer(), X, dY))


# --- numbers -----------------------------------------------------------------------------------


@dtypes
@one_each_of_numbers
def test_large_numbers_stay_finite(case, dtype):
    layer = case.make()
    layer.build(case.shape[1:], seed=1, dtype=dtype)
    X, dY = case.data(layer)
    signs = np.where(np.random.default_rng(3).random(X.shape) < 0.5, -1, 1)
    with np.errstate(all="raise", under="ignore"):
        for large in (1e4 * signs, 0 * X + 1e4, 0 * X - 1e4, 0 * X, 1e4 * X):
            for training in (True, False):
                for a in passes(layer, large.astype(dtype), dY, training=training).values():
                    assert np.isfinite(a).all()


# --- copies ------------------------------------------------------------------------------------


@one_each
def test_copy_is_independent(case):
    layer, X, dY = case.built()
    expected = passes(layer, X, dY)
    kept, weights = grads(layer), layer.get_weights()
    twin = layer.copy()
    assert not any(part.cache or part.grads for part in parts(twin))
    assert_same(twin.get_weights(), weights)
    twin.set_weights({n: a + 1 for n, a in weights.items()})
    passes(twin, case.data(layer, seed=5)[0], dY)
    twin.trainable = False
    assert all(part.trainable for part in parts(layer))
    assert_same(layer.get_weights(), weights)
    assert_same(grads(layer), kept)
    layer.set_weights(weights)
    assert_same(passes(layer, X, dY), expected)


@one_each
def test_pickle_round_trip(case):
    layer, X, dY = case.built(np.float32)
    layer.forward(X)
    twin = pickle.loads(pickle.dumps(layer))
    assert not any(part.cache for part in parts(twin))
    assert repr(twin) == repr(layer)
    assert_same(twin.get_weights(), layer.get_weights())
    assert_same(passes(twin, X, dY), passes(layer, X, dY))


@kinds
def test_replica_shares_parameters_but_not_frames(case):
    layer, X, dY = case.built()
    expected = passes(layer.copy(), X, dY)
    twin = layer._replica()
    with calling(step=0):
        Y = layer.forward(X)
        other = passes(twin, *case.data(layer, seed=5))
        assert_same(found_in(layer, Y, layer.backward(dY)), expected)
    for (path, a), (path_b, b) in zip(layer.walk(), twin.walk(), strict=True):
        assert path == path_b
        assert a is not b
        assert a._frame is not b._frame
        assert all(a.params[name] is b.params[name] for name in a.params)
    assert_same(grads(twin), {n: g for n, g in other.items() if n not in ("Y", "dX")})


@one_each
def test_weights_round_trip(case):
    (layer, X, dY), other = case.built(), case.layer(seed=9)
    other._set_seed(1)  # the same masks
    weights = layer.get_weights()
    other.set_weights(weights)
    assert_same(passes(other, X, dY), passes(layer, X, dY))
    layer.set_weights(weights)
    for a in weights.values():
        a += 1  # copies: the layers do not notice
    assert_same(layer.get_weights(), {n: a - 1 for n, a in weights.items()}, rtol=1e-12)


@kinds
def test_wrong_weights_are_refused_and_nothing_is_written(case):
    layer = case.layer()
    weights = layer.get_weights()
    moved = {n: a + 1 for n, a in weights.items()}
    wrong = [moved | {"extra": np.ones(1)}]
    for name, a in weights.items():
        wrong.append({n: a for n, a in moved.items() if n != name})
        strange = (a.astype(str), np.full(a.shape, "a"), a + 1j, np.full(a.shape, None))
        wrong += [moved | {name: bad} for bad in (np.ones(99), *strange)]
    for bad in wrong:
        with pytest.raises(errors.PhitodeepError, match=type(layer).__name__):
            layer.set_weights(bad)
        assert_same(layer.get_weights(), weights)


# --- building ----------------------------------------------------------------------------------


@kinds
def test_building_again_is_harmless(case):
    layer = case.layer()
    weights, output_shape = layer.get_weights(), layer.output_shape
    assert layer.build(case.shape[1:], seed=77) == output_shape
    assert_same(layer.get_weights(), weights)
    layer.build(case.shape[1:], dtype=np.float32)
    assert all(a.dtype == np.float32 for a in layer.get_weights().values())
    assert_same(layer.get_weights(), weights, rtol=1e-6)
    assert layer.forward(case.data(layer)[0]).dtype == np.float32


@one_each
def test_one_seed_gives_the_same_bits_in_every_dtype(case):
    first, second, other, single = (case.make() for _ in range(4))
    for layer, seed in ((first, 3), (second, 3), (other, 4)):
        layer.build(case.shape[1:], seed=seed, dtype=np.float64)
    single.build(case.shape[1:], seed=3, dtype=np.float32)
    assert_same(first.get_weights(), second.get_weights())
    assert_same(single.get_weights(), first.get_weights(), rtol=1e-6)
    for name, a in first.get_weights().items():
        if name.endswith("W") and "Tied" not in repr(first):
            assert not np.allclose(a, other.get_weights()[name])
    X, dY = case.data(first)
    assert_same(passes(first, X, dY), passes(second, X, dY))


@kinds
def test_looking_makes_no_parameters(case):
    built, layer = case.layer(), case.make()
    repr(layer)
    ghost = layer._measured(case.shape[1:])
    assert ghost.output_shape == built.output_shape
    assert ghost.count_params() == built.count_params()
    assert ghost.flops() == built.flops()
    assert built.count_params() == sum(a.size for p in parts(built) for a in p.params.values())
    for part in parts(layer):
        assert not part.params
        assert not part.state
        assert part.output_shape is None
    assert repr(layer) == repr(case.make())


@one_each
def test_repr_is_the_call_that_makes_it(case):
    for layer in (case.make(), case.layer()):
        names = vars(L.initialization) | vars(layers) | vars(examples)
        twin = eval(repr(layer), names)
        assert type(twin) is type(layer)
        assert repr(twin) == repr(layer)
        assert twin.build(case.shape[1:], seed=1) == layer.build(case.shape[1:], seed=1)
    assert re.fullmatch(r"\w+\(.*\)", repr(case.make()))


# --- randomness --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", few([1, 4], 1))
@one_each
def test_part_of_a_batch_sees_what_the_whole_would(case, k):
    layer = case.layer()
    if any(isinstance(part, L.BatchNorm) for part in parts(layer)):
        layer.trainable = False  # else a batch is not its samples
    X, dY = case.data(layer, 6)
    whole = passes(layer, X, dY, step=3)
    head = passes(layer, X[:k], dY[:k], step=3)
    tail = passes(layer, X[k:], dY[k:], step=3, first=k)
    for name in whole:
        both = (head[name], tail[name])
        together = np.concatenate(both) if name in ("Y", "dX") else sum(both)
        np.testing.assert_allclose(together, whole[name], rtol=1e-10, atol=1e-12, err_msg=name)


@one_each
def test_global_generator_is_not_touched(case):
    before = np.random.get_state()  # noqa: NPY002
    layer = case.make()
    layer.build(case.shape[1:])
    passes(layer, *case.data(layer), step=None)
    after = np.random.get_state()  # noqa: NPY002
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    np.testing.assert_array_equal(before[1], after[1])


# --- refusals ----------------------------------------------------------------------------------


@kinds
def test_backward_before_forward_is_refused(case):
    layer, _, dY = case.built()
    with pytest.raises(errors.BackwardError, match=f"{type(layer).__name__}.*run a forward pass"):
        layer.backward(dY)


@one_each
def test_wrong_dY_is_refused(case):
    layer, X, dY = case.built()
    layer.forward(X)
    wrong = [dY[..., None], dY[0], np.concatenate([dY, dY]), np.concatenate([dY, dY], axis=-1)]
    for bad in (*wrong, dY[:, :0], 1.0):
        with pytest.raises(errors.ShapeError) as caught:
            layer.backward(bad)
        told = type(layer).__name__, f"Y of shape {dY.shape}", f"got dY of shape {np.shape(bad)}"
        assert all(said in str(caught.value) for said in told)


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
@over(KINDS, tokens=False)
def test_bad_X_is_refused(case, bad, says):
    with pytest.raises((errors.ShapeError, errors.ArgumentTypeError), match=says) as caught:
        case.layer().forward(bad)
    assert type(case.make()).__name__ in str(caught.value)
    with pytest.raises((errors.ShapeError, errors.ArgumentTypeError, errors.NotBuiltError)):
        case.make().forward(bad)


@one_each_of_numbers
def test_wrong_features_are_refused(case):
    layer = case.layer()
    if not layer.get_weights():
        return  # what has no parameters fits any features
    wrong = np.ones((*case.shape[:-1], case.shape[-1] + 1))
    with pytest.raises(errors.ShapeError, match=r"\d.*got.*\d"):
        layer.forward(wrong)
    if layer.params:
        with pytest.raises(errors.ShapeError) as caught:
            layer.forward(wrong)
        told = type(layer).__name__, str(case.shape[-1]), str(wrong.shape)
        assert all(said in str(caught.value) for said in told)
