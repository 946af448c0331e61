"""The formula of a step, derived from its code: as plain text, and as LaTeX for typesetting.

    as text     dW_ij = Σ_n X_ni dY_nj
    as LaTeX    dW_{ij} = \\sum_{n} X_{ni}\\, dY_{nj}

Since both come from the code that runs, a formula cannot say anything else. The steps themselves
put these parts together: see `Step.written`. A third style, MathML for web pages, is in
`phitodeep/derivations/language/mathml.py`.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable
from functools import reduce
from typing import ClassVar, NamedTuple

from phitodeep.errors import ArgumentError

LETTERS = ["alpha", "beta", "gamma", "delta", "mu", "sigma", "theta", "pi", "phi", "rho", "tau"]
GREEK = {name: unicodedata.lookup(f"GREEK SMALL LETTER {name}") for name in LETTERS}
GREEK["eps"] = unicodedata.lookup("GREEK SMALL LETTER EPSILON")
GREEK["Phi"] = unicodedata.lookup("GREEK CAPITAL LETTER PHI")
FUNCTIONS = {  # name in code -> name in formulas
    **dict.fromkeys(["exp", "log", "tanh", "sin", "cos", "log1p", "expm1", "sign", "cosh", "sinh"]),
    **dict.fromkeys(["tan", "floor", "ceil", "round"]),
    **dict.fromkeys(["erf", "sigmoid", "softplus"]),
    "clip": "clip",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "and",
    "logical_or": "or",
    "arctan": "arctan",
}
COMPARISONS = {ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥", ast.Eq: "=", ast.NotEq: "≠"}


class Name(NamedTuple):
    """The parts of a symbol's name: dW_prev is d, W, no hat, and "prev" below."""

    d: str  # "d" if the symbol is a gradient
    base: str
    hat: bool
    under: str


def parts_of(symbol: str) -> Name:
    """Take the name of a symbol apart: ("", "h", False, "t") for h_t."""
    base, _, under = symbol.partition("_")
    hat = under == "hat" or under.startswith("hat_")
    if hat:
        under = under.removeprefix("hat").removeprefix("_")
    elif len(base) > 2 and base not in GREEK:
        base, under = symbol, ""
    rest = base[1:]
    gradient = base[:1] == "d" and (len(rest) == 1 or rest in GREEK or rest[:1].isupper())
    return Name("d" * gradient, base[gradient:], hat, under if hat else under.replace("_", " "))


class Plain:
    """How formulas are written in a terminal: templates for most parts, methods for the others."""

    times = " \u00b7 "  # without a dot, Y (1 - Y) looks like a call
    beside = " "  # between factors with indices
    over = 4, 6  # how strongly a fraction binds what is above and below its line
    signs: ClassVar[dict[str, str]] = {}  # how signs look, if they do not stand for themselves
    number = "{}"
    prefix = "{}"  # a sign in front of something
    between = "{} {} {}"  # two sides with a sign between them
    comma = ", "
    joined = "[{}]"  # arrays side by side
    fraction = "{} / {}"
    root = "√({})"
    bars = "|{}|"
    choice = "{1} if {0}, else {2}"
    brackets = "({})"

    def whole(self, formula: str) -> str:
        """What stands around a finished formula."""
        return formula

    def symbol(self, name: str, indices: str = "") -> str:
        d, base, hat, under = parts_of(name)
        shown = d + GREEK.get(base, base) + "\u0302" * hat
        below = ",".join(part for part in (under, indices) if part)
        return f"{shown}_{below}" if below else shown

    def constant(self, name: str) -> str:
        """A number that has a name, such as pi."""
        return self.symbol(name)

    def sign(self, sign: str) -> str:
        """A sign in front of something."""
        return self.prefix.format(self.signs.get(sign, sign))

    def infix(self, left: str, sign: str, right: str) -> str:
        """Two sides with a sign between them."""
        return self.between.format(left, self.signs.get(sign, sign), right)

    def along(self, operator: str, indices: str, body: str) -> str:
        """A "sum" or a "max" along indices."""
        return f"{'Σ' if operator == 'sum' else operator}_{indices} {body}"

    def power(self, base: str, exponent: str) -> str:
        known = {"2": "²", "3": "³"}
        return f"{base}{known[exponent]}" if exponent in known else f"{base}^{exponent}"

    def function(self, name: str, inside: str) -> str:
        return f"{name}({inside})"

    def words(self, words: str) -> str:
        return words

    def expression(self, code: str) -> str:
        """A NumPy expression of symbols, such as "gamma * X_hat + beta"."""
        return _Writer(self).write(ast.parse(code, mode="eval").body)


class Latex(Plain):
    """How formulas are typeset."""

    times = beside = r"\, "
    over = 0, 0
    signs: ClassVar = {"≤": r"\le", "≥": r"\ge", "≠": r"\ne"}
    fraction = r"\frac{{{}}}{{{}}}"
    root = r"\sqrt{{{}}}"
    bars = r"\lvert {} \rvert"
    choice = r"\begin{{cases}} {1} & {0} \\ {2} & \text{{otherwise}} \end{{cases}}"
    brackets = r"\left({}\right)"

    def symbol(self, name: str, indices: str = "") -> str:
        d, base, hat, under = parts_of(name)
        greek = r"\varepsilon" if base == "eps" else rf"\{base}"
        shown = greek if base in GREEK else base
        if base not in GREEK and len(base) > 1:
            shown = rf"\mathrm{{{base}}}".replace("_", r"\_")
        shown = rf"\hat{{{shown}}}" if hat else shown
        under = rf"\text{{{under}}}" if len(under) > 1 else under
        below = ",".join(part for part in (under, indices) if part)
        return d + (f"{shown}_{{{below}}}" if below else shown)

    def along(self, operator: str, indices: str, body: str) -> str:
        return rf"\{operator}_{{{indices}}} {body}"

    def power(self, base: str, exponent: str) -> str:
        return f"{base}^{{{exponent}}}"

    def function(self, name: str, inside: str) -> str:
        known = {"exp", "log", "tanh", "sin", "cos", "max", "min", "cosh", "sinh", "arctan"}
        shown = rf"\{name}" if name in known else rf"\operatorname{{{name}}}"
        return rf"{shown}\left({inside}\right)"

    def words(self, words: str) -> str:
        escaped = re.sub(r"([_&%#])", r"\\\1", words)
        return rf"\text{{{escaped}}}"


class _Writer:
    """Writes a NumPy expression as mathematics."""

    def __init__(self, style: Plain) -> None:
        self.style = style

    def write(self, node: ast.expr, above: int = 0) -> str:
        """Write an expression; it needs brackets if the one around it binds more strongly."""
        write: Callable[..., tuple[str, int]] = getattr(self, f"_{type(node).__name__}")
        shown, binding = write(node)
        return self.style.brackets.format(shown) if binding < above else shown

    def _Name(self, node: ast.Name) -> tuple[str, int]:
        return self.style.symbol(node.id), 9

    def _Constant(self, node: ast.Constant) -> tuple[str, int]:
        value = node.value
        digits = f"{value:.10g}" if isinstance(value, float) else str(value)
        return self.style.number.format(digits), 9

    def _Attribute(self, node: ast.Attribute) -> tuple[str, int]:
        return self.style.constant(node.attr), 9  # np.pi

    def _UnaryOp(self, node: ast.UnaryOp) -> tuple[str, int]:
        sign = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "not ", ast.Not: "not "}[type(node.op)]
        write = self.style.words if len(sign) > 1 else self.style.sign
        return write(sign) + self.write(node.operand, 3), 2

    def _BinOp(self, node: ast.BinOp) -> tuple[str, int]:
        style, op = self.style, type(node.op)
        if op in (ast.Add, ast.Sub):
            sign = "+" if op is ast.Add else "-"
            return style.infix(self.write(node.left, 2), sign, self._last(node, 3)), 2
        if op is ast.Mult:
            last = node.right
            again = isinstance(last, ast.BinOp) and isinstance(last.op, ast.Mult)
            right = self._last(node, 4 if again else 5)
            return f"{self._first(node, 4)}{style.times}{right}", 4
        if op is ast.Div:
            above, below = style.over
            sides = self._first(node, above), self.write(node.right, below)
            return style.fraction.format(*sides), 4
        if op is ast.Pow:
            return style.power(self.write(node.left, 9), self.write(node.right, 8)), 8
        word = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.Mod: "mod"}[op]
        joined = style.words(f" {word} ")
        return f"{self.write(node.left, 2)}{joined}{self.write(node.right, 2)}", 1

    def _first(self, node: ast.BinOp, above: int) -> str:
        """The first factor: a minus in front of a product needs no brackets."""
        return self.write(node.left, min(above, 2) if isinstance(node.left, ast.UnaryOp) else above)

    def _last(self, node: ast.BinOp, above: int) -> str:
        """What follows a sign: a minus there needs brackets."""
        right = self.write(node.right, above)
        return (
            self.style.brackets.format(right) if right.startswith(self.style.sign("-")) else right
        )

    def _Compare(self, node: ast.Compare) -> tuple[str, int]:
        shown = self.write(node.left, 2)
        for op, other in zip(node.ops, node.comparators, strict=True):
            shown = self.style.infix(shown, COMPARISONS[type(op)], self.write(other, 2))
        return shown, 1

    def _Call(self, node: ast.Call) -> tuple[str, int]:
        style = self.style
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        args = [self.write(a) for a in node.args]
        if name == "where":
            return style.choice.format(*args), 0
        if name == "sqrt":
            return style.root.format(*args), 9
        if name == "abs":
            return style.bars.format(*args), 9
        if name == "signbit":
            return style.infix(self.write(node.args[0], 2), "<", style.number.format("0")), 1
        if name == "logaddexp":
            one, zero = map(style.number.format, "10")
            powers = [one if a == zero else style.function("exp", a) for a in args]
            return style.function("log", reduce(lambda a, b: style.infix(a, "+", b), powers)), 9
        if name == "exp2":
            return style.power(style.number.format("2"), self.write(node.args[0], 8)), 8
        if name == "int64":
            return args[0], 9
        if name == "square":
            return style.power(self.write(node.args[0], 9), style.number.format("2")), 8
        if name not in FUNCTIONS:
            raise ArgumentError(f"formulas have no notation for np.{name}: add it to FUNCTIONS.")
        return style.function(FUNCTIONS[name] or name, style.comma.join(args)), 9


PLAIN, LATEX = Plain(), Latex()
