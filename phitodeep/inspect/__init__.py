"""Looking at models: they are layer trees here, and nothing is trained."""

from phitodeep.inspect.summary import Row, Summary, summarize

__all__ = ["Row", "Summary", "summarize"]
