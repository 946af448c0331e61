"""What the page of each loss says that its class does not: the question, the example, the checks.

A check is a sentence and an expression in P, T, L and dP (an example's batch and its loss), which
the build evaluates: a page can only say what is true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep import functional as F
from phitodeep import loss as losses
from phitodeep.loss import Loss

Row = Callable[[Any], Any]  # the values of the picture's axis -> one row of predictions each


class Curve(NamedTuple):
    """The picture: one number of one sample's prediction moves, and the loss and its slope follow.

    axis       what moves
    span       from where to where
    targets    by label, the sample's targets; the first is shown first
    row        the predictions for the values of the axis; by default, the values themselves
    cell       which prediction of the row the slope belongs to
    """

    axis: str
    span: tuple[float, float]
    targets: dict[str, Any]
    row: Row = lambda x: x[:, None]
    cell: int = 0


class Facts(NamedTuple):
    loss: Loss
    question: str
    answer: str  # what the picture shows
    use: str  # which last layer, and which targets
    curve: Curve
    P: Any  # the example: three samples
    T: Any
    checks: tuple[tuple[str, str], ...]
    siblings: tuple[str, ...]
    also: tuple[Any, ...] = ()  # functions that its methods call, shown as well


def _beside(x: Any) -> Any:
    """Logits of three classes: the first moves, the others stay 0."""
    return np.stack([x, 0 * x, 0 * x], axis=1)


def _shared(p: Any) -> Any:
    """Probabilities of three classes: the first moves, the others share the rest."""
    return np.stack([p, (1 - p) / 2, (1 - p) / 2], axis=1)


ERRORS = {"target 0": [0.0], "target 2": [2.0]}
TWO = {"label 1": [1.0], "label 0": [0.0], "0.7": [0.7]}
SIDES = {"label +1": [1.0], "label \u22121": [-1.0]}
NUMBERS_P = [[1.5], [-0.5], [4.0]]
NUMBERS_T = [[1.0], [0.5], [0.0]]
LOGITS = [[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-1.0, 3.0, 0.0]]
NUMBERS = "The last layer is a Dense without an activation. Targets are real numbers."

FACTS = (
    Facts(
        losses.MeanSquaredError(),
        "Why does one outlier dominate?",
        "The slope grows with the error, so a point that is ten times as far away pulls ten times "
        "as hard. At the target, both the loss and the slope are 0.",
        NUMBERS,
        Curve("prediction p", (-4, 4), ERRORS),
        NUMBERS_P,
        NUMBERS_T,
        (
            ("The gradient is 2 (p - t), divided by the number of elements.",
             "np.allclose(dP, 2 * (P - T) / P.size)"),
            ("The gradients of a batch sum to twice the mean error.",
             "np.isclose(dP.sum(), 2 * (P - T).mean())"),
            ("One step of size N / 2 against the gradient lands on the targets.",
             "np.allclose(P - P.size / 2 * dP, T)"),
        ),
        ("MeanAbsoluteError", "Huber", "LogCosh"),
    ),
    Facts(
        losses.MeanAbsoluteError(),
        "What if every sample pulls with the same strength?",
        "The slope is only a sign: a far point pulls as hard as a near one. The best constant "
        "prediction is therefore the median, while for the squared error it is the mean.",
        NUMBERS,
        Curve("prediction p", (-4, 4), ERRORS),
        NUMBERS_P,
        NUMBERS_T,
        (
            ("Every gradient has the same size, 1 / N.", "np.allclose(np.abs(dP), 1 / P.size)"),
            ("Its sign is that of the error.", "np.array_equal(np.sign(dP), np.sign(P - T))"),
        ),
        ("MeanSquaredError", "Huber", "LogCosh"),
    ),
    Facts(
        losses.Huber(1.0),
        "How can a loss be smooth at the target, and calm far away?",
        "Up to `delta`, it is a parabola; beyond that, a straight line. The slope is the error, "
        "clipped to the range from -delta to delta.",
        NUMBERS,
        Curve("prediction p", (-4, 4), ERRORS),
        NUMBERS_P,
        NUMBERS_T,
        (
            ("No gradient is larger than delta / N.", "np.abs(dP).max() <= 1 / P.size"),
            ("Near the target, it is half of the squared error's gradient.",
             "np.allclose(dP[:2], (P - T)[:2] / P.size)"),
        ),
        ("MeanSquaredError", "MeanAbsoluteError", "LogCosh"),
    ),
    Facts(
        losses.LogCosh(),
        "What is a Huber loss without a corner?",
        "Like e\u00b2 / 2 near the target and like |e| far from it, with a slope, tanh(e), that "
        "has no kink anywhere.",
        NUMBERS,
        Curve("prediction p", (-4, 4), ERRORS),
        NUMBERS_P,
        NUMBERS_T,
        (
            ("The gradient is tanh(p - t) / N.", "np.allclose(dP, np.tanh(P - T) / P.size)"),
            ("It never exceeds 1 / N.", "np.abs(dP).max() < 1 / P.size"),
        ),
        ("Huber", "MeanSquaredError", "MeanAbsoluteError"),
    ),
    Facts(
        losses.PoissonNLL(),
        "What if the targets are counts?",
        "The prediction is the log of the expected count, so the rate exp(p) is never negative. "
        "The slope is the familiar difference: expected count minus observed count.",
        "The last layer is a Dense without an activation, which predicts log rates. Targets are "
        "counts, 0 or more. With `log_input=False`, the model predicts the rate itself.",
        Curve("log of the rate, p", (-2, 2), {"count 2": [2.0], "count 0": [0.0]}),
        [[0.5], [0.0], [1.2]],
        [[2.0], [0.0], [4.0]],
        (
            ("The gradient is the expected count minus the observed count, divided by N.",
             "np.allclose(dP, (np.exp(P) - T) / P.size)"),
            ("It is 0 where the rate equals the count.",
             "loss.loss_gradient(np.log([[2.0]]), [[2.0]]) == 0"),
        ),
        ("MeanSquaredError",),
    ),
    Facts(
        losses.CosineSimilarityLoss(),
        "How do you compare directions and ignore lengths?",
        "The picture shows the rows p = (x, 1) and t: only the angle between them counts, so the "
        "slope fades as p grows longer and turns ever less.",
        "The last layer is a Dense without an activation that returns an embedding. Targets are "
        "rows of the same length, such as the embeddings that should be matched.",
        Curve(
            "x, in p = (x, 1)",
            (-3, 3),
            {"t = (1, 1)": [1.0, 1.0], "t = (\u22121, 1)": [-1.0, 1.0]},
            lambda x: np.stack([x, np.ones_like(x)], axis=1),
        ),
        [[3.0, 4.0], [1.0, 0.0], [-1.0, 2.0]],
        [[4.0, 3.0], [0.0, 2.0], [1.0, 1.0]],
        (
            ("Each row's gradient is orthogonal to the prediction: a step only turns it.",
             "np.allclose((dP * P).sum(axis=-1), 0)"),
            ("Predictions twice as long have the same loss, and half the gradient.",
             "np.allclose(loss.loss_gradient(2 * P, T), dP / 2)"),
        ),
        ("MeanSquaredError",),
    ),
    Facts(
        losses.BinaryCrossEntropy(),
        "Why is a confident mistake so expensive?",
        "The loss is the surprise, -log of the probability that the model gave to what happened. "
        "As that probability falls to 0, the surprise and its slope have no bound.",
        "The last layer is a Sigmoid. Targets are 0 or 1, or probabilities in between.",
        Curve("probability p", (0.02, 0.98), TWO),
        [[0.9], [0.2], [0.6]],
        [[1.0], [0.0], [0.0]],
        (
            ("The gradient is (p - t) / (p (1 - p)), divided by N.",
             "np.allclose(dP, (P - T) / (P * (1 - P)) / P.size)"),
            ("Times sigmoid's slope p (1 - p), it is (p - t) / N: that is what fusing saves.",
             "np.allclose(dP * P * (1 - P), (P - T) / P.size)"),
        ),
        ("BinaryCrossEntropyWithLogits", "CategoricalCrossEntropy", "Hinge"),
    ),
    Facts(
        losses.BinaryCrossEntropyWithLogits(),
        "Why is the gradient simply p - t?",
        "The slope of the logarithm and the slope of the sigmoid cancel. What is left lies between "
        "-1 and 1, however wrong the prediction is.",
        "The last layer is a Dense without an activation, whose outputs are logits. Targets are 0 "
        "or 1, or probabilities in between.",
        Curve("logit z", (-5, 5), TWO),
        [[2.0], [-1.0], [0.5]],
        [[1.0], [0.0], [0.0]],
        (
            ("The gradient is (sigmoid(z) - t) / N.",
             "np.allclose(dP, (F.sigmoid(P) - T) / P.size)"),
            ("No gradient is larger than 1 / N.", "np.abs(dP).max() < 1 / P.size"),
        ),
        ("BinaryCrossEntropy", "SoftmaxCrossEntropy", "Hinge"),
        (F.sigmoid,),
    ),
    Facts(
        losses.Hinge(),
        "When is right not right enough?",
        "A sample costs nothing only if it lies on the right side of the boundary with a margin of "
        "1. Beyond that margin it has no gradient, so the samples near the boundary decide.",
        "The last layer is a Dense without an activation. Targets are -1 and +1.",
        Curve("prediction p", (-3, 3), SIDES),
        [[1.5], [0.5], [0.3]],
        [[1.0], [1.0], [-1.0]],
        (
            ("A sample beyond its margin has no gradient.", "dP[0] == 0"),
            ("Any other has the gradient -t / N.", "np.allclose(dP[1:], -T[1:] / P.size)"),
        ),
        ("SquaredHinge", "BinaryCrossEntropyWithLogits"),
    ),
    Facts(
        losses.SquaredHinge(),
        "How does the pull fade as a sample nears its margin?",
        "Like the hinge, but its slope shrinks to 0 on the way to the margin, so there is no kink.",
        "The last layer is a Dense without an activation. Targets are -1 and +1.",
        Curve("prediction p", (-3, 3), SIDES),
        [[1.5], [0.5], [0.3]],
        [[1.0], [1.0], [-1.0]],
        (
            ("A sample beyond its margin has no gradient.", "dP[0] == 0"),
            ("Any other has -2 t (1 - t p) / N.",
             "np.allclose(dP[1:], (-2 * T * (1 - T * P))[1:] / P.size)"),
        ),
        ("Hinge", "BinaryCrossEntropyWithLogits"),
    ),
    Facts(
        losses.CategoricalCrossEntropy(),
        "Which of the predicted probabilities does the loss look at?",
        "Only the one of the true class: the loss is its -log. The other probabilities have no "
        "gradient here; they feel it through the Softmax, which makes them share a sum of 1.",
        "The last layer is a Softmax. Targets are class labels, or rows of probabilities.",
        Curve("probability p\u2080, the others share the rest", (0.02, 0.98),
              {"class 0": 0, "class 1": 1}, _shared),
        [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.05, 0.9, 0.05]],
        [0, 2, 0],
        (
            ("Only the label's probability has a gradient, -1 / (N p).",
             "np.allclose(dP, -F.one_hot(T, 3) / P / len(P))"),
            ("Through softmax's Jacobian, it becomes (p - onehot) / N.",
             "np.allclose(P * (dP - (dP * P).sum(axis=1, keepdims=True)), "
             "(P - F.one_hot(T, 3)) / len(P))"),
        ),
        ("SoftmaxCrossEntropy", "NegativeLogLikelihood", "BinaryCrossEntropy"),
        (F.nll,),
    ),
    Facts(
        losses.SoftmaxCrossEntropy(),
        "Why is the gradient of K classes simply p - onehot?",
        "The true class pulls its logit up, the others push theirs down, and the pulls cancel "
        "exactly. A confident mistake has a slope of almost 1, and never more.",
        "The last layer is a Dense without an activation, whose outputs are logits. Targets are "
        "class labels, or rows of probabilities.",
        Curve("logit z\u2080, the others are 0", (-5, 5), {"class 0": 0, "class 1": 1}, _beside),
        LOGITS,
        [0, 2, 0],
        (
            ("The gradient is (softmax(z) - onehot) / N.",
             "np.allclose(dP, (F.softmax(P) - F.one_hot(T, 3)) / len(P))"),
            ("Each row sums to 0: what one logit gains, the others lose.",
             "np.allclose(dP.sum(axis=1), 0)"),
            ("The same number added to all logits of a row changes nothing.",
             "np.isclose(loss.loss_func(P + 5, T), L)"),
        ),
        ("CategoricalCrossEntropy", "NegativeLogLikelihood", "BinaryCrossEntropyWithLogits"),
        (F.cross_entropy_and_gradient,),
    ),
    Facts(
        losses.NegativeLogLikelihood(),
        "What is left of the cross-entropy if the model returns logarithms?",
        "A straight line: the loss is minus the log-probability of the true class, and its slope "
        "is -1 everywhere. All the curvature is in the LogSoftmax before it.",
        "The last layer is a LogSoftmax. Targets are class labels, or rows of probabilities.",
        Curve("log-probability of class 0", (-4, 0), {"class 0": 0, "class 1": 1},
              lambda x: np.log(_shared(np.minimum(np.exp(x), 1 - 1e-9)))),
        [[-0.4, -1.5, -2.2], [-1.2, -1.2, -0.9], [-3.0, -0.1, -3.1]],
        [0, 2, 0],
        (
            ("The gradient is -onehot / N.", "np.allclose(dP, -F.one_hot(T, 3) / len(P))"),
            ("The gradients of a batch sum to -1.", "np.isclose(dP.sum(), -1)"),
        ),
        ("SoftmaxCrossEntropy", "CategoricalCrossEntropy", "KLDivergence"),
        (F.nll,),
    ),
    Facts(
        losses.KLDivergence(),
        "How far is one distribution from another?",
        "The picture moves one log-probability on its own. The more probability the target gives "
        "to an outcome, the steeper its line: the slope is -t.",
        "The last layer is a LogSoftmax. Targets are rows of probabilities, such as the soft "
        "outputs of a larger model (distillation).",
        Curve("log-probability p\u2080", (-4, 0), {"t = (0.7, 0.3)": [0.7, 0.3],
              "t = (0.2, 0.8)": [0.2, 0.8]},
              lambda x: np.stack([x, np.full_like(x, np.log(0.5))], axis=1)),
        np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.4, 0.4, 0.2]]).tolist(),
        [[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.0, 0.9, 0.1]],
        (
            ("A row that equals its target costs nothing.",
             "np.isclose(loss.loss_func(P[:1], T[:1]), 0)"),
            ("The gradient is -t / N, and each row of it sums to -1 / N.",
             "np.allclose(dP, -T / len(P)) and np.allclose(dP.sum(axis=1), -1 / len(P))"),
        ),
        ("NegativeLogLikelihood", "CategoricalCrossEntropy", "NegativeELBO"),
    ),
    Facts(
        losses.NegativeELBO(1),
        "What keeps the code of a variational autoencoder near 0?",
        "Here, the mean m of the latent variable moves, and the KL term pulls it back to 0 like a "
        "spring. The reconstruction pulls it wherever the picture needs it: through the decoder.",
        "The model is `models.vae`, which returns means, log variances and logits side by side. "
        "Targets are the inputs, from 0 to 1.",
        Curve("mean m", (-3, 3), {"pixel 1": [1.0], "pixel 0": [0.0]},
              lambda x: np.stack([x, 0 * x, 0 * x + 1], axis=1)),
        [[0.5, -0.2, 1.0], [-1.0, 0.3, -2.0], [0.0, 0.0, 0.4]],
        [[1.0], [0.0], [0.5]],
        (
            ("The gradient of the mean is m / N, a spring.", "np.allclose(dP[:, 0], P[:, 0] / 3)"),
            ("That of the log variance is (exp(s) - 1) / 2, 0 at the variance 1.",
             "np.allclose(dP[:, 1], (np.exp(P[:, 1]) - 1) / 6)"),
            ("That of a logit is sigmoid(z) - t.",
             "np.allclose(dP[:, 2:], (F.sigmoid(P[:, 2:]) - T) / 3)"),
        ),
        ("KLDivergence", "BinaryCrossEntropyWithLogits"),
    ),
)  # fmt: skip
