"""Two models whose weights must be equal, or close."""

from __future__ import annotations

from typing import Any

from tests.conftest import assert_same


def assert_weights(one: Any, other: Any, rtol: float = 0.0, atol: float | None = None) -> None:
    """Fail unless two models, or dicts of arrays, have equal weights; with rtol, close ones."""
    a, b = (each if isinstance(each, dict) else each.get_weights() for each in (one, other))
    atol = (1e-12 if rtol else 0.0) if atol is None else atol
    assert_same(b, a, rtol=rtol, atol=atol)
