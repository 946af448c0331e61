"""`phitodeep derive`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from phitodeep import testing
from phitodeep.cli.app import Failure, output_file


@click.command()
@click.argument("formula")
@click.argument("given", nargs=-1, metavar="NAME=SIZES|NUMBER...")
@click.option("--name", default="Derived", show_default=True, help="Name of the class.")
@output_file("FILE.py", "Write the class to a new file instead of the terminal.")
def derive(formula: str, given: tuple[str, ...], name: str, output: Path | None) -> None:
    """Derive a layer's backward pass, or a loss, from a formula.

    The class is checked, and printed or written as source. FORMULA computes Y with NumPy;
    statements stand on lines of their own or between semicolons. After it come the shapes of
    X (samples first) and of the parameters; numbers with a point are settings. Give every axis a
    size of its own: the sizes say which axes belong together.

    The formula of a loss computes L from predictions P and targets T, which have one shape;
    T=labels stands for rows that are made of labels.

    \b
    Example:
      phitodeep derive "Y = X * sigmoid(beta * X / k)" X=4,5 beta=5 k=2.0 --name Swish
      phitodeep derive "L = ((P - T) ** 2).sum(axis=-1)" P=4,5 T=4,5 --name SquaredLength
    """
    found = testing.derive(formula, name=name, **dict(map(_pair, given)))
    if output is None:
        click.echo(str(found), nl=False)
    else:
        click.echo(f"wrote {found.write(output)}")


def _pair(text: str) -> tuple[str, Any]:
    """Read X=4,5 as a shape, and eps=1e-5 as a number."""
    name, _, value = text.partition("=")
    if text == "T=labels":
        return name, value
    with suppress(ValueError):
        return name, tuple([int(size) for size in value.removesuffix(",").split(",")])
    with suppress(ValueError):
        return name, float(value)
    raise Failure(f"{text!r} must be a shape or a number, as in X=4,5 or eps=1e-5.")
