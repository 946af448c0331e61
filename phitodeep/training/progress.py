"""Progress displays: a live bar in a terminal and in Jupyter, one line per epoch elsewhere.

`rich` and IPython are imported only when a display uses them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

REDRAW = 0.1  # seconds between updates of a bar
LINES = 20  # the maximum number of epoch lines above a bar


class Silent:
    """A display that shows nothing; the base class of the others.

    If `accumulate` is above 1, the batches of one step count as one.
    """

    def begin(self, first: int, epochs: int, batches: int | None) -> None:
        """Start with epoch number `first`; `batches` is the number per epoch, if known."""

    def counted(self, batches: int | None) -> None:
        """Set the number of batches per epoch, which is known after the first epoch."""

    def due(self) -> bool:
        """Return whether it is time for `batch` to update the display."""
        return False

    def batch(self, done: int, samples: int, logs: Mapping[str, float]) -> None:
        """Show the batches and samples of this epoch so far, and the logs."""

    def epoch(self, epoch: int, logs: Mapping[str, float], speed: float, seconds: float) -> None:
        """Show the logs of an epoch, its training speed in samples per second, and its duration."""

    def end(self, note: str = "") -> None:
        """Finish, with a note if training ended early."""


class Lines(Silent):
    """One line per epoch."""

    @property
    def width(self) -> int:
        """The number of characters that fit on a line; files have no limit."""
        return sys.maxsize

    def begin(self, first: int, epochs: int, batches: int | None) -> None:
        self._last = first + epochs - 1

    def epoch(self, epoch: int, logs: Mapping[str, float], speed: float, seconds: float) -> None:
        number = f"epoch {epoch:>{len(str(self._last))}}/{self._last}"
        parts = [*_numbers(logs), f"{_speed(speed)}  {seconds:.1f} s"]
        self.print_line(_fitted(number, parts, self.width))

    def end(self, note: str = "") -> None:
        if note:
            self.print_line(note)

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        print(text, flush=True)


class Live(Lines):
    """A bar over all batches of all epochs, below the lines of finished epochs."""

    def begin(self, first: int, epochs: int, batches: int | None) -> None:
        super().begin(first, epochs, batches)
        self.first, self.epochs, self.batches = first, epochs, batches
        self.every = max(1, -(-epochs // LINES))
        self.now, self.drawn = first, 0.0
        self.start = self.began = time.perf_counter()
        self.open()

    def counted(self, batches: int | None) -> None:
        self.batches = batches

    def due(self) -> bool:
        return time.perf_counter() - self.drawn > REDRAW

    def batch(self, done: int, samples: int, logs: Mapping[str, float]) -> None:
        self.drawn = time.perf_counter()
        speed = samples / max(self.drawn - self.began, 1e-9)
        done += (self.now - self.first) * (self.batches or 0)
        text = "  ".join([*_numbers(logs), _speed(speed)]).removeprefix("train ")
        if self.total is not None:
            left = (self.drawn - self.start) * max(self.total - done, 0) / done
            text += f"  {_clock(left)} left"
        self.draw(done, f"epoch {self.now}/{self._last}", text)

    @property
    def total(self) -> int | None:
        """The number of batches in all epochs, once the number per epoch is known."""
        return None if self.batches is None else self.epochs * self.batches

    def epoch(self, epoch: int, logs: Mapping[str, float], speed: float, seconds: float) -> None:
        if epoch == self._last or (epoch - self.first + 1) % self.every == 0:
            super().epoch(epoch, logs, speed, seconds)
        self.now, self.began = epoch + 1, time.perf_counter()

    def end(self, note: str = "") -> None:
        self.close()
        super().end(note)

    def open(self) -> None:
        """Create the bar."""

    def draw(self, done: int, head: str, text: str) -> None:
        """Draw the bar with `done` batches completed, and text on both sides of it."""

    def close(self) -> None:
        """Remove the bar."""


class Terminal(Live):
    """A progress bar drawn by rich."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.bar = Progress(
            TextColumn("{task.fields[head]}", markup=False),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
        )

    def open(self) -> None:
        self.task = self.bar.add_task("", total=self.total, head="", text="")
        self.bar.start()

    def draw(self, done: int, head: str, text: str) -> None:
        space = self.width - len(head) - 14  # for the bar, and for what Ctrl-C prints after it
        if len(text) > space:
            text = text[: max(space - 1, 0)] + "…"
        self.bar.update(self.task, completed=done, head=head, text=text)
        self.bar.refresh()

    def close(self) -> None:
        self.bar.stop()

    def print_line(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def width(self) -> int:
        return int(self.bar.console.width)


class Notebook(Live):
    """A progress bar in a notebook cell, as HTML that is updated."""

    def open(self) -> None:
        from html import escape

        from IPython.display import HTML, display

        self.html, self.escape = HTML, escape
        self.lines: list[str] = []
        self.handle = display(HTML(""), display_id=True)

    def draw(self, done: int, head: str, text: str) -> None:
        bar = f'{head} <progress value="{done}" max="{self.total}"></progress> {text}'
        self.show(bar)

    def close(self) -> None:
        self.show("")

    def print_line(self, text: str) -> None:
        self.lines.append(self.escape(text))
        self.show("")

    def show(self, bar: str) -> None:
        """Update the lines and the bar."""
        self.handle.update(self.html("<pre>" + "\n".join([*self.lines, bar]) + "</pre>"))


def _numbers(logs: Mapping[str, float]) -> list[str]:
    """Return the logs as text: `train loss 0.1 accuracy 0.9`, `test loss 0.2 accuracy 0.8`.

    Values that are nan are left out: Ctrl-C ended the epoch before they were measured.
    """
    parts: dict[str, list[str]] = {}
    for name, value in logs.items():
        if math.isnan(value):
            continue
        part, _, metric = name.partition("_")
        parts.setdefault(part, []).append(f"{metric} {value:.4f}")
    return [f"{part} {' '.join(values)}" for part, values in parts.items()]


def _speed(speed: float) -> str:
    return f"{speed:,.0f} samples/s"


def _fitted(head: str, parts: Sequence[str], width: int) -> str:
    """Wrap the head and the parts to the width; further lines start below the first part."""
    lines = [head]
    for i, part in enumerate(parts):
        if i and len(lines[-1]) + 2 + len(part) > width:
            lines.append(" " * len(head))
        lines[-1] += f"  {part}"
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def display(verbose: int | bool) -> Silent:
    """Choose a display: silent for verbose=0, a bar in a terminal or notebook, else lines."""
    if not verbose:
        return Silent()
    if sys.platform == "emscripten":
        return Lines()
    from rich.console import Console

    console = Console()
    if console.is_jupyter:
        return Notebook()
    return Terminal(console) if console.is_terminal else Lines()
