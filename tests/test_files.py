"""Files are written as a whole, or the old content stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from phitodeep.errors import DataError
from phitodeep.files import atomic_write, readable


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def write(path: str | Path, content: bytes, error: BaseException | None = None) -> None:
    """Write, and then fail; while the body runs, the old content is there."""
    old = Path(path).read_bytes() if Path(path).is_file() else None
    with atomic_write(path) as stream:
        stream.write(content)
        stream.flush()
        assert old is None or Path(path).read_bytes() == old
        if error is not None:
            raise error


def test_a_new_file_and_a_new_content(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for content in (b"one", b"another one", b""):
        write(path, content)
        assert path.read_bytes() == content
        assert names(tmp_path) == ["a.bin"]
    write(str(path), b"x")  # a path as text will do
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), ValueError("no")])
def test_the_old_content_stays_when_the_body_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        write(path, b"half of the new", error)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_full_disk_is_a_data_error_and_the_old_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match=r"cannot write .*a\.bin: No space left"):
        write(path, b"new", full)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_device_is_written_and_not_replaced() -> None:
    with pytest.raises(DataError, match=r"cannot write /dev/full: No space left on device"):
        write("/dev/full", b"x" * 10)
    assert Path("/dev/full").is_char_device()
    write("/dev/null", b"x")
    assert Path("/dev/null").is_char_device()


def test_a_folder_that_is_missing_or_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file or directory") as caught:
        write(tmp_path / "none" / "a.bin", b"x")
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(DataError, match="cannot write"):
        write(tmp_path, b"x")
    assert names(tmp_path) == []


def test_only_regular_files_of_a_limited_size_are_readable(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert readable(str(path), 5) == path
    with pytest.raises(DataError, match="it has 5 bytes, and at most 4 are read"):
        readable(path, 4)
    with pytest.raises(DataError, match="there is no such file"):
        readable(tmp_path / "b")
    with pytest.raises(DataError, match="it is a folder"):
        readable(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "zero").symlink_to("/dev/zero")
        for name in ("pipe", "zero"):
            with pytest.raises(DataError, match="it is not a regular file"):
                readable(tmp_path / name)
