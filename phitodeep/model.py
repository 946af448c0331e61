"""The models: `Sequential`, and `SequentialBuilder`, which builds it step by step."""

from phitodeep.builder import SequentialBuilder
from phitodeep.sequential import Sequential

__all__ = ["Sequential", "SequentialBuilder"]
