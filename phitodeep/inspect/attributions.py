"""Attributions: how much each input contributes to a prediction, by its gradient.

What is explained is a score: one output of each sample, before a softmax or sigmoid at the end. A
replica of the model computes it, so nothing is written into the caches of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from phitodeep.core.call import Call, current, watching, within
from phitodeep.core.checks import as_finite, as_real, check_count, check_option
from phitodeep.core.types import Array, Shape
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackwardError,
    NotBuiltError,
    ShapeError,
)
from phitodeep.inspect.cache import run_with_cache
from phitodeep.inspect.hooks import At, Hooked
from phitodeep.layers.attention import Attention
from phitodeep.layers.images import resize
from phitodeep.training.inputs import model_mask, validate_inputs
from phitodeep.training.objective import Trainable
from phitodeep.training.shortcuts import logits

STEPS = 50  # points on the path of integrated gradients, by default
MOST_STEPS = 1000  # computing the points takes a second, and eight times as long for twice as many
OWNER = {"baseline": "integrated", "steps": "integrated", "layer": "grad_cam"}  # of each option


Shapes = dict[str, Shape]  # of one output of each layer, by path


class Samples(NamedTuple):
    """Samples, and what to explain about each of them."""

    X: Array
    mask: Array | None  # (N, T): False where X is padding
    step: Array | None  # (N,): the explained step; None if the output has no steps
    target: Array | None  # (N,): the explained output; None: the one with the highest score

    def take(self, rows: Any) -> Self:
        """Return the samples at these rows, a slice or an array of indices."""
        return type(self)._make(None if a is None else a[rows] for a in self)


class Scores:
    """The scores of a model, as functions of an array A in it.

    path    of the layer that returns A; None: A is the model's input
    """

    def __init__(self, model: Trainable, path: str | None, shapes: Shapes) -> None:
        self.model, self.path = model, path
        self.body = logits(model, 1 + len(shapes[""]))._replica()

    def gradient(self, part: Samples, A: Array | None = None) -> tuple[Array, Array, Array]:
        """Return A, the gradient dA of the samples' scores, and the explained outputs (N,).

        If A is given, it replaces the array in the model.
        """
        seen: dict[str, Array] = {}

        def keep(array: Array, at: At) -> Array | None:
            seen[at.direction] = array
            return A if at.direction == "forward" else None

        names = ("X", "dX") if self.path is None else ("Y", "dY")
        places = zip([self.path or ""] * 2, ("forward", "backward"), names, strict=True)
        hooks = Hooked(self.model, dict.fromkeys(places, keep), current().watch)
        mode = Call(training=False, mask=part.mask)  # as in `saliency`, whoever calls
        with within(mode), watching(hooks, root=self.model, recomputed=True):
            P = self.body.forward(part.X)
            rows = np.arange(len(P))
            place = (rows,) if part.step is None else (rows, part.step)
            target = P[place].argmax(axis=-1) if part.target is None else part.target
            dP = np.zeros_like(P)
            dP[*place, target] = 1
            self.body.backward(dP)
        if "backward" not in seen:
            raise BackwardError(
                f"attributions: the backward pass of {self.model!r} does not reach "
                f"{'its input' if self.path is None else f'layer {self.path!r}'}."
            )
        return seen["forward"], seen["backward"], target


def attributions(
    model: Trainable, X: Any, method: str, *, target: Any, step: int, lengths: Any, **options: Any
) -> Array:
    """Return how much each input contributes to a score: see `Sequential.attributions`.

    Each of the other options belongs to one method: see OWNER.
    """
    check_option(method, "attributions method", tuple(METHODS))
    for name, value in options.items():
        if value is not None and method != OWNER[name]:
            raise ArgumentError(
                f'attributions: {name}= is an option of method="{OWNER[name]}", got '
                f"method={method!r}: leave it out."
            )
    if any(part.output_shape is None and part._declared for _, part in model.walk()):
        raise NotBuiltError(
            "attributions needs a model that is built: call build(input_shape), or train it first."
        )
    if (model.inputs, model.outputs) != (1, 1):
        raise ArgumentError(
            "attributions explains a model with one input and one output, and this network has "
            f"{model.inputs} and {model.outputs}: model.trace shows all gradients, such as "
            f"{'backward.dX1' if model.inputs > 1 else 'backward.dX'}."
        )
    mask = model_mask(model, X, lengths)
    X = validate_inputs(model, X, mask=mask)
    twin = model if X.shape[1:] == model.input_shape else model._measured(X.shape[1:])
    shapes = {path: part.output_shape or () for path, part in twin.walk()}
    output = shapes[""]
    if len(output) not in (1, 2):
        raise ShapeError(
            "attributions explains one of several outputs (N, K) or (N, T, K), but this model "
            f"returns samples of shape {output}: end it with Flatten(), for example."
        )
    output_mask = None if mask is None else model.compute_mask(mask)
    samples = Samples(
        X, mask, _step(step, output, len(X), output_mask), _target(target, output[-1], len(X))
    )
    explain = METHODS[method](model, X, shapes, **options)
    size = model.samples_at_once()
    rows = [slice(i, i + size) for i in range(0, len(X), size)]
    return np.concatenate([explain(samples.take(part), part) for part in rows])


Explain = Callable[[Samples, slice], Array]  # (samples, their rows of X) -> attributions


def gradient(model: Trainable, X: Array, shapes: Shapes, **_: Any) -> Explain:
    """dS/dX of the score S; for tokens, the gradient of their vectors (N, T, D)."""
    scores = Scores(model, _input(model), shapes)
    return lambda part, _: scores.gradient(part)[1]


def gradient_x_input(model: Trainable, X: Array, shapes: Shapes, **_: Any) -> Explain:
    """x dS/dx for each input, summed over the vector of a token."""
    scores = Scores(model, _input(model), shapes)
    return lambda part, _: _per_input(np.multiply(*scores.gradient(part)[:2]), part.X)


def integrated(
    model: Trainable, X: Array, shapes: Shapes, *, baseline: Any, steps: int | None, **_: Any
) -> Explain:
    """(x - b) times the mean of dS/dx on the straight path from b to x.

    The mean is Gauss and Legendre's quadrature, which is exact for polynomials of degree
    2 steps - 1. `samples_at_once` limits how many points of all paths are computed at a time.
    """
    scores, size = Scores(model, _input(model), shapes), model.samples_at_once()
    steps = STEPS if steps is None else check_count(steps, "attributions steps", maximum=MOST_STEPS)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    a, w = ((v / 2).astype(model.dtype) for v in (nodes + 1, weights))
    vector = () if scores.path is None else shapes[scores.path][-1:]
    start = _baseline(baseline, model, (*X.shape, *vector))

    def explain(part: Samples, rows: slice) -> Array:
        A, dA, target = scores.gradient(part)
        b = start[rows].reshape(A.shape)
        way, total, n = A - b, np.zeros_like(A), len(part.X)
        part = part._replace(target=target)  # also where another output is the highest
        at_once = max(1, size // n)
        for i in range(0, steps, at_once):
            points = b + np.multiply.outer(a[i : i + at_once], way)
            tiled = part.take(np.tile(np.arange(n), len(points)))
            _, dA, _ = scores.gradient(tiled, points.reshape(-1, *A.shape[1:]))
            total += np.tensordot(w[i : i + at_once], dA.reshape(points.shape), 1)
        return _per_input(way * total, part.X)

    return explain


def grad_cam(model: Trainable, X: Array, shapes: Shapes, *, layer: str | None, **_: Any) -> Explain:
    """relu(sum_c alpha_c A_c) with alpha_c the mean of dS/dA_c, for the channels A_c of a layer."""
    images: Shapes = {path: shape for path, shape in shapes.items() if len(shape) == 3}
    path = _default_layer(images) if layer is None else layer
    if path not in images:
        raise ArgumentError(
            "attributions layer must be the path of a layer that returns images (height, width, "
            f"C), which are {', '.join(images)}, got {path!r}."
        )
    size = (X.shape[1:] if X.ndim > 2 else next(iter(images.values())))[:2]
    scores = Scores(model, path, shapes)

    def explain(part: Samples, _: slice) -> Array:
        A, dA, _target = scores.gradient(part)
        if len(A) != len(part.X):
            raise ShapeError(
                f"attributions: layer {path!r} returns {len(A)} images for {len(part.X)} samples: "
                "choose a layer that returns one image per sample."
            )
        maps = np.einsum("nhwc,nc->nhw", A, dA.mean(axis=(1, 2)))
        return resize(np.maximum(maps, 0)[..., None], *size)[..., 0]

    return explain


METHODS: dict[str, Callable[..., Explain]] = {
    "gradient": gradient,
    "gradient_x_input": gradient_x_input,
    "integrated": integrated,
    "grad_cam": grad_cam,
}


def _per_input(values: Array, X: Array) -> Array:
    """Return values in the shape of X; those of a token's vector are summed."""
    return values if values.shape == X.shape else values.sum(axis=-1).reshape(X.shape)


# --- arguments -------------------------------------------------------------------------------


def _target(target: Any, outputs: int, n: int) -> Array | None:
    """Return the explained output of each of n samples, (n,), or None for the highest score."""
    if target is None:
        return None
    given = as_real(target, "attributions target")
    if given.dtype.kind not in "iu" or given.shape not in ((), (n,)):
        raise ArgumentTypeError(
            f"attributions target must be an integer or {n} integers, one per sample, got "
            f"{given.dtype} of shape {given.shape}."
        )
    wrong = (given < 0) | (given >= outputs)
    if wrong.any():
        raise ArgumentError(
            f"attributions target must be from 0 to {outputs - 1}, because the model has {outputs} "
            f"outputs, got {given[wrong][0]}."
        )
    return np.broadcast_to(given, n)


def _step(step: int, output: Shape, n: int, mask: Array | None) -> Array | None:
    """Return the explained step of each of n samples, (n,), or None for outputs without steps."""
    if len(output) == 1:
        if step != -1:
            raise ArgumentError(
                f"attributions: step={step} needs outputs (N, T, K), but this model returns "
                f"(N, {output[0]}): leave it out."
            )
        return None
    T = output[0]
    step = check_count(step, "attributions step", minimum=-T, maximum=T - 1)
    mask = np.ones((n, T), bool) if mask is None else mask
    ends = T - mask[:, ::-1].argmax(axis=1)  # one past the last step that is not padding
    found = ends + step if step < 0 else np.full(n, step)
    wrong = (found < 0) | ~mask[np.arange(n), np.maximum(found, 0)]
    if wrong.any():
        i = int(wrong.argmax())
        raise ArgumentError(
            f"attributions: sample {i} has no step {step}: it has {mask[i].sum()} steps."
        )
    return found


def _input(model: Trainable) -> str | None:
    """Return None if X holds floats; for tokens, the path of the layer that turns them to vectors.

    Floats that become tokens inside the model, and several such layers, are refused.
    """
    paths = [path for path, part in model.walk() if part.takes_tokens and not part.children()]
    if not paths:
        return None
    if not model.takes_tokens or len(paths) > 1:
        raise ArgumentError(
            f"attributions: tokens have no gradient, and here the layers {', '.join(paths)} turn "
            'them into vectors: only method="grad_cam" can explain this model.'
        )
    return paths[0]


def _baseline(baseline: Any, model: Trainable, shape: Shape) -> Array:
    """Return where the paths start, as a view of this shape: that of X, or of tokens' vectors."""
    given = as_finite(0 if baseline is None else baseline, model.dtype, "attributions baseline")
    try:
        return np.broadcast_to(given, shape)
    except ValueError:
        what = "the vectors of the tokens" if model.takes_tokens else "X"
        raise ShapeError(
            "attributions baseline must be a number, one sample of shape "
            f"{shape[1:]}, or an array like {what}, {shape}, got shape {given.shape}."
        ) from None


def _default_layer(images: Shapes) -> str:
    """Return the last layer that returns images of several pixels, with all that it is part of."""
    several = [path for path, shape in images.items() if math.prod(shape[:2]) > 1]
    if not several:
        raise ArgumentError(
            'attributions: method="grad_cam" needs a layer that returns images (height, width, C), '
            'such as Conv2D, but this model has none: use method="integrated".'
        )
    return next(path for path in several if f"{several[-1]}.".startswith(f"{path}."))


def attention_maps(model: Trainable, X: Any, *, lengths: Any = None) -> dict[str, Array]:
    """Return the probabilities of all attention layers: see `Sequential.attention_maps`."""
    layers = [path for path, part in model.walk() if isinstance(part, Attention)]
    if not layers:
        raise ArgumentError(
            "attention_maps needs a MultiHeadAttention or ScaledDotProductAttention: there is none."
        )
    _, cache = run_with_cache(model, X, lengths=lengths)
    return {path: cache[f"{path}.P"] for path in layers}
