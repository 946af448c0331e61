"""Random values of a layer: initial values, and reproducible masks and noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.initialization import Initializer
from phitodeep.layers.call import current
from phitodeep.layers.frame import Buffered
from phitodeep.types import Array, Shape

RandomKey = tuple[int, int, int]  # index of the first sample, step, and kind of step


class Seeded(Buffered):
    """Base class of objects whose random values are all derived from one seed."""

    _shapes_only: bool  # in a copy that only computes shapes, which draws nothing
    _generator: np.random.Generator | None  # draws initial values
    _seed: np.random.SeedSequence | None

    def children(self) -> dict[str, Any]:
        """Return the layers inside; each gets its own random stream."""
        return {}

    def draw(self, initializer: Initializer, shape: Shape) -> Array:
        """Return initial values of a parameter, from this layer's own generator."""
        if self._shapes_only:
            return np.broadcast_to(np.float32(0), shape)
        assert self._generator is not None
        return initializer.draw(shape, self._generator)

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
