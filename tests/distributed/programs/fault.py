"""Trains until a rank fails: fault.py raises|exits|killed|hangs [FOLDER].

`python fault.py resumes FOLDER` goes on from there, and compares with a whole training.
"""

import json
import os
import signal
import sys
import time

import numpy as np
from networks import mlp

from phitodeep.distributed import DataParallel, job, rank
from phitodeep.model.callbacks import Callback, ModelCheckpoint

what = sys.argv[1]


class Fault(Callback):
    every_rank = True

    def on_batch_end(self, model, step, loss):
        if rank() != 1 or step != 8:
            return
        if what == "raises":
            raise ZeroDivisionError("the disk of this rank is on fire")
        if what == "exits":
            sys.exit(3)
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hangs":
            time.sleep(60)


model, X, y, _ = mlp(np.random.default_rng(5), seed=1, dtype="float64")
job.GRACE = 0.5
model = DataParallel(model, timeout=1 if what == "hangs" else 60)
callbacks = [Fault()]
resume = None
if len(sys.argv) > 2:
    path = os.path.join(sys.argv[2], "ck.safetensors")
    callbacks.insert(0, ModelCheckpoint(path, every_steps=3))
    resume = path if what == "resumes" else None
model.train(X, y, epochs=4, batch_size=5, callbacks=callbacks, resume=resume)
if what == "resumes":
    whole, X, y, _ = mlp(np.random.default_rng(5), seed=1, dtype="float64")
    DataParallel(whole).train(X, y, epochs=4, batch_size=5, verbose=0)
    pairs = zip(model.get_weights().values(), whole.get_weights().values(), strict=True)
    same = all(a.tobytes() == b.tobytes() for a, b in pairs)
    found = {"steps": model.optimizer.t, "same": same}
    os.write(1, f"{json.dumps(found)}\n".encode())
