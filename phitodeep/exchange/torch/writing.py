"""To PyTorch: `phitodeep.io.to_torch`."""

from __future__ import annotations

from typing import Any

from phitodeep.layers.base import Layer


def to_torch(model: Layer) -> Any:
    raise NotImplementedError
