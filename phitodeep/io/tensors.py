"""Files of named arrays in the safetensors format, checked before anything is read into memory.

The format is a header in JSON, followed by the bytes of the arrays. The header gives the type, the
shape and the place of each array, and short texts ("metadata"); the `safetensors` library reads and
writes it. It holds no code.
Source: https://github.com/huggingface/safetensors (format).
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.files import atomic_write, readable
from phitodeep.core.types import Array, DType, Shape
from phitodeep.errors import ArgumentTypeError, DataError, MissingExtraError

DTYPES = {"BOOL": "bool"} | {  # the types that NumPy and the format have in common
    f"{letter}{bits}": f"{kind}{bits}"
    for letter, kind, sizes in (("F", "float", (16, 32, 64)), ("I", "int", (8, 16, 32, 64)),
                                ("U", "uint", (8, 16, 32, 64)))
    for bits in sizes
}  # fmt: skip

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # the first two bytes of a float32


class Entry(NamedTuple):
    """What the header says about an array."""

    shape: Shape
    dtype: np.dtype[Any]


class Tensors:
    """An open file of arrays: what its header says, and the arrays when they are asked for."""

    def __init__(self, path: Path, file: Any, dtypes: Mapping[str, DType] = DTYPES) -> None:
        self.path, self._file, self._dtypes = path, file, dtypes
        self.metadata: dict[str, str] = file.metadata() or {}
        self.entries = {name: self._entry(name) for name in file.keys()}  # noqa: SIM118

    def _entry(self, name: str) -> Entry:
        header = self._file.get_slice(name)
        dtype = header.get_dtype()
        if dtype not in self._dtypes:
            raise DataError(
                f"{self.path}: the array {name!r} has the type {dtype}, which NumPy does not have; "
                f"supported: {', '.join(self._dtypes)}."
            )
        entry = Entry(tuple(header.get_shape()), np.dtype(self._dtypes[dtype]))
        # Sizes that are multiplied by 0 do not make the file larger, but NumPy limits them too.
        axes = [n for n in entry.shape if n]
        if len(entry.shape) > 64 or math.prod(axes) * entry.dtype.itemsize > sys.maxsize:
            raise DataError(
                f"{self.path} is damaged: the array {name!r} has the shape {entry.shape}."
            )
        return entry

    def read(self, name: str) -> Array:
        """Return the array with this name, in memory of its own."""
        return np.array(self._file.get_tensor(name))

    def mapped(self) -> dict[str, Array]:
        """Return all arrays as parts of the file, which are read into memory when they are used.

        They may be written to: the process then has its own copy of what it wrote, and the file
        stays as it is. It must not be changed while they exist. Arrays of bfloat16 have the dtype
        `BFLOAT16`. An array that is not aligned in the file is copied.
        """
        with self.path.open("rb") as stream:
            whole = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        begin = 8 + int.from_bytes(whole[:8], "little")
        try:
            header = json.loads(whole[8:begin])  # which the library has accepted
            places = {name: header[name]["data_offsets"] for name in self.entries}
            found = {
                name: np.ndarray(
                    entry.shape, entry.dtype.newbyteorder("<"), whole, begin + places[name][0]
                )
                for name, entry in self.entries.items()
            }
        except (ValueError, TypeError, LookupError) as error:  # it has changed since
            raise DataError(f"{self.path} is damaged: {error}.") from error
        return {name: a if a.flags.aligned else a.copy() for name, a in found.items()}


@contextmanager
def open_tensors(path: str | os.PathLike[str], *, bfloat16: bool = False) -> Iterator[Tensors]:
    """Open a file of arrays; refuse one that is missing, damaged or not of this format.

    bfloat16    True: arrays of this type are accepted, for `Tensors.mapped`
    """
    safetensors = _library("reading")
    target = readable(path)
    try:
        opened = safetensors.safe_open(os.fspath(target), framework="numpy")
    except safetensors.SafetensorError as error:
        raise DataError(
            f"{target} is not a safetensors file, such as models are saved in, or it is damaged."
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {target}: {error.strerror or error}.") from error
    with opened as file:
        yield Tensors(target, file, {**DTYPES, "BF16": BFLOAT16} if bfloat16 else DTYPES)


def write_tensors(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write arrays and texts by name, completely or not at all."""
    texts = dict(metadata) or None  # version 0.8 writes {} without arrays as a damaged file
    content = _library("writing").numpy.save(writable(arrays), texts)
    with atomic_write(path) as stream:
        stream.write(content)


def writable(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays as they can be written; refuse dtypes that the format does not have."""
    known = {np.dtype(name) for name in DTYPES.values()}
    for name, a in arrays.items():
        if a.dtype.newbyteorder("=") not in known:
            raise ArgumentTypeError(
                f"{name!r} is an array of {a.dtype}, which cannot be saved: use one of "
                f"{', '.join(DTYPES.values())}."
            )
    # The library writes the bytes as they lie in memory, so they must be in C order and this
    # machine's byte order. (`ascontiguousarray` would give an array of rank 0 an axis.)
    return {
        name: np.asarray(a, dtype=a.dtype.newbyteorder("="), order="C")
        for name, a in arrays.items()
    }


def _library(purpose: str) -> Any:
    """Import safetensors, which is installed with phitodeep everywhere except in the browser."""
    try:
        import safetensors.numpy
    except ImportError:
        raise MissingExtraError(
            f"{purpose} model files needs safetensors, which does not run in the browser: "
            "np.savez(file, **model.get_weights()) keeps the weights, and "
            "model.set_weights(np.load(file)) restores them."
        ) from None
    return safetensors
