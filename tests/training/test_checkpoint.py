"""ModelCheckpoint: which files there are after each epoch and step, and what never happens."""

import copy
import errno
import itertools
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phitodeep
from phitodeep import Dense, Sequential, Tanh
from phitodeep.core import files
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, PhitodeepWarning
from phitodeep.io.model_file import open_model
from phitodeep.model.callbacks import Callback, LambdaCallback, ModelCheckpoint, StopTraining
from phitodeep.training import checkpoint
from tests.conftest import assert_same, press
from tests.rows import LONG

rng = np.random.default_rng(7)
X = rng.standard_normal((12, 4)).astype(np.float32)
Y = rng.standard_normal((12, 2)).astype(np.float32)


def net(**options):
    layers = [Dense(4, 3), Tanh(), Dense(3, 2)]
    return Sequential(*layers, batch_size=4, seed=0, **options)


def train(keeper, epochs=5, *others, **options):
    model = options.pop("model", None) or net()
    options = {"epochs": epochs, "verbose": 0, "callbacks": [*others, keeper], **options}
    return model.train(X, Y, **options)


def names(folder):
    return {name.removesuffix(".safetensors") for name in os.listdir(folder)}


def place(path):
    """The finished epochs and the steps after them in a checkpoint, which must be whole."""
    phitodeep.load(path)
    with open_model(path) as file:
        state = file.state()
    return state["model"]["epoch"], state["place"]["step"]


def places(folder):
    return {path.stem: place(path) for path in folder.glob("*.safetensors")}


def observed(keeper, epochs, folder, **options):
    """The files after each pause."""
    seen = []

    def look(model, run):
        if folder.exists():
            seen.append((model.epoch, run.step, names(folder)))

    train(keeper, epochs, **{"callbacks": [keeper, LambdaCallback(on_pause=look)], **options})
    return seen


def test_path_is_the_newest_after_every_pause(tmp_path):
    keeper = ModelCheckpoint(tmp_path / "ck.safetensors", every=2, every_steps=2)
    found = []

    def look(model, run):
        path = tmp_path / "ck.safetensors"
        found.append(place(path) if path.exists() else None)

    train(keeper, 3, callbacks=[keeper, LambdaCallback(on_pause=look)])
    assert found == [
        *(None, None, (0, 2), (0, 2), (0, 2)),  # before training, steps 1 to 3, epoch 1
        *((1, 1), (1, 1), (1, 3), (2, 0)),  # step 4, 5, 6, and epoch 2
        *((2, 0), (2, 2), (2, 2), (3, 0)),  # step 7, 8, 9, and the last epoch
    ]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, {"ck", "ck-epoch3", "ck-epoch4", "ck-epoch5"}),
        ({"every": 2}, {"ck", "ck-epoch2", "ck-epoch4", "ck-epoch5"}),
        ({"every": 2, "keep": 1}, {"ck", "ck-epoch5"}),
        ({"keep": 0}, {"ck"}),
        ({"keep": 99}, {"ck", *(f"ck-epoch{n}" for n in range(1, 6))}),
        ({"every": None, "every_steps": 1}, {"ck", "ck-step14", "ck-step15", "ck-epoch5"}),
        ({"every": None, "every_steps": 999}, {"ck", "ck-epoch5"}),
        ({"every": 4, "every_steps": 7}, {"ck", "ck-epoch4", "ck-step14", "ck-epoch5"}),
        (
            {"every": 4, "every_steps": 7, "keep": 9},
            {"ck", "ck-step7", "ck-epoch4", "ck-step14", "ck-epoch5"},
        ),
    ],
)
def test_every_and_keep(options, left, tmp_path):
    train(ModelCheckpoint(tmp_path / "ck.safetensors", **options))
    assert names(tmp_path) == left
    assert place(tmp_path / "ck.safetensors") == (5, 0)


@pytest.mark.parametrize(
    ("every", "monitor", "mode", "best"),
    [
        (1, "test_loss", None, 2),
        (4, "test_loss", "max", 3),
        (None, "test_accuracy", None, 3),
        (4, "test_accuracy", "min", 2),
        *((every, None, None, None) for every in (1, 4, None)),
    ],
)
def test_the_best_epoch_stays(every, monitor, mode, best, tmp_path):
    """Epochs that are not due write nothing but the best."""
    values = {1: 5.0, 2: 3.0, 3: 7.0, 4: 4.0, 5: float("nan")}

    class Values(ModelCheckpoint):
        def on_epoch_end(self, model, epoch, logs):
            value = values[epoch]
            super().on_epoch_end(model, epoch, {"test_loss": value, "test_accuracy": value})

    steps = None if every else 99
    keeper = Values(tmp_path / "ck.safetensors", every, steps, 1, monitor, mode=mode)
    seen = [files for _, step, files in observed(keeper, 5, tmp_path) if step == 0]
    wanted = {"ck", "ck-epoch5"} | ({"ck-best"} if best else set())
    assert seen[-1] == wanted
    if every is None:
        assert seen[1:-1] == [{"ck-best"} if best else set()] * 4
    if best:
        assert place(tmp_path / "ck-best.safetensors") == (best, 0)
        train(keeper, 1)  # the best of another run counts no more
        assert place(tmp_path / "ck-best.safetensors") == (1, 0)


def test_settings_are_checked():
    for options, message in (
        ({"every": 0}, "every must be >= 1"),
        ({"every_steps": 0}, "every_steps must be >= 1"),
        ({"keep": -1}, "keep must be >= 0"),
        ({"every": None}, r"needs every= \(epochs\) or every_steps="),
        ({"mode": "up"}, 'mode must be "min" or "max", got \'up\''),
        ({"keep": 1.5}, "keep must be an integer"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            ModelCheckpoint("ck.safetensors", **options)


def test_the_path_is_a_text_and_the_best_is_unknown_at_first(tmp_path):
    keeper = ModelCheckpoint(tmp_path / "ck.safetensors")
    assert keeper.path == str(tmp_path / "ck.safetensors")
    assert keeper.state_dict()["best"] is None
    keeper.load_state_dict(keeper.state_dict() | {"name": "", "written": []})
    assert np.isnan(keeper.best)
    with pytest.raises(ArgumentTypeError, match="path"):
        ModelCheckpoint(5)


def test_ctrl_c_and_stopping_write_the_last_state(keyboard, tmp_path):
    keeper = ModelCheckpoint(tmp_path / "a" / "ck.safetensors", every=99)
    assert train(keeper, 5, press(8)).interrupted
    assert places(tmp_path / "a") == {"ck": (2, 2), "ck-step8": (2, 2)}

    def stop(model, epoch, logs):
        if epoch == 2:
            raise StopTraining

    for order in (1, -1):  # whichever callback comes first
        folder = tmp_path / f"b{order}"
        both = [LambdaCallback(on_epoch_end=stop), ModelCheckpoint(folder / "ck.safetensors", 99)]
        train(both[1], callbacks=both[::order])
        assert places(folder) == {"ck": (2, 0), "ck-epoch2": (2, 0)}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        *(("no suffix", "no suffix-epoch{}"), ("a.b.c", "a.b-epoch{}.c")),
        *(("ü (1)+[x].st", "ü (1)+[x]-epoch{}.st"), ("ck.safetensors", "ck-epoch{}")),
    ],
)
def test_names_follow_the_path(name, kept, tmp_path, monkeypatch):
    folder = tmp_path / "new" / "folders"
    train(ModelCheckpoint(folder / name, keep=2), 3)
    wanted = {name.removesuffix(".safetensors"), kept.format(2), kept.format(3)}
    assert names(folder) == wanted
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(ModelCheckpoint(name, keep=2), 3)  # a path without a folder
    assert names(tmp_path / "here") == wanted


def test_a_run_removes_only_its_own_files(tmp_path):
    net().save(tmp_path / "ck-epoch99.safetensors")
    net().save(tmp_path / "ck-step2.safetensors", optimizer=True)
    net().save_weights(tmp_path / "ck-epoch0.safetensors")
    (tmp_path / "ck-epoch98.safetensors").write_bytes(b"mine")
    (tmp_path / "ck-epoch97.safetensors").mkdir()
    before = names(tmp_path)
    train(ModelCheckpoint(tmp_path / "ck.safetensors", every_steps=3, keep=1), 4)
    assert names(tmp_path) == before | {"ck", "ck-epoch4"}
    (tmp_path := tmp_path / "next").mkdir()
    model, keeper = net(), ModelCheckpoint(tmp_path / "ck.safetensors", keep=1)
    train(keeper, 2, model=model)
    train(keeper, 2, model=model)
    assert names(tmp_path) == {"ck", "ck-epoch2", "ck-epoch4"}
    (tmp_path := tmp_path / "next").mkdir()
    one = ModelCheckpoint(tmp_path / "ck.safetensors", keep=1)
    other = copy.deepcopy(one)
    train(one, 3)
    with pytest.warns(PhitodeepWarning, match="not a checkpoint of this run"):
        train(other, 2)
    assert names(tmp_path) == {"ck", "ck-epoch2", "ck-epoch3"}


def test_a_file_that_came_into_the_place_of_a_checkpoint_stays(tmp_path):
    """Even under a name that this run has written."""

    def swap(model, epoch):
        if epoch == 2:
            (tmp_path / "ck-epoch1.safetensors").write_bytes(b"mine")
        if epoch == 3:
            net().save(tmp_path / "ck-epoch2.safetensors")
        if epoch == 4:
            (tmp_path / "ck-epoch3.safetensors").unlink()
            (tmp_path / "ck-epoch3.safetensors").mkdir()
        if epoch == 5:
            (tmp_path / "ck-epoch4.safetensors").unlink()

    train(
        ModelCheckpoint(tmp_path / "ck.safetensors", keep=1), 5, LambdaCallback(on_epoch_begin=swap)
    )
    assert names(tmp_path) == {"ck", "ck-epoch1", "ck-epoch2", "ck-epoch3", "ck-epoch5"}


@pytest.mark.parametrize("other", ["ck", "ck2", "ck-epoch3", "c"])
def test_two_runs_in_one_folder(other, tmp_path):
    train(ModelCheckpoint(tmp_path / "ck.safetensors", keep=2))
    before = names(tmp_path)
    assert before == {"ck", "ck-epoch4", "ck-epoch5"}
    replaced = pytest.warns(PhitodeepWarning, match="ck.safetensors is not .* will be replaced")
    with replaced if other == "ck" else nullcontext():
        train(ModelCheckpoint(tmp_path / f"{other}.safetensors", keep=1), 3)
    assert names(tmp_path) == before | {other, f"{other}-epoch3"}


def test_two_runs_under_one_name_at_the_same_time(tmp_path):
    """Neither removes what the other wrote last."""
    path, inner = tmp_path / "ck.safetensors", ModelCheckpoint(tmp_path / "ck.safetensors", keep=1)

    def another(model, epoch, logs):
        if epoch == 3:
            with pytest.warns(PhitodeepWarning, match="this run|another training"):
                train(inner, 2)  # writes ck-epoch1 and ck-epoch2

    train(ModelCheckpoint(path, keep=2), 5, LambdaCallback(on_epoch_end=another))
    assert names(tmp_path) == {"ck", "ck-epoch2", "ck-epoch4", "ck-epoch5"}


class Crash(Exception):
    pass


def crash_at(monkeypatch, count, what):
    """Let call number `count` of a function in os fail in a way that nothing catches."""
    real, calls = getattr(os, what), iter(range(1, 10**6))

    def call(*args, **options):
        if next(calls) == count:
            raise Crash
        return real(*args, **options)

    monkeypatch.setattr(os, what, call)


STRIDE = 1 if LONG else 13  # of the system calls, the one after which training crashes
EPOCHS = 3 if LONG else 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model that was trained without a crash, and the files that this left."""
    model, folder = net(), tmp_path_factory.mktemp("whole")
    train(ModelCheckpoint(folder / "ck.safetensors", every_steps=1), EPOCHS, model=model)
    return model, names(folder)


@pytest.mark.parametrize("what", ["link", "fsync", "open", "replace", "unlink"])
def test_leftovers_of_a_crash_are_pruned_after_resume(what, whole, tmp_path, monkeypatch):
    """Whichever system call is the last one."""
    crashes = 0
    for count in range(1, 400, STRIDE):
        folder = tmp_path / f"{what}{count}"
        path = folder / "ck.safetensors"

        def keeper(path=path):
            return ModelCheckpoint(path, every_steps=1)

        with monkeypatch.context() as patch:
            crash_at(patch, count, what)
            try:
                train(keeper(), EPOCHS)
            except Crash:
                crashes += 1
            else:
                break
        assert len(places(folder)) == len(names(folder))
        model = net()
        train(keeper(), EPOCHS, model=model, resume=path if path.exists() else None)
        assert_same(model.get_weights(), whole[0].get_weights())
        assert names(folder) == whole[1], count
        shutil.rmtree(folder)
    assert crashes >= max(1, (20 if what != "unlink" else 5) // STRIDE)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fcntl")
def test_another_training_with_the_same_path_is_noticed(tmp_path):
    path = tmp_path / "ck.safetensors"

    def other(model, epoch):
        if epoch == 2:
            with pytest.warns(PhitodeepWarning, match="another training that is running") as told:
                train(ModelCheckpoint(path), 2)
            assert len(told) == 1

    train(ModelCheckpoint(path), 3, LambdaCallback(on_epoch_begin=other))
    assert all(name.startswith("ck") for name in os.listdir(tmp_path))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fcntl")
def test_another_training_that_writes_first_is_noticed(tmp_path):
    path, held = tmp_path / "ck.safetensors", list[Any]()

    def write(model):
        path.write_bytes(b"of another training")
        held.append(files.lock(path))

    with pytest.warns(PhitodeepWarning, match="also the checkpoint of another training") as told:
        train(
            ModelCheckpoint(path), 3, LambdaCallback(on_epoch_begin=lambda m, e: e > 1 or write(m))
        )
    os.close(held[0])
    assert len(told) == 1
    train(ModelCheckpoint(path), 4, resume=path)  # nobody else writes now: no warning


def test_another_training_that_takes_the_lock_in_between_is_noticed(tmp_path, monkeypatch):
    path, free = tmp_path / "ck.safetensors", itertools.chain([True], itertools.repeat(False))

    def lock(path):
        if not next(free):
            raise BlockingIOError
        return os.open(path.parent, os.O_RDONLY)

    monkeypatch.setattr(checkpoint, "lock", lock)
    with pytest.warns(PhitodeepWarning, match="also the checkpoint of another training") as told:
        train(ModelCheckpoint(path), 2)
    assert len(told) == 1


def test_drafts_of_a_killed_process_are_removed(tmp_path):
    mine = [f"ck{mark}.safetensors" for mark in ("", "-best", "-step7", "-epoch2")]
    others = ["ck2.safetensors", "ck-old.safetensors", "ck-stepx.safetensors", "ck-step7.npz", "x"]
    for name in (*mine, *others):
        (tmp_path / f"{files.DRAFT}{name}-0123abcd").write_bytes(b"half")
    assert {name for _, name in files.drafts(tmp_path)} == {*mine, *others}
    train(ModelCheckpoint(tmp_path / "ck.safetensors"), 1)
    assert {name for _, name in files.drafts(tmp_path)} == set(others)


def full(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["fsync", "replace", "unlink", "mkdir", "rmtree"])
def test_a_disk_that_fails_later_does_not_end_training(what, tmp_path):
    """It is full for two epochs, or the folder has disappeared, which is created again."""
    folder, patch = tmp_path / "run", pytest.MonkeyPatch()

    def fill(model, epoch):
        if epoch == 4 and what == "rmtree":
            shutil.rmtree(folder)
        elif epoch == 4:
            patch.setattr(os, what, full)
        if epoch == 6:
            patch.undo()

    straight, model = net(), net()
    straight.train(X, Y, epochs=7, verbose=0)
    keeper = ModelCheckpoint(folder / "ck.safetensors", keep=2)
    warns = pytest.warns(PhitodeepWarning, match="No space left on device.* Training cont")
    with patch.context(), nullcontext() if what in ("mkdir", "rmtree") else warns:
        train(keeper, 7, LambdaCallback(on_epoch_begin=fill), model=model)
    patch.undo()
    assert_same(model.get_weights(), straight.get_weights())
    assert place(folder / "ck.safetensors") == (7, 0)
    assert {"ck", "ck-epoch6", "ck-epoch7"} <= names(folder)
    assert not [*files.drafts(folder)]


def test_a_disk_that_allows_only_one_name_per_file(tmp_path, monkeypatch):
    def no_links(*args, **options):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.delattr(os, "O_TMPFILE")
    train(ModelCheckpoint(tmp_path / "ck.safetensors", keep=1), 3)
    assert places(tmp_path) == {"ck": (3, 0), "ck-epoch3": (3, 0)}
    assert len({path.stat().st_ino for path in tmp_path.iterdir()}) == 2


class Odd(Callback):
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def refused(path, message, *others, model=net):
    made = model()
    before, steps = made.get_weights(), []
    count = LambdaCallback(on_batch_end=lambda *_: steps.append(1))
    with pytest.raises((ArgumentTypeError, ArgumentError, DataError), match=message):
        train(ModelCheckpoint(path), 2, *others, count, model=made)
    assert_same(made.get_weights(), before)
    assert not steps


def test_a_state_that_cannot_be_written(tmp_path):
    for value, message in (
        (object(), "the state has <object .* at 'state/callbacks/0/state/value'"),
        ({1: 2}, "the state has the key 1"),
        ({"$array": 2}, r"the state has the key '\$array'"),
        ({1, 2}, "which cannot be saved"),
        (np.ones(2, complex), "complex128, which cannot be saved"),
        (np.array(["a"]), "<U1, which cannot be saved"),
        (np.array([None]), "object, which cannot be saved"),
    ):
        refused(tmp_path / "ck.safetensors", message, Odd(value))
        assert names(tmp_path) == set()


def test_settings_that_cannot_be_written(tmp_path):
    path = tmp_path / "ck.safetensors"
    refused(path, "lambda.* cannot be written down", model=lambda: net(alpha=lambda step: 0.1))
    refused(path, "cannot be written down", model=lambda: net(metrics=[lambda P, T: 0.0]))
    assert names(tmp_path) == set()
    with pytest.raises(ArgumentError, match="monitors 'test_f1', but the logs have only train_l"):
        train(ModelCheckpoint(path, monitor="test_f1"))


def test_paths_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "ck.safetensors").write_text("old")
    for name, message in (
        ("folder", "folder: it is a folder; name a file in it"),
        ("file/ck.safetensors", "cannot create .*file: File exists|Not a dir"),
        ("file/a/ck.safetensors", "cannot create .*: Not a directory"),
        ("ck-{epoch}.safetensors", "without braces"),
    ):
        refused(tmp_path / name, message)
    for place in (tmp_path, tmp_path / "ck.safetensors"):
        monkeypatch.setattr(os, "access", lambda path, mode, place=place: Path(path) != place)
        refused(tmp_path / "ck.safetensors", f"no permission to write to {place}.$")
    assert (tmp_path / "ck.safetensors").read_text() == "old"
    assert (tmp_path / "file").read_text() == "mine"
    assert names(tmp_path) == {"ck", "file", "folder"}


def test_another_path_may_be_used_and_names_in_a_strangers_file_do_no_harm(tmp_path):
    train(ModelCheckpoint(tmp_path / "a" / "ck.safetensors"), 2)
    before = names(tmp_path / "a")
    keeper = ModelCheckpoint(tmp_path / "b" / "other.st", keep=1)
    train(keeper, 4, resume=tmp_path / "a" / "ck.safetensors")
    assert names(tmp_path / "a") == before
    assert names(tmp_path / "b") == {"other.st", "other-epoch4.st"}
    (tmp_path := tmp_path / "next").mkdir()
    folder = tmp_path / "inner"
    train(ModelCheckpoint(folder / "ck.safetensors"), 1)
    keeper = ModelCheckpoint(folder / "ck.safetensors", keep=0)
    state = {"training": True, "best": None, "name": "x"}
    strange = ["../ck-epoch1.safetensors", "/etc/passwd", "ck-epoch.safetensors", "ck.safetensors"]
    strange += ["ck-epoch1.safetensors/..", "ck-epoch1xsafetensors", "\0", ""]
    for name in (*strange, "x-epoch1.safetensors"):
        keeper.load_state_dict({**state, "written": [name]})
        assert keeper.written == []
    keeper.load_state_dict({**state, "written": ["ck-epoch1.safetensors"]})
    assert keeper.written == ["ck-epoch1.safetensors"]
    keeper._prune()
    assert keeper.written == []
    assert names(folder) == {"ck", "ck-epoch1"}  # the file of another run


def test_its_state_is_json_and_keeps_the_best_so_far(tmp_path):
    path = tmp_path / "ck.safetensors"
    keeper, other, later = (
        ModelCheckpoint(path, monitor="train_loss", mode="max") for _ in range(3)
    )
    assert net(callbacks=[keeper]).copy().callbacks[0].get_config() == keeper.get_config()
    train(keeper, 4)
    state = json.loads(json.dumps(keeper.state_dict()))
    other.load_state_dict(state)
    assert other.state_dict() == keeper.state_dict()
    assert state["written"] == [f"ck-epoch{n}.safetensors" for n in (2, 3, 4)]
    (tmp_path / "ck-best.safetensors").unlink()
    train(later, 6, resume=path)
    assert "ck-best" not in names(tmp_path)  # the first epoch had the greatest loss


def test_the_error_of_another_callback_is_the_one_that_is_raised(tmp_path):
    def fails(*_):
        raise RuntimeError("mine")

    callbacks = [LambdaCallback(on_train_begin=fails), ModelCheckpoint(tmp_path / "a.st")]
    with pytest.raises(RuntimeError, match="mine"):
        Sequential(Dense(3, 2)).train(
            np.ones((4, 3)), np.ones((4, 2)), callbacks=callbacks, verbose=0
        )
