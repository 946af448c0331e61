"""Inspect models: the sizes and costs of their layers, and the time of a training step."""

from phitodeep.inspect.profile import Profile, profile
from phitodeep.inspect.summary import Row, Summary, summarize

__all__ = ["Profile", "Row", "Summary", "profile", "summarize"]
