"""Activations with a wrong slope."""

import numpy as np

from course.bugs.bug import Task, read
from phitodeep.data import make_moons
from phitodeep.layers import Dense, Layer
from phitodeep.layers import Tanh as RightTanh
from phitodeep.loss import CategoricalCrossEntropy


class Softmax(Layer):
    def forward(self, X):
        E = np.exp(X - X.max(axis=-1, keepdims=True))
        P = E / E.sum(axis=-1, keepdims=True)
        self.save_for_backward(P=P)
        return P

    def backward(self, dY):
        P = self.saved("P")
        return dY * P * (1 - P)


class Tanh(Layer):
    def forward(self, X):
        Y = np.tanh(X)
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY):
        return 1 - np.tanh(dY) ** 2


class ReLU(Layer):
    def forward(self, X):
        self.save_for_backward(X=X)
        return np.maximum(X, 0)

    def backward(self, dY):
        X = self.saved("X")
        return np.where(X > 0, np.ones_like(dY), 0)


class LeakyReLU(Layer):
    def forward(self, X):
        self.save_for_backward(X=X)
        return np.where(X > 0, X, 0.01 * X)

    def backward(self, dY):
        X = self.saved("X")
        return np.where(X > 0, dY, 0.01)


class GELU(Layer):
    def forward(self, X):
        self.save_for_backward(X=X)
        return X / (1 + np.exp(-1.5957691 * (X + 0.044715 * X**3)))

    def backward(self, dY):
        X = self.saved("X")
        s = 1 / (1 + np.exp(-1.5957691 * (X + 0.044715 * X**3)))
        slope = 1.5957691 * (1 + 3 * 0.044715 * X**3)
        return dY * (s + X * s * (1 - s) * slope)


def two_layers(kind: type[Layer]) -> list[Layer]:
    return [Dense(16), kind(), Dense(2)]


moons = Task(lambda: make_moons(200, seed=0), two_layers)

BUGS = read(
    __file__,
    globals(),
    {
        "softmax": Task(
            lambda: make_moons(200, seed=0),
            lambda kind: [Dense(16), RightTanh(), Dense(2), kind()],
            CategoricalCrossEntropy,
        ),
        "tanh": moons,
        "relu": moons,
        "leaky-relu": moons,
        "gelu": moons,
    },
)
