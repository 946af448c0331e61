"""Products that compiled loops ask of NumPy's BLAS, and what happens where it is not found."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")
blas = pytest.importorskip("phitodeep.kernels.compiled.blas")

dtypes = pytest.mark.parametrize("dtype", [np.dtype("f"), np.dtype("d")], ids=str)
SHAPES = [
    (1, 1, 1), (1, 7, 5), (5, 1, 3), (7, 5, 1), (3, 4, 33), (31, 17, 127), (32, 24, 100),
    (33, 9, 64), (2, 300, 97), (32, 128, 512),
]  # fmt: skip
LIMITS = [0, 1, 32 * 17, 5_000, 1_000_000]


@pytest.fixture
def _found_again() -> Any:
    blas.gemm.cache_clear()
    yield
    blas.gemm.cache_clear()


def found(dtype: Any) -> int:
    address, _ = blas.gemm(dtype)
    if not address:
        pytest.skip("NumPy's BLAS has no function with 64-bit integers")
    return address


@dtypes
@pytest.mark.parametrize("small", LIMITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_product_adds_the_product(
    shape: tuple[int, int, int], small: int, dtype: Any, rng: Any
) -> None:
    m, k, n = shape
    A, B, C = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n)))
    wanted, given = C + A @ B, (A.copy(), B.copy())
    around = np.full((m + 2, n), 7, dtype)  # a wrong size would write here
    around[1:-1] = C
    blas.add_product((found(dtype), small), A, B, around[1:-1])
    np.testing.assert_allclose(around[1:-1], wanted, rtol=0, atol=50 * k * np.finfo(dtype).eps)
    np.testing.assert_array_equal(around[[0, -1]], 7)
    for a, b in zip(given, (A, B), strict=True):
        np.testing.assert_array_equal(a, b)


@dtypes
def test_sizes_that_do_not_fit_are_refused(dtype: Any) -> None:
    """BLAS itself would read and write outside the arrays."""
    gemm = found(dtype), 0
    for m, k, n in ((3, 2, 4), (2, 2, 3), (2, 3, 4)):
        A, B, C = np.ones((2, 2), dtype), np.ones((k, n), dtype), np.ones((m, 4), dtype)
        with pytest.raises(ValueError, match="do not fit together"):
            blas.add_product(gemm, A, B, C)


def test_arrays_of_other_types_or_orders_are_refused() -> None:
    gemm = found(np.dtype("f")), 0
    A = np.ones((3, 3), np.float32)
    for wrong in (A.astype(np.float64), A.T, A[:, ::2], A[0], A.astype(np.int32)):
        for arguments in ((wrong, A, A), (A, wrong, A), (A, A, wrong)):
            with pytest.raises(numba.TypingError):
                blas.add_product(gemm, *arguments)


@dtypes
@pytest.mark.usefixtures("_found_again")
def test_without_the_function_or_threadpoolctl_there_is_no_address(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blas, "NAMES", ("no_such_{}gemm64_",))
        assert blas.gemm(dtype) == (0, 0)
    blas.gemm.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "threadpoolctl", None)
        assert blas.gemm(dtype) == (0, 0)


@pytest.mark.usefixtures("_found_again")
def test_pieces_are_for_processors_whose_kernels_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    address = found(np.dtype("f"))
    libraries = threadpoolctl.threadpool_info()
    for architecture, small in (("SkylakeX", 1_000_000), ("Haswell", 0), ("neoversev1", 0)):
        blas.gemm.cache_clear()
        info = [library | {"architecture": architecture} for library in libraries]
        monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda info=info: info)
        assert blas.gemm(np.dtype("f")) == (address, small)
        assert blas.gemm(np.dtype("d"))[1] == 0
