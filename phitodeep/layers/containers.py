"""Layers made of layers: a tree, never a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError, ShapeError, locate
from phitodeep.layers.base import Layer
from phitodeep.layers.call import calling, current, within
from phitodeep.layers.frame import Frame
from phitodeep.types import Array, DType, Shape


class _Place:
    """Tells errors that pass through which layer of which container they come from."""

    def __init__(self, container: str, part: str = "layer") -> None:
        self.container, self.part, self.i = container, part, 0

    def __enter__(self) -> _Place:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            locate(error, f"{self.part} {self.i} of {self.container}")


class Container(Layer):
    """A layer made of layers, held as attributes, or in lists, tuples and dicts, also nested ones.

    Derive your own from it: what is held is found, so it is built from the same seed, trained,
    counted, copied and saved with the rest. `create`, `forward` and `backward` are the author's.

    In training, nobody reads the dX of the first layer that learns, and layers skip it: their
    `backward` returns None. A container of your own is always asked for dX, so that its inner
    layers give theirs; with `skips_dX = True` it declares that its `backward` copes with None.
    """

    _skips_dX = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "backward" in vars(cls) and not cls.__module__.startswith("phitodeep."):
            if "skips_dX" not in vars(cls):
                cls._skips_dX = False
            if not cls._skips_dX:
                cls.backward = _with_dX(cls.backward)  # type: ignore[method-assign]

    def children(self) -> dict[str, Layer]:
        return {name: value for name, value in self._spread() if isinstance(value, Layer)}

    def _replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        twin = super()._replica(frames)
        copies = {id(layer): layer._replica(frames) for layer in self.children().values()}

        def copied(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: copied(v) for key, v in value.items()}
            if isinstance(value, list | tuple):
                kept = [copied(v) for v in value]
                if hasattr(value, "_fields"):  # a named tuple
                    return type(value)(*kept)
                return kept if isinstance(value, list) else tuple(kept)
            return copies.get(id(value), value)

        for name in {key.partition(".")[0] for key in self.children()}:
            vars(twin)[name] = copied(vars(self)[name])
        return twin

    @property
    def independent_samples(self) -> bool:
        return all(layer.independent_samples for layer in self.children().values())

    @property
    def steps(self) -> str:
        found = {layer.steps for layer in self.children().values()}
        return next((how for how in ("joined", "remembered") if how in found), "independent")

    @property
    def max_steps(self) -> int | None:  # type: ignore[override]
        limits = [layer.max_steps for layer in self.children().values()]
        return min((n for n in limits if n is not None), default=None)

    def _held(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers as a list, if each is one and none comes twice."""
        name = type(self).__name__
        for i, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise ArgumentTypeError(
                    f"{name} takes layers, got {layer!r} at place {i}{_layer_hint(name, layer)}."
                )
        every = []
        for top in layers:
            for _, layer in top.walk():
                layer._check_initialized()
                every.append(id(layer))
        if len(set(every)) < len(every):
            raise ArgumentError(
                f"{name} was given one layer object twice, and a layer has one cache: "
                "use layer.copy() for a second layer."
            )
        return list(layers)

    def build(self, input_shape: Shape, *, seed: Any = None, dtype: DType = None) -> Shape:
        for name, value in vars(self).items():
            if isinstance(value, set | frozenset) and any(isinstance(v, Layer) for v in value):
                raise ArgumentTypeError(
                    f"{self!r} holds layers in the set {name!r}, which has no order: use a list."
                )
        before = set(map(id, self.children().values()))
        shape = super().build(input_shape, seed=seed, dtype=dtype)
        for path, layer in self.children().items() if not self._shapes_only else ():
            if (
                id(layer) not in before
                and layer._seed_sequence.entropy != self._seed_sequence.entropy
            ):
                raise OrderError(
                    f"{self!r}: create made the layer {path}, which has neither this layer's seed "
                    f"nor its dtype: before it is built, give it to self.adopt, as in "
                    f"self.{path.partition('.')[0]} = self.adopt([{layer!r}])."
                )
        return shape

    def adopt(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers that `create` makes, with this layer's seed and dtype, before they are built.

        Keep what it returns in an attribute before you adopt others: seeds go by place.
        """
        for i, layer in enumerate(layers, len(self.children())):
            root = self._seed_sequence
            key = (*root.spawn_key, i)
            layer._set_seed(np.random.SeedSequence(root.entropy, spawn_key=key))
            layer.cast(self.dtype)
            layer.trainable = self.trainable
            for _, part in layer.walk():
                part._shapes_only = self._shapes_only
        return list(layers)

    def flops(self) -> int:
        return sum(layer.flops() for layer in self.children().values())


def _layer_hint(container: str, value: object) -> str:
    """What to write instead of `value`, which is no layer."""
    if isinstance(value, type):
        return f" (did you mean {value.__name__}()?)"
    if isinstance(value, list | tuple | set | dict):
        inside = "*layers.values()" if isinstance(value, dict) else "*layers"
        return f": give each by itself, {container}({inside})"
    if isinstance(value, str):
        return ": activations are layers too, such as ReLU()"
    return ": a function becomes one with Lambda(forward, backward)" if callable(value) else ""


def _with_dX(backward: Callable[..., Array | None]) -> Callable[..., Array | None]:
    """A backward pass whose inner layers are asked for dX, whether or not it is."""

    @functools.wraps(backward)
    def asked(self: Layer, dY: Array) -> Array | None:
        call = current()
        if call.needs_dX:
            return backward(self, dY)
        with within(call._replace(needs_dX=True)):
            return backward(self, dY)

    return asked


class Chain(Container):
    """Layers one after another: Y = f_n(... f_2(f_1(X))).

    Shapes: those of the first layer's X and the last layer's Y.
    Backward is the chain rule: dY goes through the layers from the last to the first. Where
    nobody needs dX, as in training, it ends at the first layer that learns.

    checkpoint    True: forward keeps X only, and backward computes the layers' forward again,
                  with the same random numbers. It takes less memory, and the time of one more
                  forward.
    Source of checkpointing: Chen et al. 2016, "Training deep nets with sublinear memory cost",
    arXiv:1604.06174, sec. 3.
    """

    _ends_with_last = True  # whether the output is that of the last layer
    _skips_dX = True

    def __init__(self, *layers: Layer, checkpoint: bool = False) -> None:
        super().__init__()
        self.layers = self._held(layers)
        self.checkpoint = checkpoint

    def known_input(self) -> Shape | None:
        return self.layers[0].known_input() if self.layers else None

    @property
    def takes_tokens(self) -> bool:  # type: ignore[override]
        return bool(self.layers) and self.layers[0].takes_tokens

    def create(self, shape: Shape) -> Shape:
        with _Place(type(self).__name__) as at:
            for at.i, layer in enumerate(self.layers):
                shape = layer.build(shape)
        return shape

    def _build_known(self) -> None:
        """Build the layers whose input the settings tell; sizes that do not fit are refused."""
        shape: Shape | None = None
        with _Place(type(self).__name__) as at:
            for at.i, layer in enumerate(self.layers):
                shape = layer.known_input() if shape is None else shape
                shape = None if shape is None else layer.build(shape)

    @property
    def _last(self) -> Layer | None:
        """The layer whose output is the chain's, also where it ends in another chain."""
        last = self.layers[-1] if self.layers else None
        return last._last if isinstance(last, Chain) and last._ends_with_last else last

    def _without_last(self) -> Self:
        """The chain up to that layer, with the same layers."""
        end = self.layers[-1]
        nested = [] if end is self._last else [cast(Chain, end)._without_last()]
        other = self._with_layers([*self.layers[:-1], *nested])
        other.output_shape = other.layers[-1].output_shape if other.layers else self.input_shape
        return other

    def _with_layers(self, layers: list[Layer]) -> Self:
        """A chain like this one, of these layers themselves."""
        other = Layer._replica(self)
        other.layers = layers
        return other

    def forward(self, X: Array) -> Array:
        return self._through(X)

    def backward(self, dY: Array) -> Array | None:
        return self._back_through(dY)

    def _through(self, X: Array) -> Array:
        """F(X): all layers, one after another."""
        call = current()
        if not call.caching or call.memory is not None:
            return self._forward(X)
        self._frame.start = (X, call) if self.checkpoint else None
        if not self.checkpoint:
            return self._forward(X)
        with calling(caching=False, reuse=False):
            return self._forward(X)

    def _forward(self, X: Array) -> Array:
        mask, i = current().mask, 0
        masks = None if mask is None else self._masks(mask)
        try:
            for i, layer in enumerate(self.layers):
                if masks is None:
                    X = layer.forward(X)
                    continue
                with calling(mask=masks[i]):
                    X = layer.forward(X)
        except Exception as error:
            locate(error, f"layer {i} of {type(self).__name__}")
            raise
        return X

    def _masks(self, mask: Array) -> list[Array | None]:
        """The mask of each layer's X, and that of the last one's Y."""
        masks: list[Array | None] = [mask]
        with _Place(type(self).__name__) as at:
            for at.i, layer in enumerate(self.layers):
                before = masks[-1]
                masks.append(None if before is None else layer.compute_mask(before))
        return masks

    def compute_mask(self, mask: Array) -> Array | None:
        return self._masks(mask)[-1]

    def _kept_mask(self, mask: Array) -> Array:
        """The mask, if F, which stands next to X, leaves it as it is."""
        after = Chain.compute_mask(self, mask)
        if after is None or not np.array_equal(after, mask):
            raise ArgumentError(
                f"{self!r} sets X and F(X) side by side: under `lengths` F must keep every step, "
                f"and it {'ends them' if after is None else 'changes which ones are there'}."
            )
        return mask

    def _back_through(self, dF: Array) -> Array | None:
        """The gradient of F's input from that of its output."""
        if self._frame.start is None:
            return self._backward(dF)
        X, call = self._frame.start
        now = current()
        before = call._replace(needs_dX=now.needs_dX, reuse=False, again=True, watch=now.watch)
        with within(before):
            self._forward(X)
            dX = self._backward(dF)
        for _, layer in self.walk():
            if layer is not self:
                layer._frame.cache = {}
        return dX

    def _backward(self, dY: Array) -> Array | None:
        """Back through all layers, or to the first that learns, where nobody reads dX."""
        call, first = current(), 0
        if not call.needs_dX:
            first = next((k for k, layer in enumerate(self.layers) if layer._learns()), -1)
            if first < 0:
                return None
        i = first
        try:
            with within(call if call.needs_dX else call._replace(needs_dX=True)):
                for i in range(len(self.layers) - 1, first, -1):
                    before = self.layers[i].backward(dY)
                    if before is None:  # tokens, which have no gradient: nothing goes further
                        return None
                    dY = before
            i = first
            dX = self.layers[i].backward(dY) if self.layers else dY
        except Exception as error:
            locate(error, f"layer {i} of {type(self).__name__}")
            raise
        return dX if call.needs_dX else None


class Residual(Chain):
    """Y = X + F(X), with F the chain of `layers`, which must keep the shape.

    Shapes: X, Y, dX, dY are (N, ...).
    Backward: X reaches Y by two roads, so dX = dY + dF with dF the gradient through the chain.
    Source: He et al. 2016, "Deep residual learning", arXiv:1512.03385, eq. 1.
    """

    _ends_with_last = False

    def create(self, shape: Shape) -> Shape:
        out = super().create(shape)
        if out != shape:
            raise self._misfit(shape, out)
        return shape

    def _misfit(self, shape: Shape, out: Shape) -> ShapeError:
        return ShapeError(
            f"{self!r} adds X to F(X): F must keep the shape {shape}, it gives {out}."
        )

    def forward(self, X: Array) -> Array:
        F = self._through(X)
        if F.shape != X.shape:
            raise self._misfit(X.shape, F.shape)
        return np.add(X, F, out=self.buffer("Y", X.shape, X.dtype))

    def compute_mask(self, mask: Array) -> Array | None:
        return self._kept_mask(mask)

    def backward(self, dY: Array) -> Array | None:
        dF = self._back_through(dY)
        if dF is None:
            return None
        return np.add(dY, dF, out=self.buffer("dX", dY.shape, dY.dtype))

    def flops(self) -> int:
        return super().flops() + int(np.prod(self.output_shape or ()))


class Parallel(Container):
    """Several branches see the same X, and their outputs are merged.

    Shapes: X, dX are (N, ...). `merge` is "concat" (on the last axis; the other axes agree),
    "add" or "multiply" (all outputs have one shape).

    Backward. X reaches Y through every branch, so dX is the sum of the branches' gradients,
    where branch i receives

        concat      its slice of dY
        add         dY
        multiply    dY times the product of the other outputs

    Source: Szegedy et al. 2015, "Going deeper with convolutions", arXiv:1409.4842 (concat).
    """

    _skips_dX = True

    def __init__(self, *branches: Layer, merge: str = "concat") -> None:
        super().__init__()
        if merge not in ("concat", "add", "multiply"):
            raise ArgumentError(
                f'Parallel merge must be "concat", "add" or "multiply", got {merge!r}.'
            )
        if not branches:
            raise ArgumentError("Parallel needs at least one branch.")
        self.branches = self._held(branches)
        self.merge = merge

    @property
    def takes_tokens(self) -> bool:  # type: ignore[override]
        return all(branch.takes_tokens for branch in self.branches)

    def known_input(self) -> Shape | None:
        return next((s for b in self.branches if (s := b.known_input()) is not None), None)

    def create(self, shape: Shape) -> Shape:
        with _Place("Parallel", "branch") as at:
            outs = []
            for at.i, branch in enumerate(self.branches):
                outs.append(branch.build(shape))
        self._check(outs)
        if self.merge == "concat":
            return (*outs[0][:-1], sum(o[-1] for o in outs))
        return outs[0]

    def _check(self, shapes: Sequence[Shape]) -> None:
        if len({s[:-1] if self.merge == "concat" else s for s in shapes}) > 1:
            raise ShapeError(f'{self!r} cannot merge outputs of shapes {shapes} by "{self.merge}".')

    def forward(self, X: Array) -> Array:
        with _Place("Parallel", "branch") as at:
            outs = []
            for at.i, branch in enumerate(self.branches):
                outs.append(branch.forward(X))
        self._check([Y.shape for Y in outs])
        self.save_for_backward(outs=outs)
        if self.merge == "concat":
            return np.concatenate(outs, axis=-1)
        return _product(outs) if self.merge == "multiply" else _sum(outs)

    def backward(self, dY: Array) -> Array | None:
        outs = self.saved("outs")
        if self.merge == "concat":
            ends = np.cumsum([Y.shape[-1] for Y in outs])
            shares = np.split(dY, ends[:-1], axis=-1)
        elif self.merge == "add":
            shares = [dY] * len(outs)
        else:
            shares = [_product([dY, *outs[:i], *outs[i + 1 :]]) for i in range(len(outs))]
        dXs = []
        with _Place("Parallel", "branch") as at:
            for at.i, branch in enumerate(self.branches):
                dXs.append(branch.backward(shares[at.i]))
        given = [dX for dX in dXs if dX is not None]
        return _sum(given) if given and current().needs_dX else None

    def compute_mask(self, mask: Array) -> Array | None:
        masks = []
        with _Place("Parallel", "branch") as at:
            for at.i, branch in enumerate(self.branches):
                masks.append(branch.compute_mask(mask))
        for i, other in enumerate(masks):
            if not np.array_equal(other, masks[0]):  # type: ignore[arg-type]
                raise ArgumentError(
                    f"{self!r}: under `lengths`, all branches must leave the same steps, but "
                    f"branches 0 and {i} do not."
                )
        return masks[0]

    def flops(self) -> int:
        merging = 0 if self.merge == "concat" else len(self.branches) - 1
        return super().flops() + merging * int(np.prod(self.output_shape or ()))


class SkipConcat(Chain):
    """Y = (X, F(X)) side by side on the last axis, with F the chain of `layers`.

    Shapes: X, dX are (N, ..., C); Y, dY are (N, ..., C + C'), where F(X) is (N, ..., C'): F keeps
    all axes but the last. The skip of a U-Net: F goes down, works, and comes up again.
    Backward. X reaches Y by two roads: dX is dY's first C features, and what comes back through F
    from the others.
    Source: Ronneberger, Fischer and Brox 2015, "U-Net", arXiv:1505.04597, fig. 1.
    """

    _ends_with_last = False

    def create(self, shape: Shape) -> Shape:
        out = super().create(shape)
        if out[:-1] != shape[:-1]:
            raise self._misfit(shape, out)
        return (*shape[:-1], shape[-1] + out[-1])

    def _misfit(self, shape: Shape, out: Shape) -> ShapeError:
        return ShapeError(
            f"{self!r} sets X beside F(X): F must keep all axes but the last of {shape}, "
            f"it gives {out}."
        )

    def forward(self, X: Array) -> Array:
        F = self._through(X)
        if F.shape[:-1] != X.shape[:-1]:
            raise self._misfit(X.shape, F.shape)
        self.save_for_backward(channels=X.shape[-1])
        return np.concatenate([X, F], axis=-1)

    def compute_mask(self, mask: Array) -> Array | None:
        return self._kept_mask(mask)

    def backward(self, dY: Array) -> Array | None:
        channels = self.saved("channels")
        dF = self._back_through(np.ascontiguousarray(dY[..., channels:]))
        return None if dF is None else dF + dY[..., :channels]


class TimeDistributed(Container):
    """One layer at every step of (N, T, ...), as if each step were a sample.

    Shapes: X is (N, T, ...); the layer sees (N T, ...), and Y is (N, T, ...) of its outputs.
    Dense, norms and activations work at each step as they are; this is for layers that take
    whole samples, such as Conv2D on the frames of a film.
    Backward: dY and dX change shape in the same way.
    """

    _skips_dX = True
    max_steps = None  # those of the layer are not these
    _mask_remedy = "a layer inside that works on each sample alone, and says so"

    @property
    def steps(self) -> str:
        return "independent" if self.independent_samples else "joined"

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = self._held([layer])[0]

    @property
    def takes_tokens(self) -> bool:  # type: ignore[override]
        return self.layer.takes_tokens

    def create(self, shape: Shape) -> Shape:
        if not shape:
            raise ShapeError(f"{self!r} takes samples of shape (T, ...), got {shape}.")
        return (shape[0], *self.layer.build(shape[1:]))

    def forward(self, X: Array) -> Array:
        if X.ndim < 2:
            raise ShapeError(f"{self!r} takes X (N, T, ...), got shape {X.shape}.")
        self.save_for_backward(shape=X.shape)
        call, first = current(), current().first * X.shape[1]
        with calling(mask=None, memory=None, caching=call.keeps, first=first):
            Y = self.layer.forward(X.reshape(-1, *X.shape[2:]))
        return Y.reshape(*X.shape[:2], *Y.shape[1:])

    def backward(self, dY: Array) -> Array | None:
        shape = self.saved("shape")
        dX = self.layer.backward(dY.reshape(-1, *dY.shape[2:]))
        return None if dX is None else dX.reshape(shape)

    def flops(self) -> int:
        return (self.input_shape or (0,))[0] * self.layer.flops()


def _sum(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for a in arrays[1:]:
        total += a
    return total


def _product(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for a in arrays[1:]:
        total *= a
    return total
