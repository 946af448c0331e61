"""Random numbers of a layer: initial values, and masks and noise that repeat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.initialization import Initializer
from phitodeep.layers.call import current
from phitodeep.layers.frame import Buffered
from phitodeep.types import Array, Shape

RandomKey = tuple[int, int, int]  # place of the first sample, step, and kind of step


class Seeded(Buffered):
    """Something with random streams of its own, all of them a function of one seed."""

    _shapes_only: bool  # in a copy that only computes shapes, which draws nothing
    _generator: np.random.Generator | None  # of initial values
    _seed: np.random.SeedSequence | None

    def children(self) -> dict[str, Any]:
        """The layers inside, each of which gets a stream of its own."""
        return {}

    def draw(self, initializer: Initializer, shape: Shape) -> Array:
        """Return initial values of a parameter, from this layer's own generator."""
        if self._shapes_only:
            return np.broadcast_to(np.float32(0), shape)
        assert self._generator is not None
        return initializer.draw(shape, self._generator)

    def uniform(self, shape: Shape, key: RandomKey | None = None, part: int = 0) -> Array:
        """Return float32 values in [0, 1), a pure function of seed, layer path, key and sample.

        Philox is counter based: its counter is set to (place of the first sample, key, part). So
        a thread that handles part of a batch sees the values that the whole batch would see, and a
        backward pass can have the values of its forward pass again.
        """
        n, each = shape[0], math.prod(shape[1:])
        ticks = -(-each // 8)  # one tick of the counter gives eight float32
        seed = self._seed_sequence.generate_state(2, np.uint64)
        first, step, kind = key or self._random_key()
        counter = [first * ticks, step, kind, part]
        drawn = self.buffer("uniform", (n, 8 * ticks), np.float32)
        bits = np.random.Philox(key=seed, counter=counter)
        np.random.Generator(bits).random(out=drawn, dtype=np.float32)
        return drawn[:, :each].reshape(shape)

    def _random_key(self) -> RandomKey:
        """Return what sets the random values of this forward pass apart from all others.

        That is the place of the first sample, and the optimizer's step; outside training, the
        number of forward passes so far.
        """
        call = current()
        if call.step is not None:
            return call.first, call.step, 0
        self._frame.passes += not call.again
        return call.first, self._frame.passes, 1

    def _set_seed(self, seed: Any) -> None:
        """Give this layer and those below random streams of their own, one for each path.

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
