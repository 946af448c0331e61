"""What several test files share: a generator, and the numbers of tools/make_references.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from phitodeep.training import threads
from phitodeep.types import Array

settings.register_profile("phitodeep", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("phitodeep")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def references(name: str) -> dict[str, dict[str, Array]]:
    """The arrays of each case in tests/reference/`name`.npz."""
    cases: dict[str, dict[str, Array]] = defaultdict(dict)
    with np.load(Path(__file__).parent / "reference" / f"{name}.npz") as stored:
        for key in stored.files:
            case, _, array = key.rpartition("/")
            if case:
                cases[case][array] = stored[key]
    return dict(cases)


@contextmanager
def in_parts(count: int) -> Iterator[None]:
    """Cut every batch into `count` parts, however small it is."""
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, count)
        yield


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Call it to cut every batch into so many parts, until the test ends."""
    return partial(_cut, monkeypatch)


def _cut(patch: pytest.MonkeyPatch, count: int) -> None:
    patch.setattr(threads, "parts_of", lambda flops: count)
    patch.setattr(threads, "SMALL", 0)
