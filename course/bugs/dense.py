"""Dense layers, a dropout and a path that is used twice."""

import numpy as np

from course.bugs.bug import Task, read
from phitodeep.data import make_moons
from phitodeep.layers import Dense as RightDense
from phitodeep.layers import Dropout as RightDropout
from phitodeep.layers import Layer, Param, ReLU


class OneSum(RightDense):
    def backward(self, dY):
        dX = super().backward(dY)
        self.grads["b"][...] = np.sum(dY)
        return dX


class Averaging(RightDense):
    def backward(self, dY):
        dX = super().backward(dY)
        self.grads["W"] /= len(dY)
        return dX


class Eager(RightDense):
    def backward(self, dY):
        X = self.saved("X")
        dW = np.matmul(X.T, dY, out=self.grad_array("W"))
        np.sum(dY, axis=0, out=self.grad_array("b"))
        self.W -= 0.1 * dW
        return dY @ self.W.T


class Dropout(RightDropout):
    def backward(self, dY):
        return dY / (1 - self.rate)


class Square(Layer):
    """y = h + h h, with h = s x and one learned s per feature: h is used three times."""

    s = Param()

    def create(self, shape):
        self.s = np.ones(shape[-1])
        return shape

    def forward(self, X):
        self.save_for_backward(X=X)
        H = self.s * X
        return H + H * H

    def backward(self, dY):
        X = self.saved("X")
        H = self.s * X
        dH, dX, ds = np.zeros_like(H), np.zeros_like(X), self.grad_array("s")
        ds[...] = 0
        for use in (dY, dY * H, dY * H):
            dH += use
            ds += (dH * X).sum(axis=0)
            dX += dH * self.s
        return dX


def net(kind: type[Layer]) -> list[Layer]:
    return [kind(16), ReLU(), kind(2)]


def moons():
    return make_moons(200, seed=0)


BUGS = read(
    __file__,
    globals(),
    {
        "bias": Task(moons, net),
        "batch-twice": Task(moons, net),
        "eager": Task(moons, net),
        "dropout": Task(moons, lambda kind: [RightDense(32), ReLU(), kind(0.4), RightDense(2)]),
        "reused": Task(moons, lambda kind: [RightDense(16), kind(), RightDense(2)], rate=0.02),
    },
)
