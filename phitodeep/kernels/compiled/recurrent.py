"""Compiled recurrence: twins of the cells in `layers/recurrent.py`, and their loops over time.

A twin is one time step of N samples and H units. A loop runs all T steps in one call: the products
with Wh, by BLAS, and the twins between them. It computes what the loop of `_Recurrent` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled import blas
from phitodeep.kernels.compiled.blas import add_product
from phitodeep.kernels.compiled.jit import jit, part
from phitodeep.kernels.compiled.scalar import tanh


@twin
@part
def rnn_step(A: Array, h: Array) -> None:
    """h <- tanh(A), both (N, H)."""
    N, H = h.shape
    for n in range(N):
        for j in range(H):
            h[n, j] = tanh(A[n, j])


@twin
@part
def rnn_back(dh: Array, h: Array, dA: Array) -> None:
    """dA <- (1 - h^2) dh and dh <- 0, all (N, H)."""
    N, H = h.shape
    one, zero = h.dtype.type(1), h.dtype.type(0)
    for n in range(N):
        for j in range(H):
            dA[n, j] = (one - h[n, j] * h[n, j]) * dh[n, j]
            dh[n, j] = zero


@twin
@part
def lstm_step(A: Array, before: Array, h: Array, c: Array) -> None:
    """A (N, 4H) <- the gates of A; write h and c (N, H); `before` is c_{t-1}."""
    N, H = c.shape
    half = A.dtype.type(0.5)
    for n in range(N):
        a = A[n]
        i, f, g, o = a, a[H:], a[2 * H :], a[3 * H :]
        for j in range(2 * H):
            a[j] = half + half * tanh(half * a[j])
        for j in range(H):
            g[j] = tanh(g[j])
        for j in range(H):
            o[j] = half + half * tanh(half * o[j])
        old_c, new_c, new_h = before[n], c[n], h[n]
        for j in range(H):
            new_c[j] = f[j] * old_c[j] + i[j] * g[j]
        for j in range(H):
            new_h[j] = o[j] * tanh(new_c[j])


@twin
@part
def lstm_back(dh: Array, dc: Array, A: Array, before: Array, c: Array, dA: Array) -> None:
    """Write dA (N, 4H); dc (N, H) <- the gradient of c_{t-1} (`before`); dh (N, H) <- 0."""
    N, H = c.shape
    one, zero = A.dtype.type(1), A.dtype.type(0)
    for n in range(N):
        a, da, old_c, new_c, dh_n, dc_n = A[n], dA[n], before[n], c[n], dh[n], dc[n]
        i, f, g, o = a, a[H:], a[2 * H :], a[3 * H :]
        di, df, dg, do = da, da[H:], da[2 * H :], da[3 * H :]
        for j in range(H):
            t = tanh(new_c[j])
            dc_n[j] += dh_n[j] * o[j] * (one - t * t)
            do[j] = dh_n[j] * t * o[j] * (one - o[j])
        for j in range(H):
            di[j] = dc_n[j] * g[j] * i[j] * (one - i[j])
            dg[j] = dc_n[j] * i[j] * (one - g[j] * g[j])
        for j in range(H):
            df[j] = dc_n[j] * old_c[j] * f[j] * (one - f[j])
            dc_n[j] *= f[j]
            dh_n[j] = zero


@twin
@part
def gru_step(A: Array, U: Array, before: Array, h: Array, u_n: Array) -> None:
    """A (N, 3H) <- the gates r, z, n; write h and u_n (N, H); `before` is h_{t-1}."""
    N, H = h.shape
    half = A.dtype.type(0.5)
    for k in range(N):
        a, u = A[k], U[k]
        r, z, n = a, a[H:], a[2 * H :]
        for j in range(2 * H):
            a[j] = half + half * tanh(half * (a[j] + u[j]))
        u_last, saved, old_h, new_h = u[2 * H :], u_n[k], before[k], h[k]
        for j in range(H):
            saved[j] = u_last[j]
            n[j] = tanh(n[j] + r[j] * u_last[j])
        for j in range(H):
            new_h[j] = n[j] + z[j] * (old_h[j] - n[j])


@twin
@part
def gru_back(dh: Array, A: Array, before: Array, u_n: Array, dA: Array, dU: Array) -> None:
    """Write dA and dU (N, 3H); dh (N, H) <- the gradient of h_{t-1}, except the part through U."""
    N, H = dh.shape
    one = A.dtype.type(1)
    for k in range(N):
        a, da, du, old_h, saved, dh_k = A[k], dA[k], dU[k], before[k], u_n[k], dh[k]
        r, z, n = a, a[H:], a[2 * H :]
        dr, dz, dn, dun = da, da[H:], da[2 * H :], du[2 * H :]
        for j in range(H):
            dz[j] = dh_k[j] * (old_h[j] - n[j]) * z[j] * (one - z[j])
            dn[j] = dh_k[j] * (one - z[j]) * (one - n[j] * n[j])
        for j in range(H):
            dr[j] = dn[j] * saved[j] * r[j] * (one - r[j])
            dun[j] = dn[j] * r[j]
            dh_k[j] *= z[j]
        for j in range(2 * H):
            du[j] = da[j]


# The loops. Shapes: A, dA, dU (T, N, gH), where dU is dA except in a GRU; Wh (H, gH), Wh_T (gH, H),
# bh (gH,) or None; S (states, T + 1, N, H), K (T, N, kept H); mask (T, N), or NO_MASK; d
# (states, N, H), which is 0 on entry. dY (N, steps, H) belongs to the last steps. `gemm` comes from
# `blas.gemm`. What NumPy would write as `d[0] += dY[:, k]` is a loop, which Numba compiles five
# seconds sooner.
RNN, LSTM, GRU = range(3)
CELLS = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
NO_MASK = np.empty((0, 0), bool)  # for None, Numba would compile the loops once more


@jit
def _swap(mask: Array, t: int, d: Array, passed_on: Array) -> None:
    """Exchange d and `passed_on`, where the mask leaves out step t.

    Before the step, this takes the gradients that skip it out of d and leaves 0; after the step,
    it puts them back. In between, the step turns 0 into 0.
    """
    for n in range(mask.shape[1]):
        if not mask[t, n]:
            for s in range(len(d)):
                for j in range(d.shape[2]):
                    d[s, n, j], passed_on[s, n, j] = passed_on[s, n, j], d[s, n, j]


@jit
def forward(
    gemm: tuple[int, int], cell: int, mask: Array, A: Array, Wh: Array, bh: Array | None,
    S: Array, K: Array,
) -> None:  # fmt: skip
    """Run all steps: A <- the gates; write S[:, 1:] and K."""
    U = np.empty_like(A[0])
    for t in range(len(A)):
        if bh is not None:  # a GRU; Numba compiles no line that would read a bh of None
            for n in range(len(U)):
                for j in range(len(bh)):
                    U[n, j] = bh[j]
            add_product(gemm, S[0, t], Wh, U)
            gru_step(A[t], U, S[0, t], S[0, t + 1], K[t])
        else:
            add_product(gemm, S[0, t], Wh, A[t])
            if cell == LSTM:
                lstm_step(A[t], S[1, t], S[0, t + 1], S[1, t + 1])
            else:
                rnn_step(A[t], S[0, t + 1])
        for n in range(mask.shape[1]):  # samples that the mask leaves out keep their states
            if not mask[t, n]:
                for s in range(len(S)):
                    for j in range(S.shape[3]):
                        S[s, t + 1, n, j] = S[s, t, n, j]


@jit
def backward(
    gemm: tuple[int, int], cell: int, mask: Array, A: Array, Wh_T: Array, S: Array, K: Array,
    dY: Array, d: Array, dA: Array, dU: Array,
) -> None:  # fmt: skip
    """Run all steps backward: write dA and dU."""
    passed_on = np.zeros_like(d)
    for t in range(len(A) - 1, -1, -1):
        k = t - len(A) + dY.shape[1]
        if k >= 0:
            for n in range(len(dY)):
                for j in range(dY.shape[2]):
                    d[0, n, j] += dY[n, k, j]
        _swap(mask, t, d, passed_on)
        if cell == GRU:
            gru_back(d[0], A[t], S[0, t], K[t], dA[t], dU[t])
        elif cell == LSTM:
            lstm_back(d[0], d[1], A[t], S[1, t], S[1, t + 1], dA[t])
        else:
            rnn_back(d[0], S[0, t + 1], dA[t])
        add_product(gemm, dU[t], Wh_T, d[0])
        _swap(mask, t, d, passed_on)


class Loops(NamedTuple):
    """The loops of a cell, with the BLAS function filled in."""

    forward: Callable[..., None]
    backward: Callable[..., None]


def loops(cell: str, dtype: np.dtype[Any]) -> Loops | None:
    """Return the loops of a cell, or None where the BLAS function is not found."""
    gemm = blas.gemm(dtype)
    if not gemm[0]:
        return None

    def run(loop: Callable[..., None], mask: Array | None, *arrays: Array | None) -> None:
        loop(gemm, CELLS[cell], NO_MASK if mask is None else mask, *arrays)

    return Loops(functools.partial(run, forward), functools.partial(run, backward))
