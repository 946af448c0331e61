"""phitodeep: deep learning in Python and NumPy, with hand-derived backward passes.

Everything is imported when it is first used, so that `import phitodeep` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phitodeep.config import register as register
    from phitodeep.errors import PhitodeepError as PhitodeepError
    from phitodeep.errors import PhitodeepWarning as PhitodeepWarning
    from phitodeep.layers.base import Call as Call
    from phitodeep.layers.base import Event as Event
    from phitodeep.layers.base import Layer as Layer
    from phitodeep.layers.base import Param as Param
    from phitodeep.layers.base import State as State
    from phitodeep.layers.base import inference as inference
    from phitodeep.layers.base import saliency as saliency
    from phitodeep.layers.base import watching as watching
    from phitodeep.model import Sequential as Sequential
    from phitodeep.model import SequentialBuilder as SequentialBuilder
    from phitodeep.testing.check import check_gradients as check_gradients

__version__ = "0.3.0"

_HOME = {
    "register": "config",
    "PhitodeepError": "errors",
    "PhitodeepWarning": "errors",
    "Call": "layers.base",
    "Event": "layers.base",
    "Layer": "layers.base",
    "Param": "layers.base",
    "State": "layers.base",
    "inference": "layers.base",
    "saliency": "layers.base",
    "watching": "layers.base",
    "Sequential": "model",
    "SequentialBuilder": "model",
    "check_gradients": "testing.check",
}
_MODULES = (
    "config",
    "data",
    "errors",
    "functional",
    "fusion",
    "generation",
    "inspect",
    "kernels",
    "layers",
    "loss",
    "metrics",
    "model",
    "models",
    "optimization",
    "testing",
)
__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"phitodeep.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"phitodeep.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'phitodeep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
