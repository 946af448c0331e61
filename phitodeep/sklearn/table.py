"""A table as the input of a network: numbers standardised, categories as tokens."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, StandardScaler
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError

MISSING, UNKNOWN, KNOWN = 0, 1, 2  # tokens of a column: KNOWN is its first known category


def category_columns(X: Any, categories: Any) -> list[Any]:
    """Return the columns of X that `categories` gives: "auto", None, or names or indices."""
    if categories is None:
        return []
    wrong = (
        f'categories must be "auto", None or a list of columns, got {categories!r}: write '
        f"[{categories!r}] for a single column."
    )
    if isinstance(categories, str):
        if categories != "auto":
            raise ArgumentError(wrong)
        if not hasattr(X, "columns") or not hasattr(X, "iloc"):  # X is not a pandas DataFrame
            return []
        names = make_column_selector(dtype_include=["category", "object", "string"])(X)
        return [i for i, name in enumerate(X.columns) if name in names]
    if not isinstance(categories, Iterable):
        raise ArgumentTypeError(wrong)
    return categories.tolist() if hasattr(categories, "tolist") else list(categories)


def nan_for_missing(X: Any) -> Any:
    """Return a table (n, C) whose missing values, which may be None or pandas.NA, are all NaN."""
    if hasattr(X, "iloc"):
        return X.to_numpy(object, na_value=np.nan)
    return np.where(X == np.array(None), np.nan, X) if X.dtype == object else X


def observe(scaler: StandardScaler, numbers: Any, w: Array | None, name: str) -> None:
    """Update the means and standard deviations of a scaler with numbers (n, D) and weights (n,)."""
    with np.errstate(invalid="ignore", over="ignore"):  # a variance may be rounded to below 0
        new = copy.deepcopy(scaler).partial_fit(numbers, sample_weight=w)
    too_large = np.flatnonzero(~np.isfinite(new.mean_ + new.var_))
    if len(too_large):
        raise ArgumentError(
            f"column {too_large[0]} of {name} cannot be standardised: its numbers or the weights "
            "are so large that their variance overflows. Scale them first."
        )
    vars(scaler).update(vars(new))


class TableEncoder(TransformerMixin, BaseEstimator):
    """Standardises the numbers of a table and numbers its categories.

    columns    the category columns, by name or index
    scale      whether to subtract the mean of each column of numbers and to divide by its standard
               deviation. If X is sparse in `fit`, nothing is scaled, so that zeros stay zeros

    Shapes: X is (n, features). `transform` returns (n, C + D): a token for each of the C category
    columns, then the D numbers; for a table without categories, all columns in their order.

    All columns share one vocabulary. Column j owns the tokens from offsets_[j] to offsets_[j + 1]:
    one for missing values, one for unknown categories, then one for each category of `fit`.
    counts_ holds how often each token occurred in all calls of `fit` and `partial_fit`.
    """

    def __init__(self, columns: Any = (), *, scale: bool = True) -> None:
        self.columns, self.scale = columns, scale

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Find the categories, the means and the standard deviations of X (n, features)."""
        self.offsets_ = np.zeros(1, int)
        if self.columns:
            numbered = OrdinalEncoder(
                handle_unknown="use_encoded_value", unknown_value=UNKNOWN - KNOWN,
                encoded_missing_value=MISSING - KNOWN,
            )  # fmt: skip
            steps = make_pipeline(FunctionTransformer(nan_for_missing), numbered)
            numbered_columns = [("categories", steps, list(self.columns))]
            self.split_ = ColumnTransformer(
                numbered_columns, remainder="passthrough", sparse_threshold=0
            )
            self.split_.set_output(transform="default").fit(X)
            found = self.split_.named_transformers_["categories"][-1].categories_
            self.offsets_ = np.cumsum([0, *(KNOWN + len(known) for known in found)])
        self.counts_ = np.zeros(self.offsets_[-1], int)
        scaled = self.scale and not issparse(X)
        self.scaler_ = StandardScaler().set_output(transform="default") if scaled else None
        return self.partial_fit(X, sample_weight=sample_weight)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Update the means and the standard deviations; the categories stay those of `fit`."""
        tokens, numbers = self._parts(X)
        if self.scaler_ is not None and numbers.shape[1]:
            observe(self.scaler_, numbers, sample_weight, "the numbers in X")
        self.counts_ += np.bincount(tokens.astype(int).ravel(), minlength=len(self.counts_))
        return self

    def transform(self, X: Any) -> Any:
        """Return the tokens and numbers of X as one array (n, C + D)."""
        check_is_fitted(self)
        tokens, numbers = self._parts(X)
        if self.scaler_ is not None and numbers.shape[1]:
            numbers = self.scaler_.transform(numbers)
        return np.hstack([tokens, numbers]) if len(self.columns) else numbers

    def _parts(self, X: Any) -> tuple[Array, Any]:
        """Return the tokens (n, C) and the numbers (n, D) of X."""
        if not len(self.columns):
            dense = issparse(X) and self.scaler_ is not None
            return np.empty((0, 0)), X.toarray() if dense else X
        Z = check_array(self.split_.transform(X), dtype=np.float64, input_name="X")
        C = len(self.offsets_) - 1
        return Z[:, :C] + (KNOWN + self.offsets_[:-1]), Z[:, C:]
