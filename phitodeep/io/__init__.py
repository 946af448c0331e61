"""Reading and writing models as files, and exchanging them with other libraries."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phitodeep.model.imports import compare_with_torch as compare_with_torch
    from phitodeep.model.imports import from_onnx as from_onnx
    from phitodeep.model.imports import from_torch as from_torch
    from phitodeep.model.imports import to_torch as to_torch

_MODELS = ("compare_with_torch", "from_onnx", "from_torch", "to_torch")


def __getattr__(name: str) -> Any:
    if name not in _MODELS:
        raise AttributeError(f"module 'phitodeep.io' has no attribute {name!r}")
    return getattr(importlib.import_module("phitodeep.model.imports"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODELS})
