"""The confusion matrix: which classes are predicted as which."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.checks import as_real, check_option
from phitodeep.core.types import Array, PathLike
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.loss.metrics import ConfusionMatrix
from phitodeep.plots.canvas import check_names, finished, panel, sequential
from phitodeep.training.objective import Trainable

WHO = "plots.confusion_matrix"
WRITTEN = 20  # classes up to which cells have numbers
MOST = 1000  # classes
HUGE = 2**53  # from here on, floats skip whole numbers
NAMED = 30  # classes up to which all have a name
SHARES = {"true": 1, "pred": 0, "all": None}  # the axis over which shares sum to 1


def confusion_matrix(
    model_or_y: Any,
    X_or_pred: Any,
    y: Any = None,
    *,
    labels: Any = None,
    normalize: str | None = None,
    output: str | None = None,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw how many samples of each true class, a row, are predicted as each class, a column.

        plots.confusion_matrix(model, X_test, y_test)
        plots.confusion_matrix(y_test, model.predict(X_test), normalize="true")

    In the first form, the model predicts X (N, ...), and y holds the true classes as in `train`. In
    the second form, the true classes come first, (N,) integers from 0. The predictions are
    classes (N,) or scores (N, K).

    labels       the names of the K classes; by default their numbers
    normalize    "true": shares of each row; "pred": of each column; "all": of all samples; None:
                 counts. A class without samples has shares of 0
    output       of a model with several outputs, the name of the one that is drawn

    Draws on the Axes `ax` and returns it if given, and otherwise returns the figure; saved to
    `path` if given. Negative labels are not counted.
    """
    if normalize is not None:
        check_option(normalize, f"{WHO} normalize", tuple(SHARES))
    counts = _counts(model_or_y, X_or_pred, y, output)
    K = len(counts)
    names = check_names(labels, K, WHO, "class") or [str(k) for k in range(K)]
    shown = counts
    if normalize is not None:
        total = counts.sum(axis=SHARES[normalize], keepdims=True)
        shown = counts / np.maximum(total, 1)
    size = min(2.5 + 0.45 * K, 9)
    axes = panel(WHO, ax, size + 0.6, size)
    image = axes.imshow(shown, **sequential())
    what = "predictions" if normalize is None else "share"
    axes.figure.colorbar(image, ax=axes, label=what, shrink=0.8)
    step = -(-K // NAMED)
    room = 11 * (size - 1.2) / len(names[::step])  # characters below each column, roughly
    slanted = max(map(len, names)) + 1 > room
    turn = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axes.set_xticks(range(0, K, step), names[::step], **turn)
    axes.set_yticks(range(0, K, step), names[::step])
    if K <= WRITTEN:
        for (i, j), value in np.ndenumerate(shown):
            # black or white, whichever is easier to read on the cell
            light = np.dot(image.cmap(image.norm(value))[:3], (0.299, 0.587, 0.114)) > 0.55
            text = f"{value:.0f}" if normalize is None else f"{value:.2f}"
            colour = "black" if light else "white"
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=9)
    total, right = counts.sum(), np.trace(counts)
    share = f", {right / total:.1%} correct" if total else ""
    axes.set(xlabel="predicted class", ylabel="true class")
    return finished(axes, ax, path, f"{total:,.0f} predictions{share}")


def _counts(first: Any, second: Any, y: Any, output: Any) -> Array:
    """The counts (K, K), of a model's predictions or of given ones."""
    if isinstance(first, Trainable):
        if y is None:
            raise ArgumentTypeError(f"{WHO} needs the true classes: write {WHO}(model, X, y).")
        output = first.returns[0] if output is None and first.outputs == 1 else output
        check_option(output, f"{WHO} output", first.returns)
        if first.outputs > 1:
            scores = first.evaluate(second, y, metrics={output: ["confusion_matrix"]})
            return np.asarray(scores[f"{output}_confusion_matrix"])
        scores = first.evaluate(second, y, metrics=["confusion_matrix"])
        return np.asarray(scores["confusion_matrix"])
    if y is not None or output is not None:
        raise ArgumentTypeError(
            f"{WHO} takes (model, X, y, output=...) or (y_true, y_pred), got y or output and no "
            "model."
        )
    T, P = as_real(first, f"{WHO}: y_true"), as_real(second, f"{WHO}: y_pred")
    if P.ndim > 1 and P.shape[-1] > 1:
        return np.asarray(ConfusionMatrix()(P, T))
    T, P = T.reshape(-1), P.reshape(-1)
    for name, classes in (("y_true", T), ("y_pred", P)):
        if not ((classes == np.floor(classes)) & (np.abs(classes) < HUGE)).all():
            raise ArgumentTypeError(
                f"{WHO}: {name} must hold classes, which are whole numbers; pass scores as (N, K)."
            )
    if T.shape != P.shape:
        raise ShapeError(f"{WHO} needs one prediction per label, got {len(P)} for {len(T)} labels.")
    if not len(T):
        raise ArgumentError(f"{WHO} needs at least one sample.")
    T, P = T.astype(int), P.astype(int)
    if P.min() < 0:
        raise ArgumentError(f"{WHO}: y_pred holds the class {P.min()}; classes start at 0.")
    K, counted = int(max(T.max(), P.max())) + 1, T >= 0
    if K > MOST:
        raise ArgumentError(
            f"{WHO} draws at most {MOST:,} classes, but there is a class {K - 1:,}."
        )
    pairs = np.bincount(T[counted] * K + P[counted], minlength=K * K)
    return pairs.reshape(K, K)
