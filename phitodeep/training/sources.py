"""Sources of batches: arrays, files too large for memory, data sets, and iterables.

Long because all sources are in one file, with the function that chooses between them.

All data are checked against the model and its loss and cast once, by `validate`: arrays before
training begins, anything else batch by batch, so that it is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import as_mask
from phitodeep.core.frame import Buffered
from phitodeep.core.types import Array, Shape, each, on_each
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, UnknownNameError, locate
from phitodeep.layers.containers import Container
from phitodeep.layers.wiring import Wired
from phitodeep.loss import Loss
from phitodeep.training.inputs import WHOLE, Data, Share, validate

Columns = Sequence[str] | tuple[dict[str, Any], dict[str, Any]] | None


class Epoch(NamedTuple):
    """How an epoch reads a source: all samples, `size` at a time or all at once."""

    size: int | None
    rng: np.random.Generator | None = None  # shuffles; None: the samples are in order
    into: Buffered | None = None  # memory for a batch, which the next batch overwrites
    first: int = 0  # the batches before this number are skipped
    share: Share = WHOLE  # the part of each batch that is read and returned
    later: bool = False  # arrays may be copied where they are read: see `Data.take`


class Source:
    """A source of batches, for one epoch or for several.

    count     the number of samples; None until an epoch has counted them
    steps     the number of batches of `size` samples; None until an epoch has counted them
    sample    the shape of one sample
    """

    count: int | None
    sample: Shape
    once = False  # True: it can be read only once

    def steps(self, size: int | None) -> int | None:
        assert self.count is not None
        return -(-self.count // (size or self.count))

    def batch_size(self, size: int | None) -> int:
        """Return the number of samples in the first batch, for batches of `size`."""
        assert self.count is not None
        return min(size or self.count, self.count)

    def batches(self, epoch: Epoch) -> Iterator[Data]:
        """Yield the batches of an epoch."""
        raise NotImplementedError

    def rows(self, size: int | None, rng: np.random.Generator | None, number: int) -> Array | None:
        """Return the places in the data of the samples in one of the `batches`, if they are known.

        `rng` is in the state in which `batches` received it.
        """
        return None

    def split(self, kept: int) -> tuple[Source, Source]:
        """Split into the first `kept` samples and the rest."""
        raise ArgumentError("validation_split needs arrays: pass batches of test data instead.")


class Rows(Source):
    """Samples that are read by their places, of which each batch has `size` or all."""

    places: Array  # (N,)

    def batches(self, epoch: Epoch) -> Iterator[Data]:
        size, rng, into, first, share, later = epoch
        order, n = self._order(size, rng), len(self.places)
        size = size or n
        for i, start in enumerate(range(first * size, n, size), first + 1):
            rows, counts = share.rows(start, min(start + size, n))
            try:
                batch = self._read(order, rows, into, later)
            except Exception as error:
                locate(error, f"batch {i}")
                raise
            yield batch if counts else batch._replace(counts=False)

    def _read(self, order: Array, rows: slice, into: Buffered | None, later: bool) -> Data:
        """Return the samples at `order[rows]`."""
        raise NotImplementedError

    def rows(self, size: int | None, rng: np.random.Generator | None, number: int) -> Array | None:
        size = size or len(self.places)
        return self._order(size, rng)[number * size :][:size]

    def _order(self, size: int | None, rng: np.random.Generator | None) -> Array:
        """Return the places in the order of an epoch; that of one batch has no effect."""
        whole = size is None or size >= len(self.places)
        return self.places if rng is None or whole else rng.permutation(self.places)


class Arrays(Rows):
    """Samples in memory."""

    def __init__(self, data: Data) -> None:
        self.data, self.count, self.sample = data, data.n, data.sample
        self.places = np.arange(self.count)

    def _read(self, order: Array, rows: slice, into: Buffered | None, later: bool) -> Data:
        if order is self.places:
            return self.data.part(rows)
        return self.data.take(order[rows], into or BatchBuffer(), later)

    def split(self, kept: int) -> tuple[Source, Source]:
        return Arrays(self.data.part(slice(kept))), Arrays(self.data.part(slice(kept, None)))


class BatchBuffer(Buffered):
    """Memory for the current batch, which the next batch overwrites."""

    buffer = Buffered._reused


class Table(Rows):
    """Samples that stay in storage, such as a file, from which each batch reads its rows.

    read       returns the arguments of `as_data` for some of the rows, by name
    as_data    checks and casts them: `validate`
    """

    def __init__(
        self, read: Callable[[Array], dict[str, Any]], rows: Array, as_data: Callable[..., Data]
    ) -> None:
        self.read, self.places, self.as_data, self.count = read, rows, as_data, len(rows)
        if not self.count:
            raise ShapeError("the data has no samples.")
        self.sample = _sample(read(rows[:1])["X"])

    def batches(self, epoch: Epoch) -> Iterator[Data]:
        if epoch.size is None:
            raise ArgumentError("data that stays in its file needs a batch_size.")
        return super().batches(epoch)

    def _read(self, order: Array, rows: slice, into: Buffered | None, later: bool) -> Data:
        return self.as_data(**self.read(order[rows]))

    def split(self, kept: int) -> tuple[Source, Source]:
        first, second = self.places[:kept], self.places[kept:]
        return Table(self.read, first, self.as_data), Table(self.read, second, self.as_data)


class Stream(Source):
    """Batches from an iterable, which `open(size)` returns for each epoch."""

    count: int | None
    _steps: int | None  # known beforehand, or after an epoch

    def __init__(
        self, open: Callable[[int | None], Iterable[Any]], as_data: Callable[..., Data],
        columns: Columns,
    ) -> None:  # fmt: skip
        self.open, self.as_data, self.columns = open, as_data, columns
        self.count = self._steps = None
        self._begun: Iterable[Any] | None = None

    def begin(self, size: int | None) -> None:
        """Read the first batch, which the next epoch will yield first."""
        items = iter(self.open(size))
        first = next(items, None)
        if first is None:
            raise ArgumentError("the iterable yielded no batches.")
        X = self._named(first)["X"]
        one = next(iter(X.values())) if isinstance(X, Mapping) else each(X)[0]
        self._first, self.sample = (np.shape(one) or (1,))[0], _sample(X)
        self._begun = chain([first], items)

    def batch_size(self, size: int | None) -> int:
        return self._first

    def steps(self, size: int | None) -> int | None:
        return self._steps

    def batches(self, epoch: Epoch) -> Iterator[Data]:
        size, first = epoch.size, epoch.first
        items, self._begun = self.open(size) if self._begun is None else self._begun, None
        i, samples = first, 0
        for i, item in enumerate(islice(items, first, None), first + 1):
            try:
                batch = self.as_data(**self._named(item))
            except Exception as error:
                locate(error, f"batch {i}")
                raise
            samples += batch.n
            yield batch.of(epoch.share)
        if not i:
            raise ArgumentError("the iterable yielded no batches in this epoch.")
        self._steps = i
        if not first:
            self.count = samples

    def _named(self, item: Any) -> dict[str, Any]:
        """Return a batch as keyword arguments for `validate`."""
        if isinstance(item, Mapping):
            return _columns(item, self.columns)
        if isinstance(item, tuple | list) and len(item) in (2, 3):
            return dict(zip(("X", "y", "sample_weight"), item, strict=False))
        raise ArgumentTypeError(
            "batches must be pairs (X, y) or triples (X, y, sample_weight), "
            f"got {type(item).__name__}."
        )


def _sample(X: Any) -> Any:
    """The shape of a sample, or of each of several inputs, by name or in order."""
    if isinstance(X, Mapping):
        return {name: np.shape(A)[1:] for name, A in X.items()}
    return on_each(lambda A: np.shape(A)[1:], X)


class Shard(NamedTuple):
    """Data of which this rank reads only its own part: see `phitodeep.distributed.shard`."""

    data: Any
    share: Share


class ShardSource(Source):
    """A source whose batches are this rank's part of the batches already."""

    def __init__(self, source: Source, share: Share) -> None:
        self.source, self.own = source, share
        self.count, self.sample, self.once = source.count, source.sample, source.once

    def steps(self, size: int | None) -> int | None:
        return self.source.steps(self._of(size))

    def batch_size(self, size: int | None) -> int:
        return self.source.batch_size(self._of(size))

    def batches(self, epoch: Epoch) -> Iterator[Data]:
        return self.source.batches(epoch._replace(size=self._of(epoch.size), share=WHOLE))

    def _of(self, size: int | None) -> int | None:
        return None if size is None else self.own.count(size)


def _columns(batch: Any, columns: Columns) -> dict[str, Any]:
    """Return X and y from a batch by column name; without names, it must have two columns.

    For a network, `columns` are the names of columns for its inputs, and for its outputs.
    """
    if isinstance(columns, tuple) and all(isinstance(part, dict) for part in columns):
        return {
            key: {name: _column(batch, column, name) for name, column in part.items()}
            for key, part in zip(("X", "y"), columns, strict=True)
        }
    names = list(batch) if columns is None else list(columns)
    if len(names) != 2 or not set(names) <= set(batch):
        raise ArgumentError(
            f"the data has the columns {list(batch)}: name the columns of X and y, "
            'such as columns=("image", "label").'
        )
    return {"X": batch[names[0]], "y": batch[names[1]]}


def _column(batch: Any, column: Any, name: str) -> Any:
    """One column of a batch or a data frame, or several side by side."""
    try:
        if isinstance(column, list | tuple):
            return np.stack([np.asarray(batch[c]) for c in column], axis=-1)
        return None if batch[column] is None else np.asarray(batch[column])
    except KeyError:
        raise ArgumentError(
            f"the data has the columns {list(batch)}, and none of them is {column!r}, for "
            f"{name!r}: name them, such as columns={{{name!r}: ...}}."
        ) from None


def _columns_of_network(model: Any, columns: Any) -> Columns:
    """Return the columns of each input, and of each output that is trained, by name."""
    given = {} if columns is None else columns
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            "columns of a network are a dict: the column, or columns, of each input and output."
        )
    trained = [n for n in model.returns if n in getattr(model.loss, "losses", model.returns)]
    if unknown := [name for name in given if name not in (*model.takes, *trained)]:
        raise UnknownNameError.of(unknown[0], (*model.takes, *trained), "an input or an output")
    inputs, outputs = ({n: given.get(n, n) for n in names} for names in (model.takes, trained))
    return inputs, outputs


def as_source(
    model: Container, loss: Loss, X: Any, y: Any, *, batch_size: int | None,
    sample_weight: Any = None, class_weight: Any = None, lengths: Any = None,
    columns: Any = None, names: tuple[str, str] = ("X", "y"),
) -> Source:  # fmt: skip
    """Choose the source for X and y: arrays, files, a Hugging Face dataset, or an iterable.

    A source is taken as it is.
    """
    if isinstance(X, Source):
        return X
    share = None
    if isinstance(X, Shard):
        if y is not None or not _yields_batches(X.data):
            raise ArgumentError(
                "shard() is for data that yield batches, of which every rank needs at least one; "
                "arrays are shared anyway."
            )
        X, share = X.data, X.share
        batch_size = batch_size and share.count(batch_size)
    batched = y is None and _yields_batches(X)
    if isinstance(model, Wired) and (batched or (y is None and hasattr(X, "iloc"))):
        columns = _columns_of_network(model, columns)
        if not batched:  # a data frame
            (X, y), columns = _columns(X, columns).values(), None
    in_memory = not (isinstance(X, np.memmap) or isinstance(y, np.memmap))
    if isinstance(class_weight, str) and (batched or not in_memory):
        raise ArgumentError(
            f"class_weight={class_weight!r} needs the labels of arrays in memory, not of files "
            "or batches: give the weights by label, such as {0: 1.0, 1: 5.0}."
        )
    if columns is not None and not batched:
        raise ArgumentError("columns are for datasets and batches, not for arrays.")
    as_data = partial(validate, model, loss, class_weight=class_weight, names=names)
    given = {"X": X, "y": y, "sample_weight": sample_weight, "lengths": lengths}
    if batched:
        for name in ("sample_weight", "lengths"):
            if given[name] is not None:
                raise ArgumentError(f"{name} is for arrays: put it into the batches instead.")
        source = _from_batches(X, columns, batch_size, as_data)
        return source if share is None else ShardSource(source, share)
    if y is None or in_memory:
        return Arrays(as_data(**given))
    return _from_files(model, given, names[0], as_data)


def _from_files(
    model: Container, given: Mapping[str, Any], name_of_X: str, as_data: Callable[..., Data]
) -> Table:
    """Read those of the `given` arguments of `validate` that are np.memmap, batch by batch."""
    columns = {
        name: a if isinstance(a, np.memmap) else np.asarray(a)
        for name, a in given.items()
        if a is not None
    }
    n = len(columns["X"])
    for name, a in columns.items():
        if a.shape[:1] != (n,):
            raise ShapeError(f"{name_of_X} has {n} samples, {name} has shape {a.shape}.")
    if "lengths" in columns:  # so that the layers' errors are raised before the first batch
        shape = (1, *columns["X"].shape[1:])
        model.compute_mask(as_mask(columns["lengths"][:1], shape, tokens=model.takes_tokens))

    def read(rows: Array) -> dict[str, Any]:
        return {name: np.asarray(a[rows]) for name, a in columns.items()}

    return Table(read, np.arange(n), as_data)


def _from_batches(
    X: Any, columns: Columns, batch_size: int | None, as_data: Callable[..., Data]
) -> Source:
    """Return the source for a Hugging Face dataset, an iterable, or a function that returns one."""
    if not hasattr(X, "with_format"):
        stream = Stream(lambda _: X() if callable(X) else X, as_data, columns)
        stream.once = isinstance(X, Iterator)
        stream._steps = len(X) if hasattr(X, "__len__") else None
    else:  # a dataset, whose rows are indexed or streamed
        dataset = X.with_format("numpy")
        if hasattr(dataset, "__len__"):
            places = np.arange(len(dataset))
            return Table(lambda rows: _columns(dataset[rows.tolist()], columns), places, as_data)
        if batch_size is None:
            raise ArgumentError("a streaming dataset needs a batch_size.")
        stream = Stream(lambda size: dataset.iter(batch_size=size), as_data, columns)
    stream.begin(batch_size)
    return stream


def _yields_batches(X: Any) -> bool:
    """Whether X yields batches rather than being an array."""
    if isinstance(X, str | bytes | Mapping) or hasattr(X, "__array__"):
        return False
    if isinstance(X, list | tuple):
        return bool(X) and isinstance(X[0], tuple | Mapping)
    return callable(X) or isinstance(X, Iterable)
