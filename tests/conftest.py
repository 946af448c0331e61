"""What several test files share: a generator, Ctrl-C, stored numbers, batches cut into parts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from phitodeep.core.types import Array
from phitodeep.testing.references import read
from phitodeep.training import parts as threads

collect_ignore = ["browser"]  # `make test-browser` names this folder, and so runs it

settings.register_profile("phitodeep", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("phitodeep")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def keyboard() -> Iterator[None]:
    """Ctrl-C interrupts this process and those it starts, as in a terminal.

    Shells let processes in the background ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def references(name: str) -> dict[str, dict[str, Array]]:
    """The arrays of each case in tests/reference/`name`.npz: of whole models, and of noise."""
    return read(Path(__file__).parent / "reference" / f"{name}.npz")


def assert_same(a: dict[str, Array], b: dict[str, Array], **precision: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], err_msg=name, **({"rtol": 0} | precision))


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
