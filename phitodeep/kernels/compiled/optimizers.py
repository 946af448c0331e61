"""Compiled twins of the kernels in `optimization/rules.py`, one pass over n parameters each.

Each twin first converts its scalars to the parameters' dtype, and rounds after every operation, as
the NumPy form does in the same order: both compute the same bits, wherever a parameter stands. The
scratch arrays are needed only by the NumPy forms.
"""

from __future__ import annotations

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import rounded


@twin
@rounded
def sgd(
    theta: Array, g: Array, V: Array | None, s: Array, mu: float, nesterov: bool, lr: float
) -> None:
    """Update theta and V (n,): V <- mu V + g; theta <- theta - lr V."""
    t = theta.dtype.type
    mu, lr = t(mu), t(lr)
    for i in range(theta.size):
        step = g[i]
        if V is not None:
            v = mu * V[i] + g[i]
            V[i] = v
            step = g[i] + mu * v if nesterov else v
        theta[i] -= lr * step


@twin
@rounded
def adam(
    theta: Array, g: Array, M: Array, V: Array, s: Array,
    beta1: float, beta2: float, rate: float, eps: float,
) -> None:  # fmt: skip
    """Update theta, M and V (n,): theta <- theta - rate M / (sqrt(V) + eps)."""
    t = theta.dtype.type
    beta1, beta2, rate, eps = t(beta1), t(beta2), t(rate), t(eps)
    for i in range(theta.size):
        m = beta1 * M[i] + g[i]
        v = beta2 * V[i] + g[i] * g[i]
        M[i], V[i] = m, v
        theta[i] -= m / (np.sqrt(v) + eps) * rate


@twin
@rounded
def nadam(
    theta: Array, g: Array, m: Array, v: Array, s: Array, r: Array,
    beta1: float, beta2: float, ahead: float, now: float, eps: float,
) -> None:  # fmt: skip
    """Update theta, m and v (n,): theta <- theta - (ahead m + now g) / (sqrt(v) + eps)."""
    t = theta.dtype.type
    b1, c1, b2, c2 = t(beta1), t(1 - beta1), t(beta2), t(1 - beta2)
    ahead, now, eps = t(ahead), t(now), t(eps)
    for i in range(theta.size):
        m[i] = b1 * m[i] + c1 * g[i]
        v[i] = b2 * v[i] + g[i] * g[i] * c2
        theta[i] -= (ahead * m[i] + now * g[i]) / (np.sqrt(v[i]) + eps)


@twin
@rounded
def rmsprop(
    theta: Array, g: Array, v: Array, b: Array | None, s: Array,
    rho: float, mu: float, lr: float, eps: float,
) -> None:  # fmt: skip
    """Update theta, v and b (n,): theta <- theta - lr g / (sqrt(v) + eps), or theta - lr b."""
    t = theta.dtype.type
    rho, c, mu, lr, eps = t(rho), t(1 - rho), t(mu), t(lr), t(eps)
    for i in range(theta.size):
        v[i] = rho * v[i] + g[i] * g[i] * c
        step = g[i] / (np.sqrt(v[i]) + eps)
        if b is not None:
            step += mu * b[i]
            b[i] = step
        theta[i] -= lr * step


@twin
@rounded
def adagrad(theta: Array, g: Array, V: Array, s: Array, lr: float, eps: float) -> None:
    """Update theta and V (n,): V <- V + g^2; theta <- theta - lr g / (sqrt(V) + eps)."""
    t = theta.dtype.type
    lr, eps = t(lr), t(eps)
    for i in range(theta.size):
        v = V[i] + g[i] * g[i]
        V[i] = v
        theta[i] -= g[i] / (np.sqrt(v) + eps) * lr


@twin
@rounded
def adadelta(
    theta: Array, g: Array, V: Array, D: Array, u: Array, s: Array,
    rho: float, lr: float, eps: float,
) -> None:  # fmt: skip
    """Update theta, V and D (n,): theta <- theta - lr x, x = g sqrt((D + eps) / (V + eps))."""
    t = theta.dtype.type
    rho, c, lr, eps = t(rho), t(1 - rho), t(lr), t(eps)
    for i in range(theta.size):
        v = rho * V[i] + g[i] * g[i] * c
        x = np.sqrt((D[i] + eps) / (v + eps)) * g[i]
        V[i], D[i] = v, rho * D[i] + x * x * c
        theta[i] -= lr * x


@twin
@rounded
def lion(
    theta: Array, g: Array, M: Array, s: Array, r: Array, beta1: float, beta2: float, lr: float
) -> None:
    """Update theta and M (n,): theta <- theta - lr sign(beta1 M + (1 - beta1) g)."""
    t = theta.dtype.type
    c1, c2, lr = t(1 - beta1), t(1 - beta2), t(lr)
    for i in range(theta.size):
        m = M[i]
        theta[i] -= lr * np.sign(m + c1 * (g[i] - m))
        M[i] = m + c2 * (g[i] - m)
