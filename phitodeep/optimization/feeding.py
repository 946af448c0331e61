"""The old path of `phitodeep.training.inputs` and `phitodeep.training.sources`."""

from phitodeep.training.inputs import Data
from phitodeep.training.inputs import validate as admit
from phitodeep.training.sources import Arrays, Memory, Source, Stream, Table, as_source

__all__ = ["Arrays", "Data", "Memory", "Source", "Stream", "Table", "admit", "as_source"]
