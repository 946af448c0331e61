"""Without PyTorch, the error names the extra to install; the names are there all the same."""

import sys

import numpy as np
import pytest

import phitodeep.io
from phitodeep import Dense, Sequential
from phitodeep.errors import MissingExtraError


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    model, X = Sequential(Dense(3, 2)), np.ones((2, 3))
    for call in (
        lambda: phitodeep.io.to_torch(model),
        lambda: phitodeep.io.from_torch(None, (3,)),
        lambda: phitodeep.io.compare_with_torch(model, X, X[:, :2]),
    ):
        with pytest.raises(MissingExtraError, match=r"torch: pip install .phitodeep\[torch\]"):
            call()


def test_names_are_forwarded():
    names = {"to_torch", "from_torch", "compare_with_torch"}
    assert names <= set(dir(phitodeep.io))
    assert all(callable(getattr(phitodeep.io, name)) for name in names)
    with pytest.raises(AttributeError, match=r"'phitodeep.io' has no attribute 'from_tensor'"):
        _ = phitodeep.io.from_tensor
