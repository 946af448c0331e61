"""Cut large work into blocks: long vectors so that they stay in the processor's cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from phitodeep.core.types import Array

F = TypeVar("F", bound=Callable[..., Any])
BLOCK = 1 << 14  # elements per block


def in_blocks(run: F) -> F:
    """Make an elementwise function of vectors process them block by block."""

    @functools.wraps(run)
    def run_in_blocks(*vectors: Array) -> None:
        for i in range(0, vectors[0].size, BLOCK):
            run(*[v[i : i + BLOCK] for v in vectors])

    return cast(F, run_in_blocks)
