"""Rank 1 leaves the training, or its program, and sends what rank 0 waits for a moment later.

python leaving.py
"""

import json
import time

import numpy as np
from mpi4py import MPI

from phitodeep.distributed.job import FAILED, LEFT, Job

found = []
for tag, message in ((FAILED, (0, "ValueError: no")), (LEFT, None)):
    own = Job.of(MPI.COMM_WORLD.Dup())
    if own.rank == 1:
        own.signals.isend(message, 0, tag).wait()
        time.sleep(0.4)  # in which rank 0 hears of it
    found.append(float(own.sum(np.ones(1))[0]))
both = MPI.COMM_WORLD.gather(found)
if both:
    print(json.dumps({"sums": both}))
