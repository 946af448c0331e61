"""Attributions: how much each input contributes to a prediction, by its gradient.

What is explained is a score: one output of each sample, before a softmax or sigmoid at the end. A
replica of the model computes it, so nothing is written into the caches of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import Call, current, watching, within
from phitodeep.core.checks import as_finite, as_real, check_count, check_option
from phitodeep.core.types import Array, Shape, cut, each, joined, numbered, on_each
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
from phitodeep.layers.wiring import Wired
from phitodeep.loss.heads import by_name
from phitodeep.training.objective import Trainable
from phitodeep.training.shortcuts import logits

STEPS = 50  # points on the path of integrated gradients, by default
MOST_STEPS = 1000  # computing the points takes a second, and eight times as long for twice as many
METHODS = ("gradient", "gradient_x_input", "integrated", "grad_cam")
OWNER = {"baseline": "integrated", "steps": "integrated", "layer": "grad_cam"}  # of each option


Shapes = dict[str, Shape]  # of one output of each layer, by path
Place = tuple[str, str]  # a path, and the symbol of an array there; its gradient has a d before it


class Samples(NamedTuple):
    """Samples, and what to explain about each of them."""

    X: Any  # an array, or of several inputs a tuple
    mask: Any  # (N, T): False where X is padding; or a tuple
    step: Array | None  # (N,): the explained step; None if the output has no steps
    target: Array | None  # (N,): the explained output; None: the one with the highest score

    def take(self, rows: Any) -> Samples:
        """Return the samples at these rows, a slice or an array of indices."""
        return Samples(*cut(tuple(self), rows))


class Scores:
    """The scores of a model, as functions of arrays in it.

    output    the number of the output that is explained
    shape     its shape
    places    where the arrays are; the path of the model itself is ""
    """

    def __init__(self, model: Trainable, output: int, shape: Shape, places: list[Place]) -> None:
        self.model, self.output, self.places = model, output, places
        self.body = logits(model, 1 + len(shape), output)._replica()

    def gradient(
        self, part: Samples, given: list[Array] | None = None
    ) -> tuple[list[Array], list[Array], Array]:
        """Return the arrays, the gradients of the samples' scores, and the explained outputs (N,).

        If arrays are given, they replace those in the model.
        """
        seen: dict[Place, Array] = {}
        new = {} if given is None else dict(zip(self.places, given, strict=True))
        slopes = [(path, f"d{A}") for path, A in self.places]

        def keep(array: Array, at: At) -> Array | None:
            seen[at.path, at.symbol] = array
            return new.get((at.path, at.symbol))

        keys = [(path, "forward", A) for path, A in self.places]
        keys += [(path, "backward", dA) for path, dA in slopes]
        hooks = Hooked(self.model, dict.fromkeys(keys, keep), current().watch)
        mode = Call(training=False, mask=part.mask)  # as in `saliency`, whoever calls
        with within(mode), watching(hooks, root=self.model, recomputed=True):
            Ps = each(self.body.forward(*each(part.X)))
            P, dPs = Ps[self.output], [np.zeros_like(P) for P in Ps]
            rows = np.arange(len(P))
            place = (rows,) if part.step is None else (rows, part.step)
            target = P[place].argmax(axis=-1) if part.target is None else part.target
            dPs[self.output][*place, target] = 1
            self.body.backward(*dPs)
        for path, dA in slopes:
            if (path, dA) not in seen:
                raise BackwardError(
                    f"attributions: the backward pass of {self.model!r} does not reach "
                    f"{f'layer {path!r}' if path else f'its input: there is no {dA}'}."
                )
        return [seen[place] for place in self.places], [seen[place] for place in slopes], target


def attributions(
    model: Trainable, X: Any, method: str, *, target: Any, step: int, lengths: Any, output: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """Return how much each input contributes to a score: see `Sequential.attributions`.

    Each of the other options belongs to one method: see OWNER.
    """
    check_option(method, "attributions method", METHODS)
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
    output = model.returns[0] if output is None and model.outputs == 1 else output
    k = model.returns.index(check_option(output, "attributions output", model.returns))
    X, mask = model._inputs(X, lengths)
    n, sample = len(each(X)[0]), on_each(lambda A: A.shape[1:], X)
    twin = model if sample == model.input_shape else model._measured(sample)
    shapes = {path: part._outs()[0] if part._outs() else () for path, part in twin.walk()}
    shape = twin._outs()[k]
    if len(shape) not in (1, 2):
        raise ShapeError(
            "attributions explains one of several outputs (N, K) or (N, T, K), but this model "
            f"returns samples of shape {shape}: end it with Flatten(), for example."
        )
    ends = None if mask is None else each(model.compute_mask(*each(mask)))[k]
    samples = Samples(X, mask, _step(step, shape, n, ends), _target(target, shape[-1], n))
    if method == "grad_cam":
        places, pixels = _layer_of_images(model, X, shapes, options["layer"])
    else:
        places = _places(model)
    scores, size = Scores(model, k, shape, places), model.samples_at_once()
    if method == "integrated":
        steps = STEPS if options["steps"] is None else options["steps"]
        steps = check_count(steps, "attributions steps", maximum=MOST_STEPS)
        vectors = [shapes[path][-1:] if path else () for path, _ in places]
        wanted = [(*A.shape, *vector) for A, vector in zip(each(X), vectors, strict=True)]
        starts = _baselines(options["baseline"], model, wanted)

    def explain(rows: slice) -> list[Array]:
        part = samples.take(rows)
        arrays, slopes, target = scores.gradient(part)
        if method == "gradient":
            return slopes
        if method == "grad_cam":
            return [_cam(arrays[0], slopes[0], len(each(part.X)[0]), places[0][0], pixels)]
        if method == "integrated":  # (x - b) instead of x, and the mean of all slopes between them
            b = [start[rows].reshape(A.shape) for start, A in zip(starts, arrays, strict=True)]
            arrays = [A - start for A, start in zip(arrays, b, strict=True)]
            part = part._replace(target=target)  # also where another output is the highest
            slopes = _mean_slopes(scores, part, b, arrays, steps, size)
        values = zip(map(np.multiply, arrays, slopes), each(part.X), strict=True)
        # of a token, the sum over its vector
        return [v if v.shape == A.shape else v.sum(axis=-1).reshape(A.shape) for v, A in values]

    found = joined([tuple(explain(slice(i, i + size))) for i in range(0, n, size)])
    return found[0] if len(found) == 1 else dict(zip(model.takes, found, strict=True))


def _mean_slopes(
    scores: Scores, part: Samples, b: list[Array], ways: list[Array], steps: int, size: int
) -> list[Array]:
    """The means of dS/dx on the straight paths from b to b + way, for all inputs at once.

    They are Gauss and Legendre's quadrature, which is exact for polynomials of degree
    2 steps - 1. At most `size` points of all paths are computed at a time.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    a, w = ((v / 2).astype(scores.model.dtype) for v in (nodes + 1, weights))
    means, n = [np.zeros_like(A) for A in ways], len(each(part.X)[0])
    at_once = max(1, size // n)
    for i in range(0, steps, at_once):
        now = a[i : i + at_once]
        points = [start + np.multiply.outer(now, way) for start, way in zip(b, ways, strict=True)]
        tiled = part.take(np.tile(np.arange(n), len(now)))
        _, slopes, _ = scores.gradient(tiled, [A.reshape(-1, *A.shape[2:]) for A in points])
        for mean, A, dA in zip(means, points, slopes, strict=True):
            mean += np.tensordot(w[i : i + at_once], dA.reshape(A.shape), 1)
    return means


def _layer_of_images(
    model: Trainable, X: Any, shapes: Shapes, layer: str | None
) -> tuple[list[Place], Shape]:
    """Return the place of the layer that Grad-CAM looks at, and the size of its maps."""
    images: Shapes = {path: shape for path, shape in shapes.items() if len(shape) == 3}
    several = [path for path, shape in images.items() if math.prod(shape[:2]) > 1]
    if layer is None and not several:
        raise ArgumentError(
            'attributions: method="grad_cam" needs a layer that returns images (height, width, C), '
            'such as Conv2D, but this model has none: use method="integrated".'
        )
    # by default, the last layer that returns images of several pixels, with all it is part of
    blocks = (path for path in several if f"{several[-1]}.".startswith(f"{path}."))
    path = next(blocks) if layer is None else layer
    if path not in images:
        raise ArgumentError(
            "attributions layer must be the path of a layer that returns images (height, width, "
            f"C), which are {', '.join(images)}, got {path!r}."
        )
    given = [A.shape[1:] for A in _read_by(model, path, each(X)) if A.ndim > 2]
    return [(path, "Y")], (*given, next(iter(images.values())))[0][:2]


def _cam(A: Array, dA: Array, n: int, path: str, size: Shape) -> Array:
    """relu(sum_c alpha_c A_c) with alpha_c the mean of dS/dA_c, for the channels A_c of a layer."""
    if len(A) != n:
        raise ShapeError(
            f"attributions: layer {path!r} returns {len(A)} images for {n} samples: "
            "choose a layer that returns one image per sample."
        )
    maps = np.einsum("nhwc,nc->nhw", A, dA.mean(axis=(1, 2)))
    return resize(np.maximum(maps, 0)[..., None], *size)[..., 0]


def _read_by(model: Trainable, path: str, Xs: tuple[Array, ...]) -> list[Array]:
    """Return the inputs on which the layer at this path depends."""
    if not isinstance(model, Wired):
        return [*Xs]
    _, values, _ = model.uses[int(path.partition(".")[0])]
    before = {*values}
    for _, reads, gives in reversed(model.uses):
        before.update(() if before.isdisjoint(gives) else reads)
    return [A for name, A in zip(model.takes, Xs, strict=True) if name in before]


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


def _places(model: Trainable) -> list[Place]:
    """Return where each input is seen: X, or for tokens, what the layer that reads them returns.

    Floats that become tokens inside the model, and tokens that several layers read, are refused.
    """
    names, tokens = model.takes, each(model.takes_tokens)
    paths = [p for p, part in model.walk() if any(each(part.takes_tokens)) and not part.children()]
    uses = model.uses if isinstance(model, Wired) else [(model, names, names)]
    read = [v for part, reads, _ in uses if any(each(part.takes_tokens)) for v in reads]
    if not len(paths) == len(read) == sum(tokens):  # a layer for each input of tokens, in order
        raise ArgumentError(
            f"attributions: tokens have no gradient, and here the layers {', '.join(paths)} turn "
            'them into vectors: only method="grad_cam" can explain this model.'
        )
    vectors = dict(zip(read, paths, strict=True))
    symbols = numbered("X", names if len(names) > 1 else names[0])
    return [
        (vectors[name], "Y") if name in vectors else ("", symbol)
        for symbol, name in symbols.items()
    ]


def _baselines(baseline: Any, model: Trainable, shapes: list[Shape]) -> list[Array]:
    """Return where the paths start, as views of these shapes: of X, or of tokens' vectors."""
    names, tokens = model.takes, each(model.takes_tokens)
    several = len(names) > 1 or isinstance(baseline, Mapping)
    values = by_name(baseline, names, "attributions baseline") if several else {names[0]: baseline}
    found = []
    for name, shape, token in zip(names, shapes, tokens, strict=True):
        value, who = values.get(name), f"attributions baseline{f' of {name!r}' if several else ''}"
        given = as_finite(0 if value is None else value, model.dtype, who)
        try:
            found.append(np.broadcast_to(given, shape))
        except ValueError:
            what = "the vectors of the tokens" if token else name
            raise ShapeError(
                f"{who} must be a number, one sample of shape {shape[1:]}, or an array like "
                f"{what}, {shape}, got shape {given.shape}."
            ) from None
    return found


def attention_maps(model: Trainable, X: Any, *, lengths: Any = None) -> dict[str, Array]:
    """Return the probabilities of all attention layers: see `Sequential.attention_maps`."""
    layers = [path for path, part in model.walk() if isinstance(part, Attention)]
    if not layers:
        raise ArgumentError(
            "attention_maps needs a MultiHeadAttention or ScaledDotProductAttention: there is none."
        )
    _, cache = run_with_cache(model, X, lengths=lengths)
    return {path: cache[f"{path}.P"] for path in layers}
