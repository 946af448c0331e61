"""What training shows: a live bar in a terminal and in Jupyter, one line an epoch elsewhere.

`rich` is imported when something is shown, and where it is missing the lines are plain.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

REDRAW = 0.1  # seconds between two updates of the bar
LINES = 20  # epochs that leave a line of their own in a terminal, at most


class Silent:
    """Shows nothing."""

    def begin(self, first: int, epochs: int, batches: int, samples: int) -> None:
        """Before training: the number of the first epoch, and the sizes of the work."""

    def batch(self, done: int, samples: int, logs: Mapping[str, float]) -> None:
        """After a batch: how many are done in this epoch, and the logs so far."""

    def epoch(self, epoch: int, logs: Mapping[str, float], seconds: float) -> None:
        """After an epoch."""

    def end(self, note: str = "") -> None:
        """After training."""

    def due(self) -> bool:
        """Whether `batch` would show anything now."""
        return False


class Lines(Silent):
    """One line an epoch."""

    def begin(self, first: int, epochs: int, batches: int, samples: int) -> None:
        self.last, self.samples = first + epochs - 1, samples

    def epoch(self, epoch: int, logs: Mapping[str, float], seconds: float) -> None:
        self.say(line(epoch, self.last, logs, self.samples / max(seconds, 1e-9), seconds))

    def end(self, note: str = "") -> None:
        if note:
            self.say(note)

    def say(self, text: str) -> None:
        print(text, flush=True)


class Bar(Lines):
    """A live bar of all batches of all epochs, below the lines of finished epochs."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            auto_refresh=False,
            transient=True,
        )

    def begin(self, first: int, epochs: int, batches: int, samples: int) -> None:
        super().begin(first, epochs, batches, samples)
        self.first, self.batches, self.drawn = first, batches, 0.0
        self.every = -(-epochs // LINES)
        self.task = self.bar.add_task("", total=epochs * batches, epoch=self._of(first), shown="")
        self.now, self.began = first, time.perf_counter()
        self.bar.start()

    def due(self) -> bool:
        return time.perf_counter() - self.drawn > REDRAW

    def batch(self, done: int, samples: int, logs: Mapping[str, float]) -> None:
        self.drawn = time.perf_counter()
        speed = samples / max(self.drawn - self.began, 1e-9)
        done += (self.now - self.first) * self.batches
        self.bar.update(
            self.task, completed=done, epoch=self._of(self.now), shown=_shown(logs, speed)
        )
        self.bar.refresh()

    def epoch(self, epoch: int, logs: Mapping[str, float], seconds: float) -> None:
        if epoch == self.last or (epoch - self.first + 1) % self.every == 0:
            super().epoch(epoch, logs, seconds)
        self.now, self.began = epoch + 1, time.perf_counter()

    def end(self, note: str = "") -> None:
        self.bar.stop()
        super().end(note)

    def say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def _of(self, epoch: int) -> str:
        return f"{epoch}/{self.last}"


def line(epoch: int, last: int, logs: Mapping[str, float], speed: float, seconds: float) -> str:
    """An epoch in one line."""
    return f"epoch {epoch:>{len(str(last))}}/{last}  {_shown(logs, speed)}  {seconds:.1f} s"


def _shown(logs: Mapping[str, float], speed: float) -> str:
    numbers = [f"{name} {value:.4f}" for name, value in logs.items()]
    return "  ".join([*numbers, f"{speed:,.0f} samples/s"])


def display(verbose: int | bool) -> Silent:
    """The display for this output: nothing for verbose=0, a bar where it can move, else lines."""
    if not verbose:
        return Silent()
    if sys.platform == "emscripten":
        return Lines()
    from rich.console import Console

    console = Console()
    return Bar(console) if console.is_terminal or console.is_jupyter else Lines()
