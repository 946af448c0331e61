"""What the forward pass computed, which a backward pass reads instead of computing it again."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from phitodeep.derivations.derive.algebra import (
    ONE,
    Poly,
    Powers,
    add,
    atom,
    canonical,
    parse,
    power,
    times,
)
from phitodeep.derivations.language.step import Let, Step, flat


class Known:
    """The values that a forward pass has, as rules that shorten an expression.

    atoms       what an atom is in terms of a value: after E = np.exp(Z), np.exp(Z) is E
    products    products of names that are a value: after Y = E / total, E / total is Y
    """

    def __init__(self, forward: Sequence[Step]) -> None:
        self.atoms: dict[str, Poly] = {}
        self.products: list[tuple[dict[str, Fraction], str]] = []
        for step in flat(forward):
            if isinstance(step, Let):
                self._learn(step.symbol, parse(step.code))

    def _learn(self, name: str, p: Poly) -> None:
        if [*p.values()] != [1]:
            return
        ((powers, _),) = p.items()
        if len(powers) > 1 and all(text.isidentifier() for text, _ in powers):
            self.products.append((dict(powers), name))
        elif len(powers) == 1:
            ((text, k),) = powers
            if text.isidentifier():
                if k == -1:
                    self.atoms[text] = atom(name, -1)
            elif abs(k) == 1:
                self.atoms[text] = atom(name, k)
                self._learn_gate(name, text)

    def _learn_gate(self, name: str, text: str) -> None:
        """Of s = 1 / (1 + e), learn that e = 1 / s - 1."""
        rest = add(parse(text), ONE, -1)
        if [*rest.values()] == [1]:
            ((other, _),) = rest.items()
            if len(other) == 1 and other[0][1] == 1:
                self.atoms[other[0][0]] = add(atom(name, -1), ONE, -1)

    def shorten(self, p: Poly) -> Poly:
        """The same value, in terms of what is known."""
        out: Poly = {}
        for powers, c in p.items():
            term: Poly = {(): c}
            for text, k in powers:
                found = self.atoms.get(text, atom(text))
                usable = len(found) == 1 or k == 1
                term = times(term, power(found, k) if usable else atom(text, k))
            out = add(out, term)
        return canonical({self._with_products(powers): c for powers, c in out.items()})

    def _with_products(self, powers: Powers) -> Powers:
        for factors, name in reversed(self.products):
            found = dict(powers)
            while all(
                k * found.get(n, 0) > 0 and abs(found[n]) >= abs(k) for n, k in factors.items()
            ):
                for n, k in factors.items():
                    found[n] -= k
                found[name] = found.get(name, Fraction(0)) + 1
            powers = tuple((n, k) for n, k in found.items() if k)
        return powers
