"""Keeping freed memory: done on Linux, and only if it is wanted."""

import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from phitodeep.model import SequentialBuilder
from phitodeep.training import loop
from phitodeep.training.loop import keep_freed_memory
from tests.training.test_shortcuts import convolutional


def test_it_can_be_switched_off_and_needs_mallopt(monkeypatch):
    monkeypatch.setenv("PHITODEEP_KEEP_MEMORY", "0")
    assert not keep_freed_memory()
    monkeypatch.delenv("PHITODEEP_KEEP_MEMORY")
    monkeypatch.setattr(loop.sys, "platform", "darwin")
    assert not keep_freed_memory()
    monkeypatch.setattr(loop.sys, "platform", "linux")
    monkeypatch.setattr(loop.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
    asked, answers = [], iter([1, 1, 1, 0, 0])
    library = SimpleNamespace(mallopt=lambda *given: asked.append(given) or next(answers))
    monkeypatch.setattr(loop.ctypes, "CDLL", lambda name: library)
    assert [keep_freed_memory() for _ in range(3)] == [True, False, False]
    blocks, top = (-3, 32 << 20), (-1, 64 << 20)
    assert asked == [blocks, top, blocks, top, blocks]


def test_training_does_it_and_import_does_not(monkeypatch):
    calls = []
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(loop, "report_compilation", lambda: calls.append("compiled"))
    model = convolutional()
    assert not calls
    model.train([[[[1.0]] * 6] * 6], [0], epochs=1, verbose=0)
    assert calls == [1, "compiled"]


FAULTS = """
import resource
import numpy as np
from phitodeep.training.loop import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 20, np.float64)  # 8 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = keep_freed_memory()
faults()
print(kept, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are those of glibc on Linux")
def test_large_arrays_cost_no_page_faults():
    environment = {"PHITODEEP_KEEP_MEMORY": "1", "PATH": "/usr/bin"}
    command = [sys.executable, "-c", FAULTS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    kept, count = run.stdout.split()
    assert kept == "False" or int(count) < 100  # of 2,048 pages, with glibc


def peak(layers):
    """The most memory in training, in bytes; images have 2 MB in every layer."""
    builder = SequentialBuilder(32, 32, 16, seed=0).loss("mse")
    for _ in range(layers):
        builder = builder.conv2d(16, 3, padding="same")
    model, X = builder.build(), np.ones((32, 32, 32, 16), np.float32)
    tracemalloc.start()
    model.train(X, X, epochs=1, verbose=0, threads=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_a_convolution_adds_its_output_and_its_gradient_to_the_memory():
    """What it needs while it runs, such as windows or tiles, is the same memory for all layers."""
    _, small, large = (peak(layers) for layers in (1, 2, 4))  # the first may compile kernels
    assert (large - small) / 2 < 2.2 * (2 << 20)
