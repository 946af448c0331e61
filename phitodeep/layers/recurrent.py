"""Recurrent layers: one step after another along the time axis of (N, T, D).

`_Recurrent` runs the loop, in both directions and with masks; a cell writes one step and its
derivative. What does not wait for the step before, the product with Wx and the gradients of all
weights, is one matrix product for the whole sequence; so arrays are time-major inside, (T, N, .).
"""

from __future__ import annotations

import numpy as np

from phitodeep.checks import check_count
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.functional import sum_rows
from phitodeep.initialization import Initializer, Orthogonal, Xavier
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer, Param
from phitodeep.layers.call import calling, current
from phitodeep.layers.containers import Container
from phitodeep.types import Array, Shape, settings


class _Recurrent(Layer):
    """What recurrent layers share.

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H) with return_sequences=False: the
    state after the last step. Wx (D, gH), Wh (H, gH) and b (gH,) hold the g gates side by side.

    Under a mask, a step that is not there leaves the state as it was, and its y is 0; so padding
    changes nothing, and (N, H) is the state after the last step that is there. In generation, the
    state goes on from where the call before left it.
    """

    Wx = Param(decay=True)
    Wh = Param(decay=True)
    b = Param()
    independent_samples, steps = True, "remembered"
    gates = 1
    states = 1  # arrays that a step hands to the next: h, and what else
    kept = 0  # arrays (N, H) that a step keeps for `back` beside its gates
    apart = False  # whether a step uses A and U otherwise than by their sum

    def __init__(
        self,
        units: int,
        *,
        return_sequences: bool = True,
        initializer: Initializer = Xavier(),
        recurrent_initializer: Initializer = Orthogonal(),
    ) -> None:
        super().__init__()
        self.units = check_count(units, f"{type(self).__name__} units")
        self.return_sequences = return_sequences
        self.initializer, self.recurrent_initializer = initializer, recurrent_initializer

    # --- a cell ----------------------------------------------------------------------------

    def step(self, A: Array, U: Array, before: Array, after: Array, K: Array) -> None:
        """Write the state after a step, given A = x Wx + b and U = h Wh, both (N, gH).

        `before` and `after` are (states, N, H); A, and K (N, kept H), are kept for `back`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step.")

    def back(
        self, d: Array, A: Array, before: Array, after: Array, K: Array, dA: Array, dU: Array
    ) -> None:
        """Write dA and dU, and turn the gradient d of `after` into that of `before`.

        d is (states, N, H), without the part of h that goes through U: the loop adds that. dU is
        dA itself for cells that only use A + U.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement back.")

    def _bias(self) -> Array | None:
        """What h Wh has added to it, for cells that have a second bias."""
        return None

    def _bias_gradient(self, dU_rows: Array) -> None:
        """Write the gradient of that bias."""

    # --- the loop --------------------------------------------------------------------------

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        steps, D = shape
        H, gates = self.units, range(self.gates)
        self.Wx = np.concatenate([self.draw(self.initializer, (D, H)) for _ in gates], 1)
        self.Wh = np.concatenate([self.draw(self.recurrent_initializer, (H, H)) for _ in gates], 1)
        self.b = np.zeros(self.gates * H)
        return (steps, H) if self.return_sequences else (H,)

    def forward(self, X: Array) -> Array:
        if X.ndim != 3 or X.shape[-1] != len(self.Wx):
            raise ShapeError(f"{self!r} takes X (N, T, {len(self.Wx)}), got shape {X.shape}.")
        call = current()
        mask = self.check_steps(X)
        N, T, D = X.shape
        X_t = self.buffer("X_t", (T, N, D), X.dtype)
        np.copyto(X_t, X.swapaxes(0, 1))
        A = self.buffer("A", (T, N, self.b.size), X.dtype)
        K = self.buffer("K", (T, N, self.kept * self.units), X.dtype)
        np.matmul(X_t.reshape(T * N, D), self.Wx, out=A.reshape(T * N, -1))
        A += self.b
        S = self.buffer("S", (self.states, T + 1, N, self.units), X.dtype)
        S[:, 0] = 0 if call.memory is None else call.memory.get(self, 0)
        there = None if mask is None else mask.T[..., None]
        U, Wh, bias = np.empty((N, self.b.size), X.dtype), self.Wh, self._bias()
        with np.errstate(over="ignore"):  # of exp, whose inverse is then rightly 0
            for t in range(T):
                np.dot(S[0, t], Wh, out=U)
                if bias is not None:
                    U += bias
                self.step(A[t], U, S[:, t], S[:, t + 1], K[t])
                if there is not None:
                    np.copyto(S[:, t + 1], S[:, t], where=~there[t])
        if call.memory is not None:
            call.memory[self] = S[:, T].copy()
        self.save_for_backward(X_t=X_t, A=A, K=K, S=S, there=there)
        if not self.return_sequences:
            return S[0, T].copy()
        Y = self.buffer("Y", (N, T, self.units), X.dtype)
        np.copyto(Y, S[0, 1:].swapaxes(0, 1))
        if there is not None:
            Y *= there.swapaxes(0, 1)
        return Y

    def backward(self, dY: Array) -> Array | None:
        X_t, A, K, S, there = self.saved("X_t", "A", "K", "S", "there")
        T, N, D = X_t.shape
        dA = self.buffer("dA", (T, N, self.b.size), dY.dtype)
        dU = self.buffer("dU", dA.shape, dY.dtype) if self.apart else dA
        dh = np.empty((N, self.units), dY.dtype)
        Wh_T = np.ascontiguousarray(self.Wh.T)  # T products with it are worth the copy
        d = np.zeros((self.states, N, self.units), dY.dtype)
        d_h = d[0]
        if not self.return_sequences:
            d_h += dY
        for t in reversed(range(T)):
            if self.return_sequences:
                d_h += dY[:, t] if there is None else dY[:, t] * there[t]
            past = None if there is None else d * ~there[t]
            if there is not None:
                d *= there[t]
            self.back(d, A[t], S[:, t], S[:, t + 1], K[t], dA[t], dU[t])
            d_h += np.dot(dU[t], Wh_T, out=dh)
            if past is not None:
                d += past
        rows, dU_rows, H = dA.reshape(T * N, -1), dU.reshape(T * N, -1), self.units
        np.matmul(X_t.reshape(T * N, D).T, rows, out=self.grad_array("Wx"))
        np.matmul(S[0, :T].reshape(T * N, H).T, dU_rows, out=self.grad_array("Wh"))
        sum_rows(rows, out=self.grad_array("b"))
        self._bias_gradient(dU_rows)
        if not current().needs_dX:
            return None
        dX = self.buffer("dX", (N, T, D), dY.dtype)
        dX_t = np.dot(rows, self.Wx.T, out=self.buffer("dX_t", (T * N, D), dY.dtype))
        np.copyto(dX, dX_t.reshape(T, N, D).swapaxes(0, 1))
        return dX

    def compute_mask(self, mask: Array) -> Array | None:
        return mask if self.return_sequences else None

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Each gate is one."""
        W = W.reshape(-1, self.gates, self.units)
        return [W.swapaxes(0, 1)]

    def flops(self) -> int:
        """Multiplications and additions of all weights, and the cell, for each step."""
        steps = self.input_shape[0] if self.input_shape else 0
        return steps * (2 * (self.Wx.size + self.Wh.size) + 8 * self.b.size)


class RNN(_Recurrent):
    """h_t = tanh(x_t Wx + h_{t-1} Wh + b).

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, H), Wh (H, H), b (H,).

    Backward. tanh' = 1 - h^2, so with dh the gradient of h_t from y_t and from step t + 1,
    da = (1 - h_t^2) dh, and step t - 1 receives da Wh^T.

    Source: Elman 1990, "Finding structure in time", Cognitive Science 14.
    """

    def step(self, A: Array, U: Array, before: Array, after: Array, K: Array) -> None:
        np.tanh(np.add(A, U, out=A), out=after[0])

    def back(
        self, d: Array, A: Array, before: Array, after: Array, K: Array, dA: Array, dU: Array
    ) -> None:
        np.subtract(1, after[0] * after[0], out=dA)
        dA *= d[0]
        d[0] = 0


class LSTM(_Recurrent):
    """Gates i, f, g, o decide what a cell c takes in, keeps and shows.

        i, f, o = sigmoid(.)    g = tanh(.)       of x_t Wx + h_{t-1} Wh + b, side by side
        c_t = f c_{t-1} + i g                     h_t = o tanh(c_t)

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, 4H), Wh (H, 4H), b (4H,).

    Backward. h_t reaches the loss through y_t and step t + 1, c_t also through h_t:

        dc += dh o (1 - tanh(c)^2)
        di = dc g    df = dc c_{t-1}    dg = dc i    do = dh tanh(c)

    each times its own slope, a (1 - a) for sigmoid and 1 - g^2 for tanh; c_{t-1} receives dc f.

    Source: Hochreiter and Schmidhuber 1997, "Long short-term memory", Neural Computation 9; the
    forget gate: Gers, Schmidhuber and Cummins 2000.
    """

    gates, states = 4, 2  # h and c

    def step(self, A: Array, U: Array, before: Array, after: Array, K: Array) -> None:
        lstm_step(A, U, before[1], after[0], after[1])

    def back(
        self, d: Array, A: Array, before: Array, after: Array, K: Array, dA: Array, dU: Array
    ) -> None:
        lstm_back(d[0], d[1], A, before[1], after[1], dA)


@kernel
def lstm_step(A: Array, U: Array, before: Array, h: Array, c: Array) -> None:
    """A (N, 4H) <- the gates of A + U; write h and c (N, H), given the c before."""
    H = c.shape[1]
    A += U
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
    """Write dA (N, 4H); dc <- the gradient of the c before, and dh <- 0."""
    H = c.shape[1]
    i, f, g, o = (A[:, k * H : (k + 1) * H] for k in range(4))
    tanh_c = np.tanh(c)
    dc += dh * o * (1 - tanh_c * tanh_c)
    np.subtract(1, A, out=dA)
    dA *= A
    np.subtract(1, g * g, out=dA[:, 2 * H : 3 * H])
    for k, share in enumerate((dc * g, dc * before, dc * i, dh * tanh_c)):
        dA[:, k * H : (k + 1) * H] *= share
    dc *= f
    dh[...] = 0


class GRU(_Recurrent):
    """Gates r and z decide how much of the state n is made from, and how much is kept.

        r, z = sigmoid(a_r + u_r), sigmoid(a_z + u_z)       n = tanh(a_n + r u_n)
        h_t = (1 - z) n + z h_{t-1}          with a = x_t Wx + b and u = h_{t-1} Wh + bh

    This is the form that resets after the product with Wh, as PyTorch's, with a bias of its own.
    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, 3H), Wh (H, 3H), b and bh
    (3H,).

    Backward. With dh the gradient of h_t,

        dz = dh (h_{t-1} - n) z (1 - z)     dn = dh (1 - z) (1 - n^2)     dr = dn u_n r (1 - r)

    are the gradients of a; u has the same but for n, where it is r dn; h_{t-1} receives dh z.

    Source: Cho et al. 2014, arXiv:1406.1078, eq. 5 to 8; reset after: PyTorch's GRU.
    """

    bh = Param()
    gates, kept, apart = 3, 1, True  # kept is u_n

    def create(self, shape: Shape) -> Shape:
        self.bh = np.zeros(3 * self.units)
        return super().create(shape)

    def _bias(self) -> Array | None:
        return self.bh

    def step(self, A: Array, U: Array, before: Array, after: Array, K: Array) -> None:
        gru_step(A, U, before[0], after[0], K)

    def back(
        self, d: Array, A: Array, before: Array, after: Array, K: Array, dA: Array, dU: Array
    ) -> None:
        gru_back(d[0], A, before[0], K, dA, dU)

    def _bias_gradient(self, dU_rows: Array) -> None:
        sum_rows(dU_rows, out=self.grad_array("bh"))


@kernel
def gru_step(A: Array, U: Array, before: Array, h: Array, u_n: Array) -> None:
    """A (N, 3H) <- the gates r, z, n; write h and u_n (N, H), given the h before."""
    H = h.shape[1]
    gates, n = A[:, : 2 * H], A[:, 2 * H :]
    gates += U[:, : 2 * H]
    _sigmoid(gates)
    r, z = gates[:, :H], gates[:, H:]
    u_n[...] = U[:, 2 * H :]
    n += r * u_n
    np.tanh(n, out=n)
    np.subtract(before, n, out=h)  # n + z (h - n)
    h *= z
    h += n


@kernel
def gru_back(dh: Array, A: Array, before: Array, u_n: Array, dA: Array, dU: Array) -> None:
    """Write dA and dU (N, 3H); dh <- its share for the h before, beside that through U."""
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
    """One recurrent layer from the first step to the last, and one like it the other way.

    Shapes: those of `layer`, with 2 H features for merge="concat" and H for "add".
    Under a mask each direction passes over the steps that are not there, so that the second one
    begins at the last step that is.

    Backward: each direction gets its share of dY, and dX is the sum of what both return.
    Source: Schuster and Paliwal 1997, "Bidirectional recurrent neural networks".
    """

    steps = "joined"
    _skips_dX = True

    def __init__(self, layer: Layer, merge: str = "concat") -> None:
        super().__init__()
        if not isinstance(layer, _Recurrent):
            raise ArgumentTypeError(f"Bidirectional takes a recurrent layer, got {layer!r}.")
        if merge not in ("concat", "add"):
            raise ArgumentError(f'Bidirectional merge must be "concat" or "add", got {merge!r}.')
        self.layer, self.merge = layer, merge
        self.reverse = type(layer)(**settings(layer))  # with weights of its own

    def create(self, shape: Shape) -> Shape:
        out = self.layer.build(shape)
        self.reverse.build(shape)
        return (*out[:-1], out[-1] * 2) if self.merge == "concat" else out

    def forward(self, X: Array) -> Array:
        if current().memory is not None:
            raise ArgumentError(f"{self!r} cannot generate: it needs the steps to come.")
        there, back = self.layer.forward(X), self._turned(X)
        if self.merge == "add":
            return there + back
        return np.concatenate([there, back], axis=-1)

    def backward(self, dY: Array) -> Array | None:
        first, second = np.split(dY, 2, axis=-1) if self.merge == "concat" else (dY, dY)
        dX, turned = self.layer.backward(first), self.reverse.backward(self._flip(second))
        if dX is None or turned is None:
            return None
        return dX + turned[:, ::-1]

    def _turned(self, X: Array) -> Array:
        mask = self.check_steps(X)
        with calling(mask=None if mask is None else mask[:, ::-1]):
            return self._flip(self.reverse.forward(X[:, ::-1]))

    def _flip(self, Y: Array) -> Array:
        """Y in the other order of steps, if it has steps."""
        return Y[:, ::-1] if Y.ndim == 3 else Y

    def compute_mask(self, mask: Array) -> Array | None:
        return self.layer.compute_mask(mask)

    def flops(self) -> int:
        return self.layer.flops() + self.reverse.flops()


def _sigmoid(A: Array) -> None:
    """sigmoid(a), in place; exp may overflow to infinity, whose inverse is 0."""
    np.negative(A, out=A)
    np.exp(A, out=A)
    A += 1
    np.divide(1, A, out=A)
