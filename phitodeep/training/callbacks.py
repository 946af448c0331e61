"""All callbacks."""

from phitodeep.training.callback import (
    Callback,
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    StopTraining,
    as_callbacks,
)
from phitodeep.training.checkpoint import ModelCheckpoint

__all__ = [
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "LambdaCallback",
    "ModelCheckpoint",
    "StopTraining",
    "as_callbacks",
]
