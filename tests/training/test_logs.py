"""Logs: every epoch is in the file once, whatever happens, and the settings of its run are too."""

import copy
import csv
import errno
import itertools
import json
import math
import os
import pickle
import signal
import struct
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import phitodeep
from phitodeep import Dense, Lambda, Sequential
from phitodeep.errors import DataError, PhitodeepError, PhitodeepWarning
from phitodeep.model.callbacks import Callback, EarlyStopping, LambdaCallback
from phitodeep.optimization.schedules import CosineDecay
from phitodeep.training import logs as module
from phitodeep.training.checkpoint import ModelCheckpoint
from phitodeep.training.logs import CSVLogger, JSONLogger, TensorBoard

rng = np.random.default_rng(0)
X = rng.standard_normal((12, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)

KINDS = {
    "csv": CSVLogger,
    "jsonl": JSONLogger,
    "tensorboard": lambda path, append=True: TensorBoard(path),
}
FILES = ["csv", "jsonl"]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_file = pytest.mark.parametrize("kind", FILES)


def net(**given):
    options = {"optimizer": "adam", "alpha": 0.05, "seed": 0, "batch_size": 5, "epochs": 2}
    return Sequential(Dense(3, 4), Dense(4, 1), **{**options, **given})


def mean_error(P, T):
    return float(np.mean(P - T))


def rows(path):
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def lines(path):
    """The objects of a file of JSON lines; NaN and infinity are not JSON."""

    def refuse(name):
        raise ValueError(name)

    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def epochs_of(path):
    return [line for line in lines(path) if line["event"] == "epoch"]


def events(path):
    """The events of one file, whose checksums are right."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        sums = struct.unpack("<2I", data[8:12] + data[12 + length : 16 + length])
        body = data[12 : 12 + length]
        assert sums == (masked_crc32c(data[:8]), masked_crc32c(body))
        yield Event.FromString(body)
        data = data[16 + length :]


def shown(folder):
    """What TensorBoard shows for each tag: points after a restart replace those from its step."""
    points = {}
    for path in sorted(folder.iterdir()):
        first, *others = events(path)
        assert first.file_version == "brain.Event:2"
        assert [event.step for event in others if event.HasField("session_log")] == [first.step]
        for event in others:
            if event.HasField("session_log"):
                assert event.session_log.status == event.session_log.START
                points = {t: [p for p in ps if p[0] < event.step] for t, ps in points.items()}
            for value in event.summary.value:
                points.setdefault(value.tag, []).append((event.step, value))
    return points


def scalars(folder):
    return {
        tag: [(step, value.simple_value) for step, value in found]
        for tag, found in shown(folder).items()
        if found and found[0][1].HasField("simple_value")
    }


def numbers(kind, path):
    """The epochs in a log of any kind, with their training losses in float32."""
    if kind == "tensorboard":
        return scalars(path)["loss/train"]
    found = rows(path) if kind == "csv" else epochs_of(path)
    return [(int(row["epoch"]), float(np.float32(row["train_loss"]))) for row in found]


def losses(history, first=1):
    return [(i, float(np.float32(train))) for i, (train, _) in enumerate(history, first)]


class Crash(Exception):
    """The computer is switched off."""


def crash(epoch):
    """A crash after an epoch, when all callbacks of before have seen it."""

    def check(model, done, logs):
        if done == epoch:
            raise Crash

    return LambdaCallback(on_epoch_end=check)


def trained(file, *callbacks, crashes=None, data=(X, Y), **options):
    """Train with a checkpoint in `file`; with `crashes`, only until a crash after that epoch."""
    model, every = options.pop("model", None) or net(), options.pop("every", {})
    given = [ModelCheckpoint(file, **every), *callbacks]
    options = {"verbose": 0, **options}
    if crashes is None:
        return model.train(*data, callbacks=given, **options)
    with pytest.raises(Crash):
        model.train(*data, callbacks=[*given, crash(crashes)], **options)
    return None


def test_the_csv_has_a_row_an_epoch(tmp_path):
    path, model, seen = tmp_path / "log.csv", net(), []
    look = LambdaCallback(on_epoch_end=lambda *_: seen.append(len(rows(path))))
    given = [CSVLogger(path), look]
    history = model.train(X, Y, X, Y, callbacks=given, metrics=["mae"], verbose=0)
    assert seen == [1, 2]  # the file is whole after every epoch
    found = rows(path)
    columns = ["epoch", "train_loss", "train_mae", "test_loss", "test_mae", "settings"]
    assert [list(row) for row in found] == [columns] * 2
    assert [row["epoch"] for row in found] == ["1", "2"]
    assert [(float(r["train_loss"]), float(r["test_loss"])) for r in found] == history  # exactly
    assert [float(r["test_mae"]) for r in found] == history.metrics["test_mae"]
    assert os.listdir(tmp_path) == ["log.csv"]


def test_the_json_has_a_line_an_epoch_and_null_for_nan(tmp_path):
    path, log = tmp_path / "log.jsonl", JSONLogger(tmp_path / "log.jsonl")
    model = net(alpha=CosineDecay(0.3, 50), metrics=["mae"])
    history = model.train(X, Y, -X, Y, epochs=50, callbacks=[EarlyStopping(2), log], verbose=0)
    assert len(history) < 50
    assert len(set(history.rates)) == len(history)
    names = ("train_loss", "test_loss", "seconds", "rate", "train_mae", "test_mae")
    lists = (*zip(*history, strict=True), history.seconds, history.rates)
    lists += history.metrics["train_mae"], history.metrics["test_mae"]
    assert epochs_of(path) == [
        {"event": "epoch", "epoch": i, **dict(zip(names, values, strict=True))}
        for i, values in enumerate(zip(*lists, strict=True), 1)
    ]
    (tmp_path := tmp_path / "next").mkdir()
    path = tmp_path / "log.jsonl"

    def spoil(model, epoch, logs):
        logs.update(train_nan=math.nan, train_inf=-math.inf, train_f32=np.float32(0.5))

    first = LambdaCallback(on_epoch_end=spoil)
    net(epochs=1).train(X, Y, callbacks=[first, JSONLogger(path)], verbose=0)
    (found,) = epochs_of(path)
    assert (found["train_nan"], found["train_inf"], found["train_f32"]) == (None, None, 0.5)


def test_tensorboard_has_a_point_an_epoch(tmp_path):
    log = TensorBoard(tmp_path / "runs" / "a")
    history = net().train(X, Y, X, Y, callbacks=[log], metrics=[mean_error], verbose=0)
    wanted = {
        "loss/train": [train for train, _ in history],
        "loss/test": [test for _, test in history],
        "mean_error/train": history.metrics["train_mean_error"],
        "mean_error/test": history.metrics["test_mean_error"],
        "epoch/rate": [0.05, 0.05],
        "epoch/seconds": history.seconds,
    }
    assert scalars(log.log_dir) == {
        tag: [(i, float(np.float32(value))) for i, value in enumerate(values, 1)]
        for tag, values in wanted.items()
    }
    both = {name: [f"{name}/train", f"{name}/test"] for name in ("loss", "mean_error")}
    assert charts(log.log_dir) == [both]  # once, as the charts stay the same
    model, log = net(), TensorBoard(tmp_path / "later", histograms=1)
    for callbacks in ([], [log]):
        model.train(X, Y, callbacks=callbacks, verbose=0)
    found = shown(log.log_dir)
    assert [step for step, _ in found["settings/text_summary"]] == [3]
    assert [len(value.histo.bucket) for _, value in found["weights/0.W"]] == [31, 31]


def charts(folder):
    """The charts of the tab "Custom scalars", each time that they were given."""
    from tensorboardX.proto.layout_pb2 import Layout

    given = [value.tensor.string_val[0] for _, value in shown(folder)["custom_scalars__config__"]]
    return [
        {chart.title: list(chart.multiline.tag) for chart in Layout.FromString(g).category[0].chart}
        for g in given
    ]


def settings_in(kind, path):
    if kind == "csv":
        return [json.loads(row["settings"]) for row in rows(path) if row["settings"]]
    if kind == "jsonl":
        return [line for line in lines(path) if line["event"] == "run"]
    texts = [v.tensor.string_val[0].decode() for _, v in shown(path)["settings/text_summary"]]
    assert all(line.startswith("    ") for text in texts for line in text.splitlines())
    assert all(text.startswith('    {\n      "') for text in texts)
    return [json.loads(text) for text in texts]


@each_kind
def test_the_settings_of_a_run_are_in_its_log(kind, tmp_path):
    path, model = tmp_path / "log", net(callbacks=[EarlyStopping(5)])
    model.train(
        X, Y, epochs=3, shuffle=False, accumulate=2, callbacks=[KINDS[kind](path)], verbose=0
    )
    (found,) = settings_in(kind, path)
    settings = found["settings"]
    wanted = {"epochs": 3, "batch_size": 5, "shuffle": False, "accumulate": 2, "samples": 12}
    assert wanted.items() <= settings.items()
    assert found["model"] == model.get_config()
    assert (found["phitodeep"], found["numpy"]) == (phitodeep.__version__, np.__version__)
    if kind == "csv":
        assert [bool(row["settings"]) for row in rows(path)] == [True, False, False]
    if kind == "jsonl":
        first = lines(path)[0]
        assert (first["event"], first["epoch"], first["step"]) == ("run", 0, 0)
        assert first["time"].endswith("+00:00")


@each_kind
def test_what_has_no_config_is_described(kind, tmp_path):
    path = tmp_path / "log"
    double = Lambda(lambda X: 2 * X, lambda dY, X, Y: 2 * dY)
    options = {"alpha": lambda step: 0.05, "epochs": 1, "callbacks": [KINDS[kind](path)]}
    model = Sequential(Dense(3, 1), double, seed=0, **options)
    with pytest.raises(phitodeep.errors.ArgumentTypeError, match="cannot be written down"):
        model.get_config()
    model.train(X, Y, verbose=0)
    (found,) = settings_in(kind, path)
    dense, other = found["model"]["layers"]
    assert dense["config"]["output_size"] == 1
    assert "lambda" in json.dumps(other)
    assert found["model"]["seed"] == 0


def test_a_model_too_long_for_a_cell_is_only_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CELL", 400)
    log, other, model = CSVLogger(tmp_path / "a.csv"), JSONLogger(tmp_path / "a.jsonl"), net()
    model.train(X, Y, callbacks=[log, other], verbose=0)
    (found,) = settings_in("csv", log.path)
    assert (found["model"], found["settings"]["epochs"]) == ("Sequential", 2)
    (found,) = settings_in("jsonl", other.path)
    assert found["model"] == model.get_config()


@each_kind
def test_a_value_that_only_some_epochs_have(kind, tmp_path):
    def add(model, epoch, logs):
        logs |= {2: {"train_extra": 7.0}, 4: {"train_late": 8.0}}.get(epoch, {})

    path = tmp_path / "log"
    first = LambdaCallback(on_epoch_end=add)
    history = net(epochs=4).train(X, Y, callbacks=[first, KINDS[kind](path)], verbose=0)
    assert numbers(kind, path) == losses(history)
    if kind == "csv":
        assert [row["train_extra"] for row in rows(path)] == ["", "7.0", "", ""]
        assert list(rows(path)[0])[-3:] == ["train_extra", "train_late", "settings"]
    elif kind == "jsonl":
        assert [line.get("train_extra") for line in epochs_of(path)] == [None, 7.0, None, None]
    else:
        assert scalars(path)["extra/train"] == [(2, 7.0)]
        assert list(map(list, charts(path))) == [
            ["loss"],
            ["extra", "loss"],
            ["extra", "late", "loss"],
        ]


@each_kind
def test_no_epochs_still_have_settings(kind, tmp_path):
    path = tmp_path / "log"
    net().train(X, Y, epochs=0, callbacks=[KINDS[kind](path)], verbose=0)
    if kind == "csv":
        assert path.read_text() == "epoch,settings\n"
    else:
        assert len(settings_in(kind, path)) == 1


@each_file
def test_append_keeps_the_runs_of_before(kind, tmp_path):
    path, model = tmp_path / "log", net()
    first = losses(model.train(X, Y, callbacks=[KINDS[kind](path)], verbose=0))
    logger = KINDS[kind](path, append=True)
    second = losses(model.train(X, Y, X, Y, callbacks=[logger], verbose=0), 3)
    assert numbers(kind, path) == first + second
    third = losses(model.train(X, Y, callbacks=[logger], verbose=0), 5)
    assert numbers(kind, path) == first + second + third
    assert len(settings_in(kind, path)) == 3
    if kind == "csv":
        tested = [bool(row["test_loss"]) for row in rows(path)]
        assert tested == [False] * 2 + [True] * 2 + [False] * 2
        assert [bool(row["settings"]) for row in rows(path)] == [True, False] * 3
    last = losses(model.train(X, Y, callbacks=[KINDS[kind](path)], verbose=0), 7)
    assert numbers(kind, path) == last
    assert len(settings_in(kind, path)) == 1


def test_a_csv_of_another_program_and_one_with_other_settings_go_on(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes('\ufeffepoch,note\r\n9,"a, b\nc"\r\n10,é'.encode())
    net(epochs=1).train(X, Y, callbacks=[CSVLogger(path, append=True)], verbose=0)
    assert [(row["epoch"], row["note"]) for row in rows(path)] == [
        ("9", "a, b\nc"),
        ("10", "é"),
        ("1", ""),
    ]
    (tmp_path := tmp_path / "next").mkdir()
    path, file = tmp_path / "log", tmp_path / "checkpoint"
    for epochs, crashes in ((5, 2), (5, 3), (7, 4), (7, 5)):
        resume = file if path.exists() else None
        trained(file, CSVLogger(path), crashes=crashes, epochs=epochs, resume=resume)
    found = [json.loads(row["settings"] or "{}") for row in rows(path)]
    assert [each and each["settings"]["epochs"] for each in found] == [5, {}, 7, {}, {}]


def test_a_file_of_another_kind_is_not_touched(tmp_path):
    for kind, content, message in (
        ("csv", b"a,b\n1,2,3\n", "more cells than its first line"),
        ("csv", b"a,b\n\xff,2\n", "is not a CSV file"),
        ("csv", b"a\n" + b"x" * 200_000 + b"\n", "is not a CSV file: field larger"),
        ("jsonl", b'{"epoch": 1}\nepoch 2\n{"epoch": 3}\n', "line 2, is not a JSON object"),
        ("jsonl", b"[1, 2]\n", "line 1, is not a JSON object"),
        ("jsonl", b"\xff\xfe\n", "line 1, is not a JSON object"),
    ):
        path, model = tmp_path / "log", net()
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            model.train(X, Y, callbacks=[KINDS[kind](path, append=True)], verbose=0)
        assert path.read_bytes() == content
        assert model.epoch == 0


def test_two_calls_are_one_curve_of_tensorboard_and_weights_are_histograms(tmp_path):
    log, model = TensorBoard(tmp_path), net()
    history = [*model.train(X, Y, callbacks=[log], verbose=0)]
    history += model.train(X, Y, callbacks=[log], verbose=0)
    assert len(list(tmp_path.iterdir())) == 2  # even within one second
    assert scalars(tmp_path)["loss/train"] == losses(history)
    assert len(settings_in("tensorboard", tmp_path)) == 2
    assert "custom_scalars__config__" in shown(tmp_path)
    other = net(seed=1).train(X, Y, epochs=3, callbacks=[log], verbose=0)
    assert len(shown(tmp_path)["custom_scalars__config__"]) == 1
    assert scalars(tmp_path)["loss/train"] == losses(other)  # instead of those of before
    (tmp_path := tmp_path / "next").mkdir()

    def spoil(model, epoch, logs):
        if epoch == 2:
            model.layers[1].b[:] = math.nan

    first = LambdaCallback(on_epoch_end=spoil)
    model = net(epochs=2)
    model.train(X, Y, callbacks=[first, TensorBoard(tmp_path, histograms=2)], verbose=0)
    found = {tag: each for tag, each in shown(tmp_path).items() if tag.startswith("weights/")}
    assert set(found) == {"weights/0.W", "weights/0.b", "weights/1.W"}  # nothing finite is in 1.b
    ((step, value),) = found["weights/0.W"]
    W = model.layers[0].W
    assert (step, value.histo.num, sum(value.histo.bucket)) == (2, W.size, W.size)
    assert (value.histo.min, value.histo.max) == (W.min(), W.max())


def resumed(kind, tmp_path, *, crashes, meanwhile=lambda path: None, **every):
    """Train once to the end, and once with a crash and a resume; return both logs, and a history.

    `meanwhile` may change the log after the crash.
    """
    (whole, crashed), file = (tmp_path / "whole", tmp_path / "crashed"), tmp_path / "checkpoint"
    options = {"data": (X, Y, X, Y), "epochs": 6, "every": every}
    history = net().train(X, Y, X, Y, epochs=6, callbacks=[KINDS[kind](whole)], verbose=0)
    trained(file, KINDS[kind](crashed), crashes=crashes, **options)
    meanwhile(crashed)
    assert [*trained(file, KINDS[kind](crashed), resume=file, **options)] == [*history]
    return whole, crashed, history


def half(path):
    """Cut the last record short."""
    path.write_bytes(path.read_bytes()[:-9])


CRASHES = [*((kind, 3, (None, 4)) for kind in KINDS), ("csv", 3, (1, None))]


@pytest.mark.parametrize(("kind", "crashes", "every"), [*CRASHES, ("tensorboard", 4, (2, None))])
def test_a_resumed_run_repeats_no_epoch_and_loses_none(kind, crashes, every, tmp_path):
    often = dict(zip(("every", "every_steps"), every, strict=True))
    whole, crashed, history = resumed(kind, tmp_path, crashes=crashes, **often)
    assert numbers(kind, whole) == numbers(kind, crashed) == losses(history)
    if kind == "csv":
        assert crashed.read_bytes() == whole.read_bytes()
    elif kind == "jsonl":
        timeless = [
            [{**line, "seconds": 0, "time": 0} for line in lines(path) if line["event"] != "resume"]
            for path in (whole, crashed)
        ]
        assert timeless[0] == timeless[1]
        assert sum(line["event"] == "resume" for line in lines(crashed)) == 1
    else:
        for tag, points in scalars(whole).items():
            assert [step for step, _ in points] == [1, 2, 3, 4, 5, 6]
            if not tag.endswith("seconds"):
                assert scalars(crashed)[tag] == points


@each_file
def test_a_record_that_the_crash_cut_short_is_written_again(kind, tmp_path):
    whole, crashed, history = resumed(kind, tmp_path, crashes=3, meanwhile=half, every=2)
    assert numbers(kind, whole) == numbers(kind, crashed) == losses(history)


def test_half_lines_are_removed_and_no_line_is_added_without_an_epoch(tmp_path):
    path, model = tmp_path / "log.jsonl", net()
    path.touch()
    history = [*model.train(X, Y, callbacks=[JSONLogger(path, append=True)], verbose=0)]
    path.write_bytes(path.read_bytes() + b'{"event": "epoch", "epo')
    history += model.train(X, Y, callbacks=[JSONLogger(path, append=True)], verbose=0)
    assert numbers("jsonl", path) == losses(history)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # a whole line, without its end
    history += model.train(X, Y, callbacks=[JSONLogger(path, append=True)], verbose=0)
    assert numbers("jsonl", path) == losses(history)
    (tmp_path := tmp_path / "next").mkdir()
    path, file = tmp_path / "log", tmp_path / "checkpoint"
    for resume in (None, file):
        trained(file, JSONLogger(path), resume=resume)
        assert [line["event"] for line in lines(path)] == ["run", "epoch", "epoch"]


def test_a_number_that_was_cut_short_is_not_read(tmp_path):
    def cut(path):
        *whole, last, _ = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(whole) + last.rstrip(b",\r\n")[:-3])

    with pytest.warns(PhitodeepWarning, match="lacks 1 of the 4 epochs before the checkpoint"):
        _, path, history = resumed("csv", tmp_path, crashes=5, meanwhile=cut, every=2)
    assert numbers("csv", path) == [*losses(history)[:3], *losses(history)[4:]]


@each_file
@pytest.mark.parametrize(
    ("crashes", "kept", "lost"), [(3, 0, "2 of the 2"), (5, 3, "2 of the 4")], ids=["all", "some"]
)
def test_a_log_that_lost_epochs_goes_on_with_a_warning(kind, crashes, kept, lost, tmp_path):
    """The head and 2 epochs stay, or nothing at all."""

    def drop(path):
        content = path.read_bytes().splitlines(keepends=True)
        path.unlink()
        if kept:
            path.write_bytes(b"".join(content[:kept]))

    with pytest.warns(PhitodeepWarning, match=f"lacks {lost} epochs before the checkpoint"):
        _, path, history = resumed(kind, tmp_path, crashes=crashes, meanwhile=drop, every=2)
    all_losses = losses(history)
    assert numbers(kind, path) == (all_losses[:2] + all_losses[4:] if kept else all_losses[2:])
    assert len(settings_in(kind, path)) == 1


@each_file
@pytest.mark.parametrize("append", [True, False])
def test_the_runs_of_before_survive_a_resume(kind, append, tmp_path):
    """Also with larger epochs than that of the checkpoint, and lines that were added by hand."""
    path, file = tmp_path / "log", tmp_path / "checkpoint"
    if kind == "csv":
        path.write_text("epoch,train_loss\n,2.5\n7,1.5\n")
    else:
        path.write_text('{"event": "note"}\n{"event": "epoch", "epoch": 7, "train_loss": 1.5}\n')
    before = path.read_bytes()
    trained(file, KINDS[kind](path, append=True), crashes=2, epochs=3)
    history = trained(file, KINDS[kind](path, append=append), epochs=3, resume=file)
    if kind == "jsonl":
        assert path.read_bytes().startswith(before)
        assert [line.get("epoch") for line in lines(path)] == [None, 7, 0, 1, 1, 2, 3]
    else:
        assert [row["train_loss"] for row in rows(path)[:2]] == ["2.5", "1.5"]
        assert [float(row["train_loss"]) for row in rows(path)[2:]] == [a for a, _ in history]
        assert [row["epoch"] for row in rows(path)] == ["", "7", "1", "2", "3"]


@each_kind
def test_a_second_crash_and_resume(kind, tmp_path):
    path, file = tmp_path / "log", tmp_path / "checkpoint"
    trained(file, KINDS[kind](path), crashes=2, epochs=6)
    trained(file, KINDS[kind](path), crashes=4, epochs=6, every={"every": 9}, resume=file)
    history = trained(file, KINDS[kind](path), epochs=6, resume=file)
    assert numbers(kind, path) == losses(history)


@each_kind
def test_an_interrupted_epoch_is_replaced_by_the_whole_one(keyboard, kind, tmp_path):
    def press(model, step, loss):
        if step == 5 and not file.exists():  # the second of three in epoch 2
            signal.raise_signal(signal.SIGINT)

    path, file = tmp_path / "log", tmp_path / "checkpoint"
    given = [LambdaCallback(on_batch_end=press), KINDS[kind](path)]
    options = {"data": (X, Y, X, Y), "epochs": 4, "every": {"every": 9}}
    first = trained(file, *given, **options)
    assert first.interrupted
    assert numbers(kind, path) == losses(first)
    if kind == "jsonl":
        assert [line["test_loss"] for line in epochs_of(path)] == [first[0][1], None]
        assert [line.get("interrupted") for line in epochs_of(path)] == [None, True]
    history = trained(file, *given, resume=file, **options)
    assert len(history) == 4
    assert numbers(kind, path) == losses(history)
    assert history[1] != first[1]
    if kind == "jsonl":
        assert "interrupted" not in path.read_text()


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_line_does_not_continue_one_that_another_program_cut(cut, tmp_path, monkeypatch):
    path, synced = tmp_path / "log", []
    monkeypatch.setattr(os, "fsync", synced.append)

    def shorten(model, epoch, logs):
        if epoch == 1:
            os.truncate(path, path.stat().st_size - cut)

    given = [JSONLogger(path), LambdaCallback(on_epoch_end=shorten)]
    net().train(X, Y, epochs=3, callbacks=given, verbose=0)
    _, first, *others = path.read_text().splitlines()
    assert len(synced) > 3  # each line is on the disk
    assert [json.loads(line)["epoch"] for line in others] == [2, 3]
    if cut == 1:  # only the end of the line
        assert json.loads(first)["epoch"] == 1


@each_file
def test_lost_epochs_are_counted_from_where_the_run_began(kind, tmp_path):
    path, file, model = tmp_path / "log", tmp_path / "checkpoint", net()
    model.train(X, Y, verbose=0)
    trained(file, KINDS[kind](path), crashes=4, epochs=4, model=model)
    path.unlink()
    with pytest.warns(PhitodeepWarning, match=r"lacks (\d) of the \1 epochs"):
        trained(file, KINDS[kind](path), epochs=4, resume=file)


@each_kind
def test_epochs_before_the_log_are_not_missed(kind, tmp_path):
    path, file, model = tmp_path / "log", tmp_path / "checkpoint", net()
    model.train(X, Y, verbose=0)
    trained(file, KINDS[kind](path), crashes=4, epochs=4, model=model)
    history = trained(file, KINDS[kind](path), epochs=4, resume=file)
    assert numbers(kind, path) == losses(history, 3)


def test_states_continue_a_log_and_the_line_of_a_resume_says_where_it_is(tmp_path):
    """Without a checkpoint file, and whether the log or the one who takes the state comes first."""
    path, states = tmp_path / "log.jsonl", []
    take = LambdaCallback(on_epoch_end=lambda model, *_: states.append(model.state_dict()))
    model = net(callbacks=[take, JSONLogger(path)])
    model.train(X, Y, epochs=3, verbose=0)
    other = net(callbacks=[LambdaCallback(), JSONLogger(path)])
    other.load_state_dict(states[1])
    other.train(X, Y, epochs=2, verbose=0)
    assert [line["epoch"] for line in epochs_of(path)] == [1, 2, 3, 4]
    (tmp_path := tmp_path / "next").mkdir()
    every, file = {"every": None, "every_steps": 4}, tmp_path / "checkpoint"
    _, path, _ = resumed("jsonl", tmp_path, crashes=3, **every)
    assert [(line["event"], line["epoch"], line.get("step")) for line in lines(path)] == [
        ("run", 0, 0),
        *(("epoch", 1, None), ("epoch", 2, None), ("resume", 2, 2)),
        *(("epoch", i, None) for i in (3, 4, 5, 6)),
    ]
    kept = [line for line in path.read_text().splitlines() if '"epoch", "epoch": 1' not in line]
    path.write_text("\n".join([*kept, '{"note": "by hand"}']) + "\n")
    options = {"data": (X, Y, X, Y), "epochs": 6, "every": every}
    with pytest.warns(PhitodeepWarning, match="lacks 1 of the 6 epochs"):
        trained(file, JSONLogger(path), resume=file, **options)


@each_file
def test_a_state_is_small_and_checked(kind, tmp_path):
    log, states = KINDS[kind](tmp_path / "log"), []
    take = LambdaCallback(on_epoch_end=lambda *_: states.append(log.state_dict()))
    net(epochs=5).train(X, Y, callbacks=[log, take], verbose=0)
    state = {"training": True, "start": 0, "first": 0}
    assert states == [state] * 5
    assert log.state_dict() == {**state, "training": False}
    for name, value in itertools.product(("start", "first"), (-1, 1.5, "1", True, None)):
        with pytest.raises(PhitodeepError, match=f"{name} must be"):
            log.load_state_dict({**state, name: value})


@each_kind
@pytest.mark.parametrize("where", ["/dev/full", "file/log"])
def test_a_file_that_cannot_be_written_fails_before_training(kind, where, tmp_path):
    if where == "/dev/full" and not Path(where).exists():
        pytest.skip("only Linux has /dev/full")
    (tmp_path / "file").touch()
    model = net()
    before = model.get_weights()
    with pytest.raises(DataError, match=r"cannot (write|create) .*(/dev/full|/file)") as caught:
        model.train(X, Y, callbacks=[KINDS[kind](tmp_path / where)], verbose=0)
    assert isinstance(caught.value, OSError)
    assert all((model.get_weights()[path] == a).all() for path, a in before.items())
    assert (model.epoch, model.optimizer.t) == (0, 0)
    assert len(model.train(X, Y, verbose=0)) == 2


class Full(Callback):
    """While these epochs run, no file may grow beyond the size that it had before, and a bit."""

    def __init__(self, path, epochs, room):
        self.path, self.epochs, self.room = path, epochs, room
        self.system = pytest.importorskip("resource", reason="Windows limits no files")

    def on_epoch_begin(self, model, epoch):
        if epoch in self.epochs:
            size = max(p.stat().st_size for p in [self.path, *self.path.glob("*")] if p.is_file())
            self.limit(size + self.room)

    def on_epoch_end(self, *_):
        self.limit(self.system.RLIM_INFINITY)

    def limit(self, size):
        self.system.setrlimit(self.system.RLIMIT_FSIZE, (size, self.system.RLIM_INFINITY))


@each_kind
@pytest.mark.parametrize("room", [0, 20])  # 20: a part of the record fits
def test_a_disk_that_is_full_for_a_while_costs_nothing(kind, room, tmp_path):
    path = tmp_path / "log"
    full = Full(path, {2, 3}, room)
    seen = []
    look = LambdaCallback(on_epoch_end=lambda *_: seen.append(len(numbers(kind, path))))
    with pytest.warns(PhitodeepWarning, match="Training continues; records not") as caught:
        history = net(epochs=5).train(X, Y, callbacks=[KINDS[kind](path), full, look], verbose=0)
    assert len(caught) == 2
    assert seen == [1, 1, 1, 4, 5]  # never half a record, and never fewer
    assert numbers(kind, path) == losses(history)
    assert len(settings_in(kind, path)) == 1


def test_a_disk_that_stays_full_says_how_much_is_missing(tmp_path, monkeypatch):
    logger, calls, write = CSVLogger(tmp_path / "log.csv", append=True), [0], module.atomic_write

    @contextmanager
    def once(path):
        calls[0] += 1
        with write(path) as stream:
            yield stream
            if 1 < calls[0] < 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "atomic_write", once)
    model = net(epochs=3)
    with pytest.warns(PhitodeepWarning, match="No space left") as caught:
        model.train(X, Y, callbacks=[logger], verbose=0)
    for n, warning in enumerate(caught, 1):
        assert f"not written yet: {n}." in str(warning.message)
    assert len(caught) == 3
    assert rows(logger.path) == []
    model.train(X, Y, callbacks=[logger], epochs=1, verbose=0)  # there is room again
    assert [row["epoch"] for row in rows(logger.path)] == ["1", "2", "3", "4"]
    assert logger.state_dict()["start"] == 3


def test_a_resumed_log_forgets_what_was_never_written(tmp_path):
    log, model = JSONLogger(tmp_path / "log", append=True), net()
    log.pending, log.resumes = [{"event": "epoch", "epoch": 9}], True
    model.train(X, Y, epochs=1, callbacks=[log], verbose=0)
    assert [line["epoch"] for line in lines(log.path)] == [0, 1]


def test_a_model_without_a_config_is_described(tmp_path):
    class Mine(Sequential):
        def __init__(self, width):
            super().__init__(Dense(3, width), seed=0)

    log, model = JSONLogger(tmp_path / "log"), Mine(1)
    model.train(X, Y, epochs=1, callbacks=[log], verbose=0)
    assert lines(log.path)[0]["model"] == repr(model)


@each_kind
def test_what_was_never_written_is_not_in_the_next_file(kind, tmp_path):
    path, other, model = tmp_path / "log", tmp_path / "other", net()
    log = KINDS[kind](path, append=False)
    with pytest.warns(PhitodeepWarning, match="Training continues"):
        model.train(X, Y, callbacks=[log, Full(path, {2}, 0)], verbose=0)
    path.rename(other)
    history = model.train(X, Y, callbacks=[log], verbose=0)
    assert numbers(kind, path) == losses(history, 3)


@each_kind
def test_a_copy_of_a_log_goes_on_where_it_was(kind, tmp_path):
    path, model = tmp_path / "log", net()
    log = KINDS[kind](path, append=True)
    history = [*model.train(X, Y, callbacks=[log], verbose=0)]
    for copied in (copy.deepcopy(log), pickle.loads(pickle.dumps(log))):
        assert repr(copied) == repr(log)
        history += model.train(X, Y, callbacks=[copied], verbose=0)
    assert numbers(kind, path) == losses(history)


def test_without_its_library_tensorboard_names_the_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboardX")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    model = net()
    with pytest.raises(
        phitodeep.errors.MissingExtraError, match=r"TensorBoard needs.*phitodeep\[tensorboard\]"
    ):
        model.train(X, Y, callbacks=[TensorBoard(tmp_path / "a")], verbose=0)
    assert model.epoch == 0
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_bad_settings_are_refused(value):
    with pytest.raises(PhitodeepError, match="TensorBoard histograms"):
        TensorBoard("runs", histograms=value)
