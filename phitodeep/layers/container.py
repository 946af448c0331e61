"""The base class of layers that hold layers: a tree, never a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from phitodeep.core.call import current, within
from phitodeep.core.frame import Frame
from phitodeep.core.types import Array, DType, Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError, locate
from phitodeep.layers.base import Layer


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
                layer._check_initialized()
                ids.append(id(layer))
        if len(set(ids)) < len(ids):
            raise ArgumentError(
                f"{name} was given the same layer object twice, but a layer has only one cache: "
                "use layer.copy() for the second one."
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


def _with_dX(backward: Callable[..., Array | None]) -> Callable[..., Array | None]:
    """Wrap `backward` so that its inner layers always compute dX, even if the caller needs none."""

    @functools.wraps(backward)
    def with_dX(self: Layer, dY: Array) -> Array | None:
        call = current()
        if call.needs_dX:
            return backward(self, dY)
        with within(call._replace(needs_dX=True)):
            return backward(self, dY)

    return with_dX


class Position:
    """A context manager that adds the failing layer's position to the path in its error."""

    def __init__(self, container: str, part: str = "layer") -> None:
        self.container, self.part, self.i = container, part, 0

    def __enter__(self) -> Position:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            locate(error, f"{self.part} {self.i} of {self.container}")
