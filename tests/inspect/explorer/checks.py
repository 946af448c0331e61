"""The explorer's JavaScript in one Node process, and the page's numbers compared with a trace's."""

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import jsonschema
import numpy as np
import pytest

from phitodeep.derivations.language.run import has_steps
from phitodeep.inspect.explorer import document
from phitodeep.inspect.explorer.document import text_of
from tests.rows import LONG, few

SECONDS = 60  # to wait for an answer
SCHEMA = json.loads((Path(document.__file__).parent / "schema.json").read_text())
jsonschema.Draft202012Validator.check_schema(SCHEMA)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
DRIVER = Path(__file__).with_name("engine.mjs")


class JavaScriptError(Exception):
    """What the JavaScript threw."""


class Ref(NamedTuple):
    """A cell of a symbol."""

    path: str
    symbol: str
    cell: tuple[int, ...]

    def data(self):
        return {**self._asdict(), "t": None}


class Node:
    """A Node process that runs tests/inspect/explorer/engine.mjs."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program, str(DRIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, message):
        """Send one line of JSON and return the answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(message + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        if not ready:
            self.process.kill()
            raise JavaScriptError(f"no answer within {SECONDS} seconds")
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise JavaScriptError(answer["stack"])
        return answer["answers"]

    def ask(self, text, *questions):
        """Ask about a document, given as JSON; a question is [name, options, ...]."""
        return self.send(f'{{"doc": {text}, "ask": {json.dumps(questions, default=plain)}}}')

    def arrays(self, text, **options):
        """All values of a pass by path and symbol; what is reduced stays as it is."""
        (found,) = self.ask(text, ["arrays", options])
        return {(path, symbol): unpacked(value) for path, symbol, value in found}


def node():
    """Start Node; skip the test if there is none, which is an error in CI."""
    program = shutil.which("node")
    if program is None and os.environ.get("CI") != "true":
        pytest.skip("Node is not installed, and it runs the explorer's JavaScript")
    assert program is not None, "CI must have Node, which runs the explorer's JavaScript"
    return Node(program)


def plain(value):
    """A cell or an array as JSON."""
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "data": value.reshape(-1).tolist()}
    return int(value)


def unpacked(value):
    if value is None or "n" in value:
        return value
    return np.frombuffer(base64.b64decode(value["data"])).reshape(value["shape"])


def floats(value):
    return np.asarray(value, np.float64)


FRESH = np.random.default_rng


def assert_close(found, wanted, name, tolerance=1e-9):
    """As np.testing.assert_allclose, in a tenth of its time."""
    found, wanted = floats(found), floats(wanted)
    assert found.shape == wanted.shape, name
    finite = np.isfinite(wanted)
    scale = max(1.0, float(np.abs(wanted[finite]).max(initial=0)))
    assert (np.abs(found[finite] - wanted[finite]) <= tolerance * scale).all(), name
    assert finite.all() or np.array_equal(found[~finite], wanted[~finite], equal_nan=True), name


def entries_of(trace):
    """All arrays of a step but its updates: path, symbol, entry; they are computed once."""
    if "entries_of" not in vars(trace):
        found = [(trace.find(key), entry) for key, entry in trace.items()]
        kept = [(path, symbol, e) for (path, way, symbol), e in found if way != "update"]
        vars(trace)["entries_of"] = kept
    return list(vars(trace)["entries_of"])


def same_arrays(found, trace, text, *, gaps=False, tolerance=1e-9):
    """The page has the arrays of a step; with `gaps`, it may say that it does not know one."""
    doc, count = json.loads(text), 0
    for path, symbol, entry in entries_of(trace):
        array = entry.array
        if path not in doc["scopes"]:
            assert not has_steps(trace.scope(around(path, doc["scopes"])).layer), path
            continue
        value = found.get((path, symbol))
        if array is None:
            assert value is None, (path, symbol)
        elif value is not None or not gaps:
            assert_close(value, array, (path, symbol), tolerance)
            count += 1
    assert count


def around(path, scopes):
    """The innermost scope around a path."""
    while path not in scopes:
        path = path.rpartition(".")[0]
    return path


def cells(trace, rng, share=1.0):
    """A random cell of most arrays, with their entries."""
    for path, symbol, entry in entries_of(trace):
        if entry.array is None or np.size(entry.array) == 0:
            continue
        if symbol != "t" and rng.random() < share:
            yield entry, Ref(path, symbol, tuple(int(rng.integers(n)) for n in entry.shape))


def check_terms(js, trace, text, rng):
    """The terms of random cells are Python's."""
    scopes = json.loads(text)["scopes"]
    chosen = cells(trace, rng, 1.0 if LONG else 0.5)
    asked = [(entry, ref) for entry, ref in chosen if ref.path in scopes]
    answers = js.ask(text, *[["why", {}, ref.data()] for _, ref in asked])
    computed = 0
    for (entry, ref), answer in zip(asked, answers, strict=True):
        wanted = entry.why(*ref.cell)
        assert_close(answer["total"], wanted.total, ref)
        if not answer["terms"]:
            assert len(wanted) == 1, ref
            assert wanted[0].factors == {}, ref
            continue
        computed += 1
        if answer["kind"] == "through":  # the page also says where to go on
            answer["terms"][0]["factors"] = []
        assert sorted_terms(answer["terms"]) == pytest.approx(
            sorted_terms(
                {"at": term.at, "value": term.value, "factors": [*term.factors.values()]}
                for term in wanted
            ),
            rel=1e-8,
            abs=1e-10,
            nan_ok=True,
        ), ref
        sizes = [abs(float(term["value"])) for term in answer["terms"]]
        assert np.isnan(sizes).any() or sizes == sorted(sizes, reverse=True), ref
        if np.isfinite(wanted.total):
            total = sum(float(term["value"]) for term in answer["terms"])
            assert_close(total, wanted.total, ref, 1e-9 * max(1, *sizes))
    assert computed


def sorted_terms(terms):
    """The numbers of all terms in an order that equal terms do not change."""
    rows = []
    for term in terms:
        at = [k for _, k in sorted(term["at"].items())]
        rows.append([*at, float(term["value"]), *sorted(map(float, term["factors"]))])
    return [
        number for row in sorted(rows, key=lambda row: np.round(row, 7).tolist()) for number in row
    ]


def check_slopes(js, trace, text, rng, share=1.0):
    """Slopes times gradients add up to the cell, and so do paths and what a layer did locally."""
    doc, found, seen = json.loads(text), js.arrays(text), 0
    scopes, live = doc["scopes"], doc["live"]
    inside = {path for path in scopes if path.split(".")[0] != "loss"}
    refs = [ref for _, ref in cells(trace, rng, share) if ref.path in inside]
    kinds = (["slopes"], ["paths", 10**6, 60], ["local"])
    asked = [[kind, {}, ref.data(), *more] for ref in refs for kind, *more in kinds]
    answers = iter(js.ask(text, *asked))
    for ref in refs:
        slopes, paths, local = next(answers), next(answers), next(answers)
        value = found[ref.path, ref.symbol][ref.cell]
        assert_close(paths["total"], value, ref)
        if not slopes or value == 0:
            continue  # it is no gradient
        assert_close(sum(slope * array for slope, array in slopes), value, ref)
        for path in paths["paths"]:
            assert path["value"] == pytest.approx(path["steps"] * path["last"], rel=1e-9), ref
            assert path["end"].startswith("loss.dP") or not live, ref
        if live:
            seen += 1
            arriving = scopes[ref.path]["receives"]["backward"]
            parts = zip(map(unpacked, local), arriving, strict=True)
            assert_close(sum((A * found[ref.path, dY]).sum() for A, dY in parts), value, ref)
    assert seen or share < 1 or not live or not trace["loss.dP"].array.any()


def check_shares(js, trace, text):
    """The last sample's share is Python's, and the shares of a gradient add up to it."""
    live, total = json.loads(text)["live"], js.arrays(text)
    shares = [js.arrays(text, sample=n) for n in range(trace._recording.data.n)]
    same_arrays(shares[-1], trace.by_sample(-1), text, gaps=not live)
    for path, scope in json.loads(text)["scopes"].items():
        for symbol in (*scope["returns"]["backward"], *(f"d{name}" for name in scope["params"])):
            parts = [share.get((path, symbol)) for share in shares]
            if all(part is not None for part in parts):
                assert_close(sum(map(floats, parts)), total[path, symbol], (path, symbol))


def check_nudges(js, model, X, y, text, options=None):
    """With another weight, the page has the arrays of a model with that weight."""
    rng, doc = FRESH(6), json.loads(text)
    assert doc["live"]
    for key in few([*doc["parameters"]][::-1], 1):
        path, _, name = key.rpartition(".")
        twin = model.copy()
        layer = dict(twin.walk())[path]
        owner, own = layer.tied.get(name, (layer, name))
        W = owner.params[own]
        cell = tuple(int(rng.integers(n)) for n in W.shape)
        W[cell] += 0.3
        nudged = twin.trace(X, y, **options or {})
        (loss,) = js.ask(text, ["loss", {"given": {key: W}}])
        assert_close(loss, nudged.loss, key)
        same_arrays(js.arrays(text, given={key: W}), nudged, text)


def check(js, trace, seed=5):
    """All arrays and terms; return the document."""
    text = text_of(trace)
    same_arrays(js.arrays(text), trace, text)
    check_terms(js, trace, text, FRESH(seed))
    return text


def check_all(js, model, X, y, options=None, share=1.0, full=True):
    """Arrays and terms, and in full slopes, shares, and weights that move; return the document."""
    trace = model.trace(X, y, **options or {})
    text = check(js, trace)
    if not full:
        return text
    check_slopes(js, trace, text, FRESH(8), share)
    check_shares(js, trace, text)
    if json.loads(text)["live"]:
        check_nudges(js, model, X, y, text, options)
    return text
