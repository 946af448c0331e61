"""Windows, norms, tokens, gates, and a loss."""

from functools import cache

import numpy as np

from course.bugs.bug import Task, read
from phitodeep.data import load_mnist, make_moons
from phitodeep.layers import Conv1D, Dense, Flatten, Layer, Param, ReLU
from phitodeep.layers import Embedding as RightEmbedding
from phitodeep.loss import Loss


class OverlappingMax(Layer):
    """The maximum over 3 steps, at every step: X (N, T, C), Y (N, T - 2, C)."""

    def create(self, shape):
        return (shape[0] - 2, shape[1])

    def forward(self, X):
        windows = np.stack([X[:, :-2], X[:, 1:-1], X[:, 2:]])
        self.save_for_backward(X=X, top=windows.argmax(axis=0))
        return windows.max(axis=0)

    def backward(self, dY):
        X, top = self.saved("X", "top")
        dX = np.zeros_like(X)
        n, _, c = np.indices(dY[:, 0:1].shape)
        for t in range(dY.shape[1]):
            at = n, t + top[:, t : t + 1], c
            dX[at] = dY[:, t : t + 1]
        return dX


class FirstWindow(Layer):
    """The maximum over pairs of steps: X (N, T, C), Y (N, T / 2, C)."""

    def create(self, shape):
        return (shape[0] // 2, shape[1])

    def forward(self, X):
        self.save_for_backward(X=X)
        return np.maximum(X[:, 0::2], X[:, 1::2])

    def backward(self, dY):
        X = self.saved("X")
        dX = np.zeros_like(X)
        for t in range(dY.shape[1]):
            left = X[:, 2 * t] >= X[:, 2 * t + 1]
            dX[:, 2 * t] = np.where(left, dY[:, t], 0)
            dX[:, 2 * t + 1] = np.where(left, 0, dY[:, t])
            return dX


class BatchNorm(Layer):
    gamma, beta = Param(), Param()

    def create(self, shape):
        self.gamma, self.beta = np.ones(shape[-1]), np.zeros(shape[-1])
        return shape

    def forward(self, X):
        s = np.sqrt(X.var(axis=0) + 1e-5)
        Z = (X - X.mean(axis=0)) / s
        self.save_for_backward(Z=Z, s=s)
        return self.gamma * Z + self.beta

    def backward(self, dY):
        Z, s = self.saved("Z", "s")
        np.sum(dY * Z, axis=0, out=self.grad_array("gamma"))
        np.sum(dY, axis=0, out=self.grad_array("beta"))
        dZ = dY * self.gamma
        return dZ / s


class Embedding(RightEmbedding):
    def backward(self, dY):
        dW = self.grad_array("W")
        dW[...] = 0
        dW[self.saved("tokens")] += dY


class Forget(Layer):
    """c_t = f_t c_(t-1) + x_t with the gate f_t = sigmoid(w x_t + b); Y is the last c."""

    w, b = Param(), Param()

    def create(self, shape):
        self.w, self.b = np.ones(shape[-1]), np.ones(shape[-1])
        return shape[1:]

    def forward(self, X):
        F, C = 1 / (1 + np.exp(-(self.w * X + self.b))), [np.zeros_like(X[:, 0])]
        for t in range(X.shape[1]):
            C.append(F[:, t] * C[-1] + X[:, t])
        self.save_for_backward(X=X, F=F, C=np.stack(C, axis=1))
        return C[-1]

    def backward(self, dY):
        X, F, C = self.saved("X", "F", "C")
        dX, dA, dc = np.empty_like(X), np.empty_like(X), dY
        for t in reversed(range(X.shape[1])):
            df = dc * C[:, t]
            dA[:, t] = df * F[:, t]
            dX[:, t] = dc + dA[:, t] * self.w
            dc = dc * F[:, t]
        np.sum(dA * X, axis=(0, 1), out=self.grad_array("w"))
        np.sum(dA, axis=(0, 1), out=self.grad_array("b"))
        return dX


class Huber(Loss):
    def value(self, P, T, w, total):
        e = np.abs(P - T)
        return np.where(e > 1, e**2 / 2, e - 1 / 2).mean()

    def gradient(self, P, T, w, total):
        return np.clip(P - T, -1, 1) / P.size


@cache
def digits():
    X, y, _, _ = load_mnist()
    return X[:400, ::2, ::2], y[:400]


def words():
    """Ten tokens of 12; the label says whether small ones are more frequent."""
    X = np.random.default_rng(0).integers(0, 12, (200, 9))
    return X, (X < 6).sum(axis=1) // 5


def points():
    X, _ = make_moons(200, seed=0)
    return X, 3 * np.sin(2 * X.sum(axis=1, keepdims=True))


BUGS = read(
    __file__,
    globals(),
    {
        "overlap": Task(
            digits, lambda kind: [Conv1D(8, 3), kind(), Flatten(), Dense(10)], epochs=3
        ),
        "first-window": Task(
            digits, lambda kind: [Conv1D(8, 3), ReLU(), kind(), Flatten(), Dense(10)], epochs=3
        ),
        "batch-norm": Task(
            lambda: make_moons(200, seed=0), lambda kind: [Dense(16), kind(), ReLU(), Dense(2)]
        ),
        "embedding": Task(words, lambda kind: [kind(12, 4), Flatten(), Dense(2)]),
        "forget-gate": Task(
            digits,
            lambda kind: [Dense(16), kind(), Dense(10)],
            rate=0.02,
            epochs=10,
        ),
        "huber": Task(points, lambda kind: [Dense(16), ReLU(), Dense(1)]),
    },
)
