"""How the twins are compiled: Numba's options, its cache on disk, and a notice."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from phitodeep.errors import warn

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "error_model": "numpy",
    "nogil": True,
    "boundscheck": False,
}


class _Notice(event.Listener):
    """Prints a notice when twins are compiled, and how long that took.

    Numba announces a compilation only if its cache on disk has no result. A twin may be compiled
    while its caller is, so `depth` counts the compilations that have not ended.
    """

    def __init__(self) -> None:
        self.depth, self.count, self.seconds = 0, 0, 0.0
        self.printed = False
        self.hidden = False  # True: another process prints the notices
        self.cached = True  # False: no folder for the cache is writable

    def on_start(self, event: Any) -> None:
        if not _is_ours(event):
            return
        if not self.printed:
            self.say(f"compiling kernels ({'only once, ' * self.cached}for a few seconds)")
            self.printed = True
            atexit.register(self.report)
        if not self.depth:
            self.began = time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        if not _is_ours(event):
            return
        self.depth -= 1
        self.count += 1
        if not self.depth:
            self.seconds += time.perf_counter() - self.began

    def report(self) -> None:
        """Print how long the compilations since the last report took."""
        if self.count:
            later = "; later runs load them" * self.cached
            self.say(f"compiled {self.count} kernels in {self.seconds:.1f} s{later}")
        self.count, self.seconds = 0, 0.0

    def say(self, text: str) -> None:
        """Print a line, unless another process does."""
        if not self.hidden:
            print(f"phitodeep: {text}", file=sys.stderr, flush=True)


def _is_ours(event: Any) -> bool:
    function = getattr(event.data.get("dispatcher"), "py_func", None)
    return (getattr(function, "__module__", None) or "").startswith(f"{__package__}.")


NOTICE = _Notice()
event.register("numba:compile", NOTICE)  # type: ignore[no-untyped-call]


def _stamp() -> str:
    """Return a hash of the kernels' source files.

    Unlike their times, it is the same after a copy, a checkout or a new installation.
    """
    folder, found = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        found.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


STAMP = _stamp()


def jit(function: Callable[..., Any], **own: bool) -> Callable[..., Any]:
    """Compile the function on its first call, and cache the result on disk for later runs."""
    options: dict[str, Any] = OPTIONS | own
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # Numba found no writable folder
        if NOTICE.cached:
            NOTICE.cached = False
            warn(
                f"compiled kernels cannot be cached ({error}), so each run compiles them again. "
                "Set NUMBA_CACHE_DIR to a writable folder."
            )
        return numba.njit(**options)(function)
    with contextlib.suppress(AttributeError):  # Numba's internals may change
        # Numba compiles again only if the function's own file changes (older versions: if its time
        # does). The functions that it calls and their coefficients are in other files.
        compiled._cache._cache_file._source_stamp = STAMP
    return compiled


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that rounds and that other compiled functions call.

    The caller's copy of a function is optimised once more, and may then round otherwise. Unless it
    is inlined, the function itself runs instead of the copy if the process holds it, as the process
    that compiled it does: later ones, which load the caller alone, would compute other bits.
    """
    return jit(function, forceinline=True)


def rounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose every operation rounds on its own, in the order that is written.

    Where operations may be fused and reordered, those of a loop's last elements may be so otherwise
    than the others', and the bits of an element depend on where in the array it stands.
    """
    return jit(function, fastmath=False)
