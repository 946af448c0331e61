"""All public layers."""

from phitodeep.layers import activation as activation
from phitodeep.layers import base as base
from phitodeep.layers import pde as pde
from phitodeep.layers.activation import *
from phitodeep.layers.attention import *
from phitodeep.layers.base import *
from phitodeep.layers.containers import *
from phitodeep.layers.convolution import *
from phitodeep.layers.dense import *
from phitodeep.layers.embedding import *
from phitodeep.layers.images import *
from phitodeep.layers.lora import *
from phitodeep.layers.merging import *
from phitodeep.layers.normalization import *
from phitodeep.layers.pooling import *
from phitodeep.layers.recurrent import *
from phitodeep.layers.regularization import *
from phitodeep.layers.reshape import *
from phitodeep.layers.tying import *
from phitodeep.layers.wiring import *

# Type checkers follow the stars.
globals()["__all__"] = sorted(name for name, value in vars().items() if isinstance(value, type))

base.Dense = Dense  # type: ignore[attr-defined]  # import paths of phitodeep 0.2.3
base.Flatten = Flatten  # type: ignore[attr-defined]
