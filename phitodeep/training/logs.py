"""Logs: files that record the settings of each run and the results of each epoch.

A resumed run continues its log from its checkpoint. The epochs after the checkpoint are removed
when training begins, and the resumed run writes them again: no epoch is lost or repeated.

A file that cannot be written when training begins is an error. If writing fails later (a full disk,
say), a warning is issued, training continues, and the next epoch tries again with all that is not
in the file yet.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.checks import check_count
from phitodeep.core.config import outline
from phitodeep.core.files import atomic_write, make_folder, naming
from phitodeep.core.state import plain
from phitodeep.core.version import __version__
from phitodeep.errors import DataError, extra, warn
from phitodeep.training.callback import Callback, Logs, _Resumable
from phitodeep.training.run import TrainingRun

CELL = 32_767  # the most characters that a cell can hold in Excel


class _Log(Callback):
    """A log, which announces each run before its first step and then records each epoch.

    `announce` and `add` put records into `pending`; `write` moves them to the file.
    """

    def __init__(self) -> None:
        self.pending: list[Any] = []  # the records that are not in the file yet
        self.run: TrainingRun | None = None  # the call of `train` that is being logged

    def on_train_begin(self, model: Any) -> None:
        super().on_train_begin(model)
        self.open(model.epoch)

    def on_pause(self, model: Any, run: TrainingRun) -> None:
        if self.run is None:
            self.run = run
            self.announce(model, run)
            if self.pending:
                self.write()

    def on_epoch_end(self, model: Any, epoch: int, logs: Logs) -> None:
        assert self.run is not None
        self.add(model, self.run, plain(logs))
        try:
            self.write()
        except DataError as error:
            warn(f"{error} Training continues; records not written yet: {len(self.pending)}.")

    def on_train_end(self, model: Any) -> None:
        super().on_train_end(model)
        self.run = None

    def open(self, epochs: int) -> None:
        """Prepare the file for a model that has been trained for this number of epochs."""

    def announce(self, model: Any, run: TrainingRun) -> None:
        """Record the settings of a run."""

    def add(self, model: Any, run: TrainingRun, logs: dict[str, Any]) -> None:
        """Record an epoch."""

    def write(self) -> None:
        """Write all that is pending, or raise DataError."""


class _Table(_Log, _Resumable):
    """A log that is one file of records, which are dicts with an "epoch".

    start    the number of records that the file had when the run began
    first    the number of epochs that the model had been trained for at that time
    """

    remembered: ClassVar[dict[str, Any]] = {"start": int, "first": int}

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        super().__init__()
        self.path, self.append = Path(path), append
        self.start, self.first, self.resumed = 0, 0, False

    def on_train_begin(self, model: Any) -> None:
        self.resumed = self.resumes
        super().on_train_begin(model)

    def open(self, epochs: int) -> None:
        if self.resumed or not self.append:
            self.pending.clear()
        keep = (self.resumed or self.append) and self.path.is_file()
        records = self.read() if keep else []
        own: list[dict[str, Any]] = []
        if not self.resumed:
            self.start, self.first = len(records) + len(self.pending), epochs
        else:
            own = [record for record in records[self.start :] if _epoch(record) <= epochs]
            found = {_epoch(record) for record in own if not _announces(record)}
            if missing := set(range(self.first + 1, epochs + 1)) - found:
                warn(
                    f"{self.path} lacks {len(missing)} of the {epochs - self.first} epochs before "
                    "the checkpoint: was it changed? The log continues without them."
                )
        self.begin(records[: self.start], own)

    def read(self) -> list[dict[str, Any]]:
        """Return the records of the file."""
        raise NotImplementedError

    def begin(self, earlier: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
        """Reduce the file to these records: those of earlier runs and those of this run."""


class CSVLogger(_Table):
    """Write the logs of each epoch as a row of a CSV file, for a spreadsheet or pandas.

    The columns are the epoch, the losses and metrics, and `settings`. In the first row of a run,
    `settings` holds the run's settings as JSON. It is written again in the first row after a resume
    with other settings, and is empty elsewhere. The description of a model that is too long for a
    cell of Excel is left out. The file is replaced after each epoch, so it is never incomplete.

    append    keep the rows of earlier runs. A resumed run keeps them anyway

        model.train(X, y, callbacks=[CSVLogger("log.csv")])
    """

    rows: list[dict[str, Any]]  # of the file
    noted: str  # the settings in the run's rows so far
    settings: str  # for the next row

    def read(self) -> list[dict[str, Any]]:
        try:
            text = self.path.read_bytes().decode("utf-8-sig")
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} is not a CSV file: {error}.") from None
        if any(None in row for row in rows):
            raise DataError(f"{self.path} has rows with more cells than its first line.")
        if rows and None in rows[-1].values() and not text.endswith(("\r", "\n")):
            rows.pop()  # it was cut short, perhaps in the middle of a number
        return rows

    def begin(self, earlier: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
        self.rows = earlier + own
        self.noted = next((r["settings"] for r in reversed(own) if r.get("settings")), "")
        self.write()

    def announce(self, model: Any, run: TrainingRun) -> None:
        settings = _json(_settings(model, run))
        if len(settings) > CELL:
            settings = _json({**_settings(model, run), "model": type(model).__name__})
        self.settings = "" if settings == self.noted else settings

    def add(self, model: Any, run: TrainingRun, logs: dict[str, Any]) -> None:
        self.pending.append({"epoch": run.epoch, **logs, "settings": self.settings})
        self.settings = ""

    def write(self) -> None:
        rows = self.rows + self.pending
        columns = dict.fromkeys(["epoch", *(key for row in rows for key in row)])
        columns.pop("settings", None)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [*columns, "settings"])
        writer.writeheader()
        writer.writerows(rows)
        with atomic_write(self.path) as stream:
            stream.write(text.getvalue().encode())
        self.rows = rows
        self.pending.clear()


class JSONLogger(_Table):
    """Write one JSON object per line: one for each run, then one for each epoch.

    The line of a run has `"event": "run"`, the time at which it began, the versions of phitodeep
    and NumPy, the settings of `train` and the config of the model; what has no config is described
    by its repr. A resumed run adds a line with `"event": "resume"` and the same entries. In both,
    `epoch` and `step` are the finished epochs, and the steps of the next one.

    The line of an epoch has `"event": "epoch"`, the epoch, its seconds, the learning rate of its
    last step, and its losses and metrics. JSON has no NaN or infinity: both become null. If Ctrl-C
    cut the epoch short, the line also has `"interrupted": true`, and its test values are null.

    Lines are appended one at a time, and a line that a crash cut short is removed when the run is
    resumed or the file is appended to.

    append    keep the lines of earlier runs. A resumed run keeps them anyway

        model.train(X, y, callbacks=[JSONLogger("log.jsonl")])
    """

    def read(self) -> list[dict[str, Any]]:
        records: list[Any] = []
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                records.append(json.loads(line))
            except ValueError:
                if number < len(lines):  # otherwise, the line was cut short, or is empty
                    records.append(None)
            if records and not isinstance(records[-1], dict):
                raise DataError(f"{self.path}, line {number}, is not a JSON object.")
        return records

    def begin(self, earlier: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
        content = _lines(earlier + own)
        self.resumed = any(map(_announces, own))  # otherwise, the line of the run is lost
        if not (self.path.is_file() and self.path.read_bytes() == content):
            with atomic_write(self.path) as stream:
                stream.write(content)

    def announce(self, model: Any, run: TrainingRun) -> None:
        if self.resumed and run.ends:
            return  # no epoch follows
        now = datetime.now(UTC).isoformat(timespec="seconds")
        at = {"time": now, "epoch": run.epoch, "step": run.step}
        event = "resume" if self.resumed else "run"
        self.pending.append({"event": event, **at, **_settings(model, run)})

    def add(self, model: Any, run: TrainingRun, logs: dict[str, Any]) -> None:
        times = {"seconds": run.history.seconds[-1], "rate": run.history.rates[-1]}
        cut = {"interrupted": True} if run.interrupted else {}
        self.pending.append({"event": "epoch", "epoch": run.epoch, **times, **logs, **cut})

    def write(self) -> None:
        _append(self.path, _lines(self.pending), end=b"\n")
        self.pending.clear()


class TensorBoard(_Log):
    """Write event files for TensorBoard; needs `phitodeep[tensorboard]`.

    Each loss and metric has its chart, `loss/train` and `loss/test` for example; the tab "Custom
    scalars" shows both in one chart. `epoch/rate` is the learning rate of each epoch's last step,
    and `epoch/seconds` its duration. The tab "Text" shows the settings of the run and the model.

    Each call of `train` adds a file to the folder. TensorBoard shows its points instead of those
    of earlier files from the same epoch on, so that a resumed run shows each epoch once, and a
    new run replaces the old one: give each run that you want to compare its own folder.

    log_dir       the folder of the event files; it is created
    histograms    number of epochs between histograms of all weights; 0: none

        model.train(X, y, callbacks=[TensorBoard("runs/first")])

    Then run `tensorboard --logdir runs`.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, histograms: int = 0) -> None:
        super().__init__()
        self.log_dir = Path(log_dir)
        self.histograms = check_count(histograms, "TensorBoard histograms", minimum=0)
        self.path = self.log_dir  # then the file
        self.charts: set[str] = set()  # those of the tab "Custom scalars"

    def open(self, epochs: int) -> None:
        with extra("tensorboard", "tensorboardX", "TensorBoard"):
            from tensorboardX.proto.event_pb2 import SessionLog
        make_folder(self.log_dir)
        with naming(self.log_dir):
            files = len(list(self.log_dir.glob("events.out.tfevents.*")))
        # TensorBoard reads the files in the order of their names
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{files:05d}"
        self.path = self.log_dir / name
        self.charts.clear()
        self.pending.clear()
        self.event(epochs + 1, file_version="brain.Event:2")
        self.event(epochs + 1, session_log=SessionLog(status=SessionLog.START))  # "purge_step"
        self.write()

    def event(self, step: int, **content: Any) -> None:
        """Add an event to what is pending, as a record with its length and two checksums."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        data = Event(wall_time=time.time(), step=step, **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
        self.pending.append(length + sums[0] + data + sums[1])

    def announce(self, model: Any, run: TrainingRun) -> None:
        from tensorboardX import summary

        settings = json.dumps(_settings(model, run), default=repr, indent=2)
        self.event(run.epoch + 1, summary=summary.text("settings", indent(settings, "    ")))

    def add(self, model: Any, run: TrainingRun, logs: dict[str, Any]) -> None:
        from tensorboardX import summary

        tags = {key: "{2}/{0}".format(*key.partition("_")) for key in logs}
        values = {tags[key]: value for key, value in logs.items()}
        values["epoch/rate"] = run.history.rates[-1]
        values["epoch/seconds"] = run.history.seconds[-1]
        for tag, value in values.items():
            self.event(run.epoch, summary=summary.scalar(tag, value))
        charts = {tag.partition("/")[0] for tag in tags.values()} | self.charts
        if charts != self.charts:
            self.charts = charts
            layout = {n: ["Multiline", [f"{n}/train", f"{n}/test"]] for n in sorted(charts)}
            self.event(run.epoch, summary=summary.custom_scalars({"train and test": layout}))
        if self.histograms and run.epoch % self.histograms == 0:
            for path, array in model.get_weights().items():
                finite = array[np.isfinite(array)]
                if finite.size:
                    self.event(run.epoch, summary=summary.histogram(f"weights/{path}", finite, 30))

    def write(self) -> None:
        _append(self.path, b"".join(self.pending))
        self.pending.clear()


def _settings(model: Any, run: TrainingRun) -> dict[str, Any]:
    """Return the versions, the settings of a run, and the model's config or what of it exists."""
    config = outline(model)
    return {
        "phitodeep": __version__,
        "numpy": np.__version__,
        "settings": run.settings,
        "model": config["config"] if isinstance(config, Mapping) else config,
    }


def _epoch(record: Mapping[str, Any]) -> int:
    """Return the epoch of a record; 0 if it has none, as lines that were added by hand."""
    try:
        return int(record["epoch"])
    except (KeyError, TypeError, ValueError):
        return 0


def _announces(record: Mapping[str, Any]) -> bool:
    """Return whether a record begins or resumes a run."""
    return record.get("event") in ("run", "resume")


def _json(value: Any) -> str:
    """Return `value` as valid JSON, with null for nan and infinity."""
    text = json.dumps(value, default=repr)
    return json.dumps(json.loads(text, parse_constant=lambda _: None))


def _lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(f"{_json(record)}\n" for record in records).encode()


def _append(path: Path, data: bytes, end: bytes = b"") -> None:
    """Append all of `data` to a file, or nothing; first `end`, if the file does not end with it."""
    with naming(path), path.open("ab+", buffering=0) as stream:
        size = path.stat().st_size
        if end and size:
            stream.seek(-1, os.SEEK_END)
            data = data if stream.read(1) == end else end + data
        if stream.write(data) < len(data):
            stream.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if path.is_file():
            os.fsync(stream.fileno())
