"""The loop over time of recurrent layers, forward and backward, with or without a mask.

The product with Wx and the gradients of the weights do not depend on the previous step, so each is
one matrix product for the whole sequence. For that reason, the arrays inside are time-major:
(T, N, .).

With compiled kernels, one call runs the whole loop, and other threads run meanwhile: see
`phitodeep/kernels/compiled/recurrent.py`. The loop here defines what that call computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ShapeError
from phitodeep.functional import sum_rows
from phitodeep.kernels import compiled_module
from phitodeep.layers.base import Layer, Param
from phitodeep.layers.initialization import Initializer, Orthogonal, Xavier, check_initializer


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
    """

    Wx = Param(decay=True)
    Wh = Param(decay=True)
    b = Param()
    independent_samples, time_steps = True, "remembered"
    gates = 1
    states = 1  # arrays (N, H) that one step passes to the next: h, and in an LSTM also c
    kept = 0  # arrays (N, H) that a step keeps for `back` in addition to its gates
    dU_is_dA = True  # the cell uses only the sum A + U
    cell: str  # the name of the class's `step` and `back` in compiled code, if they exist there

    def __init__(
        self,
        units: int,
        *,
        return_sequences: bool = True,
        initializer: Initializer = Xavier(),
        recurrent_initializer: Initializer = Orthogonal(),
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.units = check_count(units, f"{name} units")
        self.return_sequences = check_flag(return_sequences, f"{name} return_sequences")
        self.initializer = check_initializer(initializer, name)
        self.recurrent_initializer = check_initializer(recurrent_initializer, name)

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        steps, D = shape
        H, g = self.units, self.gates
        self.Wx = self.draw(self.initializer, (D, H), copies=g)
        self.Wh = self.draw(self.recurrent_initializer, (H, H), copies=g)
        self.b = self.full(g * H, 0)
        return (steps, H) if self.return_sequences else (H,)

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

    def forward(self, X: Array) -> Array:
        if X.ndim != 3 or X.shape[-1] != len(self.Wx):
            raise ShapeError(f"{self!r} takes X (N, T, {len(self.Wx)}), got shape {X.shape}.")
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
        S[:, 0] = 0 if call.memory is None else call.memory.get(self, 0)
        mask = None if mask is None else np.ascontiguousarray(mask.T)
        loops = self._compiled_loops()
        steps = self._steps if loops is None else loops.forward
        steps(A, np.ascontiguousarray(self.Wh), self.params.get("bh"), S, K, mask)
        if call.memory is not None:
            call.memory[self] = S[:, T].copy()
        self.save_for_backward(X_t=X_t, A=A, K=K, S=S, mask=mask)
        if not self.return_sequences:
            return S[0, T].copy()
        Y = self.buffer("Y", (N, T, self.units), X.dtype)
        np.copyto(Y, S[0, 1:].swapaxes(0, 1))
        if mask is not None:
            Y *= mask.T[..., None]
        return Y

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
        self, A: Array, Wh: Array, bh: Array | None, S: Array, K: Array, mask: Array | None
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

    def backward(self, dY: Array) -> Array | None:
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
        loops = self._compiled_loops()
        steps_back = self._steps_back if loops is None else loops.backward
        steps_back(A, Wh_T, S, K, mask, np.ascontiguousarray(dY), d, dA, dU)
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
        return dX

    def _steps_back(
        self, A: Array, Wh_T: Array, S: Array, K: Array, mask: Array | None,
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

    def compute_mask(self, mask: Array) -> Array | None:
        return mask if self.return_sequences else None

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix per gate."""
        W = W.reshape(-1, self.gates, self.units)
        return [W.swapaxes(0, 1)]

    def flops(self) -> int:
        """Count two operations per weight and step, and the work of the cell."""
        steps = self.input_shape[0] if self.input_shape else 0
        return steps * (2 * (self.Wx.size + self.Wh.size) + 8 * self.b.size)
