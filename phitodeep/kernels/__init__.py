"""The chooser between an inner loop in NumPy and its compiled twin.

A hot loop is written in NumPy beside the formula that it computes, in its layer's or rule's file:

    @kernel
    def adagrad(theta, g, v, s, lr, eps):
        v += np.square(g, out=s)
        ...

`phitodeep/kernels/compiled.py` has a function of the same name and arguments, which Numba
compiles when it is first called and keeps in its cache (`pip install "phitodeep[fast]"`). The
environment's PHITODEEP_KERNELS says which one runs: `numpy`, `numba`, or `auto`, which is Numba
where it is installed. `tests/kernels` calls every kernel both ways and compares.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from phitodeep.errors import ArgumentError, MissingExtraError

F = TypeVar("F", bound=Callable[..., Any])
SETS = ("numpy", "numba", "auto")


class Kernel:
    """A function that is its NumPy form until the first call chooses."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain, self.name = plain, plain.__name__
        self.run: Callable[..., Any] = self._first
        functools.update_wrapper(self, plain)

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def _first(self, *arguments: Any) -> Any:
        use(os.environ.get("PHITODEEP_KERNELS") or "auto")
        return self.run(*arguments)


KERNELS: dict[str, Kernel] = {}
_chosen: str | None = None


def kernel(plain: F) -> F:
    """A function in NumPy that runs as its compiled twin where that is wanted."""
    made = KERNELS[plain.__name__] = Kernel(plain)
    if _chosen is not None:
        made.run = _twin(made) if _chosen == "numba" else plain
    return cast(F, made)


def use(which: str) -> str:
    """Run all kernels in NumPy or compiled: "numpy", "numba" or "auto"; the set that runs now."""
    global _chosen
    if which not in SETS:
        raise ArgumentError(f"PHITODEEP_KERNELS must be one of {', '.join(SETS)}, got {which!r}.")
    installed = importlib.util.find_spec("numba") is not None
    if which == "numba" and not installed:
        raise MissingExtraError.of("numba", "fast", 'PHITODEEP_KERNELS="numba"')
    _chosen = "numba" if installed and which != "numpy" else "numpy"
    for one in KERNELS.values():
        one.run = _twin(one) if _chosen == "numba" else one.plain
    return _chosen


def chosen() -> str:
    """The set that runs: "numpy" or "numba"."""
    return _chosen or use(os.environ.get("PHITODEEP_KERNELS") or "auto")


def _twin(one: Kernel) -> Callable[..., Any]:
    compiled = importlib.import_module("phitodeep.kernels.compiled")
    return cast(Callable[..., Any], getattr(compiled, one.name))
