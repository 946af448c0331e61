"""Write the line of each layer into SequentialBuilder: type checkers and editors read them.

python tools/builder_methods.py
"""

from __future__ import annotations

import re
from pathlib import Path

from phitodeep import layers
from phitodeep.layers import Layer
from phitodeep.model import builder

OWN = {"Add", "Layer", "Shared", "Wired"}  # whose methods do more, or that have none
LINES = re.compile(r"(    \w+ = adds\(catalogue\.\w+\)\n)+")


def written(source: str) -> str:
    """Return the source of builder.py with a line for each public layer."""
    names = [n for n in layers.__all__ if issubclass(getattr(layers, n), Layer) and n not in OWN]
    methods = sorted((builder.method_name(name), name) for name in names)
    lines = [f"    {method} = adds(catalogue.{name})\n" for method, name in methods]
    return LINES.sub("".join(lines), source, count=1)


if __name__ == "__main__":
    path = Path(builder.__file__)
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
