"""Compiled twins of the kernels in `layers/recurrent.py`: one time step of N samples, H units."""

from __future__ import annotations

from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit
from phitodeep.kernels.compiled.scalar import tanh
from phitodeep.types import Array


@twin
@jit
def lstm_step(A: Array, U: Array, before: Array, h: Array, c: Array) -> None:
    """A (N, 4H) <- the gates of A + U; write h and c (N, H); `before` is c_{t-1}."""
    N, H = c.shape
    half = A.dtype.type(0.5)
    for n in range(N):
        a, u = A[n], U[n]
        for j in range(4 * H):
            a[j] += u[j]
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
@jit
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
@jit
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
@jit
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
