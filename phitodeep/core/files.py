"""Read files from outside safely, and write files so that the old content stays until then.

`readable` is asked before a file that a stranger may have made is opened. `atomic_write` replaces a
file when the new content is complete.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError

NO_UNNAMED_FILES = {errno.EISDIR, errno.EINVAL, errno.EOPNOTSUPP}  # of this system or disk

DRAFT = ".phitodeep-"  # how the names of unfinished files begin


def check_path(path: Any) -> Path:
    """Return `path` as a Path; refuse what cannot be the name of a file on any system."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"a path must be text or a Path, got {path!r}.")
    if "\0" in str(path):
        raise ArgumentError(f"a path cannot contain the character NUL, got {str(path)!r}.")
    return Path(path)


def readable(path: str | os.PathLike[str], largest: float = math.inf) -> Path:
    """Return the path of a regular file of at most `largest` bytes; refuse all other files.

    Opening a pipe would wait forever, and a device or a file with holes may have no end.
    """
    target = check_path(path)
    try:
        found = target.stat()
    except FileNotFoundError:
        raise DataError(f"cannot read {target}: there is no such file.") from None
    except OSError as error:
        raise DataError(f"cannot read {target}: {error.strerror or error}.") from error
    if not stat.S_ISREG(found.st_mode):
        what = "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is not a regular file"
        raise DataError(f"cannot read {target}: {what}.")
    if found.st_size > largest:
        size = f"it has {found.st_size:,} bytes, and at most {largest:,} are read"
        raise DataError(f"cannot read {target}: {size}.")
    if not os.access(target, os.R_OK):
        raise DataError(f"cannot read {target}: {os.strerror(errno.EACCES)}.")
    return target


@contextmanager
def naming(path: object, doing: str = "write") -> Iterator[None]:
    """Turn an error of the system in the `with` block into one that names the file."""
    try:
        yield
    except DataError:  # of another file
        raise
    except OSError as error:
        raise DataError(f"cannot {doing} {path}: {error.strerror or error}.") from error


def make_folder(folder: Path) -> None:
    """Create a folder, and those that it is in, if they are missing."""
    with naming(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` if the `with` block ends without an error.

    Folders that are missing are created.

    The new content is on the disk before it replaces the old one, so a crash or a full disk leaves
    the old file as it was. Where the system allows it, the new file has no name until the moment
    before; a process that is killed in that moment, or on another system, leaves a draft behind,
    which `drafts` finds.
    """
    target = Path(os.path.realpath(check_path(path)))  # a link stays a link
    make_folder(target.parent)
    with naming(target):
        if target.exists() and not target.is_file():  # a device or a pipe has no old content
            with target.open("wb") as stream:
                yield stream
            return
        with _draft(target) as draft:
            opened: IO[bytes] = _unnamed(target.parent) or draft.open("xb")
            with opened as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                _give_name(stream, draft)


def atomic_copy(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Replace `path` by the file `source`: by another name for it, or else by a copy."""
    target = Path(os.path.realpath(check_path(path)))
    try:
        with _draft(target) as draft:
            os.link(source, draft)
    except OSError:  # some disks allow only one name per file
        with atomic_write(target) as copy, open(source, "rb") as original:
            shutil.copyfileobj(original, copy)


def drafts(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file that a killed process left behind, with the name that it was to have."""
    for path in folder.glob(f"{DRAFT}*"):
        yield path, path.name.removeprefix(DRAFT).rpartition("-")[0]


def lock(path: Path) -> int | None:
    """Lock a file, and return the descriptor that holds the lock until it is closed.

    A lock also ends with its process, however that ends. None: there is no such file, or the system
    or the disk has no locks. Raises BlockingIOError if another descriptor holds a lock.
    """
    try:
        import fcntl

        if not path.is_file():
            return None
        held = os.open(path, os.O_RDWR)  # NFS does not lock what is open for reading
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return held


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield a path next to `target`; the file that is written there replaces `target`."""
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    name = target.name if len(os.fsencode(target.name)) < 200 else "long"
    draft = target.with_name(f"{DRAFT}{name}-{secrets.token_hex(4)}")
    try:
        yield draft
        if target.exists():
            draft.chmod(stat.S_IMODE(target.stat().st_mode))
        draft.replace(target)
        _sync(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def _unnamed(folder: Path) -> IO[bytes] | None:
    """Open a file without a name on the disk of this folder; None if that is impossible here."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "wb")
    except OSError as error:
        if error.errno in NO_UNNAMED_FILES:
            return None
        raise


def _give_name(stream: IO[bytes], path: Path) -> None:
    """Give a file from `_unnamed` a name; a file that has one already keeps it."""
    if os.fstat(stream.fileno()).st_nlink == 0:
        folder = os.open(path.parent, os.O_RDONLY)  # given a folder, os.link follows the link
        try:
            os.link(f"/proc/self/fd/{stream.fileno()}", path.name, dst_dir_fd=folder)
        finally:
            os.close(folder)


def _sync(folder: Path) -> None:
    """Make a renamed file last through a power failure, on systems that have a way to do so."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
