"""The values of a config.json: each is checked when it is read, and an error names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phitodeep.core.checks import check_count, check_flag, check_list, check_number, check_option
from phitodeep.errors import DataError


class Settings:
    """A dict from JSON with typed access; `where` names its file, and its key inside the file.

    A key without a value, or with the value null, has the default. A key without a default is
    required.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise DataError(f"{where} must be a dict, got {values!r}.")
        self.values, self.where = values, where

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return any value, or refuse a missing one if there is no default."""
        value = self.values.get(key)
        if value is None and default is None:
            raise DataError(f"{self.where} lacks {key!r}.")
        return default if value is None else value

    def count(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        return check_count(self.get(key, default), self._name(key), minimum=minimum)

    def number(self, key: str, default: float | None = None, *, above: float = -math.inf) -> float:
        return check_number(self.get(key, default), self._name(key), above=above)

    def rate(self, key: str, default: float) -> float:
        """Return a rate of dropout."""
        return check_number(self.get(key, default), self._name(key), minimum=0, below=1)

    def flag(self, key: str, default: bool) -> bool:
        return check_flag(self.get(key, default), self._name(key))

    def option(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        return check_option(self.get(key, default), self._name(key), options)

    def numbers(self, key: str, length: int) -> list[float]:
        """Return a list of this many numbers above 0."""
        values = check_list(self.get(key), self._name(key))
        if len(values) != length:
            raise DataError(f"{self._name(key)} must have {length} numbers, got {len(values)}.")
        return [check_number(value, self._name(key), above=0) for value in values]

    def inner(self, key: str) -> Settings:
        """Return the dict under a key; an empty one if there is none."""
        return Settings(self.get(key, {}), self._name(key))

    def require(self, **only: Any) -> None:
        """Refuse a key whose value is not the only one that is supported; null stands for it."""
        for key, value in only.items():
            found = self.values.get(key)
            if found is not None and found != value:
                raise DataError(
                    f"{self._name(key)} is {found!r}, which is not supported: only "
                    f"{'null' if value is None else value} is."
                )

    def _name(self, key: str) -> str:
        return f"{self.where}: {key}"
