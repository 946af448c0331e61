"""Products that compiled loops ask of NumPy's BLAS, and what happens where it is not found."""

import itertools
import sys

import numpy as np
import pytest

from phitodeep import Dense, kernels
from tests.rows import times

numba = pytest.importorskip("numba")
blas = pytest.importorskip("phitodeep.kernels.compiled.blas")

dtypes = pytest.mark.parametrize("dtype", [np.dtype("f"), np.dtype("d")], ids=str)
SHAPES = [
    (1, 1, 1), (1, 7, 5), (5, 1, 3), (7, 5, 1), (3, 4, 33), (31, 17, 127), (32, 24, 100),
    (33, 9, 64), (2, 300, 97), (32, 128, 512), (0, 3, 2), (2, 3, 0), (0, 0, 0),
]  # fmt: skip
LIMITS = [0, 1, 32 * 17, 5_000, 1_000_000]


@pytest.fixture
def _found_again():
    blas.gemm.cache_clear()
    yield
    blas.gemm.cache_clear()


def found(dtype):
    address, _ = blas.gemm(dtype)
    if not address:
        pytest.skip("NumPy's BLAS has no function with 64-bit integers")
    return address


@dtypes
def test_add_product_adds_the_product(dtype, rng):
    for (m, k, n), small in itertools.product(SHAPES, LIMITS):
        A, B, C = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n)))
        wanted, given = C + A @ B, (A.copy(), B.copy())
        around = np.full((m + 2, n), 7, dtype)  # a wrong size would write here
        around[1:-1] = C
        blas.add_product((found(dtype), small), A, B, around[1:-1])
        atol = 50 * max(k, 1) * np.finfo(dtype).eps
        np.testing.assert_allclose(around[1:-1], wanted, 0, atol, err_msg=str((m, k, n, small)))
        np.testing.assert_array_equal(around[[0, -1]], 7)
        for a, b in zip(given, (A, B), strict=True):
            np.testing.assert_array_equal(a, b)


def test_arrays_of_other_types_or_orders_are_refused():
    gemm = found(np.dtype("f")), 0
    A = np.ones((3, 3), np.float32)
    constant, other = A.copy(), A.astype(np.float64)
    constant.flags.writeable = False
    wrong = [(other, A, A), (A, other, A), (A, A, other), (A[:, ::2], A, A), (A, A[0], A)]
    for arguments in (*wrong, (A, A.T, A), (A, A, A.T)):
        types = map(numba.typeof, arguments)
        assert blas._typed_call(None, None, None, *types, *[None] * 4) is None
    with pytest.raises(numba.TypingError):
        blas.add_product(gemm, A, A, constant)
    np.testing.assert_array_equal(constant, 1)


@dtypes
@pytest.mark.usefixtures("_found_again")
def test_without_the_function_there_is_no_address(dtype, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(blas, "NAMES", ("no_such_{}gemm64_",))
        assert blas.gemm(dtype) == (0, 0)
    blas.gemm.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "threadpoolctl", None)
        assert blas.gemm(dtype) == (0, 0)


@pytest.mark.usefixtures("_found_again")
def test_pieces_are_for_processors_whose_kernels_take_them(monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    address = found(np.dtype("f"))
    libraries = threadpoolctl.threadpool_info()
    for architecture, small in (("SkylakeX", 1_000_000), ("Haswell", 0), ("neoversev1", 0)):
        blas.gemm.cache_clear()
        info = [library | {"architecture": architecture} for library in libraries]
        monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda info=info: info)
        assert blas.gemm(np.dtype("f")) == (address, small)
        assert blas.gemm(np.dtype("d"))[1] == 0


IN_PIECES = [  # m, k, n, whether A is a transpose
    (32, 784, 128, False), (2, 3136, 256, False), (31, 999, 65, False), (3, 2000, 1023, False),
    (400, 250, 11, False), (784, 32, 128, True), (501, 128, 77, True), (999, 2, 701, True),
    (300, 256, 64, True), (130, 131, 63, True),
]  # fmt: skip
WHOLE = [
    (32, 784, 39, False), (33, 784, 128, False), (32, 1000, 128, False), (1, 2000, 1024, False),
    (400, 257, 64, False), (784, 129, 128, True), (300, 257, 64, True), (2000, 1, 1000, True),
    (8000, 128, 128, True), (0, 784, 128, False), (784, 0, 128, True),
]  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """The rows and columns of the pieces of each product, as if for a processor with AVX-512."""
    address, seen = found(np.dtype("f")), []
    pieces = blas._pieces
    monkeypatch.setattr(blas, "gemm", lambda dtype: (address, blas.PIECE))
    monkeypatch.setattr(blas, "_pieces", lambda *a: (seen.append(a[5:]), pieces(*a)))
    return seen


def operands(shape, rng, dtype="f"):
    m, k, n, transposed = shape
    A = rng.standard_normal((k, m) if transposed else (m, k)).astype(dtype)
    return A.T if transposed else A, rng.standard_normal((k, n)).astype(dtype)


def check(A, B):
    """The product agrees with NumPy's in float64, and nothing else is written."""
    given = A.copy(), B.copy()
    around = np.full((len(A) + 2, B.shape[1]), np.nan, A.dtype)
    out = around[1:-1]
    assert blas.product(A, B, out) is out
    wanted = A.astype(np.float64) @ B.astype(np.float64)
    atol = (20 + 2 * len(B)) * np.finfo(A.dtype).eps
    np.testing.assert_allclose(out, wanted, rtol=0, atol=atol)
    assert np.isnan(around[[0, -1]]).all()
    np.testing.assert_array_equal(A, given[0])
    np.testing.assert_array_equal(B, given[1])


@pytest.mark.parametrize("shape", IN_PIECES + WHOLE, ids=str)
def test_a_product_in_pieces_or_whole(shape, calls, rng):
    check(*operands(shape, rng))
    assert len(calls) == (shape in IN_PIECES)
    assert all(rows * columns * shape[1] <= blas.PIECE for rows, columns in calls)


def test_products_of_random_sizes(calls):
    for seed in range(times(12)):
        rng = np.random.default_rng(seed)
        m, k, n = (int(2**x) for x in rng.uniform(0, 10, 3))
        dtype = "fd"[seed % 5 == 0]
        calls.clear()
        check(*operands((m, k, n, bool(seed % 2)), rng, dtype))
        if dtype == "d" or m * k * n <= blas.PIECE:
            assert not calls, seed


both = pytest.mark.parametrize("shape", [(32, 784, 128, False), (784, 32, 128, True)], ids=str)


@both
def test_products_of_strided_and_read_only_arrays(shape, calls, rng):
    A, B = operands(shape, rng)
    wide = np.repeat(np.repeat(A, 2, 0), 2, 1)
    for a, b in (
        (wide[::2, ::2], B),
        (wide[: len(A), : len(B)], B),
        (A[::-1], B),
        (A, np.asfortranarray(B)),
        (A, np.repeat(B, 2, 1)[:, ::2]),
        (np.broadcast_to(A[:1], A.shape), B),
    ):
        check(a, b)
    check(*operands(shape, rng, "d"))
    assert not calls
    A.flags.writeable = B.flags.writeable = False
    check(A, B)
    assert len(calls) == 1
    out = np.zeros((len(A), B.shape[1]), np.float32)
    out.flags.writeable = False
    with pytest.raises((numba.TypingError, ValueError)):
        blas.product(A, B, out)
    assert not out.any()


@both
def test_pieces_leave_nan_and_infinity_in_their_places(shape, calls, rng):
    A, B = operands(shape, rng)
    A[3, 5], A[20, 20], B[7, 100], B[9, 2], A[:, 9] = np.nan, np.inf, -np.inf, np.nan, 0
    out = np.full((len(A), B.shape[1]), np.nan, np.float32)
    with np.errstate(invalid="ignore"):
        blas.product(A, B, out)
        wanted = A.dot(B)
    assert calls
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-4)


def test_sizes_that_do_not_fit_are_refused_in_pieces_too(calls):
    A, B, out = (np.ones(s, np.float32) for s in ((32, 784), (784, 128), (32, 128)))
    for a, b, c in ((A[:, 1:].copy(), B, out), (A, B[1:], out), (A, B, out[1:]), (A[1:], B, out)):
        with pytest.raises(ValueError, match=r"."):
            blas.product(a, b, c)
    with pytest.raises(ValueError, match=r"."):
        blas.product(A, B, np.ones((32, 127), np.float32))


@pytest.mark.usefixtures("same_kernels")
def test_a_dense_layer_is_the_same_in_pieces(calls, rng):
    layer = Dense(784, 128)
    layer.build((784,), seed=1)
    X, dY = (rng.standard_normal((32, s)).astype(np.float32) for s in (784, 128))
    found = []
    for which in ("numpy", "numba"):
        kernels.use(which)
        Y = layer.forward(X)
        dX = layer.backward(dY)
        found.append((Y, dX, layer.grads["W"].copy()))
    assert len(calls) == 2
    for plain, twin in zip(*found, strict=True):
        np.testing.assert_allclose(twin, plain, rtol=0, atol=2e-4)
        assert twin.dtype == np.float32


def test_another_processor_has_no_pieces(calls, monkeypatch, rng):
    monkeypatch.setattr(blas, "gemm", lambda dtype: (1, 0))
    check(*operands((32, 784, 128, False), rng))
    assert not calls
