"""Containers: layers that hold other layers, and how both passes go through them.

Containers form a tree, never a graph. A chain is the chain rule, with checkpoints and masks; the
other containers combine branches.

Long because every container is derived from `Container`, and most of them from `Chain`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Self, cast

import numpy as np

from phitodeep.core.call import calling, current, within
from phitodeep.core.checks import check_flag, check_option
from phitodeep.core.frame import Frame
from phitodeep.core.types import Array, DType, Shape, on_each, one
from phitodeep.derivations import containers as derived
from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError, ShapeError, locate
from phitodeep.layers.base import Layer

__all__ = ["Chain", "Parallel", "Residual", "SkipConcat", "TimeDistributed"]


class Container(Layer, registered=False):
    """A layer that holds other layers: as attributes, or in (nested) lists, tuples and dicts.

    Derive your own containers from this class. It finds the layers inside, so that they are built
    from the same seed, trained, counted, copied and saved like all other layers. You write
    `create`, `forward` and `backward`.

    In training, the dX of the first layer that learns is not needed, so layers skip it: their
    `backward` returns None. Your own container is always asked for dX, so its inner layers always
    return theirs too. Set `skips_dX = True` if its `backward` can handle None.
    """

    skips_dX = False
    checkpoint = False  # True: forward keeps only X, and backward runs it again; see Chain
    _forward: Callable[..., Any]  # both passes without checkpoints, of containers that have them
    _backward: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "backward" in vars(cls) and not cls.__module__.startswith("phitodeep."):
            if "skips_dX" not in vars(cls):
                cls.skips_dX = False
            if not cls.skips_dX:
                cls.backward = _with_dX(cls.backward)  # type: ignore[method-assign]

    def children(self) -> dict[str, Layer]:
        return {name: value for name, value in self._attributes() if isinstance(value, Layer)}

    def _replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        twin = super()._replica(frames)
        twin._replace({id(layer): layer._replica(frames) for layer in self.children().values()})
        return twin

    def _replace(self, layers: Mapping[int, Layer]) -> None:
        """Put other layers in the places of children, whose ids are the keys."""

        def replaced(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: replaced(v) for key, v in value.items()}
            if isinstance(value, list | tuple):
                kept = [replaced(v) for v in value]
                if hasattr(value, "_fields"):  # a namedtuple
                    return type(value)(*kept)
                return kept if isinstance(value, list) else tuple(kept)
            return layers.get(id(value), value)

        for name in {key.partition(".")[0] for key in self.children()}:
            vars(self)[name] = replaced(vars(self)[name])

    @property
    def independent_samples(self) -> bool:
        return all(layer.independent_samples for layer in self.children().values())

    @property
    def time_steps(self) -> str:
        found = {layer.time_steps for layer in self.children().values()}
        return next((how for how in ("joined", "remembered") if how in found), "independent")

    @property
    def max_steps(self) -> int | None:  # type: ignore[override]
        limits = [layer.max_steps for layer in self.children().values()]
        return min((n for n in limits if n is not None), default=None)

    @property
    def keeps_lock(self) -> bool:
        return any(layer.keeps_lock for layer in self.children().values())

    @property
    def _last(self) -> Layer | None:
        """The layer whose output is the container's output, if there is one."""
        return None

    def _outputs_by_layer(self) -> dict[Layer, frozenset[str]]:
        """Return for all layers which of several outputs depend on them; empty if there is one."""
        return {}

    @contextmanager
    def _at(self, i: int) -> Iterator[None]:
        """Add layer i to the path of an error in the body of a `with` statement.

        It takes microseconds, which both passes save by handling the error themselves.
        """
        try:
            yield
        except Exception as error:
            locate(error, self._place(i))
            raise

    def _place(self, i: int) -> str:
        """Return what errors call layer i."""
        return f"layer {i} of {type(self).__name__}"

    def _held(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the layers as a list; refuse other objects, and any layer that appears twice."""
        name = type(self).__name__
        for i, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise ArgumentTypeError(
                    f"{name} takes layers, got {layer!r} at position {i}{_layer_hint(name, layer)}."
                )
        ids = []
        for top in layers:
            for _, layer in top.walk():
                ids.append(id(layer))
        if len(set(ids)) < len(ids):
            raise ArgumentError(
                f"{name} was given the same layer object twice, but a layer has only one cache: "
                "use Shared(layer) at the second place, or layer.copy() for weights of its own."
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
                    f"{self!r}: create added the layer {path}, which has neither the seed nor "
                    f"the dtype of its container: pass it to self.adopt before it is built, as in "
                    f"self.{path.partition('.')[0]} = self.adopt([{layer!r}])."
                )
        return shape

    def adopt(self, layers: Sequence[Layer]) -> list[Layer]:
        """Give layers created in `create` this layer's seed and dtype, before they are built.

        Assign the returned list to an attribute before you adopt more layers: each seed depends on
        how many layers the container already holds.
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

    # --- both passes, which may keep only X between them -----------------------------------------

    def _through(self, *Xs: Array) -> Any:
        """Return F(X), what `_forward` returns; with a checkpoint, keep only X."""
        call = current()
        if not call.caching or call.memory is not None:
            return self._forward(*Xs)
        self._frame.start = (Xs, call) if self.checkpoint else None
        if not self.checkpoint:
            return self._forward(*Xs)
        with calling(caching=False, reuse=False):
            return self._forward(*Xs)

    def _back_through(self, *dYs: Array) -> Any:
        """Return what `_backward` returns: the gradient of X, given that of F(X)."""
        if self._frame.start is None:
            return self._backward(*dYs)
        Xs, call = self._frame.start
        now = current()
        replay = call._replace(needs_dX=now.needs_dX, again=True, watch=now.watch)
        with within(replay):
            self._forward(*Xs)
            dX = self._backward(*dYs)
        for _, layer in self.walk():
            if layer is not self:
                layer._frame.cache = {}
        return dX

    def flops(self) -> int:
        return sum(layer.flops() for layer in self.children().values())


def _layer_hint(container: str, value: object) -> str:
    """A hint for the error message: what to write instead of `value`, which is not a layer."""
    if isinstance(value, type):
        return f" (did you mean {value.__name__}()?)"
    if isinstance(value, list | tuple | set | dict):
        inside = "*layers.values()" if isinstance(value, dict) else "*layers"
        return f": pass them one by one, {container}({inside})"
    if isinstance(value, str):
        return ": activations are layers too, such as ReLU()"
    return ": wrap a function in Lambda(forward, backward)" if callable(value) else ""


def _with_dX(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `backward` so that its inner layers always compute dX, even if the caller needs none."""

    @functools.wraps(backward)
    def with_dX(self: Layer, *dYs: Array) -> Any:
        call = current()
        with within(call if call.needs_dX else call._replace(needs_dX=True)):
            return backward(self, *dYs)

    return with_dX


class Chain(Container):
    """Apply layers one after another: Y = f_n(... f_2(f_1(X))).

    Shapes: X, dX are as in the first layer; Y, dY are as in the last layer.
    Backward is the chain rule: dY goes through the layers from the last to the first. If dX is not
    needed, as in training, it stops at the first layer that learns.

    checkpoint    True: forward keeps only X, and backward computes the layers' forward pass again,
                  with the same random numbers. This saves memory and costs the time of one more
                  forward pass.
    Source of checkpointing: Chen et al. 2016, "Training deep nets with sublinear memory cost",
    arXiv:1604.06174, sec. 3.
    """

    _ends_with_last = True  # whether the chain's output is the output of its last layer
    skips_dX = True

    steps = derived.chain

    def _begin(self) -> None:
        super()._begin()
        self.layers: list[Layer] = []
        self._numbers: Sequence[int] | None = None  # the layers' positions in the chain as written

    def __init__(self, *layers: Layer, checkpoint: bool = False) -> None:
        self.layers = self._held(layers)
        self.checkpoint = check_flag(checkpoint, f"{type(self).__name__} checkpoint")

    def create(self, shape: Shape) -> Shape:
        for i, layer in enumerate(self.layers):
            with self._at(i):
                shape = layer.build(shape)
        return shape

    def forward(self, X: Array) -> Array:
        return self._through(X)

    def backward(self, dY: Array) -> Array | None:
        return self._back_through(dY)

    def _forward(self, X: Array) -> Array:
        mask = current().mask
        masks = None if mask is None else self._masks(mask)
        i = 0
        try:
            for i, layer in enumerate(self.layers):
                if masks is None:
                    X = layer.forward(X)
                    continue
                with calling(mask=masks[i]):
                    X = layer.forward(X)
        except Exception as error:
            locate(error, self._place(i))
            raise
        return X

    def _backward(self, dY: Array) -> Array | None:
        """Run all layers backward or, if dX is not needed, those down to the first that learns."""
        call, first = current(), 0
        if not call.needs_dX:
            first = next((k for k, layer in enumerate(self.layers) if layer._learns()), -1)
            if first < 0:
                return None
        i = first
        try:
            with within(call if call.needs_dX else call._replace(needs_dX=True)):
                for i in range(len(self.layers) - 1, first, -1):
                    dX = self.layers[i].backward(dY)
                    if dX is None:  # the layer's input holds tokens, which have no gradient
                        return None
                    dY = dX
            i = first
            dX = self.layers[i].backward(dY) if self.layers else dY
        except Exception as error:
            locate(error, self._place(i))
            raise
        return dX if call.needs_dX else None

    # --- masks -------------------------------------------------------------------------------

    def compute_mask(self, mask: Array) -> Array | None:
        return self._masks(mask)[-1]

    def _masks(self, mask: Array) -> list[Array | None]:
        """The mask of each layer's X, followed by the mask of the last layer's Y."""
        masks: list[Array | None] = [mask]
        for i, layer in enumerate(self.layers):
            before = masks[-1]
            with self._at(i):
                masks.append(None if before is None else layer.compute_mask(before))
        return masks

    # --- what the model and the training loop use --------------------------------------------

    @property
    def takes_tokens(self) -> bool:
        return self.layers[0].takes_tokens if self.layers else False

    def known_input(self) -> Shape | None:
        return self.layers[0].known_input() if self.layers else None

    def _build_known(self) -> None:
        """Build the layers whose input shape the settings determine, and check that they fit."""
        shape: Shape | None = None
        for i, layer in enumerate(self.layers):
            shape = layer.known_input() if shape is None else shape
            with self._at(i):
                shape = None if shape is None else layer.build(shape)

    @property
    def gives(self) -> Any:
        last = self._last if self._ends_with_last else None
        return "" if last is None else last.gives

    @property
    def _last(self) -> Layer | None:
        """The layer whose output is the chain's output, even if it is inside a nested chain."""
        last = self.layers[-1] if self.layers else None
        return last._last if isinstance(last, Chain) and last._ends_with_last else last

    def _without_last(self) -> Self:
        """A chain of the same layer objects, without `_last`."""
        end = self.layers[-1]
        nested = [] if end is self._last else [cast(Chain, end)._without_last()]
        other = self._with_layers([*self.layers[:-1], *nested], self._numbers)
        other.output_shape = other.layers[-1].output_shape if other.layers else self.input_shape
        return other

    def _with_layers(self, layers: list[Layer], numbers: Sequence[int] | None = None) -> Self:
        """A chain with the same settings that holds these layer objects.

        `numbers` are the layers' positions in this chain, which errors report.
        """
        other = Layer._replica(self)
        other.layers, other._numbers = layers, numbers
        return other

    def _number(self, i: int) -> int:
        """Return the position of layer i in the chain as written."""
        return i if self._numbers is None else self._numbers[i]

    def _place(self, i: int) -> str:
        return super()._place(self._number(i))

    def children(self) -> dict[str, Layer]:
        children = super().children()
        if self._numbers is None:
            return children
        written = {f"layers.{i}": f"layers.{n}" for i, n in enumerate(self._numbers)}
        return {written.get(key, key): layer for key, layer in children.items()}


class _Skip(Chain):
    """Base class of chains F whose output is combined with their input."""

    _ends_with_last = False

    def create(self, shape: Shape) -> Shape:
        return self._combined(shape, super().create(shape))

    def _combined(self, shape: Shape, out: Shape) -> Shape:
        """Return the shape of Y for X and F(X) of these shapes; refuse those that do not fit."""
        raise NotImplementedError

    def compute_mask(self, mask: Array) -> Array | None:
        after = super().compute_mask(mask)
        if after is None or not np.array_equal(after, mask):
            raise ArgumentError(
                f"{self!r} combines X and F(X): with `lengths`, F must keep every step, but it "
                f"{'removes the time axis' if after is None else 'changes which steps count'}."
            )
        return mask


class Residual(_Skip):
    """A residual connection, Y = X + F(X), around the chain F of `layers`.

    Shapes: X, Y, dX, dY are (N, ...). F must keep the shape.
    Backward: X reaches Y directly and through F, so dX = dY + dF, with dF the gradient through F.
    Source: He et al. 2016, "Deep residual learning", arXiv:1512.03385, eq. 1.
    """

    steps = derived.residual

    def forward(self, X: Array) -> Array:
        F = self._through(X)
        if F.shape != X.shape:
            self._combined(X.shape, F.shape)
        return np.add(X, F, out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array | None:
        dF = self._back_through(dY)
        if dF is None:
            return None
        return np.add(dY, dF, out=self.buffer("dX", dY.shape, dY.dtype))

    def _combined(self, shape: Shape, out: Shape) -> Shape:
        if out != shape:
            raise ShapeError(
                f"{self!r} adds X to F(X): F must keep the shape {shape}, but it returns {out}."
            )
        return shape

    def flops(self) -> int:
        return super().flops() + math.prod(self.output_shape or ())


class Parallel(Container):
    """Apply several branches to the same X and merge their outputs.

    Shapes: X, dX are (N, ...). With merge="concat", branch i returns (N, ..., C_i), and Y, dY are
    (N, ..., sum of all C_i). With "add" or "multiply", all outputs must have the same shape, which
    is also the shape of Y, dY.

    Backward. X reaches Y through every branch, so dX is the sum of the branches' gradients.
    Branch i receives

        concat      its slice of dY
        add         dY
        multiply    dY times the product of the other outputs

    Source: Szegedy et al. 2015, "Going deeper with convolutions", arXiv:1409.4842 (concat).
    """

    skips_dX = True

    steps = derived.parallel

    def __init__(self, *branches: Layer, merge: str = "concat") -> None:
        self.merge = check_option(merge, "Parallel merge", ("concat", "add", "multiply"))
        if not branches:
            raise ArgumentError("Parallel needs at least one branch.")
        self.branches = self._held(branches)

    def create(self, shape: Shape) -> Shape:
        outs = self._each(lambda branch: branch.build(shape))
        self._check(outs)
        if self.merge == "concat":
            return (*outs[0][:-1], sum(o[-1] for o in outs))
        return outs[0]

    def forward(self, X: Array) -> Array:
        outs = self._each(lambda branch: branch.forward(X))
        self._check([Y.shape for Y in outs])
        self.save_for_backward(outs=outs)
        if self.merge == "concat":
            return np.concatenate(outs, axis=-1)
        return reduce(np.multiply if self.merge == "multiply" else np.add, outs)

    def backward(self, dY: Array) -> Array | None:
        outs = self.saved("outs")
        if self.merge == "concat":
            shares = np.split(dY, np.cumsum([Y.shape[-1] for Y in outs])[:-1], axis=-1)
        elif self.merge == "add":
            shares = [dY] * len(outs)
        else:
            others = [[*outs[:i], *outs[i + 1 :]] for i in range(len(outs))]
            shares = [reduce(np.multiply, factors, dY) for factors in others]
        share = iter(shares)
        dXs = self._each(lambda branch: branch.backward(next(share)))
        given = [dX for dX in dXs if dX is not None]
        return reduce(np.add, given) if given and current().needs_dX else None

    def _each(self, run: Callable[[Layer], Any]) -> list[Any]:
        """Return what `run` returns for each branch; its errors gain the branch in their path."""
        found: list[Any] = []
        for i, branch in enumerate(self.branches):
            try:
                found.append(run(branch))
            except Exception as error:
                locate(error, self._place(i))
                raise
        return found

    def _place(self, i: int) -> str:
        return f"branch {i} of Parallel"

    def _check(self, shapes: Sequence[Shape]) -> None:
        if len({s[:-1] if self.merge == "concat" else s for s in shapes}) > 1:
            raise ShapeError(
                f'{self!r} cannot merge outputs of shapes {shapes} with merge="{self.merge}".'
            )

    @property
    def takes_tokens(self) -> bool:
        return all(branch.takes_tokens for branch in self.branches)

    def known_input(self) -> Shape | None:
        return next((s for b in self.branches if (s := b.known_input()) is not None), None)

    def compute_mask(self, mask: Array) -> Array | None:
        masks = self._each(lambda branch: branch.compute_mask(mask))
        for i, other in enumerate(masks):
            if not np.array_equal(other, masks[0]):
                raise ArgumentError(
                    f"{self!r}: with `lengths`, all branches must keep the same steps, but "
                    f"branches 0 and {i} differ."
                )
        first: Array | None = masks[0]
        return first

    def flops(self) -> int:
        merging = 0 if self.merge == "concat" else len(self.branches) - 1
        return super().flops() + merging * math.prod(self.output_shape or ())


class SkipConcat(_Skip):
    """A skip connection: concatenate X and F(X), where F is the chain of `layers`.

    Shapes: X, dX are (N, ..., C); Y, dY are (N, ..., C + C'), where F(X) is (N, ..., C'): F must
    keep all axes except the last. This is the skip connection of a U-Net, in which F is all that
    lies between an encoder stage and the decoder stage of the same resolution.
    Backward. X reaches Y directly and through F, so dX is the first C features of dY plus the
    gradient of the other features through F.
    Source: Ronneberger, Fischer and Brox 2015, "U-Net", arXiv:1505.04597, fig. 1.
    """

    steps = derived.skip_concat

    def forward(self, X: Array) -> Array:
        F = self._through(X)
        self._combined(X.shape, F.shape)
        self.save_for_backward(channels=X.shape[-1])
        return np.concatenate([X, F], axis=-1)

    def backward(self, dY: Array) -> Array | None:
        channels = self.saved("channels")
        dF = self._back_through(np.ascontiguousarray(dY[..., channels:]))
        return None if dF is None else dF + dY[..., :channels]

    def _combined(self, shape: Shape, out: Shape) -> Shape:
        if out[:-1] != shape[:-1]:
            raise ShapeError(
                f"{self!r} concatenates X and F(X): F must keep all axes of {shape} except the "
                f"last, but it returns {out}."
            )
        return (*shape[:-1], shape[-1] + out[-1])


class Around(Container, registered=False):
    """Base class of containers that take and return as many values as the one layer inside."""

    layer: Layer

    @property
    def inputs(self) -> Any:
        return self.layer.inputs

    @property
    def outputs(self) -> Any:
        return self.layer.outputs


class TimeDistributed(Around):
    """Apply a layer to every step of (N, T, ...), as if each step were a sample.

    Shapes: X is (N, T, ...). The inner layer receives X as (N T, ...), and Y is its output as
    (N, T, ...). If the layer has several inputs or outputs, each of them has T steps.
    Dense, norms and activations do not need it: they already treat each step separately. Use it for
    layers that work on whole samples, such as Conv2D on the frames of a video.
    Backward: dY and dX are reshaped in the same way.
    """

    skips_dX = True
    max_steps = None  # the inner layer's limit, if any, applies to its own time axis
    _mask_remedy = "use an inner layer that declares independent_samples = True"

    steps = derived.time_distributed

    def __init__(self, layer: Layer) -> None:
        self.layer = self._held([layer])[0]

    def create(self, *shapes: Shape) -> Any:
        if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
            given = " and ".join(map(str, shapes))
            raise ShapeError(f"{self!r} takes samples of shape (T, ...), got {given}.")
        self.layer.build(one([shape[1:] for shape in shapes], self.inputs == 1))
        return one([(shapes[0][0], *out) for out in self.layer._outs()], self.outputs == 1)

    def forward(self, *Xs: Array) -> Any:
        N_T = Xs[0].shape[:2]
        if any(X.ndim < 2 or X.shape[:2] != N_T for X in Xs):
            given = " and ".join(str(X.shape) for X in Xs)
            raise ShapeError(f"{self!r} takes X (N, T, ...), got shape {given}.")
        self.save_for_backward(N_T=N_T)
        call, first = current(), current().first * N_T[1]
        with calling(mask=None, memory=None, caching=call.keeps, first=first):
            Y = self.layer.forward(*[X.reshape(-1, *X.shape[2:]) for X in Xs])
        return on_each(lambda rows: rows.reshape(*N_T, *rows.shape[1:]), Y)

    def backward(self, *dYs: Array) -> Any:
        dX = self.layer.backward(*[dY.reshape(-1, *dY.shape[2:]) for dY in dYs])
        N_T = self.saved("N_T")
        return on_each(lambda rows: rows.reshape(*N_T, *rows.shape[1:]), dX)

    @property
    def time_steps(self) -> str:
        with calling(training=True):  # what holds in training holds in predictions too
            return "independent" if self.independent_samples else "joined"

    @property
    def gives(self) -> Any:
        return self.layer.gives

    @property
    def takes_tokens(self) -> Any:
        return self.layer.takes_tokens

    def flops(self) -> int:
        return next((out[0] for out in self._outs()), 0) * self.layer.flops()
