"""Other processes: forked, where a system can, from one that has imported what they need."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
if FORKS:
    CONTEXT.set_forkserver_preload(["tests.io.test_faults", "tests.training.test_killed"])
QUICK = mock.patch.dict(os.environ, PHITODEEP_KERNELS="numpy")  # Numba takes a second to import


def start(function, *arguments):
    """Call a function in another process, and return that."""
    process = CONTEXT.Process(target=function, args=arguments)
    with QUICK:
        process.start()
    return process


def elsewhere(function, *arguments):
    """Return what a function returns in another process, which may lose rights."""
    with QUICK, ProcessPoolExecutor(1, CONTEXT) as pool:
        return pool.submit(function, *arguments).result(120)
