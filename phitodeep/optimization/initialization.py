"""The old import path of `phitodeep.initialization`."""

from phitodeep.initialization import (
    Constant,
    He,
    Initializer,
    InitType,
    LeCun,
    Normal,
    Orthogonal,
    VarianceScaling,
    Xavier,
    Zeros,
    fans,
)

__all__ = [
    "Constant",
    "He",
    "InitType",
    "Initializer",
    "LeCun",
    "Normal",
    "Orthogonal",
    "VarianceScaling",
    "Xavier",
    "Zeros",
    "fans",
]
