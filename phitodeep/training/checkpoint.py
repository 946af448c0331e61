"""ModelCheckpoint: files from which training continues exactly."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from phitodeep.core.checks import check_count
from phitodeep.core.files import atomic_copy, check_path, drafts, lock, make_folder, naming
from phitodeep.core.state import StateDict
from phitodeep.errors import ArgumentError, DataError, warn
from phitodeep.io.model_file import open_model
from phitodeep.io.tensors import writable, write_tensors
from phitodeep.training.callback import Logs, _Monitor, check_intervals
from phitodeep.training.run import TrainingRun


@dataclass(eq=False, repr=False)
class ModelCheckpoint(_Monitor):
    """Save everything that training needs to continue exactly, every few epochs or steps.

        checkpoint = ModelCheckpoint("run/ck.safetensors", monitor="test_loss")
        model.train(X, y, X_test, y_test, epochs=6, callbacks=[checkpoint])

        # after a crash, with the same model, data and callbacks:
        model.train(X, y, X_test, y_test, epochs=6, callbacks=[checkpoint],
                    resume="run/ck.safetensors")

    path           the file that always holds the newest checkpoint; its folder is created
    every          epochs between checkpoints; None: only `every_steps` counts
    every_steps    optimizer steps between checkpoints; None: only `every` counts
    keep           how many of the last checkpoints also stay next to `path`, with the epoch or the
                   step in their names, such as `ck-epoch3.safetensors` or `ck-step1500.safetensors`
    monitor        a name from the logs: the checkpoint of the epoch with the best value is also
                   kept, as `ck-best.safetensors`
    mode           "min" or "max"; by default, values whose names end in loss or mae are
                   minimised, and all others maximised

    The last epoch and Ctrl-C also write a checkpoint. A file holds the model, its optimizer and
    schedules, the states of callbacks, the history, and the place within the epoch;
    `phitodeep.load` reads the model from it. Each file is complete or absent, even if the process
    is killed. A run without `resume` replaces `path` and the best checkpoint of an earlier run,
    after a warning; no other file is removed. If another process writes to the same `path`, a
    warning says so, except on Windows.

    A model or callback that cannot be saved, or a path that cannot be used, is an error before the
    first step. If a file cannot be written later (a full disk, say), a warning is issued and
    training continues.
    """

    remembered: ClassVar[dict[str, Any]] = {
        **_Monitor.remembered,
        "name": str,
        "written": list[str],
    }
    every_rank = True  # they give their parts of the state to rank 0, which writes

    path: str | os.PathLike[str]
    every: int | None = 1
    every_steps: int | None = None
    keep: int = 3
    monitor: str | None = None
    _: KW_ONLY
    mode: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = os.fspath(check_path(self.path))
        check_intervals("ModelCheckpoint", self.every, self.every_steps)
        self.keep = check_count(self.keep, "ModelCheckpoint keep", minimum=0)
        self.name = ""  # of the run: no other run's files are removed

    def forget(self) -> None:
        super().forget()
        self.written: list[str] = []  # the names of the files that `keep` counts, oldest first
        self.held: int | None = None  # holds the lock of the file at `path`

    def check_state(self, state: StateDict, who: str) -> None:
        super().check_state(state, who)
        counted = r"-(epoch|step)\d+"  # by `keep`; `path` may be another
        state["written"] = [name for name in state["written"] if self._is_named(name, counted)]

    def on_train_begin(self, model: Any) -> None:
        super().on_train_begin(model)
        self.name = self.name or secrets.token_hex(8)  # here, so that each copy gets its own
        self.checked = self.better = self.shared = False
        self.held = None

    def on_epoch_end(self, model: Any, epoch: int, logs: Logs) -> None:
        self.better = self.monitor is not None and bool(self.improved(logs))

    def on_pause(self, model: Any, run: TrainingRun) -> None:
        if not self.checked:
            if run.writes:
                self._check_place()
            arrays, _ = model._packed(run.state_dict(weights=False))
            writable(arrays)
            if run.writes:
                self._claim()
                if not self.shared:
                    self._tidy()
            self.checked = True
            return
        count, every, mark = model.optimizer.t, self.every_steps, "step"
        if run.step == 0:
            count, every, mark = run.epoch, self.every, "epoch"
        due = run.ends or (every is not None and count % every == 0)
        if not due and not self.better:
            return
        paths = self._paths(f"{mark}{count}" if due else None)
        state = run.state_dict(weights=False)
        try:
            if run.writes:
                self._write(model, state, paths)
        except OSError as error:  # such as a full disk
            warn(f"{error} Training continues.")
        self.better = False

    def on_train_end(self, model: Any) -> None:
        super().on_train_end(model)
        self._release()

    def _claim(self) -> None:
        """Lock the file at `path`; if another process has locked it, warn once that both write it.

        The file itself is locked, again after each write, so nothing else is ever on the disk.
        """
        self._release()
        try:
            self.held = lock(Path(self.path))
        except BlockingIOError:
            if not self.shared:
                self.shared = True
                warn(
                    f"{self.path} is also the checkpoint of another training that is running: each "
                    "replaces the other's files. Give each its own path."
                )

    def _release(self) -> None:
        if self.held is not None:
            os.close(self.held)
            self.held = None

    def _check_place(self) -> None:
        """Refuse a path that cannot be written, before training begins."""
        path = Path(self.path)
        if set("{}") & set(path.name):
            raise ArgumentError(
                f"{self!r}: the epoch or the step is added to the name of each file that stays; "
                'give a path without braces, such as "run/ck.safetensors".'
            )
        make_folder(path.parent)
        with naming(path):  # which may be too long, or in a folder that may not be read
            if path.is_dir():
                raise DataError(f"cannot write {path}: it is a folder; name a file in it.")
            for place in (path.parent, path):
                if place.exists() and not os.access(place, os.W_OK):
                    raise DataError(f"cannot write {path}: no permission to write to {place}.")

    def _tidy(self) -> None:
        """Remove what an earlier run left, and warn before its checkpoint is replaced."""
        path = Path(self.path)
        for draft, name in drafts(path.parent):
            if self._is_named(name, r"(-best|-(epoch|step)\d+)?"):
                draft.unlink(missing_ok=True)
        if path.is_file() and not self._is_own(path):
            warn(
                f"{path} is not a checkpoint of this run, and will be replaced. To continue the "
                f"training that wrote it, pass resume={self.path!r} to train."
            )

    def _paths(self, mark: str | None) -> list[Path]:
        """Return the files of the next checkpoint, of which `path` comes last, and count it."""
        paths = [self._named("best")] * self.better
        if mark is not None:
            if self.keep:
                paths.append(self._named(mark))
                self.written.append(paths[-1].name)
            paths.append(Path(self.path))
        return paths

    def _write(self, model: Any, state: StateDict, paths: list[Path]) -> None:
        """Write one checkpoint to each of these files."""
        first, *others = paths
        self._claim()
        write_tensors(first, *model._packed(state, self.name))
        for other in others:
            atomic_copy(first, other)
        self._claim()
        self._prune()

    def _named(self, mark: str) -> Path:
        path = Path(self.path)
        return path.with_name(f"{path.stem}-{mark}{path.suffix}")

    def _is_named(self, name: str, mark: str) -> bool:
        """Whether this is the name of `path` with something that matches `mark` after its stem."""
        stem, suffix = map(re.escape, (Path(self.path).stem, Path(self.path).suffix))
        return re.fullmatch(f"{stem}{mark}{suffix}", name) is not None

    def _prune(self) -> None:
        """Remove this run's oldest checkpoints beyond `keep`."""
        while len(self.written) > self.keep:
            old = Path(self.path).with_name(self.written.pop(0))
            with naming(old, "remove"):
                if self._is_own(old):
                    old.unlink(missing_ok=True)

    def _is_own(self, path: Path) -> bool:
        try:
            with open_model(path) as file:
                return file.run == self.name
        except DataError:  # another program's file
            return False
