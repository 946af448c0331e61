"""Reading and writing models as files, and exchanging them with other libraries."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phitodeep.exchange.onnx.from_onnx import from_onnx as from_onnx
    from phitodeep.exchange.torch.compare import compare_with_torch as compare_with_torch
    from phitodeep.exchange.torch.reading import from_torch as from_torch
    from phitodeep.exchange.torch.writing import to_torch as to_torch

_HOME = {
    "compare_with_torch": "exchange.torch.compare",
    "from_onnx": "exchange.onnx.from_onnx",
    "from_torch": "exchange.torch.reading",
    "to_torch": "exchange.torch.writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'phitodeep.io' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phitodeep.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
