"""PDE: what remains of a differential equation when a network is put into it.

Derivatives by the inputs go through the network with the values, as further rows of one batch. So
every layer runs the passes that it has, once, and the gradients of the weights are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.checks import check_list, check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations.language.step import evaluate
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Around

LARGEST = 100_000  # second derivatives


class PDE(Around):
    """A network u(X), and the residual of each differential equation that it should solve.

        net = Sequential(Dense(2, 32), Tanh(), Dense(32, 1))
        burgers = PDE("u_t + u * u_x - nu * u_xx", net, inputs="t x", nu=0.01)

    Shapes: X, dX are (N, D), one point in each row. The outputs are U (N, M), from the layer, and
    one residual R (N, 1) for each equation. u_x is the derivative of u by x; u_xx and u_tx are
    second derivatives. Their units are those of U and X.

    equations    text, or a list of them: arithmetic and functions of NumPy, such as `np.sin(x)`, of
                 inputs, outputs, their derivatives and constants; the residual is its value
    layer        the network: affine layers and elementwise functions, in any containers
    inputs       the names of the columns of X, such as "t x"
    outputs      the names of the columns of U, such as "u v"
    constants    numbers by name

    Forward. Below X lie N rows for each derivative that is read: those of u_x begin as the
    derivative of X by x, which is 1 in column x. An affine layer Y = A X + b takes u_x to A u_x.
    The last row is 0, so its Y is b, which is subtracted from these rows. A function y = f(u) takes
    u_x to f'(u) u_x, and u_xy to f''(u) u_x u_y + f'(u) u_xy.

    Backward. dU and dR dR/du reach u, and dR dR/du_x reaches u_x. The rows then go backward through
    the network: f'' and f''' are derived from the steps of f. A check by eye: b receives nothing
    from the rows of derivatives.

    Layers with kinks, such as ReLU, are refused if a second derivative is read.
    Source: Raissi, Perdikaris and Karniadakis 2019, "Physics-informed neural networks", J. Comput.
    Phys. 378; for the rows: Griewank and Walther 2008, "Evaluating derivatives", ch. 13.
    """

    outputs: Any = None  # 1 + the number of equations
    skips_dX = True
    refers_to = ("_lifted", "_lifted_from")
    _lifted: Layer | None = None  # the network, for rows of derivatives
    _lifted_from: Sequence[Any] = ()

    def __init__(
        self, equations: str | Sequence[str], layer: Layer, *, inputs: str, outputs: str = "u",
        **constants: float,
    ) -> None:  # fmt: skip
        (self.layer,) = self._held([layer])
        given: Any = [equations] if isinstance(equations, str) else equations
        if not (texts := check_list(given, "PDE equations")):
            raise ArgumentError('PDE needs an equation, such as "u_t - u_xx".')
        for what, names in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(names, str) or "," in names:
                raise ArgumentError(f'PDE {what} are a text such as "t x", got {names!r}.')
        self.columns, self.fields = inputs.split(), outputs.split()
        D, M = len(self.columns), len(self.fields)
        if M * D * D > LARGEST:
            raise ArgumentError(f"PDE has {D} inputs and {M} outputs: too many second derivatives.")
        known = {  # each name: by which columns, and of which output, it is a derivative
            f"{field}_{''.join(by)}".removesuffix("_"): (tuple(sorted(by)), c)
            for order in range(3)
            for by in product(self.columns, repeat=order)
            for c, field in enumerate(self.fields)
        }
        moving = {*known, *self.columns}
        if len(moving | {*constants}) < M * (1 + D + D * D) + D + len(constants):
            raise ArgumentError(
                f"PDE: the inputs {inputs!r}, the outputs {outputs!r}, their derivatives and the "
                f"constants {[*constants]} must have different names."
            )
        numbers = {name: check_number(c, f"PDE {name}") for name, c in constants.items()}
        derived = [_derive().equation(text, moving, numbers) for text in texts]
        self.equations, self.slopes = [code for code, _ in derived], [by for _, by in derived]
        read = {known[name][0] for by in self.slopes for name in by if name in known}
        read |= {(), *((column,) for by in read for column in by)}
        self.blocks = sorted(read, key=lambda by: (len(by), by))  # of rows, by their derivatives
        self.places = {  # of names in the columns of all blocks, which X follows
            name: self.blocks.index(by) * M + c for name, (by, c) in known.items() if by in read
        } | {name: len(read) * M + i for i, name in enumerate(self.columns)}
        self.outputs = 1 + len(self.equations)

    def get_config(self) -> dict[str, Any]:
        names = {"inputs": " ".join(self.columns), "outputs": " ".join(self.fields)}
        return {"equations": self.equations, "layer": self.layer, **names}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lifted": None}

    def __repr__(self) -> str:
        return f"PDE({', '.join(map(repr, self.equations))})"

    def create(self, shape: Shape) -> Any:
        out = self.layer.build(shape)
        names = len(self.columns), len(self.fields)
        if (shape, out) != (names[:1], names[1:]):
            raise ShapeError(
                f"{self!r} names {names[0]} inputs and {names[1]} outputs, and its layer turns "
                f"samples of shape {shape} into samples of shape {out}."
            )
        self._rows()
        return out, *[(1,)] * len(self.equations)

    def forward(self, X: Array) -> Any:
        n, K = len(X), len(self.blocks)
        S = np.zeros((K * n + 1, X.shape[1]), X.dtype)
        S[:n] = X
        for k, by in enumerate(self.blocks):
            if len(by) == 1:
                S[k * n : (k + 1) * n, self.columns.index(by[0])] = 1
        lifted = self._rows()
        with calling(watch=None):  # the rows are no samples
            U = lifted.forward(S)
        V = np.concatenate([*_split(U, K), X], axis=1)
        symbols = {name: V[:, [c]] for name, c in self.places.items()}
        self.save_for_backward(symbols=symbols, lifted=lifted)
        R = [np.broadcast_to(evaluate(code, symbols), (n, 1)) for code in self.equations]
        return U[:n].copy(), *(r.astype(X.dtype) for r in R)

    def backward(self, dU: Array, *dRs: Array) -> Array | None:
        symbols, lifted = self.saved("symbols", "lifted")
        (n, M), K = dU.shape, len(self.blocks)
        dV = np.zeros((n, K * M + len(self.columns)), dU.dtype)
        dV[:, :M] = dU
        for dR, slopes in zip(dRs, self.slopes, strict=True):
            for name, code in slopes.items():
                dV[:, [self.places[name]]] += dR * evaluate(code, symbols)
        dS = np.concatenate([*np.split(dV[:, : K * M], K, axis=1), np.zeros_like(dU[:1])])
        with calling(watch=None):
            dX = lifted.backward(dS)
        return None if dX is None else dX[:n] + dV[:, K * M :]

    def _rows(self) -> Layer:
        """Return the network for rows of derivatives, made again when its layers have changed."""
        now = [self.dtype, *(layer for _, layer in self.walk())]
        if self._lifted is None or now != self._lifted_from:
            self._lifted, self._lifted_from = _lift(self.layer, self.blocks), now
        return self._lifted

    def flops(self) -> int:
        return len(self.blocks) * super().flops()


class _Affine(Around, registered=False):
    """Y = A X + b for the first N rows, and Y = A X for the others; the last is 0, and gives b."""

    def __init__(self, layer: Layer, blocks: Sequence[tuple[str, ...]]) -> None:
        self.layer, self.K = layer, len(blocks)
        self.pairs = [  # each block of second derivatives, and those of the first ones
            (k, blocks.index(by[:1]), blocks.index(by[1:]))
            for k, by in enumerate(blocks)
            if len(by) == 2
        ]

    def children(self) -> dict[str, Layer]:
        return {"layer": self.layer}

    def forward(self, *Xs: Array) -> Array:
        Y: Array = self.layer.forward(*Xs)
        Y[(len(Y) - 1) // self.K :] -= Y[-1].copy()
        return Y

    def backward(self, dY: Array) -> Any:
        dY[-1] = -dY[(len(dY) - 1) // self.K : -1].sum(axis=0)
        return self.layer.backward(dY)


class _Function(_Affine, registered=False):
    """Y = f(X) for the first N rows, f' X_a and f'' X_a X_b + f' X_ab for the others."""

    def __init__(self, layer: Layer, blocks: Sequence[tuple[str, ...]]) -> None:
        super().__init__(layer, blocks)
        self.curves = _derive().curves(layer, kinks=not self.pairs)

    def forward(self, *Xs: Array) -> Array:
        (X,) = Xs
        A, Y = _split(X, self.K), self.buffer("Y", X.shape, X.dtype)
        B, Y[-1] = _split(Y, self.K), 0
        B[0] = self.layer.forward(A[0])
        slope, curve, bend = self.curves(A[0], B[0])
        np.multiply(slope, A[1:], out=B[1:])
        for k, a, b in self.pairs:
            B[k] += curve * A[a] * A[b]
        self.save_for_backward(A=A, curves=(slope, curve, bend))
        return Y

    def backward(self, dY: Array) -> Array:
        A, (slope, curve, bend) = self.saved("A", "curves")
        dX, dB = self.buffer("dX", dY.shape, dY.dtype), _split(dY, self.K)
        dA, dX[-1] = _split(dX, self.K), 0
        np.multiply(slope, dB, out=dA)
        dA[0] += curve * np.einsum("k...,k...->...", A[1:], dB[1:])
        for k, a, b in self.pairs:
            share = curve * dB[k]
            dA[a] += share * A[b]
            dA[b] += share * A[a]
            dA[0] += bend * dB[k] * A[a] * A[b]
        return dX


def _lift(layer: Layer, blocks: Sequence[tuple[str, ...]]) -> Layer:
    """Return a layer for rows of derivatives, with the same weights."""
    if not _derive().is_affine(layer):
        return _Function(layer, blocks)
    inside = layer.children()
    if not inside:
        return _Affine(layer, blocks)
    twin: Any = Layer._replica(layer)
    twin._replace({id(part): _lift(part, blocks) for part in inside.values()})
    return twin


def _split(S: Array, K: int) -> Array:
    """The blocks of rows, (K, N, ...)."""
    return S[:-1].reshape(K, -1, *S.shape[1:])


def _derive() -> Any:
    """What derives, which a program without a PDE does not load."""
    from phitodeep.derivations.derive import inputs

    return inputs
