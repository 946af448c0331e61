"""The Python source of a layer's passes, and the line that computes each symbol."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

PASSES = {"forward": ("forward", "value"), "backward": ("backward", "gradient")}


def source_of(kind: type) -> dict[str, Any]:
    """The source of both passes, by direction: its lines, file and the number of its first line.

    A class that was typed in a console has none.
    """
    found = {}
    for direction, names in PASSES.items():
        name = next((name for name in names if hasattr(kind, name)), names[0])
        try:
            lines, first = inspect.getsourcelines(getattr(kind, name))
        except (OSError, TypeError, AttributeError):
            continue
        text = textwrap.dedent("".join(lines)).rstrip()
        found[direction] = {"name": name, "first": first, "lines": text.split("\n")}
    return found


def line_of(symbol: str, lines: list[str]) -> int | None:
    """The index of the line that computes a symbol, if the source shows it."""
    whole = symbol in ("Y", "dX", "L", "dP")
    name = re.escape(symbol.removeprefix("d"))
    patterns = [
        rf'grad_array\("{name}"' if symbol.startswith("d") else None,
        rf"^\s*{re.escape(symbol)}\b[^=]*(?<![=<>!])=(?!=)",
        r"^\s*return\b" if whole else None,
    ]
    for pattern in filter(None, patterns):
        hits = [i for i, line in enumerate(lines) if re.search(pattern, line)]
        if hits:
            return hits[-1] if whole else hits[0]
    return None
