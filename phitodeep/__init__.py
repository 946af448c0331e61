"""phitodeep: deep learning in Python and NumPy, with hand-derived backward passes.

Everything is imported when it is first used, so that `import phitodeep` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phitodeep.core import aliases as aliases  # old paths go on working
from phitodeep.core.version import __version__ as __version__

if TYPE_CHECKING:
    from phitodeep.core.call import Call as Call
    from phitodeep.core.call import Event as Event
    from phitodeep.core.call import inference as inference
    from phitodeep.core.call import saliency as saliency
    from phitodeep.core.call import watching as watching
    from phitodeep.core.config import register as register
    from phitodeep.core.threads import get_threads as get_threads
    from phitodeep.core.threads import set_threads as set_threads
    from phitodeep.errors import PhitodeepError as PhitodeepError
    from phitodeep.errors import PhitodeepWarning as PhitodeepWarning
    from phitodeep.layers import *
    from phitodeep.layers.base import Layer as Layer
    from phitodeep.layers.base import Param as Param
    from phitodeep.layers.base import State as State
    from phitodeep.layers.pde import PDE as PDE
    from phitodeep.loss import *
    from phitodeep.model.builder import SequentialBuilder as SequentialBuilder
    from phitodeep.model.network import Network as Network
    from phitodeep.model.sequential import Sequential as Sequential
    from phitodeep.model.sequential import load as load
    from phitodeep.optimization.optimizers import *
    from phitodeep.testing.check import check_gradients as check_gradients
    from phitodeep.testing.derived import derive as derive

_CATALOGUES = ("layers", "loss", "optimization.optimizers")  # their public names are ours
_FOR_AUTHORS = {"Common", "Elementwise", "OPTIMIZERS"}  # but for these
_HOME = {
    **dict.fromkeys(["Call", "Event", "inference", "saliency", "watching"], "core.call"),
    "register": "core.config",
    **dict.fromkeys(["get_threads", "set_threads"], "core.threads"),
    **dict.fromkeys(["PhitodeepError", "PhitodeepWarning"], "errors"),
    **dict.fromkeys(["Layer", "Param", "State"], "layers.base"),
    "PDE": "layers.pde",
    "Network": "model.network",
    "SequentialBuilder": "model.builder",
    **dict.fromkeys(["Sequential", "load"], "model.sequential"),
    "check_gradients": "testing.check",
    "derive": "testing.derived",
}
_MODULES = (
    *("config", "data", "distributed", "errors", "exchange", "functional", "initialization"),
    *("inspect", "io", "kernels", "layers", "loss", "metrics", "model", "models", "optimization"),
    *("plots", "rotary", "sklearn", "teach", "testing", "text", "threads", "training"),
)


def _catalogue() -> dict[str, Any]:
    """Return all layers, losses and optimizers, by name."""
    homes = [importlib.import_module(f"phitodeep.{home}") for home in _CATALOGUES]
    found = {name: getattr(home, name) for home in homes for name in home.__all__}
    return {name: part for name, part in found.items() if name not in _FOR_AUTHORS}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"phitodeep.{name}")
    if name == "__all__":
        return sorted({*_HOME, *_MODULES, *_catalogue()})
    if name in _HOME:
        value = getattr(importlib.import_module(f"phitodeep.{_HOME[name]}"), name)
    elif name.startswith("_") or name not in (names := _catalogue()):
        raise AttributeError(f"module 'phitodeep' has no attribute {name!r}")
    else:
        value = names[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
