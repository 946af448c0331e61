"""Text: tokenizers, and generation of tokens one after another."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phitodeep.text.tokenizer import CharTokenizer, HubTokenizer

if TYPE_CHECKING:
    from phitodeep.text.generation import generate as generate
    from phitodeep.text.generation import stream as stream

__all__ = ["CharTokenizer", "HubTokenizer", "generate", "stream"]


def __getattr__(name: str) -> Any:  # generation needs all layers; phitodeep.data does not
    if name in ("generate", "stream"):
        return getattr(importlib.import_module("phitodeep.text.generation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
