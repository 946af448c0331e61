"""Recurrent layers: both loops, threads, cells of ones own, reused buffers, and shapes of weights.

Masks are tested by their derivations: see tests/derivations/test_special_cases.py.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
import pytest

from phitodeep import GRU, LSTM, RNN, Bidirectional, Chain, Dense, check_gradients, kernels
from phitodeep.errors import ShapeError
from phitodeep.layers.recurrent import _Recurrent
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same

each = pytest.mark.parametrize("kind", [RNN, LSTM, GRU])
compiled = pytest.mark.usefixtures("_compiled")
PRECISION = {np.float32: {"rtol": 1e-4, "atol": 1e-4}, np.float64: {"rtol": 1e-9, "atol": 1e-12}}
SIZES = [(1, 1, 1, 1), (1, 5, 3, 2), (4, 1, 2, 3), (2, 3, 1, 4), (3, 7, 5, 1), (33, 4, 17, 6)]


@pytest.fixture
def _compiled(same_kernels):
    pytest.importorskip("numba")
    from phitodeep.kernels.compiled import blas

    kernels.use("numba")
    if not blas.gemm(np.dtype("f"))[0]:
        pytest.skip("NumPy's BLAS has no function with 64-bit integers")


def in_python(monkeypatch, layer, *data, **call):
    with monkeypatch.context() as patch:
        patch.setattr(_Recurrent, "_compiled_loops", lambda self: None)
        return passes(layer, *data, **call)


@compiled
@each
@pytest.mark.parametrize("whole", [True, False], ids=["sequences", "last"])
def test_both_loops_agree(kind, whole, rng, monkeypatch):
    for (N, T, H, D), dtype in itertools.product(SIZES, PRECISION):
        layer = made(lambda H=H: kind(H, return_sequences=whole), (N, T, D), dtype)
        X = rng.standard_normal((N, T, D)).astype(dtype)
        dY = rng.standard_normal((N, T, H) if whole else (N, H)).astype(dtype)
        for mask in (None, rng.random((N, T)) < 0.6):
            wanted = in_python(monkeypatch, layer, X, dY, mask=mask)
            found = passes(layer, X, dY, mask=mask)
            assert_same(found, wanted, **PRECISION[dtype])
            assert {a.dtype for a in found.values()} == {np.dtype(dtype)}


@compiled
@each
def test_replicas_in_threads_give_the_same_bits(kind, rng):
    """Whoever runs a part of a batch, and next to whom."""
    layer = made(lambda: Bidirectional(kind(16)), (1, 20, 8), np.float32)
    X = rng.standard_normal((8, 20, 8)).astype(np.float32)
    dY = rng.standard_normal((8, 20, 32)).astype(np.float32)
    wanted = [passes(layer, X[i : i + 2], dY[i : i + 2]) for i in range(0, 8, 2)]
    replicas = [layer._replica({}) for _ in wanted]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            jobs = [
                pool.submit(
                    copy_context().run, passes, r, X[2 * i : 2 * i + 2], dY[2 * i : 2 * i + 2]
                )
                for i, r in enumerate(replicas)
            ]
            for job, one in zip(jobs, wanted, strict=True):
                assert_same(job.result(), one)


@compiled
@each
def test_without_blas_python_runs_the_loop(kind, rng, monkeypatch):
    from phitodeep.kernels.compiled import blas

    layer = made(lambda: kind(3), (1, 4, 2))
    X, dY = rng.standard_normal((2, 4, 2)), rng.standard_normal((2, 4, 3))
    assert not layer.keeps_lock
    found = passes(layer, X, dY)
    monkeypatch.setattr(blas, "gemm", lambda dtype: (0, 0))
    assert layer.keeps_lock
    calls = []
    step = type(layer).step
    monkeypatch.setattr(type(layer), "step", lambda *given: calls.append(step(*given)))
    assert_same(passes(layer, X, dY), found, rtol=1e-10)
    assert len(calls) == 4


class Renamed(LSTM):
    """A class without a cell of its own."""


class HalfTanh(RNN):
    """h_t = tanh(.) / 2."""

    def step(self, t, A, U, S, K):
        super().step(t, A, U, S, K)
        S[0, t + 1] /= 2

    def back(self, t, d, A, S, K, dA, dU):
        dA[t] = (0.5 - 2 * S[0, t + 1] ** 2) * d[0]
        d[0] = 0


@compiled
def test_a_cell_of_ones_own_runs_in_python_and_keeps_the_lock(rng):
    assert not Renamed(3).keeps_lock
    layer = made(lambda: HalfTanh(3), (1, 4, 2))
    assert layer.keeps_lock
    check_gradients(layer, rng.standard_normal((2, 4, 2)))
    own = HalfTanh(3)
    assert not Dense(3).keeps_lock
    assert not Chain(Dense(3), LSTM(3), Bidirectional(GRU(3))).keeps_lock
    assert Chain(Dense(3), Chain(LSTM(3), own)).keeps_lock
    assert Bidirectional(HalfTanh(2)).keeps_lock
    kernels.use("numpy")
    assert Chain(Dense(3), LSTM(3)).keeps_lock
    assert not Chain(Dense(3)).keeps_lock


@compiled
@pytest.mark.parametrize("kind", [RNN, LSTM, GRU])
@pytest.mark.parametrize("name", ["Wh", "b"])
def test_parameters_that_do_not_fit_are_refused(kind, name):
    layer = kind(4)
    layer.build((3, 2), seed=0)
    X = np.ones((2, 3, 2), np.float32)
    Y = layer.forward(X)
    right = layer.params[name]
    layer.params[name] = right[..., :-1].copy()
    with pytest.raises(ShapeError, match=f"its parameter {name} has shape"):
        layer.backward(np.ones_like(Y))
    with pytest.raises(ShapeError, match=f"its parameter {name} has shape|takes X"):
        layer.forward(X)
    layer.params[name] = right
    layer.units = 3
    with pytest.raises(ShapeError, match=r"has 4 units|has 3 units"):
        layer.backward(np.ones_like(Y))


@each
def test_weights_have_the_shapes_of_the_docstring(kind):
    gates = {RNN: 1, LSTM: 4, GRU: 3}[kind]
    layer = kind(5)
    layer.build((7, 3), seed=1, dtype=np.float64)
    wanted = {"Wx": (3, 5 * gates), "Wh": (5, 5 * gates), "b": (5 * gates,)}
    wanted |= {"bh": (15,)} if kind is GRU else {}
    assert {n: a.shape for n, a in layer.params.items()} == wanted
    for g in range(gates):  # each gate has an orthogonal matrix of its own
        W = layer.Wh[:, 5 * g : 5 * g + 5]
        np.testing.assert_allclose(W.T @ W, np.eye(5), atol=1e-12)
    assert not any(layer.params[n].any() for n in wanted if n.startswith("b"))
    decayed = {n for n, p in layer._declared.items() if p.decay}
    assert decayed == {"Wx", "Wh"}
    assert layer.flops() == 7 * (2 * (3 + 5) * 5 * gates + 8 * 5 * gates)


def test_both_ways_begin_with_weights_of_their_own(rng):
    for built in (False, True):
        layer = GRU(3)
        if built:
            layer.build((4, 2), seed=1)
        both = Bidirectional(layer)
        both.build((4, 2), seed=2)
        assert (both.layer.Wx != both.reverse.Wx).any()
        assert both.reverse.initializer is layer.initializer
