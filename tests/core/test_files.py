"""Files are written as a whole, or the old content stays."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from phitodeep import Dense, Sequential
from phitodeep.core.files import atomic_write, readable
from phitodeep.errors import DataError
from phitodeep.model.callbacks import CSVLogger, JSONLogger, ModelCheckpoint, TensorBoard
from phitodeep.training.rate_finder import RateRange


def names(folder):
    return sorted(os.listdir(folder))


def write(path, content, error=None):
    """Write, and then fail; while the body runs, the old content is there."""
    old = Path(path).read_bytes() if Path(path).is_file() else None
    with atomic_write(path) as stream:
        stream.write(content)
        stream.flush()
        assert old is None or Path(path).read_bytes() == old
        if error is not None:
            raise error


def test_a_new_file_and_a_new_content(tmp_path):
    path = tmp_path / "a.bin"
    for content in (b"one", b"another one", b""):
        write(path, content)
        assert path.read_bytes() == content
        assert names(tmp_path) == ["a.bin"]
    write(str(path), b"x")  # a path as text will do
    assert path.read_bytes() == b"x"


def test_the_old_content_stays_when_the_body_fails_or_the_disk_is_full(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error in (RuntimeError("no"), KeyboardInterrupt(), ValueError("no"), full):
        with pytest.raises(DataError if error is full else type(error)) as caught:
            write(path, b"half of the new", error)
        assert error is not full or re.search(r"cannot write .*a\.bin: No space", str(caught.value))
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["a.bin"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_device_is_written_and_not_replaced():
    with pytest.raises(DataError, match=r"cannot write /dev/full: No space left on device"):
        write("/dev/full", b"x" * 10)
    assert Path("/dev/full").is_char_device()
    write("/dev/null", b"x")
    assert Path("/dev/null").is_char_device()


def test_places_where_no_file_can_be(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="cannot write") as caught:
        write(tmp_path, b"x")
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, ValueError)
    write(tmp_path / "file", b"mine")
    for path in (tmp_path / "file" / "a.bin", tmp_path / "file" / "folder" / "a.bin"):
        with pytest.raises(DataError, match=r"cannot create \S+: (File exists|Not a directory)"):
            write(path, b"x")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "file")
    with pytest.raises(DataError, match=r"cannot write .*file: Permission denied"):
        write(tmp_path / "file", b"x")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"mine"


def picture(path):
    MODEL.train(X, y, epochs=2, verbose=0).plot(path=path)


def event_files(path):
    pytest.importorskip("tensorboardX")
    MODEL.train(X, y, epochs=1, verbose=0, callbacks=[TensorBoard(path)])


def onnx(path):
    pytest.importorskip("onnx")
    MODEL.export_onnx(path)


X, y = np.ones((4, 3)), np.ones((4, 2))
MODEL = Sequential(Dense(3, 2), seed=0)
MODEL.build((3,))
WRITERS = {
    "model": MODEL.save,
    "weights": MODEL.save_weights,
    "net.py": MODEL.export_numpy,
    "net.onnx": onnx,
    "step.html": lambda path: MODEL.trace(X, y).save(path),
    "step.svg": lambda path: MODEL.trace(X, y).save(path),
    "history.png": picture,
    "rates.png": lambda path: RateRange([1e-3, 1e-2], [3.0, 1.0], 1e-2).plot(path),
    "events": event_files,
    **{
        kind.__name__: lambda path, kind=kind: MODEL.train(
            X, y, epochs=1, verbose=0, callbacks=[kind(path)]
        )
        for kind in (CSVLogger, JSONLogger, ModelCheckpoint)
    },
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_creates_the_folder(name, tmp_path):
    pytest.importorskip("matplotlib" if name.endswith("png") else "numpy")
    path = tmp_path / "new" / "folder" / name
    WRITERS[name](path)
    assert path.exists()
    assert not name.endswith("png") or path.read_bytes().startswith(b"\x89PNG")


def test_only_regular_files_of_a_limited_size_are_readable(tmp_path):
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
