"""Losses: a number to make small, and exactly its derivative by the predictions.

Every loss is a weighted mean: the sum over all terms, divided by `total`. Regression and binary
losses have a term for each element, cross-entropies and losses of rows one for each position (a
prediction without its last axis). A sample's weight multiplies its terms and counts in the
divisor as often. `total` replaces the divisor, so that parts of a batch add up to the whole.
"""

from phitodeep.loss.base import Elementwise, Loss
from phitodeep.loss.binary import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    Hinge,
    SquaredHinge,
)
from phitodeep.loss.categorical import (
    CategoricalCrossEntropy,
    NegativeLogLikelihood,
    SoftmaxCrossEntropy,
)
from phitodeep.loss.divergence import KLDivergence, NegativeELBO
from phitodeep.loss.regression import (
    CosineSimilarityLoss,
    Huber,
    LogCosh,
    MeanAbsoluteError,
    MeanSquaredError,
    PoissonNLL,
)

__all__ = [
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
    "CategoricalCrossEntropy",
    "CosineSimilarityLoss",
    "Elementwise",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "NegativeELBO",
    "NegativeLogLikelihood",
    "PoissonNLL",
    "SoftmaxCrossEntropy",
    "SquaredHinge",
]
