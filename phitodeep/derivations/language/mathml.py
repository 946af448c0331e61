"""The formula of a step as MathML, which browsers typeset without a library.

    dW_ij = Σ_n X_ni dY_nj    is    <math ...><msub data-sym="dW">...</msub><mo>=</mo>...</math>

Each symbol carries its name in the steps, so a page can light up its array. Only elements of MathML
Core are used, which all current browsers have (https://www.w3.org/TR/mathml-core/).
"""

from __future__ import annotations

from typing import ClassVar

from phitodeep.core.table import escaped
from phitodeep.derivations.language.notation import GREEK, Plain, parts_of

TIMES, APPLY, HAT = "\u2062", "\u2061", "\u005e"
CELL = '<mtd style="text-align: left">'


class MathML(Plain):
    """How formulas are written on web pages: a `<math>` element.

    display    "inline" in a sentence, or "block" in a line of its own
    """

    times = "<mo>\u00b7</mo>"
    beside = f'<mo lspace="0" rspace="0.2em">{TIMES}</mo>'  # invisible, and read as a product
    over = 0, 0
    signs: ClassVar = {"-": "\u2212", "<": "&lt;", ">": "&gt;"}
    number = "<mn>{}</mn>"
    prefix = '<mo form="prefix">{}</mo>'
    between = "{}<mo>{}</mo>{}"
    comma = "<mo>,</mo>"
    joined = "<mrow><mo>[</mo>{}<mo>]</mo></mrow>"
    fraction = '<mfrac displaystyle="true"><mrow>{}</mrow><mrow>{}</mrow></mfrac>'
    root = "<msqrt>{}</msqrt>"
    bars = "<mrow><mo>|</mo>{}<mo>|</mo></mrow>"
    brackets = "<mrow><mo>(</mo>{}<mo>)</mo></mrow>"
    choice = (
        "<mrow><mo>{{</mo><mtable>"
        f"<mtr>{CELL}{{1}}</mtd>{CELL}<mtext>if\u00a0</mtext>{{0}}</mtd></mtr>"
        f"<mtr>{CELL}{{2}}</mtd>{CELL}<mtext>otherwise</mtext></mtd></mtr></mtable></mrow>"
    )

    def __init__(self, display: str = "inline") -> None:
        self.display = display

    def whole(self, formula: str) -> str:
        return f'<math display="{self.display}" displaystyle="true">{formula}</math>'

    def symbol(self, name: str, indices: str = "") -> str:
        d, base, hat, under = parts_of(name)
        shown = _letter(GREEK.get(base, base))
        shown = f'<mover>{shown}<mo stretchy="false">{HAT}</mo></mover>' if hat else shown
        shown = f"<mrow><mi>d</mi>{shown}</mrow>" if d else shown
        below = [_letter(under) if len(under) == 1 else self.words(under)] * bool(under)
        below += ["".join(map(_letter, indices))] * bool(indices)
        if not below:
            return f'<mrow data-sym="{escaped(name)}">{shown}</mrow>'
        under = f"<mrow>{self.comma.join(below)}</mrow>"
        return f'<msub data-sym="{escaped(name)}">{shown}{under}</msub>'

    def constant(self, name: str) -> str:
        return _letter(GREEK.get(name, name))

    def along(self, operator: str, indices: str, body: str) -> str:
        sign = f"<mo>{'∑' if operator == 'sum' else operator}</mo>"
        return f"<munder>{sign}<mrow>{''.join(map(_letter, indices))}</mrow></munder>{body}"

    def power(self, base: str, exponent: str) -> str:
        return f"<msup><mrow>{base}</mrow><mrow>{exponent}</mrow></msup>"

    def function(self, name: str, inside: str) -> str:
        return f"{_letter(name)}<mo>{APPLY}</mo>{self.brackets.format(inside)}"

    def words(self, words: str) -> str:
        kept = words.replace(" ", "\u00a0")  # spaces at the ends would be dropped
        return f"<mtext>{escaped(kept)}</mtext>"


def _letter(name: str) -> str:
    """A name: italic if it has one letter, upright if it has several."""
    return f"<mi>{escaped(name)}</mi>"


MATHML = MathML()
