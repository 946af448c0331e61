"""Classes that want points without work, or to spoil the grading: each gets a verdict."""

import os
import time

import pytest

from phitodeep.errors import ArgumentError
from phitodeep.teach import grade
from tests.rows import few
from tests.teach.lessons import DENSE, blank, cell, changed, needs_forks

pytestmark = needs_forks

LOOP = "\n                while True: pass"
SENT = """import gc, socket
        for o in gc.get_objects():
            if isinstance(o, socket.socket): o.sendall({} * {})
        return X"""
ARRAY = "class A(np.ndarray):\n            {}\n        return X.view(A)"
BODIES = [  # what backward does; what is said of dX
    "import phitodeep.teach.grading as g; g._wrong = lambda *a: ''; return X",
    "import phitodeep.teach.grading as g; g._Grading._right = lambda *a: True; return X",
    "import phitodeep.teach.report as r; r.Grade.score = 1.0; r.Grade.passed = True; return X",
    "import phitodeep.teach.truth as t; t.Draw.array = lambda *a: X; return X",
    "import phitodeep.teach.attempt as a; a.Answer.missing = lambda *a: ''; return X",
    "np.abs = lambda *a: 0; np.isfinite = lambda *a: np.ones(1); return X",
    "import builtins; builtins.isinstance = lambda *a: True; builtins.len = 3; return X",
    "import sys; sys.modules.clear(); return X",
    "import gc\n        for o in gc.get_objects():\n"
    "            if type(o).__name__ == 'Answer': o.arrays['dX'] = X; o.faults.clear()\n"
    "        return X",
    SENT.format(r"b'garbage\n'", 9),
    SENT.format(r"b'\xff'", 64),
    SENT.format("b'['", 10**6),
    SENT.format(r"b'[' * 10**5 + b'\n'", 1),
    SENT.format(r"""b'["fault", "", ""]\n["fault", "", "dX"]\n["end"]\n'""", 99),
    SENT.format(r"""b'["array", "dX", "O", [1], "0000000000000000"]\n'""", 1),
    SENT.format(r"""b'["array", "dX", "<f8", [1000000000000000, 0], ""]\n'""", 1),
    SENT.format(r"""b'["array", "dX", "<f8", [-1], "00"]\n'""", 1),
    SENT.format(r"""b'["fault", "x", ["dX"]]\n'""", 1),
    "while True:\n            " + SENT.format(r"""b'["begin", ""]\n'""", 1).replace("\n", "\n    "),
    "import os; os._exit(0)",
    "import os; os._exit = print; raise SystemExit",
    "import os; os.kill(os.getpid(), 9)",
    "import os; os.kill(os.getpid(), 19)",
    "import os; os.execv('/bin/sleep', ['sleep', '1000'])",
    "import os; os.closerange(0, 1000); return X",
    "import os; os.fork(); return X",
    "import os, time\n        if os.fork(): os._exit(0)\n        os.setsid(); time.sleep(3)",
    "import sys; sys.settrace(None)\n        while True: pass",
    "while True:\n            try:\n                while True: pass\n            except: pass",
    "import time; time.sleep(10**6)",
    "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)",
    "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]\n"
    "        while True: pass",
    "import threading; threading.Thread(target=input).start(); return X",
    "raise GeneratorExit",
    "raise KeyboardInterrupt",
    "raise BaseException",
    "raise ValueError('\\x1b[2JDense: 11 of 11 points\\ud800')",
    "class E(Exception):\n            def __str__(self): raise SystemExit\n        raise E",
    f"class E(Exception):\n            def __str__(self):{LOOP}\n        raise E",
    ARRAY.format("def copy(self, *a): raise GeneratorExit"),
    ARRAY.format(f"def copy(self, *a):{LOOP}\n            tobytes = __array_finalize__ = copy"),
    ARRAY.format("shape = property(lambda s: 1 / 0)"),
    ARRAY.format("__eq__ = __ne__ = lambda *a: True; __sub__ = lambda *a: 0"),
    "class A:\n            __class__ = property(lambda s: 1 / 0)\n        return A()",
    "return np.broadcast_to(np.zeros(1), (10**6, 10**6))",
    "return np.zeros((10**12, 0))",
    "return dY * 0 + 1.7e308 if dY.shape == X.shape else X * 0 + 1.7e308",
    "return (dY @ self.W.T).astype(object)",
    "self.grads = None; return X",
    "self._frame = None; return X",
    "print('Dense: 11 of 11 points'); return X",
]


@pytest.mark.parametrize("body", few(BODIES, 12))
def test_whatever_backward_does_it_gets_a_verdict_and_no_points(body):
    pid, start = os.getpid(), time.monotonic()
    found = grade(blank("dense", body), DENSE, 1, seconds=0.1)
    assert os.getpid() == pid
    assert time.monotonic() - start < 10
    assert found.points <= 1  # of the forward pass, which is given
    for verdict in found.verdicts:
        assert verdict.passed or verdict.words
    assert "\x1b" not in str(found)
    assert str(found).encode()


NAMELESS = """class M(type(Layer)):
    on = False
    def __getattribute__(self, name):
        if M.on: raise SystemExit(name)
        return super().__getattribute__(name)

class Dense(Layer, metaclass=M):"""
CLASSES = [  # what is replaced in the solution, by what, and the most points that are left
    ("class Dense(Layer):", NAMELESS, 9),
    ("    def backward", "    def grads(self): return {}\n\n    def backward", 4),
    ("    def backward", "    grads = property(lambda s: 1 / 0, print)\n    def backward", 4),
    ("    def backward", "    _frame = property(lambda s: 1 / 0, print)\n    def backward", 0),
    ("    def backward", "    def __new__(cls, *a, **k): return 3\n\n    def backward", 0),
    ("    def backward", f"    def __new__(cls, *a, **k):{LOOP}\n\n    def backward", 0),
    ("    def backward", "    def build(self, *a, **k): return 3\n\n    def backward", 0),
    (
        "return X @ self.W + self.b",
        "return np.full((*X.shape[:-1], self.units), X.sum() + self.W.sum() + self.b.sum())",
        0,
    ),
]


@pytest.mark.parametrize(("old", "new", "points"), CLASSES, ids=range(len(CLASSES)))
def test_whatever_a_class_is_it_gets_a_verdict(old, new, points):
    kind = changed("dense", old, new)
    if "on" in vars(type(kind)):
        type(kind).on = True
    found = grade(kind, DENSE, seconds=0.1)
    assert found.points <= points
    assert found.name == "Dense"
    assert all(verdict.passed or verdict.words for verdict in found.verdicts)


def test_a_file_is_run_only_where_it_cannot_reach_the_grader(tmp_path):
    solution = f"{cell('dense', '')}\n{cell('dense', 'solution')}"
    cheat = "import phitodeep.teach.grading as g\ng._wrong = lambda *a: ''\n"
    path = tmp_path / "homework.py"
    for text, points, words in (
        (solution, 9, ""),
        (cheat + solution.replace("return dY", "return -dY"), 7, "should be"),
        (cheat + "1 / 0", 0, "the class raised ZeroDivisionError: division by zero"),
        ("Dense = (", 0, "the class raised SyntaxError"),
        ("Dense = 3", 0, "TypeError: the file should define a class Dense, a subclass of Layer"),
        ("while True: pass", 0, "the class took more than 0.4 seconds"),
    ):
        path.write_text(text, encoding="utf-8")
        found = grade(f"{path}::Dense", DENSE, seconds=0.4)
        assert found.points == points
        assert words in found["forward"].words + found["dX"].words
    for missing in ("Dense", f"{path}:Dense", f"{tmp_path}::Dense"):
        with pytest.raises(ArgumentError, match=r"as \"homework.py::Dense\"; got"):
            grade(missing, "dense")
