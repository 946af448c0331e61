"""What goes into a model: arrays, files too large for memory, and streams of batches.

Whatever it is, it is checked against the model and its loss and cast once (`admit`): arrays
before training begins, the rest batch by batch, so that it is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from phitodeep.checks import (
    as_mask,
)
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, locate
from phitodeep.layers.containers import Chain
from phitodeep.layers.frame import Buffered, Frame
from phitodeep.loss import Loss
from phitodeep.training.inputs import Data, validate
from phitodeep.types import Array, Shape


class Source:
    """Something that gives the batches of an epoch, once or again.

    count     how many samples; None until an epoch has counted them
    steps     how many batches of `size` samples; None until an epoch has counted them
    sample    the shape of one sample
    """

    count: int | None
    sample: Shape
    once = False  # whether it can be read only once

    def steps(self, size: int | None) -> int | None:
        assert self.count is not None
        return -(-self.count // (size or self.count))

    def batches(
        self, size: int | None, rng: np.random.Generator | None = None, into: Buffered | None = None
    ) -> Iterator[Data]:
        """All samples, `size` at a time or all at once; in an order by rng, or their own.

        With `into`, a batch may lie in memory that the next one writes again.
        """
        raise NotImplementedError

    def split(self, kept: int) -> tuple[Source, Source]:
        """The first `kept` samples, and the others."""
        raise NotImplementedError


class Arrays(Source):
    """Samples in memory."""

    def __init__(self, data: Data) -> None:
        self.data, self.count, self.sample = data, len(data.X), data.X.shape[1:]

    def batches(
        self, size: int | None, rng: np.random.Generator | None = None, into: Buffered | None = None
    ) -> Iterator[Data]:
        n = len(self.data.X)
        if size is None or size >= n:
            yield self.data  # all samples: their order has no effect
            return
        order = None if rng is None else rng.permutation(n)
        for start in range(0, n, size):
            if order is None:
                yield self.data.part(slice(start, start + size))
            else:
                yield self.data.take(order[start : start + size], into or Memory())

    def split(self, kept: int) -> tuple[Source, Source]:
        parts = slice(kept), slice(kept, len(self.data.X))
        return Arrays(self.data.part(parts[0])), Arrays(self.data.part(parts[1]))


class Memory(Buffered):
    """Memory of the current batch, which the next one writes again."""

    buffer = Buffered._reused

    def __init__(self) -> None:
        self._frame = Frame()


class Table(Source):
    """Samples that stay where they are, such as in a file: each batch reads its rows."""

    def __init__(
        self,
        read: Callable[[Array], dict[str, Any]],
        rows: Array,
        as_data: Callable[..., Data],
    ) -> None:
        self.read, self.rows, self.as_data, self.count = read, rows, as_data, len(rows)
        if not self.count:
            raise ShapeError("the data has no samples.")
        self.sample = np.shape(read(rows[:1])["X"])[1:]

    def batches(
        self, size: int | None, rng: np.random.Generator | None = None, into: Buffered | None = None
    ) -> Iterator[Data]:
        if size is None:
            raise ArgumentError("data that stays in its file needs a batch_size.")
        order = self.rows if rng is None else rng.permutation(self.rows)
        for i, start in enumerate(range(0, len(order), size), 1):
            try:
                batch = self.as_data(**self.read(order[start : start + size]))
            except Exception as error:
                locate(error, f"batch {i}")
                raise
            yield batch

    def split(self, kept: int) -> tuple[Source, Source]:
        first, second = self.rows[:kept], self.rows[kept:]
        return Table(self.read, first, self.as_data), Table(self.read, second, self.as_data)


class Stream(Source):
    """Batches as somebody else gives them; `open(size)` begins an epoch of them."""

    def __init__(
        self,
        open: Callable[[int | None], Iterable[Any]],
        as_data: Callable[..., Data],
        columns: Sequence[str] | None,
        *,
        once: bool = False,
        steps: int | None = None,
    ) -> None:
        self.open, self.as_data, self.columns, self.once = open, as_data, columns, once
        self.count: int | None = None
        self._steps = steps
        self._begun: Iterable[Any] | None = None

    def begin(self, size: int | None) -> None:
        """Look at the first batch, which the next epoch will give first."""
        items = iter(self.open(size))
        first = next(items, None)
        if first is None:
            raise ArgumentError("the iterable gave no batches.")
        self.sample = np.shape(self._named(first)["X"])[1:]
        self._begun = chain([first], items)

    def steps(self, size: int | None) -> int | None:
        return self._steps

    def batches(
        self, size: int | None, rng: np.random.Generator | None = None, into: Buffered | None = None
    ) -> Iterator[Data]:
        items, self._begun = self.open(size) if self._begun is None else self._begun, None
        i = samples = 0
        for i, item in enumerate(items, 1):
            try:
                batch = self.as_data(**self._named(item))
            except Exception as error:
                locate(error, f"batch {i}")
                raise
            samples += len(batch.X)
            yield batch
        if not i:
            raise ArgumentError("the iterable gave no batches in this epoch.")
        self.count, self._steps = samples, i

    def split(self, kept: int) -> tuple[Source, Source]:
        raise ArgumentError("validation_split needs arrays: give a stream of test batches instead.")

    def _named(self, item: Any) -> dict[str, Any]:
        """A batch by the names that `validate` takes."""
        if isinstance(item, Mapping):
            return _columns(item, self.columns)
        if isinstance(item, tuple | list) and len(item) in (2, 3):
            return dict(zip(("X", "y", "sample_weight"), item, strict=False))
        raise ArgumentTypeError(
            "batches must be pairs (X, y) or triples (X, y, sample_weight), "
            f"got {type(item).__name__}."
        )


def _columns(batch: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """X and y from a batch by column names: those given, or the two that there are."""
    names = list(batch) if columns is None else list(columns)
    if len(names) != 2 or not set(names) <= set(batch):
        raise ArgumentError(
            f"the data has the columns {list(batch)}: name that of X and that of y, "
            'such as columns=("image", "label").'
        )
    return {"X": batch[names[0]], "y": batch[names[1]]}


def as_source(
    model: Chain,
    loss: Loss,
    X: Any,
    y: Any,
    *,
    batch_size: int | None,
    sample_weight: Any = None,
    class_weight: Any = None,
    lengths: Any = None,
    columns: Sequence[str] | None = None,
    names: tuple[str, str] = ("X", "y"),
) -> Source:
    """The source of X and y: arrays, arrays in files, a Hugging Face dataset, or an iterable."""
    in_memory = not (isinstance(X, np.memmap) or isinstance(y, np.memmap))
    batched = y is None and _gives_batches(X)
    if isinstance(class_weight, str) and (batched or not in_memory):
        raise ArgumentError(
            f"class_weight={class_weight!r} counts the labels of arrays in memory, not of files "
            "or batches: give the weights by label, such as {0: 1.0, 1: 5.0}."
        )
    if batched:
        for name, given in (("sample_weight", sample_weight), ("lengths", lengths)):
            if given is not None:
                raise ArgumentError(f"{name} goes with arrays: put it into the batches instead.")
        as_data = partial(validate, model, loss, class_weight=class_weight, names=names)
        if hasattr(X, "with_format"):
            return _from_dataset(X.with_format("numpy"), columns, batch_size, as_data)
        make = X if callable(X) else lambda: X
        steps = len(X) if hasattr(X, "__len__") else None
        once = isinstance(X, Iterator)
        stream = Stream(lambda _: make(), as_data, columns, once=once, steps=steps)
        stream.begin(batch_size)
        return stream
    if columns is not None:
        raise ArgumentError("columns name those of a dataset or of batches, not of arrays.")
    if y is not None and not in_memory:
        parts = {"X": X, "y": y, "sample_weight": sample_weight, "lengths": lengths}
        held = {name: a if isinstance(a, np.memmap) else np.asarray(a)
                for name, a in parts.items() if a is not None}  # fmt: skip
        for name, a in held.items():
            if a.shape[:1] != X.shape[:1]:
                raise ShapeError(f"{names[0]} has {len(X)} samples, {name} has shape {a.shape}.")
        if "lengths" in held:  # what the layers refuse is refused before the first batch
            shape = (1, *held["X"].shape[1:])
            model.compute_mask(as_mask(held["lengths"][:1], shape, tokens=model.takes_tokens))
        as_data = partial(validate, model, loss, class_weight=class_weight, names=names)
        return Table(
            lambda rows: {name: np.asarray(a[rows]) for name, a in held.items()},
            np.arange(len(X)),
            as_data,
        )
    return Arrays(
        validate(model, loss, X, y, sample_weight, lengths, class_weight=class_weight, names=names)
    )


def _gives_batches(X: Any) -> bool:
    """Whether X is no array but something that gives batches."""
    if isinstance(X, np.ndarray | str | bytes | Mapping) or X is None or hasattr(X, "__array__"):
        return False
    if isinstance(X, list | tuple):
        return bool(X) and isinstance(X[0], tuple | Mapping)
    return callable(X) or isinstance(X, Iterable)


def _from_dataset(
    dataset: Any,
    columns: Sequence[str] | None,
    batch_size: int | None,
    as_data: Callable[..., Data],
) -> Source:
    """A dataset of the Hugging Face library: with rows, or one that only streams them."""
    if hasattr(dataset, "__len__"):
        return Table(
            lambda rows: _columns(dataset[rows.tolist()], columns), np.arange(len(dataset)), as_data
        )
    if batch_size is None:
        raise ArgumentError("a dataset that streams needs a batch_size.")
    stream = Stream(lambda size: dataset.iter(batch_size=size), as_data, columns)
    stream.begin(batch_size)
    return stream
