"""Random forward passes are derived rightly, or refused with a DerivationError."""

import random
import re

import numpy as np
import pytest

from phitodeep import derive
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import FUNCTIONS
from phitodeep.errors import DerivationError
from tests.rows import times

PARAMETERS = "b", "s", "D", "k", "W"
NAMES = "A", "Z", "u", "total_A", "s_2", "E", "mu"
FORMS = (
    "np.tanh({a})", "np.exp({a} / 3)", "sigmoid({a})", "np.abs({a})", "np.sqrt(1 + {a} ** 2)",
    "({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} / (2 + {b} ** 2))", "np.maximum({a}, {b})",
    "np.where({a} > 0.3, {a}, {b})", "np.clip({a}, -0.7, 0.9)", "(1 + {a} ** 2) ** {b}",
    "{a}.sum(axis={k}, keepdims=True)", "{a}.mean(axis={k}, keepdims=True)", "{a}.max(axis={k})",
    "{a}.min(axis={k}, keepdims=True)", "{a}[:, 1:]", "{a}[..., ::-1]", "{a}[:, ::2]",
    "np.swapaxes({a}, 1, -1)", "np.roll({a}, 1, axis={k})", "np.repeat({a}, 2, axis={k})",
    "{a}.reshape({a}.shape[0], -1)", "np.concatenate([{a}, {b}], axis=-1)",
    "np.einsum('na,nb->nab', {a}, {b})", "np.einsum('nab,b->nba', {a}, {b})", "({a} @ W)",
    "np.einsum('nab,ncb->nac', {a}, {b})", "(0.5 * {a})",
)  # fmt: skip


def drawn(seed):
    """A forward pass that NumPy can run, with its shapes."""
    rng = random.Random(seed)
    X = tuple(rng.sample([3, 5, 6, 7], rng.choice([2, 3])))
    shapes = {"X": X, "W": (X[-1], 4)}
    shapes |= {p: rng.choice([X[1:], X[-1:], (1,)]) for p in PARAMETERS[:-1]}
    values = {
        n: np.random.default_rng(i).standard_normal(s) for i, (n, s) in enumerate([*shapes.items()])
    }
    names, lines = rng.sample(NAMES, 4), []
    while not lines or not lines[-1].startswith("Y"):
        a = rng.choice(["X", *names])
        text = rng.choice(FORMS).format(a=a, b=rng.choice([*values]), k=rng.choice([1, -1, 2]))
        if rng.random() < 0.6:
            text = rng.choice(FORMS).format(a=text, b=rng.choice([*values]), k=rng.choice([1, -1]))
        try:
            with np.errstate(all="ignore"):
                value = eval(text, dict(FUNCTIONS), values)
        except (ValueError, IndexError, NameError, TypeError):
            continue
        if value.shape[:1] != X[:1] or not 0 < value.size < 2000 or not np.abs(value).max() < 1e3:
            continue
        name = names[len(lines)] if len(lines) < 3 else "Y"
        values[name] = value
        lines.append(f"{name} = {text}")
    text = "\n".join(lines)
    return text, {n: s for n, s in shapes.items() if n == "X" or re.search(rf"\b{n}\b", text)}


def layer_or_refusal(text, given):
    try:
        return derive(text, **given).layer(), ""
    except DerivationError as error:
        return None, str(error)


@pytest.mark.parametrize("block", range(times(1)))
def test_a_random_forward_pass_is_derived_rightly_or_refused(block):
    derived = 0
    for seed in range(60 * block, 60 * block + 60):
        text, given = drawn(seed)
        layer, refusal = layer_or_refusal(text, given)
        assert "operands could not be" not in refusal.partition(" samples, operands")[0], text
        if layer is None:
            continue
        derived += 1
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((4, *given["X"][1:]))
        layer.build(X.shape[1:], dtype=np.float64)
        moved = {"X": X} | {p: rng.standard_normal(W.shape) for p, W in layer.params.items()}
        layer.set_weights({p: moved[p] for p in layer.params})

        def forward(values, text=text):
            values = dict(values)
            exec(text, dict(FUNCTIONS), values)
            return values["Y"]

        Y = layer.forward(X)
        np.testing.assert_allclose(Y, forward(moved), rtol=1e-9, atol=1e-11, err_msg=text)
        dY = rng.standard_normal(Y.shape)
        found = {"X": layer.backward(dY), **layer.grads}
        steps = run.passes(layer, X, dY)
        for name, slope in found.items():
            np.testing.assert_allclose(steps[f"d{name}"], slope, rtol=1e-8, atol=1e-8, err_msg=text)
            V, h = rng.standard_normal(slope.shape), 1e-6
            up, down = (forward(moved | {name: moved[name] + by * V}) for by in (h, -h))
            measured, size = ((up - down) * dY).sum() / (2 * h), np.abs(slope * V).sum()
            assert measured == pytest.approx((slope * V).sum(), abs=1e-5 * size + 1e-6), text
    assert derived > 20
