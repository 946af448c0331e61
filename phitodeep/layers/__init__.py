"""The catalogue of layers."""

from phitodeep.layers import activation as activation
from phitodeep.layers import base as base
from phitodeep.layers.activation import (
    CELU,
    ELU,
    GELU,
    SELU,
    HardSigmoid,
    HardSwish,
    HardTanh,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Swish,
    Tanh,
)
from phitodeep.layers.base import Layer, Param, State
from phitodeep.layers.containers import Chain, Parallel, Residual
from phitodeep.layers.dense import Dense
from phitodeep.layers.normalization import BatchNorm, LayerNorm
from phitodeep.layers.regularization import Dropout, GaussianNoise
from phitodeep.layers.reshape import Flatten, Reshape

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "SELU",
    "BatchNorm",
    "Chain",
    "Dense",
    "Dropout",
    "Flatten",
    "GaussianNoise",
    "HardSigmoid",
    "HardSwish",
    "HardTanh",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "Parallel",
    "Param",
    "ReLU",
    "Reshape",
    "Residual",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "State",
    "Swish",
    "Tanh",
]

base.Dense = Dense  # type: ignore[attr-defined]  # where readers of the original find them
base.Flatten = Flatten  # type: ignore[attr-defined]
