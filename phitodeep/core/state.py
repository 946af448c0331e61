"""State dicts: copying them as plain values, and checking them in `load_state_dict`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import numpy as np

from phitodeep.core.checks import as_real, check_count
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, did_you_mean, first_few

StateDict = dict[str, Any]  # nested dicts with string keys, of plain JSON values and arrays


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored."""

    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


def plain(value: Any) -> Any:
    """Copy `value`, with Python numbers instead of NumPy's and lists instead of tuples."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return copy.deepcopy(value)


def check_entries(state: Any, wanted: Collection[str], who: str) -> StateDict:
    """Return `state` as a dict with exactly these keys; an error names missing or unknown ones."""
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"{who} must be a dict, got {type(state).__name__}.")
    missing = [key for key in wanted if key not in state]
    extra = [key for key in state if key not in wanted]
    if missing or extra:
        found = ("lacks", missing), ("has the unknown", extra)
        named = [f"{what} {first_few([*map(repr, keys)])}" for what, keys in found if keys]
        hint = did_you_mean(extra[0], wanted) if extra else ""
        raise ArgumentError(f"{who} {' and '.join(named)}.{hint}")
    return dict(state)


def is_number(value: Any) -> bool:
    """Return whether `value` is a float, even infinite or nan, or an integer that fits in one."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, float) or (whole and abs(value) <= sys.float_info.max)


def check_types(state: Any, kinds: Mapping[str, Any], who: str) -> StateDict:
    """Return `state` as a dict with exactly these keys, whose values have these types."""
    entries = check_entries(state, kinds, who)
    return {key: check_type(value, kinds[key], f"{who}: {key}") for key, value in entries.items()}


def check_type(value: Any, kind: Any, who: str) -> Any:
    """Return `value`, which must have the type `kind`; a dict of a dataclass's fields becomes one.

    An int is a count from 0 on, a float any number. Other types are str, bool, `Array`, lists,
    dicts with texts as keys, dataclasses, and each of these or None.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and NoneType in kinds:
        return None
    outer, inside = get_origin(kinds[0]) or kinds[0], get_args(kinds[0])
    if outer is int:
        return check_count(value, who, minimum=0)
    if outer is np.ndarray:
        return stored_array(value, who)
    if is_dataclass(outer):
        return outer(**check_types(value, get_type_hints(outer), who))  # type: ignore[operator]
    if not (is_number(value) if outer is float else isinstance(value, outer)):
        wanted = WORDS[outer] + " or None" * (len(kinds) > 1)
        raise ArgumentTypeError(f"{who} must be {wanted}, got {value!r}.")
    if outer is dict:
        return {key: check_type(part, inside[1], f"{who}: {key}") for key, part in value.items()}
    if outer is list:
        return [check_type(part, inside[0], f"{who}: [{i}]") for i, part in enumerate(value)]
    return value


WORDS = {float: "a number", str: "text", bool: "a bool", list: "a list", dict: "a dict"}


def stored_array(array: Any, who: str) -> Array:
    """Return `array`, which must be an array of real numbers rather than a list."""
    if not isinstance(array, np.ndarray):
        raise ArgumentTypeError(
            f"{who} takes real numbers in an array, got {type(array).__name__}."
        )
    return as_real(array, who)


def check_array(array: Any, shape: Shape, who: str) -> Array:
    """Return `array` as an array of real numbers of this shape."""
    found = stored_array(array, who)
    if found.shape != shape:
        raise ShapeError(f"{who} must have shape {shape}, got {found.shape}.")
    return found


def load_all(parts: Iterable[tuple[Stateful, StateDict]]) -> None:
    """Load each state into its object; if one is refused, restore them all."""
    undo: list[tuple[Stateful, StateDict]] = []
    try:
        for part, state in parts:
            undo.append((part, part.state_dict()))
            part.load_state_dict(state)
    except BaseException:
        for part, before in reversed(undo):
            part.load_state_dict(before)
        raise
