"""Windows, norms, tokens, gates, and a loss."""

from functools import cache

import numpy as np

from course.bugs.bug import Bug, Source, Task
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


BUGS = {
    "overlap": Bug(
        title="Windows that overlap",
        story="An input that is the maximum of several windows receives a gradient from each. The "
        "code assigned where it should have added. Its test used windows that do not overlap, "
        "which is the one case in which both are equal.",
        sources=(
            Source(
                "0809zheng/CS231n-assignment2019 #19",
                "https://github.com/0809zheng/CS231n-assignment2019/issues/19",
                "`max_pool_backward_naive` in `assignment2/cs231n/layers.py`",
            ),
            Source(
                "FluxML/NNlib.jl #205",
                "https://github.com/FluxML/NNlib.jl/issues/205",
                "the same in a library, found by comparison with finite differences",
            ),
        ),
        kind=OverlappingMax,
        check="OverlappingMax(), rng.standard_normal((4, 7, 3))",
        wrong="dX[at] = dY[:, t : t + 1]",
        right="dX[at] += dY[:, t : t + 1]",
        why="Each maximum still gets one of its gradients, which is a part of the right sum.",
        task=Task(
            digits,
            lambda kind: [Conv1D(8, 3), kind(), Flatten(), Dense(10)],
            epochs=3,
        ),
    ),
    "first-window": Bug(
        title="A return that is indented too far",
        story="The `return` stands inside the loop, so only the first window gets a gradient. The "
        "report adds that the model converged all the same.",
        sources=(
            Source(
                "riccardoandreoni0/CNN-from-scratch #1",
                "https://github.com/riccardoandreoni0/CNN-from-scratch/issues/1",
                "`MaxPoolingLayer.back_prop` in `utils.py`; the author confirmed it",
            ),
        ),
        kind=FirstWindow,
        check="FirstWindow(), rng.standard_normal((4, 6, 3))",
        wrong="            return dX",
        right="        return dX",
        why="The layers after the pooling learn as they should. The convolution before it hardly "
        "learns, but its random filters are good enough features.",
        task=Task(
            digits,
            lambda kind: [Conv1D(8, 3), ReLU(), kind(), Flatten(), Dense(10)],
            epochs=3,
        ),
    ),
    "batch-norm": Bug(
        title="A norm whose mean and variance are constants",
        story="The mean and the variance of the batch depend on every x. Without the two paths "
        "through them, dX is only scaled.",
        sources=(
            Source(
                "deeplearning4j/deeplearning4j #8379",
                "https://github.com/deeplearning4j/deeplearning4j/pull/8379",
                "adds the parts of the gradient that come from the mean and the variance",
            ),
            Source(
                "mlpack/mlpack #1923",
                "https://github.com/mlpack/mlpack/issues/1923",
                "another wrong BatchNorm; its test had no layer before it, so that nobody ever "
                "looked at dX",
            ),
        ),
        kind=BatchNorm,
        check="BatchNorm(), rng.standard_normal((5, 3))",
        wrong="return dZ / s",
        right="return (dZ - dZ.mean(axis=0) - Z * (dZ * Z).mean(axis=0)) / s",
        why="What is missing is the part of the gradient that would move or stretch the whole "
        "batch. The forward pass removes that movement again.",
        task=Task(
            lambda: make_moons(200, seed=0),
            lambda kind: [Dense(16), kind(), ReLU(), Dense(2)],
        ),
    ),
    "embedding": Bug(
        title="A token that occurs twice",
        story="`dW[tokens] += dY` looks like an addition. NumPy reads, adds and writes each row "
        "once, so a token that occurs twice keeps only its last gradient.",
        sources=(
            Source(
                "HIPS/autograd #136",
                "https://github.com/HIPS/autograd/pull/136",
                "a proposal to go back from `np.add.at` to `+=`; a maintainer recalls that "
                "`+=` was the earlier bug, issue #39",
            ),
            Source(
                "pymc-devs/pytensor #2242",
                "https://github.com/pymc-devs/pytensor/pull/2242",
                "silently wrong gradients of embedding look-ups on one backend",
            ),
        ),
        kind=Embedding,
        check="Embedding(9, 3), rng.integers(0, 9, (2, 4))",
        wrong='dW[self.saved("tokens")] += dY',
        right='np.add.at(dW, self.saved("tokens"), dY)',
        why="Every token that occurs still gets one of its gradients, and a rare token gets all "
        "of them.",
        task=Task(words, lambda kind: [kind(12, 4), Flatten(), Dense(2)]),
    ),
    "forget-gate": Bug(
        title="A gate without its slope",
        story="The backward pass of an LSTM multiplied the forget gate's gradient by the sigmoid "
        "itself instead of by its slope, f (1 - f). A flag was missing in one of four calls. This "
        "is the same mistake in the smallest cell that forgets.",
        sources=(
            Source(
                "CaptainE/RNN-LSTM-in-numpy #1",
                "https://github.com/CaptainE/RNN-LSTM-in-numpy/issues/1",
                "`derivative=True` is missing; the report also misses `dh_next` and `dC_next`",
            ),
        ),
        kind=Forget,
        check="Forget(), rng.standard_normal((4, 6, 3))",
        wrong="dA[:, t] = df * F[:, t]",
        right="dA[:, t] = df * F[:, t] * (1 - F[:, t])",
        why="f and f (1 - f) are both positive, so the gate learns in the right direction, but "
        "too fast where it is nearly open. In this run it is even ahead: a loss that falls does "
        "not prove a gradient.",
        task=Task(
            lambda: (digits()[0], digits()[1]),
            lambda kind: [Dense(16), kind(), Dense(10)],
            rate=0.02,
            epochs=10,
        ),
    ),
    "huber": Bug(
        title="A loss that is not the one that is minimized",
        story="The two branches of the loss are swapped: small errors count linearly, large ones "
        "as squares. The gradient is right, so the number that training prints is not the number "
        "that it reduces.",
        sources=(
            Source(
                "phitodeep 0.2.3",
                "../coming-from/phitodeep-0.2.3.md#gradients-that-are-different",
                "our own; `Huber`",
            ),
        ),
        kind=Huber,
        check="Huber(), 2 * rng.standard_normal((5, 3)), rng.standard_normal((5, 3))",
        wrong="np.where(e > 1, e**2 / 2, e - 1 / 2)",
        right="np.where(e > 1, e - 1 / 2, e**2 / 2)",
        why="Training uses only the gradient, so both models are the same. What is wrong is every "
        "decision that is based on the loss, such as early stopping. The "
        "table shows what each loss reports of the same model; the wrong one can be negative.",
        task=Task(
            points,
            lambda kind: [Dense(16), ReLU(), Dense(1)],
        ),
    ),
}
