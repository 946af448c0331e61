"""Other processes: on Linux, forked from one that has imported what they need."""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

LINUX = sys.platform == "linux"
CONTEXT = multiprocessing.get_context("forkserver" if LINUX else "spawn")
if LINUX:
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
