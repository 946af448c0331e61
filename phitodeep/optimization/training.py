"""The old path of `phitodeep.training`."""

from phitodeep.training.history import History
from phitodeep.training.loop import fit
from phitodeep.training.objective import Objective

__all__ = ["History", "Objective", "fit"]
