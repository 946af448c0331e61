"""Every refusal of phitodeep, each also a built-in error of the kind that a caller would expect."""

from __future__ import annotations

import sys
import warnings
from typing import Self


class PhitodeepError(Exception):
    """Base of all refusals: what was expected, what came, what to do, and where in the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.places: list[str] = []  # innermost first

    def at(self, place: str) -> Self:
        """Add one step of the path, as the error passes outward through a container."""
        self.places.append(place)
        return self

    def __str__(self) -> str:
        return f"in {', '.join(self.places)}: {self.message}" if self.places else self.message


class ShapeError(PhitodeepError, ValueError):
    """An array or a layer has a shape that does not fit."""


class ArgumentError(PhitodeepError, ValueError):
    """An argument has a value that cannot be used."""


class ArgumentTypeError(PhitodeepError, TypeError):
    """An argument or an array is of a kind that cannot be used."""


class DataError(PhitodeepError, ValueError, OSError):
    """A file is missing, corrupted or cannot be written."""


class OrderError(PhitodeepError, RuntimeError):
    """Calls came in an order that has no meaning."""


class BackwardError(OrderError):
    """A backward pass without the forward pass that it belongs to."""


class NotBuiltError(OrderError, AttributeError):
    """A parameter or a shape was asked for before it could be known."""


class MissingExtraError(PhitodeepError, ImportError):
    """An optional library is not installed."""

    @classmethod
    def of(cls, library: str, extra: str, purpose: str) -> Self:
        """The error to raise where importing `library` failed."""
        return cls(f'{purpose} needs {library}: pip install "phitodeep[{extra}]".')


class DivergenceError(PhitodeepError, FloatingPointError):
    """A loss or a gradient is not finite, and the step that it would spoil was not taken.

    path, name    the layer and its parameter with that gradient; None where it is the loss
    """

    def __init__(self, message: str, path: str | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.path, self.name = path, name


class PhitodeepWarning(UserWarning):
    """Something is probably not what was meant, but has a meaning."""


def warn(message: str) -> None:
    """Warn of something that is probably not what was meant, at the line of the user's code."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PhitodeepWarning, stacklevel=level)


_OURS = ("phitodeep", "scipy", "contextlib", "functools", "concurrent", "threading")


def locate(error: Exception, place: str) -> None:
    """Say that `error` passed through `place`: in its message if it is ours, else as a note."""
    if isinstance(error, PhitodeepError):
        error.at(place)
    else:
        error.add_note(f"in {place}")
