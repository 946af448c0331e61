"""What `train` returns: the losses and metrics of each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phitodeep.errors import MissingExtraError


class History(list[tuple[float, float]]):
    """One (train_loss, test_loss) pair per epoch, with metrics, times and learning rates.

    metrics        lists by name, such as metrics["test_accuracy"], with one value per epoch
    seconds        the duration of each epoch, including its evaluation
    rates          the learning rate of each epoch's last step
    interrupted    whether Ctrl-C ended the training
    """

    def __init__(self) -> None:
        super().__init__()
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

    def plot(self, path: str | None = None) -> Any:
        """Plot losses and metrics against epochs; return the figure, saved to `path` if given."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError.of("matplotlib", "plot", "History.plot") from None
        names = list(dict.fromkeys(n.split("_", 1)[1] for n in self.metrics))
        figure = Figure(figsize=(5 * (1 + len(names)), 3.5), layout="constrained")
        panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
        epochs = range(1, len(self) + 1)
        curves = {"train_loss": [a for a, _ in self], "test_loss": [b for _, b in self]}
        for panel, name in zip(panels, ["loss", *names], strict=True):
            for part in ("train", "test"):
                values = {**curves, **self.metrics}.get(f"{part}_{name}", [math.nan])
                if not all(map(math.isnan, values)):
                    panel.plot(epochs[: len(values)], values, label=part)
            panel.set(xlabel="epoch", ylabel=name)
            if panel.lines:
                panel.legend()
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure
