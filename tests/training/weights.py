"""Two models whose weights must be equal, or close."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_weights(one: Any, other: Any, rtol: float = 0.0, atol: float = 1e-12) -> None:
    """Fail unless two models, or dicts of arrays, have equal weights; with rtol, close ones."""
    a, b = (each if isinstance(each, dict) else each.get_weights() for each in (one, other))
    assert a.keys() == b.keys()
    for path in a:
        if rtol:
            np.testing.assert_allclose(b[path], a[path], rtol=rtol, atol=atol, err_msg=path)
        else:
            np.testing.assert_array_equal(b[path], a[path], err_msg=path)
