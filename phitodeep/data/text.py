"""Small texts, their characters as tokens, and windows on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from phitodeep.checks import as_tokens, check_count, choose
from phitodeep.errors import ArgumentError, DataError, ShapeError
from phitodeep.types import Array

SHIPPED = {name: f"{name}.xz" for name in ("tinyshakespeare", "names")}  # by tools/pack_text.py


def load_text(name: str = "tinyshakespeare") -> str:
    """A text that is shipped with phitodeep, offline.

    "tinyshakespeare" is 1,115,394 characters of plays, "names" 32,033 first names, one a line.
    Raises DataError where the file is missing or damaged. Licences: LICENSES.md beside this file.
    Source of both: the data of Karpathy's char-rnn and makemore.
    """
    import lzma

    path = Path(__file__).with_name(choose(name, SHIPPED, "text"))
    try:
        return lzma.decompress(path.read_bytes()).decode()
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path.name} is missing or damaged ({error}): reinstall phitodeep."
        ) from None


class CharTokenizer:
    """Each character of a text as a number from 0 on, in the characters' order."""

    def __init__(self, text: Iterable[str]) -> None:
        self.characters = "".join(sorted(set("".join(text))))
        if not self.characters:
            raise ArgumentError("CharTokenizer needs a text of at least one character.")
        self._numbers = {c: i for i, c in enumerate(self.characters)}

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def __repr__(self) -> str:
        return f"CharTokenizer({self.characters!r})"

    def encode(self, text: str) -> Array:
        """The text's tokens (T,), int64; a character that it does not know is refused."""
        try:
            return np.fromiter((self._numbers[c] for c in text), np.int64, len(text))
        except KeyError as error:
            raise ArgumentError(
                f"the tokenizer does not know {error}: its {self.vocab_size} characters are "
                f"{self.characters!r}."
            ) from None

    def decode(self, tokens: Array | int) -> str:
        """The text of tokens (T,), or of one; a number that is no token is refused."""
        numbers = np.atleast_1d(as_tokens(tokens, "tokens"))
        if numbers.ndim != 1:
            raise ShapeError(
                f"decode takes the tokens (T,) of one text, got shape {numbers.shape}: decode "
                "each row."
            )
        unknown = np.flatnonzero((numbers < 0) | (numbers >= self.vocab_size))
        if len(unknown):
            i = int(unknown[0])
            raise ArgumentError(
                f"tokens[{i}] is {numbers[i]}, but the tokenizer knows the tokens from 0 to "
                f"{self.vocab_size - 1}."
            )
        return "".join(self.characters[i] for i in numbers)


def windows(tokens: Array, length: int) -> tuple[Array, Array]:
    """X and y (N, length): all windows on tokens (T,), and the same one token later; no copies.

    N is T - length. Both are read-only views of the tokens; a training loop copies only the rows
    of its batch. A np.memmap of integers stays in its file: `train` reads the rows that it needs.
    """
    if not isinstance(tokens, np.memmap):
        tokens = as_tokens(tokens, "tokens")
    check_count(length, "length")
    if tokens.ndim != 1 or len(tokens) <= length:
        raise ArgumentError(f"windows of {length} need more tokens than that, got {tokens.shape}.")
    view = np.lib.stride_tricks.sliding_window_view(tokens, length, subok=True)
    return view[:-1], view[1:]
