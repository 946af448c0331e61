"""Derivatives by inputs: what carries them through a layer, and the slopes of an equation.

equation("u_t - nu * u_xx", {"u_t", "u_xx"}, {"nu": 0.1})    its code, and {"u_t": "1", ...}
Curves(Tanh()).slope(2, {"X": X, "Y": Y})                    -2 * Y * (1 - Y ** 2)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.derive.algebra import ONE, atom, directional, parse, put, show, slope
from phitodeep.derivations.derive.read import Reader, statements
from phitodeep.derivations.derive.tangents import tangents
from phitodeep.derivations.language.run import symbols_of
from phitodeep.derivations.language.step import FUNCTIONS, Given, Let, Size, names_in
from phitodeep.errors import ArgumentError, DerivationError

LONGEST = 1000  # characters of an equation, since a file may hold it
F = ("Y", "Y_x", "Y_x_x", "Y_x_x_x")  # y = f(x) and its derivatives


@np.errstate(all="ignore")  # of an example, where a divisor may be 0
def equation(
    text: str, moving: Set[str], constants: Mapping[str, float]
) -> tuple[str, dict[str, str]]:
    """Return an equation as code, and its slope by each of the moving names that it reads.

    The text is parsed and never run as Python: it may contain arithmetic and elementwise functions
    of these names. Anything else raises a DerivationError.
    """
    if re.search("[^=<>!]=[^=]", text):
        raise DerivationError(
            f"{text!r} holds =: write what should be 0, one side minus the other."
        )
    values: dict[str, Any] = {**dict.fromkeys(sorted(moving), np.full((2, 1), 0.5)), **constants}
    nodes = [node for part in statements(f"Y = {text}") for node in ast.walk(part)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    if unknown := names - {*values, *FUNCTIONS, "Y"}:
        raise DerivationError(
            f"{text!r} reads {min(unknown)!r}; known are {', '.join(values)}, and what you give as "
            "a number, such as nu=0.01, and functions of NumPy, such as np.sin."
        )
    steps = Reader(**values).read(f"Y = {text}")
    if not all(isinstance(step, Let) for step in steps):
        raise DerivationError(f"{text!r} reads several points at once: write it for one point.")
    codes = {name: repr(c) for name, c in constants.items()}
    for step in steps:
        codes[step.symbol] = put(step.code, codes)
    code = codes["Y"]
    if len(code) > LONGEST:
        raise DerivationError(
            f"{text!r} is too long: an equation has at most {LONGEST} characters."
        )
    return code, {name: show(slope(parse(code), name)) for name in names_in(code)}


def is_affine(layer: Any) -> bool:
    """Whether Y = A X + b for each sample, by the layer's steps: no tangent reads what moves."""
    derivation, moving = layer.steps(), {*symbols_of(layer, "X")}
    if derivation is None or not (layer.children() or layer.independent_samples):
        return False
    if any(isinstance(s, Given) and not isinstance(s, Size) for s in derivation.forward):
        return False  # what is drawn differs from row to row
    moves = tangents(derivation, {*moving}, repr(layer)).forward
    moving |= {step.symbol.removeprefix("t") for step in moves}
    return moving.isdisjoint(name for step in moves for name in step.operands)


def curves(layer: Any, kinks: bool) -> Callable[[Array, Array], list[Array]]:
    """Return the function of X and Y = f(X) that computes f', f'' and f''' of a layer.

    A symbol A of the layer's steps has the derivatives A_x, A_x_x and A_x_x_x. If the backward pass
    names a slope, that is f': the forward steps may be written with kinks that f does not have, so
    that nothing overflows. Without `kinks`, an f' that jumps is refused.
    """
    forward, backward = layer.steps() or ([], [])
    gate = bool(backward) and backward[-1].code == "dY * slope"
    given = [*backward[:-1], Let("Y_x", "slope")] if gate else []
    elementwise = bool(forward) and all(isinstance(s, Let) for s in (*forward, *given))
    if layer.params or layer.inputs != 1 or not elementwise:
        raise ArgumentError(
            f"PDE knows no derivatives of {layer!r}: it takes layers that are affine for each "
            "sample, and elementwise functions without parameters. Leave it out. A function of "
            "your own can come from phitodeep.derive, and an affine layer of your own declares "
            "independent_samples = True."
        )
    rounds, moves = [[*forward]], {"X": ONE, "Y": atom("Y_x")}
    for k in range(3):
        found = []
        for step in rounds[k]:
            p = directional(parse(step.code), moves)
            if (p or step.symbol == F[k]) and not (gate and step.symbol == "Y"):
                found.append(Let(f"{step.symbol}_x", show(p)))
                moves[step.symbol] = atom(f"{step.symbol}_x")
        rounds.append(found + given * (k == 0))
    steps = [step for steps in rounds for step in steps]
    outside = {n for step in steps for n in step.operands} - {"X", *(s.symbol for s in steps)}
    owner = getattr(layer, "layer", layer)  # of one at a second place, the first
    settings = {name: getattr(owner, name) for name in outside}

    def found_at(X: Array, Y: Array | None = None) -> list[Array]:
        symbols = settings | {"X": X} | ({} if Y is None else {"Y": Y})
        for step in steps:
            if step.symbol not in symbols:
                symbols[step.symbol] = np.asarray(step.value(symbols), X.dtype)
        return [np.broadcast_to(symbols[name], X.shape) for name in F[1:]]

    if not kinks and _jumps(found_at):
        raise ArgumentError(
            f"{layer!r} has kinks, where second derivatives do not exist, and one is read: use a "
            "smooth function, such as Tanh, GELU or Softplus."
        )
    return found_at


@np.errstate(all="ignore")
def _jumps(curves: Callable[[Array], list[Array]]) -> bool:
    """Whether f' jumps between -8 and 8, so that it is not the integral of f''."""
    x, h = np.linspace(-8, 8, 2**15 + 1, retstep=True)
    slope, curve, _ = curves(x)
    gaps = abs(np.diff(slope) - h * (curve[1:] + curve[:-1]) / 2)
    return bool((gaps > h * abs(curve).max() + 1e-9).any())
