"""Validation of arguments: arrays of real, finite numbers, counts, shapes and names."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, SupportsFloat, TypeVar

import numpy as np

from phitodeep.core.types import Array, DType, Shape, parameters
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError

P = ParamSpec("P")
T = TypeVar("T")

MOST_AXES = 63  # of a sample: NumPy's arrays have at most 64


def as_real(X: Any, who: object) -> Array:
    """Return X as real numbers; refuse text, objects, ragged lists and complex numbers."""
    array = _as_array(X, who)
    if array.dtype.kind not in "fiub":
        raise ArgumentTypeError(
            f"{who} takes real numbers, got dtype {array.dtype}{_conversion_hint(array)}."
        )
    return array


def _as_array(X: Any, who: object) -> Array:
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise ArgumentError(f"{who} has masked entries: fill them with {who}.filled(value).")
    try:
        return np.asarray(X)
    except ValueError:
        raise ShapeError(f"{who} takes an array, got nested sequences of unequal length.") from None


def _conversion_hint(array: Array) -> str:
    """Describe what an array without real numbers holds, and how to convert it."""
    if array.dtype.kind == "c":
        return " (take .real?)"
    for index, value in np.ndenumerate(array):
        where = f" at [{', '.join(map(str, index))}]" if index else ""
        if isinstance(value, str | bytes):
            with suppress(ValueError):
                float(value)
                continue
            return (
                f", such as {str(value)!r}{where}: encode labels and categories as integers, "
                "with names, codes = np.unique(labels, return_inverse=True)"
            )
        if value is None:
            return f", with None{where}: remove or fill missing values"
        if isinstance(value, Sequence | np.ndarray):
            return f", with a {type(value).__name__}{where}: pad rows of unequal length"
        if hasattr(value, "toarray"):
            return f", with a {type(value).__name__}{where}: write .toarray()"
        if array.dtype.kind == "O" and not isinstance(value, SupportsFloat):
            return f", with a {type(value).__name__}{where}"
    return " (convert with .astype(float)?)"


def as_float(X: Any, dtype: DType, who: object) -> Array:
    """Return X as floats of `dtype`; with None, floats keep theirs and integers become float32.

    Integers are cast, never rescaled: divide 0..255 images by 255 yourself.
    """
    array = as_real(X, who)
    if dtype is None:
        dtype = array.dtype if array.dtype.kind == "f" else np.float32
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):  # values too large for float32 become infinite
        return array.astype(dtype)


def as_tokens(X: Any, who: object) -> Array:
    """Return X as int64 tokens; refuse floats, even whole ones."""
    array = _as_array(X, who)
    if array.dtype.kind not in "iu":
        text = array.size and isinstance(array.flat[0], str | bytes)
        remedy = (
            "encode text first, as CharTokenizer does"
            if text
            else "write .astype(int), or Select(columns, tokens=True) for columns of a table"
        )
        raise ArgumentTypeError(f"{who} takes integer tokens, got dtype {array.dtype}: {remedy}.")
    return array.astype(np.int64, copy=False)


def as_mask(lengths: Any, shape: Shape, *, tokens: bool = False, name: str = "lengths") -> Array:
    """Return the mask (N, T) of samples X of this shape: True at steps that are not padding.

    `lengths` holds the number of steps of each sample, (N,) integers from 0 to T, or is the mask
    itself. X is (N, T) for tokens and (N, T, ...) for floats; floats (N, T) have no axis of steps.
    """
    if len(shape) < (2 if tokens else 3):
        kind = "tokens (N, T)" if tokens else "X (N, T, ...), with features at each step"
        raise ShapeError(f"{name} requires {kind}, got X of shape {shape}.")
    given = as_real(lengths, name)
    if given.dtype == bool and given.shape == shape[:2] and given.ndim == 2:
        return given
    if given.dtype.kind not in "iu" or given.shape != shape[:1]:
        raise ShapeError(
            f"{name} takes the number of steps of each sample, integers of shape {shape[:1]}, or a "
            f"boolean mask of shape {shape[:2]}, got {given.dtype} of shape {given.shape}."
        )
    steps = shape[1]
    wrong = np.flatnonzero((given < 0) | (given > steps))
    if len(wrong):
        i = int(wrong[0])
        raise ArgumentError(f"{name}[{i}] is {given[i]}, but the samples have {steps} steps.")
    return np.arange(steps) < given[:, None]


def without_padding(X: Array, mask: Array) -> Array:
    """Return X (N, T, ...) with 0 at the steps where the mask (N, T) is False, even for NaN."""
    return np.where(mask.reshape(*mask.shape, *(1,) * (X.ndim - 2)), X, X.dtype.type(0))


def as_finite(X: Any, dtype: DType, who: str) -> Array:
    """Return X as finite floats of `dtype`: see `as_float` and `check_finite`."""
    given = as_real(X, who)
    cast = as_float(given, dtype, who)
    check_finite(cast, who, given)
    return cast


def check_finite(X: Array, who: str, given: Array | None = None) -> None:
    """Refuse NaN and infinity, and name the index of the first one.

    given    the numbers that were cast to X; they may be finite, but too large for its dtype
    """
    if X.dtype.kind != "f":
        return
    flat = X.ravel(order="K")
    if math.isfinite(np.vdot(flat, flat)):  # unlike dot, it does not warn if squares overflow
        return  # one pass without a temporary; if it overflowed, look at each element
    for i, row in enumerate(np.atleast_1d(X)):
        bad = np.argwhere(~np.isfinite(row))
        if len(bad):
            place = i, *bad[0]
            value = np.atleast_1d(X if given is None else given)[place]
            where = f"{who}[{', '.join(map(str, place))}] is {value!s}"
            if np.isfinite(value):
                wider = ', or create the model with dtype="float64"' * (X.dtype != np.float64)
                raise ArgumentError(
                    f"{where}, which is too large for {X.dtype}: scale the numbers{wider}."
                )
            raise ArgumentError(f"{where}: fill it or leave it out.")


def check_number(
    value: Any, who: str, *, minimum: float = -np.inf, above: float = -np.inf, below: float = np.inf
) -> float:
    """Return `value` as a finite float; require value >= minimum, value > above, value < below."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ArgumentTypeError(f"{who} must be a number, got {value!r}.")
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        number = math.inf
    if not (math.isfinite(number) and minimum <= number and above < number < below):
        bounds = [f">= {minimum:g}"] * (minimum > -np.inf) + [f"> {above:g}"] * (above > -np.inf)
        bounds += [f"< {below:g}"] * (below < np.inf)
        wanted = " and ".join(bounds) or "finite"
        raise ArgumentError(f"{who} must be {wanted}, got {value!r}.")
    return number


def check_count(value: Any, who: str, *, minimum: int = 1, maximum: float = sys.maxsize) -> int:
    """Return `value` as an integer; require minimum <= value <= maximum."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"{who} must be an integer, got {value!r}.")
    if value < minimum:
        raise ArgumentError(f"{who} must be >= {minimum}, got {value}.")
    if value > maximum:
        raise ArgumentError(f"{who} must be <= {maximum}, got {value}.")
    return int(value)


def check_flag(value: Any, who: str) -> bool:
    """Return `value`, which must be True or False, as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{who} must be True or False, got {value!r}.")
    return bool(value)


def check_option(value: Any, who: str, options: Sequence[str]) -> str:
    """Return `value`, which must be one of these texts."""
    if not isinstance(value, str) or value not in options:
        *first, last = (f'"{option}"' for option in options)
        listed = f"{', '.join(first)} or {last}" if first else last
        raise ArgumentError(f"{who} must be {listed}, got {value!r}.")
    return value


def as_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the NumPy type with this name or of this kind; None if there is no such type."""
    known = isinstance(dtype, type | np.dtype)
    if not known and not re.fullmatch(r"[a-z]+[0-9]*", str(dtype)):
        return None  # NumPy would read lists, and texts with commas, as several types
    try:
        return np.dtype(dtype)
    except TypeError:
        return None


def check_list(value: Any, who: str) -> list[Any]:
    """Return `value`, which must be a list, as in configs and state dicts."""
    if not isinstance(value, list):
        raise ArgumentTypeError(f"{who} must be a list, got {value!r}.")
    return value


def check_shape(shape: Any, who: str) -> Shape:
    """Return `shape` as a tuple of sizes, each at least 1."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise ArgumentTypeError(f"{who} takes a shape such as (28, 28), got {shape!r}.")
    if len(shape) > MOST_AXES:
        raise ShapeError(f"{who} has {len(shape)} axes, and samples have at most {MOST_AXES}.")
    return tuple(check_count(n, f"{who}: each size of shape {tuple(shape)}") for n in shape)


def choose(name: str, options: Mapping[str, T], kind: str) -> T:
    """Return the option with this name, ignoring case and punctuation."""
    known = {_plain(key): key for key in options}
    if _plain(name) in known:
        return options[known[_plain(name)]]
    near = difflib.get_close_matches(_plain(name), known, n=1)
    hint = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise ArgumentError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(sorted(options))}.")


def keywords(hints: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method so that an unknown keyword is refused with a suggestion.

    `hints` holds the suggestions for keywords of other frameworks; for all others, the error names
    the most similar keyword.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        known = [p.name for p in inspect.signature(method).parameters.values()][1:]

        @functools.wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for key in kwargs:
                if key not in known:
                    who, names = type(args[0]).__name__, known
                    if method.__name__ == "__init__":  # a subclass may have more of them
                        names = [p.name for p in parameters(type(args[0]))]
                    else:
                        who += f".{method.__name__}"
                    near = difflib.get_close_matches(key, names, n=1)
                    hint = hints.get(key) or (near and f"did you mean {near[0]}=?")
                    hint = hint or f"it takes {', '.join(names)}"
                    end = "" if hint.endswith("?") else "."
                    raise ArgumentTypeError(f"{who} takes no {key}=: {hint}{end}")
            return method(*args, **kwargs)

        return checked

    return decorate


def class_hint(value: object) -> str:
    """Return the remedy if `value` is a class and an object of it is expected, else ""."""
    return f" That is the class: write {value.__name__}()." if isinstance(value, type) else ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def snake_case(name: str) -> str:
    """Return `LeakyReLU` as `leaky_relu` and `Conv2D` as `conv2d`; acronyms are not split."""
    name = re.sub(r"P?ReLU|SiLU|SwiGLU", lambda acronym: acronym[0].capitalize(), name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
