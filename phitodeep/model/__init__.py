"""The models `Sequential` and `Network`, and `SequentialBuilder`, which builds both."""

from phitodeep.model.builder import SequentialBuilder
from phitodeep.model.network import Network
from phitodeep.model.sequential import Sequential

__all__ = ["Network", "Sequential", "SequentialBuilder"]
