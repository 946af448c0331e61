"""Compiled twins of the kernels, one file per family: the same names, arguments and results.

Each makes one pass over memory where NumPy makes several. They are serial, so that they do not
compete with a threaded BLAS, and they release the interpreter lock, so that several threads can
run them at once. Arrays are contiguous float32 or float64. Scalars are first converted to the
arrays' dtype, so that nothing is computed in float64 by accident.

Importing this package registers all twins (see `phitodeep.kernels`).
"""

from phitodeep.kernels.compiled import blas as blas
from phitodeep.kernels.compiled import layers as layers
from phitodeep.kernels.compiled import optimizers as optimizers
from phitodeep.kernels.compiled import recurrent as recurrent
from phitodeep.kernels.compiled import softmax as softmax
