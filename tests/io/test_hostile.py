"""The faults that fuzzing found, each by its name."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phitodeep
from phitodeep.core.config import restored
from phitodeep.data import load_mnist
from phitodeep.errors import LONGEST, ArgumentError, DataError, PhitodeepError
from phitodeep.io.tensors import open_tensors, write_tensors
from phitodeep.layers import Dense, MaxPool2D
from phitodeep.model import Sequential
from phitodeep.optimization.schedules import ExponentialDecay, StepDecay
from tests.io.test_faults import Snapshot

X = np.arange(12.0).reshape(4, 3) % 5


def model() -> Sequential:
    return Sequential(Dense(3, 2), batch_size=2, seed=1)


def checkpoint(path: Path) -> None:
    model().train(X, X[:, :2], epochs=1, verbose=0, callbacks=[Snapshot(path, step=1)])


def resume(path: Path) -> None:
    model().train(X, X[:, :2], epochs=1, verbose=0, resume=path)


def rewrite(path: Path, key: str, change: Any) -> None:
    """Change the JSON of one text of a file."""
    with open_tensors(path) as file:
        arrays = {name: file.read(name) for name in file.entries}
        texts = dict(file.metadata)
    value = json.loads(texts[key])
    value = change(value) or value
    texts[key] = json.dumps(value)
    write_tensors(path, arrays, texts)


CALLBACK = {"callback": "ModelCheckpoint", "config": {"path": "../../etc/x"}}


@pytest.mark.parametrize("value", [CALLBACK, [CALLBACK], {"tuple": [CALLBACK]}])
def test_a_file_brings_no_callbacks(value: Any, tmp_path: Path) -> None:
    """A single callback instead of a list was accepted; it would have written to any path."""
    path = tmp_path / "a.safetensors"
    model().save(path)
    rewrite(path, "model", lambda m: m["config"].update(callbacks=value))
    with contextlib.suppress(PhitodeepError):
        assert phitodeep.load(path).callbacks == []


def test_the_settings_of_an_optimizer_are_checked_on_resuming(tmp_path: Path) -> None:
    """They were written into the optimizer as they came."""
    path = tmp_path / "a.safetensors"
    checkpoint(path)
    for name, bad in (("beta1", None), ("clip_norm", "x"), ("groups", 3), ("l2", [1]), ("eps", -1)):
        rewrite(path, "state", lambda s, n=name, b=bad: s["optimizer"]["now"].update({n: b}))
        start = model().optimizer.get_config()[name]
        with pytest.raises(PhitodeepError, match=f"Adam {name}"):
            resume(path)
        rewrite(path, "state", lambda s, n=name, b=start: s["optimizer"]["now"].update({n: b}))
    resume(path)


def test_an_array_is_read_once(tmp_path: Path) -> None:
    """Otherwise a small file could ask for one array a million times."""
    path = tmp_path / "a.safetensors"
    model().save(path, optimizer=True)
    rewrite(path, "state", lambda s: s.update(seed=[{"$array": "0.W"}]))
    with pytest.raises(DataError, match="its state needs the array"):
        phitodeep.load(path)
    checkpoint(path)
    rewrite(path, "state", lambda s: s.update(settings=[s["model"]] * 2))
    with pytest.raises(DataError, match="its state needs the array"):
        resume(path)


@pytest.mark.parametrize("shape", [(1,) * 65, (0, 1 << 62, 1 << 62)])
def test_a_shape_that_numpy_cannot_have(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    size = 4 * (0 not in shape)
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"state/a": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(DataError, match="damaged"):
        model().load_weights(path)


def test_deep_nesting_is_refused_before_anything_walks_through_it(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    model().save(path, optimizer=True)
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    rewrite(path, "state", lambda s: s.update(epoch=deep))
    with pytest.raises(DataError, match="'state' is nested too deeply"):
        phitodeep.load(path)


def test_a_config_has_at_most_ten_thousand_objects() -> None:
    with pytest.raises(ArgumentError, match="at most 10000 objects"):
        restored({"layers": [{"layer": "ReLU"}] * 10_001})


@pytest.mark.parametrize("name", ["Layer", "Container", "Optimizer", "Loss", "DenseReLU"])
def test_base_classes_are_not_in_files(name: str) -> None:
    kind = {"Optimizer": "optimizer", "Loss": "loss"}.get(name, "layer")
    with pytest.raises(ArgumentError, match=f"unknown {kind} '{name}'"):
        restored({"x": {kind: name}})


def test_the_message_of_an_error_is_short() -> None:
    with pytest.raises(PhitodeepError) as caught:
        restored({"x": {"layer": "x" * 1_000_000}})
    assert len(str(caught.value)) <= LONGEST


def test_windows_list_their_taps_when_they_are_used() -> None:
    assert MaxPool2D(10**6).build((10**6, 10**6, 1)) == (1, 1, 1)


@pytest.mark.parametrize("decay", [StepDecay(0.1, 1, factor=2), ExponentialDecay(0.1, 1, factor=2)])
def test_a_rate_that_grows_without_limit_is_infinite(decay: Any) -> None:
    assert decay(10**18) == np.inf


def test_a_small_file_that_unzips_into_a_large_one(tmp_path: Path) -> None:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name in names:
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(DataError, match="when they are unzipped"):
        load_mnist(folder=tmp_path)
