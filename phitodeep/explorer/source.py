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
        method = next((m for name in names if (m := getattr(kind, name, None)) is not None), None)
        try:
            lines, first = inspect.getsourcelines(method)  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
        text = textwrap.dedent("".join(lines)).rstrip()
        found[direction] = {"lines": text.split("\n"), "first": first}
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
