"""All public layers."""

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
from phitodeep.layers.attention import (
    GEGLU,
    FeedForward,
    MultiHeadAttention,
    SwiGLU,
    TransformerBlock,
)
from phitodeep.layers.augmentation import RandomCrop, RandomFlip, RandomShift
from phitodeep.layers.base import Layer, Param, State
from phitodeep.layers.containers import Chain, Parallel, Residual, SkipConcat, TimeDistributed
from phitodeep.layers.convolution import (
    Conv1D,
    Conv2D,
    ConvTranspose1D,
    ConvTranspose2D,
    DepthwiseConv2D,
)
from phitodeep.layers.dense import Dense
from phitodeep.layers.dot_product import ScaledDotProductAttention
from phitodeep.layers.embedding import (
    Embedding,
    PositionalEmbedding,
    RotaryEmbedding,
    SinusoidalEncoding,
)
from phitodeep.layers.lora import LowRank
from phitodeep.layers.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from phitodeep.layers.pooling import (
    AvgPool1D,
    AvgPool2D,
    GlobalAvgPool,
    GlobalMaxPool,
    MaxPool1D,
    MaxPool2D,
    Upsample2D,
    ZeroPad2D,
)
from phitodeep.layers.recurrent import GRU, LSTM, RNN, Bidirectional
from phitodeep.layers.regularization import Dropout, GaussianNoise, Reparameterize, SpatialDropout
from phitodeep.layers.reshape import Flatten, Permute, Reshape, Select
from phitodeep.layers.tying import Lambda, TiedDense

__all__ = [
    "CELU", "ELU", "GEGLU", "GELU", "GRU", "LSTM", "RNN", "SELU", "AvgPool1D", "AvgPool2D",
    "BatchNorm", "Bidirectional", "Chain", "Conv1D", "Conv2D", "ConvTranspose1D",
    "ConvTranspose2D", "Dense", "DepthwiseConv2D", "Dropout", "Embedding", "FeedForward",
    "Flatten", "GaussianNoise", "GlobalAvgPool", "GlobalMaxPool", "GroupNorm", "HardSigmoid",
    "HardSwish", "HardTanh", "InstanceNorm", "Lambda", "Layer", "LayerNorm", "LeakyReLU",
    "LogSoftmax", "LowRank", "MaxPool1D", "MaxPool2D", "Mish", "MultiHeadAttention", "PReLU",
    "Parallel", "Param", "Permute", "PositionalEmbedding", "RMSNorm", "RandomCrop", "RandomFlip",
    "RandomShift", "ReLU", "Reparameterize", "Reshape", "Residual", "RotaryEmbedding",
    "ScaledDotProductAttention", "Select", "SiLU", "Sigmoid", "SinusoidalEncoding", "SkipConcat",
    "Softmax", "Softplus", "Softsign", "SpatialDropout", "State", "SwiGLU", "Swish", "Tanh",
    "TiedDense", "TimeDistributed", "TransformerBlock", "Upsample2D", "ZeroPad2D",
]  # fmt: skip

base.Dense = Dense  # type: ignore[attr-defined]  # import paths of phitodeep 0.2.3
base.Flatten = Flatten  # type: ignore[attr-defined]
