"""The callback that watches a training for symptoms: see docs/diagnosis.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.checks import check_count
from phitodeep.core.state import StateDict
from phitodeep.core.types import Array
from phitodeep.inspect.diagnosis.evidence import Course, decaying, size
from phitodeep.inspect.diagnosis.findings import Diagnosis, Finding, examine
from phitodeep.inspect.diagnosis.symptoms import COURSE
from phitodeep.optimization.divergence import length
from phitodeep.training.callback import Logs, _Resumable


class Diagnose(_Resumable):
    """Watch training, and report what is wrong at its end.

        watch = Diagnose()
        model.train(X, y, X_test, y_test, callbacks=[watch])
        for finding in watch.findings:
            print(finding)

    It looks for spikes of the gradient, for clipping and updates of the weights that are out of
    proportion, and for a test loss that is periodic or rising. At the end of training, `report` is
    the `Diagnosis`, and `findings` its findings; they are printed if there are any. Nothing in
    training changes. A loss or gradient that is not finite ends training with a warning in any
    case; `model.diagnose(X, y)` finds where it comes from.

    every      the number of steps from one look at the weights to the next; the first step is
               always looked at
    verbose    0: print nothing
    """

    remembered: ClassVar[dict[str, Any]] = {"course": Course, "before": dict[str, Array]}

    def __init__(self, every: int = 10, *, verbose: int | bool = 1) -> None:
        self.every = check_count(every, "Diagnose every", minimum=2)
        self.verbose = verbose
        self.forget()

    def forget(self) -> None:
        self.course = Course()
        self.before: dict[str, Array] = {}  # the weights, for the next step alone
        self.report: Diagnosis | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings at the end of the last training; empty before it."""
        return tuple(self.report or ())

    def on_train_begin(self, model: Any) -> None:
        resumed = self.resumes
        super().on_train_begin(model)
        if not resumed:
            self.keep(model)

    def keep(self, model: Any) -> None:
        """Keep the weights, to compare those after the next step with them."""
        if not model.optimizer.evaluates_often:  # such a rule chooses its own steps
            self.before = {path: W.copy() for path, W in _weights(model).items()}

    def on_batch_end(self, model: Any, step: int, loss: float) -> None:
        optimizer = model.optimizer
        self.course.add_norm(step, length(optimizer._packing.g), optimizer.clip_norm)
        now, ratios = _weights(model) if self.before else {}, self.course.ratios
        for path, W in self.before.items():
            if path in now and now[path].shape == W.shape and (whole := size(W)):
                ratio = size(now[path].astype(np.float64) - W) / whole
                ratios[path] = max(ratios.get(path, 0.0), ratio)
        self.before = {}
        if (step + 1) % self.every == 0:
            self.keep(model)

    def on_epoch_end(self, model: Any, epoch: int, logs: Logs) -> None:
        if "test_loss" in logs and np.isfinite(logs["test_loss"]):
            self.course.train.append(float(logs["train_loss"]))
            self.course.test.append(float(logs["test_loss"]))

    def on_train_end(self, model: Any) -> None:
        super().on_train_end(model)
        self.before = {}
        self.report = examine(COURSE, self.course)
        if self.report and self.verbose:
            print(self.report)

    def state_dict(self) -> StateDict:
        return {**super().state_dict(), "course": asdict(self.course)}


def _weights(model: Any) -> dict[str, Array]:
    """Return the weight matrices that learn, by path."""
    return {
        f"{path}.{name}": layer.params[name]
        for path, layer in model.walk()
        if layer.trainable
        for name in decaying(layer)
    }
