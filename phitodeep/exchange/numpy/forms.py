"""How other authors' layers are exported to NumPy: see `exports`.

`phitodeep/exchange/correspondence.py` says which function stands for which layer of phitodeep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from phitodeep.exchange.correspondence import declare
from phitodeep.layers.base import Layer

F = TypeVar("F", bound=Callable[..., Any])


def exports(kind: type[Layer]) -> Callable[[F], F]:
    """Declare the decorated function as the prediction of a layer class, for `export_numpy`.

        class Scale(Layer):
            s = Param()

        @exports(Scale)
        def scale(X, s):
            return np.exp(s) * X

    The function is copied into exported files, together with the functions and constants that it
    uses. It is defined in a file, uses only NumPy (as `np`) and Python's own modules, and does not
    write into X. Its first parameter is X. The others have the names of parameters, states and
    settings of the layer; one with a default may be missing in the layer.
    """
    return declare(kind, "numpy", "exports")
