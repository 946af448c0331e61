"""What `train` returns: the losses and metrics of each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from phitodeep.core.state import StateDict, check_types, plain
from phitodeep.core.table import Table, Tabled
from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentError

KINDS = {  # of the entries of the state
    "losses": list[list[float]],
    "metrics": dict[str, list[float]],
    "seconds": list[float],
    "rates": list[float],
}
ENDS = 5  # epochs at the start and at the end that the table of many epochs shows


class History(Tabled, list[tuple[float, float]]):
    """One (train_loss, test_loss) pair per epoch, with metrics, times and learning rates.

    metrics        lists by name, such as metrics["test_accuracy"], with one value per epoch
    seconds        the duration of each epoch, including its evaluation
    rates          the learning rate of each epoch's last step
    interrupted    whether Ctrl-C ended the training
    """

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.seconds: list[float] = []
        self.rates: list[float] = []
        self.interrupted = False

    def record(self, logs: Mapping[str, float], seconds: float, rate: float) -> None:
        """Append the results of an epoch."""
        self.append((logs["train_loss"], logs.get("test_loss", math.nan)))
        for name, value in logs.items():
            if name not in ("train_loss", "test_loss"):
                self.metrics.setdefault(name, []).append(value)
        self.seconds.append(seconds)
        self.rates.append(rate)

    def state_dict(self) -> StateDict:
        """Return the results of all epochs as plain JSON values."""
        kept = {name: getattr(self, name) for name in ("metrics", "seconds", "rates")}
        found: StateDict = plain({"losses": [*self], **kept})
        return found

    def load_state_dict(self, state: StateDict) -> None:
        """Replace all epochs by those that `state_dict` returned."""
        who = "the state of a history"
        state = check_types(state, KINDS, who)
        if any(len(pair) != 2 for pair in state["losses"]):
            raise ArgumentError(f"{who}: losses must be pairs (train, test).")
        self[:] = [(train, test) for train, test in state["losses"]]
        self.metrics, self.seconds, self.rates = state["metrics"], state["seconds"], state["rates"]

    # --- shown -----------------------------------------------------------------------------

    def table(self) -> Table:
        """The results of each epoch; of many epochs, the first and the last ones."""
        losses = {"train_loss": [a for a, _ in self], "test_loss": [b for _, b in self]}
        named: dict[str, Any] = {**losses, **self.metrics}
        shown = {name: values for name, values in named.items() if not all(map(_missing, values))}
        shown |= {"learning rate": self.rates, "seconds": self.seconds}
        head = ("epoch", *shown)
        rows = [
            [str(i + 1), *(_written(values, i) for values in shown.values())]
            for i in range(len(self))
        ]
        if len(rows) > 2 * ENDS + 1:
            rows[ENDS:-ENDS] = [["..."] * len(head)]
        total = f"{len(self)} epochs in {sum(self.seconds):.3g} s"
        return Table(total + ", interrupted" * self.interrupted, head, rows, "", left=0)

    def plot(self, path: PathLike | None = None) -> Any:
        """Plot losses and metrics against epochs; return the figure, saved to `path` if given."""
        from phitodeep.plots.curves import history

        return history(self, path, who="History.plot")


def _missing(value: Any) -> bool:
    """Whether a value is NaN; metrics such as ConfusionMatrix are arrays."""
    return isinstance(value, float) and math.isnan(value)


def _written(values: Any, i: int) -> str:
    """The value of epoch i, if there is one and it is a number."""
    value = values[i] if i < len(values) else math.nan
    return f"{value:.4g}" if np.ndim(value) == 0 and not _missing(value) else ""
