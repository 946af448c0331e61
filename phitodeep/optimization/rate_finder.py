"""The old import path of `phitodeep.training.rate_finder`."""

from phitodeep.training.rate_finder import RateRange, find_alpha

__all__ = ["RateRange", "find_alpha"]
