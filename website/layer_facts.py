"""The facts about each layer in `facts/layers.toml`, and the example of its page.

A check is an expression that must be 0 everywhere. It may read all symbols of the layer's
derivation. The build evaluates it, and the page evaluates it again when a reader changes a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers
from phitodeep.derivations.language.step import Let, Step, Sum
from phitodeep.testing.examples import cube, cube_gradient
from website.bench import one
from website.facts import read


def built(layer: layers.Layer, *shape: int) -> layers.Layer:
    """A layer at another place in a model, whose weights the example uses."""
    layer.build(shape, seed=1, dtype=np.float64)
    return layer


NAMES = {**vars(layers), "cube": cube, "cube_gradient": cube_gradient, "built": built}


class Check(NamedTuple):
    """A sentence, what must be 0 if it is true, and the steps that compute what this reads."""

    sentence: str
    zero: str
    before: tuple[Step, ...] = ()
    tolerance: float = 1e-9


class Facts(NamedTuple):
    """The keys of `layers.toml`."""

    question: str
    layer: str
    Xs: tuple[Any, ...]
    checks: tuple[Check, ...]
    exercise: str
    shown: tuple[str, ...] = ()
    extra: tuple[Step, ...] = ()
    mistakes: tuple[tuple[str, str], ...] = ()
    blank: tuple[str, int] = ("dX", 1)
    tokens: int = 0
    alias: str = ""
    arguments: Mapping[str, str] = {}


def _steps(codes: Sequence[str]) -> tuple[Step, ...]:
    return tuple(eval(code, {"Let": Let, "Sum": Sum}) for code in codes)


def _check(sentence: str, zero: str, before: Sequence[str] = (), *rest: float) -> Check:
    return Check(sentence, zero, _steps(before), *rest)


def _facts(row: dict[str, Any]) -> Facts:
    checks = (SHARED[check] if isinstance(check, str) else check for check in row.pop("checks"))
    extra = _steps(row.pop("extra", []))
    Xs = row.pop("Xs", None) or (row.pop("X"),)
    return Facts(checks=tuple(_check(*check) for check in checks), extra=extra, Xs=Xs, **row)


KINDS = read("layers")
SHARED = KINDS.pop("shared")["checks"]
KINDS = {kind: {name: _facts(row) for name, row in rows.items()} for kind, rows in KINDS.items()}
FACTS: dict[str, Facts] = {name: facts for kind in KINDS.values() for name, facts in kind.items()}
ALIASES = {facts.alias: name for name, facts in FACTS.items() if facts.alias}


def example(facts: Facts) -> tuple[layers.Layer, list[Any], Any]:
    """The built layer with parameters of one decimal, its inputs, and dY."""
    rng = np.random.default_rng(3)
    Xs = [
        rng.normal(size=X["shape"]).round(1) if isinstance(X, dict) else np.array(X)
        for X in facts.Xs
    ]
    layer: layers.Layer = eval(facts.layer, NAMES)
    shape = one([X.shape[1:] for X in Xs])
    layer.build(shape, seed=4, dtype=np.float64)  # drops some numbers, and keeps some
    layer.set_weights(
        {
            path: (0.4 + np.abs(rng.normal(0.5, 0.5, A.shape)) if "var" in path or "gamma" in path
                   else rng.normal(0, 0.8, A.shape)).round(1)
            for path, A in layer.get_weights().items()
        }
    )  # fmt: skip
    dY = rng.normal(size=(len(Xs[0]), *(layer.output_shape or ()))).round(1)
    return layer, Xs, dY
