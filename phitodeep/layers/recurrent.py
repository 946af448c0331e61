"""Recurrent layers: one step after another along the time axis of (N, T, D).

Each cell defines one step and its derivative. The base class `_Recurrent` runs them over time,
forward and backward, with or without a mask.

The product with Wx and the gradients of the weights do not depend on the previous step, so each is
one matrix product for the whole sequence. For that reason, the arrays inside are time-major:
(T, N, .).

With compiled kernels, one call runs the whole loop, and other threads run meanwhile: see
`phitodeep/kernels/compiled/recurrent.py`. The loop here defines what that call computes.

Long because all cells share one loop, which this file explains once.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.call import calling, current
from phitodeep.core.checks import check_option
from phitodeep.core.settings import Count, Flag
from phitodeep.core.types import Array, Shape, settings
from phitodeep.derivations import recurrent as derived
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.functional import sum_rows
from phitodeep.kernels import compiled_module, kernel
from phitodeep.layers.base import Layer, Param
from phitodeep.layers.containers import Container
from phitodeep.layers.initialization import InitialValues, Orthogonal, Xavier

__all__ = ["GRU", "LSTM", "RNN", "Bidirectional"]


@dataclass(eq=False, repr=False)
class _Recurrent(Layer):
    """Base class of all recurrent layers, with their loop over time.

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H) with return_sequences=False: the
    state after the last step. Wx (D, gH), Wh (H, gH) and b (gH,) hold the g gates side by side.

    Forward: A = X Wx + b for all steps at once; then, for each t, U = h_{t-1} Wh and the cell's
    `step`. The states are S (states, T + 1, N, H), with h_t = S[0, t + 1].

    Backward: through time, for t from T - 1 to 0, the cell's `back` computes dA_t and dU_t, and
    h_{t-1} receives dU_t Wh^T. Every step uses the same weights, so their gradients are sums over
    the steps: dWx = X^T dA, dWh = h^T dU, db = sum_rows(dA).

    At a step that the mask leaves out, the state does not change and y is 0. Padding therefore
    changes nothing, and (N, H) is the state after the last step that the mask keeps. In generation,
    the state continues from the previous call.

    return_state     True: also return the states after the last step, each (N, H): h, and in an
                     LSTM c
    initial_state    True: take the states before the first step as further inputs, instead of 0

    Their gradients begin and end the way back: d starts as the gradients of the states after the
    last step, and at t = 0 it is the gradient of those before the first.
    """

    units: Count
    _: KW_ONLY
    return_sequences: Flag = True
    initializer: InitialValues = Xavier()
    recurrent_initializer: InitialValues = Orthogonal()
    return_state: Flag = False
    initial_state: Flag = False

    Wx = Param(decay=True)
    Wh = Param(decay=True)
    b = Param()
    independent_samples = True
    gates = 1
    states = 1  # arrays (N, H) that one step passes to the next: h, and in an LSTM also c
    kept = 0  # arrays (N, H) that a step keeps for `back` in addition to its gates
    dU_is_dA = True  # the cell uses only the sum A + U
    cell: ClassVar[str]  # the name of the class's `step` and `back` in compiled code

    @property
    def inputs(self) -> int:
        return 1 + self.states * self.initial_state

    @property
    def outputs(self) -> int:
        return 1 + self.states * self.return_state

    @property
    def time_steps(self) -> str:  # states that are given may come from all steps of X
        return "joined" if self.initial_state else "remembered"

    def create(self, *shapes: Shape) -> Any:
        shape, H, g = shapes[0], self.units, self.gates
        if len(shape) != 2 or any(start != (H,) for start in shapes[1:]):
            states = f" and states of shape ({H},)" * self.initial_state
            given = " and ".join(map(str, shapes))
            raise ShapeError(f"{self!r} takes samples of shape (T, D){states}, got {given}.")
        steps, D = shape
        self.Wx = self.draw(self.initializer, (D, H), copies=g)
        self.Wh = self.draw(self.recurrent_initializer, (H, H), copies=g)
        self.b = self.full(g * H, 0)
        out = (steps, H) if self.return_sequences else (H,)
        return (out, *[(H,)] * self.states) if self.return_state else out

    def step(self, t: int, A: Array, U: Array, S: Array, K: Array) -> None:
        """Write the states S[:, t + 1] from S[:, t], A[t] = x_t Wx + b and U = h_{t-1} Wh.

        `back` receives A[t] (N, gH) and K[t] (N, kept H) again: write into them what it needs.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step.")

    def back(self, t: int, d: Array, A: Array, S: Array, K: Array, dA: Array, dU: Array) -> None:
        """Write dA[t] and dU[t], and turn d into the gradient of S[:, t].

        On entry, d (states, N, H) is the gradient of S[:, t + 1]. Leave out the part of dh that
        goes through U: the loop adds it. dU is dA itself for a cell that uses only the sum A + U.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement back.")

    def _compiled_loops(self) -> Any:
        """Return the compiled form of `_steps` and `_steps_back`, or None if Python runs them.

        They belong to the class that defines the cell: a class derived from it with a `step` or a
        `back` of its own has none.
        """
        kernels = compiled_module("recurrent")
        author = next(kind for kind in type(self).__mro__ if vars(kind).keys() & {"step", "back"})
        if kernels is None or "cell" not in vars(author):
            return None
        return kernels.loops(self.cell, self.dtype)

    @property
    def keeps_lock(self) -> bool:
        """Whether Python runs the loop over time, so that only one thread runs at a time."""
        return self._compiled_loops() is None

    def forward(self, *Xs: Array) -> Any:
        X, *starts = Xs
        if X.ndim != 3 or X.shape[-1] != len(self.Wx):
            raise ShapeError(f"{self!r} takes X (N, T, {len(self.Wx)}), got shape {X.shape}.")
        if wrong := [s.shape for s in starts if s.shape != (len(X), self.units)]:
            raise ShapeError(
                f"{self!r} takes states ({len(X)}, {self.units}) with X of shape {X.shape}, "
                f"got shape {wrong[0]}."
            )
        self._check_parameters(self.units)
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
        S[:, 0] = starts or 0
        if call.memory is not None:
            S[:, 0] = call.memory.get(self, S[:, 0])
        mask = None if mask is None else np.ascontiguousarray(mask.T)
        loops = self._compiled_loops()
        steps = self._steps if loops is None else loops.forward
        steps(mask, A, np.ascontiguousarray(self.Wh), self.params.get("bh"), S, K)
        if call.memory is not None:
            call.memory[self] = S[:, T].copy()
        self.save_for_backward(X_t=X_t, A=A, K=K, S=S, mask=mask)
        if not self.return_sequences:
            Y = S[0, T].copy()
        else:
            Y = self.buffer("Y", (N, T, self.units), X.dtype)
            np.copyto(Y, S[0, 1:].swapaxes(0, 1))
            if mask is not None:
                Y *= mask.T[..., None]
        return (Y, *S[:, T].copy()) if self.return_state else Y

    def _check_parameters(self, H: int) -> None:
        """Refuse parameters that do not fit H units: compiled loops would leave their arrays."""
        for name, W in self.params.items():
            rows = {"Wx": (len(self.Wx),), "Wh": (H,)}.get(name, ())
            if W.shape != (*rows, self.gates * H) or H != self.units:
                raise ShapeError(
                    f"{self!r} has {H} units and {self.gates} gates, but its parameter {name} has "
                    f"shape {W.shape}: set parameters of the shape that build gave them."
                )

    def _steps(
        self, mask: Array | None, A: Array, Wh: Array, bh: Array | None, S: Array, K: Array
    ) -> None:
        """Write the states S[:, 1:], step by step; mask is (T, N) or None."""
        U = np.empty_like(A[0])
        with np.errstate(over="ignore"):  # exp may overflow to infinity, whose inverse is 0
            for t in range(len(A)):
                np.dot(S[0, t], Wh, out=U)
                if bh is not None:
                    U += bh
                self.step(t, A, U, S, K)
                if mask is not None:
                    np.copyto(S[:, t + 1], S[:, t], where=~mask[t, :, None])

    def backward(self, *dYs: Array) -> Any:
        dY, *ends = dYs
        X_t, A, K, S, mask = self.saved("X_t", "A", "K", "S", "mask")
        T, N, D = X_t.shape
        self._check_parameters(S.shape[-1])
        dA = self.buffer("dA", (T, N, self.b.size), dY.dtype)
        dU = dA if self.dU_is_dA else self.buffer("dU", dA.shape, dY.dtype)
        Wh_T = np.ascontiguousarray(self.Wh.T)  # T products with it are worth the copy
        if not self.return_sequences:
            dY = dY[:, None]
        elif mask is not None:
            dY = dY * mask.T[..., None]
        d = np.zeros((self.states, N, self.units), dY.dtype)
        d[:] = ends or 0
        loops = self._compiled_loops()
        steps_back = self._steps_back if loops is None else loops.backward
        steps_back(mask, A, Wh_T, S, K, np.ascontiguousarray(dY), d, dA, dU)
        dA_rows, dU_rows, H = dA.reshape(T * N, -1), dU.reshape(T * N, -1), self.units
        np.matmul(X_t.reshape(T * N, D).T, dA_rows, out=self.grad_array("Wx"))
        np.matmul(S[0, :T].reshape(T * N, H).T, dU_rows, out=self.grad_array("Wh"))
        sum_rows(dA_rows, out=self.grad_array("b"))
        if "bh" in self.params:
            sum_rows(dU_rows, out=self.grad_array("bh"))
        if not current().needs_dX:
            return None
        dX = self.buffer("dX", (N, T, D), dY.dtype)
        dX_t = np.dot(dA_rows, self.Wx.T, out=self.buffer("dX_t", (T * N, D), dY.dtype))
        np.copyto(dX, dX_t.reshape(T, N, D).swapaxes(0, 1))
        return (dX, *d) if self.initial_state else dX

    def _steps_back(
        self, mask: Array | None, A: Array, Wh_T: Array, S: Array, K: Array,
        dY: Array, d: Array, dA: Array, dU: Array,
    ) -> None:  # fmt: skip
        """Write dA and dU, from the last step to the first.

        dY (N, steps, H) is the gradient of the last steps' y: of all steps, or of the very last.
        """
        T, through_U = len(A), np.empty_like(d[0])
        for t in reversed(range(T)):
            if t - T >= -dY.shape[1]:
                d[0] += dY[:, t - T]
            passed_on = None if mask is None else d * ~mask[t, :, None]  # where t kept the state
            if mask is not None:
                d *= mask[t, :, None]
            self.back(t, d, A, S, K, dA, dU)
            d[0] += np.dot(dU[t], Wh_T, out=through_U)
            if passed_on is not None:
                d += passed_on

    def compute_mask(self, *masks: Any) -> Any:
        if not self.return_sequences:
            return None
        return (masks[0], *[None] * self.states) if self.return_state else masks[0]

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix per gate."""
        W = W.reshape(-1, self.gates, self.units)
        return [W.swapaxes(0, 1)]

    def flops(self) -> int:
        """Count two operations per weight and step, and the work of the cell."""
        shapes: Any = self.input_shape or (0,)
        steps = shapes[0][0] if self.initial_state else shapes[0]
        return steps * (2 * (self.Wx.size + self.Wh.size) + 8 * self.b.size)


class RNN(_Recurrent):
    """Simple recurrent layer: h_t = tanh(x_t Wx + h_{t-1} Wh + b).

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, H), or (N, H); Wx (D, H), Wh (H, H), b (H,).
    `return_state` adds the output h, and `initial_state` the input h: (N, H).

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
    `return_state` adds the outputs h and c, and `initial_state` the inputs h and c: (N, H).

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
    (3H,). `return_state` adds the output h, and `initial_state` the input h: (N, H).

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

    def create(self, *shapes: Shape) -> Any:
        self.bh = self.full(3 * self.units, 0)
        return super().create(*shapes)

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
        if not isinstance(layer, _Recurrent):
            raise ArgumentTypeError(f"Bidirectional takes a recurrent layer, got {layer!r}.")
        if layer.initial_state or layer.return_state:
            raise ArgumentError(f"Bidirectional takes a layer without states, got {layer!r}.")
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
