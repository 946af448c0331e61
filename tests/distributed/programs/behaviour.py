"""What happens once, on rank 0, and what on all ranks: prints a line of JSON per rank.

python behaviour.py FOLDER
"""

import hashlib
import importlib
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
from networks import error_of, mlp, regression

import phitodeep
from phitodeep.distributed import DataParallel, group, rank, shard, size
from phitodeep.model import SequentialBuilder
from phitodeep.model.callbacks import (
    Callback,
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    StopTraining,
)
from phitodeep.optimization.optimizers import SGD, Adam, Muon

folder = Path(sys.argv[1])
found = {"rank": rank(), "size": size(), "quiet": False}
group.hide_compilation = lambda: found.update(quiet=True)  # of notices that rank 0 prints


def model(seed=1, sharded=False, **options):
    made, X, y, _ = mlp(np.random.default_rng(5), seed=seed, dtype="float64", **options)
    return DataParallel(made, timeout=30, shard_optimizer=sharded), X, y


def digest(net):
    weights = sorted((k, a.tobytes()) for k, a in net.get_weights().items())
    return hashlib.sha256(repr(weights).encode()).hexdigest()


# rank 0's weights, without a seed
net, X, y = model(seed=None)
net.train(X, y, epochs=2, batch_size=8, verbose=0)
first = digest(net)
# twice the same, to the bit
runs = []
for _ in range(2):
    net, X, y = model()
    net.train(X, y, epochs=3, batch_size=8, verbose=0)
    runs.append(digest(net))
found["repeats"] = runs[0] == runs[1]
found["unseeded"] = first

# callbacks: on rank 0, unless every_rank
calls = []


class Everywhere(Callback):
    every_rank = True

    def on_epoch_end(self, model, epoch, logs):
        calls.append(f"every {epoch}")


def stop(model, step, loss):
    calls.append("once")
    if step == 3:
        raise StopTraining("three are enough")


net, X, y = model()
callbacks = [Everywhere(), LambdaCallback(on_batch_end=stop)]
net.train(X, y, epochs=5, batch_size=8, callbacks=callbacks)
found["calls"], found["steps"] = calls, net.optimizer.t

# early stopping restores the best weights everywhere, and all stop together
net, X, y = model(optimizer=SGD(2.0))
options = {"epochs": 30, "batch_size": 7, "verbose": 0, "callbacks": [EarlyStopping(2)]}
history = net.train(X[:20], y[:20], X[20:], y[20:], **options)
found["stopped"], found["best"] = len(history), digest(net)
found["scores"] = repr(net.evaluate(X, y))

# a callback that changes weights on rank 0 alone is found
net, X, y = model()


def meddle(model, epoch, logs):
    model.layers[0].W *= 2


options = {"epochs": 3, "batch_size": 8, "callbacks": [LambdaCallback(on_epoch_end=meddle)]}
found["meddled"] = error_of(lambda: net.train(X, y, verbose=0, **options))

# checkpoints of a run on `size()` ranks; the test resumes from them on other numbers
for sharded in (0, 1):
    options = {"epochs": 3, "batch_size": 5, "verbose": 0}
    net, again = (model(sharded=bool(sharded), optimizer=Adam(0.01))[0] for _ in range(2))
    checkpoint = ModelCheckpoint(folder / f"ck{sharded}.safetensors", every_steps=7, keep=99)
    history = net.train(X, y, callbacks=[checkpoint], **options)
    net.save(folder / f"end{sharded}.safetensors", optimizer=True)
    found[f"losses{sharded}"] = [a for a, _ in history]
    # from the middle, on the same number of ranks: the same bits
    options |= {"resume": folder / f"ck{sharded}-step14.safetensors"}
    checkpoint = ModelCheckpoint(folder / f"again{sharded}.safetensors", every_steps=7)
    resumed = again.train(X, y, callbacks=[checkpoint], **options)
    found[f"resumed{sharded}"] = digest(net) == digest(again) and [*history] == [*resumed]

# own parts: uneven numbers of batches, the last without any on some ranks
net, X, y = model()
alone, _, _, _ = mlp(np.random.default_rng(5), seed=1, dtype="float64")
whole = [(X[i : i + 6], y[i : i + 6]) for i in range(0, 36, 6)]
parts = [(a[rank() :: size()], b[rank() :: size()]) for a, b in whole]
parts = parts if rank() else parts[:-1]
net.train(shard(parts), epochs=2, verbose=0)
found["own"] = net.optimizer.t
# own parts that make up the batches of one process
net, _, _ = model()
alone.train(whole, epochs=2, verbose=0)
mine = slice(6 * rank() // size(), 6 * (rank() + 1) // size())
net.train(shard([(a[mine], b[mine]) for a, b in whole]), epochs=2, verbose=0)
ends = zip(net.get_weights().values(), alone.get_weights().values(), strict=True)
found["own parts of a whole"] = max(float(abs(a - b).max()) for a, b in ends)

# without sync, running statistics are the means over the ranks
made, X, y, _ = regression(np.random.default_rng(5), seed=1)
net = DataParallel(made, timeout=30)
net.train(X, y, epochs=2, batch_size=8, verbose=0)
found["statistics"] = digest(net)


def other_code(call):
    """Call this as if rank 0 ran another script."""
    main = sys.modules["__main__"]
    file = main.__file__
    main.__file__ = file if rank() else phitodeep.__file__
    try:
        call()
    finally:
        main.__file__ = file


# what is refused
X, y = (a[: 30 + rank()] for a in model()[1:])
calls = {
    "Muon": lambda: model(optimizer=Muon(), sharded=True)[0].train(X[:30], y[:30], verbose=0),
    "seed": lambda: model(seed=rank()),
    "settings": lambda: model()[0].train(X[:30], y[:30], epochs=1 + rank(), verbose=0),
    "shapes": lambda: model()[0].train(X, y, epochs=1, verbose=0),
    "code": lambda: other_code(lambda: model()[0].train(X[:30], y[:30], epochs=1, verbose=0)),
    "no model": lambda: DataParallel("net"),
    "timeout": lambda: DataParallel(model()[0], timeout=-1),
    "rates": lambda: model(optimizer=SGD(1 + rank()))[0].train(X[:30], y[:30], verbose=0),
}
found["refused"] = {name: error_of(call) for name, call in calls.items()}

# the builder, a loss that is not finite on one rank alone, and a model that was pickled
net = SequentialBuilder(seed=1).dense(6, 1).distributed(timeout=30).alpha(1e-3).build()
X1, y1 = np.ones((10, 6)), np.ones((10, 1))
y1[-1] = 3e19
with warnings.catch_warnings(record=True) as seen:
    if rank() == 0:
        warnings.simplefilter("always")
    history = net.train(X1, y1, epochs=2, batch_size=10, verbose=0)
found["diverged"] = [len(history), net.optimizer.t, [str(w.message) for w in seen]]
before = digest(net)
found["find_alpha"] = net.find_alpha(X1, y1 / y1.max(), batch_size=5, steps=20).suggestion
found["untouched"] = before == digest(net)

attacked = importlib.import_module("attacked")  # last, because it changes the exchange
found |= attacked.found
os.write(1, f"{json.dumps(found)}\n".encode())
