"""What training shows: a live bar in a terminal and in Jupyter, one line an epoch elsewhere.

`rich`, IPython and what they need are imported when something is shown by them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

REDRAW = 0.1  # seconds between two drawings of a bar
LINES = 20  # epochs that leave a line of their own above a bar, at most


class Silent:
    """Shows nothing."""

    def begin(self, first: int, epochs: int, batches: int | None) -> None:
        """Before training: the number of the first epoch, and the size of the work if known."""

    def counted(self, batches: int | None) -> None:
        """After an epoch: how many batches it had."""

    def due(self) -> bool:
        """Whether `batch` would show anything now."""
        return False

    def batch(self, done: int, samples: int, logs: Mapping[str, float]) -> None:
        """After a batch: how many batches and samples of this epoch are done, and the logs."""

    def epoch(self, epoch: int, logs: Mapping[str, float], speed: float, seconds: float) -> None:
        """After an epoch: its logs, the samples a second in training, and all its seconds."""

    def end(self, note: str = "") -> None:
        """After training, with the reason if it ended early."""


class Lines(Silent):
    """One line per epoch."""

    @property
    def width(self) -> int:
        """The characters that fit on a line: a file has no edge."""
        return 10_000

    def begin(self, first: int, epochs: int, batches: int | None) -> None:
        self._last = first + epochs - 1

    def epoch(self, epoch: int, logs: Mapping[str, float], speed: float, seconds: float) -> None:
        number = f"epoch {epoch:>{len(str(self._last))}}/{self._last}"
        parts = [*_numbers(logs), f"{_speed(speed)}  {seconds:.1f} s"]
        self.say(_fitted(number, parts, self.width))

    def end(self, note: str = "") -> None:
        if note:
            self.say(note)

    def say(self, text: str) -> None:
        """Show a line that stays."""
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
        """The batches of all epochs, once it is known how many an epoch has."""
        return None if self.batches is None else self.epochs * self.batches

    def epoch(self, epoch: int, logs: Mapping[str, float], speed: float, seconds: float) -> None:
        if epoch == self._last or (epoch - self.first + 1) % self.every == 0:
            super().epoch(epoch, logs, speed, seconds)
        self.now, self.began = epoch + 1, time.perf_counter()

    def end(self, note: str = "") -> None:
        self.close()
        super().end(note)

    def open(self) -> None:
        """Make the bar."""

    def draw(self, done: int, head: str, text: str) -> None:
        """Show the bar with `done` of all batches, and the texts beside it."""

    def close(self) -> None:
        """Take the bar away."""


class Terminal(Live):
    """The bar by rich."""

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
        room = self.width - len(head) - 14  # for the bar, and for what Ctrl-C writes behind it
        if len(text) > room:
            text = text[: max(room - 1, 0)] + "…"
        self.bar.update(self.task, completed=done, head=head, text=text)
        self.bar.refresh()

    def close(self) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def width(self) -> int:
        return int(self.bar.console.width)


class Notebook(Live):
    """The bar in a cell's output, as HTML that is written again."""

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

    def say(self, text: str) -> None:
        self.lines.append(self.escape(text))
        self.show("")

    def show(self, bar: str) -> None:
        """Write the lines and the bar anew."""
        self.handle.update(self.html("<pre>" + "\n".join([*self.lines, bar]) + "</pre>"))


def _numbers(logs: Mapping[str, float]) -> list[str]:
    """`train loss 0.1 accuracy 0.9` and `test loss 0.2 accuracy 0.8`."""
    parts: dict[str, list[str]] = {}
    for name, value in logs.items():
        part, _, metric = name.partition("_")
        parts.setdefault(part, []).append(f"{metric} {value:.4f}")
    return [f"{part} {' '.join(values)}" for part, values in parts.items()]


def _speed(speed: float) -> str:
    return f"{speed:,.0f} samples/s"


def _fitted(head: str, parts: Sequence[str], width: int) -> str:
    """The head and the parts on as few lines as fit; further lines begin below the first part."""
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
    """The display for this output: nothing for verbose=0, a bar where it can move, else lines."""
    if not verbose:
        return Silent()
    if sys.platform == "emscripten":
        return Lines()
    from rich.console import Console

    console = Console()
    if console.is_jupyter:
        return Notebook()
    return Terminal(console) if console.is_terminal else Lines()
