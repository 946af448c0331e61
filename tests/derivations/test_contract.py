"""Each derivation equals the fast passes and central differences, and explains each of its cells.

Every example of the table of layers is run by its steps, in float64, in training and prediction,
with and without masks.
"""

import ast
import re
from itertools import product

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.notation import LATEX, PLAIN
from phitodeep.derivations.language.run import Position, Scope
from phitodeep.derivations.language.step import Arrange, Let, Max, Sum, Through
from phitodeep.derivations.language.terms import why
from phitodeep.derivations.losses import givens
from phitodeep.testing.examples import data, made, pair, passes
from tests.conftest import assert_weights
from tests.derivations.test_mathml import check_mathml
from tests.loss.test_loss import EXAMPLES as LOSSES
from tests.rows import ALL, KINDS, LONG, TOOLS, few, masks, over

every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
REDUCTIONS = {"sum", "mean", "dot", "matmul", "einsum", "cumsum", "prod", "var", "std", "trace"}
REDUCTIONS |= {"max", "min", "amax", "amin", "inner", "outer", "vdot", "tensordot", "average"}


def assert_close(found, wanted, name, tolerance=1e-12):
    assert found is not None, name
    size = np.abs(wanted)
    scale = max(1.0, float(size[np.isfinite(size)].max(initial=0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale, err_msg=name)


def scopes(scope):
    yield scope
    for inner in scope.inside.values():
        yield from scopes(inner)


def by_steps(layer, X, dY, **call):
    with calling(**{"step": 0, **call}):
        return stepwise.passes(layer, X, dY)


# --- equal to the fast passes ------------------------------------------------------------------


@over(ALL)
def test_steps_equal_the_fast_passes(make, shape, tokens):
    layer = made(make, shape)
    for _, part in layer.walk():
        assert part.steps() is not None or type(part) is layers.Lambda, part
    X, dY = data(layer, shape, tokens)
    for training, mask in product((True, False), masks(layer, shape)):
        same_passes(layer, X, dY, training=training, mask=mask)


def same_passes(layer, X, dY, tolerance=1e-12, **call):
    """Run both passes by their steps, which record nothing, and compare them with the fast ones."""
    state = layer.get_weights()
    fast = passes(layer, X, dY, **call)
    layer.set_weights(state)
    slow = by_steps(layer, X, dY, **call)
    found = stepwise.gradients(slow)
    for name in [*stepwise.symbols_of(layer, "Y"), *stepwise.symbols_of(layer, "dX")]:
        if slow.find(name) is not None:
            found[name] = slow[name]
    assert found.keys() == fast.keys()
    for name, wanted in fast.items():
        assert found[name].dtype == wanted.dtype, name
        assert_close(found[name], wanted, f"{layer!r} {name}", tolerance)
    assert_weights(layer, state)
    return slow


@over(TOOLS)
def test_backward_steps_are_the_derivative_of_the_forward_steps(make, shape, tokens):
    layer = made(make, shape)
    if any(part.surrogate for _, part in layer.walk()):
        return
    X, dY = data(layer, shape, tokens)
    rng = np.random.default_rng(5)
    mask = masks(layer, shape)[-1]
    found = by_steps(layer, X, dY, mask=mask)
    weights = {n: a for n, a in layer.get_weights().items() if "running" not in n}
    moves = {n: rng.standard_normal(a.shape) for n, a in weights.items()}
    along = rng.standard_normal(X.shape) if not tokens else np.zeros(X.shape)
    slope = 0.0 if tokens else float((found["dX"] * along).sum())
    gradients = {}
    for path, part in layer.walk():
        for name in [*part.params, *part.tied]:
            owner, own = part.tied.get(name, (part, name))
            top = next((p for p, other in layer.walk() if other is owner), None)
            full = f"{path}.{name}".removeprefix(".")
            if top is not None:
                target = f"{top}.{own}".removeprefix(".")
                gradients[target] = gradients.get(target, 0) + stepwise.gradients(found)[full]
    slope += sum(float((gradients[n] * moves[n]).sum()) for n in gradients)

    def value(step):
        layer.set_weights({n: a + step * moves[n] if n in moves else a for n, a in state.items()})
        with calling(step=0, mask=mask):
            there = X if tokens else X + step * along
            return float((stepwise.passes(layer, there)["Y"] * dY).sum())

    state = layer.get_weights()
    sizes = (1e-4, 1e-5, 1e-6)
    measured = [(value(h) - value(-h)) / (2 * h) for h in sizes]
    error = min(abs(slope - m) for m in measured)
    assert error <= 1e-6 * max(1.0, abs(slope)), (slope, measured)


# --- where a cell comes from -------------------------------------------------------------------


def places(scope, step):
    """A few cells of what a step computed, each with the symbols as that step saw them."""
    rng = np.random.default_rng(7)
    rounds = sorted(scope._series.get(step.symbol, {})) or [None]
    for t in rounds if LONG else {rounds[0], rounds[-1]}:
        seen = scope.at(t)
        A = np.asarray(seen[step.symbol])
        for _ in range((2 if t is None else 1) * (A.size > 0)):
            yield seen, tuple(int(rng.integers(0, n)) for n in A.shape)


@over(TOOLS)
def test_each_cell_has_its_terms_and_each_step_its_formulas(make, shape, tokens):
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    modes = [(True, mask) for mask in masks(layer, shape)]
    for training, mask in [*modes, (False, modes[-1][1])]:
        for scope in scopes(by_steps(layer, X, dY, training=training, mask=mask)):
            part = scope.layer
            own = {*part.params, *part.tied, *part.state}
            own |= {*stepwise.symbols_of(part, "X"), *stepwise.symbols_of(part, "dY")}
            with calling(mask=scope.call.mask):
                check_formulas(scope)
                check_written(scope, own, repr(layer))
            if training:
                check_terms(scope)


def check_terms(scope):
    seen = 0
    for step in scope.derivation.every():
        if step.symbol == "t" or scope.find(step.symbol) is None:
            continue
        for symbols, cell in places(scope, step):
            found, value = why(step, symbols, *cell), np.asarray(symbols[step.symbol])[cell]
            if np.isinf(value):  # the score of a key that is not visible
                assert found.total == value, (step, cell)
                continue
            size = max(1.0, *(abs(term.value) for term in found))
            same = found.total == value or abs(found.total - value) <= 1e-12 * size
            assert same, (step, cell)  # the first for -inf
            assert sum(term.value for term in found) == pytest.approx(found.total, abs=1e-12 * size)
            if isinstance(step, Sum | Max):
                for term in found[:3]:
                    product = np.prod(list(term.factors.values())) if term.factors else 1
                    assert term.value == pytest.approx(product, rel=1e-12)
            seen += 1
    assert seen


# --- editing -----------------------------------------------------------------------------------


@over(KINDS)
def test_every_symbol_can_be_edited(make, shape, tokens):
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)

    def run(target):
        """Both passes, with 0.25 added to what is computed at place `target`, and all places."""
        places = list[Position]()

        def edit(position, value):
            places.append(position)
            moves = len(places) - 1 == target and np.asarray(value).dtype.kind == "f"
            return value + 0.25 if moves else value

        with calling(step=0):
            scope = Scope(layer, X=X)
            stepwise.run(stepwise.forward(scope), edit)
            stepwise.run(stepwise.backward(scope, dY), edit)
        return scope, places

    before, places = by_steps(layer, X, dY), run(-1)[1]
    for target in few(range(len(places))):
        if places[target].direction == "backward":
            np.testing.assert_array_equal(run(target)[0]["Y"], before["Y"])
        else:
            run(target)


# --- how steps are written ---------------------------------------------------------------------


def check_written(scope, given, who):
    """Expressions use np and earlier symbols only, hide no sum, and move or combine, not both."""
    steps = list(scope.derivation.every())
    known = given | {k for k, v in scope.values.items() if type(v) in (int, float)}
    for step in steps:
        if step.symbol != "t":
            later = {s.symbol for s in steps}
            names = set(step.operands) - ({"t"} if any(s.symbol == "t" for s in steps) else set())
            carried = {getattr(step, "of", "")} if type(step).__name__ == "Carry" else set()
            assert names - carried <= known, f"{who}: {step} reads {names - known}"
            assert carried <= later
        assert re.fullmatch(r"[A-Za-z]\w*", step.symbol), f"{who}: {step.symbol}"
        known.add(step.symbol)
        if isinstance(step, Let | Arrange):
            check_expression(step, who)


def check_formulas(scope):
    """Each step has a formula: plain text without code, balanced LaTeX, and MathML."""
    for step in scope.derivation.every():
        for symbols in (None, scope) if step.symbol != "t" else (None,):
            plain, typeset = step.written(PLAIN, symbols), step.written(LATEX, symbols)
            assert plain.startswith(step.formula[:1])
            assert "np." not in plain
            assert "np." not in typeset
            assert typeset.count("{") == typeset.count("}")
            assert typeset.count(r"\left") == typeset.count(r"\right")
            check_mathml(step, symbols)


def check_expression(step, who):
    for node in ast.walk(ast.parse(step.code, mode="eval")):
        allowed = (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.NamedExpr, ast.MatMult)
        assert not isinstance(node, allowed), f"{who}: {step}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in REDUCTIONS, f"{who}: {step} hides a sum"
        if isinstance(step, Let):
            assert not isinstance(node, ast.Subscript), f"{who}: {step} moves elements"
            if isinstance(node, ast.Attribute):
                assert isinstance(node.value, ast.Name), f"{who}: {step}"
                assert node.value.id == "np", f"{who}: {step}"


# --- losses ------------------------------------------------------------------------------------


def loss_scope(loss, P, T, w, total):
    scope = Scope(loss, "loss", **givens(loss, P, T, w, total))
    stepwise.run(stepwise.forward(scope, "P"))
    stepwise.run(stepwise.backward(scope))
    return scope


@pytest.mark.parametrize(
    ("shape", "weighted", "total"),
    [((5, 4), True, None), ((2, 3, 4), False, 3.5), ((1, 4), True, 0.0)],
)
@every_loss
def test_steps_of_a_loss_equal_its_fast_pass(loss, shape, weighted, total):
    assert loss.steps() is not None
    P, y = pair(loss, shape)
    w = np.linspace(0, 2, shape[0]) if weighted else None
    for targets in (y, *([np.eye(4)[y]] if y.dtype.kind == "i" and y.ndim < P.ndim else [])):
        T = loss.targets(targets, P.shape)
        checked = loss.weights(w, T, P.shape)
        scope = loss_scope(loss, P, T, checked, total)
        assert_close(scope["L"], loss.value(P, T, checked, total), "L")
        assert_close(scope["dP"], loss.gradient(P, T, checked, total), "dP")
        if total is None or LONG:
            check_terms(scope)
            check_formulas(scope)
            check_written(scope, {"P", "T", "w", "share", "total"}, repr(loss))


# --- the language itself -----------------------------------------------------------------------


def test_a_through_step_reads_the_layer_inside():
    layer = made(lambda: layers.Residual(layers.Dense(3)), (2, 3))
    scope = by_steps(layer, *data(layer, (2, 3)))
    step = next(s for s in scope.derivation.forward if isinstance(s, Through))
    np.testing.assert_array_equal(scope["F"], scope.inside["layers.0"]["Y"])
    assert why(step, scope, 1, 2).total == scope["F"][1, 2]
