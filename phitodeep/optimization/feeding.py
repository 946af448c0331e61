"""The old import path of `phitodeep.training.inputs` and `phitodeep.training.sources`."""

from phitodeep.training.inputs import Data
from phitodeep.training.inputs import validate as admit
from phitodeep.training.sources import Source, as_source

__all__ = ["Data", "Source", "admit", "as_source"]
