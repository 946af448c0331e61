"""A tokenizer of single characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from phitodeep.core.checks import as_tokens
from phitodeep.core.config import Configurable
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError


class CharTokenizer(Configurable):
    """Encodes each character of a text as an integer from 0, in sorted order of the characters.

    `model.tokenizer = CharTokenizer(text)` saves the tokenizer with the model.
    """

    kept_as: ClassVar = {"text": "characters"}  # which make the same tokenizer again

    def __init__(self, text: Iterable[str]) -> None:
        texts = list(text) if isinstance(text, Iterable) else [text]
        if not all(isinstance(part, str) for part in texts):
            raise ArgumentTypeError(f"CharTokenizer takes a text or several, got {text!r}.")
        self.characters = "".join(sorted(set("".join(texts))))
        if not self.characters:
            raise ArgumentError("CharTokenizer needs a text of at least one character.")
        self._tokens = {c: i for i, c in enumerate(self.characters)}

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def __repr__(self) -> str:
        return f"CharTokenizer({self.characters!r})"

    def encode(self, text: str) -> Array:
        """Return the tokens (T,), int64, of a text; refuse an unknown character."""
        try:
            return np.fromiter((self._tokens[c] for c in text), np.int64, len(text))
        except KeyError as error:
            raise ArgumentError(
                f"the tokenizer has no character {error}: its {self.vocab_size} characters are "
                f"{self.characters!r}."
            ) from None

    def decode(self, tokens: Array | int) -> str:
        """Return the text of tokens (T,) or of a single token; refuse values out of range."""
        return "".join(self.characters[i] for i in one_text(tokens, self.vocab_size - 1))


def one_text(tokens: Array | int, most: int) -> Array:
    """Return the tokens of one text as an array (T,); refuse values that are not in 0 ... most."""
    found = np.atleast_1d(as_tokens(tokens, "tokens"))
    if found.ndim != 1:
        raise ShapeError(
            f"decode takes the tokens (T,) of one text, got shape {found.shape}: decode each row."
        )
    unknown = np.flatnonzero((found < 0) | (found > most))
    if len(unknown):
        i = int(unknown[0])
        raise ArgumentError(f"tokens[{i}] is {found[i]}, but tokens go from 0 to {most} here.")
    return found
