"""Estimators for scikit-learn, which they need: `PhitoClassifier` and `PhitoRegressor`."""

from phitodeep.errors import extra

with extra("sklearn", "scikit-learn", "phitodeep.sklearn"):
    from phitodeep.sklearn.classifier import PhitoClassifier
    from phitodeep.sklearn.regressor import PhitoRegressor

__all__ = ["PhitoClassifier", "PhitoRegressor"]
