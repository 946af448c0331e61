"""Random forward passes are derived rightly, or refused with a DerivationError.

A long run draws 2,000, and others each time: `--hypothesis-seed` repeats them. What is derived is
compared with complex steps, f'(x) = Im f(x + ih) / h, whose only error is that of rounding.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from phitodeep import derive
from phitodeep.derivations.derive.tangents import perform, seed
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.errors import DerivationError
from phitodeep.layers import Layer
from tests.rows import LONG

NAMES = "A", "Z", "u", "total_A", "s_2", "E", "mu", "one", "D", "top", "h"  # also derive's own
TOP = "{a}.max(axis=-1, keepdims=True)"
EXP = f"np.exp({{a}} - {TOP})"
TOTAL = f"{EXP}.sum(axis=-1, keepdims=True)"
UNARY = """
np.tanh({a}) ; np.exp({a} / 3) ; np.abs({a}) ; np.sqrt(1 + {a} ** 2) ; (-{a} / 3) ; np.sin({a})
np.cos({a} * g) ; np.arctan({a}) ; np.log(2 + {a} * {a}) ; ({a} ** 2) ; np.log1p(np.square({a}))
np.sinh(np.tanh({a})) ; np.exp2({a} / 4) ; (0.5 * {a}) ; np.expm1({a} / 3)
(np.floor({a}) * {a}) ; (np.sign({a}) * {a}) ; np.exp(-({a} ** 2)) ; sigmoid({a})
softplus({a}) ; erf({a}) ; np.cosh({a} / 4) ; np.clip({a}, -0.7, 0.9) ; (1 / (1 + np.exp(-{a})))
((1 + {a} ** 2) ** -1.5) ; (np.where({a} > 0, 1.0, g) * {a}) ; ({a} - np.sqrt(5) / np.pi)
np.tan(np.sin({a})) ; np.maximum({a}, 0) ; np.minimum(g, {a}) ; ({a} / np.sqrt({a}.shape[-1]))
((3 - {a}) / 7) ; np.where(~({a} <= 0) | ({a} < -g), {a} ** 3, -2)
(np.ceil({a}) + np.round({a}) * {a})
"""
BINARY = """
({a} + {b}) ; ({a} - {b}) ; ({a} * {b}) ; ({a} / (2 + {b} ** 2)) ; ({b} - 2 * {a})
np.maximum({a}, {b}) ; np.minimum({a}, 2 * {b}) ; np.where({a} > 0.3, {a}, {b})
np.logaddexp({a}, {b}) ; np.where(({a} < {b}) & ({b} < 1), {a} * {b}, {a} - {b})
np.concatenate([{a}, {b}], axis=-1) ; ({a} * {b}).sum(axis={k}, keepdims=True)
np.einsum('na,nb->nab', {a}, {b}) ; np.einsum('nab,b->nba', {a}, {b}) ; ({a} @ W)
np.einsum('nab,ncb->nac', {a}, {b}) ; np.einsum('nab,nab,b->na', {a}, {a}, {b})
np.einsum('nabc,nabd->ncd', {a}, {b}) ; ({a} @ np.swapaxes({b}, -1, -2)) ; ({a} * g + {b})
np.einsum('...d,de->...e', {a}, W) ; ({a} * {b} * {a}) ; ({a} @ W @ W.T) ; ({a} @ {b})
({b} * np.clip({a}, {b}, g)) ; ((1 + {a} ** 2) ** {b}) ; ({a} * ({b} - {a}.mean(axis=-1)))
np.concatenate([{b}, {a}, {b}], axis=-1) ; ({a} / np.sqrt(({b} * {b}).mean() + 1))
np.einsum('na,ab,nb->n', {a}, {b}, {a}) ; ({a} * {b}).mean(axis=({k}, 0), keepdims=True)
({a} - {b} * ({a} * {b}).sum(axis=-1, keepdims=True)) ; np.where({a} > {b}, {b}, {b} ** 2)
"""
ALONG = """
{a}.sum(axis={k}, keepdims=True) ; {a}.mean(axis={k}, keepdims=True) ; {a}.max(axis={k})
{a}.min(axis={k}, keepdims=True) ; ({a} ** 2).mean(axis={k}, keepdims=True) ; {a}.sum({k})
{a}.sum(axis=(1, -1), keepdims=True) ; ({a} - {a}.mean(axis=0, keepdims=True))
({a} - {a}.max(axis={k}, keepdims=True)) ; {a}.max(axis=(1, -1), keepdims=True)
np.roll({a}, 1, axis={k}) ; np.repeat({a}, 2, axis={k}) ; np.flip({a}, {k})
np.expand_dims({a}, {k}) ; np.moveaxis({a}, 1, {k}) ; np.swapaxes({a}, 1, {k}) ; {a}[:, 1:]
{a}[..., ::-1] ; {a}[:, ::2] ; {a}[..., :-1] ; {a}[:, None] ; {a}[:, 0] ; {a}[:, [0, 2, 0]]
{a}[..., [1, 0]] ; np.tile({a}, (1, 2)) ; {a}.transpose(0, 2, 1) ; {a}.reshape({a}.shape[0], -1)
np.pad({a}, ((0, 0), (1, 2))) ; np.pad({a}, ((0, 0), (0, 1), (2, 0)))
np.squeeze({a}[:, :1], 1) ; {a}[:, ::-1, 1:] ; {a}.reshape({a}.shape[0], -1, 1)
({a} / (1 + np.abs({a}).sum(axis={k}, keepdims=True))) ; np.roll({a}, (1, -2), axis=(0, {k}))
{a}[::-1] ; ({a}[:, 1:] - {a}[:, :-1]) ; ({a}.T).T
np.exp({a} - {a}.max(axis={k}, keepdims=True)) ; ({a} * {a}.max()) ; np.max({a}, {k})
np.broadcast_to({a}[:, None], ({a}.shape[0], 2, *{a}.shape[1:])) ; {a}[:, -1:, ..., None]
({a}[..., :1] * {a}[..., 1:]) ; np.mean({a}, axis=({k},)) ; np.transpose({a}, (0, 2, 1))
"""
SOFT = f"({EXP} / {TOTAL})", f"({{a}} - {TOP} - np.log({TOTAL}))", f"({TOP} + np.log({TOTAL}))"
FORMS = [re.split(" ; |\n", table.strip()) for table in (UNARY, BINARY, ALONG)] + [SOFT]
ROUNDED = {"sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.round}
OWN = {  # what NumPy lacks, or does otherwise for complex numbers
    "abs": lambda A: A * np.sign(np.real(A)),
    **{name: lambda A, f=f: f(np.real(A)) for name, f in ROUNDED.items()},
    "exp2": lambda A: np.exp(np.log(2) * A),
    "logaddexp": lambda A, B: np.log(np.exp(A) + np.exp(B)),
}
FUNCTIONS = {
    "np": SimpleNamespace(**vars(np) | OWN),
    "erf": scipy.special.erf,
    "sigmoid": lambda A: 1 / (1 + np.exp(-A)),
    "softplus": lambda A: np.log(1 + np.exp(A)),
}


def forward(text, values):
    values = dict(values)
    exec(text, dict(FUNCTIONS), values)
    return values["Y"]


def computed(text, values):
    """The value; None if NumPy refuses."""
    try:
        with np.errstate(all="ignore"):
            return forward(f"Y = {text}", values)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def fits(value, X):
    """Whether a value has samples, and is small enough for central differences."""
    same = np.shape(value)[:1] == X[:1] and 0 < value.size < 2000
    return same and np.abs(value).max() < 100


@st.composite
def passes(draw):
    """A forward pass that NumPy can run, with its shapes and settings."""

    def one_of(options):
        return draw(st.sampled_from(options))

    X = tuple(draw(st.permutations([3, 5, 6, 7]))[: one_of([2, 3, 4])])
    given = {"X": X, "W": (X[-1], 4), "g": one_of([0.7, 2.0, 3])}
    given |= {p: one_of([X[1:], X[-1:], (1,), (4,)]) for p in "bsk"}
    rng = np.random.default_rng(1)
    values = {
        n: 3 * rng.standard_normal(s) if isinstance(s, tuple) else s for n, s in given.items()
    }
    names, lines = draw(st.permutations(NAMES))[: one_of([0, 1, 2, 3])], []
    for name in [*names, "Y"]:
        text = one_of([[*values][-1] if lines else "X"] * 4 + ["X"])
        for _ in range(one_of([1, 2, 3])):
            for _ in range(40):
                form = one_of(one_of(FORMS))
                tried = form.format(a=text, b=one_of([*values]), k=one_of([1, -1, 2]))
                if fits(value := computed(tried, values), X):
                    break
            else:
                assume(False)
            text = tried
        values[name] = value
        lines.append(f"{name} = {text}")
    text = "\n".join(lines)
    return text, {n: s for n, s in given.items() if n == "X" or re.search(rf"\b{n}\b", text)}


REFUSED = re.compile(  # where, and what to do
    "^(line [0-9]+, .*|axis [0-9]+ of .*|Y .*|Derived does not pass .*): "
    ".*(write|give|say|leave out|sum along)"
)


def allowed(action):
    """What the action returns; None if it refuses, and says where and what to do."""
    try:
        return action()
    except DerivationError as error:
        refusal = str(error)
    event(refusal)
    assert REFUSED.search(refusal)
    return None


class Stepped(Layer):
    """A layer that is its steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = lambda: steps


def test_a_random_forward_pass_is_derived_rightly_or_refused():
    found = []

    @settings(max_examples=2000 if LONG else 40, derandomize=not LONG, database=None, deadline=None)
    @given(passes())
    def check(drawn):
        found.append(is_derived_rightly(*drawn))

    check()
    assert np.mean(found) > 0.6


def is_derived_rightly(text, given):
    """Whether it is derived, and then rightly; False if it is refused."""
    rng = np.random.default_rng(0)
    shapes = given | {"X": (4, *given["X"][1:])}
    numbers = {n: k for n, k in shapes.items() if not isinstance(k, tuple)}
    A = {n: rng.standard_normal(s) for n, s in shapes.items() if isinstance(s, tuple)}
    if (found := allowed(lambda: derive(text, **given))) is None:
        return False
    scope = Scope(Stepped(found.steps), **A | numbers)
    run.run(run.forward(scope))
    np.testing.assert_allclose(scope["Y"], forward(text, A | numbers), rtol=1e-9, atol=1e-11)
    scope["dY"] = dY = rng.standard_normal(scope["Y"].shape)
    run.run(run.perform(found.steps.backward, scope, "backward"))
    for n, A_n in A.items():
        V = rng.standard_normal(A_n.shape)
        moved = forward(text, A | numbers | {n: A_n + 1e-30j * V}).imag / 1e-30 * dY
        wanted = scope[f"d{n}"] * V
        close = 1e-9 * (np.abs(moved).sum() + np.abs(wanted).sum()) + 1e-11
        assert moved.sum() == pytest.approx(wanted.sum(), rel=0, abs=close), n
    if (layer := allowed(found.layer)) is None:  # central differences are too coarse
        return False
    layer.build(A["X"].shape[1:], dtype=np.float64)
    layer.set_weights({n: A[n] for n in layer.params})
    np.testing.assert_allclose(layer.forward(A["X"]), scope["Y"], rtol=1e-9, atol=1e-11)
    for n, slope in ({"X": layer.backward(dY)} | layer.grads).items():
        np.testing.assert_allclose(slope, scope[f"d{n}"], rtol=1e-8, atol=1e-8)
    check_tangents(layer, A, dY, lambda V: forward(text, A | numbers | V))
    return True


def check_tangents(layer, A, dY, Y):
    """Those of the forward pass are complex steps, and those of the backward pass symmetric."""
    rng, found = np.random.default_rng(1), []
    for _ in "UV":
        V = {n: rng.standard_normal(A[n].shape) for n in ("X", *layer.params)}
        scope = run.passes(layer, A["X"], dY)
        seed(scope, {(layer, n): V[n] for n in layer.params})
        scope["tX"] = V["X"]
        perform(scope, "forward")
        perform(scope, "backward")
        still = dict.fromkeys(["tY", *(f"td{n}" for n in V)], 0.0) | scope.values
        tY = Y({n: A[n] + 1e-30j * V[n] for n in V}).imag / 1e-30
        np.testing.assert_allclose(still["tY"] + 0 * tY, tY, rtol=1e-8, atol=1e-9)
        found.append((V, still))
    (U, at_U), (V, at_V) = found
    left = np.concatenate([(U[n] * at_V[f"td{n}"]).ravel() for n in U])
    right = np.concatenate([(V[n] * at_U[f"td{n}"]).ravel() for n in U])
    close = 1e-9 * (np.abs(left).sum() + np.abs(right).sum()) + 1e-11
    assert left.sum() == pytest.approx(right.sum(), rel=0, abs=close)
