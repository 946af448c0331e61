"""A process that trains is killed with SIGKILL twenty times, and nothing is lost."""

import os
import random
import re
import signal
import time
import warnings

import numpy as np
import pytest

import phitodeep
from phitodeep import Adam, BatchNorm, Dense, Dropout, ReLU, Sequential
from phitodeep.core import files
from phitodeep.model.callbacks import EarlyStopping, ModelCheckpoint
from phitodeep.optimization.schedules import ReduceOnPlateau
from tests.processes import start
from tests.rows import LONG

KILLS, EPOCHS = (20, 24) if LONG else (2, 3)


def train(marks, result, path):
    """Train with checkpoints, from the last one if there is one, and save all that comes out."""
    marker = np.memmap(marks, np.uint8, "r+")

    class Marked(ModelCheckpoint):
        def _write(self, *args):  # first byte: a file is being written; second: how many were
            marker[0] = 1
            super()._write(*args)
            marker[:] = 0, marker[1] + 1

    os.fsync = lambda handle: None  # which the kernel does for processes that are killed
    warnings.simplefilter("error", UserWarning)
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((96, 32)), rng.standard_normal((96, 4))
    model = Sequential(
        *(Dense(32, 400), BatchNorm(), ReLU(), Dropout(0.3), Dense(400, 400), ReLU()),
        Dense(400, 4),
        optimizer=Adam(ReduceOnPlateau(0.01, patience=1), ema=0.9),
        seed=1,
        batch_size=12,
        metrics=["mae"],
    )
    keeper = Marked(path, every_steps=1, keep=2, monitor="test_loss")
    options = {"callbacks": [EarlyStopping(99), keeper], "verbose": 0}
    resume = path if path.exists() else None
    history = model.train(X, Y, X[:20], Y[:20], epochs=EPOCHS, resume=resume, **options)
    with model.averaged():
        averages = {f"average of {name}": a for name, a in model.get_weights().items()}
    found = {"history": history, "rates": history.rates, "t": model.optimizer.t}
    np.savez(result, **found, **history.metrics, **averages, **model.get_weights())


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_training_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    marks, chance = tmp_path / "marks", random.Random(0)
    marks.write_bytes(bytes(2))
    marker = np.memmap(marks, np.uint8, "r+")

    def begin(result, folder):
        return start(train, marks, tmp_path / result, tmp_path / folder / "ck.safetensors")

    def trained(result, folder):
        process = begin(result, folder)
        process.join(60)
        return process.exitcode == 0

    assert trained("whole.npz", "whole")
    folder, during, strays = tmp_path / "killed", 0, 0
    for n in range(KILLS):
        marker[:] = 0
        process = begin("never.npz", folder.name)
        try:
            wanted, aimed = chance.randint(0, 3), n % 2  # every other kill is aimed at a write
            while process.is_alive() and (marker[1] < wanted or marker[0] < aimed):
                time.sleep(1e-4)
            time.sleep(chance.uniform(0, 0.004 if aimed else 0.02))
        finally:
            process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        during += int(marker[0])
        if not folder.exists():
            continue
        # in the moment between its two names, a complete file is called a draft
        drafts = [path.name for path, _ in files.drafts(folder)]
        strays += len(drafts)
        names = sorted({*os.listdir(folder)} - {*drafts})
        assert all(re.fullmatch(r"ck(-best|-(step|epoch)\d+)?\.safetensors", x) for x in names)
        assert len(names) <= 2 + 3  # path, best, and the last two or the one that goes next
        for path in folder.iterdir():
            phitodeep.load(path)
    assert not (tmp_path / "never.npz").exists()
    assert during >= max(1, KILLS // 4)
    assert strays <= 3
    assert trained("rest.npz", folder.name)
    assert sorted(os.listdir(folder)) == sorted(os.listdir(tmp_path / "whole"))
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "rest.npz") as rest:
        assert len(whole["history"]) == EPOCHS
        assert whole["t"] == EPOCHS * 8
        assert {*whole} == {*rest}
        for name in whole:
            np.testing.assert_array_equal(rest[name], whole[name], name)
    print(f"{during} of {KILLS} kills during a write; {strays} drafts")
