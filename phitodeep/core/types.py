"""Types that many signatures share, and functions that describe an object by its settings."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]  # in layers: of one sample, without the batch axis
Schedule = Callable[[int], float]  # optimizer step (from 0) -> learning rate
DType = npt.DTypeLike | None
PathLike = str | os.PathLike[str]  # the name of a file


def each(values: Any) -> tuple[Any, ...]:
    """Return several values, which are a tuple, or a single one, as a tuple."""
    return values if isinstance(values, tuple) else (values,)


def one(values: Sequence[Any], single: bool) -> Any:
    """Return the only one of the values if single, else all as a tuple: the inverse of `each`."""
    return values[0] if single else tuple(values)


def numbered(symbol: str, value: Any) -> dict[str, Any]:
    """Return a value under its symbol, such as X; several, a tuple, under X1, X2, ..."""
    if not isinstance(value, tuple):
        return {symbol: value}
    return {f"{symbol}{k}": part for k, part in enumerate(value, 1)}


def on_each(run: Callable[[Any], Any], values: Any) -> Any:
    """Return a function of a value, or a tuple with that of each of several; None stays None."""
    if isinstance(values, tuple):
        return tuple([on_each(run, value) for value in values])
    return None if values is None else run(values)


def cut(values: Any, rows: Any) -> Any:
    """Return these rows of an array, or of each of several; None stays None."""
    return on_each(lambda A: A[rows], values)


def joined(parts: list[Any]) -> Any:
    """Return arrays one after another along the first axis, or each of several arrays."""
    if isinstance(parts[0], tuple):
        return tuple([np.concatenate(arrays) for arrays in zip(*parts, strict=True)])
    return np.concatenate(parts)


def parameters(cls: type) -> list[inspect.Parameter]:
    """Return the constructor's parameters, with the next base class's instead of `**options`."""
    found: dict[str, inspect.Parameter] = {}
    for k, own in enumerate(constructors(cls)):
        for p in own:
            by_name = p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)  # as what is passed on
            if p.kind is not p.VAR_KEYWORD and (by_name or not k):
                found.setdefault(p.name, p)
    return list(found.values())


def constructors(cls: type) -> Iterator[tuple[inspect.Parameter, ...]]:
    """Yield the parameters of the constructor, then the base classes' that get its `**options`."""
    for owner in cls.__mro__[:-1]:  # object has no settings
        if "__init__" in vars(owner):
            own = _arguments(vars(owner)["__init__"])
            yield own
            if all(p.kind is not p.VAR_KEYWORD for p in own):
                return


@functools.lru_cache(1 << 10)  # describing a nested model asks for each class very often
def _arguments(init: Callable[..., None]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a constructor but for self."""
    return tuple(inspect.signature(init).parameters.values())[1:]


def settings(obj: object) -> dict[str, Any]:
    """Return the constructor arguments of `obj`, read from the attributes of the same names."""
    return {p.name: getattr(obj, p.name) for p in parameters(type(obj)) if hasattr(obj, p.name)}


def describe(obj: object) -> str:
    """Return the call that creates `obj`, such as `Dense(784, 128)`, without default arguments."""
    shown: list[str] = []
    gap = False  # after an omitted argument, the others need their names
    for p in parameters(type(obj)):
        value = getattr(obj, p.name, p.default)
        if p.kind is p.VAR_POSITIONAL:
            shown += [repr(v) for v in getattr(obj, p.name, ())]
        elif same(value, p.default):
            gap = True
        elif value is not None or p.default is not p.empty:
            positional = p.kind is p.POSITIONAL_OR_KEYWORD and not gap
            shown.append(repr(value) if positional else f"{p.name}={value!r}")
    return f"{type(obj).__name__}({', '.join(shown)})"


def same(a: Any, b: Any) -> bool:
    """Return whether two settings, which may be arrays, are equal."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)
