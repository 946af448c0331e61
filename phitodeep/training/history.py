"""What `train` returns: the losses and metrics of each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phitodeep.checks import check_list
from phitodeep.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from phitodeep.state import StateDict, check_entries, is_number


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

    def state_dict(self) -> StateDict:
        """Return the results of all epochs as plain JSON values."""
        return {
            "losses": [list(map(float, pair)) for pair in self],
            "metrics": {name: list(map(float, values)) for name, values in self.metrics.items()},
            "seconds": list(self.seconds),
            "rates": list(map(float, self.rates)),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Replace all epochs by those that `state_dict` returned."""
        who = "the state of a history"
        state = check_entries(state, ("losses", "metrics", "seconds", "rates"), who)
        pairs = check_list(state["losses"], f"{who}: losses")
        lists = [*pairs, state["seconds"], state["rates"], *_values(state["metrics"], who)]
        for values in lists:
            if not all(map(is_number, check_list(values, who))):
                raise ArgumentTypeError(f"{who} must hold lists of numbers, got {values!r}.")
        if any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(f"{who}: losses must be pairs (train, test).")
        self[:] = [(train, test) for train, test in pairs]
        self.metrics = {name: list(values) for name, values in state["metrics"].items()}
        self.seconds, self.rates = list(state["seconds"]), list(state["rates"])

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


def _values(metrics: Any, who: str) -> list[Any]:
    if not isinstance(metrics, Mapping):
        raise ArgumentTypeError(f"{who}: metrics must be a dict of lists, got {metrics!r}.")
    return list(metrics.values())
