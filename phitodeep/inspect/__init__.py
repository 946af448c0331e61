"""Looking at models: what their layers hold and cost, and where a step's time goes."""

from phitodeep.inspect.profile import Profile, profile
from phitodeep.inspect.summary import Row, Summary, summarize

__all__ = ["Profile", "Row", "Summary", "profile", "summarize"]
