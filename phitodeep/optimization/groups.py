"""Parameter groups: separate options for the parameters whose path matches a pattern."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from phitodeep.core.checks import check_number
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.optimization.schedules import check_rate

Groups = Mapping[str, Mapping[str, Any]]  # pattern of paths -> alpha, weight_decay


def checked_groups(groups: Any, who: str) -> dict[str, dict[str, Any]]:
    """Return `groups` as dicts, after checking patterns, options and values."""
    if not isinstance(groups, Mapping):
        raise ArgumentTypeError(
            f'{who} must be a dict such as {{"0.*": {{"alpha": 1e-4}}}}, got {groups!r}.'
        )
    for pattern, own in groups.items():
        if not (isinstance(pattern, str) and pattern and isinstance(own, Mapping)):
            raise ArgumentTypeError(
                f"{who} must map each pattern to a dict of options, got {pattern!r}: {own!r}."
            )
        for option, value in own.items():
            where = f"{who}: {option} of {pattern!r}"
            if option == "alpha":
                check_rate(value, where)
            elif option == "weight_decay":
                check_number(value, where, minimum=0)
            else:
                raise ArgumentError(
                    f"{who}: {pattern!r} has the unknown option {option!r}. "
                    "Known: alpha, weight_decay."
                )
    return {pattern: dict(own) for pattern, own in groups.items()}


def matching(pattern: str, paths: Sequence[str], who: str) -> list[str]:
    """Return the paths that a pattern matches; refuse a pattern that matches none."""
    found = [path for path in paths if fnmatchcase(path, pattern)]
    if not found:
        near = difflib.get_close_matches(pattern, paths, n=8, cutoff=0)
        raise ArgumentError(
            f"{who}: {pattern!r} matches no parameter. Similar ones: {', '.join(near)}."
        )
    return found


def first_matches(patterns: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Return for each path the first pattern that matches it, or "".

    A pattern that is the first match of no path is refused.
    """
    first = {path: next((p for p in patterns if fnmatchcase(path, p)), "") for path in paths}
    for pattern in patterns:
        if pattern not in first.values():
            matching(pattern, paths, "groups")
            raise ArgumentError(
                f"groups: all parameters that {pattern!r} matches belong to earlier patterns."
            )
    return first
