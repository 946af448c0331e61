"""The formula of a step as MathML, which browsers typeset without a library.

    dW_ij = Σ_n X_ni dY_nj    is    <math ...><msub data-sym="dW">...</msub><mo>=</mo>...</math>

Each symbol carries its name in the steps, so a page can light up its array. Only elements of MathML
Core are used, which all current browsers have (https://www.w3.org/TR/mathml-core/).
"""

from __future__ import annotations

from phitodeep.core.table import escaped
from phitodeep.derivations.language.notation import GREEK, Plain, parts_of

MINUS, TIMES, APPLY, HAT = "\u2212", "\u2062", "\u2061", "\u005e"


class MathML(Plain):
    """How formulas are written on web pages: a `<math>` element.

    display    "inline" in a sentence, or "block" in a line of its own
    """

    times = "<mo>\u00b7</mo>"
    beside = f'<mo lspace="0" rspace="0.2em">{TIMES}</mo>'  # invisible, and read as a product
    over = 0, 0

    def __init__(self, display: str = "inline") -> None:
        self.display = display

    def whole(self, formula: str) -> str:
        return f'<math display="{self.display}" displaystyle="true">{formula}</math>'

    def symbol(self, name: str, indices: str = "") -> str:
        d, base, hat, under = parts_of(name)
        shown = _letter(GREEK.get(base, base))
        shown = f'<mover>{shown}<mo stretchy="false">{HAT}</mo></mover>' if hat else shown
        shown = f"<mrow><mi>d</mi>{shown}</mrow>" if d else shown
        below = _letter(under) if len(under) == 1 else self.words(under)
        below = self.listed(
            *[below] * bool(under), *["".join(map(_letter, indices))] * bool(indices)
        )
        if not below:
            return f'<mrow data-sym="{escaped(name)}">{shown}</mrow>'
        return f'<msub data-sym="{escaped(name)}">{shown}{_row(below)}</msub>'

    def constant(self, name: str) -> str:
        return _letter(GREEK.get(name, name))

    def number(self, digits: str) -> str:
        return f"<mn>{digits}</mn>"

    def sign(self, sign: str) -> str:
        return f'<mo form="prefix">{_operator(sign)}</mo>'

    def infix(self, left: str, sign: str, right: str) -> str:
        return f"{left}<mo>{_operator(sign)}</mo>{right}"

    def listed(self, *parts: str) -> str:
        return "<mo>,</mo>".join(parts)

    def joined(self, *parts: str) -> str:
        return _row(f"<mo>[</mo>{self.listed(*parts)}<mo>]</mo>")

    def along(self, operator: str, indices: str, body: str) -> str:
        sign = f"<mo>{'∑' if operator == 'sum' else operator}</mo>"
        return f"<munder>{sign}{_row(''.join(map(_letter, indices)))}</munder>{body}"

    def fraction(self, above: str, below: str) -> str:
        return f'<mfrac displaystyle="true">{_row(above)}{_row(below)}</mfrac>'

    def power(self, base: str, exponent: str) -> str:
        return f"<msup>{_row(base)}{_row(exponent)}</msup>"

    def root(self, inside: str) -> str:
        return f"<msqrt>{inside}</msqrt>"

    def bars(self, inside: str) -> str:
        return _row(f"<mo>|</mo>{inside}<mo>|</mo>")

    def function(self, name: str, inside: str) -> str:
        return f"{_letter(name)}<mo>{APPLY}</mo>{self.brackets(inside)}"

    def choice(self, condition: str, yes: str, no: str) -> str:
        rows = (yes, f"{self.words('if ')}{condition}"), (no, self.words("otherwise"))
        cells = ("".join(f'<mtd style="text-align: left">{c}</mtd>' for c in row) for row in rows)
        return _row(f"<mo>{{</mo><mtable>{''.join(f'<mtr>{c}</mtr>' for c in cells)}</mtable>")

    def brackets(self, inside: str) -> str:
        return _row(f"<mo>(</mo>{inside}<mo>)</mo>")

    def words(self, words: str) -> str:
        kept = words.replace(" ", "\u00a0")  # spaces at the ends would be dropped
        return f"<mtext>{escaped(kept)}</mtext>"


def _letter(name: str) -> str:
    """A name: italic if it has one letter, upright if it has several."""
    return f"<mi>{escaped(name)}</mi>"


def _operator(sign: str) -> str:
    return MINUS if sign == "-" else escaped(sign)


def _row(inside: str) -> str:
    """Several elements as one."""
    return f"<mrow>{inside}</mrow>"


MATHML = MathML()
