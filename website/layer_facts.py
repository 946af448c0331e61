"""What the page of each layer says that its class does not: question, example, checks, exercise.

Long because it is a table with one entry for each public layer.

A check is an expression that must be 0 everywhere. It may read all symbols of the layer's
derivation. The build evaluates it, and the page evaluates it again when a reader changes a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.derivations.language.step import Let, Step, Sum
from phitodeep.testing.examples import cube, cube_gradient, embedding


class Check(NamedTuple):
    """A sentence, what must be 0 if it is true, and the steps that compute what this reads."""

    sentence: str
    zero: str
    before: tuple[Step, ...] = ()
    tolerance: float = 1e-9


class Facts(NamedTuple):
    """
    make       the layer of the example
    X          its input: numbers, or a shape to draw them for
    checks     sentences that are true whatever X and dY are
    exercise   a question that the picture can answer
    shown      further symbols in the workbench, next to X, Y, the parameters and their gradients
    extra      steps that only the page has, for such symbols
    mistakes   (symbol, part of a mutation's sentence); without them, the likeliest are taken
    blank      the symbol in which one number is to be predicted, and its place
    """

    question: str
    make: Callable[[], L.Layer]
    X: Any
    checks: tuple[Check, ...]
    exercise: str
    shown: tuple[str, ...] = ()
    extra: tuple[Step, ...] = ()
    mistakes: tuple[tuple[str, str], ...] = ()
    blank: tuple[str, int] = ("dX", 1)
    tokens: int = 0


def total(symbol: str, of: str, code: str = "...d->...1") -> Step:
    return Sum(symbol, code, of)


ROW = [[-2.0, -0.7, 0.4, 1.0, 2.5, 3.5]]
ALONG = (
    Sum("along_Y", "n...,n...->n", "Y", "dY"),
    Sum("along_X", "n...,n...->n", "X", "dX"),
)
SAME_WORK = Check(
    "Scaling X scales Y by the same factor, so the sum of Y dY equals the sum of X dX",
    "along_Y - along_X",
    ALONG,
)
COPIED = Check("dX equals dY: adding a constant changes no slope", "dX - dY")
MOVED = Check(
    "Nothing is lost: dX has the sum of dY",
    "sum_dY - sum_dX",
    (Sum("sum_dY", "n...->n", "dY"), Sum("sum_dX", "n...->n", "dX")),
)
BIAS = Check(
    "db is the sum of dY over everything but the last axis",
    "db - summed",
    (total("summed", "dY", "...k->k"),),
)
MASKED = Check("Where X was dropped, dX is 0", "np.where(m > 0, 0, dX)")
SMALL = "so a long chain of these layers makes the gradient vanish"


def between(low: float, high: float, sentence: str) -> Check:
    return Check(sentence, f"np.maximum(slope - {high}, 0) + np.maximum({low} - slope, 0)")


def below(zero: str, sentence: str) -> Check:
    return Check(sentence, f"np.where(X < 0, {zero}, 0)")


ACTIVATIONS = {
    "ReLU": Facts(
        "What passes a gate that is closed?",
        L.ReLU,
        ROW,
        (below("dX", "dX is 0 wherever X is negative"), SAME_WORK),
        "Make every number of X negative. What does the layer before this one learn now?",
        mistakes=(("dX", "without the factor `slope`"), ("slope", "the wrong way round")),
    ),
    "LeakyReLU": Facts(
        "How does a small slope keep a unit alive?",
        lambda: L.LeakyReLU(0.1),
        ROW,
        (below("dX - 0.1 * dY", "Where X is negative, dX is a tenth of dY"), SAME_WORK),
        "Compare dX with ReLU's for the same X. Which entries differ, and by how much?",
    ),
    "PReLU": Facts(
        "Can a layer learn how much it leaks?",
        L.PReLU,
        ROW,
        (
            below("dX - alpha * dY", "Where X is negative, dX is alpha dY"),
            Check(
                "dalpha is the sum of dY min(X, 0) over the samples",
                "dalpha - leaks",
                (Sum("leaks", "...d,...d->d", "dY", "below"),),
            ),
        ),
        "For which X is dalpha 0, whatever dY is?",
    ),
    "ELU": Facts(
        "Why is its slope Y + alpha below 0?",
        L.ELU,
        ROW,
        (
            below("slope - (Y + 1)", "Where X is negative, the slope is Y + 1"),
            between(0, 1, "The slope lies between 0 and 1"),
        ),
        "Which value does Y approach as X becomes very negative, and what happens to dX?",
    ),
    "CELU": Facts(
        "How can an exponential continue a straight line without a corner?",
        lambda: L.CELU(0.6),
        ROW,
        (
            below("slope - (Y / 0.6 + 1)", "Where X is negative, the slope is Y / alpha + 1"),
            between(0, 1, "The slope lies between 0 and 1, and it is 1 on both sides of 0"),
        ),
        "Move X across 0 in small steps. Does the slope jump, as ReLU's does?",
    ),
    "SELU": Facts(
        "Which slope keeps the variance of a deep net at 1?",
        L.SELU,
        ROW,
        (
            Check(
                "Where X is positive, dX is 1.0507 dY",
                "np.where(X > 0, dX - 1.0507009873554805 * dY, 0)",
            ),
            below("np.minimum(slope, 0)", "The slope is never negative"),
        ),
        "The slope exceeds 1 where X is positive. What makes up for it on the other side?",
    ),
    "GELU": Facts(
        "Why can a larger x give a smaller y?",
        L.GELU,
        ROW,
        (
            Check("Y is X times a probability between 0 and 1", "Y - X * (1 + E) / 2"),
            between(-0.13, 1.13, "The slope lies between -0.13 and 1.13"),
        ),
        "Find the X at which the slope is 0. Y is smallest there.",
        mistakes=(("slope", "without the term `+ X"), ("slope", "without the term `Φ`")),
    ),
    "SiLU": Facts(
        "What happens when x gates itself?",
        L.SiLU,
        ROW,
        (
            Check("The slope is Y + s (1 - Y)", "slope - (Y + s * (1 - Y))"),
            between(-0.1, 1.1, "The slope lies between -0.1 and 1.1"),
        ),
        "Drag X far to both sides. Which simpler activation does SiLU become?",
        mistakes=(("slope", "without the term `+ X"),),
    ),
    "Mish": Facts(
        "How do three functions in a row pass on a slope?",
        L.Mish,
        ROW,
        (
            Check("Y is X tanh(softplus(X))", "Y - X * np.tanh(u)"),
            between(-0.12, 1.09, "The slope lies between -0.12 and 1.09"),
        ),
        "Which of the three functions decides that the slope is near 0 for a very negative X?",
    ),
    "HardSigmoid": Facts(
        "Where does a ramp stop learning?",
        L.HardSigmoid,
        [[-4.0, -0.7, 0.4, 1.0, 2.5, 3.5]],
        (
            Check("Beyond -3 and 3, dX is 0", "np.where(np.abs(X) > 3, dX, 0)"),
            between(0, 0.16666666666666667, "The slope is at most 1/6"),
        ),
        "Drag a value out of the ramp. When does dX become 0, and can the value come back?",
    ),
    "HardSwish": Facts(
        "How close can a parabola come to SiLU?",
        L.HardSwish,
        [[-4.0, -0.7, 0.4, 1.0, 2.5, 3.5]],
        (
            Check("Below -3, Y and dX are 0", "np.where(X < -3, np.abs(Y) + np.abs(dX), 0)"),
            between(-0.5, 1.5, "The slope lies between -0.5 and 1.5"),
        ),
        "Compare the slope at X = 2.9 and at X = 3.1. Why does it jump?",
    ),
    "HardTanh": Facts(
        "What does clipping do to a gradient?",
        L.HardTanh,
        ROW,
        (
            Check("Where X is clipped, dX is 0", "np.where(np.abs(X) > 1, dX, 0)"),
            between(0, 1, "The slope is 0 or 1"),
        ),
        "Is the gradient at exactly X = 1 that of the line or of the plateau? Try it.",
    ),
    "Sigmoid": Facts(
        "Why does a sure answer learn so slowly?",
        L.Sigmoid,
        ROW,
        (
            Check("The slope follows from Y alone: Y (1 - Y)", "slope - Y * (1 - Y)"),
            between(0, 0.25, f"The slope is at most 1/4, {SMALL}"),
        ),
        "How large is the slope after ten sigmoids at best? Compute 1/4 to the power of ten.",
        mistakes=(("slope", "without the factor `1 - Y"), ("dX", "without the factor `slope`")),
    ),
    "Tanh": Facts(
        "Where does a saturated unit lose its gradient?",
        L.Tanh,
        ROW,
        (
            Check("The slope follows from Y alone: 1 - Y²", "slope - (1 - Y * Y)"),
            between(0, 1, f"The slope is at most 1, {SMALL}"),
        ),
        "Drag a number until its slope is below 0.01. How large is Y there?",
        mistakes=(("slope", "`Y` instead of `Y²`"), ("dX", "without the factor `slope`")),
    ),
    "Softplus": Facts(
        "Which function has the sigmoid as its slope?",
        L.Softplus,
        ROW,
        (
            Check("The slope is 1 - exp(-Y)", "slope - (1 - np.exp(-Y))"),
            between(0, 1, "The slope is a probability, between 0 and 1"),
        ),
        "How far is Y from ReLU's at X = 0? Where is the difference below 0.01?",
    ),
    "Softsign": Facts(
        "What if the slope faded slowly instead of exponentially?",
        L.Softsign,
        ROW,
        (
            Check("The slope is (1 - |Y|)²", "slope - np.square(1 - np.abs(Y))"),
            between(0, 1, "The slope is at most 1"),
        ),
        "Compare the slope at X = 5 with tanh's. Which unit recovers sooner?",
    ),
    "Softmax": Facts(
        "Why does one larger score take from all the others?",
        L.Softmax,
        [[2.0, 1.0, 0.1, -1.0]],
        (
            Check("Y sums to 1", "sum_Y - 1", (total("sum_Y", "Y", "...k->...1"),)),
            Check(
                "dX sums to 0: adding a constant to X changes nothing",
                "sum_dX",
                (total("sum_dX", "dX", "...k->...1"),),
            ),
        ),
        "Set all entries of dY to the same number. Why is dX 0?",
        shown=("direct", "through_total"),
        mistakes=(("dX", "without the term `- through_total"), ("direct", "without the factor `Y")),
    ),
    "LogSoftmax": Facts(
        "Where does p - y come from?",
        L.LogSoftmax,
        [[2.0, 1.0, 0.1, -1.0]],
        (
            Check(
                "The exponentials of Y sum to 1",
                "sum_p - 1",
                (Let("p", "np.exp(Y)"), total("sum_p", "p", "...k->...1")),
            ),
            Check("dX sums to 0", "sum_dX", (total("sum_dX", "dX", "...k->...1"),)),
        ),
        "Set dY to -1 at one class and to 0 elsewhere. What is dX?",
        shown=("slope",),
        mistakes=(("dX", "without the term `- slope"), ("dX", "without the factor `s`")),
    ),
}

DENSE = {
    "Dense": Facts(
        "Which sample is to blame for a weight's gradient?",
        lambda: L.Dense(3, 2),
        [[1.0, -2.0, 0.5], [0.3, 0.8, -1.0], [-1.5, 0.4, 2.0], [0.2, -0.6, 1.1]],
        (
            BIAS,
            Check(
                "The sum of W dW equals the sum of (Y - b) dY",
                "along_W - along_out",
                (
                    Sum("along_W", "ij,ij->", "W", "dW"),
                    Let("out", "Y - b"),
                    Sum("along_out", "nj,nj->", "out", "dY"),
                ),
            ),
        ),
        "Set one row of dY to 0. Which terms does dW lose, and which row of dX becomes 0?",
        mistakes=(("dW", "as a mean"), ("dW", "without the factor `X"), ("db", "as a mean")),
        blank=("db", 0),
    ),
    "LowRank": Facts(
        "How few numbers can move a whole matrix?",
        lambda: L.LowRank(3, 2),
        (3, 4),
        (SAME_WORK,),
        "Set B to 0, as training starts. Which of dA and dB is 0 then?",
    ),
    "TiedDense": Facts(
        "Can one matrix read tokens and write scores?",
        lambda: L.TiedDense(embedding(4, 3)),
        (2, 3),
        (SAME_WORK,),
        "Which row of dW does a single entry of dY change?",
    ),
    "Lambda": Facts(
        "How does a function of your own join the chain?",
        lambda: L.Lambda(cube, cube_gradient),
        [[-1.0, 0.5, 2.0]],
        (Check("The function is x³, so dX is 3 X² dY", "dX - 3 * X * X * dY"),),
        "Which gradient does the function exp(x) need?",
    ),
}
SHAPES = {
    "Flatten": Facts(
        "What is the gradient of a change of shape?",
        L.Flatten,
        (1, 2, 3),
        (MOVED, SAME_WORK),
        "Which cell of dX is the fourth entry of dY?",
    ),
    "Reshape": Facts(
        "Why does a reshape cost nothing on the way back?",
        lambda: L.Reshape(3, 2),
        (1, 6),
        (MOVED, SAME_WORK),
        "Is the same true of a transpose? Compare with Permute.",
    ),
    "Permute": Facts(
        "Which permutation undoes a permutation?",
        lambda: L.Permute(2, 1),
        (1, 2, 3),
        (MOVED, SAME_WORK),
        "With Permute(3, 1, 2), which order does the backward pass need?",
    ),
    "Select": Facts(
        "What arrives at a column that is used twice?",
        lambda: L.Select([2, 0, 2]),
        (2, 3),
        (MOVED, SAME_WORK),
        "Which column of dX is always 0 here, and why?",
    ),
}
CONVOLUTIONS = {
    "Conv1D": Facts(
        "How many steps share one weight?",
        lambda: L.Conv1D(1, 3),
        (1, 6, 1),
        (BIAS,),
        "Which entries of dX change when you drag the first dY?",
        mistakes=(("dW", "as a mean"), ("dX", "reversed along i")),
    ),
    "Conv2D": Facts(
        "How does one weight learn from every window?",
        lambda: L.Conv2D(1, 2),
        (1, 4, 4, 1),
        (BIAS,),
        "Drag a corner of X, then a cell in the middle. How many cells of Y follow each?",
        mistakes=(("dX", "reversed along i and j"), ("dX", "with = instead"), ("dW", "as a mean")),
        blank=("db", 0),
    ),
    "ConvTranspose1D": Facts(
        "What if forward and backward of a convolution changed places?",
        lambda: L.ConvTranspose1D(1, 3, stride=2),
        (1, 3, 1),
        (BIAS,),
        "Which cells of Y does one cell of X write to?",
    ),
    "ConvTranspose2D": Facts(
        "How does a small image become a large one that can learn?",
        lambda: L.ConvTranspose2D(1, 2, stride=2),
        (1, 2, 2, 1),
        (BIAS,),
        "With stride 2 and a 2 x 2 kernel, no windows overlap. What changes with a 3 x 3 kernel?",
    ),
    "DepthwiseConv2D": Facts(
        "What is saved when channels do not mix?",
        lambda: L.DepthwiseConv2D(2),
        (1, 3, 3, 2),
        (BIAS,),
        "Drag a cell of the first channel. Does the second channel of Y or dW follow?",
    ),
}
POOLING = {
    "MaxPool1D": Facts(
        "Who gets the gradient when only one wins?",
        lambda: L.MaxPool1D(2),
        [[[0.5], [1.5], [-1.0], [-0.2], [2.0], [0.3]]],
        (MOVED, SAME_WORK),
        "Drag a loser until it wins. When does dX jump?",
        blank=("dX", 0),
    ),
    "MaxPool2D": Facts(
        "Why do three of four pixels receive no gradient?",
        lambda: L.MaxPool2D(2),
        (1, 4, 4, 1),
        (MOVED, SAME_WORK),
        "Drag a pixel past the largest of its window and watch where dX goes.",
        mistakes=(("passed", "without the condition"), ("passed", "the wrong way round")),
    ),
    "AvgPool1D": Facts(
        "How is a gradient shared out fairly?",
        lambda: L.AvgPool1D(2),
        (1, 6, 1),
        (MOVED, SAME_WORK),
        "What does each step of a window of 3 receive?",
        mistakes=(("g", "without the factor `share"),),
    ),
    "AvgPool2D": Facts(
        "Why does every pixel of a window receive the same gradient?",
        lambda: L.AvgPool2D(2),
        (1, 4, 4, 1),
        (MOVED, SAME_WORK),
        "Change X. Why does dX stay as it is?",
        mistakes=(("g", "without the factor `share"),),
    ),
    "GlobalAvgPool": Facts(
        "What is left of a place in an image after a mean?",
        L.GlobalAvgPool,
        (1, 4, 2),
        (MOVED, SAME_WORK),
        "Swap two steps of X. Does Y change? Does dX?",
        mistakes=(("g", "without the division"),),
    ),
    "GlobalMaxPool": Facts(
        "Which step speaks for the whole sequence?",
        L.GlobalMaxPool,
        (1, 4, 2),
        (MOVED, SAME_WORK),
        "How many numbers of dX can differ from 0?",
        mistakes=(("dX", "without the condition"), ("dX", "the wrong way round")),
    ),
    "Upsample2D": Facts(
        "What does a pixel receive from its copies?",
        lambda: L.Upsample2D(2),
        (1, 2, 2, 1),
        (MOVED,),
        "Why is the sum of Y dY not the sum of a single copy times X?",
    ),
    "ZeroPad2D": Facts(
        "Where does the gradient of a border go?",
        lambda: L.ZeroPad2D(1),
        (1, 2, 2, 1),
        (SAME_WORK,),
        "Drag a number of dY on the border. Why does nothing happen?",
    ),
}
MODEL = (
    Let("way_direct", "r * g", "directly"),
    Let("way_mean", "0 * g - r * through_mu", "through the mean"),
    Let("way_r", "0 - r * through_r", "through r"),
)
NORMS = {
    "LayerNorm": Facts(
        "Why does shifting x change nothing?",
        L.LayerNorm,
        [[1.0, 3.0, -1.0, 0.5]],
        (
            Check("dX sums to 0 along the row", "row_sum", (total("row_sum", "dX"),)),
            Check(
                "dX is orthogonal to X̂, up to eps",
                "across",
                (Sum("across", "...d,...d->...1", "dX", "X_hat"),),
                1e-3,
            ),
            Check("The three ways add up to dX", "dX - way_direct - way_mean - way_r"),
        ),
        "Add 1 to every number of X, one after the other. What has changed in Y at the end?",
        shown=("X_hat", "g", "way_direct", "way_mean", "way_r"),
        extra=MODEL,
        mistakes=(
            ("dX", "without the term `- through_mu"),
            ("dX", "without the term `- through_r"),
            ("g", "without the factor `\u03b3"),
        ),
    ),
    "RMSNorm": Facts(
        "What is left of LayerNorm without the mean?",
        L.RMSNorm,
        [[1.0, 3.0, -1.0, 0.5]],
        (
            Check(
                "dX is orthogonal to X, up to eps: rescaling X changes nothing",
                "across",
                (Sum("across", "...d,...d->...1", "dX", "X"),),
                1e-3,
            ),
            Check(
                "The sum of gamma dgamma equals the sum of Y dY",
                "of_gamma - of_Y",
                (Sum("of_gamma", "d,d->", "gamma", "dgamma"), Sum("of_Y", "...,...->", "Y", "dY")),
            ),
        ),
        "Add 1 to every number of X. Why does Y change here, and not in LayerNorm?",
        shown=("g", "through_r"),
        mistakes=(("dX", "without the term `- through_r"), ("dX", "without the factor `r`")),
    ),
    "BatchNorm": Facts(
        "Why does your gradient depend on the other samples?",
        L.BatchNorm,
        [[1.0, 0.2], [3.0, -0.5], [-1.0, 1.5], [0.5, 0.9]],
        (
            Check(
                "Each column of dX sums to 0: shifting a feature in all samples changes nothing",
                "column_sum",
                (total("column_sum", "dX", "...d->d"),),
            ),
            Check(
                "dbeta is the column sum of dY",
                "dbeta - columns",
                (total("columns", "dY", "nd->d"),),
            ),
        ),
        "Drag one number of one sample. Which rows of Y and dX follow, and which columns stay?",
        shown=("X_hat",),
        mistakes=(
            ("dX", "without the term `- through_mu"),
            ("dX", "without the term `- through_r"),
            ("dX", "without the factor `r`"),
        ),
    ),
    "GroupNorm": Facts(
        "Which channels should share a mean?",
        lambda: L.GroupNorm(2),
        (1, 2, 4),
        (
            Check(
                "dX sums to 0 within each group",
                "group_sum",
                (total("group_sum", "dG", "npgc->n1g1"),),
            ),
        ),
        "Drag a number of the first group. Does anything in the second one move?",
        mistakes=(
            ("dG", "without the term `- through_mu"),
            ("dG", "without the term `- through_r"),
        ),
    ),
    "InstanceNorm": Facts(
        "What remains of an image without its contrast?",
        L.InstanceNorm,
        (1, 4, 2),
        (
            Check(
                "dX sums to 0 within each channel of a sample",
                "group_sum",
                (total("group_sum", "dG", "npgc->n1g1"),),
            ),
        ),
        "Multiply one channel of X by 10, number by number. What happens to Y?",
        mistakes=(
            ("dG", "without the term `- through_mu"),
            ("dG", "without the term `- through_r"),
        ),
    ),
}
RANDOM = {
    "Dropout": Facts(
        "Must the backward pass drop the same units?",
        lambda: L.Dropout(0.5),
        (1, 6),
        (MASKED, SAME_WORK),
        "Why are the kept numbers doubled?",
        blank=("dX", 0),
        shown=("m",),
        mistakes=(("dX", "without the factor `m`"),),
    ),
    "SpatialDropout": Facts(
        "What is dropped when neighbours say the same?",
        lambda: L.SpatialDropout(0.5),
        (1, 3, 4),
        (MASKED, SAME_WORK),
        "Which axis does a column of zeros run along, and why?",
        shown=("m",),
        mistakes=(("dX", "without the factor `m`"),),
    ),
    "GaussianNoise": Facts(
        "Does noise change the gradient?",
        lambda: L.GaussianNoise(std=0.5),
        (1, 5),
        (COPIED,),
        "Why does the layer after this one get another gradient all the same?",
        shown=("e",),
    ),
    "Reparameterize": Facts(
        "How can you differentiate through a random draw?",
        L.Reparameterize,
        (1, 4),
        (
            Check("The means receive dY unchanged", "dM - dY"),
            Check("The log variances receive dY (Y - M) / 2", "dS - dY * (Y - M) / 2"),
        ),
        "What happens to the gradient of the log variance where the draw e is near 0?",
        shown=("e",),
        mistakes=(("dS", "without the factor `e`"), ("dS", "without the division by `2`")),
    ),
    "RandomFlip": Facts(
        "Which way does the gradient of a mirror image go?",
        L.RandomFlip,
        (2, 2, 3, 1),
        (MOVED, SAME_WORK),
        "Which of the two images was mirrored? Find it by dragging one pixel.",
    ),
    "RandomCrop": Facts(
        "Which gradient do pixels outside the window receive?",
        lambda: L.RandomCrop(2),
        (1, 3, 3, 1),
        (MOVED, SAME_WORK),
        "Drag a pixel of X that is not in Y. What does its dX say?",
    ),
    "RandomShift": Facts(
        "What happens to a pixel that is moved out of the picture?",
        lambda: L.RandomShift(1),
        (1, 3, 3, 1),
        (SAME_WORK,),
        "How far was the image moved? Read it from dX.",
    ),
}
LAST_LINEAR = Check(
    "The last layer is linear: the sum of Y dY equals the sum of Y_0 dY_0",
    "along_Y - along_Y_0",
    (ALONG[0], Sum("along_Y_0", "n...,n...->n", "Y_0", "dY_0")),
)
TIME = Check(
    "db is the sum of da over samples and steps",
    "db - sums",
    (total("sums", "da_t", "ntg->g"),),
)
SEQUENCES = {
    "RNN": Facts(
        "Why does an error from long ago fade?",
        lambda: L.RNN(2),
        (1, 3, 2),
        (
            TIME,
            Check(
                "No slope of tanh is above 1: |da| is at most |dh|",
                "np.maximum(np.abs(da_t) - np.abs(dh_t), 0)",
            ),
        ),
        "Set dY to 0 at all steps but the last. How large is dX at the first step?",
        shown=("dh_t",),
        mistakes=(("dh_t", "without the term `+ dh_later"), ("da_t", "without the factor `1")),
    ),
    "LSTM": Facts(
        "What keeps a gradient alive over time?",
        lambda: L.LSTM(2),
        (1, 3, 2),
        (TIME, Check("What c passes back is dc times the forget gate", "dc_prev - dc_t * f_t")),
        "Find the numbers of b that open the forget gates, and raise them. What happens to dc?",
        shown=("f_t", "c_t", "dc_t", "dh_t"),
        mistakes=(
            ("dc_t", "without the term `dc_later`"),
            ("dh_t", "without the term `+ dh_later"),
            ("dc_prev", "without the factor `f"),
        ),
    ),
    "GRU": Facts(
        "Can one gate both keep and forget?",
        lambda: L.GRU(2),
        (1, 3, 2),
        (
            TIME,
            Check(
                "Each new h lies between the candidate and the old h",
                "h_t - (n_t + z_t * (h_prev - n_t))",
            ),
        ),
        "With z near 1, which way does the gradient take back through time?",
        shown=("z_t", "h_t", "dh_t"),
        mistakes=(("dh_prev", "without the term `+ "), ("dr_t", "without the factor `u")),
    ),
    "Bidirectional": Facts(
        "How can a step learn from its future?",
        lambda: L.Bidirectional(L.RNN(1)),
        (1, 3, 2),
        (Check("dX is what both directions pass on", "dX - dX_forward - dX_reverse"),),
        "Drag dY at the middle step. Why do both ends of dX move?",
        shown=("dX_forward", "dX_reverse"),
        mistakes=(("dX", "without the term `+ "), ("dX", "without the term `dX")),
    ),
}
ATTENTION = {
    "ScaledDotProductAttention": Facts(
        "How does a gradient choose where to look?",
        lambda: L.ScaledDotProductAttention(1),
        (1, 3, 6),
        (
            Check("Each row of P sums to 1", "row_P - 1", (total("row_P", "P", "nhqk->nhq1"),)),
            Check("Each row of dS sums to 0", "row_dS", (total("row_dS", "dS", "nhqk->nhq1"),)),
        ),
        "Make one key similar to a query. Which row of P changes, and whose dV grows?",
        shown=("P", "dP", "dS"),
        mistakes=(
            ("dQK", "without the division"),
            ("dS", "without the term `- s"),
            ("dS", "without the factor `P"),
        ),
    ),
    "MultiHeadAttention": Facts(
        "Who looks at whom, and what do they learn from it?",
        lambda: L.MultiHeadAttention(2),
        (1, 3, 4),
        (
            Check("Each row of P sums to 1", "row_P - 1", (total("row_P", "P", "nhqk->nhq1"),)),
            Check("Each row of dS sums to 0", "row_dS", (total("row_dS", "dS", "nhqk->nhq1"),)),
        ),
        "Set dY to 0 except at the first position. Which rows of dS are 0?",
        shown=("P", "dP", "dS"),
        mistakes=(
            ("dQK", "without the division"),
            ("dS", "without the term `- s"),
            ("dV", "without the factor `P"),
        ),
    ),
    "FeedForward": Facts(
        "What does a transformer do at each position alone?",
        lambda: L.FeedForward(3, "relu"),
        (1, 2, 3),
        (Check("Where ReLU returned 0, no gradient passes", "np.where(Y_1 > 0, 0, dY_0)"),),
        "Drag a number of the first position. Does the second row of Y follow?",
        shown=("Y_0", "Y_1", "dY_1", "dY_0"),
    ),
    "SwiGLU": Facts(
        "What if one half of a layer gates the other?",
        lambda: L.SwiGLU(3),
        (1, 3),
        (LAST_LINEAR,),
        "Find a number of X that changes every entry of dX. Why do all of them move?",
        shown=("Y_0", "dY_0"),
    ),
    "GEGLU": Facts(
        "Does it matter which curve the gate has?",
        lambda: L.GEGLU(3),
        (1, 3),
        (LAST_LINEAR,),
        "Compare with SwiGLU for the same X. Which entries of Y differ most?",
        shown=("Y_0", "dY_0"),
    ),
    "TransformerBlock": Facts(
        "Which way back is never blocked?",
        lambda: L.TransformerBlock(1, mlp_ratio=1),
        (1, 2, 4),
        (
            Check(
                "Attention comes after a LayerNorm: what its path adds to dX sums to 0 along a row",
                "row_sum",
                (Let("by_attention", "dX - dY_0"), total("row_sum", "by_attention")),
            ),
            Check(
                "The same is true of what the second path adds to dY_0",
                "row_sum_0",
                (Let("by_mlp", "dY_0 - dY"), total("row_sum_0", "by_mlp")),
            ),
        ),
        "Which layers inside mix positions, and which work on each position alone?",
        shown=("Y_0", "dY_0"),
    ),
}
TOKENS = {
    "Embedding": Facts(
        "What is the gradient of looking up a row?",
        lambda: L.Embedding(4, 3),
        [[2, 0, 2]],
        (
            Check(
                "dW has the column sums of dY: each dY is added to the row of its token",
                "sum_dW - sum_dY",
                (total("sum_dW", "dW", "vd->d"), total("sum_dY", "dY", "...d->d")),
            ),
        ),
        "Token 2 appears twice. What does its row of dW hold?",
        blank=("dW", 0),
        tokens=4,
        mistakes=(("dW", "as a mean"),),
    ),
    "PositionalEmbedding": Facts(
        "Who learns where a token stands?",
        lambda: L.PositionalEmbedding(4),
        (2, 3, 2),
        (COPIED,),
        "Position 3 does not occur here. What is its row of dW?",
        blank=("dW", 0),
    ),
    "SinusoidalEncoding": Facts(
        "What can be added that needs no gradient?",
        L.SinusoidalEncoding,
        (1, 3, 4),
        (COPIED,),
        "Which columns of what is added change fastest with the position?",
        shown=("e",),
    ),
    "RotaryEmbedding": Facts(
        "Why does a rotation turn the gradient back?",
        L.RotaryEmbedding,
        (1, 3, 2),
        (
            SAME_WORK,
            Check(
                "A rotation changes no length: dX is as long as dY",
                "long_X - long_Y",
                (
                    Sum("long_X", "ntd,ntd->nt", "dX", "dX"),
                    Sum("long_Y", "ntd,ntd->nt", "dY", "dY"),
                ),
            ),
        ),
        "Position 0 is not turned. By which angle is position 2 turned here?",
        mistakes=(("dX", "with `+ "), ("dX", "without the term `- ")),
    ),
}
CONTAINERS = {
    "Chain": Facts(
        "Why do slopes multiply?",
        lambda: L.Chain(L.Dense(2), L.Tanh(), L.Dense(1)),
        (2, 3),
        (Check("tanh keeps the sign: dY_0 has the sign of dY_1", "np.minimum(dY_0 * dY_1, 0)"),),
        "Drag X until a unit of tanh is near 1. What becomes of its dY_0?",
        shown=("Y_0", "Y_1", "dY_1", "dY_0"),
    ),
    "Residual": Facts(
        "Why does a gradient need a short way home?",
        lambda: L.Residual(L.Dense(3), L.Tanh()),
        (1, 3),
        (Check("dX is dY, plus what comes through the layers", "dX - dY - dF"),),
        "Drag X until tanh is saturated. What is left of dX?",
        shown=("F", "dF"),
        mistakes=(("dX", "without the term `+ dF"), ("dX", "without the term `dY")),
    ),
    "SkipConcat": Facts(
        "How do two copies of x share one gradient?",
        lambda: L.SkipConcat(L.Dense(2), L.Tanh()),
        (1, 3),
        (
            Check(
                "dX is what arrives directly, plus what comes through the layers",
                "dX - direct - through_F",
            ),
        ),
        "Which numbers of dY reach dX without meeting a weight?",
        shown=("direct", "through_F"),
        mistakes=(("dX", "without the term `+ "), ("dX", "without the term `direct")),
    ),
    "Parallel": Facts(
        "Why do gradients of two paths add up?",
        lambda: L.Parallel(L.Dense(2), L.Dense(2), merge="add"),
        (1, 3),
        (Check("dX is the sum of what the branches pass on", "dX - dX_0 - dX_1"),),
        "Both branches receive the same dY. Why do they learn different things?",
        shown=("Y_0", "Y_1", "dX_0", "dX_1"),
        mistakes=(("dX", "without the term `+ "), ("dX", "without the term `dX")),
    ),
    "TimeDistributed": Facts(
        "How does one layer serve every step?",
        lambda: L.TimeDistributed(L.Dense(2)),
        (1, 3, 2),
        (
            Check(
                "dX is what the layer inside passes on, in the shape of X",
                "sum_dX - sum_rows",
                (Sum("sum_dX", "ntd->d", "dX"), Sum("sum_rows", "rd->d", "dX_rows")),
            ),
        ),
        "Drag dY at one step. Which steps of dX follow?",
        shown=("dX_rows",),
    ),
}
KINDS: dict[str, dict[str, Facts]] = {
    "Dense": DENSE,
    "Activations": ACTIVATIONS,
    "Convolutions": CONVOLUTIONS,
    "Pooling and resizing": POOLING,
    "Norms": NORMS,
    "Sequences": SEQUENCES,
    "Attention": ATTENTION,
    "Tokens and positions": TOKENS,
    "Randomness": RANDOM,
    "Shapes": SHAPES,
    "Containers": CONTAINERS,
}
FACTS = {name: facts for kind in KINDS.values() for name, facts in kind.items()}
ALIASES = {"Swish": "SiLU"}


def example(facts: Facts) -> tuple[L.Layer, Any, Any]:
    """The built layer with parameters of one decimal, X and dY."""
    rng = np.random.default_rng(3)
    shaped = isinstance(facts.X, tuple)
    X = rng.normal(size=facts.X).round(1) if shaped else np.array(facts.X)
    layer = facts.make()
    layer.build(X.shape[1:], seed=4, dtype=np.float64)  # drops some numbers, and keeps some
    layer.set_weights(
        {
            path: (0.4 + np.abs(rng.normal(0.5, 0.5, A.shape)) if "var" in path or "gamma" in path
                   else rng.normal(0, 0.8, A.shape)).round(1)
            for path, A in layer.get_weights().items()
        }
    )  # fmt: skip
    dY = rng.normal(size=(len(X), *(layer.output_shape or ()))).round(1)
    return layer, X, dY
