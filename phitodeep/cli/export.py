"""`phitodeep export`."""

from __future__ import annotations

import re
import sys
from keyword import iskeyword
from pathlib import Path

import click

from phitodeep.cli.app import FilePath, model_file, refuse_overwriting, refuse_own
from phitodeep.cli.inputs import sample_shape
from phitodeep.errors import ArgumentError, NotBuiltError
from phitodeep.sequential import Sequential, load

EXPORTS = {  # format -> the method that writes it, and the endings of its files
    "numpy": ("export_numpy", (".py", ".npz")),
}


@click.command()
@model_file
@click.option("--to", "form", type=click.Choice([*EXPORTS]), required=True, help="The format.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=FilePath(),
    help="The file to write; by default FILE with the ending .py.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def export(file: Path, form: str, output: Path | None, force: bool) -> None:
    """Write a model in another format.

    \b
    Formats:
      numpy    a Python file that needs nothing but NumPy, and its weights (.npz)

    \b
    Example:
      phitodeep export digits.safetensors --to numpy --output net.py
    """
    method, (first, *others) = EXPORTS[form]
    target = _default(file, first) if output is None else output
    if not _is_module(target):
        raise ArgumentError(
            f"--output {target}: the file is a Python module, so its name must be an identifier "
            "with the ending .py, which no module of Python or NumPy has: try --output net.py."
        )
    written = [target, *(_ending(target, other) for other in others)]
    for path in written:
        refuse_own(path, file)
        refuse_overwriting(path, force)
    getattr(_built(file), method)(target)
    for path in written:
        click.echo(f"Wrote {path}, {path.stat().st_size:,} bytes.")


def _built(file: Path) -> Sequential:
    """Return the model, built for the input shape that the file or its settings determine."""
    model = load(file)
    shape = sample_shape(model)
    if shape is None:
        raise NotBuiltError(
            f"{file} does not determine the model's input shape, which the export needs: train the "
            "model, or call model.build(input_shape), before model.save."
        )
    if model.input_shape is None:
        model.build(shape)
    return model


def _default(file: Path, suffix: str) -> Path:
    """Return the name of the file with this ending, changed where it could not be imported."""
    name = file.with_name(re.sub(r"\W", "_", file.stem) + suffix)
    return name if _is_module(name) else name.with_name(f"model_{name.name}")


def _is_module(path: Path) -> bool:
    """Return whether Python can import a file of this name, and it hides no other module."""
    name = path.stem
    taken = iskeyword(name) or name in {"numpy", *sys.stdlib_module_names}
    return path.suffix == ".py" and name.isidentifier() and not taken


def _ending(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}{suffix}")
