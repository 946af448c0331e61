"""Gradient checking: compare the result of `backward` with central differences.

    check_gradients(Dense(3, 4), X)                a layer or a model, with a random dY
    check_gradients(model, X, y)                   a model with its loss
    check_gradients(MeanSquaredError(), P, y)      a loss

A wrong gradient raises `GradientError`, which reports where the gradient is wrong, by how much, and
the likely cause. The tables in diagnoses.py list the causes that are recognised.

    verify()                                       all of phitodeep, on this machine
    derive("Y = X * sigmoid(beta * X)", ...)       the layer that a formula is

`verify` runs such checks of every layer and loss, and compares layers, losses and optimizers with
numbers that PyTorch computed.
"""

from phitodeep.testing.check import check_gradients
from phitodeep.testing.derived import Derived, derive
from phitodeep.testing.report import GradientEntry, GradientError, GradientReport
from phitodeep.testing.slopes import numeric_gradient
from phitodeep.testing.verification import Verification, verify

__all__ = [
    "Derived", "GradientEntry", "GradientError", "GradientReport", "Verification",
    "check_gradients", "derive", "numeric_gradient", "verify",
]  # fmt: skip
