"""The activations: y = f(x) for each element alone, and softmax, where a whole row matters.

Elementwise, the chain rule is one product: dX = dY * slope. What arrives (dY), times what the
layer did locally (slope = f'(x)), is what it passes on.
"""

from __future__ import annotations

from typing import Any

from phitodeep.derivations.language.step import LETTERS, Derivation, Let, Max, Step, Sum


def elementwise(*steps: Step) -> Derivation:
    """Any y = f(x), by the steps to Y and those to its derivative, `slope`."""
    return Derivation.of(*steps, pass_on())


def pass_on() -> Let:
    return Let("dX", "dY * slope", "what arrives times the local slope")


# --- with kinks --------------------------------------------------------------------------------


def relu(layer: Any) -> Derivation:
    """The slope is 1 where the gate is open, else 0: at exactly 0, it is closed."""
    return elementwise(
        Let("Y", "np.maximum(X, 0)"), Let("slope", "np.where(X > 0, 1.0, 0.0)", "the gate")
    )


def leaky_relu(layer: Any) -> Derivation:
    """A gate that never closes completely."""
    return elementwise(
        Let("Y", "np.where(X > 0, X, alpha * X)"), Let("slope", "np.where(X > 0, 1.0, alpha)")
    )


def prelu(layer: Any) -> Derivation:
    """LeakyReLU with a learnt alpha, which multiplies only the negative x."""
    return Derivation.of(
        Let("below", "np.minimum(X, 0)", "what alpha multiplies"),
        Let("Y", "np.maximum(X, 0) + alpha * below"),
        Sum("dalpha", "...d,...d->d", "dY", "below"),
        Let("slope", "np.where(X > 0, 1.0, alpha)"),
        pass_on(),
    )


def hard_sigmoid(layer: Any) -> Derivation:
    """A ramp from 0 at x = -3 to 1 at x = 3."""
    return elementwise(_ramp("Y"), _ramp_slope("slope"))


def hard_swish(layer: Any) -> Derivation:
    """y = x h with the ramp h, so the product rule gives h + x dh/dx."""
    return elementwise(
        _ramp("h"),
        Let("Y", "X * h"),
        _ramp_slope("slope_h"),
        Let("slope", "h + X * slope_h", "the product rule"),
    )


def _ramp(symbol: str) -> Let:
    return Let(symbol, "np.clip(X / 6 + 0.5, 0, 1)", "a ramp from 0 to 1")


def _ramp_slope(symbol: str) -> Let:
    return Let(symbol, "np.where(np.abs(X) < 3, 1 / 6, 0.0)", "the slope of the ramp")


def hard_tanh(layer: Any) -> Derivation:
    """The identity between -1 and 1, constant outside."""
    return elementwise(
        Let("Y", "np.clip(X, -1, 1)"), Let("slope", "np.where(np.abs(X) < 1, 1.0, 0.0)")
    )


# --- exponentials below 0 ----------------------------------------------------------------------


def elu(layer: Any) -> Derivation:
    """x, or alpha (exp(x) - 1) below 0. There, exp is its own slope."""
    return elementwise(
        _below("X"),
        Let("Y", "np.where(X > 0, X, alpha * np.expm1(below))"),
        Let("slope", "np.where(X > 0, 1.0, alpha * np.exp(below))"),
    )


def celu(layer: Any) -> Derivation:
    """alpha (exp(x / alpha) - 1) below 0: alpha cancels in the slope, which is 1 at x = 0."""
    return elementwise(
        _below("X / alpha"),
        Let("Y", "np.where(X > 0, X, alpha * np.expm1(below))"),
        Let("slope", "np.exp(below)", "1 for x > 0, where below = 0"),
    )


def selu(layer: Any) -> Derivation:
    """A scaled ELU, with constants that keep activations at mean 0 and variance 1."""
    return elementwise(
        Let("alpha", repr(float(layer.alpha)), "a constant from the paper"),
        Let("scale", repr(float(layer.scale)), "a constant from the paper"),
        _below("X"),
        Let("Y", "scale * np.where(X > 0, X, alpha * np.expm1(below))"),
        Let("slope", "scale * np.where(X > 0, 1.0, alpha * np.exp(below))"),
    )


def _below(x: str) -> Let:
    return Let("below", f"np.minimum({x}, 0)", "0 for x > 0, where exp could overflow")


# --- smooth ------------------------------------------------------------------------------------


def sigmoid(layer: Any) -> Derivation:
    """y = 1 / (1 + exp(-x)): the slope needs only y."""
    return elementwise(_sigmoid("Y"), Let("slope", "Y * (1 - Y)"))


def tanh(layer: Any) -> Derivation:
    """y = tanh(x): the slope needs only y."""
    return elementwise(Let("Y", "np.tanh(X)"), Let("slope", "1 - Y ** 2"))


def softplus(layer: Any) -> Derivation:
    """y = log(1 + exp(x)), whose slope is the sigmoid."""
    return elementwise(_softplus("Y"), _sigmoid("slope"))


def softsign(layer: Any) -> Derivation:
    """y = x / (1 + |x|), whose slope is 1 / (1 + |x|)^2."""
    return elementwise(Let("q", "1 / (1 + np.abs(X))"), Let("Y", "X * q"), Let("slope", "q ** 2"))


def silu(layer: Any) -> Derivation:
    """y = x s with s = sigmoid(x), so the product rule gives s + x s (1 - s)."""
    return elementwise(
        _sigmoid("s"),
        Let("Y", "X * s"),
        Let("slope_s", "s * (1 - s)"),
        Let("slope", "s + X * slope_s", "the product rule"),
    )


def mish(layer: Any) -> Derivation:
    """y = x m with m = tanh(softplus(x)): the product rule, and the chain rule inside m."""
    return elementwise(
        _softplus("u"),
        Let("m", "np.tanh(u)"),
        Let("Y", "X * m"),
        _sigmoid("s"),
        Let("slope_m", "(1 - m ** 2) * s", "the slope of tanh times the slope of softplus"),
        Let("slope", "m + X * slope_m", "the product rule"),
    )


def gelu(layer: Any) -> Derivation:
    """y = x Phi, so the product rule gives Phi + x phi, where phi is the slope of Phi."""
    forward, back = _phi_by_tanh() if layer.approximate == "tanh" else _phi()
    slope = Let("slope", "Phi + X * phi", "the product rule")
    return elementwise(*forward, Let("Y", "X * Phi"), *back, slope)


def _phi() -> tuple[list[Step], list[Step]]:
    return [
        Let("E", "erf(X / np.sqrt(2))", "the error function"),
        Let("Phi", "(1 + E) / 2", "the probability that a standard normal value is below x"),
    ], [Let("phi", f"np.exp(-{_NEAR} ** 2 / 2) / np.sqrt(2 * np.pi)", "the density at x")]


def _phi_by_tanh() -> tuple[list[Step], list[Step]]:
    return [
        Let("k", "np.sqrt(2 / np.pi)"),
        Let("c", "0.044715", "a fitted constant"),
        Let("v", _NEAR, "x, clipped where Phi is 0 or 1 anyway"),
        Let("u", "k * (v + c * v ** 3)"),
        Let("m", "np.tanh(u)"),
        Let("Phi", "(1 + m) / 2", "nearly the probability that a standard normal value is below x"),
    ], [
        Let("slope_u", "k * (1 + 3 * c * v ** 2)"),
        Let(
            "phi", "(1 - m ** 2) / 2 * slope_u", "the slope of Phi: the chain rule through m and u"
        ),
    ]


_NEAR = "np.clip(X, -40, 40)"  # beyond it, exp(-x^2 / 2) is 0 even in float64


def _sigmoid(symbol: str) -> Let:
    return Let(symbol, "sigmoid(X)", "sigmoid(x) = 1 / (1 + exp(-x)), without overflow")


def _softplus(symbol: str) -> Let:
    return Let(symbol, "softplus(X)", "softplus(x) = log(1 + exp(x)), without overflow")


# --- along an axis -----------------------------------------------------------------------------


def softmax(layer: Any) -> Derivation:
    """y_k = exp(x_k) / total: x_k acts on y_k directly, and on all of the row through the total."""
    row, one = along(layer.axis)
    return Derivation.of(
        *_exponentials(row, one),
        Let("Y", "E / total"),
        Sum("s", f"{row},{row}->{one}", "dY", "Y", words="dY, averaged with the weights Y"),
        Let("direct", "Y * dY", "what x_k passes on through its own y_k"),
        Let("through_total", "Y * s", "a larger x_k makes the total larger"),
        Let("dX", "direct - through_total"),
    )


def log_softmax(layer: Any) -> Derivation:
    """y_k = x_k - log(total): x_k acts on y_k directly, and on all of the row through the total."""
    row, one = along(layer.axis)
    return Derivation.of(
        *_exponentials(row, one),
        Let("Y", "Z - np.log(total)"),
        Sum("s", f"{row}->{one}", "dY", words="every y of the row has the same total"),
        Let("slope", "np.exp(Y)", "of log(total): softmax(x)"),
        Let("dX", "dY - slope * s", "directly, and through the total"),
    )


def _exponentials(row: str, one: str) -> list[Step]:
    return [
        Max("top", f"{row}->{one}", "X"),
        Let("Z", "X - top", "changes no ratio, and exp cannot overflow"),
        Let("E", "np.exp(Z)"),
        Sum("total", f"{row}->{one}", "E"),
    ]


def along(axis: int) -> tuple[str, str]:
    """The indices of an array, with k along `axis`, and of one whose length along it is 1."""
    free = LETTERS.replace("k", "")
    before, after = ("...", free[: -axis - 1]) if axis < 0 else (free[:axis], "...")
    return f"{before}k{after}", f"{before}1{after}"
