"""PyTorch itself, where it is needed, and the modules that are derived from its own."""

from __future__ import annotations

import importlib
from typing import Any

from phitodeep.errors import extra


def load(purpose: str) -> tuple[Any, Any, Any]:
    """Return torch, and the modules `modules` and `read.tracing`, which import it."""
    with extra("torch", "torch", purpose):
        import torch
    names = ("modules", "read.tracing")
    own, tracing = (importlib.import_module(f"{__package__}.{name}") for name in names)
    return torch, own, tracing
