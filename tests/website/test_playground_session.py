"""The Python that runs in the playground's worker, run here."""

import json
import subprocess
import sys

import numpy as np
import pytest

from phitodeep.derivations.language.step import FUNCTIONS, Let, Sum
from phitodeep.teach.mutations import mutations
from tests.rows import few
from website.playground import build
from website.playground.session import game, points, program
from website.playground.session.session import HEAD, Session
from website.playground.session.worker import Worker

MOONS = build.presets()["moons"]


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    """The small data sets that the build makes, and points of one's own."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "digits.bin").write_bytes(build.digits())
    (folder / "names.txt").write_bytes(build.names())
    points.HERE = folder
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    points.given.update(X=(rng.normal(0, 0.3, (40, 2)) + y[:, None]).astype(np.float32), y=y)


def call(worker, name, **args):
    return json.loads(worker.call(name, json.dumps(args)))


def array(session, frame, path, name):
    at, rows, columns = session.layout[int(path)]["arrays"][name]
    return frame[at : at + rows * columns].reshape(rows, columns)


@pytest.mark.parametrize("name", sorted(build.presets()))
def test_every_program_learns_within_the_budget(name):
    session = Session(build.presets()[name])
    first = session.frame()
    session.advance("b", 300)
    last = session.frame()
    assert last[HEAD.index("loss")] < 0.8 * first[HEAD.index("loss")]
    assert last[HEAD.index("accuracy")] > (0.2 if name == "names" else 0.9)
    assert session.check()["right"]


def test_frames_steps_links_and_snapshots():
    session = Session(MOONS)
    session.advance("b", 20)
    frame = session.frame()
    trace = session.before.trace(session.X[session.rows], session.y[session.rows])
    for path, name in (("0", "dW"), ("0", "W"), ("2", "db"), ("1", "Y"), ("3", "dY")):
        shown = array(session, frame, path, name)
        key = f"{path}.forward.{name}" if name in ("W", "Y") else f"{path}.backward.{name}"
        right = np.atleast_2d(trace[key].array)[: len(shown)]
        assert np.allclose(shown[: len(right)], right, rtol=1e-4, atol=1e-7), (path, name)
    ratio = frame[session.layout[0]["ratio"]]
    moved = [A for _, A in sorted(trace.updates["0"].items())]
    params = [A for _, A in sorted(session.before.layers[0].params.items())]
    norms = [np.sqrt(sum(float((A**2).sum()) for A in arrays)) for arrays in (moved, params)]
    assert ratio == pytest.approx(norms[0] / norms[1], rel=1e-3)
    session = Session(MOONS)
    for what, step, cursor, rows in (("s", 1, 1, 1), ("b", 2, 33, 32), ("e", 8, 0, 7)):
        session.advance(what)
        assert (session.step, session.cursor, len(session.rows)) == (step, cursor, rows)
    assert (session.epoch, session.path) == (1, "s1b1e1")
    session = Session(MOONS)
    assert session.run(1e6, False, 5) == 5
    assert (session.step, session.seen) == (5, 5)
    session.run(0, False)
    assert (session.step, session.seen) == (6, 5)
    session.settle()
    assert (session.step, session.seen) == (7, 7)
    session.settle()
    assert session.step == 7
    session = Session(MOONS)
    for what, count in (("b", 30), ("s", 3), ("e", 2)):
        session.advance(what, count)
    replayed, restored = Session(MOONS), Session(MOONS)
    replayed.replay(session.path)
    restored.restore(session.snapshot())
    frames = [s.frame()[:4].tolist() for s in (session, replayed, restored)]
    assert frames[0] == frames[1] == frames[2]
    for s in (session, replayed, restored):
        s.advance("b", 5)
    frames = [s.frame().tobytes() for s in (session, replayed, restored)]
    assert frames[0] == frames[1] == frames[2]


REFUSED = {  # a program, or what replaces a part of one: the words of the error, and its line
    "X = (\n": ("SyntaxError", 1),
    "X, y = moons(20)\n": ("defines no `model`", None),
    "X, y = moons(20)\nmodel = 1 / 0": ("ZeroDivisionError", 2),
    "X, y, model = 1, 2, 3": ("not a model", None),
    "raise SystemExit": ("SystemExit", 1),
    "def f():\n    f()\nf()": ("RecursionError", 2),
    MOONS.replace(".tanh()", ".tangh()", 1): ("Did you mean .tanh()", 6),
    MOONS.replace("dense(8)", "dense(65)", 1): ("64 units at most", None),
    MOONS.replace("batch(32)", "batch(65)"): ("64 samples at most", None),
    MOONS.replace("moons(200", "moons(5001"): ("5000 samples at most", None),
    MOONS.replace(".dense(8)", ".add(7)", 1): ("", 15),
    MOONS.replace(".dense(8)", ".dense(8)" + 32 * ".tanh()", 1): ("32 layers at most", None),
}


def test_a_program_that_is_refused_keeps_the_last_one():
    worker = Worker()
    call(worker, "init", code=MOONS)
    kept = worker.session
    for code, (words, line) in REFUSED.items():
        answer = call(worker, "init", code=code)
        assert words in answer["error"]
        assert answer["line"] == line
        assert worker.session is kept
    code = MOONS.replace(".tanh()", ".add(Bad())", 1).replace("model = (", BAD)
    for error in ("RuntimeError('no')", "KeyboardInterrupt", "SystemExit"):
        answer = call(Worker(), "init", code=code.replace("return np.log(X)", f"raise {error}"))
        assert error.partition("(")[0] in answer["error"]
        assert answer["line"] == 7


GOES_ON = ["0.03 > 0.001", '"adam" > "sgd"', "batch(32) > batch(7)", "noise=0.15 > noise=0.3"]
GOES_ON += ["model = > # a comment\nmodel ="]
BEGINS = ["dense(8) > dense(9)", "seed=1 > seed=2", "tanh > relu", "moons(200 > moons(100"]
BEGINS += ["moons > circles"]


@pytest.mark.parametrize("edit", GOES_ON + BEGINS)
def test_an_edit_goes_on_with_the_weights_if_it_leaves_the_layers_alone(edit):
    (old, new), kept = edit.split(" > "), edit in GOES_ON
    worker = Worker()
    call(worker, "init", code=MOONS)
    call(worker, "replay", history="b30")
    before = worker.session.model.get_weights()
    about = call(worker, "init", code=MOONS.replace(old, new), keep=True)["result"]
    after = worker.session.model.get_weights()
    assert about["kept"] is kept
    assert about["history"] == ("b30" if kept else "")
    assert worker.session.step == (30 if kept else 0)
    alike = before.keys() == after.keys() and all(_alike(A, after[k]) for k, A in before.items())
    assert alike is kept
    worker.session.advance("e")
    assert worker.session.epoch == (5 if kept else 1)
    assert call(worker, "init", code=MOONS)["result"]["kept"] is False


def test_tables_are_read_and_digits_are_framed_where_the_model_misreads_them():
    session = Session(build.presets()["digits"])
    session.advance("b", 50)
    read = session.frame()[session.length :]
    P = session.model.predict(session.X[:64])
    assert np.array_equal(read, P.argmax(axis=1))
    assert 0.5 < (read == session.y[:64]).mean() < 1
    X, y = points.read_table("a;b;kind\n1;2;red\n3;4;blue\n5;6;red\n")
    assert X.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert y.tolist() == [1, 0, 1]
    _, y = points.read_table("1,0.5\n2,0.25\n")
    assert y.tolist() == [[0.5], [0.25]]
    for text in ("", "1,2", "1,2,3\n4,5\n", "1,x,3\n2,y,4\n"):
        with pytest.raises(ValueError, match=r"row|table"):
            points.read_table(text)


@pytest.mark.parametrize("target", ["red blue", "0.5 1.5 2.5", "a b c d"])
def test_a_table_gets_the_model_that_it_needs(target):
    rows = [f"{k},{k % 5},{k % 3},{word}" for k, word in enumerate(8 * target.split())]
    table = {"csv": "\n".join(rows)}
    worker, kept = Worker(), dict(points.given)
    code = call(worker, "table", code=build.presets()["mine"], **table)["result"]
    assert "SequentialBuilder(3," in code
    about = call(worker, "init", code=code, points_=table)["result"]
    points.given.clear()
    points.given.update(kept)
    assert about["classes"] == {"r": 2, "0": 0, "a": 4}[target[0]]
    assert worker.session.check()["right"]
    assert "two rows" in call(worker, "table", code=code, csv="1")["error"]


def test_nan_is_located_and_a_wrong_layer_is_seen():
    session = Session(MOONS.replace(".tanh()", ".relu().add(Bad())", 1).replace("model = (", BAD))
    session.advance("b", 3)
    assert (session.bad["path"], session.bad["symbol"]) == ("2", "Y")
    assert "not finite" in [finding["name"] for finding in session.bad["findings"]]
    frame = session.frame()
    assert frame[HEAD.index("bad")] == 1
    assert not np.isfinite(array(session, frame, "2", "Y")).all()
    assert session.step == 0
    assert session.run(1, record=True) == 0
    wrong = BAD.replace("np.log(X)", "X**2").replace('dY / self.saved("X")', 'dY * self.saved("X")')
    wrong = wrong.replace("dY / X", "dY * X")
    session = Session(MOONS.replace(".tanh()", ".add(Bad())", 1).replace("model = (", wrong))
    found = session.check()
    assert not found["right"]
    assert "layer 1" in found["words"]


BAD = """
class Bad(Layer):
    def forward(self, X):
        self.save_for_backward(X=X)
        return np.log(X)

    def backward(self, dY):
        return dY / self.saved("X")

    def steps(self):
        return Derivation([Let("Y", "np.log(X)")], [Let("dX", "dY / X")])


model = ("""


@pytest.mark.parametrize("name", few(["moons", "sine", "mine", "digits"], 1))
def test_the_exported_script_runs(name, tmp_path):
    script = program.script(build.presets()[name]).replace("epochs=100", "epochs=2, verbose=0")
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    (tmp_path / "digits.bin").write_bytes(build.digits())
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


@pytest.mark.parametrize("seed", few(range(8), 3))
def test_a_mutant_is_wrong_and_its_repair_right(seed):
    dealt = game.Game(seed)
    wrong = [g["wrong"] for layer in dealt.about()["layers"] for g in layer["gradients"]]
    assert any(wrong)
    assert dealt.find(dealt.path)["right"]
    assert not dealt.find(str((int(dealt.path) + 1) % 6))["right"]
    assert dealt.words in dealt.choices
    assert len(set(dealt.choices)) == game.CHOICES
    assert [dealt.name(words)["right"] for words in dealt.choices].count(True) == 1
    assert not dealt.repair(dealt.shown)["right"]
    assert not dealt.repair("dX = dY")["right"]
    assert dealt.repair(dealt.text)["right"]


def test_lines_compute_what_the_mutations_compute():
    dealt = game.Game(0)
    written = 0
    for inner in dealt.scope.inside.values():
        symbols = {**inner.values, **FUNCTIONS, "einsum": np.einsum}
        for step in inner.derivation.backward:
            if not isinstance(step, Let | Sum):
                continue
            right = eval(game.line_of(step, inner).partition(" = ")[2], symbols)
            assert np.allclose(right, inner[step.symbol], rtol=1e-12)
            with np.errstate(all="ignore"):
                for words, line in game.wrong_lines(step, inner):
                    got = eval(line.partition(" = ")[2], symbols)
                    same = [
                        w(inner) for own, w in mutations(step, inner.derivation) if own == words
                    ]
                    assert any(_alike(got, expected) for expected in same), line
                    written += 1
    assert written == 77


def _alike(A, B):
    return np.shape(A) == np.shape(B) and np.allclose(A, B, equal_nan=True)


def test_the_recorded_run_and_the_wheel_are_what_they_should_be():
    pages = {page.path.rpartition("/")[2]: page.content for page in build._recorded(MOONS)}
    about = json.loads(pages["recorded.json"])
    data, at = np.frombuffer(pages["recorded.bin"], "<f4"), 0
    session = Session(MOONS)
    for step in about["steps"]:
        session.advance("b", step - session.step)
        frame = session.frame()
        assert np.array_equal(data[at : at + len(frame)], frame, equal_nan=True)
        at += len(frame)
    assert at == len(data)
    assert build.OPEN in about["steps"]
    pytest.importorskip("hatchling")
    wheel = build._wheel()
    assert wheel.path.endswith("-py3-none-any.whl")
    assert len(wheel.content) < 1_000_000
    names = build.zipfile.ZipFile(build.io.BytesIO(wheel.content)).namelist()
    assert "phitodeep/model/sequential.py" in names
    assert "phitodeep/inspect/explorer/assets/engine.js" in names
    assert not [name for name in names if name.endswith(".xz")]
