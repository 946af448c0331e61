"""Input validation: arrays checked against a model and its loss, and cast once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import as_finite, as_mask, as_real, as_tokens, without_padding
from phitodeep.core.frame import Buffered
from phitodeep.core.state import check_entries
from phitodeep.core.types import Array, Shape, each, on_each, one
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers.containers import Container
from phitodeep.layers.wiring import Wired
from phitodeep.loss import Loss
from phitodeep.loss.base import class_weights
from phitodeep.loss.heads import Heads, by_name


class Share(NamedTuple):
    """The part of each batch that belongs to one of the processes that train a model together."""

    rank: int
    size: int  # the number of ranks

    def rows(self, start: int, stop: int) -> tuple[slice, bool]:
        """Return this rank's part of the places from `start` to `stop`, and whether it counts.

        The parts of all ranks are disjoint, make up the whole, and differ by at most one place. A
        rank without a place gets the first one, which then does not count.
        """
        n = stop - start
        first, last = (start - -n * rank // self.size for rank in (self.rank, self.rank + 1))
        return (slice(first, last), True) if first < last else (slice(start, start + 1), False)

    def count(self, n: int) -> int:
        """Return how many of n places belong to this rank, but at least 1."""
        part, _ = self.rows(0, n)
        return part.stop - part.start


WHOLE = Share(0, 1)


class Picked:
    """The samples of an array at some places, which are copied where a slice of them is read.

    Each slice has memory of its own in `into`, named after `name`, which the next batch overwrites.
    """

    def __init__(self, array: Array, places: Array, into: Buffered, name: str) -> None:
        self.array, self.places, self.into, self.name = array, places, into, name

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Any) -> Array:
        places, name = self.places[rows], f"{self.name} from {rows.start}"
        out = self.into.buffer(name, (len(places), *self.array.shape[1:]), self.array.dtype)
        return self.array.take(places, 0, out, "clip")  # "raise" would buffer out


class Data(NamedTuple):
    """Samples that have been checked and cast: a batch, or a whole data set."""

    X: Any  # (N, ...), to be read as X[:]; of a network with several inputs, a tuple of them
    T: Any  # targets, in the form that the loss uses; of several outputs, a tuple
    w: Any  # (N, ...), broadcast to the loss's positions, or a tuple; None: all are 1
    outputs: Any  # (N, ...): the shape of the predictions, or a tuple
    mask: Any = None  # (N, T): False where X is padding; None: no padding; or a tuple
    output_mask: Any = None  # (N, T'): the same for the predictions
    counts: bool = True  # False: placeholders, whose loss, gradients and metrics are left out

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(each(self.X)[0])

    @property
    def sample(self) -> Any:
        """The shape of a sample, or of each input's."""
        return on_each(lambda A: A.shape[1:], self.X)

    def part(self, rows: slice) -> Data:
        """Return a slice of the samples, as views."""
        return self._pick(lambda A: A[rows])

    def of(self, share: Share) -> Data:
        """Return one rank's part of the samples, as views."""
        if share.size == 1:
            return self
        rows, counts = share.rows(0, self.n)
        return self.part(rows)._replace(counts=counts)

    def take(self, rows: Array, into: Buffered, later: bool = False) -> Data:
        """Copy the samples at `rows` into memory that the next batch may overwrite.

        later    X is copied where it is read: the threads of several parts copy their own samples
        """
        numbers = itertools.count()

        def pick(A: Array) -> Picked:
            return Picked(A, rows, into, f"array {next(numbers)}")

        return self._pick(lambda A: pick(A)[:], pick if later else None)

    def _pick(
        self, pick: Callable[[Array], Array], pick_X: Callable[[Array], Any] | None = None
    ) -> Data:
        """Return what `pick` returns for each array."""
        X = on_each(pick_X or pick, self.X)
        arrays = self.T, self.w, self.mask, self.output_mask
        T, w, mask, output_mask = (on_each(pick, A) for A in arrays)
        n, single = len(each(X)[0]), not isinstance(self.T, tuple)
        shapes = [(n, *shape[1:]) for shape in ([self.outputs] if single else self.outputs)]
        return Data(X, T, w, one(shapes, single), mask, output_mask, self.counts)


def validate(
    model: Container, loss: Loss, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None, *,
    class_weight: Any = None, names: tuple[str, str] = ("X", "y"),
) -> Data:  # fmt: skip
    """Check samples and targets against the model and its loss, and cast them once.

    For several outputs, targets and options are dicts by name, or tuples in order.
    """
    missing, heads = f"{names[0]} was given without {names[1]}", isinstance(loss, Heads)
    if y is None and model.inputs == 1 and isinstance(X, tuple) and len(X) == 2:
        raise ArgumentTypeError(f"{missing}: pass a pair as two arguments, {', '.join(names)}.")
    count = len(y) if hasattr(y, "__len__") and not isinstance(y, Mapping) else None
    X, mask = named_inputs(model, X, lengths, names[0], count)
    if y is None:
        raise ArgumentTypeError(f"{missing}.")
    n, shape = len(each(X)[0]), on_each(lambda A: A.shape[1:], X)
    outs = (model if shape == model.input_shape else model._measured(shape))._outs()
    outputs = tuple([(n, *out) for out in outs])
    after = (None,) * len(outs) if mask is None else each(model.compute_mask(*each(mask)))
    returns = model.returns if isinstance(model, Wired) else ("",)
    if isinstance(loss, Heads) and isinstance(y, Mapping):
        y = {name: None for name in loss.outputs if name not in loss.losses} | dict(y)
    weights, balances = (
        by_name(given, returns, what) if heads else {returns[0]: given}
        for what, given in (("sample_weight", sample_weight), ("class_weight", class_weight))
    )
    found: list[tuple[Any, Any]] = []
    ys = in_order(y, returns, names[1]) if isinstance(model, Wired) else (y,)
    for name, t, out, m in zip(returns, ys, outputs, after, strict=True):
        part = loss.losses.get(name) if isinstance(loss, Heads) else loss
        if part is None or t is None:  # an output without a loss, or without targets
            found.append((None, None))
            continue
        place = f"[{name!r}]" if heads else ""
        what = names[1] + place
        t = as_real(t, what)
        if t.ndim == 0 or len(t) != n:
            many = "is a single number" if t.ndim == 0 else f"has {len(t)} samples"
            raise ShapeError(f"{names[0]} has {n} samples, {what} {many}.")
        own = weights.get(name), balances.get(name)
        found.append(_targets(model, part, t, out, m, *own, what, place))
    Ts, ws = zip(*found, strict=True)
    T, w, shape, output_mask = (one(parts, not heads) for parts in (Ts, ws, outputs, after))
    return Data(X, T, w, shape, mask, output_mask)


def _targets(
    model: Container, loss: Loss, y: Array, outputs: Shape, output_mask: Array | None,
    sample_weight: Any, class_weight: Any, name: str, place: str,
) -> tuple[Array, Array | None]:  # fmt: skip
    """Return the checked targets and the weights, for predictions of this shape and mask."""
    if output_mask is not None and output_mask.any() and y.shape[:2] == output_mask.shape:
        y = y.copy()  # at padding, any valid target will do: its weight is 0
        y[~output_mask] = y[output_mask][0]
    T = loss.targets(y, outputs, name)
    if T.dtype.kind == "f":
        T = as_finite(T, model.dtype, name)
    weights = [loss.weights(sample_weight, T, outputs, f"sample_weight{place}")]
    steps = None if output_mask is None else _step_weights(output_mask, loss.positions(outputs))
    if class_weight is not None:
        weights.append(_class_weights(class_weight, T, outputs, loss, steps))
    weights.append(steps)
    given = [w for w in weights if w is not None]
    return T, as_finite(reduce(np.multiply, given), model.dtype, "weights") if given else None


def in_order(values: Any, names: tuple[str, ...], what: str) -> tuple[Any, ...]:
    """Return what a dict by name, or a tuple in order, holds for each name; one may be alone."""
    if isinstance(values, Mapping):
        found = check_entries(values, names, f"{what} must hold {', '.join(names)}; it")
        return tuple([found[name] for name in names])
    if len(names) == 1:
        return (values,)
    if not isinstance(values, tuple) or len(values) != len(names):
        given = f"a tuple of {len(values)}" if isinstance(values, tuple) else type(values).__name__
        raise ArgumentTypeError(
            f"{what}: give a dict with {', '.join(names)}, or a tuple in that order, got {given}."
        )
    return values


def named_inputs(
    model: Any, X: Any, lengths: Any, name_of_X: str, count: int | None = None
) -> tuple[Any, Any]:
    """Return a model's inputs, checked and cast, and their masks; without any, None.

    Of several inputs, both are tuples.
    """
    if model.inputs == 1:
        X = in_order(X, model.takes, name_of_X)[0] if isinstance(model, Wired) else X
        mask = mask_of(X, lengths, model.takes_tokens)
        return validate_inputs(model, X, name_of_X, mask, count), mask
    Xs = in_order(X, model.takes, name_of_X)
    given = by_name(lengths, model.takes, "lengths")
    masks, arrays = list[Any](), list[Array]()
    for name, A, tokens in zip(model.takes, Xs, model.takes_tokens, strict=True):
        what = f"{name_of_X}[{name!r}]"
        mask = mask_of(A, given.get(name), tokens, f"lengths[{name!r}]")
        A = _samples(A, what, mask, tokens)
        masks.append(mask)
        arrays.append(A if tokens else as_finite(A, model.dtype, what))
    _check_shapes(model, arrays, [f"{name_of_X}[{name!r}]" for name in model.takes])
    return tuple(arrays), None if all(mask is None for mask in masks) else tuple(masks)


def _samples(X: Any, name: str, mask: Array | None, tokens: bool) -> Array:
    """Return real numbers, or tokens, with 0 where the mask is False; refuse having no samples."""
    X = as_tokens(X, name) if tokens else as_real(X, name)
    X = X if mask is None else without_padding(X, mask)
    if X.ndim == 0 or X.size == 0:
        raise ShapeError(f"{name} needs at least one sample, got shape {X.shape}.")
    return X


def mask_of(X: Any, lengths: Any, tokens: bool, name: str = "lengths") -> Array | None:
    """The mask (N, T) of the steps of X that are not padding, or None if `lengths` is None."""
    if lengths is None:
        return None
    return as_mask(lengths, as_real(X, "X").shape, tokens=tokens, name=name)


def validate_inputs(
    model: Container, X: Any, name: str = "X", mask: Array | None = None, count: int | None = None
) -> Array:
    """Return samples as a checked array of the model's dtype, 0 where the mask (N, T) is False.

    `count` is the number of samples, if known.
    """
    _refuse_several_inputs(X, name, model, count)
    X = _samples(X, name, mask, model.takes_tokens)
    _check_shapes(model, [X], [name])
    if not model.takes_tokens:
        X = as_finite(X, model.dtype, name)
    return X


def _check_shapes(model: Container, Xs: Sequence[Array], names: Sequence[str]) -> None:
    """Refuse inputs of unequal length, or of shapes that the model does not take."""
    try:
        for name, X in zip(names, Xs, strict=True):
            if len(X) != len(Xs[0]):
                raise ShapeError(f"{name} has {len(X)} samples, and {names[0]} has {len(Xs[0])}.")
        shape = one([X.shape[1:] for X in Xs], model.inputs == 1)
        if shape != model.input_shape:
            model._measured(shape)
    except ShapeError as error:
        for name, X, own in zip(names, Xs, model._ins(), strict=False):
            if X.shape == own:
                error.message += (
                    f" {name} has the shape of one sample: a model takes a batch of samples, "
                    f"(N, {', '.join(map(str, own))}), such as {name}[None]."
                )
        raise


def _refuse_several_inputs(X: Any, name: str, model: Container, count: int | None) -> None:
    """Refuse an X that holds an array for each of several inputs.

    A list of arrays that all have the same shape is a list of samples, unless each array has
    `count` samples, or the arrays side by side have the input shape of the model.
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
        f"{name} is {what}, but this model takes one array: name several inputs, as in "
        "SequentialBuilder(image=(28, 28, 1), words=(40,)), which builds a Network."
    )


def _step_weights(output_mask: Array, positions: Shape) -> Array:
    """Weights in the shape of the positions: 0 for predictions at padding, else 1."""
    if positions[:2] != output_mask.shape:
        raise ShapeError(
            f"lengths require predictions (N, T, ...) with (N, T) = {output_mask.shape}, but the "
            f"loss has positions {positions}."
        )
    return np.broadcast_to(
        output_mask.reshape(*output_mask.shape, *[1] * (len(positions) - 2)), positions
    )


def _class_weights(
    class_weight: Any, T: Array, outputs: Shape, loss: Loss, steps: Array | None
) -> Array:
    """The weight of each target's class, in the shape of the loss's positions.

    A mapping holds weights by label; labels that it lacks have weight 1. A sequence holds a weight
    for each class in order. "balanced" counts the labels that neither `steps` nor the loss ignores.
    """
    classes = loss.classes(outputs)
    if classes is None:
        raise ArgumentError(f"class_weight needs a classification loss, not {loss!r}.")
    w = np.ones(loss.positions(outputs))
    if T.shape != w.shape:
        labels = T.argmax(axis=-1)
    else:
        labels = T if T.dtype.kind == "i" else np.where(T > 0.5, classes[1], classes[0])
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ArgumentError(
                'class_weight takes "balanced", weights by label, or a weight for each class in '
                f"order, got {class_weight!r}."
            )
        counted = labels != getattr(loss, "ignore_index", None)
        counted = counted if steps is None else counted & steps
        _, which, counts = np.unique(labels[counted], return_inverse=True, return_counts=True)
        w[counted] = (counts.sum() / (len(counts) * counts))[which]
        return w
    weights, counted = class_weights(class_weight, classes), np.isin(labels, classes)
    w[counted] = weights[np.searchsorted(classes, labels[counted])]
    return w
