"""How the twins are compiled: Numba's options, its cache on disk, and a notice."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from phitodeep.errors import PhitodeepWarning

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "error_model": "numpy",
    "nogil": True,
    "boundscheck": False,
}


class _Notice(event.Listener):
    """Prints a notice when the first twin is compiled; later runs load the twins from disk."""

    printed = False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        ours = (getattr(function, "__module__", None) or "").startswith(f"{__package__}.")
        if ours and not self.printed:
            print(
                "phitodeep: compiling kernels (only once, for a few seconds)",
                file=sys.stderr,
                flush=True,
            )
            self.printed = True

    def on_end(self, event: Any) -> None:
        """Print nothing."""


event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]


def _stamp() -> tuple[tuple[str, float, int], ...]:
    """Return name, modification time and size of each source file of the kernels."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((file.name, file.stat().st_mtime, file.stat().st_size) for file in files)


STAMP = _stamp()


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the function on its first call, and cache the result on disk for later runs."""
    try:
        compiled = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError as error:  # Numba found no writable folder
        warnings.warn(
            f"compiled kernels cannot be cached ({error}), so each run compiles them again. "
            "Set NUMBA_CACHE_DIR to a writable folder.",
            PhitodeepWarning,
            stacklevel=2,
        )
        return numba.njit(**OPTIONS)(function)
    with contextlib.suppress(AttributeError):  # Numba's internals may change
        # Numba compiles again only if the function's own file changes. The functions that it calls
        # and their coefficients are in other files, so their stamp is added.
        index = compiled._cache._cache_file
        index._source_stamp = (index._source_stamp, STAMP)
    return compiled
