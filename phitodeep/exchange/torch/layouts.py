"""Where the channels are: in PyTorch, on the second axis of images, and on the last one elsewhere.

Between two modules, a value of several axes is in the layout "first" (N, C, ...) or "last"
(N, ..., C). Behind a Flatten of an image, the layout is the order of its features: feature j there
is our feature order[j].
"""

from __future__ import annotations

import math

import numpy as np

from phitodeep.core.types import Array, Shape

Layout = str | Array
FIRST, LAST = "first", "last"
IMAGE = 3  # axes of a sample that is an image (height, width, C)
NAMES = {0: "N", 1: "NC", 2: "NTC", IMAGE: "NCHW", 4: "NTHWC"}


def outer(shape: Shape) -> str:
    """Return the layout in which a module takes or returns samples of our `shape`."""
    return FIRST if len(shape) == IMAGE else LAST


def named(shape: Shape, tokens: bool = False) -> str:
    """Return the name of that layout for users, such as "NCHW"."""
    return "NT" if tokens and len(shape) == 1 else NAMES.get(len(shape), "N...C")


def flat_order(shape: Shape) -> Array:
    """Return the order of the features of flattened channels-first samples, given our shape."""
    return np.moveaxis(np.arange(math.prod(shape)).reshape(shape), -1, 0).ravel()


def to_theirs(A: Array, layout: Layout) -> Array:
    """Return a batch of ours as PyTorch has it."""
    if isinstance(layout, str):
        return np.moveaxis(A, -1, 1) if layout == FIRST else A
    return A[:, layout]


def to_ours(A: Array, layout: Layout) -> Array:
    """Return a batch from PyTorch as ours."""
    if isinstance(layout, str):
        return np.moveaxis(A, 1, -1) if layout == FIRST else A
    return A[:, np.argsort(layout)]
