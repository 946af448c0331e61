"""Losses: a number to make small, and exactly its derivative by the predictions.

Every loss is a weighted mean: the sum over all terms, divided by `total`. Regression and binary
losses have a term for each element, cross-entropies and losses of rows one for each position (a
prediction without its last axis). A sample's weight multiplies its terms and counts in the
divisor as often. `total` replaces the divisor, so that parts of a batch add up to the whole.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phitodeep import functional as F
from phitodeep.checks import as_float, as_real, check_count, check_finite, check_number
from phitodeep.config import Configurable
from phitodeep.errors import ArgumentError, PhitodeepError, ShapeError
from phitodeep.layers.base import Buffered, Frame, calling, current
from phitodeep.types import Array, Shape, describe

_TO_WRITE = "{} must implement {}(P, T, w, total), which loss_func and loss_gradient call."


def _places_hint(targets: Shape, predictions: Shape) -> str:
    """What to write where there is one target for each sample, and predictions at its places."""
    one_each = targets in (predictions[:1], (*predictions[:1], predictions[-1]))
    return (
        " The model predicts at each place of a sample: is .flatten() or a global pool missing "
        "before the last layers?"
        if len(predictions) > 2 and one_each
        else ""
    )


class Loss(Buffered, Configurable):
    """A loss for predictions P and targets T.

    Users call `loss_func` and `loss_gradient`, which check what they are given. The training
    loop checks all targets once with `targets`, and then calls `value_and_gradient` alone.
    An author writes `targets`, `divisor`, `value` and `gradient`.
    """

    config_kind = "loss"
    wants = "numbers"  # what the predictions must be: see fusion.py
    threshold = 0.5  # predictions above it mean the positive class
    labels: tuple[int, ...] | None = None  # of the two classes of a binary loss
    independent_samples = (
        False  # it is a sum over samples, divided by `total`; own code declares it
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {"value", "gradient", "value_and_gradient"} & set(vars(cls))
        if own and "independent_samples" not in vars(cls):
            cls.independent_samples = cls.__module__ == __name__

    def __init__(self) -> None:
        self.frame = Frame()

    def __repr__(self) -> str:
        return describe(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "frame": Frame()}

    def loss_func(
        self, y_pred: Any, y_true: Any, sample_weight: Any = None, total: float | None = None
    ) -> float:
        """The loss as a Python float.

        Shapes: y_pred (N, ...); y_true as the class says; sample_weight (N,) or one for each
        position; `total` replaces the divisor.
        """
        return self.watched_value(*self._admit(y_pred, y_true, sample_weight, total))

    def loss_gradient(
        self, y_pred: Any, y_true: Any, sample_weight: Any = None, total: float | None = None
    ) -> Array:
        """The derivative of `loss_func` by y_pred, of y_pred's shape and dtype."""
        return self.watched(*self._admit(y_pred, y_true, sample_weight, total))[1]

    def _admit(
        self, y_pred: Any, y_true: Any, sample_weight: Any, total: float | None
    ) -> tuple[Array, Array, Array | None, float | None]:
        P = as_float(y_pred, None, f"{type(self).__name__} y_pred")
        if P.size == 0:
            raise ShapeError(f"{self!r} needs at least one prediction, got shape {P.shape}.")
        T = self.targets(y_true, P.shape)
        w = self.weights(sample_weight, T, P.shape)
        return P, T, w, None if total is None else check_number(total, "total", least=0)

    # --- what an author writes -------------------------------------------------------------

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        """The targets y, checked against predictions of `shape` (N, ...); errors say `name`."""
        T = as_real(y, f"{type(self).__name__} {name}")
        if T.shape != shape and (*T.shape, 1) != shape:
            raise ShapeError(
                f"{self!r} compares predictions of shape {shape} with {name} of the same shape"
                f"{' or (n,)' if shape[1:] == (1,) else ''}, got {name} of shape {T.shape}."
                f"{_places_hint(T.shape, shape)}"
            )
        check_finite(T, name)
        return T.reshape(shape).astype(np.float64 if T.dtype == np.float64 else np.float32)

    def positions(self, shape: Shape) -> Shape:
        """The shape of what carries one weight each, for predictions of `shape`."""
        return shape

    def classes(self, shape: Shape) -> tuple[int, ...] | None:
        """The labels of the classes, for predictions of `shape`, or None for no classes."""
        return self.labels

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        """What the sum is divided by: the count of terms, or the sum of their weights."""
        count = math.prod(self.positions(shape))
        return float(count if w is None else w.sum(dtype=np.float64) * (count // w.size))

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        raise NotImplementedError(_TO_WRITE.format(type(self).__name__, "value"))

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        raise NotImplementedError(_TO_WRITE.format(type(self).__name__, "gradient"))

    def value_and_gradient(
        self, P: Array, T: Array, w: Array | None = None, total: float | None = None
    ) -> tuple[float, Array]:
        """Both at once; P floats, T from `targets` and w from `weights`."""
        with calling(needs_dX=True, reuse=False):  # an author's loss may run layers of its own
            return self.value(P, T, w, total), self.gradient(P, T, w, total)

    # --- what is told to a watcher ---------------------------------------------------------

    def watched(
        self, P: Array, T: Array, w: Array | None, total: float | None
    ) -> tuple[float, Array]:
        """`value_and_gradient`, with whoever watches told of P before, and of dP after."""
        watch = current().watch
        if watch is None:
            return self.value_and_gradient(P, T, w, total)
        P = watch.tell("loss", "before", self, P)
        value, dP = self.value_and_gradient(P, T, w, total)
        return value, watch.tell("loss", "after", self, dP, value)

    def watched_value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        """`value`, with whoever watches told of P before, and of the value after."""
        watch = current().watch
        if watch is None:
            return self.value(P, T, w, total)
        P = watch.tell("loss", "before", self, P)
        value = self.value(P, T, w, total)
        watch.tell("loss", "after", self, None, value)
        return value

    # --- what an author uses ---------------------------------------------------------------

    def weights(self, sample_weight: Any, T: Array, shape: Shape) -> Array | None:
        """Sample weights (N,), or of the positions' shape, as (N, 1, ...) or that shape."""
        if sample_weight is None:
            return None
        w = as_float(sample_weight, None, "sample_weight")
        positions = self.positions(shape)
        if w.shape not in (positions[:1], positions):
            raise ShapeError(
                f"sample_weight must have shape {positions[:1]} or {positions}, got {w.shape}."
            )
        check_finite(w, "sample_weight")
        if (w < 0).any():
            raise ArgumentError(f"sample_weight must be >= 0, its least is {w.min()}.")
        return w if w.shape == positions else w.reshape(-1, *[1] * (len(positions) - 1))


class Elementwise(Loss):
    """A loss that compares each element alone: an author writes `each` and its `slope`."""

    def each(self, P: Array, T: Array) -> Array:
        """The loss of each element, as a new array."""
        raise NotImplementedError(f"{type(self).__name__} must implement each(P, T).")

    def slope(self, P: Array, T: Array) -> Array:
        """The derivative of `each` by P, as a new array."""
        raise NotImplementedError(f"{type(self).__name__} must implement slope(P, T).")

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        each = self.each(P, T.astype(P.dtype, copy=False))
        if w is not None:
            np.copyto(each, 0, where=w == 0)  # also where it is infinite or NaN
            each *= w
        total = self.divisor(T, w, P.shape) if total is None else total
        return float(each.sum()) / total if total else 0.0

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        total = self.divisor(T, w, P.shape) if total is None else total
        slope = self.slope(P, T.astype(P.dtype, copy=False))
        slope *= 1 / total if total else 0.0
        if w is not None:
            np.copyto(slope, 0, where=w == 0)
            slope *= w
        return slope


class _Rowwise(Elementwise):
    """A loss that compares rows of the last axis: `each` is (N, ...), `slope` of P's shape."""

    def positions(self, shape: Shape) -> Shape:
        return shape[:-1]

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        return super().gradient(P, T, None if w is None else w[..., None], total)


class MeanSquaredError(Elementwise):
    """The mean of (p - t)^2; its slope is 2 (p - t).

    Shapes: P (N, ...), T the same, or (N,) for P (N, 1). Unit: that of T, squared.
    Source: Gauss 1809, "Theoria motus corporum coelestium", art. 179 (least squares).
    """

    def each(self, P: Array, T: Array) -> Array:
        return np.square(P - T)

    def slope(self, P: Array, T: Array) -> Array:
        return 2 * (P - T)


class MeanAbsoluteError(Elementwise):
    """The mean of |p - t|; its slope is the sign of p - t, and 0 where they are equal.

    Shapes and unit: those of T, as in MeanSquaredError.
    Source: Laplace 1793 (least absolute deviations); Bishop 2006, "Pattern recognition and
    machine learning", sec. 1.5.5.
    """

    def each(self, P: Array, T: Array) -> Array:
        return np.abs(P - T)

    def slope(self, P: Array, T: Array) -> Array:
        return np.sign(P - T)


class Huber(Elementwise):
    """With e = p - t: e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2).

    The slope is e held between -delta and delta. `delta` has the unit of T.
    Source: Huber 1964, "Robust estimation of a location parameter", Ann. Math. Statist. 35.
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self.delta = check_number(delta, "Huber delta", above=0)

    def each(self, P: Array, T: Array) -> Array:
        size = np.abs(P - T)
        quadratic = np.minimum(size, self.delta)
        return quadratic * (size - quadratic / 2)  # both branches: q is |e| or delta

    def slope(self, P: Array, T: Array) -> Array:
        return np.clip(P - T, -self.delta, self.delta)


class LogCosh(Elementwise):
    """The mean of log(cosh(e)), e = p - t.

    Near 0 it is -log(1 - tanh(e)^2) / 2, far from it |e| + log(1 + exp(-2 |e|)) - log 2:
    neither subtracts nearly equal numbers there. The slope is tanh(e): like a square near 0,
    like |e| far away, and smooth between.
    Source: Saleh and Saleh 2022, "Statistical properties of the log-cosh loss function",
    arXiv:2208.04564, eq. 2.
    """

    def each(self, P: Array, T: Array) -> Array:
        size = np.abs(P - T)
        near = np.log1p(-np.square(np.tanh(np.minimum(size, 1)))) / -2
        far = size + np.log1p(np.exp(-2 * size)) - math.log(2)
        return np.where(size < 1, near, far)

    def slope(self, P: Array, T: Array) -> Array:
        return np.tanh(P - T)


class _Binary(Elementwise):
    """Losses whose targets are probabilities of the positive class, mostly 0 or 1."""

    labels: tuple[int, ...] | None = (0, 1)

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if T.size and (T.min() < 0 or T.max() > 1):
            raise ArgumentError(
                f"{self!r} takes {name} from 0 to 1, got values from {T.min():g} to {T.max():g}."
            )
        return T


class BinaryCrossEntropy(_Binary):
    """The mean of -t log p - (1 - t) log(1 - p), for probabilities p, as Sigmoid gives them.

    Logarithms are held at that of the dtype's least normal number, and are flat below it.
    The slope is (1 - t) / (1 - p) - t / p.
    Shapes: P (N, ...), T the same, or (N,) for P (N, 1).
    Source: Bishop 2006, "Pattern recognition and machine learning", eq. 4.90.
    """

    wants = "probabilities"

    def each(self, P: Array, T: Array) -> Array:
        tiny = np.finfo(P.dtype).tiny
        log_rest = np.full_like(P, np.log(tiny))
        np.log1p(-P, out=log_rest, where=~(P >= 1))  # log(1 - p), which 1 - p would round
        return -T * np.log(np.maximum(P, tiny)) - (1 - T) * log_rest

    def slope(self, P: Array, T: Array) -> Array:
        return _inverse(1 - P) * (1 - T) - _inverse(P) * T


class BinaryCrossEntropyWithLogits(_Binary):
    """BinaryCrossEntropy of sigmoid(z), computed from z: the mean of softplus(z) - t z.

    The slope is sigmoid(z) - t. With u = t for negative z and u = 1 - t for others, which is how
    much the target contradicts the sign of z, and without subtracting nearly equal numbers:

        |z| u + log(1 + exp(-|z|))        sign(z) (u - exp(-|z|) / (1 + exp(-|z|)))

    Where u is 0, a logit of infinite size costs nothing.
    Source: as BinaryCrossEntropy; -log sigmoid(z) = softplus(-z) = softplus(z) - z.
    """

    wants = "logits"
    threshold = 0.0

    def each(self, P: Array, T: Array) -> Array:
        size, against = np.abs(P), np.abs(~np.signbit(P) - T)
        with np.errstate(invalid="ignore"):
            against *= size
        np.fmax(against, 0, out=against)  # 0 for 0 times infinity, which is NaN
        against += np.log1p(np.exp(-size))
        return against

    def slope(self, P: Array, T: Array) -> Array:
        slope = np.abs(~np.signbit(P) - T)
        E = np.exp(-np.abs(P))
        slope -= E / (1 + E)
        slope *= np.copysign(1, P)
        return slope


class Hinge(Elementwise):
    """The mean of max(0, 1 - t p) for labels t of -1 and +1.

    The slope is -t where t p < 1, else 0.
    Source: Cortes and Vapnik 1995, "Support-vector networks", Machine Learning 20.
    """

    threshold = 0.0
    labels = (-1, 1)

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if not (np.abs(T) == 1).all():
            raise ArgumentError(
                f"{self!r} takes {name} of -1 and +1 only: 2 * {name} - 1 maps 0 and 1."
            )
        return T

    def each(self, P: Array, T: Array) -> Array:
        return np.maximum(1 - T * P, 0)

    def slope(self, P: Array, T: Array) -> Array:
        return -T * (T * P < 1)


class SquaredHinge(Hinge):
    """The mean of max(0, 1 - t p)^2 for labels t of -1 and +1; its slope is -2 t max(0, 1 - t p).

    Source: Lee and Mangasarian 2001, "SSVM: a smooth support vector machine".
    """

    def each(self, P: Array, T: Array) -> Array:
        return np.square(super().each(P, T))

    def slope(self, P: Array, T: Array) -> Array:
        return -2 * T * super().each(P, T)


class PoissonNLL(Elementwise):
    """The mean of exp(p) - t p where p is the log of the rate, else of p - t log p.

    Without the term log(t!), which no prediction changes. The slope is exp(p) - t, or 1 - t / p.
    Targets are counts, >= 0.
    Source: Cameron and Trivedi 1998, "Regression analysis of count data", eq. 3.4.
    """

    def __init__(self, log_input: bool = True) -> None:
        super().__init__()
        self.log_input = log_input

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if (T < 0).any():
            raise ArgumentError(f"{self!r} takes counts {name} >= 0, the least is {T.min():g}.")
        return T

    def each(self, P: Array, T: Array) -> Array:
        if self.log_input:
            return np.exp(P) - T * P
        return P - T * np.log(np.maximum(P, np.finfo(P.dtype).tiny))

    def slope(self, P: Array, T: Array) -> Array:
        if self.log_input:
            return np.exp(P) - T
        return 1 - T * _inverse(P)


class KLDivergence(Elementwise):
    """The sum of t (log t - p) over each sample, averaged over samples; p are log-probabilities.

    The slope is -t. Shapes: P and T are (N, ..., K); rows of T are distributions. A sample
    weighs as much as its positions do on average, without those of weight 0, such as padding.
    Source: Kullback and Leibler 1951, "On information and sufficiency", eq. 2.4.
    """

    wants = "log-probabilities"

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if (T < 0).any():
            raise ArgumentError(
                f"{self!r} takes probabilities {name} >= 0, the least is {T.min():g}."
            )
        return T

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        if w is None:
            return float(shape[0])
        rows = w.reshape(len(w), -1)
        counted = np.maximum(np.count_nonzero(rows, axis=1), 1)
        return float((rows.sum(axis=1, dtype=np.float64) / counted).sum())

    def each(self, P: Array, T: Array) -> Array:
        ratio = np.log(np.maximum(T, np.finfo(P.dtype).tiny)) - P
        return T * np.where(T != 0, ratio, 0)  # 0 times infinity is 0

    def slope(self, P: Array, T: Array) -> Array:
        return -T


class CosineSimilarityLoss(_Rowwise):
    """The mean over positions of 1 - cos(p, t), the angle being between rows of the last axis.

    Shapes: P, T are (N, ..., D). With lengths |p|, |t| and c = cos(p, t), a row's gradient is

        -(t / |t| - c p / |p|) / |p|

    which is orthogonal to p: its length does not matter. Rows of length 0 have c = 0 and no
    gradient. With unit vectors, 1 - c is |p - t|^2 / 2, which stays exact for small angles.
    Source: Salton, Wong and Yang 1975, "A vector space model for automatic indexing".
    """

    def each(self, P: Array, T: Array) -> Array:
        P_hat, T_hat = self._unit(P)[0], self._unit(T)[0]
        angled = P_hat.any(axis=-1) & T_hat.any(axis=-1)
        return np.where(angled, np.square(P_hat - T_hat).sum(axis=-1) / 2, 1)

    def slope(self, P: Array, T: Array) -> Array:
        (P_hat, inverse), (T_hat, _) = self._unit(P), self._unit(T)
        cosine = (P_hat * T_hat).sum(axis=-1, keepdims=True)
        return (cosine * P_hat - T_hat) * inverse

    def _unit(self, X: Array) -> tuple[Array, Array]:
        """Rows of length 1 or 0, and 1 / |x| (..., 1) or 0; no square over- or underflows."""
        size = np.abs(X).max(axis=-1, keepdims=True)
        size = np.where(size < np.finfo(X.dtype).tiny, 1, size)
        Y = X / size
        inverse = _inverse(np.linalg.norm(Y, axis=-1, keepdims=True))
        return Y * inverse, inverse / size


class NegativeELBO(_Rowwise, BinaryCrossEntropyWithLogits):
    """The mean over samples of a variational autoencoder's two costs, E + beta KL.

    Shapes: P (N, ..., 2 L + D) holds means m and log variances s of L = `latent` numbers, and D
    logits z, side by side, as `models.vae` gives them; T (N, ..., D) is from 0 to 1.

        E  = sum_d softplus(z) - t z                   the reconstruction, in nats
        KL = sum_l (m^2 + exp(s) - s - 1) / 2          of N(m, exp(s)) from N(0, 1)

    With one draw of the latent numbers for each sample, its mean over the draws is the negative
    evidence lower bound for beta = 1: at least -log p(t).
    Gradient: beta m, beta (exp(s) - 1) / 2 and sigmoid(z) - t, side by side.
    Sources: Kingma and Welling 2014, arXiv:1312.6114, eq. 10 and appendix B; beta: Higgins et
    al. 2017, "beta-VAE", ICLR, eq. 4.
    """

    labels = None

    def __init__(self, latent: int = 2, *, beta: float = 1.0) -> None:
        super().__init__()
        self.latent = check_count(latent, "NegativeELBO latent")
        self.beta = check_number(beta, "NegativeELBO beta", least=0)

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        behind = 2 * self.latent
        if len(shape) < 2 or shape[-1] <= behind:
            raise ShapeError(
                f"{self!r} takes predictions (N, ..., {behind} + D): {self.latent} means, as many "
                f"log variances, and D logits, got shape {shape}: latent= is the model's?"
            )
        return super().targets(y, (*shape[:-1], shape[-1] - behind), name)

    def parts(self, P: Array, T: Array) -> tuple[Array, Array]:
        """E and KL of each sample, (N, ...) both."""
        m, s, Z = self._split(P)
        divergence = (np.square(m) + F.exp_minus_line(s)).sum(axis=-1) / 2
        return super().each(Z, T).sum(axis=-1), divergence

    def each(self, P: Array, T: Array) -> Array:
        reconstruction, divergence = self.parts(P, T)
        return reconstruction + self.beta * divergence

    def slope(self, P: Array, T: Array) -> Array:
        m, s, Z = self._split(P)
        dm, ds, dZ = self.beta * m, self.beta / 2 * np.expm1(s), super().slope(Z, T)
        return np.concatenate([dm, ds, dZ], axis=-1)

    def _split(self, P: Array) -> list[Array]:
        return np.split(P, [self.latent, 2 * self.latent], axis=-1)


class _CrossEntropy(Loss):
    """What the cross-entropies share: -sum_i w_i sum_k q_ik log p_ik / total.

    Targets are integer labels of the predictions' shape without the class axis K, (n, 1) where
    predictions are (n, K), or rows of probabilities of the predictions' shape. Row q is
    (1 - s) onehot + s / K for label smoothing s, times the class weights. A label equal to
    `ignore_index` weighs 0. `total` is the sum of class weight times sample weight.
    """

    label_smoothing = 0.0

    def __init__(
        self,
        ignore_index: int | None = None,
        class_weight: Sequence[float] | Mapping[int, float] | Array | None = None,
    ) -> None:
        super().__init__()
        if ignore_index is not None:
            ignore_index = check_count(ignore_index, "ignore_index", least=-sys.maxsize)
        self.ignore_index = ignore_index
        self.class_weight = _plain(class_weight)

    def positions(self, shape: Shape) -> Shape:
        return shape[:-1]

    def classes(self, shape: Shape) -> tuple[int, ...]:
        return tuple(range(shape[-1]))

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = as_real(y, f"{type(self).__name__} {name}")
        classes = shape[-1] if shape else 0
        if len(shape) < 2 or classes < 2:
            raise ShapeError(
                f"{self!r} needs predictions (N, ..., K) of K >= 2 classes, got shape {shape}: "
                "for one output use BinaryCrossEntropy."
            )
        self._class_weights(classes, np.dtype(np.float64))
        if T.shape == shape:
            return self._distributions(T, name)
        if T.shape != shape[:-1] and (len(shape) > 2 or T.shape != (shape[0], 1)):
            raise ShapeError(
                f"{self!r} compares predictions of shape {shape} with labels of shape "
                f"{shape[:-1]} or one-hot rows of shape {shape}, got {name} of shape {T.shape}."
                f"{_places_hint(T.shape, shape)}"
            )
        check_finite(T, name)
        return F.check_labels(T, classes, self.ignore_index, name).reshape(shape[:-1])

    def _distributions(self, T: Array, name: str) -> Array:
        check_finite(T, name)
        T = T.astype(np.float64 if T.dtype == np.float64 else np.float32)
        if (T < 0).any() or not np.allclose(T.sum(axis=-1), 1, atol=1e-3):
            raise ArgumentError(
                f"{self!r} takes {name} as one-hot or probability rows: >= 0, summing to 1."
            )
        return T

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        return self._aim(T, w, shape, np.dtype(np.float64))[2]

    def _aim(
        self, T: Array, w: Array | None, shape: Shape, dtype: np.dtype[Any]
    ) -> tuple[Array, Array | None, float]:
        """(labels or rows q, position weights, total), as `functional.cross_entropy` takes them."""
        classes = shape[-1]
        labels = T.ndim < len(shape)
        if w is not None:
            w = np.broadcast_to(w, shape[:-1])
        if labels and self.ignore_index is not None:
            kept = np.asarray(T != self.ignore_index)
            T = np.where(kept, T, 0)
            w = kept.astype(dtype) if w is None else w * kept
        if labels and self.class_weight is None and not self.label_smoothing:
            return T, w, F.target_weight(T, w)
        q = F.one_hot(T, classes, dtype) if labels else T.astype(dtype, copy=False)
        per_class = self._class_weights(classes, dtype)
        total = F.target_weight(q * per_class, w)
        if self.label_smoothing:
            q = (1 - self.label_smoothing) * q + self.label_smoothing / classes
        return q * per_class, w, total

    def _class_weights(self, classes: int, dtype: np.dtype[Any]) -> Array:
        """One weight a class; a mapping leaves the classes that it lacks at 1."""
        if self.class_weight is None:
            return F.ones(classes, dtype)
        if isinstance(self.class_weight, str):
            raise ArgumentError(
                f"{type(self).__name__} takes class_weight as numbers, got "
                f'{self.class_weight!r}: class_weight="balanced" is an option of train.'
            )
        if isinstance(self.class_weight, Mapping):
            named = {int(k): v for k, v in self.class_weight.items()}
            if not named.keys() <= set(range(classes)):
                raise ArgumentError(f"class_weight names classes beyond 0..{classes - 1}: {named}.")
            weights = np.array([named.get(k, 1.0) for k in range(classes)], dtype)
        else:
            weights = as_float(self.class_weight, dtype, "class_weight")
        if weights.shape != (classes,) or not ((weights >= 0) & np.isfinite(weights)).all():
            raise ArgumentError(
                f"class_weight must be {classes} finite numbers >= 0, got {self.class_weight!r}."
            )
        return weights

    def log_probabilities(self, P: Array) -> Array:
        """log p, from the predictions."""
        raise NotImplementedError(f"{type(self).__name__} must implement log_probabilities(P).")

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        q, w, own_total = self._aim(T, w, P.shape, P.dtype)
        return F.nll(self.log_probabilities(P), q, w, own_total if total is None else total)

    def _rows(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        """-w_i q_ik / total: the derivative by log p."""
        q, w, own_total = self._aim(T, w, P.shape, P.dtype)
        total = own_total if total is None else total
        rows = F.one_hot(q, P.shape[-1], P.dtype) if q.ndim < P.ndim else q.copy()
        rows *= -1 / total if total else 0.0
        if w is not None:
            rows *= w[..., None].astype(P.dtype, copy=False)
        return rows


class CategoricalCrossEntropy(_CrossEntropy):
    """The mean of -log p[label], for rows of probabilities p, as Softmax gives them.

    Logarithms are held at that of the dtype's least normal number, and are flat below it, so
    the gradient is -q / p, and 0 where p is less. Training takes the fused way with Softmax:
    see fusion.py.
    Shapes: P (N, ..., K); T (N, ...) labels, (N, 1) for P (N, K), or rows (N, ..., K).
    Sources: Bishop 2006, "Pattern recognition and machine learning", eq. 4.108; label smoothing:
    Szegedy et al. 2016, arXiv:1512.00567, sec. 7.
    """

    wants = "probabilities"

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        class_weight: Sequence[float] | Mapping[int, float] | Array | None = None,
    ) -> None:
        super().__init__(ignore_index, class_weight)
        self.label_smoothing = check_number(label_smoothing, "label_smoothing", least=0, below=1)

    def log_probabilities(self, P: Array) -> Array:
        return np.log(np.maximum(P, np.finfo(P.dtype).tiny))

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        rows = self._rows(P, T, w, total)
        rows *= _inverse(P)
        return rows


class SoftmaxCrossEntropy(CategoricalCrossEntropy):
    """CategoricalCrossEntropy of softmax(z), computed from the logits z.

    With p = softmax(z), the gradient of a row is w (p sum_k q_k - q) / total.
    Shapes and sources: those of CategoricalCrossEntropy.
    """

    wants = "logits"

    def log_probabilities(self, P: Array) -> Array:
        return F.log_softmax(P)

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        return self.value_and_gradient(P, T, w, total)[1]

    def value_and_gradient(
        self, P: Array, T: Array, w: Array | None = None, total: float | None = None
    ) -> tuple[float, Array]:
        q, w, own_total = self._aim(T, w, P.shape, P.dtype)
        total = own_total if total is None else total
        out = self.buffer("dP", P.shape, P.dtype)
        return F.cross_entropy_and_gradient(P, q, w, total, out=out)


class NegativeLogLikelihood(_CrossEntropy):
    """The mean of -p[label], for rows of log-probabilities p, as LogSoftmax gives them.

    The gradient is -q. Shapes: those of CategoricalCrossEntropy.
    Source: Bishop 2006, "Pattern recognition and machine learning", eq. 4.108.
    """

    wants = "log-probabilities"

    def log_probabilities(self, P: Array) -> Array:
        return P

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        return self._rows(P, T, w, total)


def _inverse(P: Array) -> Array:
    """1 / p, and 0 where p is below the dtype's least normal number: there log p is held flat."""
    return np.divide(1, P, out=np.zeros_like(P), where=np.finfo(P.dtype).tiny <= P)


def _plain(class_weight: Any) -> Any:
    """Class weights in order as a tuple of floats; others as they are, to be refused when used."""
    if class_weight is None or isinstance(class_weight, str | Mapping):
        return class_weight
    try:
        weights = as_real(class_weight, "class_weight")
    except PhitodeepError:
        return class_weight
    return tuple(map(float, weights)) if weights.ndim == 1 else class_weight
