"""A process that trains is killed with SIGKILL twenty times, and nothing is lost."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import phitodeep
from phitodeep.core import files
from tests.rows import LONG

KILLS, EPOCHS = (20, 24) if LONG else (2, 5)
ROOT = Path(phitodeep.__file__).parents[1]
PROCESS = """
import sys
from pathlib import Path

import numpy as np

from phitodeep.layers import BatchNorm, Dense, Dropout, ReLU
from phitodeep.model import Sequential
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import ReduceOnPlateau
from phitodeep.training.callbacks import EarlyStopping, ModelCheckpoint

marker, epochs = np.memmap(sys.argv[1], np.uint8, "r+"), int(sys.argv[2])
result, path = map(Path, sys.argv[3:])


class Marked(ModelCheckpoint):
    def _write(self, *args):  # the first byte: a file is being written; the second: how many were
        marker[0] = 1
        super()._write(*args)
        marker[:] = 0, marker[1] + 1


rng = np.random.default_rng(0)
X, Y = rng.standard_normal((96, 32)), rng.standard_normal((96, 4))
model = Sequential(
    *(Dense(32, 400), BatchNorm(), ReLU(), Dropout(0.3), Dense(400, 400), ReLU(), Dense(400, 4)),
    optimizer=Adam(ReduceOnPlateau(0.01, patience=1), ema=0.9),
    seed=1,
    batch_size=12,
    metrics=["mae"],
)
history = model.train(
    *(X, Y, X[:20], Y[:20]),
    epochs=epochs,
    callbacks=[EarlyStopping(99), Marked(path, every_steps=1, keep=2, monitor="test_loss")],
    resume=path if path.exists() else None,
    verbose=0,
)
with model.averaged():
    averages = {f"average of {name}": a for name, a in model.get_weights().items()}
metrics = {name: np.array(values) for name, values in history.metrics.items()}
np.savez(
    result,
    history=np.array(history),
    rates=history.rates,
    t=model.optimizer.t,
    **metrics,
    **averages,
    **model.get_weights(),
)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_training_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    script, marks, chance = tmp_path / "train.py", tmp_path / "marks", random.Random(0)
    script.write_text(PROCESS)
    marks.write_bytes(bytes(2))
    marker = np.memmap(marks, np.uint8, "r+")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    environment["PHITODEEP_KERNELS"] = "numpy"  # Numba takes a second to import

    def start(result, folder):
        path = tmp_path / folder / "ck.safetensors"
        arguments = [script, marks, str(EPOCHS), tmp_path / result, path]
        strict = [sys.executable, "-W", "error::UserWarning"]
        return subprocess.Popen([*strict, *arguments], env=environment)

    assert start("whole.npz", "whole").wait(60) == 0
    folder, during, strays = tmp_path / "killed", 0, 0
    for n in range(KILLS):
        marker[:] = 0
        process = start("never.npz", folder.name)
        try:
            wanted, aimed = chance.randint(0, 3), n % 2  # every other kill is aimed at a write
            while process.poll() is None and (marker[1] < wanted or marker[0] < aimed):
                time.sleep(1e-4)
            time.sleep(chance.uniform(0, 0.004 if aimed else 0.02))
        finally:
            process.kill()
        assert process.wait() == -9
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
    assert start("rest.npz", folder.name).wait(60) == 0
    assert sorted(os.listdir(folder)) == sorted(os.listdir(tmp_path / "whole"))
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "rest.npz") as rest:
        assert len(whole["history"]) == EPOCHS
        assert whole["t"] == EPOCHS * 8
        assert {*whole} == {*rest}
        for name in whole:
            np.testing.assert_array_equal(rest[name], whole[name], name)
    print(f"{during} of {KILLS} kills during a write; {strays} drafts")
