"""Keys of the arrays of a step, such as "1.backward.dW": a path, a direction and a symbol."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from phitodeep.derivations.language.step import Step, flat
from phitodeep.errors import UnknownNameError

DIRECTIONS = ("forward", "backward", "update")
Key = tuple[str, str, str]


def joined(*parts: str) -> str:
    """The key of a path, a direction and a symbol, each of which may be empty."""
    return ".".join(part for part in parts if part)


def symbols_of(steps: Iterable[Step]) -> list[str]:
    """The symbols that steps compute, each once."""
    return list(dict.fromkeys(step.symbol for step in flat([*steps]) if step.symbol != "t"))


class Keys(dict[str, dict[str, list[str]]]):
    """The symbols of each direction, by path."""

    def every(self) -> Iterator[str]:
        """All keys, in the order of the step."""
        for path, directions in self.items():
            for direction, names in directions.items():
                yield from (joined(path, direction, name) for name in names)

    def find(self, key: object) -> Key:
        """The path, direction and symbol of a key; the direction may be left out."""
        if not isinstance(key, str):
            raise UnknownNameError(f"keys are texts such as {next(self.every())!r}, got {key!r}.")
        rest, _, name = key.rpartition(".")
        path, _, direction = rest.rpartition(".")
        if direction not in DIRECTIONS:
            path, direction = rest, ""
        passes = (direction,) if direction else ("forward", "backward")
        found = [d for d in passes if name in self.get(path, {}).get(d, ())]
        if len(found) == 1:
            return path, found[0], name
        if found:
            both = " or ".join(repr(joined(path, d, name)) for d in found)
            raise UnknownNameError(f"{key!r} is ambiguous: write {both}.")
        raise UnknownNameError(self._unknown(key, path))

    def _unknown(self, key: str, path: str) -> str:
        if key in self:
            return f"{key!r} is a path: add a symbol of it, which are {self._listed(key)}."
        keys = list(self.every())
        short = [re.sub(r"(forward|backward)\.", "", k) for k in keys]
        near = difflib.get_close_matches(key, dict.fromkeys([*keys, *short]), n=4)
        if path in self and "." in key:
            near = [k for k in keys if k.rpartition(".")[2] == key][:4] or near
            there = f". {path or 'The model'} has {self._listed(path)}"
        else:
            paths = [p for p in difflib.get_close_matches(path, self, n=8, cutoff=0) if p]
            more = ", and others" * (len(paths) < len(self) - 1)
            there = f": there are {', '.join(map(repr, paths))}{more}"
        meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"there is no {key!r}{there}.{meant}"

    def _listed(self, path: str) -> str:
        return "; ".join(f"{d}: {', '.join(names)}" for d, names in self[path].items())
