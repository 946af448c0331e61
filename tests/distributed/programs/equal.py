"""Trains networks alone and on all ranks; prints how much the weights and the history differ.

python equal.py [bucket size in bytes]
"""

import itertools
import json
import os
import sys

from networks import NETWORKS, difference

import phitodeep.distributed
from phitodeep.distributed import exchange
from phitodeep.optimization.optimizers import LBFGS, SGD, Adam, AdamW, Muon

RULES = {
    # eps: keys of attention have a bias whose gradient is 0, and Adam divides its rounding by eps
    "adam": lambda: Adam(0.01, eps=1e-6),
    "clipped": lambda: AdamW(0.01, clip_norm=0.3, ema=0.9, groups={"0.*": {"alpha": 0.02}}),
}
if len(sys.argv) > 1:
    exchange.BUCKET = int(sys.argv[1])


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
