"""Hints from a derivation: the formula of a symbol, and the line of NumPy that computes it."""

from __future__ import annotations

from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Given, Loop, Step, Sum, ones_in
from phitodeep.teach.mutations import chain


def formula_hint(symbol: str, scope: Scope, broken: str = "") -> str:
    """The formula of the broken step, or all formulas that the symbol follows from."""
    steps = _steps(symbol, scope, broken)
    lines = [f"  {step.formula}{_words(step)}" for step in steps]
    return "\n".join(["The formula:" if len(lines) == 1 else "The formulas:", *lines])


def code_hint(symbol: str, scope: Scope, broken: str = "") -> str:
    """The same as lines of NumPy, for arrays of the shapes in this scope."""
    steps = [step for step in _steps(symbol, scope, broken) if not isinstance(step, Given)]
    return "\n".join(["In NumPy:", *(f"  {code_of(step, scope)}" for step in steps)])


def code_of(step: Step, scope: Scope) -> str:
    """One step as a line of code."""
    if not isinstance(step, Sum):
        return f"{step.symbol} = {step.code}"
    inside = _at_some_time(step, scope)
    parts, out = step.letters(inside)
    kept = out.replace("1", "")
    call = f'np.einsum("{",".join(parts)}->{kept}", {", ".join(step.operands)})'
    return f"{step.symbol} = {f'np.expand_dims({call}, {ones_in(out)})' if '1' in out else call}"


def _steps(symbol: str, scope: Scope, broken: str) -> list[Step]:
    found = chain(symbol, scope.derivation)
    return [step for step in found if step.symbol == broken] if broken else found


def _at_some_time(step: Step, scope: Scope) -> Scope:
    """The symbols as the step sees them: inside a loop, the values of one round."""
    for loop in scope.derivation.every():
        if isinstance(loop, Loop) and step in loop.body:
            return scope.at(loop.times(scope)[-1])
    return scope


def _words(step: Step) -> str:
    return f"    ({step.words})" if step.words and step.words not in step.formula else ""
