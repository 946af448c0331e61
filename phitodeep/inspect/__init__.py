"""Inspect models: their sizes and costs, the time of a training step, and what is wrong."""

from phitodeep.inspect.diagnosis.findings import Diagnosis, Finding
from phitodeep.inspect.diagnosis.symptoms import diagnose
from phitodeep.inspect.profile import Profile, profile
from phitodeep.inspect.summary import Row, Summary, summarize

__all__ = ["Diagnosis", "Finding", "Profile", "Row", "Summary", "diagnose", "profile", "summarize"]
