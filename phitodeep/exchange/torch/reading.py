"""From PyTorch: `phitodeep.io.from_torch`."""

from __future__ import annotations

from typing import Any

from phitodeep.sequential import Sequential
from phitodeep.types import Shape


def from_torch(module: Any, input_shape: Shape) -> Sequential:
    raise NotImplementedError
