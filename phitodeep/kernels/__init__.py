"""Hot inner loops, which run either in NumPy or as their compiled twins.

A hot loop is written in NumPy, in the file of its layer or rule, next to the formula that it
computes:

    @kernel
    def adagrad(theta, g, v, s, lr, eps):
        v += np.square(g, out=s)
        ...

Its twin, a function of the same name and arguments in `phitodeep/kernels/compiled/`, is registered
with `@twin`. Numba compiles it on its first call and caches it on disk
(`pip install "phitodeep[fast]"`). The environment variable PHITODEEP_KERNELS chooses between the
two: `numpy`, `numba`, or `auto`, which means Numba if it is installed. `tests/kernels` calls every
kernel both ways and compares the results.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, cast

from phitodeep.errors import ArgumentError, MissingExtraError

F = TypeVar("F", bound=Callable[..., Any])
CHOICES = ("numpy", "numba", "auto")


class Kernel:
    """A function that chooses its form, NumPy or compiled, on its first call after `use`."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain
        self.run: Callable[..., Any] | None = None  # the form that was chosen
        functools.update_wrapper(self, plain)

    def __call__(self, *arguments: Any) -> Any:
        run = self.run
        if run is None:
            name = self.plain.__name__
            run = self.run = self.plain if chosen() == "numpy" else _twin_of(name)
        return run(*arguments)


KERNELS: dict[str, Kernel] = {}  # by name: the NumPy forms
TWINS: dict[str, Callable[..., Any]] = {}  # by the same names: the compiled forms
_chosen: str | None = None


def kernel(plain: F) -> F:
    """Register a NumPy function under its name; if chosen, its compiled twin runs instead."""
    KERNELS[plain.__name__] = Kernel(plain)
    return cast(F, KERNELS[plain.__name__])


def twin(function: F) -> F:
    """Register a compiled function as the twin of the kernel of the same name."""
    TWINS[function.__name__] = function
    return function


def use(which: str) -> str:
    """Run all kernels as "numpy", "numba" or "auto"; return the form that runs from now on."""
    global _chosen
    if which not in CHOICES:
        raise ArgumentError(
            f"PHITODEEP_KERNELS must be one of {', '.join(CHOICES)}, got {which!r}."
        )
    installed = importlib.util.find_spec("numba") is not None
    if which == "numba" and not installed:
        raise MissingExtraError.of("numba", "fast", 'PHITODEEP_KERNELS="numba"')
    _chosen = "numba" if installed and which != "numpy" else "numpy"
    for registered in KERNELS.values():
        registered.run = None
    return _chosen


def chosen() -> str:
    """Return which kernels run, "numpy" or "numba"; choose now if no choice was made before."""
    return _chosen or use(os.environ.get("PHITODEEP_KERNELS") or "auto")


def compiled_module(family: str) -> ModuleType | None:
    """Return the module phitodeep.kernels.compiled.<family>, or None if the NumPy forms run."""
    if chosen() == "numpy":
        return None
    return importlib.import_module(f"phitodeep.kernels.compiled.{family}")


def report_compilation() -> None:
    """Print how long twins took to compile, if any were compiled since the last report."""
    if _chosen == "numba":
        importlib.import_module("phitodeep.kernels.compiled.jit").NOTICE.report()


def hide_compilation() -> None:
    """Print no notices of compilation in this process: another one of the same job prints them."""
    chosen()
    if _chosen == "numba":
        importlib.import_module("phitodeep.kernels.compiled.jit").NOTICE.hidden = True


def _twin_of(name: str) -> Callable[..., Any]:
    importlib.import_module("phitodeep.kernels.compiled")  # registers all twins
    if name not in TWINS:
        raise ArgumentError(
            f"kernel {name!r} has no compiled twin: register one with @twin, or set "
            "PHITODEEP_KERNELS to numpy."
        )
    return TWINS[name]
