"""Random values of a layer: initial values, and reproducible masks and noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.frame import Buffered
from phitodeep.core.types import Array, DType, Shape
from phitodeep.errors import ShapeError
from phitodeep.layers.initialization import Initializer

RandomKey = tuple[int, int, int]  # index of the first sample, step, and kind of step
LARGEST = 1 << 48  # elements of an array: more than any computer holds

_SHAPES_ONLY: ContextVar[bool] = ContextVar("phitodeep_shapes_only", default=False)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside the `with` block, new layers know the shapes of their arrays but allocate none."""
    token = _SHAPES_ONLY.set(True)
    try:
        yield
    finally:
        _SHAPES_ONLY.reset(token)


class Seeded(Buffered):
    """Base class of objects whose random values are all derived from one seed."""

    _shapes_only: bool  # in a copy that only computes shapes, which draws nothing
    _generator: np.random.Generator | None  # draws initial values
    _seed: np.random.SeedSequence | None

    def children(self) -> dict[str, Any]:
        """Return the layers inside; each gets its own random stream."""
        return {}

    def draw(self, initializer: Initializer, shape: Shape, copies: int = 1) -> Array:
        """Return initial values of a parameter, from this layer's own generator.

        Several `copies` of the shape are drawn one by one and joined along the last axis.
        """
        if self._shapes_only:
            return _placeholder((*shape[:-1], copies * shape[-1]))
        assert self._generator is not None
        drawn = [initializer.draw(shape, self._generator) for _ in range(copies)]
        return drawn[0] if copies == 1 else np.concatenate(drawn, axis=-1)

    def full(self, size: int, value: float) -> Array:
        """Return initial values (size,) of a parameter or state, all equal to `value`."""
        return _placeholder((size,)) if self._shapes_only else np.full(size, float(value))

    def uniform(self, shape: Shape, key: RandomKey | None = None, part: int = 0) -> Array:
        """Return float32 values in [0, 1), a pure function of seed, layer path, key and sample.

        Philox is a counter-based generator: its counter starts at the first sample's position, the
        rest of the key, and `part`. A thread that handles part of a batch therefore draws the
        values that the whole batch would draw, and a backward pass can repeat the values of its
        forward pass.
        """
        n, per_sample = shape[0], math.prod(shape[1:])
        ticks = -(-per_sample // 8)  # one tick of the counter produces eight float32 values
        seed = self._seed_sequence.generate_state(2, np.uint64)
        first, step, kind = key or self._random_key()
        counter = [first * ticks, step, kind, part]
        drawn = self.buffer("uniform", (n, 8 * ticks), np.float32)
        bits = np.random.Philox(key=seed, counter=counter)
        np.random.Generator(bits).random(out=drawn, dtype=np.float32)
        return drawn[:, :per_sample].reshape(shape)

    def _normal(self, shape: Shape, dtype: DType) -> Array:
        """Return standard normal values, drawn in float32 like those of `uniform`.

        Each is sqrt(-2 log(1 - u)) cos(2 pi v) of two uniform values u and v, so that every value
        requires the same number of draws.
        Source: Box and Muller 1958, Ann. Math. Statist. 29, p. 610.
        """
        u, v = np.moveaxis(self.uniform((*shape, 2)), -1, 0)
        E: Array = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        return E.astype(dtype, copy=False)

    def _random_key(self) -> RandomKey:
        """Return a key under which this forward pass draws values that no other pass draws.

        It holds the index of the first sample and the optimizer's step or, outside training, the
        number of predictions or forward passes so far.
        """
        call = current()
        if call.step is not None:
            return call.first, call.step, 0
        if call.draw is not None:
            return call.first, call.draw, 2
        self._frame.passes += not call.again
        return call.first, self._frame.passes, 1

    def _set_seed(self, seed: Any) -> None:
        """Give this layer and each layer below it a separate random stream.

        `seed` is an integer or a NumPy SeedSequence.
        """
        root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._seed = root
        for i, child in enumerate(self.children().values()):
            key = (*root.spawn_key, i)
            child._set_seed(np.random.SeedSequence(root.entropy, spawn_key=key))

    @property
    def _seed_sequence(self) -> np.random.SeedSequence:
        if self._seed is None:
            self._set_seed(np.random.SeedSequence())
        assert self._seed is not None
        return self._seed


def _placeholder(shape: Shape) -> Array:
    """Return an array of this shape that takes no memory."""
    if math.prod(shape) > LARGEST:
        raise ShapeError(f"an array of shape {shape} is too large for any computer.")
    return np.broadcast_to(np.float32(0), shape)
