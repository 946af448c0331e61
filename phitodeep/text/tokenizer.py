"""A tokenizer of single characters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from phitodeep.checks import as_tokens
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.types import Array


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
