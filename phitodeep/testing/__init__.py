"""Are the gradients true? Every number is moved a little, and the slope compared with `backward`.

    check_gradients(Dense(3, 4), X)                a layer or a model, against a random dY
    check_gradients(model, X, y)                   a model with its loss
    check_gradients(MeanSquaredError(), P, y)      a loss

A wrong gradient raises `GradientError`, which says where, by how much, and what it looks like:
the tables of diagnoses.py hold what is recognised.
"""

from phitodeep.testing.check import check_gradients
from phitodeep.testing.report import GradientEntry, GradientError, GradientReport
from phitodeep.testing.slopes import numeric_gradient

__all__ = [
    "GradientEntry",
    "GradientError",
    "GradientReport",
    "check_gradients",
    "numeric_gradient",
]
