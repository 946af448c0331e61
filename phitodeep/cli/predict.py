"""`phitodeep predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any

import click
import numpy as np

from phitodeep.cli.app import model_file, output_file, refuse_own
from phitodeep.cli.inputs import named_file, read_all, sample_shapes
from phitodeep.core.files import atomic_write
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.loss.heads import Heads
from phitodeep.model.model import Model
from phitodeep.model.sequential import load
from phitodeep.training.inputs import in_order


@click.command()
@model_file
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@output_file("OUT.npy|.csv", "Write the predictions to a file instead of printing them.")
@click.option(
    "--classes",
    is_flag=True,
    help="Print the number of the class with the highest score (from 0) instead of the scores.",
)
def predict(file: Path, inputs: tuple[str, ...], output: Path | None, classes: bool) -> None:
    """Print a model's predictions, one per row.

    FILE holds the model. INPUT is an .npy file with an array (N, ...), or a .csv file with one
    sample per row, with or without a header. Rows of numbers are reshaped to the model's input,
    such as 784 to (28, 28). Several inputs are named: image=images.npy words=words.csv. Several
    outputs are printed side by side, and written to one file each: OUT-name.npy.

    \b
    Example:
      phitodeep predict digits.safetensors digits-images.npy --classes
    """
    if output is not None and output.suffix not in (".npy", ".csv"):
        raise click.BadParameter("the name must end in .npy or .csv", param_hint="--output")
    files = [named_file(given) for given in inputs]
    model = load(file)
    targets = {}
    if output is not None:
        several = model.outputs > 1
        for name in model.returns:
            targets[name] = output.with_stem(f"{output.stem}-{name}") if several else output
            refuse_own(targets[name], file, *(path for _, path in files))
    P = _predictions(model, files)
    if classes:
        P = {name: _classes(A, model, name) for name, A in P.items()}
    if output is None:
        _write_csv(sys.stdout, P)
        return
    for name, own in targets.items():
        A = P[name]
        with atomic_write(own) as stream:
            np.save(stream, A) if own.suffix == ".npy" else _write_csv(stream, {name: A})
        click.echo(f"Wrote {own}: shape {A.shape}, {A.dtype}.", err=True)


def _predictions(model: Model, files: list[tuple[str, Path]]) -> dict[str, Array]:
    """Return the predictions by output; an error about a shape says what the model takes."""
    alone = model.takes[0] if len(files) == 1 else ""
    given = {name or alone or str(path): path for name, path in files}
    if len(given) < len(files):
        raise ArgumentError(f"{', '.join(name for name, _ in files)}: an input is given twice.")
    paths = in_order(given, model.takes, f"INPUT ({' '.join(f'{n}=FILE' for n in model.takes)})")
    shapes, X = sample_shapes(model), read_all(model, dict(zip(model.takes, paths, strict=True)))
    try:
        P: Any = model.predict(X if model.inputs > 1 else X[model.takes[0]])
    except ShapeError as error:
        for name, path in zip(model.takes, paths, strict=True):
            if shapes.get(name) not in (None, X[name].shape[1:]):
                raise ShapeError(
                    f"{path.name} has samples of shape {X[name].shape[1:]}, but the model takes "
                    f"{shapes[name]}: {error}"
                ) from error
        raise
    return P if isinstance(P, dict) else {model.returns[0]: P}


def _classes(P: Array, model: Model, name: str) -> Array:
    """Return the class of each prediction: a single score is the score of class 1.

    An output of several whose loss knows no classes stays as it is.
    """
    loss = model.loss.losses.get(name) if isinstance(model.loss, Heads) else model.loss
    if loss is None or (model.outputs > 1 and loss.classes(P.shape) is None):
        return P
    if P.shape[-1] == 1:
        return (P[..., 0] > loss.threshold).astype(np.int64)
    return P.argmax(axis=-1)


def _write_csv(stream: IO[str] | IO[bytes], P: dict[str, Array]) -> None:
    """Write one row per sample, with as many digits as tell two float32 or float64 apart.

    Several outputs are side by side, below their names.
    """
    columns, formats, names = [], list[str](), list[str]()
    for name, A in P.items():
        columns.append(A.reshape(len(A), -1))
        width = columns[-1].shape[1]
        formats += ["%.9g" if A.dtype == np.float32 else "%.17g"] * width
        names += [name] if width == 1 else [f"{name} {k}" for k in range(width)]
    header = ",".join(names) if len(P) > 1 else ""
    np.savetxt(stream, np.hstack(columns), formats, ",", header=header, comments="")
