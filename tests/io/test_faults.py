"""Full disks, forbidden folders and other processes: a clear error, and the former file loads."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_equal

import phitodeep
from phitodeep import Adam, BatchNorm, Dense, ReLU, Sequential, kernels
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, PhitodeepWarning
from phitodeep.io.tensors import open_tensors, write_tensors
from phitodeep.model.callbacks import Callback, ModelCheckpoint
from phitodeep.optimization.schedules import StepDecay
from tests.processes import elsewhere, start

X = np.arange(12.0, dtype=np.float32).reshape(4, 3) % 5
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def small(seed=1, **options):
    layers = Dense(3, 4), BatchNorm(), ReLU(), Dense(2)
    return Sequential(*layers, batch_size=2, seed=seed, **options)


def train(model, path, **options):
    model.train(X, X[:, :2], verbose=0, **{"epochs": 1, **options})


class Snapshot(Callback):
    """Write a checkpoint without a state of its own after a step, or at the end of training."""

    def __init__(self, path, step=None):
        self.path, self.step = path, step

    def on_pause(self, model, run):
        if run.ends if self.step is None else model.optimizer.t == self.step:
            write_tensors(self.path, *model._packed(run.state_dict(weights=False)))


def former(path):
    """Write a file that every reader reads, and return its content."""
    train(small(), path, callbacks=[Snapshot(path)])
    return path.read_bytes()


def checkpointed(path):
    train(small(), path, callbacks=[ModelCheckpoint(path, keep=0)])


WRITERS = {
    "save": lambda path: small().save(path),
    "save_weights": lambda path: built().save_weights(path),
    "checkpoint": checkpointed,
}
READERS = {
    "load": phitodeep.load,
    "load_weights": lambda path: built().load_weights(path),
    "resume": lambda path: train(small(), path, resume=path),
}


def built():
    model = small()
    model.build((3,))
    return model


def refused(use, path, says):
    with pytest.raises(DataError, match=says):
        use(path)


@pytest.mark.parametrize("use", READERS | WRITERS)
def test_a_path_that_is_not_the_name_of_a_file(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, says in (
        ("", "folder|No such|no such|Is a directory"),
        (".", "folder|Is a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", "NUL"),
        (3, "path|PathLike"),
    ):
        with pytest.raises((DataError, ArgumentError, ArgumentTypeError), match=says):
            (READERS | WRITERS)[use](path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("use", READERS)
def test_what_is_not_a_regular_file_is_not_read(use, tmp_path):
    missing, loop, fifo = (tmp_path / name for name in ("missing", "loop", "fifo"))
    cases = [(missing, "there is no such file"), (missing / "a", "there is no such file")]
    if hasattr(os, "mkfifo"):
        loop.symlink_to(loop)
        os.mkfifo(fifo)
        cases += [(fifo, "not a regular file"), (loop, "Too many levels")]
    if Path("/dev/zero").exists():
        cases.append((Path("/dev/zero"), "not a regular file"))
    for path, says in cases:
        refused(READERS[use], path, says)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path):
    """The names in a folder may change at any time; what was opened stays as it was."""
    path = tmp_path / "a.safetensors"
    first, second = small(1), small(2)
    first.build((3,))
    second.build((3,))
    first.save(path)
    with open_tensors(path) as tensors:
        second.save(path)
        assert all(np.array_equal(tensors.read(k), a) for k, a in first.get_weights().items())
    weights = phitodeep.load(path).get_weights()
    assert all(np.array_equal(weights[key], a) for key, a in second.get_weights().items())


def check_forbidden(path, secret, shut):
    """As a user without rights: one file can be read, and nothing else can be used."""
    for use in WRITERS.values():  # imports all that it needs, while that may be read
        use(secret / "b.safetensors")
    for use in READERS.values():
        use(secret / "a.safetensors")
        use(shut)
    os.setgid(65534)
    os.setuid(65534)
    for use in WRITERS.values():
        for target in (path, path.with_name("new"), secret / "a.safetensors"):
            refused(use, target, "ermission")
    for use in READERS.values():
        use(path)
        refused(use, secret / "a.safetensors", "Permission denied")
        refused(use, shut, "ermission")


@linux
@pytest.mark.skipif(not ROOT, reason="only root can become another user")
def test_without_permission(tmp_path_factory):
    import tempfile

    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        path, secret, shut = (folder / name for name in ("a.safetensors", "secret", "shut"))
        secret.mkdir()
        before = former(path)
        former(shut)
        former(secret / "a.safetensors")
        secret.chmod(0o700)
        folder.chmod(0o755)
        path.chmod(0o644)
        shut.chmod(0o000)
        elsewhere(check_forbidden, path, secret, shut)
        assert path.read_bytes() == before
        assert sorted(os.listdir(folder)) == ["a.safetensors", "secret", "shut"]


def check_full(path):
    """Nothing can be written to this path, and the former file can still be read."""
    for name in ("save", "save_weights"):
        refused(WRITERS[name], path, "cannot write")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(small(), path, callbacks=[ModelCheckpoint(path, every_steps=1)], epochs=2)
    replaced, *found = [str(w.message) for w in caught if w.category is PhitodeepWarning]
    assert "will be replaced" in replaced, replaced
    assert len(found) >= 4
    assert all("cannot write" in text for text in found), found
    for use in READERS.values():
        use(path)


def check_no_growth(path):
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    check_full(path)


@linux
def test_a_file_that_may_not_grow(tmp_path):
    path = tmp_path / "a.safetensors"
    before = former(path)
    elsewhere(check_no_growth, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


@linux
@pytest.mark.skipif(not ROOT, reason="only root can mount a small disk")
def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not permitted here")
    try:
        path = disk / "a.safetensors"
        before = former(path)
        with (disk / "rest").open("wb") as rest:
            with contextlib.suppress(OSError):  # until nothing is left
                while True:
                    os.write(rest.fileno(), bytes(4096))
            check_full(path)
        assert path.read_bytes() == before
        assert sorted(os.listdir(disk)) == ["a.safetensors", "rest"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def checkpoints(*paths):
    for path in paths:
        train(small(), path, epochs=8, callbacks=[ModelCheckpoint(path, keep=3)])


def test_two_processes_write_checkpoints_into_one_folder(tmp_path):
    """Another one writes a and then b, and this one writes a again and again."""
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    other = start(checkpoints, a, a, b)
    while other.is_alive():
        if not a.exists():
            time.sleep(0.01)  # it has not begun
            continue
        with warnings.catch_warnings():  # that both write the same file
            warnings.simplefilter("ignore")
            checkpoints(a)
        for path in tmp_path.glob("[!.]*.safetensors"):
            try:
                phitodeep.load(path)
            except DataError:
                assert not path.exists()  # removed by its own run since it was listed
    other.join()
    assert other.exitcode == 0
    found = {path.stem for path in tmp_path.iterdir()}
    marks = ("", "-epoch6", "-epoch7", "-epoch8")
    assert {f"{name}{mark}" for name in "ab" for mark in marks} <= found
    assert {name for name in found if name[0] == "b"} == {f"b{mark}" for mark in marks}
    for path in tmp_path.iterdir():
        phitodeep.load(path)


def trained_further(path):
    """A model that goes on in this process, its losses, and the rates of the epochs."""
    model = phitodeep.load(path)
    history = model.train(X, X[:, :2], epochs=2, verbose=0)
    return model.state_dict(), list(history), history.rates


@pytest.mark.usefixtures("same_kernels")
def test_training_goes_on_in_another_process(tmp_path):
    kernels.use("numpy")  # as the other process does
    groups = {"0.*": {"alpha": StepDecay(0.1, 2), "weight_decay": 0.1}}
    model = small(optimizer=Adam(0.1, groups=groups))
    train(model, "")
    model.save(tmp_path / "a.safetensors", optimizer=True)
    found = elsewhere(trained_further, tmp_path / "a.safetensors")
    history = model.train(X, X[:, :2], epochs=2, verbose=0)
    assert_equal(found, (model.state_dict(), list(history), history.rates))


def test_eight_threads_predict_while_a_copy_is_trained():
    model = built()
    train(model, "", epochs=2)
    inputs = [np.random.default_rng(i).normal(size=(50, 3)).astype(np.float32) for i in range(8)]
    wanted = [model.predict(x, threads=1) for x in inputs]
    scores = [model.evaluate(x, x[:, :2]) for x in inputs]
    copy = model.copy()
    wrong = []

    def predict(i):
        found = (model.predict(inputs[i]) for _ in range(100))
        wrong.extend(i for Y in found if not np.array_equal(Y, wanted[i]))
        wrong.extend(
            i for _ in range(9) if model.evaluate(inputs[i], inputs[i][:, :2]) != scores[i]
        )

    threads = [threading.Thread(target=predict, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    train(copy, "", epochs=50)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not np.array_equal(copy.predict(inputs[0]), wanted[0])
