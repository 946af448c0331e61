"""`phitodeep predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click
import numpy as np

from phitodeep.cli.app import FilePath, model_file, refuse_own
from phitodeep.cli.inputs import fitted, read_inputs, sample_shape
from phitodeep.core.files import atomic_write
from phitodeep.core.types import Array
from phitodeep.errors import ShapeError
from phitodeep.model.sequential import Sequential, load


@click.command()
@model_file
@click.argument("input", type=FilePath())
@click.option(
    "--output",
    "-o",
    metavar="OUT.npy|.csv",
    type=FilePath(),
    help="Write the predictions to a file instead of printing them.",
)
@click.option(
    "--classes",
    is_flag=True,
    help="Print the number of the class with the highest score (from 0) instead of the scores.",
)
def predict(file: Path, input: Path, output: Path | None, classes: bool) -> None:
    """Print a model's predictions, one per row.

    FILE holds the model. INPUT is an .npy file with an array (N, ...), or a .csv file with one
    sample per row, with or without a header. Rows of numbers are reshaped to the model's input,
    such as 784 to (28, 28).

    \b
    Example:
      phitodeep predict digits.safetensors digits-images.npy --classes
    """
    if output is not None and output.suffix not in (".npy", ".csv"):
        raise click.BadParameter("the name must end in .npy or .csv", param_hint="--output")
    if output is not None:
        refuse_own(output, file, input)
    model = load(file)
    P = _predictions(model, fitted(read_inputs(input), model, input.name), input.name)
    if classes:
        P = _classes(P, model)
    if output is None:
        _write_csv(sys.stdout, P)
        return
    with atomic_write(output) as stream:
        if output.suffix == ".npy":
            np.save(stream, P)
        else:
            _write_csv(stream, P)
    click.echo(f"Wrote {output}: shape {P.shape}, {P.dtype}.", err=True)


def _predictions(model: Sequential, X: Array, name: str) -> Array:
    """Return the predictions; an error about the shape of X says what the model takes."""
    try:
        return model.predict(X)
    except ShapeError as error:
        shape = sample_shape(model)
        if shape in (None, X.shape[1:]):
            raise
        raise ShapeError(
            f"{name} has samples of shape {X.shape[1:]}, but the model takes {shape}: {error}"
        ) from error


def _classes(P: Array, model: Sequential) -> Array:
    """Return the class of each prediction: a single score is the score of class 1."""
    if P.shape[-1] == 1:
        return (P[..., 0] > model.loss.threshold).astype(np.int64)
    return P.argmax(axis=-1)


def _write_csv(stream: IO[str] | IO[bytes], P: Array) -> None:
    """Write one row per sample, with as many digits as tell two float32 or float64 apart."""
    digits = "%d" if P.dtype.kind != "f" else "%.9g" if P.dtype == np.float32 else "%.17g"
    np.savetxt(stream, P.reshape(len(P), -1), fmt=digits, delimiter=",")
