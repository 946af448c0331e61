"""Activations with a wrong slope."""

import numpy as np

from course.bugs.bug import Bug, Source, Task
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

BUGS = {
    "softmax": Bug(
        title="Softmax as if its outputs did not compete",
        story="The slope p (1 - p) is right for a sigmoid. It is only the diagonal of the Jacobian "
        "of softmax: raising one logit also lowers all other probabilities.",
        sources=(
            Source(
                "eriklindernoren/ML-From-Scratch #71",
                "https://github.com/eriklindernoren/ML-From-Scratch/issues/71",
                "`Softmax.gradient` in `mlfromscratch/deep_learning/activation_functions.py`",
            ),
            Source(
                "wkcn/mobula #3",
                "https://github.com/wkcn/mobula/issues/3",
                "a softmax that multiplied dY by exp(x), without the sum",
            ),
        ),
        kind=Softmax,
        check="Softmax(), rng.standard_normal((5, 3))",
        wrong="return dY * P * (1 - P)",
        right="return P * (dY - (dY * P).sum(axis=-1, keepdims=True))",
        why="With cross-entropy, the wrong gradient of the right class's logit is p - 1, which is "
        "exact. The other logits get none, so they are not pushed down, but softmax only depends "
        "on differences.",
        task=Task(
            lambda: make_moons(200, seed=0),
            lambda kind: [Dense(16), RightTanh(), Dense(2), kind()],
            CategoricalCrossEntropy,
        ),
    ),
    "tanh": Bug(
        title="Tanh, differentiated at the wrong place",
        story="The slope is taken at the gradient that arrives instead of at the input, and what "
        "arrives is not multiplied by it. The chain rule is missing altogether.",
        sources=(
            Source(
                "yizt/numpy_neural_network #6",
                "https://github.com/yizt/numpy_neural_network/issues/6",
                "`tanh_backward` in `nn/activations.py`; the author confirmed and mended it",
            ),
        ),
        kind=Tanh,
        check="Tanh(), rng.standard_normal((5, 3))",
        wrong="return 1 - np.tanh(dY) ** 2",
        right='return dY * (1 - self.saved("Y") ** 2)',
        why="Here it does not: 0.69 is the loss of guessing. What arrives is small, so the layer "
        "passes back almost exactly 1 everywhere, and the layers before it drift in one direction "
        "that has nothing to do with the loss. The last layer has the right gradient. With a "
        "smaller step, it learns from the features that the drift leaves.",
        task=moons,
    ),
    "relu": Bug(
        title="ReLU that forgets what arrived",
        story="The slope of ReLU is 1 or 0. The library returned this slope itself, in place of "
        "the slope times the gradient from above: a missing `*` before an `=`.",
        sources=(
            Source(
                "haifengl/smile #528",
                "https://github.com/haifengl/smile/issues/528",
                "`ActivationFunction.java` in version 2.2.2",
            ),
        ),
        kind=ReLU,
        check="ReLU(), rng.standard_normal((5, 3))",
        wrong="return np.where(X > 0, np.ones_like(dY), 0)",
        right="return np.where(X > 0, dY, 0)",
        why="Here it does not: 0.69 is the loss of guessing. Every active unit is pushed down "
        "until it is dead. The mistake survives because a test of the slope alone passes: it has "
        "the right zeros and the right ones.",
        task=moons,
    ),
    "leaky-relu": Bug(
        title="Leaky ReLU with half a chain rule",
        story="For positive inputs the gradient is passed on. For negative ones the slope 0.01 is "
        "returned without what arrived.",
        sources=(
            Source(
                "SilasMarvin/dnns-from-scratch-in-zig #5",
                "https://github.com/SilasMarvin/dnns-from-scratch-in-zig/issues/5",
                "`relu.zig`, line 32; confirmed and mended in commit 9b92997",
            ),
        ),
        kind=LeakyReLU,
        check="LeakyReLU(), rng.standard_normal((5, 3))",
        wrong="return np.where(X > 0, dY, 0.01)",
        right="return np.where(X > 0, dY, 0.01 * dY)",
        why="The half that matters most is right, and the other half is a small constant drift.",
        task=moons,
    ),
    "gelu": Bug(
        title="GELU with one power too many",
        story="The derivative of x + c x³ is 1 + 3 c x². The code had x³, copied from the forward "
        "pass.",
        sources=(
            Source(
                "phitodeep 0.2.3",
                "../coming-from/phitodeep-0.2.3.md#gradients-that-are-different",
                "our own; `GELU.backward`",
            ),
        ),
        kind=GELU,
        check="GELU(), rng.standard_normal((5, 3))",
        wrong="(1 + 3 * 0.044715 * X**3)",
        right="(1 + 3 * 0.044715 * X**2)",
        why="c is only 0.045, so the wrong term is small between -1 and 1, where most activations "
        "are. For normally distributed inputs, the error is 6 % of the size of the slopes.",
        task=moons,
    ),
}
