"""Matrix products inside compiled loops, by the BLAS that NumPy has loaded.

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

from phitodeep.kernels.compiled.jit import jit
from phitodeep.types import Array

NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_")
ROWS_FIRST, AS_IT_IS = 101, 111  # CblasRowMajor, CblasNoTrans
SMALL = {  # the most multiplications that the processor's OpenBLAS kernels do without a copy of B
    "SkylakeX": 1_000_000,
    "Cooperlake": 1_000_000,
    "SapphireRapids": 1_000_000,
}
FEW_ROWS, COLUMNS = 32, 32  # measured: with more rows, or in narrower pieces, the copy pays


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


def _typed_call(typing: Any, address: Any, A: Any, B: Any, C: Any, j: Any, columns: Any) -> Any:
    """C[:, j : j + columns] += A B[:, j : j + columns], by a call of cblas_sgemm or cblas_dgemm."""
    if not all(X.ndim == 2 and X.layout == "C" and X.dtype == C.dtype for X in (A, B, C)):
        return None  # Numba then refuses the types

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, *values, j, columns = arguments
        a, b, c = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip((A, B, C), values, strict=True)
        )
        m, k = (builder.extract_value(a.shape, i) for i in range(2))
        n = builder.extract_value(b.shape, 1)
        enum, size, number = ir.IntType(32), ir.IntType(64), context.get_value_type(C.dtype)
        matrix, one = [number.as_pointer(), size], ir.Constant(number, 1.0)
        parameters = [enum] * 3 + [size] * 3 + [number, *matrix, *matrix, number, *matrix]
        function = ir.FunctionType(ir.VoidType(), parameters).as_pointer()
        order = [ir.Constant(enum, x) for x in (ROWS_FIRST, AS_IT_IS, AS_IT_IS)]
        b_j, c_j = builder.gep(b.data, [j]), builder.gep(c.data, [j])
        call = builder.inttoptr(address, function)
        builder.call(call, [*order, m, columns, k, one, a.data, k, b_j, n, one, c_j, n])
        return context.get_dummy_value()

    return types.void(types.int64, A, B, C, types.int64, types.int64), code


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
    if B.shape[0] != k or C.shape[0] != m or C.shape[1] != n:
        raise ValueError("the shapes of a matrix product do not fit together")
    address, small = gemm
    columns = n
    if m <= FEW_ROWS and small >= COLUMNS * m * k:
        columns = small // (COLUMNS * m * k) * COLUMNS
    for j in range(0, n, columns):
        _call(address, A, B, C, j, min(columns, n - j))
