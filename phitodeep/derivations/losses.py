"""The losses: L is a weighted mean, so every term's slope is multiplied by its weight / total.

Every loss starts from P and T, and from w (the weights, 1 without any) and share (1 / total).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.types import Array, numbered
from phitodeep.derivations.language.step import (
    Arrange,
    Derivation,
    Given,
    Join,
    Let,
    Max,
    Step,
    Sum,
    Through,
    split,
)
from phitodeep.functional import one_hot


def givens(loss: Any, P: Any, T: Any, w: Any, total: Any) -> dict[str, Any]:
    """The symbols that every loss starts from; nothing counts if total is 0."""
    if isinstance(P, tuple):
        totals = loss.divisor(T, w, [A.shape for A in P]) if total is None else total
        own = {
            n: givens(part, P[k], T[k], None if w is None else w[k], float(totals[k]))
            for k, n, part in loss.trained(T)
        }
        return numbered("P", P) | {f"c_{name}": loss.factor(name) for name in own} | own
    divisor = loss.divisor(T, w, P.shape) if total is None else total
    weights = np.asarray(1.0 if w is None else w, P.dtype)
    return {
        "P": P,
        "T": T if T.dtype.kind in "iu" else T.astype(P.dtype),
        "w": np.broadcast_to(weights if divisor else 0 * weights, loss.positions(P.shape)),
        "total": float(divisor),
        "share": 1 / divisor if divisor else 0.0,
    }


def heads(loss: Any) -> Derivation:
    """L is the sum of all losses, each times its factor c, and so are the gradients."""
    trained, P = loss.children(), [*numbered("P", loss.outputs)]
    forward: list[Step] = []
    back: list[Step] = []
    for k, name in zip(P, loss.outputs, strict=True):
        if name not in trained:
            back.append(Let(f"d{k}", f"0 * {k}", f"no loss reaches {name}"))
            continue
        forward.append(Through(f"L_{name}", k, name, result="L"))
        back.append(Through(f"d_{name}", f"L_{name}", name, back=True, result="dP"))
        back.append(Let(f"d{k}", f"c_{name} * d_{name}"))
    whole = " + ".join(f"c_{name} * L_{name}" for name in trained)
    return Derivation.of(*forward, Let("L", whole or "0.0"), *back)


def weighted(each: Sequence[Step], slope: Sequence[Step], axes: int) -> Derivation:
    """The weighted mean of `each`, whose derivative by P is `slope`.

    A term compares the last `axes` axes of P, which have length 1 in `each`.
    """
    if not axes:
        return elementwise(*each, *slope)
    return _rowwise(*each, *slope, _pass_on("dP", "slope"), axes=axes)


# --- regression --------------------------------------------------------------------------------


def mean_squared_error(loss: Any) -> Derivation:
    """Each element costs (p - t)^2."""
    return elementwise(Let("each", "(P - T) ** 2"), Let("slope", "2 * (P - T)"))


def mean_absolute_error(loss: Any) -> Derivation:
    """Each element costs |p - t|."""
    return elementwise(_E, Let("each", "np.abs(e)"), Let("slope", "np.sign(e)"))


def huber(loss: Any) -> Derivation:
    """The square, e^2 / 2, up to delta, and a straight line of slope delta beyond it."""
    return elementwise(
        _E,
        Let("size", "np.abs(e)"),
        Let("near", "np.minimum(size, delta)", "the part of |e| up to delta"),
        Let("each", "near * (size - near / 2)", "e^2 / 2, or delta (|e| - delta / 2)"),
        Let("slope", "np.clip(e, -delta, delta)"),
    )


def log_cosh(loss: Any) -> Derivation:
    """Each element costs log(cosh(e))."""
    return elementwise(
        _E,
        Let("size", "np.abs(e)"),
        Let("each", "size + np.log((1 + np.exp(-2 * size)) / 2)", "log(cosh(e))"),
        Let("slope", "np.tanh(e)"),
    )


def poisson_nll(loss: Any) -> Derivation:
    """A count t costs rate - t log(rate)."""
    if loss.log_input:
        rate = Let("rate", "np.exp(P)", "the expected count")
        return elementwise(rate, Let("each", "rate - T * P"), Let("slope", "rate - T"))
    return elementwise(
        _TINY,
        _log("P"),
        Let("each", "P - T * log_P"),
        _reciprocal("P"),
        Let("slope", "1 - T * over_P"),
    )


def cosine_similarity(loss: Any) -> Derivation:
    """Each row costs 1 - c, for the cosine c of the angle between p and t."""
    return _rowwise(
        _TINY,
        *_unit("P"),
        *_unit("T"),
        Sum("c", "...d,...d->...1", "P_hat", "T_hat", words="the cosine; 0 for a row of 0"),
        Let("each", "1 - c"),
        Let("slope", "(c * P_hat - T_hat) * over_length_P / top_P", "(c p_hat - t_hat) / |p|"),
        _pass_on("dP", "slope"),
    )


_E = Let("e", "P - T", "the error")


def _unit(A: str) -> list[Step]:
    """Rows of length 1 or 0; the division by the largest element keeps the squares finite."""
    return [
        Let(f"size_{A}", f"np.abs({A})"),
        Max(f"largest_{A}", "...d->...1", f"size_{A}"),
        Let(f"top_{A}", f"np.where(largest_{A} < tiny, 1, largest_{A})"),
        Let(f"{A}_scaled", f"{A} / top_{A}"),
        Sum(f"squares_{A}", "...d,...d->...1", f"{A}_scaled", f"{A}_scaled"),
        Let(f"length_{A}", f"np.sqrt(squares_{A})"),
        _reciprocal(f"length_{A}"),
        Let(f"{A}_hat", f"{A}_scaled * over_length_{A}"),
    ]


# --- two classes -------------------------------------------------------------------------------


def binary_cross_entropy(loss: Any) -> Derivation:
    """Each element costs -t log p - (1 - t) log q, with q = 1 - p."""
    below = "np.log1p(-np.where(P >= 1, 0, P))"  # more exact than the log of a rounded 1 - p
    return elementwise(
        _TINY,
        Let("Q", "1 - P", "the probability of the negative class"),
        _log("P"),
        Let("log_Q", f"np.where(P >= 1, np.log(tiny), {below})", "log(1 - p)"),
        Let("each", "-T * log_P - (1 - T) * log_Q"),
        _reciprocal("P"),
        _reciprocal("Q"),
        Let("slope", "(1 - T) * over_Q - T * over_P"),
    )


def binary_cross_entropy_with_logits(loss: Any) -> Derivation:
    """The cross-entropy of p = sigmoid(z) has the slope p - t."""
    return elementwise(*_softplus("P", "each"), *_sigmoid("P", "slope"))


def _softplus(z: str, cost: str) -> list[Step]:
    """softplus(z) - t z, written so that it never subtracts nearly equal values."""
    return [
        Let("size", f"np.abs({z})"),
        Let("E", "np.exp(-size)"),
        Let("u", f"np.where(np.signbit({z}), T, 1 - T)", "how much t contradicts the sign of z"),
        Let(cost, "u * np.where(u > 0, size, 0) + np.log1p(E)", "softplus(z) - t z"),
    ]


def _sigmoid(z: str, slope: str) -> list[Step]:
    return [Let("p", f"np.where({z} >= 0, 1, E) / (1 + E)", "sigmoid(z)"), Let(slope, "p - T")]


def hinge(loss: Any) -> Derivation:
    """Each element costs what its margin t p lacks to 1."""
    return elementwise(_LACK, Let("each", "lack"), Let("slope", "np.where(lack > 0, -T, 0)"))


def squared_hinge(loss: Any) -> Derivation:
    """Each element costs the square of what its margin t p lacks to 1."""
    return elementwise(_LACK, Let("each", "lack ** 2"), Let("slope", "-2 * T * lack"))


_LACK = Let("lack", "np.maximum(1 - T * P, 0)", "how far the margin t p is below 1")


# --- distributions -----------------------------------------------------------------------------


def kl_divergence(loss: Any) -> Derivation:
    """Each element costs t (log t - p), for log-probabilities p; `total` counts samples."""
    ratio = Let("log_ratio", "np.where(T > 0, log_T - P, 0)", "0 where t is 0")
    return elementwise(_TINY, _log("T"), ratio, Let("each", "T * log_ratio"), Let("slope", "-T"))


def negative_elbo(loss: Any) -> Derivation:
    """E + beta KL for each sample; P holds the means m, the log variances s and the logits z."""
    return _rowwise(
        Arrange("m", "P[..., :latent]", "P", "the means"),
        Arrange("s", "P[..., latent : 2 * latent]", "P", "the log variances"),
        Arrange("z", "P[..., 2 * latent :]", "P", "the logits"),
        *_softplus("z", "costs"),
        Sum("rebuilt", "...d->...1", "costs", words="E, the reconstruction error"),
        Let("apart", "(m ** 2 + np.exp(s) - s - 1) / 2", "of N(m, exp(s)) from N(0, 1)"),
        Sum("KL", "...l->...1", "apart"),
        Let("each", "rebuilt + beta * KL"),
        Let("slope_m", "beta * m"),
        Let("slope_s", "beta * (np.exp(s) - 1) / 2"),
        *_sigmoid("z", "slope_z"),
        *(_pass_on(f"d{part}", f"slope_{part}") for part in "msz"),
        Join("dP", "dm", "ds", "dz"),
    )


# --- K classes ---------------------------------------------------------------------------------


def categorical_cross_entropy(loss: Any) -> Derivation:
    """A row costs -sum_k q_k log p_k, and log p has the slope 1 / p."""
    return _cross_entropy(
        loss, _TINY, _log("P"), _DLOG_P, _reciprocal("P"), Let("dP", "dlog_P * over_P")
    )


def softmax_cross_entropy(loss: Any) -> Derivation:
    """The cross-entropy of p = softmax(z) has the slope p - q, if q sums to 1."""
    return _cross_entropy(
        loss,
        Max("top", "...k->...1", "P"),
        Let("Z", "P - top", "so that exp cannot overflow"),
        Let("E", "np.exp(Z)"),
        Sum("s", "...k->...1", "E"),
        Let("log_P", "Z - np.log(s)", "the log of softmax(z)"),
        Let("p", "E / s", "softmax(z)"),
        Sum("mass", "...k->...1", "q", words="1 without class weights"),
        Let("slope", "p * mass - q", "p - q, if q sums to 1"),
        _pass_on("dP", "slope"),
    )


def negative_log_likelihood(loss: Any) -> Derivation:
    """A row costs -sum_k q_k p_k, for log-probabilities p."""
    return _cross_entropy(
        loss, Let("log_P", "P", "P holds log-probabilities"), _DLOG_P, Let("dP", "dlog_P")
    )


def _cross_entropy(loss: Any, *steps: Step) -> Derivation:
    """The weighted mean of the rows' -sum_k q_k log p_k, by the steps to log_P and from there."""

    def rows(symbols: Any) -> Array:
        P = symbols["P"]
        q = loss._weighted(symbols["T"], symbols["w"], P.shape, P.dtype)[0]
        return q if q.ndim == P.ndim else one_hot(q, P.shape[-1], P.dtype)

    def weights(symbols: Any) -> Any:
        P = symbols["P"]
        return loss._weighted(symbols["T"], symbols["w"], P.shape, P.dtype)[1][..., None]

    log_P, backward = split(steps, "log_P")
    return Derivation.of(
        Given("q", "the target rows: one-hot, smoothed, times the class weights", rows),
        Given("v", "the weights of the rows, 0 for ignored labels", weights),
        *log_P,
        Let("surprise", "np.where(q > 0, -log_P, 0)", "0 where q is 0"),
        Sum("each", "...k,...k->...1", "q", "surprise"),
        *weighted_mean("v"),
        _arrives("v"),
        *backward,
    )


# --- what they share ---------------------------------------------------------------------------


def elementwise(*steps: Step) -> Derivation:
    """The weighted mean of `each`, whose derivative with respect to P is `slope`."""
    each, slope = split(steps, "each")
    return Derivation.of(*each, *weighted_mean("w"), _arrives("w"), *slope, _pass_on("dP", "slope"))


def _rowwise(*steps: Step, axes: int = 1) -> Derivation:
    """The weighted mean of `each`, which has one number per row; v holds the rows' weights."""
    v = Arrange("v", f"w[...{', None' * axes}]", "w", "the weights of the rows")
    each, backward = split(steps, "each")
    return Derivation.of(v, *each, *weighted_mean("v"), _arrives("v"), *backward)


def weighted_mean(w: str) -> list[Step]:
    """L = sum w each / total; terms of weight 0 do not count even if they are infinite."""
    return [
        Let("counted", f"np.where({w} > 0, each, 0)", "infinity times 0 would be NaN"),
        Sum("summed", "...,...->", "counted", w),
        Let("L", "summed * share", "share is 1 / the total weight"),
    ]


def _arrives(w: str) -> Step:
    return Let("d_each", f"{w} * share", "what arrives at each term: its share of L")


def _pass_on(symbol: str, slope: str) -> Step:
    """What arrives times the slope; an infinite slope does not count where nothing arrives."""
    return Let(symbol, f"np.where(d_each > 0, d_each * {slope}, 0)", "what arrives times the slope")


_DLOG_P = Let("dlog_P", "-q * d_each", "the gradient of log p")
_TINY = Given("tiny", "the smallest normal number", lambda s: np.finfo(s["P"].dtype).tiny)


def _log(A: str) -> Step:
    return Let(f"log_{A}", f"np.log(np.maximum({A}, tiny))")


def _reciprocal(A: str) -> Step:
    """The derivative of `_log`."""
    code = f"np.where({A} >= tiny, 1 / np.maximum({A}, tiny), 0)"
    return Let(f"over_{A}", code, f"1 / {A}, the slope of log({A})")
