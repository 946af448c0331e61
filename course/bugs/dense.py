"""Dense layers, a dropout and a path that is used twice."""

import numpy as np

from course.bugs.bug import Bug, Source, Task
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


BUGS = {
    "bias": Bug(
        title="One number for all biases",
        story="The sum over the batch has to stay one number per output. Without `axis`, it is one "
        "number in all, which broadcasting then gives to every bias.",
        sources=(
            Source(
                "rasbt/stat453-deep-learning-ss21 #5",
                "https://github.com/rasbt/stat453-deep-learning-ss21/issues/5",
                "`L08/code/softmax-regression_scratch.ipynb`; the report noticed that all "
                "biases came out equal",
            ),
            Source(
                "mlpack/mlpack #3679",
                "https://github.com/mlpack/mlpack/pull/3679",
                "the opposite: a bias layer that did not sum over the batch at all",
            ),
        ),
        kind=OneSum,
        check="OneSum(3, 4), rng.standard_normal((5, 3))",
        wrong="np.sum(dY)",
        right="np.sum(dY, axis=0)",
        why="After softmax and cross-entropy, the entries of each row of dY add up to 0, so the "
        "last layer's biases stay where they started, and the weights do the work.",
        task=Task(moons, net),
    ),
    "batch-twice": Bug(
        title="The batch, divided out twice",
        story="The loss is a mean, so its gradient already holds the factor 1 / n. The layer "
        "divides by n again.",
        sources=(
            Source(
                "phitodeep 0.2.3",
                "../coming-from/phitodeep-0.2.3.md#what-you-will-notice",
                "our own; `Dense.backward`",
            ),
            Source(
                "deeplearning4j/deeplearning4j #366",
                "https://github.com/deeplearning4j/deeplearning4j/pull/366",
                "a comment notes that biases are still divided by the batch size twice",
            ),
        ),
        kind=Averaging,
        check="Averaging(3, 4), rng.standard_normal((5, 3))",
        wrong='self.grads["W"] /= len(dY)',
        right="",
        why="The direction is right and only the step is too short: SGD is slow, and a larger "
        "learning rate hides the mistake. Adam divides by the size of the gradient, so it shows "
        "nothing at all.",
        task=Task(moons, net),
    ),
    "eager": Bug(
        title="Weights that change before they are used",
        story="The layer updates its weights inside the backward pass and then uses the new ones "
        "to pass the gradient on. dX belongs to the weights of the forward pass.",
        sources=(
            Source(
                "VikParuchuri/zero_to_gpt #12",
                "https://github.com/VikParuchuri/zero_to_gpt/issues/12",
                "the update stands before the line that pulls the gradient through the layer",
            ),
            Source(
                "joelgrus/data-science-from-scratch #31",
                "https://github.com/joelgrus/data-science-from-scratch/issues/31",
                "the same question about the book's `neural_networks.py`",
            ),
        ),
        kind=Eager,
        check="Eager(3, 4), rng.standard_normal((5, 3))",
        wrong="self.W -= 0.1 * dW\n        ",
        right="",
        why="One step changes the weights by little, so the new ones give almost the same dX. "
        "Here the optimizer also takes its own step, so the weights move twice as far.",
        task=Task(moons, net),
    ),
    "dropout": Bug(
        title="Dropout that forgets whom it dropped",
        story="The backward pass scales by 1 / (1 - rate), but it does not apply the mask: "
        "elements that were 0 in the forward pass receive a gradient.",
        sources=(
            Source(
                "ddbourgin/numpy-ml #94",
                "https://github.com/ddbourgin/numpy-ml/issues/94",
                "`Dropout.backward` in `numpy_ml/neural_nets/wrappers/wrappers.py`",
            ),
        ),
        kind=Dropout,
        check="Dropout(0.4), rng.standard_normal((5, 3))",
        wrong="return dY / (1 - self.rate)",
        right='return dY * self.saved("mask")',
        why="On average over many masks, the direction is not far off: the wrong gradient adds "
        "what the dropped elements would have had.",
        task=Task(moons, lambda kind: [RightDense(32), ReLU(), kind(0.4), RightDense(2)]),
    ),
    "reused": Bug(
        title="A value that is used more than once",
        story="Each use of h adds its part to dh. Here, every part is passed on as soon as it "
        "arrives, together with all earlier ones, so the first parts count several times.",
        sources=(
            Source(
                "karpathy/micrograd #2",
                "https://github.com/karpathy/micrograd/issues/2",
                "the first version of `Value.backward`; the author notes that the toy problem "
                "converged with it",
            ),
            Source(
                "sebgao/cTensor #5",
                "https://github.com/sebgao/cTensor/issues/5",
                "the same, reported with a derivative that is 7 instead of 6",
            ),
        ),
        kind=Square,
        check="Square(), rng.standard_normal((5, 3))",
        wrong="""            dH += use
            ds += (dH * X).sum(axis=0)
            dX += dH * self.s
        return dX""",
        right="""            dH += use
        ds += (dH * X).sum(axis=0)
        return dH * self.s""",
        why="All parts are there and have the right signs, but some count two or three times. In "
        "this run, the wrong gradient even ends slightly lower.",
        task=Task(moons, lambda kind: [RightDense(16), kind(), RightDense(2)], rate=0.02),
    ),
}
