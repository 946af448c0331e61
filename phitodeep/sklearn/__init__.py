"""Estimators for scikit-learn: `PhitoClassifier` and `PhitoRegressor`.

They are imported on first use, because they need scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phitodeep.errors import MissingExtraError

if TYPE_CHECKING:
    from phitodeep.sklearn.classifier import PhitoClassifier as PhitoClassifier
    from phitodeep.sklearn.regressor import PhitoRegressor as PhitoRegressor

_HOME = {"PhitoClassifier": "classifier", "PhitoRegressor": "regressor"}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'phitodeep.sklearn' has no attribute {name!r}")
    try:
        importlib.import_module("sklearn")
    except ImportError:
        raise MissingExtraError.of("scikit-learn", "sklearn", f"phitodeep.sklearn.{name}") from None
    return getattr(importlib.import_module(f"phitodeep.sklearn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
