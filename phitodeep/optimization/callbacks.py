"""The old import path of `phitodeep.training.callbacks`."""

from phitodeep.training.callbacks import (
    Callback,
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    StopTraining,
    as_callbacks,
)

__all__ = [
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "LambdaCallback",
    "ModelCheckpoint",
    "StopTraining",
    "as_callbacks",
]
