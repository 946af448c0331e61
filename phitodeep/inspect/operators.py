"""The matrices of a loss at a model's weights, as linear operators of SciPy."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

from phitodeep import loss as L
from phitodeep.core.checks import check_count
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError
from phitodeep.inspect.curvature import Point, places
from phitodeep.inspect.recording import prepared
from phitodeep.loss.heads import Heads
from phitodeep.optimization.packing import matching
from phitodeep.training.objective import Trainable


class Curvature(LinearOperator):  # type: ignore[misc]
    """A symmetric matrix over the parameters of a model, of which only products are computed.

    paths     of its parameters; a vector holds them one after another, in this order
    shape     (D, D), for D numbers in these parameters

    `A @ v` takes a vector (D,) or a matrix (D, k). If all samples are one batch, both passes of the
    model run once, for all products.
    """

    def __init__(
        self, model: Trainable, kind: str, X: Any, y: Any, params: str, batch_size: int | None,
        *options: Any,
    ) -> None:  # fmt: skip
        self.data, self.model, self.call = prepared(model, X, y, *options)
        found = places(self.model)
        self.kind, self.paths = kind, matching(params, [*found], kind)
        self._places = [found[path] for path in self.paths]
        self._total = self.model.loss.divisor(self.data.T, self.data.w, self.data.outputs)
        size = n = self.data.n
        if batch_size is not None:
            size = check_count(batch_size, f"{kind} batch_size")
        self._batches = [slice(start, start + size) for start in range(0, n, size)]
        self._point: Point | None = None
        self._lock = Lock()  # of the point, whose symbols a product changes
        D = sum(layer.params[name].size for layer, name in self._places)
        super().__init__(self.model.dtype, (D, D))
        self._at(self._batches[0])  # which refuses what does not fit

    def _matvec(self, v: Array) -> Array:
        if np.iscomplexobj(v):
            return self._matvec(v.real) + 1j * self._matvec(v.imag)
        V, start = {}, 0
        for layer, name in self._places:
            W = layer.params[name]
            V[layer, name] = np.reshape(v.ravel()[start : start + W.size], W.shape).astype(W.dtype)
            start += W.size
        total = np.zeros(self.shape[0], self.dtype)
        for rows in self._batches:
            with self._lock:
                point = self._at(rows)
                found = point.hessian(V) if self.kind == "hessian" else point.ggn(V)
                total += np.concatenate([found[path].ravel() for path in self.paths])
        return total

    def _adjoint(self) -> Curvature:
        return self

    def _at(self, rows: slice) -> Point:
        """A batch at the model's weights; a single one is kept."""
        if self._point is None or len(self._batches) > 1:
            part = self.data.part(rows)
            call = self.call._replace(mask=part.mask, first=rows.start)
            targets = _expected if self.kind == "fisher" else None
            self._point = Point(self.model, part, call, self._total, targets)
        return self._point

    def diagonal(self, samples: int | None = None, *, seed: int = 0) -> Array:
        """Return the diagonal (D,): exact, by D products, or estimated with fewer.

        samples    the number of products: the mean of z * (A z) over vectors z of random signs
        seed       of the signs

        Source: Bekas, Kokiopoulou and Saad 2007, "An estimator for the diagonal of a matrix".
        """
        if samples is None:
            units = (np.eye(1, self.shape[0], k)[0] for k in range(self.shape[0]))
            return np.array([(self @ e)[k] for k, e in enumerate(units)])
        return np.mean([z * (self @ z) for z in self._signs(samples, seed)], axis=0)

    def trace(self, samples: int = 100, *, seed: int = 0) -> tuple[float, float]:
        """Return an estimate of the trace, and its standard error.

        It is the mean of z^T A z over `samples` vectors z of random signs, one product each.
        Source: Hutchinson 1990, "A stochastic estimator of the trace of the influence matrix".
        """
        check_count(samples, "trace samples", minimum=2)
        found = [float(z @ (self @ z)) for z in self._signs(samples, seed)]
        return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(samples))

    def largest(self, k: int = 1, *, vectors: bool = False) -> Any:
        """Return the k largest eigenvalues (k,), in descending order, by Lanczos' method.

        With `vectors`, also return their eigenvectors (D, k). SciPy's `eigsh` finds others.
        """
        start = np.random.default_rng(0).standard_normal(self.shape[0]).astype(self.dtype)
        values, found = eigsh(self, check_count(k, "largest k"), which="LA", v0=start)
        return (values[::-1], found[:, ::-1]) if vectors else values[::-1]

    def _signs(self, samples: int, seed: int) -> Iterator[Array]:
        rng = np.random.default_rng(seed)
        for _ in range(check_count(samples, "samples")):
            yield rng.choice([-1, 1], self.shape[0]).astype(self.dtype)


NATURAL = L.SoftmaxCrossEntropy, L.BinaryCrossEntropyWithLogits, L.MeanSquaredError
BY_MEAN = L.CategoricalCrossEntropy, L.BinaryCrossEntropy, L.PoissonNLL


def _expected(loss: L.Loss, P: Any, T: Any) -> Any:
    """The mean of targets that are drawn from the model, if the curvature depends on targets.

    The curvature of these losses by P is linear in T, so at the mean it is the mean.
    """
    if isinstance(loss, Heads):
        parts = zip(loss.parts, P, T, strict=True)
        return tuple(
            [None if t is None or part is None else _expected(part, p, t) for part, p, t in parts]
        )
    if type(loss) in NATURAL:
        return T
    changed = getattr(loss, "label_smoothing", 0) or getattr(loss, "ignore_index", None) is not None
    if type(loss) not in BY_MEAN or changed:
        known = ", ".join(kind.__name__ for kind in (*NATURAL, *BY_MEAN))
        raise ArgumentError(
            f"fisher needs a loss that is minus the log of a probability of targets, got {loss!r}: "
            f"use one of {known}, the last three without label_smoothing and ignore_index, or ggn."
        )
    return P
