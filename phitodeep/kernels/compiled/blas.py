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

ROWS_FIRST, AS_IT_IS = 101, 111  # CblasRowMajor, CblasNoTrans
NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_")


@functools.cache
def gemm(dtype: np.dtype[Any]) -> int:
    """Return the address of BLAS's sgemm (float32) or dgemm (float64), or 0 if it is not found.

    Only names that end in 64_ are looked for, as in the OpenBLAS of NumPy's own packages: they
    promise 64-bit integers. A plain `cblas_sgemm` may take 32 or 64 bits, and a wrong guess would
    write into memory at random.
    """
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return 0
    letter = "s" if dtype == np.float32 else "d"
    for library in threadpool_info():
        loaded = ctypes.CDLL(library["filepath"])
        for name in NAMES:
            function = getattr(loaded, name.format(letter), None)
            if function is not None:
                return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _typed_call(typing: Any, gemm: Any, A: Any, B: Any, C: Any) -> Any:
    """Call cblas_?gemm(order, A as it is, B as it is, m, n, k, 1, A, k, B, n, 1, C, n)."""
    if not all(X.ndim == 2 and X.layout == "C" and X.dtype == C.dtype for X in (A, B, C)):
        return None  # Numba then refuses the types

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, *values = arguments
        X, Y, Z = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip((A, B, C), values, strict=True)
        )
        m, k = (builder.extract_value(X.shape, i) for i in range(2))
        n = builder.extract_value(Y.shape, 1)
        number = context.get_value_type(C.dtype)
        enum, size, matrix = ir.IntType(32), ir.IntType(64), number.as_pointer()
        parameters = [enum] * 3 + [size] * 3 + [number, matrix, size, matrix, size]
        parameters += [number, matrix, size]
        function = ir.FunctionType(ir.VoidType(), parameters).as_pointer()
        settings = [ir.Constant(enum, x) for x in (ROWS_FIRST, AS_IT_IS, AS_IT_IS)]
        one = ir.Constant(number, 1.0)
        call = builder.inttoptr(address, function)
        builder.call(call, [*settings, m, n, k, one, X.data, k, Y.data, n, one, Z.data, n])
        return context.get_dummy_value()

    return types.void(types.int64, A, B, C), code


_call: Any = intrinsic(_typed_call)


@jit
def add_product(gemm: int, A: Array, B: Array, C: Array) -> None:
    """C (m, n) <- C + A B, with A (m, k) and B (k, n); `gemm` is the address of the function."""
    if A.shape[1] != B.shape[0] or C.shape[0] != A.shape[0] or C.shape[1] != B.shape[1]:
        raise ValueError("the shapes of a matrix product do not fit together")
    _call(gemm, A, B, C)
