"""A tokenizer in the format of the Hugging Face hub."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.checks import as_tokens
from phitodeep.config import Configurable
from phitodeep.errors import ArgumentError, ArgumentTypeError, MissingExtraError, ShapeError
from phitodeep.types import Array


class HubTokenizer(Configurable):
    """Encodes text as the content of a tokenizer.json says, by the `tokenizers` library.

    json    the content of the file; truncation and padding in it are switched off

    `phitodeep.models.from_pretrained` creates it, and a model's file keeps it.
    """

    def __init__(self, json: str) -> None:
        if not isinstance(json, str):
            raise ArgumentTypeError(f"HubTokenizer takes the text of a tokenizer.json, got {json!r}.")
        self.json = json
        self._tokenizer = _parsed(json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        """The number of tokens, with the special ones."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    def __repr__(self) -> str:
        return f"HubTokenizer(<{self.vocab_size} tokens>)"

    def encode(self, text: str, *, special: bool = True) -> Array:
        """Return the tokens (T,), int64, of a text.

        special    True: with the special tokens that the tokenizer puts around a text, such as the
                   first token of Llama's
        """
        if not isinstance(text, str):
            raise ArgumentTypeError(f"encode takes a text, got {text!r}.")
        return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, np.int64)

    def decode(self, tokens: Array | int, *, special: bool = False) -> str:
        """Return the text of tokens (T,) or of a single token.

        Tokens that the vocabulary lacks have no text: a model's embedding may have more rows.

        special    True: with the text of special tokens
        """
        tokens = np.atleast_1d(as_tokens(tokens, "tokens"))
        if tokens.ndim != 1:
            raise ShapeError(
                f"decode takes the tokens (T,) of one text, got shape {tokens.shape}: decode "
                "each row."
            )
        wrong = np.flatnonzero((tokens < 0) | (tokens >= 1 << 32))
        if len(wrong):
            i = int(wrong[0])
            raise ArgumentError(f"tokens[{i}] is {tokens[i]}, which no tokenizer has.")
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=not special)
        return text


def _parsed(json: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError.of("tokenizers", "hub", "tokenizer.json") from None
    try:
        return tokenizers.Tokenizer.from_str(json)
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise ArgumentError(f"the text is not a tokenizer.json: {error}.") from error
