"""What once went wrong in training on several ranks; `behaviour.py` prints what this found."""

import copy
import warnings
from functools import partial

import numpy as np
from networks import error_of, mlp

import phitodeep
from phitodeep import Dense, Sequential
from phitodeep.distributed import DataParallel, exchange, rank, shard
from phitodeep.layers.base import Layer, State
from phitodeep.model.callbacks import Callback, LambdaCallback
from phitodeep.optimization.optimizers import SGD

found = {}


def net(together, sharded=False):
    options = {"dtype": "float64", "optimizer": SGD(0.1, ema=0.9)}
    model, X, y, _ = mlp(np.random.default_rng(5), seed=1, **options)
    if together:
        DataParallel(model, timeout=30, shard_optimizer=sharded)
    return model, X, y


class Averages(Callback):
    """Evaluates the averages of the weights after each epoch."""

    every_rank = True

    def __init__(self, X, y, seen):
        self.X, self.y, self.seen = X, y, seen

    def on_epoch_end(self, model, epoch, logs):
        with model.averaged():
            self.seen.append(model.evaluate(self.X, self.y)["loss"])


# averages during and after training, in shards or not, with weights that rank 0 alone has
seen = {}
for name, together, sharded in (("alone", 0, 0), ("ranks", 1, 0), ("shards", 1, 1)):
    model, X, y = net(bool(together), bool(sharded))
    if not together or rank() == 0:
        model.layers[0].W *= 2
    seen[name] = []
    model.train(X, y, epochs=3, batch_size=6, verbose=0, callbacks=[Averages(X, y, seen[name])])
    with model.averaged():
        seen[name].append(model.evaluate(X, y)["loss"])
found["averages"] = max(
    float(np.abs(np.array(seen["alone"]) - seen[name]).max()) for name in ("ranks", "shards")
)

# what all ranks must do together, asked by a callback of rank 0 alone
model, X, y = net(True, sharded=True)
asked = {}


def ask(model, epoch, logs):
    asked["memory"] = error_of(model.optimizer.memory)
    asked["copy"] = error_of(model.copy)
    asked["train"] = error_of(lambda: net(True)[0].train(X, y, epochs=1, verbose=0))
    asked["pickle"] = error_of(lambda: copy.deepcopy(model))


model.train(X, y, epochs=1, batch_size=6, verbose=0, callbacks=[LambdaCallback(on_epoch_end=ask)])
found["asked"] = asked


# a training inside a training of the same model
class Nested(Callback):
    every_rank = True

    def on_epoch_end(self, model, epoch, logs):
        found["nested"] = error_of(lambda: model.train(X, y, epochs=1, verbose=0))


model, X, y = net(True)
model.train(X, y, epochs=1, batch_size=6, verbose=0, callbacks=[Nested()])


# fewer samples than ranks, and a state that is one number
class Counts(Layer):
    independent_samples = True
    seen = State()

    def create(self, shape):
        self.seen = np.zeros((), self.dtype)
        return shape

    def forward(self, X):
        self.seen[...] += 1
        return X.copy()

    def backward(self, dY):
        return dY


weights = []
for together in (False, True):
    model = Sequential(Counts(), Dense(6, 1), optimizer=SGD(0.1), seed=1, dtype="float64")
    if together:
        DataParallel(model, timeout=30)
    model.train(X, X[:, 0], epochs=2, batch_size=1, verbose=0, metrics=["r2"])
    weights.append(model.layers[1].W.copy())
found["tiny"] = float(np.abs(weights[0] - weights[1]).max())

# an error on all ranks that the script catches; then training goes on
model, X, y = net(True, sharded=True)


class Fails(Callback):
    every_rank = True

    def on_epoch_end(self, model, epoch, logs):
        raise phitodeep.errors.ArgumentError("on every rank")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    found["caught"] = error_of(
        lambda: model.train(X, y, epochs=1, batch_size=6, verbose=0, callbacks=[Fails()])
    )
model.train(X, y, epochs=1, batch_size=6, verbose=0)
found["steps after"] = model.optimizer.t

# a number that is not finite, on one rank: all ranks report where it is
options = {"batch_size": 6, "epochs": 1, "shuffle": False, "anomaly": "raise", "verbose": 0}
found["anomaly"] = []
for sharded in (False, True):
    model, X, y = net(True, sharded)
    bad = np.array(X)
    bad[5] = 1.7e308
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found["anomaly"].append(error_of(partial(model.train, bad, y, **options)))

# own parts that end early, when training is resumed behind their end: a placeholder is read
model, X, y = net(True)


def parts():
    for i in range(1 if rank() else 4):
        yield X[6 * i : 6 * i + 3], y[6 * i : 6 * i + 3]


model.train(shard(parts), epochs=2, verbose=0)
found["own parts"] = model.optimizer.t
# buckets start during the backward pass, and with shards a rank keeps its part of the memory alone
started = []
own_parts = []
exchange.BUCKET = 256
finish = exchange.Summation.finish


def counted(self, packing, held):
    started.append(self.started)
    finish(self, packing, held)


exchange.Summation.finish = counted
model, X, y = net(True)
model.train(X, y, epochs=1, batch_size=6, verbose=0)
found["early"] = [min(started), len(model._ranks.exchange.buckets)]


class Looks(Callback):
    every_rank = True

    def on_batch_end(self, model, step, loss):
        vector = model.optimizer._slots["v"]
        mine = model._ranks.exchange.mine(model.optimizer._packing)
        others = np.delete(vector, np.arange(mine.start, mine.stop))
        own_parts.append(bool(vector[mine].any() and not others.any()))


model, X, y, _ = mlp(np.random.default_rng(5), seed=1, optimizer=SGD(0.1, momentum=0.9))
DataParallel(model, timeout=30, shard_optimizer=True)
model.train(X, y, epochs=1, batch_size=6, verbose=0, callbacks=[Looks()])
found["own memory"] = own_parts
