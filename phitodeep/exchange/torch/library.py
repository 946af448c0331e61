"""PyTorch itself, where it is needed, and the modules that are derived from its own."""

from __future__ import annotations

import importlib
from typing import Any

from phitodeep.errors import MissingExtraError


def load(purpose: str) -> tuple[Any, Any]:
    """Return the modules `torch` and `phitodeep.exchange.torch.modules`, which imports it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError.of("torch", "torch", purpose) from None
    return torch, importlib.import_module("phitodeep.exchange.torch.modules")
