"""What goes into a model: arrays, files too large for memory, and streams of batches.

Whatever it is, it is checked against the model and its loss and cast once (`admit`): arrays
before training begins, the rest batch by batch, so that it is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from phitodeep.checks import (
    as_float,
    as_mask,
    as_real,
    as_tokens,
    check_finite,
    check_number,
    without_padding,
)
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, locate
from phitodeep.layers.base import Buffered, Frame
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss
from phitodeep.types import Array, Shape


class Data(NamedTuple):
    """Samples that were checked and cast."""

    X: Array
    T: Array  # the loss's targets
    w: Array | None  # weights, or all 1
    outputs: Shape  # (N, ...): the shape of all predictions
    mask: Array | None = None  # (N, T): which steps of X are there, or all
    there: Array | None = None  # (N, T'): which steps of the predictions are there, or all

    def part(self, which: slice) -> Data:
        """Some of the samples, as views."""
        return self._pick(lambda _, A: A[which])

    def take(self, rows: Array, into: Buffered) -> Data:
        """The samples at `rows`, in memory that the next batch may write again."""

        def pick(name: str, A: Array) -> Array:
            out = into.buffer(name, (len(rows), *A.shape[1:]), A.dtype)
            return np.take(A, rows, axis=0, out=out, mode="clip")  # rows are in range

        return self._pick(pick)

    def _pick(self, pick: Callable[[str, Array], Array]) -> Data:
        X = pick("X", self.X)
        T = pick("T", self.T)
        w = None if self.w is None else pick("w", self.w)
        mask = None if self.mask is None else pick("mask", self.mask)
        there = None if self.there is None else pick("there", self.there)
        return Data(X, T, w, (len(X), *self.outputs[1:]), mask, there)


# --- the door ----------------------------------------------------------------------------------


def admit(
    model: Chain,
    loss: Loss,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    lengths: Any = None,
    *,
    class_weight: Any = None,
    names: tuple[str, str] = ("X", "y"),
) -> Data:
    """Check samples and targets against the model and its loss, and cast them once."""
    missing = f"{names[0]} came without {names[1]}"
    if y is None and isinstance(X, tuple) and len(X) == 2:
        raise ArgumentTypeError(f"{missing}: give a pair as two arguments, {', '.join(names)}.")
    mask = as_model_mask(model, X, lengths)
    expected = len(y) if hasattr(y, "__len__") else None
    X = admit_inputs(model, X, names[0], mask, count=expected)
    if y is None:
        raise ArgumentTypeError(f"{missing}.")
    y = as_real(y, names[1])
    if y.ndim == 0 or len(y) != len(X):
        count = "a single number" if y.ndim == 0 else f"{len(y)} samples"
        raise ShapeError(f"{names[0]} has {len(X)} samples, {names[1]} has {count}.")
    shape = model.output_shape if X.shape[1:] == model.input_shape else None
    shape = model.measured(X.shape[1:]).output_shape if shape is None else shape
    outputs = (len(X), *(shape or ()))
    there = None if mask is None else model.compute_mask(mask)
    if there is not None and there.any() and y.shape[:2] == there.shape:
        y = y.copy()
        y[~there] = y[there][0]  # weighs nothing below, and is a target that the loss takes
    T = loss.targets(y, outputs, names[1])
    if T.dtype.kind == "f":
        T = as_float(T, model.dtype, names[1])
        check_finite(T, names[1])
    weights = [loss.weights(sample_weight, T, outputs)]
    steps = None if there is None else _step_weights(there, loss.positions(outputs))
    if class_weight is not None:
        weights.append(_class_weights(class_weight, T, outputs, loss, steps))
    weights.append(steps)
    given = [w for w in weights if w is not None]
    w = reduce(np.multiply, given).astype(model.dtype, copy=False) if given else None
    return Data(X, T, w, outputs, mask, there)


def as_model_mask(model: Chain, X: Any, lengths: Any) -> Array | None:
    """Which steps of X are there: (N, T), or None where `lengths` is None."""
    if lengths is None:
        return None
    return as_mask(lengths, np.shape(as_real(X, "X")), tokens=model.takes_tokens)


def admit_inputs(
    model: Chain, X: Any, name: str = "X", mask: Array | None = None, *, count: int | None = None
) -> Array:
    """Samples, `count` of them if that is known, as a checked array of the model's dtype.

    It is 0 at the steps that the mask (N, T) leaves out.
    """
    _refuse_several(X, name, model, count)
    X = as_tokens(X, name) if model.takes_tokens else as_real(X, name)
    if mask is not None:
        X = without_padding(X, mask)
    if X.ndim == 0 or X.size == 0:
        raise ShapeError(f"{name} needs at least one sample, got shape {X.shape}.")
    if X.shape[1:] != model.input_shape:
        try:
            model.measured(X.shape[1:])
        except ShapeError as error:
            if X.shape == model.input_shape:
                error.message += (
                    f" {name} has the shape of one sample: a model takes a batch of them, "
                    f"(N, {', '.join(map(str, X.shape))}), such as {name}[None]."
                )
            raise
    if not model.takes_tokens:
        X = as_float(X, model.dtype, name)
        check_finite(X, name)
    return X


def _refuse_several(X: Any, name: str, model: Chain, count: int | None) -> None:
    """Refuse an X that has an array for each of several inputs.

    A list of arrays of one shape is a list of samples, unless it is the arrays that have `count`
    samples, or that make what the model takes when they are put side by side.
    """
    if isinstance(X, Mapping):
        what = f"a {type(X).__name__} with the keys {', '.join(map(repr, X))}"
    else:
        if not isinstance(X, list | tuple) or len(X) < 2 or len(X) == count:
            return
        shapes = [tuple(getattr(a, "shape", ())) for a in X]
        if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
            return
        wide = (*shapes[0][1:-1], sum(shape[-1] for shape in shapes))
        fits = wide == (model.input_shape or model.known_input())
        if len(set(shapes)) == 1 and count != shapes[0][0] and not fits:
            return
        what = f"a {type(X).__name__} of {len(X)} arrays, the first of shape {shapes[0]}"
    raise ArgumentTypeError(
        f"{name} is {what}, but a model takes one array: put several inputs side by side with "
        "np.concatenate([...], axis=-1), and give each part to layers of its own with Parallel "
        "and Select(columns)."
    )


def _step_weights(there: Array, positions: Shape) -> Array:
    """Weight 0 for the predictions of steps that are not there, as the shape of the positions."""
    if positions[:2] != there.shape:
        raise ShapeError(
            f"lengths leave steps {there.shape} in the predictions, which the loss weighs by "
            f"{positions}."
        )
    return np.broadcast_to(there.reshape(*there.shape, *[1] * (len(positions) - 2)), positions)


def _class_weights(
    class_weight: Any, T: Array, outputs: Shape, loss: Loss, steps: Array | None
) -> Array:
    """The weight of each target's class, of the shape of the loss's positions.

    Classes that a mapping lacks weigh 1; a sequence has a weight for each class in order.
    "balanced" counts the labels that `steps` and the loss do not leave out.
    """
    classes = loss.classes(outputs)
    if classes is None:
        raise ArgumentError(f"class_weight needs a loss of classes, not {loss!r}.")
    w = np.ones(loss.positions(outputs))
    if T.shape != w.shape:
        labels = T.argmax(axis=-1)
    else:
        labels = T if T.dtype.kind == "i" else np.where(T > 0.5, classes[1], classes[0])
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ArgumentError(
                'class_weight takes "balanced", weights by label or a weight for each class in '
                f"order, got {class_weight!r}."
            )
        counted = labels != getattr(loss, "ignore_index", None)
        counted = counted if steps is None else counted & steps
        _, which, counts = np.unique(labels[counted], return_inverse=True, return_counts=True)
        w[counted] = (counts.sum() / (len(counts) * counts))[which]
        return w
    if not isinstance(class_weight, Mapping):
        given = as_real(class_weight, "class_weight")
        if given.shape != (len(classes),):
            raise ArgumentError(
                f"class_weight needs a number for each of {len(classes)} classes, "
                f"got shape {given.shape}."
            )
        class_weight = dict(zip(classes, given.tolist(), strict=True))
    for label, weight in class_weight.items():
        if label not in classes:
            raise ArgumentError(f"class_weight names {label!r}, the classes are {classes}.")
        w[labels == label] = check_number(weight, f"class_weight of {label}", least=0)
    return w


# --- where batches come from -------------------------------------------------------------------


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

    buffer = Buffered.reused

    def __init__(self) -> None:
        self.frame = Frame()


class Table(Source):
    """Samples that stay where they are, such as in a file: each batch reads its rows."""

    def __init__(
        self,
        read: Callable[[Array], dict[str, Any]],
        rows: Array,
        door: Callable[..., Data],
    ) -> None:
        self.read, self.rows, self.door, self.count = read, rows, door, len(rows)
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
                batch = self.door(**self.read(order[start : start + size]))
            except Exception as error:
                locate(error, f"batch {i}")
                raise
            yield batch

    def split(self, kept: int) -> tuple[Source, Source]:
        first, second = self.rows[:kept], self.rows[kept:]
        return Table(self.read, first, self.door), Table(self.read, second, self.door)


class Stream(Source):
    """Batches as somebody else gives them; `open(size)` begins an epoch of them."""

    def __init__(
        self,
        open: Callable[[int | None], Iterable[Any]],
        door: Callable[..., Data],
        columns: Sequence[str] | None,
        *,
        once: bool = False,
        steps: int | None = None,
    ) -> None:
        self.open, self.door, self.columns, self.once = open, door, columns, once
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
                batch = self.door(**self._named(item))
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
        """A batch by the names that the door knows."""
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
        door = partial(admit, model, loss, class_weight=class_weight, names=names)
        if hasattr(X, "with_format"):
            return _from_dataset(X.with_format("numpy"), columns, batch_size, door)
        make = X if callable(X) else lambda: X
        steps = len(X) if hasattr(X, "__len__") else None
        once = isinstance(X, Iterator)
        stream = Stream(lambda _: make(), door, columns, once=once, steps=steps)
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
        door = partial(admit, model, loss, class_weight=class_weight, names=names)
        return Table(
            lambda rows: {name: np.asarray(a[rows]) for name, a in held.items()},
            np.arange(len(X)),
            door,
        )
    return Arrays(
        admit(model, loss, X, y, sample_weight, lengths, class_weight=class_weight, names=names)
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
    door: Callable[..., Data],
) -> Source:
    """A dataset of the Hugging Face library: with rows, or one that only streams them."""
    if hasattr(dataset, "__len__"):
        return Table(
            lambda rows: _columns(dataset[rows.tolist()], columns), np.arange(len(dataset)), door
        )
    if batch_size is None:
        raise ArgumentError("a dataset that streams needs a batch_size.")
    stream = Stream(lambda size: dataset.iter(batch_size=size), door, columns)
    stream.begin(batch_size)
    return stream
