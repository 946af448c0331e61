"""Input validation: arrays checked against a model and its loss, and cast once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import (
    as_finite,
    as_mask,
    as_real,
    as_tokens,
    check_number,
    without_padding,
)
from phitodeep.core.frame import Buffered
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss


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


class Data(NamedTuple):
    """Samples that have been checked and cast: a batch, or a whole data set."""

    X: Array  # (N, ...)
    T: Array  # targets, in the form that the loss uses
    w: Array | None  # (N, ...), broadcast to the loss's positions; None: all are 1
    outputs: Shape  # (N, ...): the shape of the predictions
    mask: Array | None = None  # (N, T): False where X is padding; None: no padding
    output_mask: Array | None = None  # (N, T'): the same for the predictions
    counts: bool = True  # False: placeholders, whose loss, gradients and metrics are left out

    def part(self, rows: slice) -> Data:
        """Return a slice of the samples, as views."""
        return self._pick(lambda _, A: A[rows])

    def of(self, share: Share) -> Data:
        """Return one rank's part of the samples, as views."""
        if share.size == 1:
            return self
        rows, counts = share.rows(0, len(self.X))
        return self.part(rows)._replace(counts=counts)

    def take(self, rows: Array, into: Buffered) -> Data:
        """Copy the samples at `rows` into memory that the next batch may overwrite."""

        def pick(name: str, A: Array) -> Array:
            out = into.buffer(name, (len(rows), *A.shape[1:]), A.dtype)
            return np.take(A, rows, axis=0, out=out, mode="clip")  # "raise" would buffer out

        return self._pick(pick)

    def _pick(self, pick: Callable[[str, Array], Array]) -> Data:
        X = pick("X", self.X)
        T = pick("T", self.T)
        w = None if self.w is None else pick("w", self.w)
        mask = None if self.mask is None else pick("mask", self.mask)
        output_mask = None if self.output_mask is None else pick("output_mask", self.output_mask)
        return Data(X, T, w, (len(X), *self.outputs[1:]), mask, output_mask, self.counts)


def validate(
    model: Chain, loss: Loss, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None, *,
    class_weight: Any = None, names: tuple[str, str] = ("X", "y"),
) -> Data:  # fmt: skip
    """Check samples and targets against the model and its loss, and cast them once."""
    missing = f"{names[0]} was given without {names[1]}"
    if y is None and isinstance(X, tuple) and len(X) == 2:
        raise ArgumentTypeError(f"{missing}: pass a pair as two arguments, {', '.join(names)}.")
    mask = model_mask(model, X, lengths)
    expected = len(y) if hasattr(y, "__len__") else None
    X = validate_inputs(model, X, names[0], mask, count=expected)
    if y is None:
        raise ArgumentTypeError(f"{missing}.")
    y = as_real(y, names[1])
    if y.ndim == 0 or len(y) != len(X):
        count = "is a single number" if y.ndim == 0 else f"has {len(y)} samples"
        raise ShapeError(f"{names[0]} has {len(X)} samples, {names[1]} {count}.")
    shape = model.output_shape if X.shape[1:] == model.input_shape else None
    shape = model._measured(X.shape[1:]).output_shape if shape is None else shape
    outputs = (len(X), *(shape or ()))
    output_mask = None if mask is None else model.compute_mask(mask)
    if output_mask is not None and output_mask.any() and y.shape[:2] == output_mask.shape:
        y = y.copy()  # at padding, any valid target will do: its weight is 0
        y[~output_mask] = y[output_mask][0]
    T = loss.targets(y, outputs, names[1])
    if T.dtype.kind == "f":
        T = as_finite(T, model.dtype, names[1])
    weights = [loss.weights(sample_weight, T, outputs)]
    steps = None if output_mask is None else _step_weights(output_mask, loss.positions(outputs))
    if class_weight is not None:
        weights.append(_class_weights(class_weight, T, outputs, loss, steps))
    weights.append(steps)
    given = [w for w in weights if w is not None]
    w = as_finite(reduce(np.multiply, given), model.dtype, "weights") if given else None
    return Data(X, T, w, outputs, mask, output_mask)


def model_mask(model: Chain, X: Any, lengths: Any) -> Array | None:
    """The mask (N, T) of the steps of X that are not padding, or None if `lengths` is None."""
    if lengths is None:
        return None
    return as_mask(lengths, np.shape(as_real(X, "X")), tokens=model.takes_tokens)


def validate_inputs(
    model: Chain, X: Any, name: str = "X", mask: Array | None = None, *, count: int | None = None
) -> Array:
    """Return samples as a checked array of the model's dtype, 0 where the mask (N, T) is False.

    `count` is the number of samples, if known.
    """
    _refuse_several_inputs(X, name, model, count)
    X = as_tokens(X, name) if model.takes_tokens else as_real(X, name)
    if mask is not None:
        X = without_padding(X, mask)
    if X.ndim == 0 or X.size == 0:
        raise ShapeError(f"{name} needs at least one sample, got shape {X.shape}.")
    if X.shape[1:] != model.input_shape:
        try:
            model._measured(X.shape[1:])
        except ShapeError as error:
            if X.shape == model.input_shape:
                error.message += (
                    f" {name} has the shape of one sample: a model takes a batch of samples, "
                    f"(N, {', '.join(map(str, X.shape))}), such as {name}[None]."
                )
            raise
    if not model.takes_tokens:
        X = as_finite(X, model.dtype, name)
    return X


def _refuse_several_inputs(X: Any, name: str, model: Chain, count: int | None) -> None:
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
        f"{name} is {what}, but a model takes one array: put several inputs side by side with "
        "np.concatenate([...], axis=-1), and pass each part to its own layers with Parallel "
        "and Select(columns)."
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
    if not isinstance(class_weight, Mapping):
        given = as_real(class_weight, "class_weight")
        if given.shape != (len(classes),):
            raise ArgumentError(
                f"class_weight needs a weight for each of {len(classes)} classes, "
                f"got shape {given.shape}."
            )
        class_weight = dict(zip(classes, given.tolist(), strict=True))
    for label, weight in class_weight.items():
        if label not in classes:
            raise ArgumentError(f"class_weight names {label!r}, but the classes are {classes}.")
        w[labels == label] = check_number(weight, f"class_weight of {label}", minimum=0)
    return w
