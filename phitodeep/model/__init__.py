"""The models: `Sequential`, and `SequentialBuilder`, which builds it step by step."""

from phitodeep.model.builder import SequentialBuilder
from phitodeep.model.sequential import Sequential

__all__ = ["Sequential", "SequentialBuilder"]
