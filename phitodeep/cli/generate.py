"""`phitodeep generate`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from phitodeep.cli.app import model_file, number
from phitodeep.cli.inputs import named_file, read_all
from phitodeep.errors import ArgumentError, printable
from phitodeep.loss.heads import by_name
from phitodeep.model.sequential import load

BEFORE = 16  # tokens before a new one that are decoded with it
INCOMPLETE = "\ufffd"  # stands for the first bytes of a character


@click.command()
@model_file
@click.option("--prompt", "-p", metavar="TEXT", required=True, help="The beginning of the text.")
@number("--max-new-tokens", "-n", "count", default=200, help="Number of tokens to add.")
@number(
    "--temperature",
    kind=float,
    default=1.0,
    help="Below 1, likely tokens become likelier; 0 always takes the likeliest.",
)
@number("--top-k", least=1, help="Draw from the K likeliest tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Draw from the fewest tokens whose probability reaches P.",
)
@number(
    "--seed",
    help="The same seed gives the same text, as long as the model and options are the same.",
)
@click.option(
    "--given",
    metavar="NAME=FILE",
    multiple=True,
    help="Another input of a network: an .npy or .csv file with one sample.",
)
def generate(file: Path, prompt: str, count: int, given: tuple[str, ...], **options: Any) -> None:
    """Continue a text with a language model.

    The text is printed token by token. If FILE holds no tokenizer, the prompt is token numbers,
    such as "3 1 4".

    \b
    Example:
      phitodeep generate gpt.safetensors --prompt "ROMEO:" --temperature 0.8 --seed 1
    """
    model = load(file)
    if not model.takes_tokens:
        raise ArgumentError(
            f"generate needs a model that reads tokens and begins with an Embedding; {file} "
            f"begins with {model.layers[0]!r}."
        )
    methods = (getattr(model.tokenizer, name, None) for name in ("encode", "decode"))
    if model.tokenizer is not None and not all(map(callable, methods)):
        raise ArgumentError(
            f"the tokenizer in {file} is {model.tokenizer!r:.80}, but must have the methods "
            "encode and decode: set model.tokenizer to such an object before model.save."
        )
    if model.tokenizer is None:
        tokens, decode = _numbers(prompt), lambda tokens: "".join(f"{n} " for n in tokens)
    else:
        tokens, decode = model.tokenizer.encode(prompt), model.tokenizer.decode
    files = by_name(dict(map(named_file, given)), model.takes, "--given")
    options["given"] = read_all(model, files)
    stream = model.stream(tokens, count, **options)  # refuses what it cannot use
    for piece in _pieces(itertools.chain(tokens, stream), decode):
        click.echo(printable(piece), nl=False)
    click.echo()


def _pieces(tokens: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """Yield the text of tokens, piece by piece.

    The text of a token may depend on those before it, such as the space between two words, and a
    character may consist of several tokens.
    """
    last: list[int] = []
    shown = ""  # the text of `last` so far
    for token in tokens:
        last.append(token)
        text = decode(last)
        if not text.endswith(INCOMPLETE):
            yield text[len(shown) :]
            last = last[-BEFORE:]
            shown = decode(last)
    yield decode(last)[len(shown) :]


def _numbers(prompt: str) -> list[int]:
    """Return the token numbers in a prompt."""
    parts = re.split(r"[\s,]+", prompt.strip())
    wrong = next((part for part in parts if not re.fullmatch(r"[0-9]+", part)), None)
    if wrong is not None:
        raise ArgumentError(
            "the file holds no tokenizer, so the prompt must be token numbers, such as "
            f'--prompt "3 1 4", got {wrong!r}. Remedy: set model.tokenizer before model.save.'
        )
    return [int(part) for part in parts]
