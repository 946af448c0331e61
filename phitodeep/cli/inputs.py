"""Samples from .npy and .csv files, in the shape that a model takes."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np

from phitodeep.cli.app import FilePath
from phitodeep.core.files import readable
from phitodeep.core.types import Array, Shape, each
from phitodeep.errors import DataError, ShapeError
from phitodeep.model.model import Model

LONGEST = 40  # characters of a cell that a message shows
LARGEST = 1 << 30  # bytes of a CSV, whose rows take many times as much in memory


def read_inputs(path: Path) -> Array:
    """Return the array in an .npy file, which stays on disk, or the rows (N, columns) of a CSV."""
    if path.suffix not in (".npy", ".csv"):
        raise DataError(f"{path} must be an .npy or a .csv file.")
    return _read_npy(path) if path.suffix == ".npy" else _read_csv(path)


def sample_shapes(model: Model) -> dict[str, Shape]:
    """Return the shape of one sample of each input by name, or {} if the model knows none."""
    known = model.known_input()
    shapes = model._ins() or (() if known is None else (known,))
    return dict(zip(model.takes, shapes, strict=False))


def named_file(given: str) -> tuple[str, Path]:
    """Return the name of an input, or "", and its file."""
    name, _, path = given.partition("=")
    named = path and name.isidentifier() and not Path(given).exists()
    return (name if named else "", FilePath().convert(path if named else given, None, None))


def read_all(model: Model, files: Mapping[str, Path]) -> dict[str, Array]:
    """Return the samples in the files of a model's inputs, by name."""
    shapes = sample_shapes(model)
    tokens = dict(zip(model.takes, each(model.takes_tokens), strict=True))
    return {
        name: fitted(read_inputs(path), shapes.get(name), tokens[name], path.name)
        for name, path in files.items()
    }


def fitted(X: Array, shape: Shape | None, tokens: bool, name: str) -> Array:
    """Return X in the shape of an input, if that takes no more than a reshape."""
    if tokens and X.dtype.kind == "f":
        # a CSV does not distinguish 3 from 3.0; from 2**53 on, all floats are integers
        whole = ((X == np.floor(X)) & (np.abs(X) < 2**53)).all()
        X = X.astype(np.int64) if whole else X
    if shape is None:
        return X
    if X.shape == shape and shape != (1,):
        raise ShapeError(
            f"{name} has shape {shape}, the shape of one sample: a single sample must be an "
            f"array of shape {(1, *shape)}."
        )
    if X.ndim > 2:
        return X  # the model decides
    columns = X.shape[1] if X.ndim == 2 else 1
    if columns == math.prod(shape):
        return X.reshape(len(X), *shape)
    if len(shape) == 1 and X.ndim == 2:
        return X  # such as sequences of another length; the model decides
    raise ShapeError(
        f"{name} has {columns} {'number' if columns == 1 else 'numbers'} per row, but the model "
        f"takes samples of shape {shape}, which is {math.prod(shape)}. Rows must hold the inputs "
        "only, without labels or row numbers."
    )


def _read_npy(path: Path) -> Array:
    readable(path)
    try:
        X: Array = np.lib.format.open_memmap(path, mode="r")  # np.load reads other formats too
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        raise DataError(f"{path} is not an .npy file of numbers, or it is damaged.") from error
    if X.dtype.kind not in "biuf":
        raise DataError(f"{path} is not an .npy file of numbers: its dtype is {X.dtype}.")
    if X.ndim == 0:
        raise DataError(f"{path} holds a single number: an array (N, ...) of samples is needed.")
    if 0 in X.shape[1:]:  # such a file may promise any number of samples
        raise DataError(f"{path} has the shape {X.shape}: its samples hold no numbers.")
    return X


def _read_csv(path: Path) -> Array:
    """Return the numbers of a CSV; a first row without any number is a header."""
    try:
        with readable(path, LARGEST).open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            lines = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} as a CSV file: {error}.") from error
    header = lines[0][1] if lines and all(_number(cell) is None for cell in lines[0][1]) else []
    rows = lines[bool(header) :]
    if not rows:
        raise _fault(path, header, " has no row of numbers.")
    width = len(lines[0][1])
    for line, row in rows:
        if len(row) != width:
            wanted = f"expected as many columns as in the first row, {width}"
            raise _fault(path, row, f", row {line}: {wanted}, got {len(row)}.")
    X = np.array([[_number(cell) for cell in row] for _, row in rows], np.float64)
    for i, j in np.argwhere(~np.isfinite(X)):
        line, cell = rows[i][0], rows[i][1][j]
        name = f' ("{header[j]:.{LONGEST}}")' if header else ""
        given = repr(cell[:LONGEST]) if cell.strip() else "an empty cell"
        where = f", row {line}, column {j + 1}{name}"
        raise _fault(path, [cell], f"{where}: expected a number, got {given}.")
    return X


def _fault(path: Path, cells: Sequence[str], message: str) -> DataError:
    """Return an error with this message, unless another separator divides one of the cells."""
    for cell in cells:
        if found := re.search(r"[;\t]|(?<=\d) +(?=[-+.\d])", cell):
            wanted = f": the columns are separated by {found[0][0]!r}, but must be separated by "
            return DataError(f"{path}{wanted}commas, got {cell[:LONGEST]!r}.")
    return DataError(f"{path}{message}")


def _number(cell: str) -> float | None:
    """Return the number in a cell, or None; 1_0 is a name, although Python reads it as 10."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
