"""Kernels that Numba compiles: the same names and arguments as their NumPy forms.

Each is one pass over memory where NumPy takes several. Serial, so that a BLAS with threads of its
own is not disturbed, and without the interpreter's lock, so that threads may run them side by
side. Arrays are contiguous float32 or float64; numbers are turned into the arrays' dtype first, so
that nothing is computed in float64 by accident. Reassociation and contraction are allowed, the
assumption that there are no NaNs and infinities is not.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import event
from numba.extending import overload

from phitodeep.errors import PhitodeepWarning
from phitodeep.kernels.erf import ERF_NEAR, ERF_TAIL
from phitodeep.types import Array

OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "error_model": "numpy",
    "nogil": True,
    "boundscheck": False,
}
f4 = np.float32
K, C = math.sqrt(2 / math.pi), 0.044715  # of GELU's tanh approximation


class _Notice(event.Listener):
    """Says that kernels are compiled, when the first of them is: later runs take them from disk."""

    said = False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if not self.said and getattr(function, "__module__", None) == __name__:
            print("phitodeep: compiling kernels, once; some seconds", file=sys.stderr, flush=True)
            self.said = True

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called and kept in Numba's cache for later runs."""
    try:
        return numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError as error:  # no folder that can be written to
        warnings.warn(
            f"compiled kernels cannot be kept ({error}): each run compiles them anew. "
            "Set NUMBA_CACHE_DIR to a folder that can be written to.",
            PhitodeepWarning,
            stacklevel=2,
        )
        return numba.njit(**OPTIONS)(function)


# --- exponentials that the processor can take side by side ------------------------------------


def _exp(x: float) -> float:
    return math.exp(x)


@overload(_exp)
def _exp_of(x: Any) -> Any:
    """exp(x): in float32 by Cody and Waite, x = n log 2 + r, and Cephes' polynomial in r."""

    def double(x: Any) -> Any:
        return math.exp(x)

    def single(x: Any) -> Any:
        held = min(max(x, f4(-87.3)), f4(88.7))
        n = min(np.floor(held * f4(1.44269504) + f4(0.5)), f4(127))
        r = held - n * f4(0.693359375) + n * f4(2.12194440e-4)
        y = f4(1.9875691500e-4)
        y = y * r + f4(1.3981999507e-3)
        y = y * r + f4(8.3334519073e-3)
        y = y * r + f4(4.1665795894e-2)
        y = y * r + f4(1.6666665459e-1)
        y = y * r + f4(0.5)
        y = y * r * r + r + f4(1.0)
        y *= np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
        y = f4(0) if x < f4(-87.3) else y
        return f4(np.inf) if x > f4(88.7) else y

    return single if x == types.float32 else double


def _tanh(x: float) -> float:
    return math.tanh(x)


@overload(_tanh)
def _tanh_of(x: Any) -> Any:
    """tanh(x): in float32 a quotient of polynomials in x^2, that of Eigen."""

    def double(x: Any) -> Any:
        return math.tanh(x)

    def single(x: Any) -> Any:
        held = min(max(x, f4(-7.9053111)), f4(7.9053111))
        q = held * held
        p = f4(-2.76076847742355e-16)
        p = p * q + f4(2.00018790482477e-13)
        p = p * q + f4(-8.60467152213735e-11)
        p = p * q + f4(5.12229709037114e-08)
        p = p * q + f4(1.48572235717979e-05)
        p = p * q + f4(6.37261928875436e-04)
        p = p * q + f4(4.89352455891786e-03)
        d = f4(1.19825839466702e-06)
        d = d * q + f4(1.18534705686654e-04)
        d = d * q + f4(2.26843463243900e-03)
        d = d * q + f4(4.89352518554385e-03)
        y = held * p / d
        end = f4(1) if x > 0 else f4(-1) if x < 0 else x  # which is NaN, or 0
        return y if abs(x) < f4(9) else end

    return single if x == types.float32 else double


# --- optimizers -------------------------------------------------------------------------------


def adam(
    theta: Array, g: Array, M: Array, V: Array, s: Array,
    beta1: float, beta2: float, rate: float, eps: float,
) -> None:  # fmt: skip
    t = theta.dtype.type
    _adam(theta, g, M, V, t(beta1), t(beta2), t(rate), t(eps))


@compiled
def _adam(theta, g, M, V, beta1, beta2, rate, eps):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        m = beta1 * M[i] + g[i]
        v = beta2 * V[i] + g[i] * g[i]
        M[i], V[i] = m, v
        theta[i] -= rate * m / (np.sqrt(v) + eps)


def sgd(
    theta: Array, g: Array, v: Array | None, s: Array, mu: float, nesterov: bool, lr: float
) -> None:
    t = theta.dtype.type
    _sgd(theta, g, v, t(mu), nesterov, t(lr))


@compiled
def _sgd(theta, g, V, mu, nesterov, lr):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        step = g[i]
        if V is not None:
            v = mu * V[i] + g[i]
            V[i] = v
            step = g[i] + mu * v if nesterov else v
        theta[i] -= lr * step


def nadam(
    theta: Array, g: Array, m: Array, v: Array, s: Array, r: Array,
    beta1: float, beta2: float, ahead: float, now: float, short: float, eps: float,
) -> None:  # fmt: skip
    t = theta.dtype.type
    b1, c1, b2, c2 = t(beta1), t(1 - beta1), t(beta2), t(1 - beta2)
    _nadam(theta, g, m, v, b1, c1, b2, c2, t(ahead), t(now), t(short), t(eps))


@compiled
def _nadam(theta, g, M, V, b1, c1, b2, c2, ahead, now, short, eps):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        m = b1 * M[i] + c1 * g[i]
        v = b2 * V[i] + c2 * g[i] * g[i]
        M[i], V[i] = m, v
        theta[i] -= (ahead * m + now * g[i]) / (np.sqrt(v / short) + eps)


def rmsprop(
    theta: Array, g: Array, v: Array, b: Array | None, s: Array,
    rho: float, mu: float, lr: float, eps: float,
) -> None:  # fmt: skip
    t = theta.dtype.type
    _rmsprop(theta, g, v, b, t(rho), t(1 - rho), t(mu), t(lr), t(eps))


@compiled
def _rmsprop(theta, g, V, B, rho, c, mu, lr, eps):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        v = rho * V[i] + c * g[i] * g[i]
        V[i] = v
        step = g[i] / (np.sqrt(v) + eps)
        if B is not None:
            step += mu * B[i]
            B[i] = step
        theta[i] -= lr * step


def adagrad(theta: Array, g: Array, v: Array, s: Array, lr: float, eps: float) -> None:
    t = theta.dtype.type
    _adagrad(theta, g, v, t(lr), t(eps))


@compiled
def _adagrad(theta, g, V, lr, eps):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        v = V[i] + g[i] * g[i]
        V[i] = v
        theta[i] -= lr * g[i] / (np.sqrt(v) + eps)


def adadelta(
    theta: Array, g: Array, v: Array, d: Array, u: Array, s: Array,
    rho: float, lr: float, eps: float,
) -> None:  # fmt: skip
    t = theta.dtype.type
    _adadelta(theta, g, v, d, t(rho), t(1 - rho), t(lr), t(eps))


@compiled
def _adadelta(theta, g, V, D, rho, c, lr, eps):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        v = rho * V[i] + c * g[i] * g[i]
        u = g[i] * np.sqrt((D[i] + eps) / (v + eps))
        V[i], D[i] = v, rho * D[i] + c * u * u
        theta[i] -= lr * u


def lion(
    theta: Array, g: Array, m: Array, s: Array, r: Array, beta1: float, beta2: float, lr: float
) -> None:
    t = theta.dtype.type
    _lion(theta, g, m, t(1 - beta1), t(1 - beta2), t(lr))


@compiled
def _lion(theta, g, M, c1, c2, lr):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        m = M[i]
        theta[i] -= lr * np.sign(m + c1 * (g[i] - m))
        M[i] = m + c2 * (g[i] - m)


# --- activations ------------------------------------------------------------------------------

N0, N1, N2, N3, N4, N5, N6 = map(f4, ERF_NEAR["f"])
T0, T1, T2, T3, T4, T5, T6, T7, T8 = map(f4, ERF_TAIL["f"])


def _erf(x: float) -> float:
    return math.erf(x)


@overload(_erf)
def _erf_of(x: Any) -> Any:
    """erf(x): in float32 by the polynomials of `functional.erf`."""

    def double(x: Any) -> Any:
        return math.erf(x)

    def single(x: Any) -> Any:
        size = min(abs(x), f4(6))
        q = min(size, f4(1)) ** 2
        near = x * ((((((N0 * q + N1) * q + N2) * q + N3) * q + N4) * q + N5) * q + N6)
        t = (size - f4(3)) / (size + f4(3))
        far = ((((T0 * t + T1) * t + T2) * t + T3) * t + T4) * t + T5
        far = ((far * t + T6) * t + T7) * t + T8
        far = f4(1) - far * _exp(-size * size)
        far = far if x > 0 else -far
        return near if size < f4(1) else far

    return single if x == types.float32 else double


@compiled
def relu(X, Y):  # type: ignore[no-untyped-def]
    zero = X.dtype.type(0)
    for i in range(X.size):
        Y[i] = X[i] if not (X[i] < zero) else zero  # NaN stays NaN


@compiled
def relu_back(dY, Y, dX):  # type: ignore[no-untyped-def]
    zero = Y.dtype.type(0)
    for i in range(Y.size):
        dX[i] = zero if Y[i] <= zero else dY[i]


@compiled
def gelu(X, Phi, Y):  # type: ignore[no-untyped-def]
    one, half, root = X.dtype.type(1), X.dtype.type(0.5), X.dtype.type(math.sqrt(0.5))
    zero = X.dtype.type(0)
    for i in range(X.size):
        p = half * (one + _erf(X[i] * root))
        Phi[i] = p
        Y[i] = zero if p == zero else X[i] * p  # which for -inf is NaN


@compiled
def gelu_back(dY, X, Phi, dX):  # type: ignore[no-untyped-def]
    half, height = X.dtype.type(0.5), X.dtype.type(1 / math.sqrt(2 * math.pi))
    zero = X.dtype.type(0)
    for i in range(X.size):
        x = X[i]
        e = _exp(-half * x * x)
        dX[i] = dY[i] * (Phi[i] + (zero if e == zero else x * height * e))


@compiled
def gelu_tanh(X, Phi, Y):  # type: ignore[no-untyped-def]
    zero, one, half = X.dtype.type(0), X.dtype.type(1), X.dtype.type(0.5)
    a, b = X.dtype.type(K), X.dtype.type(K * C)
    for i in range(X.size):
        x = X[i]
        p = half * (one + _tanh(x * (a + b * x * x)))
        Phi[i] = p
        Y[i] = zero if p == zero else x * p


@compiled
def gelu_tanh_back(dY, X, Phi, dX):  # type: ignore[no-untyped-def]
    zero, one = X.dtype.type(0), X.dtype.type(1)
    a, b = X.dtype.type(2 * K), X.dtype.type(6 * K * C)
    for i in range(X.size):
        x, p = X[i], Phi[i]
        bend = p * (one - p)
        dX[i] = dY[i] * (p + (zero if bend == zero else x * bend * (a + b * x * x)))


# --- softmax and its losses -------------------------------------------------------------------


@compiled
def softmax_rows(X, Y):  # type: ignore[no-untyped-def]
    n, K = X.shape
    zero, one = X.dtype.type(0), X.dtype.type(1)
    for i in range(n):
        top = X[i, 0]
        for k in range(1, K):
            top = max(top, X[i, k])
        top = zero if top == -np.inf else top
        for k in range(K):
            Y[i, k] = _exp(X[i, k] - top)
        s = zero
        for k in range(K):
            s += Y[i, k]
        inverse = one / (one if s == zero else s)
        for k in range(K):
            Y[i, k] *= inverse


@compiled
def softmax_rows_back(dY, Y):  # type: ignore[no-untyped-def]
    n, K = Y.shape
    for i in range(n):
        s = Y.dtype.type(0)
        for k in range(K):
            s += dY[i, k] * Y[i, k]
        for k in range(K):
            dY[i, k] = Y[i, k] * (dY[i, k] - s)


@compiled
def causal_softmax(S, place):  # type: ignore[no-untyped-def]
    n, rows, keys = S.shape
    zero, one = S.dtype.type(0), S.dtype.type(1)
    for a in range(n):
        for i in range(rows):
            last = place + i + 1
            top = S[a, i, 0]
            for k in range(1, last):
                top = max(top, S[a, i, k])
            top = zero if top == -np.inf else top
            for k in range(last):
                S[a, i, k] = _exp(S[a, i, k] - top)
            s = zero
            for k in range(last):
                s += S[a, i, k]
            inverse = one / (one if s == zero else s)
            for k in range(last):
                S[a, i, k] *= inverse
            for k in range(last, keys):
                S[a, i, k] = zero


def cross_entropy_of_labels(
    Z: Array, dZ: Array, labels: Array, weights: Array | None, scale: float
) -> float:
    t = Z.dtype.type
    return float(_cross_entropy_of_labels(Z, dZ, labels, weights, t(scale))) * scale


@compiled
def _cross_entropy_of_labels(Z, dZ, labels, weights, scale):  # type: ignore[no-untyped-def]
    n, K = Z.shape
    loss = 0.0
    for i in range(n):
        if weights is not None and weights[i] == 0:
            for k in range(K):
                dZ[i, k] = 0
            continue
        top = Z[i, 0]
        for k in range(1, K):
            top = max(top, Z[i, k])
        aimed = Z[i, labels[i]] - top
        for k in range(K):
            dZ[i, k] = _exp(Z[i, k] - top)
        own = dZ[i, labels[i]]
        dZ[i, labels[i]] = Z.dtype.type(0)
        others = Z.dtype.type(0)
        for k in range(K):
            others += dZ[i, k]
        w = Z.dtype.type(1)
        if weights is not None:
            w = weights[i]
        loss += w * ((math.log1p(others) if aimed == 0 else math.log(own + others)) - aimed)
        factor = w * scale / (own + others)
        for k in range(K):
            dZ[i, k] *= factor
        dZ[i, labels[i]] = -others * factor
    return loss


# --- norms ------------------------------------------------------------------------------------


def layer_norm(
    X: Array, gamma: Array, beta: Array, eps: float, X_hat: Array, r: Array, Y: Array
) -> None:
    if _layer_norm(X, gamma, beta, X.dtype.type(eps), X_hat, r, Y):
        _scaled_layer_norm(X, gamma, beta, X.dtype.type(eps), X_hat, r, Y)


@compiled
def _layer_norm(X, gamma, beta, eps, X_hat, r, Y):  # type: ignore[no-untyped-def]
    n, D = X.shape
    share = X.dtype.type(1) / X.dtype.type(D)
    overflowed = False
    for i in range(n):
        mean = X.dtype.type(0)
        for d in range(D):
            mean += X[i, d]
        mean *= share
        var = X.dtype.type(0)
        for d in range(D):
            var += (X[i, d] - mean) * (X[i, d] - mean)
        k = X.dtype.type(1) / np.sqrt(var * share + eps)
        overflowed |= not k > X.dtype.type(0)
        r[i, 0] = k
        for d in range(D):
            x = (X[i, d] - mean) * k
            X_hat[i, d] = x
            Y[i, d] = x * gamma[d] + beta[d]
    return overflowed


@compiled
def _scaled_layer_norm(X, gamma, beta, eps, X_hat, r, Y):  # type: ignore[no-untyped-def]
    n, D = X.shape
    zero, one, least = X.dtype.type(0), X.dtype.type(1), np.finfo(X.dtype).tiny
    share, root = one / X.dtype.type(D), np.sqrt(eps)
    for i in range(n):
        if r[i, 0] > zero:
            continue
        x, z = X[i], X_hat[i]
        m, mean, var = zero, zero, zero
        for d in range(D):
            m = max(m, abs(x[d]))
        for d in range(D):
            z[d] = x[d] / m
            mean += z[d] * share
        for d in range(D):
            z[d] -= mean
            var += z[d] * z[d] * share
        std = np.sqrt(var)
        size = max(np.hypot(std, root / m), least)
        for d in range(D):
            z[d] /= size
            Y[i, d] = z[d] * gamma[d] + beta[d]
        r[i, 0] = one / np.hypot(m * std, root)


@compiled
def layer_norm_back(dY, X_hat, r, gamma, dX, dgamma, dbeta, s):  # type: ignore[no-untyped-def]
    n, D = dY.shape
    share = dY.dtype.type(1) / dY.dtype.type(D)
    dgamma[:] = 0
    dbeta[:] = 0
    for i in range(n):
        a = dY.dtype.type(0)
        b = dY.dtype.type(0)
        for d in range(D):
            dy, x = dY[i, d], X_hat[i, d]
            dbeta[d] += dy
            dgamma[d] += dy * x
            a += dy * gamma[d]
            b += dy * gamma[d] * x
        a *= share
        b *= share
        for d in range(D):
            dX[i, d] = (dY[i, d] * gamma[d] - a - X_hat[i, d] * b) * r[i, 0]


# --- recurrent cells --------------------------------------------------------------------------


@compiled
def lstm_step(A, U, before, h, c):  # type: ignore[no-untyped-def]
    N, H = c.shape
    half = A.dtype.type(0.5)
    for n in range(N):
        a, u = A[n], U[n]
        for j in range(4 * H):
            a[j] += u[j]
        i, f, g, o = a, a[H:], a[2 * H :], a[3 * H :]
        for j in range(2 * H):
            a[j] = half + half * _tanh(half * a[j])
        for j in range(H):
            g[j] = _tanh(g[j])
        for j in range(H):
            o[j] = half + half * _tanh(half * o[j])
        past, state, shown = before[n], c[n], h[n]
        for j in range(H):
            state[j] = f[j] * past[j] + i[j] * g[j]
        for j in range(H):
            shown[j] = o[j] * _tanh(state[j])


@compiled
def lstm_back(dh, dc, A, before, c, dA):  # type: ignore[no-untyped-def]
    N, H = c.shape
    one, zero = A.dtype.type(1), A.dtype.type(0)
    for n in range(N):
        a, da, past, state, dy, dx = A[n], dA[n], before[n], c[n], dh[n], dc[n]
        i, f, g, o = a, a[H:], a[2 * H :], a[3 * H :]
        di, df, dg, do = da, da[H:], da[2 * H :], da[3 * H :]
        for j in range(H):
            t = _tanh(state[j])
            dx[j] += dy[j] * o[j] * (one - t * t)
            do[j] = dy[j] * t * o[j] * (one - o[j])
        for j in range(H):
            di[j] = dx[j] * g[j] * i[j] * (one - i[j])
            dg[j] = dx[j] * i[j] * (one - g[j] * g[j])
        for j in range(H):
            df[j] = dx[j] * past[j] * f[j] * (one - f[j])
            dx[j] *= f[j]
            dy[j] = zero


@compiled
def gru_step(A, U, before, h, u_n):  # type: ignore[no-untyped-def]
    N, H = h.shape
    half = A.dtype.type(0.5)
    for k in range(N):
        a, u = A[k], U[k]
        r, z, n = a, a[H:], a[2 * H :]
        for j in range(2 * H):
            a[j] = half + half * _tanh(half * (a[j] + u[j]))
        last, kept, past, new = u[2 * H :], u_n[k], before[k], h[k]
        for j in range(H):
            kept[j] = last[j]
            n[j] = _tanh(n[j] + r[j] * last[j])
        for j in range(H):
            new[j] = n[j] + z[j] * (past[j] - n[j])


@compiled
def gru_back(dh, A, before, u_n, dA, dU):  # type: ignore[no-untyped-def]
    N, H = dh.shape
    one = A.dtype.type(1)
    for k in range(N):
        a, da, du, past, kept, dy = A[k], dA[k], dU[k], before[k], u_n[k], dh[k]
        r, z, n = a, a[H:], a[2 * H :]
        dr, dz, dn, dun = da, da[H:], da[2 * H :], du[2 * H :]
        for j in range(H):
            dz[j] = dy[j] * (past[j] - n[j]) * z[j] * (one - z[j])
            dn[j] = dy[j] * (one - z[j]) * (one - n[j] * n[j])
        for j in range(H):
            dr[j] = dn[j] * kept[j] * r[j] * (one - r[j])
            dun[j] = dn[j] * r[j]
            dy[j] *= z[j]
        for j in range(2 * H):
            du[j] = da[j]


# --- embedding --------------------------------------------------------------------------------


@compiled
def sum_by_token(tokens, rows, dW):  # type: ignore[no-untyped-def]
    dW[:] = 0
    for i in range(tokens.size):
        for d in range(dW.shape[1]):
            dW[tokens[i], d] += rows[i, d]


# --- pools ------------------------------------------------------------------------------------


@compiled
def max_pool(X, Y, winner, kernel, stride):  # type: ignore[no-untyped-def]
    N, height, width, C = Y.shape
    for n in range(N):
        for i in range(height):
            for j in range(width):
                y, w = Y[n, i, j], winner[n, i, j]
                for k in range(kernel[0] * kernel[1]):
                    x = X[n, i * stride[0] + k // kernel[1], j * stride[1] + k % kernel[1]]
                    if k == 0:
                        for c in range(C):
                            y[c] = x[c]
                            w[c] = 0
                    else:
                        for c in range(C):
                            better = x[c] > y[c] or x[c] != x[c]
                            y[c] = x[c] if better else y[c]
                            w[c] = k if better else w[c]


@compiled
def max_pool_back(dY, winner, dX, s, kernel, stride):  # type: ignore[no-untyped-def]
    N, height, width, C = dY.shape
    dX[:] = 0
    for n in range(N):
        for i in range(height):
            for j in range(width):
                dy, w = dY[n, i, j], winner[n, i, j]
                for k in range(kernel[0] * kernel[1]):
                    x = dX[n, i * stride[0] + k // kernel[1], j * stride[1] + k % kernel[1]]
                    for c in range(C):
                        x[c] += dy[c] if w[c] == k else dY.dtype.type(0)
