"""The old import path of `phitodeep.text.generation`."""

from phitodeep.text.generation import Reader, generate, sample, stream

__all__ = ["Reader", "generate", "sample", "stream"]
