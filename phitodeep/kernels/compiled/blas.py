"""Matrix products of compiled code, by the BLAS that NumPy has loaded.

A compiled loop that calls BLAS itself needs neither Python nor its lock between two products. It
receives the address of the BLAS function as an argument, because a constant address would be
written into Numba's cache, and each process loads BLAS at another address.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit

NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_")
PIECE = 1_000_000  # multiplications per piece of a matrix product
ROWS_FIRST, AS_IT_IS, TRANSPOSED = 101, 111, 112  # CblasRowMajor, CblasNoTrans, CblasTrans
# OpenBLAS for AVX-512 does at most PIECE multiplications without a copy of B.
SMALL = dict.fromkeys(("SkylakeX", "Cooperlake", "SapphireRapids"), PIECE)
FEW_ROWS, COLUMNS = 32, 32  # measured: with more rows, or in narrower pieces, the copy pays
STRIP = 64  # columns of a piece of `product`: four AVX-512 registers
F32 = np.dtype(np.float32)


@functools.cache
def gemm(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the address of BLAS's sgemm (float32) or dgemm (float64), and its value in `SMALL`.

    The address is 0 if the function is not found. Only names that end in 64_ are looked for, as in
    the OpenBLAS of NumPy's own packages: they promise 64-bit integers. A plain `cblas_sgemm` may
    take 32 or 64 bits, and a wrong guess would write into memory at random.
    """
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return 0, 0
    letter = "s" if dtype == np.float32 else "d"
    for library in threadpool_info():
        loaded = ctypes.CDLL(library["filepath"])
        for name in NAMES:
            function = getattr(loaded, name.format(letter), None)
            if function is not None:
                small = SMALL.get(library.get("architecture"), 0) if letter == "s" else 0
                return ctypes.cast(function, ctypes.c_void_p).value or 0, small
    return 0, 0


def _typed_call(
    typing: Any, address: Any, beta: Any, A: Any, B: Any, C: Any,
    i: Any, rows: Any, j: Any, columns: Any,
) -> Any:  # fmt: skip
    """C[I, J] <- beta C[I, J] + A[I] B[:, J], with I = i : i + rows and J = j : j + columns.

    It is one call of cblas_sgemm or cblas_dgemm. A may be the transpose of a contiguous array.
    """
    orders = A.layout in "CF" and B.layout == C.layout == "C" and C.mutable
    if not orders or not all(X.ndim == 2 and X.dtype == C.dtype for X in (A, B)) or C.ndim != 2:
        return None  # Numba then refuses the types

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, beta, *values, i, rows, j, columns = arguments
        a, b, c = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip((A, B, C), values, strict=True)
        )
        m, k = (builder.extract_value(a.shape, axis) for axis in range(2))
        n = builder.extract_value(b.shape, 1)
        enum, size, number = ir.IntType(32), ir.IntType(64), context.get_value_type(C.dtype)
        matrix = [number.as_pointer(), size]
        parameters = [enum] * 3 + [size] * 3 + [number, *matrix, *matrix, number, *matrix]
        function = ir.FunctionType(ir.VoidType(), parameters).as_pointer()
        order = [ROWS_FIRST, AS_IT_IS if A.layout == "C" else TRANSPOSED, AS_IT_IS]
        width, step = (k, builder.mul(i, k)) if A.layout == "C" else (m, i)
        builder.call(
            builder.inttoptr(address, function),
            [
                *(ir.Constant(enum, x) for x in order),
                *(rows, columns, k, ir.Constant(number, 1.0)),
                *(builder.gep(a.data, [step]), width, builder.gep(b.data, [j]), n),
                context.cast(builder, beta, types.float64, C.dtype),
                *(builder.gep(c.data, [builder.add(builder.mul(i, n), j)]), n),
            ],
        )
        return context.get_dummy_value()

    i8 = types.int64
    return types.void(i8, types.float64, A, B, C, i8, i8, i8, i8), code


_call: Any = intrinsic(_typed_call)


@jit
def add_product(gemm: tuple[int, int], A: Array, B: Array, C: Array) -> None:
    """C (m, n) <- C + A B, with A (m, k) and B (k, n), by the function that `gemm` describes.

    A large product copies B into an order that suits the processor. For few rows, that copy takes
    longer than it saves, so that pieces of B's columns are faster, each small enough for BLAS to
    leave it out: 32 x 128 by 128 x 512 takes 24 us instead of 30, and 16 x 128 takes 12 instead of
    20 (AVX-512, one thread).
    """
    m, k, n = A.shape[0], A.shape[1], B.shape[1]
    columns = n
    if m <= FEW_ROWS and gemm[1] >= COLUMNS * m * k:
        columns = gemm[1] // (COLUMNS * m * k) * COLUMNS
    _pieces(gemm[0], 1.0, A, B, C, m, columns)


@twin
def product(A: Array, B: Array, out: Array) -> Array:
    """Write A B into `out` and return it, with A (m, k) and B (k, n); A may be a transpose."""
    if A.size * B.shape[1] <= PIECE or not _pays(A, B, out):
        return A.dot(B, out)
    columns = min(B.shape[1], STRIP)
    rows = PIECE // (columns * len(B))
    _pieces(gemm(F32)[0], 0.0, A, B, out, rows if rows < 8 else rows // 8 * 8, columns)
    return out


def _pays(A: Array, B: Array, out: Array) -> bool:
    """Return whether a product is faster in pieces: of STRIP columns and PIECE multiplications.

    The rule was measured with one thread for 2 to 4,096 rows X, 32 to 3,136 inputs and 10 to 1,024
    outputs. X W gains if X has few rows and each strip of W is read at most twice, and X^T dY if
    it adds few rows. For example, X W of 32 x 784 by 784 x 128 takes 37 us instead of 49, and its
    X^T dY 30 instead of 50. A very large product is left whole, because BLAS may have several
    threads for it. The number of threads changes neither the rule nor a product in pieces.
    """
    (m, k), n = A.shape, B.shape[1]
    work = m * k * n
    if work > 64 * gemm(F32)[1] or min(m, k) == 1:
        return False
    if not (A.dtype == B.dtype == out.dtype == F32 and A.flags.forc):
        return False
    if not (B.flags.c_contiguous and out.flags.c_contiguous):
        return False
    if n <= STRIP and k <= 256:  # short sums in a single strip
        return True
    return m <= 32 and STRIP * m * k <= 2 * PIECE if A.flags.c_contiguous else k <= 128


@jit
def _pieces(
    address: int, beta: float, A: Array, B: Array, C: Array, rows: int, columns: int
) -> None:
    """C <- beta C + A B, in pieces of so many rows and columns of C."""
    m, k, n = A.shape[0], A.shape[1], B.shape[1]
    if B.shape[0] != k or C.shape[0] != m or C.shape[1] != n:
        raise ValueError("the shapes of a matrix product do not fit together")
    for i in range(0, m, max(rows, 1)):
        for j in range(0, n, max(columns, 1)):
            _call(address, beta, A, B, C, i, min(rows, m - i), j, min(columns, n - j))
