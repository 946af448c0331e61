"""What the pages of layers, losses and optimizers say that the classes do not: TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read(name: str) -> dict[str, Any]:
    """The tables of a file in this folder."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
