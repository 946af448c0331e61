"""The tokenizer of a folder."""

from __future__ import annotations

from pathlib import Path

from phitodeep.errors import PhitodeepError
from phitodeep.exchange.hub.folder import read_json, read_text
from phitodeep.exchange.hub.settings import Settings
from phitodeep.text.hub_tokenizer import HubTokenizer


def read_tokenizer(folder: Path) -> HubTokenizer | None:
    """Return the tokenizer of a folder, or None if it has no tokenizer.json.

    As in transformers, `add_bos_token` and `add_eos_token` in tokenizer_config.json replace the
    special tokens that tokenizer.json puts around a text.
    """
    path, other = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.exists():
        return None
    around = None
    if other.exists():
        config = Settings(read_json(other), str(other))
        if "add_bos_token" in config or "add_eos_token" in config:
            around = [_token(config, kind) for kind in ("bos", "eos")]
    try:
        return HubTokenizer(read_text(path), around)
    except PhitodeepError as error:
        raise error.at(str(path)) from None


def _token(config: Settings, kind: str) -> str:
    """Return the first or last token of a text, or "" if there is none."""
    if not config.flag(f"add_{kind}_token", False):
        return ""
    token = config.values.get(f"{kind}_token")
    return (
        config.inner(f"{kind}_token").text("content")
        if isinstance(token, dict)
        else (config.text(f"{kind}_token", ""))
    )
