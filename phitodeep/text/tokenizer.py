"""Tokenizers: of single characters, and in the format of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.checks import as_tokens
from phitodeep.core.config import Configurable
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, extra


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


class HubTokenizer(Configurable):
    """Encodes text as the content of a tokenizer.json says, by the `tokenizers` library.

    json    the content of the file; truncation and padding in it are switched off

    `phitodeep.model.architectures.from_pretrained` creates it, and a model's file keeps it.
    """

    def __init__(self, json: str) -> None:
        if not isinstance(json, str):
            raise ArgumentTypeError(
                f"HubTokenizer takes the text of a tokenizer.json, got a {type(json).__name__}."
            )
        self.json = json
        with _refusing("the text is not a tokenizer.json"):
            self._tokenizer = _library().Tokenizer.from_str(json)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including special ones."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    def __repr__(self) -> str:
        return f"HubTokenizer(<{self.vocab_size} tokens>)"

    def encode(self, text: str, *, special: bool = True) -> Array:
        """Return the tokens (T,), int64, of a text.

        special    True: put the tokenizer's special tokens around the text, such as the first token
                   of Llama's
        """
        if not isinstance(text, str):
            raise ArgumentTypeError(f"encode takes a text, got {text!r}.")
        with _refusing("the text cannot be encoded"):
            tokens = self._tokenizer.encode(text, add_special_tokens=special).ids
        return np.array(tokens, np.int64)

    def decode(self, tokens: Array | int, *, special: bool = False) -> str:
        """Return the text of tokens (T,) or of a single token.

        Tokens that the vocabulary lacks have no text: the embedding of a model may have more rows.

        special    True: include the text of special tokens
        """
        ids = one_text(tokens, 2**32 - 1).tolist()
        with _refusing("the tokens cannot be decoded"):
            text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        return text


def _library() -> Any:
    with extra("hub", "tokenizers", "tokenizer.json"):
        import tokenizers
    return tokenizers


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn an error of the library into an ArgumentError.

    The library raises Exception itself, not a class derived from it. Where a damaged file makes its
    code panic, it raises a class that cannot be imported, and that is not derived from Exception.
    All other errors pass.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ArgumentError(f"{what}: {error}.") from error
        raise
