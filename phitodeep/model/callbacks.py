"""All callbacks."""

from phitodeep.inspect.diagnosis.callback import Diagnose
from phitodeep.plots.recorder import Histograms
from phitodeep.training.callback import (
    Callback,
    EarlyStopping,
    LambdaCallback,
    Logs,
    StopTraining,
    as_callbacks,
)
from phitodeep.training.checkpoint import ModelCheckpoint
from phitodeep.training.logs import CSVLogger, JSONLogger, TensorBoard

__all__ = [
    "CSVLogger", "Callback", "Diagnose", "EarlyStopping", "Histograms", "JSONLogger",
    "LambdaCallback", "Logs", "ModelCheckpoint", "StopTraining", "TensorBoard", "as_callbacks",
]  # fmt: skip
