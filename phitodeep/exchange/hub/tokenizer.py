"""The tokenizer of a folder."""

from __future__ import annotations

from pathlib import Path

from phitodeep.exchange.hub.folder import read_text
from phitodeep.text.hub_tokenizer import HubTokenizer


def read_tokenizer(folder: Path) -> HubTokenizer | None:
    """Return the tokenizer of a folder, or None if it has no tokenizer.json."""
    path = folder / "tokenizer.json"
    return HubTokenizer(read_text(path)) if path.exists() else None
