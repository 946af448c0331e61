"""JSON from files that may be damaged: it is read or refused, whatever it holds."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from phitodeep.errors import DataError


def parsed(text: str | bytes, path: object, what: str) -> Any:
    """Return a text of the file `path` as plain values; `what` names it in errors."""

    def refuse(constant: str) -> NoReturn:
        raise DataError(f"{path} is damaged: {constant} in {what} is not JSON.")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise DataError(f"{path} is damaged: {what} is nested too deeply.") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number with thousands of digits
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged: {what} cannot be read: {error}.") from error
