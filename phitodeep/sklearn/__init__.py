"""Estimators for scikit-learn: `PhitoClassifier` and `PhitoRegressor`.

They are imported on first use, because they need scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phitodeep.errors import extra

if TYPE_CHECKING:
    from phitodeep.sklearn.classifier import PhitoClassifier as PhitoClassifier
    from phitodeep.sklearn.regressor import PhitoRegressor as PhitoRegressor

_HOME = {"PhitoClassifier": "classifier", "PhitoRegressor": "regressor"}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'phitodeep.sklearn' has no attribute {name!r}")
    with extra("sklearn", "scikit-learn", f"phitodeep.sklearn.{name}"):
        importlib.import_module("sklearn")
    return getattr(importlib.import_module(f"phitodeep.sklearn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
