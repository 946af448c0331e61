"""Small texts, and windows over their tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phitodeep.core.checks import as_tokens, check_count, choose
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, DataError

SHIPPED = {name: f"{name}.xz" for name in ("tinyshakespeare", "names")}  # by tools/pack_text.py


def load_text(name: str = "tinyshakespeare") -> str:
    """Return a text that comes with phitodeep; no network is needed.

    "tinyshakespeare" is 1,115,394 characters of plays; "names" is 32,033 first names, one per line.
    Raises DataError if the file is missing or damaged. Licences: LICENSES.md next to this file.
    Source: the data of Karpathy's char-rnn and makemore.
    """
    import lzma

    path = Path(__file__).with_name(choose(name, SHIPPED, "text"))
    try:
        return lzma.decompress(path.read_bytes()).decode()
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path.name} is missing or damaged ({error}): reinstall phitodeep."
        ) from None


def windows(tokens: Array, length: int) -> tuple[Array, Array]:
    """Return X and y (N, length): all windows over tokens (T,), and the same shifted by one token.

    N is T - length. Both are read-only views of the tokens; a training loop copies only the rows
    of its batch. An np.memmap of integers stays in its file: `train` reads the rows that it needs.
    """
    if not isinstance(tokens, np.memmap):
        tokens = as_tokens(tokens, "tokens")
    check_count(length, "length")
    if tokens.ndim != 1 or len(tokens) <= length:
        raise ArgumentError(
            f"windows of length {length} require tokens (T,) with T > {length}, "
            f"got shape {tokens.shape}."
        )
    view = np.lib.stride_tricks.sliding_window_view(tokens, length, subok=True)
    return view[:-1], view[1:]
