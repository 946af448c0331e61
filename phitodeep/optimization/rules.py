"""Gradient-descent optimizers that update flat vectors in place: SGD, Adam and relatives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.settings import Flag, Fraction, NonNegative, Positive
from phitodeep.core.types import Array, Schedule
from phitodeep.errors import ArgumentError
from phitodeep.kernels import kernel
from phitodeep.optimization.base import Optimizer
from phitodeep.optimization.schedules import Rate

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "Nadam", "RMSProp"]


class SGD(Optimizer):
    """theta <- theta - lr v, with v = g, or a running sum of gradients.

    momentum mu:    v <- mu v + g
    nesterov:       the step is g + mu v, which looks one momentum step ahead

    Sources: Robbins and Monro 1951; Polyak 1964; Sutskever et al. 2013, "On the importance of
    initialization and momentum in deep learning", in the form that PyTorch uses.
    """

    elementwise = True
    momentum: Fraction = 0.0
    nesterov: Flag = False

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ArgumentError("SGD nesterov needs momentum > 0.")

    def update(self, theta: Array, g: Array, lr: float) -> None:
        v = self.slot("v") if self.momentum else None
        sgd(theta, g, v, self.scratch(), self.momentum, self.nesterov, lr)


@kernel
def sgd(
    theta: Array, g: Array, v: Array | None, s: Array, mu: float, nesterov: bool, lr: float
) -> None:
    """v <- mu v + g; theta <- theta - lr v; with nesterov, - lr (g + mu v); without v, - lr g."""
    step = g
    if v is not None:
        v *= mu
        v += g
        step = v
        if nesterov:
            step = np.multiply(v, mu, out=s)
            step += g
    theta -= np.multiply(step, lr, out=s)


class Adam(Optimizer):
    """Take steps of size about `alpha`, scaled per parameter by recent gradient magnitudes.

        m <- b1 m + (1 - b1) g         running mean of g
        v <- b2 v + (1 - b2) g^2       running mean of g^2
        theta <- theta - lr m_hat / (sqrt(v_hat) + eps)

    m and v start at 0, so after t steps they are too small by the factors 1 - b1^t and
    1 - b2^t; m_hat and v_hat divide those out. The ratio has no unit: multiplying the loss by
    1000 does not change the step.

    The slots hold the sums M = m / (1 - b1) and V = v / (1 - b2), which saves three passes over
    memory; with c^2 = (1 - b2) / (1 - b2^t), sqrt(v_hat) is c sqrt(V), and the step is
    lr (1 - b1) / (1 - b1^t) M / (c (sqrt(V) + eps / c)).

    t is counted per parameter: one that was frozen continues from its own count.

    Source: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    elementwise = True
    own_start: ClassVar[Mapping[str, float]] = {"t": 0}
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Positive = 1e-8

    def update(self, theta: Array, g: Array, lr: float) -> None:
        M, V, s = self.slot("M"), self.slot("V"), self.scratch_block()
        t = self.own["t"] = self.own["t"] + 1
        c = math.sqrt((1 - self.beta2) / (1 - self.beta2**t))
        rate = lr * (1 - self.beta1) / (1 - self.beta1**t) / c
        adam(theta, g, M, V, s, self.beta1, self.beta2, rate, self.eps / c)


@kernel
def adam(
    theta: Array, g: Array, M: Array, V: Array, s: Array,
    beta1: float, beta2: float, rate: float, eps: float,
) -> None:  # fmt: skip
    """M <- beta1 M + g; V <- beta2 V + g^2; theta <- theta - rate M / (sqrt(V) + eps)."""
    for i in range(0, theta.size, s.size):
        block = slice(i, i + s.size)
        d, m, v = g[block], M[block], V[block]
        s = s[: d.size]  # the last block may be shorter
        m *= beta1
        m += d
        np.square(d, out=s)
        v *= beta2
        v += s
        np.sqrt(v, out=s)
        s += eps
        np.divide(m, s, out=s)
        s *= rate
        theta[block] -= s


class AdamW(Adam):
    """Adam with decoupled weight decay, 0.01 by default.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    def __init__(self, alpha: float | Schedule = 0.01, **options: Any) -> None:
        super().__init__(alpha, **{"weight_decay": 0.01, **options})


class Nadam(Optimizer):
    """Adam with Nesterov's look-ahead, and momentum that warms up.

        mu_t = b1 (1 - 0.5 * 0.96^(t psi))         M_t = mu_1 ... mu_t
        m <- b1 m + (1 - b1) g                     v <- b2 v + (1 - b2) g^2
        theta <- theta - lr (mu_{t+1} m / (1 - M_{t+1}) + (1 - mu_t) g / (1 - M_t))
                            / (sqrt(v / (1 - b2^t)) + eps)

    t is counted per parameter: one that was frozen continues from its own count.
    Source: Dozat 2016, "Incorporating Nesterov momentum into Adam", ICLR workshop, sec. 3.
    """

    elementwise = True
    own_start: ClassVar[Mapping[str, float]] = {"t": 0, "product": 1.0}  # product: M_t
    alpha: Rate = field(default=0.002, kw_only=False)
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Positive = 1e-8
    psi: NonNegative = 0.004

    def update(self, theta: Array, g: Array, lr: float) -> None:
        m, v, s, r = self.slot("m"), self.slot("v"), self.scratch(), self.scratch("root")
        t = self.own["t"] = self.own["t"] + 1
        mu, mu_next = self._momentum(t), self._momentum(t + 1)
        product = self.own["product"] = self.own["product"] * mu
        c = math.sqrt(1 - self.beta2**t)  # sqrt(v / (1 - b2^t)) is sqrt(v) / c
        ahead = c * lr * mu_next / (1 - product * mu_next)
        now = c * lr * (1 - mu) / (1 - product)
        nadam(theta, g, m, v, s, r, self.beta1, self.beta2, ahead, now, c * self.eps)

    def _momentum(self, t: int) -> float:
        return self.beta1 * (1 - 0.5 * 0.96 ** (t * self.psi))


@kernel
def nadam(
    theta: Array, g: Array, m: Array, v: Array, s: Array, r: Array,
    beta1: float, beta2: float, ahead: float, now: float, eps: float,
) -> None:  # fmt: skip
    """Update the running means m and v; theta <- theta - (ahead m + now g) / (sqrt(v) + eps)."""
    m *= beta1
    m += np.multiply(g, 1 - beta1, out=s)
    np.square(g, out=s)
    s *= 1 - beta2
    v *= beta2
    v += s
    np.multiply(m, ahead, out=s)
    s += np.multiply(g, now, out=r)
    np.sqrt(v, out=r)
    r += eps
    s /= r
    theta -= s


class RMSProp(Optimizer):
    """theta <- theta - lr g / (sqrt(v) + eps), with v <- rho v + (1 - rho) g^2.

    momentum mu: theta <- theta - lr b, with b <- mu b + g / (sqrt(v) + eps).
    Source: Tieleman and Hinton 2012, "Neural networks for machine learning", lecture 6.5.
    """

    elementwise = True
    rho: Fraction = 0.9
    eps: Positive = 1e-8
    momentum: Fraction = 0.0

    def update(self, theta: Array, g: Array, lr: float) -> None:
        v, s = self.slot("v"), self.scratch()
        b = self.slot("b") if self.momentum else None
        rmsprop(theta, g, v, b, s, self.rho, self.momentum, lr, self.eps)


@kernel
def rmsprop(
    theta: Array, g: Array, v: Array, b: Array | None, s: Array,
    rho: float, mu: float, lr: float, eps: float,
) -> None:  # fmt: skip
    """v <- rho v + (1 - rho) g^2; theta <- theta - lr u, u = g / (sqrt(v) + eps); with b,
    b <- mu b + u and theta <- theta - lr b."""
    np.square(g, out=s)
    s *= 1 - rho
    v *= rho
    v += s
    np.sqrt(v, out=s)
    s += eps
    step = np.divide(g, s, out=s)
    if b is not None:
        b *= mu
        b += s
        step = b
    theta -= np.multiply(step, lr, out=s)


class Adagrad(Optimizer):
    """theta <- theta - lr g / (sqrt(v) + eps), with v the sum of all g^2 so far.

    Source: Duchi, Hazan and Singer 2011, "Adaptive subgradient methods", JMLR 12, fig. 1.
    """

    elementwise = True
    eps: Positive = 1e-10

    def update(self, theta: Array, g: Array, lr: float) -> None:
        adagrad(theta, g, self.slot("v"), self.scratch(), lr, self.eps)


@kernel
def adagrad(theta: Array, g: Array, v: Array, s: Array, lr: float, eps: float) -> None:
    """v <- v + g^2; theta <- theta - lr g / (sqrt(v) + eps)."""
    v += np.square(g, out=s)
    np.sqrt(v, out=s)
    s += eps
    np.divide(g, s, out=s)
    s *= lr
    theta -= s


class Adadelta(Optimizer):
    """theta <- theta - lr u, with u = g sqrt(d + eps) / sqrt(v + eps), in the unit of theta.

        v <- rho v + (1 - rho) g^2          d <- rho d + (1 - rho) u^2  (after the step)

    Source: Zeiler 2012, arXiv:1212.5701, algorithm 1 (where lr is 1).
    """

    elementwise = True
    alpha: Rate = field(default=1.0, kw_only=False)
    rho: Fraction = 0.9
    eps: Positive = 1e-6

    def update(self, theta: Array, g: Array, lr: float) -> None:
        v, d, u, s = self.slot("v"), self.slot("d"), self.scratch("u"), self.scratch()
        adadelta(theta, g, v, d, u, s, self.rho, lr, self.eps)


@kernel
def adadelta(
    theta: Array, g: Array, v: Array, d: Array, u: Array, s: Array,
    rho: float, lr: float, eps: float,
) -> None:  # fmt: skip
    """v <- rho v + (1 - rho) g^2; theta <- theta - lr u, u = g sqrt((d + eps) / (v + eps));
    d <- rho d + (1 - rho) u^2."""
    np.square(g, out=s)
    s *= 1 - rho
    v *= rho
    v += s
    np.add(d, eps, out=u)
    np.add(v, eps, out=s)
    u /= s
    np.sqrt(u, out=u)
    u *= g
    np.square(u, out=s)
    s *= 1 - rho
    d *= rho
    d += s
    theta -= np.multiply(u, lr, out=s)


class Lion(Optimizer):
    """theta <- theta - lr sign(b1 m + (1 - b1) g), then m <- b2 m + (1 - b2) g.

    Every parameter moves by lr per step, so use about a tenth of Adam's learning rate.
    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", arXiv:2302.06675,
    program 1.
    """

    elementwise = True
    alpha: Rate = field(default=1e-4, kw_only=False)
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99

    def update(self, theta: Array, g: Array, lr: float) -> None:
        m, s, r = self.slot("m"), self.scratch(), self.scratch("sign")
        lion(theta, g, m, s, r, self.beta1, self.beta2, lr)


@kernel
def lion(
    theta: Array, g: Array, m: Array, s: Array, r: Array, beta1: float, beta2: float, lr: float
) -> None:
    """theta <- theta - lr sign(b1 m + (1 - b1) g); m <- b2 m + (1 - b2) g."""
    np.subtract(g, m, out=s)  # b1 m + (1 - b1) g = m + (1 - b1)(g - m)
    s *= 1 - beta1
    s += m
    np.sign(s, out=r)  # NumPy's sign is far slower in place
    r *= lr
    theta -= r
    np.subtract(g, m, out=s)
    s *= 1 - beta2
    m += s
