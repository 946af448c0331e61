"""Recurrent layers: one step after another along the time axis of (N, T, D).

Each cell defines one step and its derivative. The base class `_Recurrent`, in
`phitodeep/layers/recurrence.py`, runs them over time.
"""

from __future__ import annotations

import numpy as np

from phitodeep.core.call import calling, current
from phitodeep.core.checks import check_option
from phitodeep.core.types import Array, Shape, settings
from phitodeep.derivations import recurrent as derived
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer, Param
from phitodeep.layers.container import Container
from phitodeep.layers.recurrence import _Recurrent


class RNN(_Recurrent):
    """Simple recurrent layer: h_t = tanh(x_t Wx + h_{t-1} Wh + b).

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, H), Wh (H, H), b (H,).

    Backward. tanh' = 1 - h^2, so with dh the gradient of h_t from y_t and from step t + 1,
    da = (1 - h_t^2) dh, and step t - 1 receives da Wh^T.

    Source: Elman 1990, "Finding structure in time", Cognitive Science 14.
    """

    cell = "rnn"

    steps = derived.rnn

    def step(self, t: int, A: Array, U: Array, S: Array, K: Array) -> None:
        A[t] += U
        rnn_step(A[t], S[0, t + 1])

    def back(self, t: int, d: Array, A: Array, S: Array, K: Array, dA: Array, dU: Array) -> None:
        rnn_back(d[0], S[0, t + 1], dA[t])


@kernel
def rnn_step(A: Array, h: Array) -> None:
    """Write h = tanh(A), both (N, H)."""
    np.tanh(A, out=h)


@kernel
def rnn_back(dh: Array, h: Array, dA: Array) -> None:
    """Write dA = (1 - h^2) dh, all (N, H), and set dh to 0."""
    np.subtract(1, h * h, out=dA)
    dA *= dh
    dh[...] = 0


class LSTM(_Recurrent):
    """Long short-term memory: gates control what is written to, kept in and read from a cell c.

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, 4H), Wh (H, 4H), b (4H,).

        i, f, o = sigmoid(.)    g = tanh(.)       of the four parts of x_t Wx + h_{t-1} Wh + b
        c_t = f c_{t-1} + i g                     h_t = o tanh(c_t)

    The parts are in the order input i, forget f, candidate g, output o.

    Backward. h_t affects the loss through y_t and step t + 1; c_t through h_t and c_{t+1}:

        dc += dh o (1 - tanh(c)^2)
        di = dc g    df = dc c_{t-1}    dg = dc i    do = dh tanh(c)

    Each gate's gradient is then multiplied by its slope: a (1 - a) for sigmoid gates a, 1 - g^2 for
    tanh. c_{t-1} receives dc f.

    Sources: Hochreiter and Schmidhuber 1997, "Long short-term memory", Neural Computation 9; the
    forget gate: Gers, Schmidhuber and Cummins 2000.
    """

    cell = "lstm"
    gates, states = 4, 2  # S[0] is h, S[1] is c

    steps = derived.lstm

    def step(self, t: int, A: Array, U: Array, S: Array, K: Array) -> None:
        A[t] += U
        lstm_step(A[t], S[1, t], S[0, t + 1], S[1, t + 1])

    def back(self, t: int, d: Array, A: Array, S: Array, K: Array, dA: Array, dU: Array) -> None:
        lstm_back(d[0], d[1], A[t], S[1, t], S[1, t + 1], dA[t])


@kernel
def lstm_step(A: Array, before: Array, h: Array, c: Array) -> None:
    """Turn A (N, 4H) into the gates, and write h and c (N, H); `before` is c_{t-1}."""
    H = c.shape[1]
    i, f, g, o = (A[:, k * H : (k + 1) * H] for k in range(4))
    g *= 2  # tanh(x) = 2 sigmoid(2 x) - 1: one exponential for all four gates
    _sigmoid(A)
    g *= 2
    g -= 1
    np.multiply(f, before, out=c)
    c += i * g
    np.tanh(c, out=h)
    h *= o


@kernel
def lstm_back(dh: Array, dc: Array, A: Array, before: Array, c: Array, dA: Array) -> None:
    """Write dA (N, 4H), turn dc into the gradient of c_{t-1} (`before`), and set dh to 0."""
    H = c.shape[1]
    i, f, g, o = (A[:, k * H : (k + 1) * H] for k in range(4))
    tanh_c = np.tanh(c)
    dc += dh * o * (1 - tanh_c * tanh_c)
    np.subtract(1, A, out=dA)
    dA *= A
    np.subtract(1, g * g, out=dA[:, 2 * H : 3 * H])
    for k, d in enumerate((dc * g, dc * before, dc * i, dh * tanh_c)):  # di, df, dg, do
        dA[:, k * H : (k + 1) * H] *= d
    dc *= f
    dh[...] = 0


def _sigmoid(A: Array) -> None:
    """Replace A by 1 / (1 + exp(-a)): exp may overflow to infinity, whose inverse is 0."""
    np.negative(A, out=A)
    np.exp(A, out=A)
    A += 1
    np.divide(1, A, out=A)


class GRU(_Recurrent):
    """Gated recurrent unit: gates decide how much of the state to reset (r) and to keep (z).

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, 3H), Wh (H, 3H), b and bh
    (3H,).

        r, z = sigmoid(a_r + u_r), sigmoid(a_z + u_z)       n = tanh(a_n + r u_n)
        h_t = (1 - z) n + z h_{t-1}          with a = x_t Wx + b and u = h_{t-1} Wh + bh

    As in PyTorch, the reset follows the product with Wh, which has a separate bias, bh.

    Backward. With dh the gradient of h_t,

        dz = dh (h_{t-1} - n) z (1 - z)     dn = dh (1 - z) (1 - n^2)     dr = dn u_n r (1 - r)

    are the gradients of a. The gradients of u are the same, except du_n = r dn. h_{t-1} receives
    dh z.

    Sources: Cho et al. 2014, arXiv:1406.1078, eq. 5 to 8; reset after the product: PyTorch's GRU.
    """

    bh = Param()
    cell = "gru"
    gates, kept, dU_is_dA = 3, 1, False  # K is u_n

    steps = derived.gru

    def create(self, shape: Shape) -> Shape:
        self.bh = self.full(3 * self.units, 0)
        return super().create(shape)

    def step(self, t: int, A: Array, U: Array, S: Array, K: Array) -> None:
        gru_step(A[t], U, S[0, t], S[0, t + 1], K[t])

    def back(self, t: int, d: Array, A: Array, S: Array, K: Array, dA: Array, dU: Array) -> None:
        gru_back(d[0], A[t], S[0, t], K[t], dA[t], dU[t])


@kernel
def gru_step(A: Array, U: Array, before: Array, h: Array, u_n: Array) -> None:
    """Turn A (N, 3H) into the gates r, z, n, and write h and u_n (N, H); `before` is h_{t-1}."""
    H = h.shape[1]
    gates, n = A[:, : 2 * H], A[:, 2 * H :]
    gates += U[:, : 2 * H]
    _sigmoid(gates)
    r, z = gates[:, :H], gates[:, H:]
    u_n[...] = U[:, 2 * H :]
    n += r * u_n
    np.tanh(n, out=n)
    np.subtract(before, n, out=h)  # h = n + z (before - n)
    h *= z
    h += n


@kernel
def gru_back(dh: Array, A: Array, before: Array, u_n: Array, dA: Array, dU: Array) -> None:
    """Write dA and dU (N, 3H); turn dh into the gradient of h_{t-1}, except the part through U."""
    H = dh.shape[1]
    r, z, n = (A[:, k * H : (k + 1) * H] for k in range(3))
    dr, dz, dn = (dA[:, k * H : (k + 1) * H] for k in range(3))
    np.multiply(dh * (before - n), z * (1 - z), out=dz)
    np.multiply(dh * (1 - z), 1 - n * n, out=dn)
    np.multiply(dn * u_n, r * (1 - r), out=dr)
    dh *= z
    dU[...] = dA
    dU[:, 2 * H :] *= r


class Bidirectional(Container):
    """Two recurrent layers of the same kind: one reads the steps in order, one in reverse.

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, M), or (N, M) if `layer` returns only its last
    state, with M = 2 H for merge="concat" and M = H for "add".

    `layer` reads forward. The second layer has the same settings and separate weights. With a mask,
    both skip the steps that it leaves out, so the second begins at the last step that is kept.

    Backward: each direction receives its part of dY, and dX is the sum of both gradients.
    Source: Schuster and Paliwal 1997, "Bidirectional recurrent neural networks".
    """

    time_steps = "joined"
    skips_dX = True

    steps = derived.bidirectional

    def __init__(self, layer: Layer, merge: str = "concat") -> None:
        super().__init__()
        if not isinstance(layer, _Recurrent):
            raise ArgumentTypeError(f"Bidirectional takes a recurrent layer, got {layer!r}.")
        self.merge = check_option(merge, "Bidirectional merge", ("concat", "add"))
        self.layer = layer
        self.reverse = type(layer)(**settings(layer))

    def create(self, shape: Shape) -> Shape:
        out = self.layer.build(shape)
        self.reverse.build(shape)
        return (*out[:-1], out[-1] * 2) if self.merge == "concat" else out

    def forward(self, X: Array) -> Array:
        if current().memory is not None:
            raise ArgumentError(f"{self!r} cannot generate: it needs the steps that come later.")
        Y, mask = self.layer.forward(X), self.check_steps(X)
        with calling(mask=None if mask is None else mask[:, ::-1]):
            Y_reverse = self._flip(self.reverse.forward(X[:, ::-1]))
        return Y + Y_reverse if self.merge == "add" else np.concatenate([Y, Y_reverse], axis=-1)

    def backward(self, dY: Array) -> Array | None:
        dY, dY_reverse = np.split(dY, 2, axis=-1) if self.merge == "concat" else (dY, dY)
        dX, dX_reverse = self.layer.backward(dY), self.reverse.backward(self._flip(dY_reverse))
        if dX is None or dX_reverse is None:
            return None
        return dX + dX_reverse[:, ::-1]

    def _flip(self, Y: Array) -> Array:
        """Return Y with its steps in reverse order, if it has steps."""
        return Y[:, ::-1] if Y.ndim == 3 else Y

    def compute_mask(self, mask: Array) -> Array | None:
        return self.layer.compute_mask(mask)

    def flops(self) -> int:
        return self.layer.flops() + self.reverse.flops()
