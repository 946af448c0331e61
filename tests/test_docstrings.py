"""The examples in the package's docstrings run.

An example is an indented block after a blank line. It is code if it parses as Python and holds a
call, an assignment, an import or a decorator; of a table, the first column is code if each of its
rows is a call. Anything else is a formula or a table of words.
"""

import ast
import importlib
import importlib.util
import io
import json
import re
import sys
import textwrap
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import phitodeep
from phitodeep import kernels
from phitodeep.core import config
from phitodeep.data import CharTokenizer
from phitodeep.layers import Conv2D, Dense, Flatten, ReLU
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Network, Sequential
from phitodeep.model import architectures as models
from phitodeep.optimization.optimizers import SGD
from tests.conftest import brief
from tests.rows import LONG
from tests.test_architecture import ROOMS

ROOT = Path(phitodeep.__file__).parent
CODE = ast.Call | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Import | ast.ImportFrom
STATEMENT = re.compile(  # how a line of code begins: a block with such a line has to parse
    r"^ *(?:import \w|from [\w.]+ import |@\w|(?:def|class|with) .*:$|[a-z_]+\.\w[\w.]*\(.*\)$)",
    re.MULTILINE,
)
NOT_CODE = {}  # a block's first line -> why it looks like code and does not run


def blocks(doc):
    """The indented blocks of a docstring that ast.get_docstring has cleaned, each dedented."""
    found = []
    blank = True
    for line in [*doc.splitlines(), "end"]:
        if line.startswith("    ") and (found or blank):
            found.append(line)
        elif line.strip() and found:
            yield textwrap.dedent("\n".join(found)).strip()
            found = []
        elif found:
            found.append("")
        blank = not line.strip()


def parsed(code):
    try:
        return ast.parse(code)
    except SyntaxError:
        return None


def is_code(block):
    tree = parsed(block)
    if tree is None or block.partition("\n")[0] in NOT_CODE:
        return False
    return any(isinstance(n, CODE) or getattr(n, "decorator_list", ()) for n in ast.walk(tree))


def as_code(block):
    """The block, or the first column of a table of calls, or None: it is not code."""
    if is_code(block):
        return block
    column = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    trees = [parsed(cell) for cell in column]
    if all(tree and tree.body and called(tree.body[0]) for tree in trees):
        return "\n".join(column)
    return None


def called(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def documented(tree, name):
    """(dotted name, docstring) of a module and of all classes and functions in it."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if doc := ast.get_docstring(tree):
            yield name, doc
        for node in tree.body:
            yield from documented(node, f"{name}.{getattr(node, 'name', '')}")


@cache
def everything():
    """(module, dotted name, block, its code or None) of every indented block in the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        for name, doc in documented(ast.parse(path.read_text(encoding="utf-8")), module):
            found += [(module, name, block, as_code(block)) for block in blocks(doc)]
    return found


def usual():
    """A model that tells three classes, and its data."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((8, 3)), rng.integers(0, 3, 8)
    model = Sequential(
        *(Dense(3, 4), ReLU(), Dense(4, 3)),
        loss_class=SoftmaxCrossEntropy(),
        optimizer=SGD(ema=0.9),
        dtype="float64",
        seed=0,
    )
    model.train(X, y, epochs=1, verbose=0)
    return {"model": model, "X": X, "y": y, "X_test": X, "y_test": y}


def regression():
    """A model of two numbers, its data, and predictions."""
    X, (y, P) = np.ones((5, 3)), np.random.default_rng(0).standard_normal((2, 5, 2))
    model = Sequential(Dense(3, 4), Dense(4, 2), seed=0)
    return {"model": model, "X": X, "y": y, "P": P}


def language():
    """A language model that has learnt nothing, and the tokens of a text."""
    tokenizer = CharTokenizer("To be, or not to be")
    model = models.gpt(tokenizer.vocab_size, 9, layers=1, heads=2, dim=4).seed(0).build()
    return {"model": model, "tokenizer": tokenizer, "tokens": np.zeros((1, 9), int)}


def autoencoder():
    model = models.vae(6, 5, latent=2).seed(0).build()
    Z = np.random.default_rng(0).standard_normal((3, 2))
    return {"model": model, "Z": Z, "sigmoid": phitodeep.functional.sigmoid}


def traced():
    """Two traces of the usual model."""
    known = usual()
    step = known["model"].trace(known["X"], known["y"])
    return {"t": step, "other": step}


def plane():
    """A classifier of points, and what was seen while it trained."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 2)), rng.integers(0, 3, 20)
    model = Sequential(Dense(2, 4), Dense(4, 3), loss_class=SoftmaxCrossEntropy(), seed=0)
    watch = phitodeep.model.callbacks.Histograms()
    model.train(X, y, epochs=2, callbacks=[watch], verbose=0)
    return {"model": model, "X": X, "y": y, "watch": watch}


def images():
    model = Sequential(Conv2D(1, 3, padding="same"), Flatten(), Dense(3), seed=0)
    model.build((28, 28, 1))
    return {"model": model, "X": np.zeros((1, 28, 28, 1))}


def two_inputs():
    X, W = np.zeros((4, 28, 28, 1)), np.zeros((4, 40), int)
    return {"X": X, "W": W, "y": np.zeros(4, int), "b": np.zeros((4, 4)), "Network": Network}


def with_torch():
    """The usual model, and a module of PyTorch."""
    import torch

    return {**usual(), "torch": torch, "module": torch.nn.Conv2d(1, 3, 3)}


PREPARED = {
    "phitodeep.exchange.torch.compare.compare_with_torch": with_torch,
    "phitodeep.exchange.torch.pairs.counterpart": with_torch,
    "phitodeep.model.imports.from_torch": with_torch,
    "phitodeep.exchange.torch.write.writing.to_torch": with_torch,
    "phitodeep.model.architectures.vae": autoencoder,
    "phitodeep.plots.attention.attention": language,
    "phitodeep.plots.boundary.decision_boundary": plane,
    "phitodeep.plots.feature_maps.feature_maps": images,
    "phitodeep.plots.filters.filters": images,
    "phitodeep.plots.histograms.histograms": plane,
    "phitodeep.text.generation.Generating.stream": language,
    "phitodeep.model.network.Network": two_inputs,
    "phitodeep.inspect.trace.Trace.save": traced,
    "phitodeep.testing": regression,
    "phitodeep.testing.check.check_gradients": regression,
}


@contextmanager
def forgotten():
    """What an example registers is forgotten after it."""
    home = vars(sys.modules[config.register.__module__])
    kept = [v for name, v in home.items() if type(v) is dict and not name.startswith("__")]
    before = [dict(v) for v in kept]
    yield
    for registry, content in zip(kept, before, strict=True):
        registry.clear()
        registry.update(content)


def public(module):
    """The names that an example may use without an import: those of its module, and phitodeep's."""
    names = {n: getattr(phitodeep, n) for n in phitodeep.__all__}
    return {**names, **vars(importlib.import_module(module)), "phitodeep": phitodeep}


@pytest.mark.parametrize("room", ["phitodeep", *ROOMS])
def test_examples_run(room, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brief(monkeypatch)
    for module, name, _, code in everything():
        prepare = PREPARED.get(name, usual)
        if code is None or room != [*module.split("."), module][module.count(".") > 0]:
            continue
        if name == "phitodeep.testing" and not LONG:
            continue  # verify() takes long, and tests/testing/test_verify.py runs it
        if prepare is with_torch and not importlib.util.find_spec("torch"):
            continue
        with monkeypatch.context() as patch, forgotten(), redirect_stdout(io.StringIO()):
            if module == "phitodeep.kernels":
                patch.setattr(kernels, "KERNELS", {})  # where adagrad is taken
            names = {**public(module), "__name__": "example", "np": np, "json": json, **prepare()}
            exec(compile(code, f"<docstring of {name}>", "exec"), names)


def test_there_are_examples_and_what_does_not_parse_does_not_look_like_code():
    for _, name, block, code in everything():
        if code is None and parsed(block) is None:
            assert not STATEMENT.search(block), (
                f"{name} has an example that is not Python:\n{block}"
            )
    assert all(map(STATEMENT.search, ("import numpy as", "model.train(X y)", "with a():\nb()")))
    count = sum(code is not None for *_, code in everything())
    assert 45 <= count < len(everything()) - 20
    assert {block.partition("\n")[0] for _, _, block, _ in everything()} >= NOT_CODE.keys()
    assert {name for _, name, *_ in everything()} >= PREPARED.keys()
