"""phitodeep: deep learning in Python and NumPy, with hand-derived backward passes.

Everything is imported when it is first used, so that `import phitodeep` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phitodeep.version import __version__ as __version__

if TYPE_CHECKING:
    from phitodeep.builder import SequentialBuilder as SequentialBuilder
    from phitodeep.config import register as register
    from phitodeep.errors import PhitodeepError as PhitodeepError
    from phitodeep.errors import PhitodeepWarning as PhitodeepWarning
    from phitodeep.layers import *
    from phitodeep.layers.base import Layer as Layer
    from phitodeep.layers.base import Param as Param
    from phitodeep.layers.base import State as State
    from phitodeep.layers.call import Call as Call
    from phitodeep.layers.call import Event as Event
    from phitodeep.layers.call import inference as inference
    from phitodeep.layers.call import saliency as saliency
    from phitodeep.layers.call import watching as watching
    from phitodeep.loss import *
    from phitodeep.optimization.optimizers import *
    from phitodeep.sequential import Sequential as Sequential
    from phitodeep.sequential import load as load
    from phitodeep.testing.check import check_gradients as check_gradients
    from phitodeep.threads import get_threads as get_threads
    from phitodeep.threads import set_threads as set_threads

_LAYERS = (
    "AvgPool1D AvgPool2D BatchNorm Bidirectional CELU Chain Conv1D Conv2D ConvTranspose1D "
    "ConvTranspose2D Dense DepthwiseConv2D Dropout ELU Embedding FeedForward Flatten GELU "
    "GEGLU GRU GaussianNoise GlobalAvgPool GlobalMaxPool GroupNorm HardSigmoid HardSwish "
    "HardTanh InstanceNorm LSTM Lambda LayerNorm LeakyReLU LogSoftmax LowRank MaxPool1D MaxPool2D "
    "Mish MultiHeadAttention PReLU Parallel Permute PositionalEmbedding RMSNorm RNN "
    "RandomCrop RandomFlip RandomShift ReLU Reparameterize Reshape Residual "
    "RotaryEmbedding SELU ScaledDotProductAttention Select SiLU Sigmoid SinusoidalEncoding "
    "SkipConcat Softmax Softplus Softsign SpatialDropout SwiGLU Swish Tanh TiedDense "
    "TimeDistributed TransformerBlock Upsample2D ZeroPad2D"
)
_LOSSES = (
    "BinaryCrossEntropy BinaryCrossEntropyWithLogits CategoricalCrossEntropy "
    "CosineSimilarityLoss Hinge Huber KLDivergence LogCosh Loss MeanAbsoluteError "
    "MeanSquaredError NegativeELBO NegativeLogLikelihood PoissonNLL SoftmaxCrossEntropy "
    "SquaredHinge"
)
_OPTIMIZERS = "Adadelta Adagrad Adam AdamW LBFGS Lion Muon Nadam Optimizer RMSProp SGD"
_HOME = {
    **dict.fromkeys(_LAYERS.split(), "layers"),
    **dict.fromkeys(_LOSSES.split(), "loss"),
    **dict.fromkeys(_OPTIMIZERS.split(), "optimization.optimizers"),
    "register": "config",
    "PhitodeepError": "errors",
    "PhitodeepWarning": "errors",
    "Layer": "layers.base",
    "Param": "layers.base",
    "State": "layers.base",
    "Call": "layers.call",
    "Event": "layers.call",
    "inference": "layers.call",
    "saliency": "layers.call",
    "watching": "layers.call",
    "Sequential": "sequential",
    "load": "sequential",
    "SequentialBuilder": "builder",
    "check_gradients": "testing.check",
    "get_threads": "threads",
    "set_threads": "threads",
}
_MODULES = (
    "config",
    "data",
    "distributed",
    "errors",
    "functional",
    "initialization",
    "inspect",
    "io",
    "kernels",
    "layers",
    "loss",
    "metrics",
    "model",
    "models",
    "optimization",
    "plots",
    "rotary",
    "sklearn",
    "teach",
    "testing",
    "text",
    "threads",
    "training",
)
_MOVED = ("fusion", "generation")  # old import paths
__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _MOVED:
        return importlib.import_module(f"phitodeep.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"phitodeep.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'phitodeep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
