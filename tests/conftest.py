"""What several test files share: Ctrl-C, stored numbers, tables of errors, batches in parts."""

import builtins
import gc
import importlib
import os
import re
import signal
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings

import phitodeep
from phitodeep import Sequential, errors, kernels
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.testing.references import read
from phitodeep.training import parts as threads

collect_ignore = ["browser", "website"]  # `make test-browser` names these folders, and so runs them

settings.register_profile("phitodeep", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("phitodeep")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector: thousands of objects are made, and stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def keyboard():
    """Ctrl-C interrupts this process and those it starts, as in a terminal.

    Shells let processes in the background ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press(at):
    """Press Ctrl-C during the batch of this step."""
    return LambdaCallback(
        on_batch_end=lambda model, step, loss: step == at and signal.raise_signal(signal.SIGINT)
    )


@pytest.fixture
def suite(monkeypatch):
    """`importlib`, which finds the benchmark's files: these import each other by name."""
    folder = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    yield importlib
    for path in folder.rglob("*.py"):
        sys.modules.pop(".".join(path.relative_to(folder).with_suffix("").parts), None)
    sys.modules.pop("frameworks", None)


def brief(patch):
    """Let every training stop after its first epoch, until the patch is undone."""
    whole = Sequential.train
    patch.setattr(Sequential, "train", lambda *a, **k: whole(*a, **k | {"epochs": 1}))


def model_for(shape, *layers, **options):
    """A model of these layers that is built for samples of this shape."""
    model = Sequential(*layers, **options)
    model.build(shape)
    return model


def references(name):
    """The arrays of each case in tests/reference/`name`.npz: of whole models, and of noise."""
    return read(Path(__file__).parent / "reference" / f"{name}.npz")


def arrays(value):
    """All arrays in a nest of dicts, lists and tuples."""
    if isinstance(value, dict | list | tuple):
        for v in value.values() if isinstance(value, dict) else value:
            yield from arrays(v)
    elif isinstance(value, np.ndarray):
        yield value


def assert_same(a, b, **precision):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], dict):
            assert_same(a[name], b[name], **precision)
            continue
        np.testing.assert_allclose(a[name], b[name], err_msg=name, **({"rtol": 0} | precision))


def assert_weights(one, other, rtol=0.0, atol=None):
    """Two models, or dicts of arrays, have equal weights or, with rtol, close ones."""
    a, b = (each if isinstance(each, dict) else each.get_weights() for each in (one, other))
    assert_same(b, a, rtol=rtol, atol=(1e-12 if rtol else 0.0) if atol is None else atol)


def refusals(text):
    """A table of calls, each with the error that it raises: `call -> Kind: pattern`.

    Where a line is too short for both, the error is below the call, and indented.
    """
    rows = re.findall(r"^\S.*\n(?: +.*\n)*", text, re.MULTILINE)
    assert sum(row.count("\n") for row in rows) == text.strip().count("\n") + 1
    pairs = [row.partition(" -> " if " -> " in row else "\n") for row in rows]
    return [(call, " ".join(said.split())) for call, _, said in pairs]


def check_refused(call, error, names):
    """The call raises the error "Kind: pattern"; it knows these names and the public ones."""
    known = {name: getattr(phitodeep, name) for name in phitodeep.__all__}
    known |= {"phitodeep": phitodeep, **names}
    kind, _, says = error.partition(": ")
    raised = getattr(errors, kind, None) or getattr(builtins, kind)
    with pytest.raises(raised, match=re.compile(says, re.DOTALL)):
        eval(call, known)


@contextmanager
def numpy_kernels():
    """Run NumPy's kernels, here and in processes that start now, which need not import Numba."""
    before = kernels.chosen()
    with mock.patch.dict(os.environ, PHITODEEP_KERNELS=kernels.use("numpy")):
        yield
    kernels.use(before)


@contextmanager
def in_parts(count):
    """Cut every batch into `count` parts, however small it is."""
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, count)
        yield


@pytest.fixture
def cut(monkeypatch):
    """Call it to cut every batch into so many parts, until the test ends."""
    return partial(_cut, monkeypatch)


def _cut(patch, count):
    patch.setattr(threads, "parts_of", lambda flops: count)
    patch.setattr(threads, "SMALL", 0)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Files are written without waiting until the disk has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


@contextmanager
def noted(case):
    """Say in an error which case it belongs to."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case}")
        raise


@pytest.fixture
def same_kernels():
    """After the test, the kernels are those that ran before."""
    before = kernels.chosen()
    yield
    kernels.use(before)
