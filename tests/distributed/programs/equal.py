"""Trains networks alone and on all ranks; prints how much the weights and the history differ.

python equal.py [bucket size in bytes]
"""

import itertools
import json
import os
import sys

import numpy as np
from networks import NETWORKS

import phitodeep.distributed
from phitodeep.core.types import cut
from phitodeep.distributed import DataParallel, exchange
from phitodeep.optimization.optimizers import LBFGS, SGD, Adam, AdamW, Muon

RULES = {
    # eps: keys of attention have a bias whose gradient is 0, and Adam divides its rounding by eps
    "adam": lambda: Adam(0.01, eps=1e-6),
    "clipped": lambda: AdamW(0.01, clip_norm=0.3, ema=0.9, groups={"0.*": {"alpha": 0.02}}),
}
if len(sys.argv) > 1:
    exchange.BUCKET = int(sys.argv[1])


def difference(network, rule, dtype, options, **parallel):
    """Return the largest differences between training alone and on all ranks."""
    found = []
    for together in (False, True):
        settings = {"optimizer": rule(), "seed": 1, "dtype": dtype}
        model, X, y, data = NETWORKS[network](np.random.default_rng(5), **settings)
        if together:
            model = DataParallel(model, timeout=60, **parallel)
        tested = () if "lengths" in data else (cut(X, slice(9)), cut(y, slice(9)))
        metrics = {"kind": ["accuracy"]} if network == "heads" else ["accuracy"]
        history = model.train(X, y, *tested, verbose=0, metrics=metrics, **data, **options)
        found.append((model.get_weights(), history, model.optimizer.memory()))
    (weights, history, memory), (weights2, history2, memory2) = found
    return {
        "weights": max(float(abs(weights[k] - weights2[k]).max()) for k in weights),
        "memory": max(
            [float(abs(memory[k][s] - memory2[k][s]).max()) for k in memory for s in memory[k]],
            default=0.0,
        ),
        "losses": float(np.nanmax(np.abs(np.array(history) - np.array(history2)))),
        "metrics": max(
            float(np.nanmax(np.abs(np.array(values) - np.array(history2.metrics[name]))))
            for name, values in history.metrics.items()
        ),
    }


def report(**case):
    line = json.dumps({"rank": phitodeep.distributed.rank(), **case})
    os.write(1, f"{line}\n".encode())  # at once: lines of two ranks do not mix


LONG = os.environ.get("PHITODEEP_TESTS") == "all"
steps = {"mlp": 13, "cnn": 17, "lstm": 17, "gpt": 20, "heads": 14}  # epochs, for about 100 steps
ways = [(rule, *both) for rule in RULES for both in itertools.product((False, True), (1, 3))]
ways = [way for way in ways if way[0] != "clipped" or way[1] != (way[2] == 1)]  # half of these
cases = [(network, i, *way) for network in NETWORKS for i, way in enumerate(ways)]
for network, i, rule, sharded, accumulate in cases:
    if not LONG and i % 3 != list(NETWORKS).index(network) % 3:
        continue  # each network in two of the six ways
    size, epochs = (5, steps[network]) if accumulate == 1 else (3, 30)
    epochs = epochs if LONG else epochs // 12
    options = {"batch_size": size, "accumulate": accumulate, "epochs": epochs}
    found = difference(network, RULES[rule], "float64", options, shard_optimizer=sharded)
    report(case=f"{network} {rule} {sharded=} {accumulate=}", limit=1e-10, **found)
for network in NETWORKS if LONG else ("mlp", "cnn"):
    options = {"batch_size": 5, "epochs": 3}
    found = difference(network, lambda: SGD(0.05), "float32", options, overlap=False)
    report(case=f"{network} SGD float32", limit=1e-6, **found)
for name, make in {"LBFGS": lambda: LBFGS(max_iter=3), "Muon": lambda: Muon(0.01)}.items():
    found = difference("mlp", make, "float64", {"batch_size": None, "epochs": 4})
    report(case=name, limit=1e-8, **found)
