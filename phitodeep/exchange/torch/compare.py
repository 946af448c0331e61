"""A model next to its PyTorch counterpart: `phitodeep.io.compare_with_torch`."""

from __future__ import annotations

from typing import Any

from phitodeep.layers.base import Layer


def compare_with_torch(model: Layer, X: Any, y: Any) -> Any:
    raise NotImplementedError
