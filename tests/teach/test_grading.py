"""Grading: solutions pass, blanks do not, and whatever a class does, there is a verdict."""

import re

import numpy as np
import pytest

from phitodeep.derivations.language.step import Loop, Sum
from phitodeep.errors import ArgumentError
from phitodeep.layers import Layer, Softplus
from phitodeep.teach import EXERCISES, Case, Exercise, attempt, grade, references
from phitodeep.teach.grading import code_of
from phitodeep.teach.mutations import chain
from phitodeep.teach.truth import ask, solve, symbols_of
from phitodeep.testing import check_gradients
from tests.conftest import check_refused
from tests.inspect.shared import rows
from tests.rows import LONG
from tests.teach.lessons import DENSE, blank, cell, changed, made, needs_forks, solved

each = pytest.mark.parametrize("name", EXERCISES)
PASS, SEEDS = 0.5, range(12 if LONG else 1)


@each
def test_a_solution_passes_for_every_seed_with_and_without_forks(name, monkeypatch):
    kind = solved(name)
    for seed in SEEDS:
        found = grade(kind, name, seed)
        assert found.score == 1.0, str(found)
        assert found.passed
    reference = EXERCISES[name].reference
    if isinstance(reference, type) and reference.__module__ != references.__name__:
        assert grade(reference, name, 3).passed
    monkeypatch.setattr(attempt, "FORKS", False)
    assert grade(solved(name), name, 5).passed
    kind = blank(name, "raise ValueError")
    assert str(grade(kind, name, 4)) == str(grade(kind, name, 4))


BODIES = ["...", "return None", "raise NotImplementedError", "1 / 0"]


@each
def test_a_blank_body_fails(name):
    for body in BODIES if LONG else [BODIES[[*EXERCISES].index(name) % 4]]:
        found = grade(blank(name, body), name)
        assert found.score < PASS
        assert not found.passed
        assert found["forward"].passed


@pytest.mark.parametrize("name", ["neuron", "chain", "two_paths", "own_layer", "initial_weights"])
def test_a_reference_that_only_has_steps_agrees_with_central_differences(name):
    kind = solved(name)  # it passes, so it computes what the reference says
    for case in EXERCISES[name].cases(np.random.default_rng(5)):
        X = np.random.default_rng(6).standard_normal(case.shape)
        check_gradients(kind(**case.options), X)


@each
def test_hidden_batches_differ_and_lines_of_code_in_hints_are_right(name):
    draw = EXERCISES[name].cases
    drawn = [draw(np.random.default_rng(seed)) for seed in range(8)]
    assert len({tuple(case.shape for case in cases) for cases in drawn}) > 6
    for cases in drawn:
        assert sum(not case.part for case in cases) >= 2
        assert any(case.shape[0] == 1 for case in cases)
        for case in cases:
            assert len(set(case.shape)) == len(case.shape) or 1 in case.shape or case.part
    # Hint 3 is code: run on the symbols of a batch, each sum gives the right array.
    rng = np.random.default_rng(0)
    question, reference = ask(EXERCISES[name], EXERCISES[name].cases(rng)[0], rng)
    scope = solve(reference, question)
    loops = [step for step in scope.derivation.every() if isinstance(step, Loop)]
    sums = 0
    for symbol in symbols_of(reference)[1]:
        for step in chain(symbol, scope.derivation):
            inside = any(step in loop.body for loop in loops)
            seen = scope.at(0) if inside else scope
            if isinstance(step, Sum):
                values = {"np": np, **{n: seen[n] for n in step.operands}}
                exec(code_of(step, scope), values)
                assert np.allclose(values[step.symbol], seen[step.symbol])
                sums += 1
    assert sums or name in ("neuron", "chain", "two_paths", "relu")


# --- whatever the code does ----------------------------------------------------------------------

RIGHT = "dW[...] = X.reshape(-1, X.shape[-1]).T @ dY.reshape(-1, self.units)"
RIGHT += "; db[...] = dY.reshape(-1, self.units).sum(axis=0)"
BEHAVIOUR = [  # a body, the check that fails, and what it says
    ("return dY @ self.missing", "dX", "AttributeError.*`return dY @ self.missing`"),
    (f"{RIGHT}", "dX", "returned None: it must end with `return dX`"),
    (f"{RIGHT}; return 'dX'", "dX", "should be an array of numbers, but is of type str"),
    (f"{RIGHT}; return [[1.0]]", "dX", "should be an array of numbers, but is of type list"),
    (f"{RIGHT}; return dY @ self.W.T * np.nan", "dX", "contains NaN or infinity"),
    (f"{RIGHT}; return (dY @ self.W.T)[:, :1]", "dX", "should have shape"),
    (f"{RIGHT}; self.grads.pop('b'); return dY @ self.W.T", "db", "db is missing"),
    (f"{RIGHT}; X[...] = 0; return dY @ self.W.T", "side effects", "X, in backward"),
    (f"{RIGHT}; self.W = self.W * 2; return dY @ self.W.T / 2", "side effects", "W, in backward"),
    ("import sys; sys.exit('bye')", "dX", "SystemExit: bye"),
    ("raise KeyError", "dX", "raised KeyError, at the line `raise KeyError`"),
    ("raise RecursionError('deep')", "dX", "RecursionError: deep"),
    ("raise GeneratorExit", "dX", "raised GeneratorExit, at the line `raise GeneratorExit`"),
    (f"{RIGHT}; return (dY @ self.W.T).astype(np.float16)", "dX", "cells are wrong"),
    (f"{RIGHT}; return dY @ self.W.T + 0j", "dX", "is of type ndarray of dtype complex128"),
    (f"{RIGHT}; return dY @ self.W.T * (1 + 1e-6)", "dX", "cells are wrong"),
    ("raise ValueError('x' * 9999)", "dX", r"raised ValueError: x{300}, at the line"),
    (
        "raise type('E', (Exception,), {'__str__': None})",
        "dX",
        "E: <exception str.. failed>",
    ),
    ("return self.backward(dY)", "dX", "RecursionError: .*, at the line `return self"),
]


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize(
    ("body", "part", "words"), BEHAVIOUR, ids=[row[0][-40:] for row in BEHAVIOUR]
)
def test_bad_behaviour_gets_a_verdict(body, part, words, forks, monkeypatch):
    monkeypatch.setattr(attempt, "FORKS", forks and attempt.FORKS)
    found = grade(blank("dense", body), DENSE, 1)
    assert not found[part].passed
    assert re.search(words, found[part].words), found[part].words
    assert found["forward"].passed
    numbers = re.search(r"should be (\S+), but is (\S+):", found[part].words)
    assert numbers is None or numbers[1] != numbers[2]


@needs_forks
@pytest.mark.parametrize("loop", ["while True: pass", "while True:\n            dW[...] += 1"])
def test_an_endless_loop_is_stopped(loop):
    kind, rng = blank("dense", loop), np.random.default_rng(0)
    question, _ = ask(DENSE, DENSE.cases(rng)[0], rng)
    answers = attempt.ask(lambda: kind, [question, question], 0.3)
    for answer, limit in zip(answers, ("0.3", "0.03"), strict=True):  # the second has a tenth
        assert f"backward took more than {limit} seconds" in answer.missing("dX")
        assert not answer.missing("Y")


@needs_forks
def test_an_answer_that_is_too_long_is_not_read(monkeypatch):
    monkeypatch.setattr(attempt, "ROOM", 1000)
    found = grade(solved("dense"), DENSE)
    assert found.points <= 1
    assert any("ended its process" in verdict.words for verdict in found.verdicts)


def test_what_goes_wrong_outside_of_backward_gets_verdicts():
    harmless = "dX = dY @ self.W.T\n        dY.resize(dY.size)\n        return dX"
    assert grade(changed("dense", "return dY @ self.W.T", harmless), DENSE, 1).passed
    found = grade(changed("dense", "super().__init__()", "del self.dtype"), "dense")
    assert found["forward"].words.endswith("no attribute 'dtype'.")
    writes = "Y = X @ self.W + self.b\n        X[...] = 0\n        return Y"
    found = grade(changed("dense", "return X @ self.W + self.b", writes), "dense")
    assert not found["side effects"].passed
    assert all(verdict.passed for verdict in found.verdicts if verdict.part != "side effects")
    for old, new, words in (
        ("self.units = units", "raise ValueError('no')", r"ValueError: no"),
        ("self.b = np.zeros(self.units)", "self.b = np.zeros(1)", "should have the shapes"),
        ("return (*shape[:-1], self.units)", "return None", "create"),
        ("def __init__(self, units):", "def __init__(self, size, more):", "TypeError"),
    ):
        found = grade(changed("dense", old, new), DENSE)
        assert found.score == 0
        assert words in found["forward"].words
    count = "self.n = getattr(self, 'n', 0) + 1; "
    for name, left, right in (
        ("relu", "return", "np.where"),
        ("layer_norm", "through_r =", "X_hat"),
    ):
        kind = changed(name, f"{left} {right}", f"{count}{left} self.n * {right}")
        found = grade(kind, name)
        assert found["dX"].passed
        assert "After another batch" in found["side effects"].words


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dense", {"X @ self.W + ": "3 * X @ self.W + ", "rows.T @": "3 * rows.T @"}),
        ("softmax_cross_entropy", {".sum() / N)": ".sum() / N / 2)", "- T) / N": "- T) / N / 2"}),
        ("relu", {"np.maximum(X, 0)": "0 * X", "np.where(X > 0, dY, 0)": "0 * dY"}),
        ("relu", {"np.maximum(X, 0)": "X.sum() + 0 * X", "np.where(X > 0, dY, 0)": "dY.sum()"}),
    ],
)
def test_nothing_counts_while_the_forward_pass_is_wrong(name, change):
    source = cell(name, "solution")
    for old, new in change.items():
        assert old in source
        source = source.replace(old, new)
    found = grade(made(name, source), name)
    assert re.match(r"(L|Y\[.*\]) should be \S+, but is \S+", found["forward"].words)
    assert "while the forward pass is wrong" in found["dP" if "soft" in name else "dX"].words
    assert found.score == 0
    whole = grade(made(name, cell(name, "solution")), name)
    assert [v.points for v in found.verdicts] == [v.points for v in whole.verdicts]


def test_hints_grow_with_their_level_and_a_page_shows_them():
    found = grade(changed("layer_norm", "g - through_mean", "g"), "layer_norm")
    texts = [" ".join(found.hint(level).split()) for level in range(4)]
    assert "should be" not in texts[0]
    assert "wrong dX" in texts[0]
    assert "without the term `- through_mu`" in texts[1]
    assert "dX = r · (g - through_mu - through_r)" in texts[2]
    assert "In NumPy: dX = r * (g - through_mu - through_r)" in texts[3]
    assert [len(text) for text in texts] == sorted(len(text) for text in texts)
    assert str(found) == repr(found) == found.hint(1)
    same = grade(changed("layer_norm", "g - through_mean", "g"), "layer_norm", hints=3)
    assert str(same) == found.hint(3)
    with pytest.raises(ArgumentError, match="hint level must be one of 0"):
        found.hint(4)
    found = grade(blank("dense"), "dense", hints=3)
    assert str(found).count("is not written yet") == 1
    assert str(found).count("As for dX.") == 2
    found = grade(changed("dense", "return dY @ self.W.T", "return dY"), "dense", hints=3)
    page = found._repr_html_()
    assert "11 points" in page
    assert "`" not in page
    assert re.search(r">wrong</td>\s*<td[^>]*>dX</td>", page)
    assert page.count(">right</td>") == sum(verdict.passed for verdict in found.verdicts)
    assert "  dX = np.einsum(&quot;nj,ij-&gt;ni&quot;, dY, W)</td>" in page
    raised = grade(changed("dense", "return dY @ self.W.T", "raise KeyError('<b>')"), "dense")
    assert "&lt;b&gt;" in raised._repr_html_()
    assert "<code>raise KeyError(&#x27;&lt;b&gt;&#x27;)</code>" in raised._repr_html_()


def test_an_exercise_of_your_own_and_answers_learnt_by_heart():
    class Mine(Layer):
        def forward(self, X):
            self.save_for_backward(X=X)
            return np.logaddexp(0, X)

        def backward(self, dY):
            return dY / (1 + np.exp(-self.saved("X")))

    class Wrong(Mine):
        def backward(self, dY):
            return 1 / (1 + np.exp(-self.saved("X")))

    def cases(rng):
        return [Case((int(rng.integers(2, 5)), 6)), Case((5, 3)), Case((1, 4), part="a batch of 1")]

    odd = Exercise("odd", "", Softplus, lambda r: [*cases(r), Case((2, 2), part="<i>")])
    assert ">&lt;i&gt;</td>" in grade(Mine, odd)._repr_html_()
    softplus = Exercise("softplus", "Softplus()", Softplus, cases)
    assert grade(Mine, softplus, 1).passed
    assert "ignores dY" in grade(Wrong, softplus, 1)["dX"].hints[0]
    body = "dW[...] = self.W + 1; db[...] = 0.25; return np.full(X.shape, -0.5, X.dtype)"
    for seed in SEEDS:
        assert grade(blank("dense", body), "dense", seed).score < PASS


LONELY = Exercise("lonely", "Softplus()", Softplus, lambda rng: [Case((2, 3))])
REFUSED = """
grade(Layer, "layernorm") -> UnknownNameError: layer_norm
grade(Softplus(), "relu") -> ArgumentTypeError: takes a class itself, a subclass of Layer, as in
grade(Softplus, "softmax_cross_entropy") -> ArgumentTypeError: subclass of Loss
grade(SoftmaxCrossEntropy, "dense") -> ArgumentTypeError: subclass of Layer
grade(Softplus, "relu", hints=-1) -> ArgumentError: hints
grade(Softplus, "relu", hints=4) -> ArgumentError: hints must be <= 3
grade(Softplus, "relu", seconds=0) -> ArgumentError: seconds must be > 0
grade(Softplus, ["relu"]) -> UnknownNameError: is not one of the exercises
grade(Softplus, LONELY) -> ArgumentError: at least 2 ordinary batches
"""


@rows(REFUSED)
def test_what_cannot_be_graded_is_refused(call, error):
    check_refused(call, error, globals())
