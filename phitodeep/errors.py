"""The errors and warnings of phitodeep; each error is also the built-in one that callers expect."""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

LONGEST = 2000  # characters of a message: a value in it may have millions


class PhitodeepError(Exception):
    """Base class of all errors; messages give the expected and received values, remedy and path."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.places: list[str] = []  # innermost first

    def at(self, place: str) -> Self:
        """Add one part of the path as the error passes outward through a container."""
        self.places.append(place)
        return self

    def __str__(self) -> str:
        return shortened(
            f"in {', '.join(self.places)}: {self.message}" if self.places else self.message
        )


def printable(text: str) -> str:
    """Return the text with escapes such as \\x1b for what would control the terminal.

    Texts in files may be made by strangers. All that is shown of them passes through here: errors,
    warnings, tables and generated text.
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


# Control characters but for \t and \n, characters that change the direction of writing, ends of
# lines and paragraphs, and halves of characters, which no terminal can show.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def shortened(text: str) -> str:
    """Return the printable text, without its middle if it is longer than `LONGEST`."""
    text = printable(text)
    half = LONGEST // 2 - 3
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def did_you_mean(name: object, known: Iterable[str], most: int = 3) -> str:
    """Return the question whether one of the similar names is meant; "" if none is similar."""
    near = difflib.get_close_matches(str(name), known, n=most)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


class ShapeError(PhitodeepError, ValueError):
    """An array or a layer has a shape that does not fit."""


class ArgumentError(PhitodeepError, ValueError):
    """An argument has a value that cannot be used."""


class ArgumentTypeError(PhitodeepError, TypeError):
    """An argument or an array has a type that cannot be used."""


class UnknownNameError(PhitodeepError, KeyError):
    """A name that nothing has; the message lists what there is, and similar names."""

    @classmethod
    def of(cls, name: object, known: Iterable[str], what: str) -> Self:
        """Return the error to raise if `name`, which should be `what`, is not in `known`."""
        names = list(known)
        listed = ", ".join(map(repr, names)) or "none"
        return cls(f"{name!r} is not {what}, which are {listed}.{did_you_mean(name, names)}")


class DataError(PhitodeepError, ValueError, OSError):
    """A file is missing, corrupted or cannot be written."""


class OrderError(PhitodeepError, RuntimeError):
    """Methods were called in an invalid order."""


class BackwardError(OrderError):
    """A backward pass ran without its forward pass."""


class NotBuiltError(OrderError, AttributeError):
    """A parameter or a shape was requested before it was known."""


class MissingExtraError(PhitodeepError, ImportError):
    """An optional library is not installed."""

    @classmethod
    def of(cls, library: str, extra: str, purpose: str) -> Self:
        """Return the error to raise if `library` cannot be imported."""
        return cls(f'{purpose} needs {library}: pip install "phitodeep[{extra}]".')


@contextmanager
def extra(name: str, library: str, purpose: str) -> Iterator[None]:
    """Import an optional library inside the `with` block; its absence names the extra."""
    try:
        yield
    except ImportError:
        raise MissingExtraError.of(library, name, purpose) from None


class DivergenceError(PhitodeepError, FloatingPointError):
    """A loss or a gradient is not finite; the optimizer step was not taken.

    path, name    the layer and the parameter with that gradient; None if the loss is not finite
    """

    def __init__(self, message: str, path: str | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.path, self.name = path, name


class AnomalyError(DivergenceError):
    """Where in a training step the first number arose that is not finite.

    epoch, step    both counted from 1; steps are counted within the epoch
    path           of the layer; "loss" for the loss
    direction      "forward" or "backward"
    symbol         the step of the derivation whose result is not finite
    inputs         the symbols that it read and that were not finite already
    samples        the samples with such a number, by their place in X, or in the batch if X yields
                   batches; empty if the number belongs to all samples
    """

    epoch: int
    step: int
    direction: str
    symbol: str
    inputs: tuple[str, ...]
    samples: tuple[int, ...]
    _debugger: Any  # returns a debugger at the place

    def replay(self) -> Any:
        """Return the debugger of this training step, just before the number arises."""
        return self._debugger()


class PhitodeepWarning(UserWarning):
    """The code is valid but probably not what was intended."""


def warn(message: str) -> None:
    """Issue a PhitodeepWarning that points to the line of the user's code."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INTERNAL:
        frame, level = frame.f_back, level + 1
    warnings.warn(shortened(message), PhitodeepWarning, stacklevel=level)


_INTERNAL = [
    "phitodeep", "scipy", "contextlib", "functools", "importlib", "concurrent", "threading",
]  # fmt: skip


def locate(error: Exception, place: str) -> None:
    """Record that `error` passed through `place`: in its path, or in a note if it is not ours."""
    if isinstance(error, PhitodeepError):
        error.at(place)
    else:
        error.add_note(printable(f"in {place}"))


class DerivationError(PhitodeepError, ValueError):
    """A forward pass that cannot be differentiated, with the line or step, and the remedy."""
