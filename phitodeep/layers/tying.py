"""Layers that own no parameters: tied weights, and any pair of functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, cast

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag, check_option
from phitodeep.core.frame import Frame
from phitodeep.core.types import Array, Shape, each, one
from phitodeep.derivations import dense as derived
from phitodeep.derivations.language.step import Derivation
from phitodeep.errors import ArgumentTypeError, ShapeError
from phitodeep.layers.base import Layer, PerStep
from phitodeep.layers.containers import Around, Container
from phitodeep.layers.embedding import Embedding

__all__ = ["Lambda", "Shared", "TiedDense"]

LARGEST_SAMPLE = 1 << 26  # numbers: as many as a quarter of a gigabyte holds


class TiedDense(PerStep):
    """Scores of all tokens: Y = X W^T, with the W of an Embedding.

    Shapes: X, dX are (..., dim); Y, dY are (..., vocab_size); W (vocab_size, dim) belongs to the
    embedding, so it is counted, saved and updated once. Each score is the dot product of x with a
    token's vector.

    Backward. dX = dY W. The gradient of W from this use is dY^T X, which the optimizer adds to the
    gradient from the embedding's own use.
    Source: Press and Wolf 2017, "Using the output embedding", arXiv:1608.05859.
    """

    refers_to = ("embedding",)  # which the model holds at another path

    steps = derived.tied_dense

    def __init__(self, embedding: Embedding) -> None:
        if not isinstance(embedding, Embedding):
            raise ArgumentTypeError(f"TiedDense takes an Embedding, got {embedding!r}.")
        self.embedding = embedding

    @property
    def tied(self) -> dict[str, tuple[Layer, str]]:
        return {"W": (self.embedding, "W")}

    def create(self, shape: Shape) -> Shape:
        self._check_features(shape, self.embedding.dim)
        return (*shape[:-1], self.embedding.vocab_size)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.embedding.dim)
        W, rows = self.embedding.W, X.reshape(-1, X.shape[-1])
        Y = self.buffer("Y", (len(rows), len(W)), X.dtype)
        np.matmul(rows, W.T, out=Y)
        self.save_for_backward(rows=rows)
        return Y.reshape(*X.shape[:-1], len(W))

    def backward(self, dY: Array) -> Array | None:
        W, rows = self.embedding.W, self.saved("rows")
        dY_rows = dY.reshape(-1, len(W))
        if self.needs_grad("W"):
            self.grad_product("W", dY_rows, rows)
        if not current().needs_dX:
            return None
        dX = np.matmul(dY_rows, W, out=self.buffer("dX", rows.shape, dY.dtype))
        return dX.reshape(*dY.shape[:-1], W.shape[1])

    def flops(self) -> int:
        positions = int(np.prod(self.output_shape[:-1])) if self.output_shape else 0
        return 2 * positions * self.embedding.vocab_size * self.embedding.dim

    def __repr__(self) -> str:
        return f"TiedDense({self.embedding!r})"


class Lambda(Layer):
    """Your own function and its backward: Y = forward(X), dX = backward(dY, X, Y).

    Shapes: X, Y are (N, ...), as the functions require. The layer has no parameters. Test the two
    functions with `check_gradients`. Where the source of `forward` can be read, traces and the
    debugger show its formulas, and those of the backward pass that `derive` finds.

    inputs                 with 2, say, Y = forward(X1, X2), and backward(dY, X1, X2, Y) returns the
                           tuple of dX1 and dX2, None for one without a gradient
    independent_samples    True: sample i of Y depends only on sample i of X, so that threads may
                           split a batch
    steps                  "independent": step t of Y depends only on step t of X (N, T, ...), so
                           that masks pass through and `generate` can work step by step
    """

    kept_as: ClassVar = {"forward": "function", "backward": "derivative", "steps": "time_steps"}
    _mask_remedy = (
        'if its functions treat each step separately, write Lambda(..., steps="independent")'
    )

    def __init__(
        self,
        forward: Callable[..., Array],
        backward: Callable[..., Any],
        *,
        inputs: int = 1,
        independent_samples: bool = False,
        steps: str = "joined",
    ) -> None:
        if not callable(forward) or not callable(backward):
            raise ArgumentTypeError("Lambda takes two functions: forward(X), backward(dY, X, Y).")
        self.function, self.derivative = forward, backward
        self._inputs = check_count(inputs, "Lambda inputs")
        self.independent_samples = check_flag(independent_samples, "Lambda independent_samples")
        self.time_steps = check_option(steps, "Lambda steps", ("independent", "joined"))

    @property
    def inputs(self) -> int:
        return self._inputs

    def create(self, *shapes: Shape) -> Shape:
        if sum(map(math.prod, shapes)) > LARGEST_SAMPLE:
            raise ShapeError(
                f"{self!r} runs its function on a sample of zeros to learn the shape of Y, and "
                f"samples of shape {' and '.join(map(str, shapes))} are too large for that."
            )
        with np.errstate(all="ignore"):
            return self.function(*[np.zeros((1, *s), self.dtype) for s in shapes]).shape[1:]

    def forward(self, *Xs: Array) -> Array:
        Y = self.function(*Xs).astype(Xs[0].dtype, copy=False)
        self.save_for_backward(Xs=Xs, Y=Y)
        return Y

    def backward(self, dY: Array) -> Any:
        Xs, Y = self.saved("Xs", "Y")
        dXs = each(self.derivative(dY, *Xs, Y))
        if len(dXs) != self.inputs:
            raise ArgumentTypeError(
                f"{self!r}: backward must return {self.inputs} gradients, one for each input, "
                f"got {len(dXs)}."
            )
        found = [dX if dX is None else dX.astype(dY.dtype, copy=False) for dX in dXs]
        return one(found, self.inputs == 1)

    def steps(self) -> Derivation | None:
        from phitodeep.derivations.derive.own import steps_of

        return steps_of(self, self.function)

    def __repr__(self) -> str:
        names = (getattr(f, "__name__", "?") for f in (self.function, self.derivative))
        return f"Lambda({', '.join(names)})"


class Shared(Around):
    """A layer at a second place: the same weights, with caches and random numbers of its own.

    Shapes: X, dX, Y, dY are as in the layer, which may see samples of another size here.

    layer    the layer at its first place, in the same model

    Backward is that of the layer. The gradient of a weight W from this use is added to the
    gradient from the layer's own use, since W reaches the loss through both.
    Source: Bromley et al. 1993, "Signature verification using a siamese time delay neural
    network", sec. 3.
    """

    is_shared = True  # its settings are those of the layer
    refers_to = ("layer", "_use")  # which the model holds at another path
    _use: Layer | None = None  # a replica of the layer that runs in this layer's frame

    def __init__(self, layer: Layer) -> None:
        if not isinstance(layer, Layer):
            raise ArgumentTypeError(f"Shared takes a layer of the model, got {layer!r}.")
        while isinstance(layer, Shared):
            layer = layer.layer
        self.layer = layer
        self._parts: dict[str, Layer] = {}  # those of a container, as shared layers

    @property
    def tied(self) -> dict[str, tuple[Layer, str]]:
        return self.layer.tied | {name: (self.layer, name) for name in self.layer.params}

    def children(self) -> dict[str, Layer]:
        return dict(self._parts)

    def create(self, *shapes: Shape) -> Any:
        measured = self.layer._measured(shapes[0] if len(shapes) == 1 else cast(Shape, shapes))
        for name, W in self.layer.params.items():
            if measured.params[name].shape != W.shape:
                raise ShapeError(
                    f"{self!r}: samples of shape {measured.input_shape} need {name} of shape "
                    f"{measured.params[name].shape}, and that of the layer is {W.shape}."
                )
        inside = self.layer.children()
        for key, part in measured.children().items():
            if key not in self._parts:
                self._parts[key] = self.adopt([Shared(inside.get(key, part))])[0]
            self._parts[key].build(cast(Shape, part.input_shape))
        self._use = None
        self.input_shape = measured.input_shape
        return measured.output_shape

    def forward(self, *Xs: Array) -> Any:
        return _unguarded(type(self.layer).forward)(self._bound(), *Xs)

    def backward(self, *dYs: Array) -> Any:
        return _unguarded(type(self.layer).backward)(self._bound(), *dYs)

    def _bound(self) -> Layer:
        """Return a replica of the layer that runs in this layer's frame, with its own parts."""
        use, now = self._use, (self._frame, self._seed_sequence, self.layer._trainable)
        if use is None or (use._frame, use._seed, use._trainable) != now:
            use = self._use = Layer._replica(self.layer)
            own = ("_frame", "_seed", "input_shape", "output_shape")
            vars(use).update({name: getattr(self, name) for name in own}, _original=self)
            if isinstance(use, Container):
                inside = self.layer.children()
                use._replace({id(inside[key]): part for key, part in self._parts.items()})
        return use

    def _replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        twin = Layer._replica(self, frames)
        twin._parts = {key: part._replica(frames) for key, part in self._parts.items()}
        return twin

    def _replace(self, layers: Mapping[int, Layer]) -> None:
        self._parts = {key: layers.get(id(part), part) for key, part in self._parts.items()}

    def compute_mask(self, *masks: Any) -> Any:
        return self._bound().compute_mask(*masks)

    def steps(self) -> Any:
        return self._bound().steps()

    def flops(self) -> int:
        return self._bound().flops()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_use": None}

    def __repr__(self) -> str:
        return f"Shared({self.layer!r})"


def _unguarded(run: Callable[..., Any]) -> Callable[..., Any]:
    """The pass as its author wrote it: the shared layer's own guard has done what guards do."""
    return cast(Callable[..., Any], getattr(run, "__wrapped__", run))


def _as_the_layer(name: str) -> property:
    return property(lambda self: getattr(self.layer, name))


_SAME = ("takes_tokens", "gives", "time_steps", "max_steps", "keeps_lock", "independent_samples")
for _name in _SAME:
    setattr(Shared, _name, _as_the_layer(_name))
