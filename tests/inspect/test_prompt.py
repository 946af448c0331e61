"""The debugger in a terminal: scripted sessions, completion, Ctrl-C, and the docs' picture."""

import html
import io
import itertools
import os
import re
import runpy
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phitodeep.derivations.language import run
from phitodeep.inspect.debugger.prompt import Prompt
from phitodeep.model import SequentialBuilder

ROOT = Path(__file__).parent.parent.parent
X = np.array([[1, 2], [0, 1], [-1, 1]], np.float32)
Y = np.array([[1], [0], [1]], np.float32)
STRIP = re.compile(r"forward [━╸─]+  loss [━╸─]+  backward [━╸─]+")


def debugger():
    model = SequentialBuilder(2, seed=0).dense(2).tanh().dense(1).loss("mse").build()
    return model.debug(X, Y)


def answers(*commands, db=None):
    """What the prompt shows: first on starting, then after each command."""
    out = io.StringIO()
    (db or debugger()).prompt(io.StringIO("".join(f"{c}\n" for c in commands)), out)
    return out.getvalue().split("(phi) ")


def answer(*commands, db=None):
    return answers(*commands, "q", db=db)[-2]


def arrow(shown):
    """The step that is marked as the next one."""
    (found,) = re.findall(r"^-> (.*?)(?:  .*)?$", shown, re.MULTILINE)
    return found


def test_steps_show_their_value_and_the_next_step():
    shown = answers()[0]
    assert "h lists the commands, q leaves" in shown
    assert STRIP.search(shown)
    assert shown.endswith(
        "forward of Sequential\n-> X = the input\n   Y_0 = 0.forward(X)       Dense(2, 2)\n"
        "   Y_1 = 1.forward(Y_0)     Tanh()\n   Y = 2.forward(Y_1)       Dense(2, 1)\n"
    )
    shown = answer("s")
    assert shown.startswith("X = [[ 1.  2.]\n     [ 0.  1.]\n     [-1.  1.]]\n")
    assert "0.forward of Dense(2, 2)" in shown
    assert arrow(shown) == "X = the input"
    assert arrow(answer("s 2")) == "XW_nj = Σ_i X_ni W_ij"
    db = debugger()
    assert arrow(answer("s", "", "", db=db)) == "Y = XW + b"  # an empty line repeats a command
    assert db.count == 3
    assert arrow(answer("s", "n")) == "Y_0 = 0.forward(X)"
    shown = answer("c", db=db)
    assert db.position is None
    assert "forward ━━━━━━━━━━━━━━━━━━  loss ━━━━  backward ━━━━━━━━━━━━━━━━━━   L = 1.612" in shown
    assert "the end" in shown
    for command in ("s", "n", "c"):
        says = "*** the step of training is over: call back() or restart().\n"
        assert answer("c", command) == says


def test_lists_show_shapes_and_numbers_in_columns():
    shown = answer("b 2.backward", "c", "s 2", "l")
    assert shown == (
        "   dY = dL/dY, which arrives  (3, 1)    0.2877, 0.3909, -1.383\n"
        "   dW_ij = Σ_n X_ni dY_nj     (2, 1)    1.374, -1.194\n"
        "-> db_j = Σ_n dY_nj\n"
        "   dX_ni = Σ_j dY_nj W_ij\n"
    )
    assert answer("s 2", "l").startswith("   X = the input          (3, 2)    |1.155|\n")
    model = SequentialBuilder(3, seed=0).layer_norm().dense(1).loss("mse").build()
    db = model.debug(np.ones((20, 3)), np.ones((20, 1)))
    db.until("0.forward.X_hat")
    rows = [row.replace("\u0302", "") for row in db.list().splitlines() if " (20, " in row]
    assert "\u0302" in db.list()
    assert len({row.index(" (20, ") for row in rows}) == 1
    model = SequentialBuilder(30, seed=0).dense(1).loss("mse").build()
    shown = answer("s", db=model.debug(np.ones((20, 30)), np.ones((20, 1))))
    assert "...\n" in shown
    assert "(20, 30)" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_until_back_and_restart_move_and_the_strip_grows():
    db = debugger()
    shown = answer("until 1.backward.dX", db=db)
    assert "\n * dX = dY · slope" in shown
    assert db.last is not None
    assert db.last.key == "1.backward.dX"
    assert db.where() == "1.backward of Tanh()\n * dX = dY · slope"  # the next step is elsewhere
    count = db.count
    for command, steps in (("back", 1), ("z 2", 3), ("back 4", 7)):
        answer(command, db=db)
        assert db.count == count - steps
    answer("restart", db=db)
    assert db.count == 0
    db, lengths = debugger(), []
    while db.position is not None:
        shown = db.progress()
        assert STRIP.fullmatch(shown)
        assert shown.count("╸") == 1
        lengths.append(shown.count("━"))
        db.advance()
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 10
    assert re.fullmatch(r"forward ━{18}  loss ━{4}  backward ━{18}", db.progress())
    db.restart()
    db.until("loss.backward.d_each")
    assert re.fullmatch(r"forward ━{18}  loss ━━╸─  backward ─{18}", db.progress())


def test_expressions_and_the_terms_of_a_cell_are_printed():
    for command in ("p dY * 2", "dY * 2", "!dY * 2"):
        shown = answer("b 2.backward", "c", "s", command)
        assert shown == "[[ 0.5753]\n [ 0.7817]\n [-2.7666]]\n"
    db = debugger()
    shown = answer("b 2.backward", "c", "p 1.Y", db=db)
    assert shown == f"{np.array2string(db.p('1.Y'), precision=4, suppress_small=True)}\n"
    assert db.p("1.Y") is db._scopes["1"]["Y"]
    assert answer("p loss.L", db=db) == "1.6117\n"
    assert answer("p 1.dX", db=db) == "*** there is no '1.dX' yet: 1 has so far X, Y.\n"
    assert answer("p X.shape", db=db) == "[3 2]\n"
    shown = answer("w", db=db)
    assert STRIP.match(shown)
    assert shown.endswith("2.backward of Dense(2, 1)\n-> dY = dL/dY, which arrives\n")
    assert "P = the predictions" in answer("restart", "until loss.forward.P", "l", db=db)
    db.until("loss.forward.L")  # its backward pass receives nothing
    assert answer("s", "l", db=db).splitlines()[0].startswith("   d_each = ")
    shown = answer("until 0.backward.dW", "why dW 0 0")
    assert shown.splitlines()[:2] == [
        "dW[0, 0] = 0.82262",
        "  +0.8195  = X -1 x dY -0.8195  (n = 2)",
    ]
    assert answer("until 0.backward.dW", "why dW[0, 0]") == shown
    assert answer("c", "why 0.dW 0 0").endswith("\n".join(shown.splitlines()[1:]) + "\n")
    assert "a parameter" in answer("s", "why W 0 1")
    assert "(2, 2)" in answer("until 0.backward.dW", "why dW 5 0")
    assert "yet: 0 has so far X, W, b" in answer("s", "why dW 0 0")


def recurrent():
    model = SequentialBuilder(4, 2, seed=0).rnn(2).dense(1).loss("mse").build()
    data = np.random.default_rng(0).standard_normal((3, 4, 2))
    return model.debug(data, np.ones((3, 4, 1)))


def test_loops_are_indented_and_speak_of_this_round():
    db = recurrent()
    db.set_break("0.forward.xW")
    for _ in range(3):
        db.cont()
    shown = answer("l", db=db)
    assert "\n   for t from 0 to T - 1:\n     x_t = step t of X " in shown
    assert re.search(r"h_prev = the previous h_t, at first h_start +\(3, 2\) ", shown)
    assert re.search(r"^->   xW_ng = \S+ x_t,nd Wx_dg$", shown, re.MULTILINE)
    assert re.search(r"^     h_t = tanh\(a_t\)$", shown, re.MULTILINE)
    assert db.last is not None
    assert db.last.t == 2
    symbols = db.symbols()
    assert "x_t" in symbols
    assert "h_t" not in symbols
    assert all(db.p(name) is not None for name in symbols)
    failed = answer("p nothing", db=db)
    assert failed.startswith("*** name 'nothing' is not defined: 0 has so far")
    assert "h_t" not in failed
    db = recurrent()
    shown = answer("until 0.backward.db", db=db)
    rows = shown.partition("0.backward of RNN(2)\n")[2].splitlines()
    assert re.match(r"   \.\.\. \d+ earlier$", rows[0])
    assert [row[:2] for row in rows[1:]].count("->") == 1
    assert len([row for row in rows if "..." not in row]) == 9
    assert "earlier" not in answer("l", db=db)
    db = recurrent()
    db.set_break("0.forward.hW")
    for _ in range(3):
        db.cont()
    db.step()
    hW = db.p("hW")
    assert hW.shape == (3, 2)
    assert db.why("hW", 0, 1).total == pytest.approx(hW[0, 1], rel=1e-6)
    assert len(db.why("hW", 0, 1)) == 2
    db.clear_break()
    db.cont()
    assert db.why("0.hW", 0, 2, 1).total == pytest.approx(hW[0, 1], rel=1e-6)


def test_breakpoints_edits_and_leaving():
    db = debugger()
    assert answer("b", db=db) == "no breakpoints\n"
    shown = answer("b 2.backward, abs(dX).max() > 1", "b 1.backward.slope", "b", db=db)
    assert shown == "2.backward when abs(dX).max() > 1\n1.backward.slope\n"
    shown = answer("c", db=db)
    assert "2.backward of Dense(2, 1): now abs(dX).max() > 1\n" in shown
    assert "\n * dX_ni" in shown
    assert arrow(answer("c", db=db)) == "slope = 1 - Y²"
    assert answer("cl 2.backward", db=db) == "1.backward.slope\n"
    assert answer("cl", db=db) == "no breakpoints\n"
    db = debugger()
    shown = answer("until 2.backward.db", "e dY[2, 0] = 2 * dY[2, 0] - dY[2, 0] * 2", db=db)
    assert "2.backward of Dense(2, 1): dY is edited" in shown
    assert " * dY = dL/dY, which arrives  (3, 1)    0.2877, 0.3909, 0\n" in shown
    shown = answer("c", "diff", db=db)
    assert shown.startswith("the loss is the same, 1.61175")
    assert db.p("0.dW")[0, 0] == pytest.approx(db.p("0.dY")[0, 0])
    db = debugger()
    for count, leave in enumerate((["q"], ["quit"], ["exit"], []), 1):
        answers("s", *leave, db=db)
        assert db.count == count


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("p 1/0", "ZeroDivisionError: division by zero"),
        ("p X[9]", "IndexError"),
        (r"p (_ for _ in ()).throw(ValueError('a\nb'))", "ValueError: a b"),
        ("p X +", "p takes a Python expression, got 'X +'"),
        ("foo", "name 'foo' is not defined: the model has so far X"),
        ("b 7", "there is no '7'"),
        ("b loss.backward.dY", "there is no 'loss.backward.dY'. loss has"),
        ("b 0, X >", "when='X >' is not a Python expression"),
        ("cl 3", "'3' is not one of the breakpoints"),
        ("s x", "ValueError"),
        ("s 0", "step: count"),
        ("back", "there is nothing to undo"),
        ("until 0", "until takes a key with a symbol"),
        ("e Q = 1", "'Q' cannot be edited: the model has so far nothing"),
        ("e X", "p takes a Python expression, got ''"),
        ("why", "why takes a symbol and a cell, such as why dW 2 3"),
        ("why X a", "ValueError"),
        ("h foo", "no command 'foo'"),
    ],
)
def test_an_error_is_one_line_and_the_prompt_goes_on(command, message):
    db = debugger()
    _, shown, after, _ = answers(command, "s", "q", db=db)
    assert shown.startswith(f"*** {message}")
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    assert arrow(after) == "X = the input"
    assert db.count == 1


class Interrupted(io.StringIO):
    """Input in which the line "^C" is Ctrl-C."""

    def readline(self, *given):
        line = super().readline(*given)
        if line == "^C\n":
            raise KeyboardInterrupt
        return line


def test_control_c_at_the_prompt_starts_a_new_line():
    db, out = debugger(), io.StringIO()
    db.prompt(Interrupted("s\n^C\ns\nq\n"), out)
    assert db.count == 2
    assert "(Ctrl-C; q leaves)" in out.getvalue()


@pytest.mark.parametrize("name", ["path_inside", "derivation_of"])
def test_control_c_stops_a_command_and_nothing_is_lost(name, monkeypatch):
    db, expected = debugger(), debugger()
    expected.cont()
    original, calls = getattr(run, name), itertools.count()

    def once(*given):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(run, name, once)
    shown = answers("s", "c", "c", "q", db=db)
    assert "Ctrl-C: stopped here" in shown[2]
    assert "the end" in shown[3]
    assert (db.loss, db.count) == (expected.loss, expected.count)


def test_help_has_one_line_for_each_command_and_none_is_wider_than_a_terminal():
    commands = {name.removeprefix("do_") for name in dir(Prompt) if name.startswith("do_")}
    lines = answer("h").splitlines()
    assert " ".join(line.split()[0] for line in lines) == (
        "s n c until back restart w l p why diff b cl e q Ctrl-D h"
    )
    assert max(map(len, lines)) <= 100
    for does in answers(*(f"h {command}" for command in commands), "q")[1:-1]:
        assert does.count("\n") == 1
        assert ": " in does
    pdb = """s step n next c cont continue b break cl clear p w where l list ll until unt
        restart q quit exit h help"""
    assert {*pdb.split(), "e", "edit", "back", "z", "diff", "why"} <= commands
    assert not {"u", "d", "up", "down"} & commands  # pdb's words for the stack
    for shown in answers(*["s"] * 60, "q"):
        assert max(map(len, shown.splitlines()), default=0) <= 80


def complete(db, line):
    prompt = Prompt(db, io.StringIO(), io.StringIO())
    text = re.split(r"[\s,(=]", line)[-1]
    return prompt.completedefault(text, line, len(line) - len(text), len(line))


def test_completion_of_symbols_keys_and_breakpoints():
    db = debugger()
    db.until("2.backward.dW")
    assert complete(db, "p d") == ["dY", "dW"]
    assert complete(db, "e X") == ["X", "XW"]
    assert complete(db, "p L") == ["L"]
    assert complete(db, "b 2.backward.d") == [f"2.backward.{n}" for n in ("dY", "dW", "db", "dX")]
    assert complete(db, "until loss.forward.P") == ["loss.forward.P"]
    assert complete(db, "b 2.backward, abs(d") == ["dY", "dW"]
    db.set_break("1.forward")
    assert complete(db, "cl ") == ["1.forward"]
    prompt = Prompt(db, io.StringIO(), io.StringIO())
    assert {"why", "where"} <= {*prompt.completenames("wh")}


@pytest.mark.parametrize("make", [debugger, recurrent])
def test_every_key_is_a_place_to_stop_at(make):
    db = make()
    assert len(set(db.places())) == len(db.places())
    reached = set()
    for key in db.places():
        db.clear_break()
        db.set_break(key)
        db.restart()
        start = db.position
        covered = start is not None and db.breaks[0].covers(start)
        db.cont()
        reached |= {key} if covered or db.position is not None else set()
    assert reached == set(db.places())


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_colours_only_in_a_terminal(kind, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = kind()
    long = f"b {'7' * 200}"
    debugger().prompt(io.StringIO(f"b 2.backward\nc\ns\np foo\n[1]\n{long}\nq\n"), out)
    shown = out.getvalue()
    assert ("\x1b[" in shown) == (kind is Terminal)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert plain == "(phi) ".join(answers("b 2.backward", "c", "s", "p foo", "[1]", long, "q"))


def test_a_real_terminal_has_history_and_completion():
    pytest.importorskip("readline")
    ours, theirs = pytest.importorskip("pty").openpty()
    program = (
        "import numpy as np\nfrom phitodeep.model import SequentialBuilder\n"
        "model = SequentialBuilder(2, seed=0).dense(1).loss('mse').build()\n"
        "db = model.debug(np.ones((3, 2)), np.ones((3, 1)))\ndb.prompt()\nprint('left', db.count)"
    )
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    env["PHITODEEP_KERNELS"] = "numpy"  # which takes less time to import
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    shown = ""
    try:
        for typed in ("s\n", "\x1b[A\n", "b 0.b\t\n", "\x04"):  # the second is Up, then Tab
            shown += read_until(ours, "\n(phi) ")  # readline repeats the prompt, after \r
            os.write(ours, typed.encode())
        shown += read_until(ours, "left 2")
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert "Traceback" not in shown
    assert "stops at 0.backward\r\n" in shown


def read_until(terminal, end):
    shown = ""
    while end not in re.sub(r"\x1b\[\?\d+[hl]", "", shown):
        assert select.select([terminal], [], [], 60)[0], shown
        shown += os.read(terminal, 1 << 16).decode(errors="replace")
    return shown


def test_the_picture_of_the_docs_shows_what_the_prompt_shows():
    tool = runpy.run_path(str(ROOT / "tools" / "picture_of_prompt.py"))
    page = (ROOT / "docs" / "debugger.md").read_text(encoding="utf-8")
    names = {}
    exec(page.split("```python\n", 1)[1].split("```", 1)[0], names)
    parts = answers(*tool["COMMANDS"], db=names["db"])
    pairs = zip(parts, tool["COMMANDS"], strict=False)
    said = "".join(f"{part}(phi) {command}\n" for part, command in pairs)
    drawn = (ROOT / "docs" / "pictures" / "prompt.svg").read_text(encoding="utf-8")
    lines = {}
    for y, text in re.findall(
        r'<text class="prompt-r\d+"[^>]*? y="([\d.]+)"[^>]*>(.*?)</text>', drawn
    ):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    shown = [line.strip() for _, line in sorted(lines.items()) if line.strip()]
    assert shown == [line.strip() for line in said.splitlines() if line.strip()]
    assert "http" not in drawn.replace("http://www.w3.org", "").replace("https://www.textual", "")
