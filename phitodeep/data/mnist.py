"""MNIST, 28 x 28 greyscale images of handwritten digits: the included subset, or all of it."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, MissingExtraError

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

SHIPPED = Path(__file__).with_name("mnist.xz")  # written by tools/pack_mnist.py
RANKS = (3, 1)  # the ranks of the arrays of images and labels


def load_mnist(
    which: Literal["small", "full"] = "small", folder: str | os.PathLike[str] | None = None
) -> tuple[Images, Labels, Images, Labels]:
    """Return `X_train, y_train, X_test, y_test`: handwritten digits and their labels.

    Shapes: X_train (N, 28, 28) and X_test (M, 28, 28), float32 from 0 (paper) to 1 (ink);
    y_train (N,) and y_test (M,), int64 from 0 to 9. All are new arrays, in MNIST's order.

    "small" comes with phitodeep: the first N = 10,000 and M = 1,000 digits of MNIST.
    "full" is all of MNIST, N = 60,000 and M = 10,000, from Hugging Face `datasets`, which
    downloads it once. With `folder`, the four IDX files in that folder are read instead, plain or
    gzipped (`train-images-idx3-ubyte`, `t10k-labels.idx1-ubyte.gz`, ...), without a network.

    Raises DataError if a file is missing or damaged or the download fails, ArgumentError for any
    other `which`, and MissingExtraError if "full" needs `datasets` and it is not installed.

    Source: LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to
    document recognition", Proc. IEEE 86(11). Licence: LICENSES.md next to this file.
    """
    if which not in ("small", "full"):
        raise ArgumentError(
            f'load_mnist takes which="small" or "full", got {which!r}; pass a path as folder=.'
        )
    if folder is not None:
        arrays = _read_folder(folder)
    else:
        arrays = _read_shipped() if which == "small" else _read_hub()
    X_train, y_train, X_test, y_test = arrays
    return _unit(X_train), y_train.astype(np.int64), _unit(X_test), y_test.astype(np.int64)


def _unit(images: Bytes) -> Images:
    return np.divide(images, 255, dtype=np.float32)


def _read_shipped() -> list[Bytes]:
    import lzma  # here, so that a Python built without it can still do everything else

    with _naming(SHIPPED, "Reinstall: pip install --force-reinstall phitodeep", lzma.LZMAError):
        return _checked(_unpack(lzma.decompress(SHIPPED.read_bytes()), *RANKS, *RANKS))


def _read_folder(folder: str | os.PathLike[str]) -> list[Bytes]:
    if not isinstance(folder, str | os.PathLike):
        raise ArgumentTypeError(f"load_mnist takes a path as folder, got {folder!r}.")
    root = Path(folder).expanduser()
    arrays: list[Bytes] = []
    for split in ("train", "t10k"):
        paths = [_find(root, f"{split}-{kind}") for kind in ("images.idx3", "labels.idx1")]
        pair: list[Bytes] = []
        for path, rank in zip(paths, RANKS, strict=True):
            with _naming(path, "Replace it with a fresh download"):
                data = path.read_bytes()
                if data.startswith(b"\x1f\x8b"):  # browsers may unzip it and keep the name
                    data = _unzipped(data)
                pair += _unpack(data, rank)
        with _naming(f"{paths[0]} and {paths[1].name}", "Replace them with a pair from one source"):
            arrays += _checked(pair)
    return arrays


def _unzipped(data: bytes) -> bytes:
    """Return what gzipped data holds, unless that is far more than MNIST would be."""
    most = 100 * len(data) + (1 << 16)
    with gzip.open(io.BytesIO(data)) as stream:
        found = stream.read(most + 1)
    if len(found) > most:
        raise DataError(f"{len(data)} bytes become more than {most} when they are unzipped")
    return found


def _read_hub() -> list[Bytes]:
    arrays: list[Bytes] = []
    try:
        from datasets import load_dataset

        for split in ("train", "test"):
            rows = load_dataset("ylecun/mnist", split=split).with_format("numpy")[:]
            arrays += rows["image"], rows["label"]
        return _checked(arrays)
    except ImportError as error:  # Pillow's too, on the first image
        raise MissingExtraError.of(
            "datasets (with Pillow)", "data", 'load_mnist("full")'
        ) from error
    except Exception as error:  # datasets uses many libraries, whose errors share no base class
        raise DataError(
            f"MNIST could not be loaded from Hugging Face ({type(error).__name__}: {error}). "
            "Without a network connection, use load_mnist(folder=...) and MNIST's four IDX files."
        ) from error


def _find(root: Path, name: str) -> Path:
    names = [f"{name.replace('.', dot)}-ubyte{gz}" for gz in ("", ".gz") for dot in "-."]
    for path in (root / n for n in names):
        if path.is_file():
            return path
    raise DataError(
        f"{root} {'has no file' if root.is_dir() else 'is not a folder with'} "
        f"{' or '.join(names)}: load_mnist needs the folder that holds MNIST's four IDX files."
    )


def _unpack(data: bytes, *ranks: int) -> list[Bytes]:
    """Return the consecutive IDX arrays of these ranks in `data`, which holds nothing else.

    IDX: bytes 0, 0, 8 (for unsigned bytes), rank; the shape as big-endian 32-bit integers; items.
    """
    arrays: list[Bytes] = []
    end = 0
    for rank in ranks:
        start, items = end, end + 4 + 4 * rank
        if len(data) < items:
            raise DataError(f"truncated: {len(data)} bytes are too few for its header")
        magic, *shape = struct.unpack_from(f">{1 + rank}I", data, start)
        if magic != 2048 + rank:
            raise DataError(
                f"magic number {magic}, expected {2048 + rank} (images 2051, labels 2049)"
            )
        end = items + math.prod(shape)
        if len(data) < end:
            raise DataError(f"truncated: {len(data)} of {end} bytes for its shape {(*shape,)}")
        arrays.append(np.frombuffer(data[items:end], np.uint8).reshape(shape))
    if len(data) > end:
        raise DataError(f"{len(data) - end} bytes too many for its shape {arrays[-1].shape}")
    return arrays


def _checked(arrays: list[Bytes]) -> list[Bytes]:
    """Check that the arrays are images, labels, images, labels that match; return them."""
    for images, labels in zip(arrays[::2], arrays[1::2], strict=True):
        if images.shape[1:] != (28, 28) or not len(images):
            raise DataError(f"images of shape {images.shape}, expected (N, 28, 28) with N > 0")
        if labels.shape != (len(images),):
            raise DataError(f"{len(images)} images but labels of shape {labels.shape}")
        if labels.max() > 9:
            raise DataError(f"label {labels.max()}, digits go from 0 to 9")
    return arrays


@contextmanager
def _naming(path: Path | str, remedy: str, *also: type[Exception]) -> Iterator[None]:
    """Turn errors while reading `path` into a DataError that names it and the remedy."""
    expected: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, zlib.error, *also)
    try:
        yield
    except expected as error:  # or a DataError, which is both an OSError and a ValueError
        raise DataError(f"{path}: {error}. {remedy}.") from error
