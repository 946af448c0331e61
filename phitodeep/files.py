"""Write files safely: the old content stays until the new content is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from phitodeep.errors import DataError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` if the `with` block ends without an error."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a device or a pipe has no old content
            with target.open("wb") as stream:
                yield stream
            return
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with draft.open("wb") as stream:
                yield stream
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}.") from error
