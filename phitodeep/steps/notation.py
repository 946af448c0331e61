"""The formula of a step, derived from its code: as plain text, and as LaTeX for typesetting.

    as text     dW_ij = Σ_n X_ni dY_nj
    as LaTeX    dW_{ij} = \\sum_{n} X_{ni}\\, dY_{nj}

Since both come from the code that runs, a formula cannot say anything else. The steps themselves
put these parts together: see `Step.written`.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable

from phitodeep.errors import ArgumentError

LETTERS = ["alpha", "beta", "gamma", "delta", "mu", "sigma", "theta", "pi", "phi", "rho", "tau"]
GREEK = {name: unicodedata.lookup(f"GREEK SMALL LETTER {name}") for name in LETTERS}
GREEK["eps"] = unicodedata.lookup("GREEK SMALL LETTER EPSILON")
GREEK["Phi"] = unicodedata.lookup("GREEK CAPITAL LETTER PHI")
FUNCTIONS = {  # name in code -> name in formulas
    **dict.fromkeys(["exp", "log", "tanh", "sin", "cos", "log1p", "expm1", "sign", "cosh", "sinh"]),
    "erf": "erf",
    "clip": "clip",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "and",
    "logical_or": "or",
    "arctan": "arctan",
}
COMPARISONS = {
    ast.Lt: ("<", "<"),
    ast.LtE: ("≤", r"\le"),
    ast.Gt: (">", ">"),
    ast.GtE: ("≥", r"\ge"),
    ast.Eq: ("=", "="),
    ast.NotEq: ("≠", r"\ne"),
}


class Plain:
    """How formulas are written in a terminal."""

    times = " \u00b7 "  # without a dot, Y (1 - Y) looks like a call
    beside = " "  # between factors with indices
    over = 4, 6  # how strongly a fraction binds what is above and below its line

    def symbol(self, name: str, indices: str = "") -> str:
        base, under = _parts(name)
        base = re.sub(r"_hat$", "\u0302", base)
        shown = "".join(GREEK.get(part, part) for part in re.split(r"(?<=^d)(?=\w)", base))
        below = ",".join(part for part in (under, indices) if part)
        return f"{shown}_{below}" if below else shown

    def sum(self, indices: str, body: str) -> str:
        return f"Σ_{indices} {body}"

    def max(self, indices: str, body: str) -> str:
        return f"max_{indices} {body}"

    def fraction(self, above: str, below: str) -> str:
        return f"{above} / {below}"

    def power(self, base: str, exponent: str) -> str:
        known = {"2": "²", "3": "³"}
        return f"{base}{known[exponent]}" if exponent in known else f"{base}^{exponent}"

    def root(self, inside: str) -> str:
        return f"√({inside})"

    def bars(self, inside: str) -> str:
        return f"|{inside}|"

    def function(self, name: str, inside: str) -> str:
        return f"{name}({inside})"

    def choice(self, condition: str, yes: str, no: str) -> str:
        return f"{yes} if {condition}, else {no}"

    def comparison(self, signs: tuple[str, str]) -> str:
        return signs[0]

    def brackets(self, inside: str) -> str:
        return f"({inside})"

    def words(self, words: str) -> str:
        return words

    def expression(self, code: str) -> str:
        """A NumPy expression of symbols, such as "gamma * X_hat + beta"."""
        return _Writer(self).write(ast.parse(code, mode="eval").body)


class Latex(Plain):
    """How formulas are typeset."""

    times = beside = r"\, "
    over = 0, 0

    def symbol(self, name: str, indices: str = "") -> str:
        base, under = _parts(name)
        hat = base.endswith("_hat")
        base = base.removesuffix("_hat")
        d = "d" if _is_gradient(base) else ""
        base = base[len(d) :]
        greek = r"\varepsilon" if base == "eps" else rf"\{base}"
        shown = greek if base in GREEK else base
        if base not in GREEK and len(base) > 1:
            shown = rf"\mathrm{{{base}}}".replace("_", r"\_")
        shown = rf"\hat{{{shown}}}" if hat else shown
        under = rf"\text{{{under}}}" if len(under) > 1 else under
        below = ",".join(part for part in (under, indices) if part)
        return d + (f"{shown}_{{{below}}}" if below else shown)

    def sum(self, indices: str, body: str) -> str:
        return rf"\sum_{{{indices}}} {body}"

    def max(self, indices: str, body: str) -> str:
        return rf"\max_{{{indices}}} {body}"

    def fraction(self, above: str, below: str) -> str:
        return rf"\frac{{{above}}}{{{below}}}"

    def power(self, base: str, exponent: str) -> str:
        return f"{base}^{{{exponent}}}"

    def root(self, inside: str) -> str:
        return rf"\sqrt{{{inside}}}"

    def bars(self, inside: str) -> str:
        return rf"\lvert {inside} \rvert"

    def function(self, name: str, inside: str) -> str:
        known = {"exp", "log", "tanh", "sin", "cos", "max", "min", "cosh", "sinh", "arctan"}
        shown = rf"\{name}" if name in known else rf"\operatorname{{{name}}}"
        return rf"{shown}\left({inside}\right)"

    def choice(self, condition: str, yes: str, no: str) -> str:
        return rf"\begin{{cases}} {yes} & {condition} \\ {no} & \text{{otherwise}} \end{{cases}}"

    def comparison(self, signs: tuple[str, str]) -> str:
        return signs[1]

    def brackets(self, inside: str) -> str:
        return rf"\left({inside}\right)"

    def words(self, words: str) -> str:
        escaped = re.sub(r"([_&%#])", r"\\\1", words)
        return rf"\text{{{escaped}}}"


def _is_gradient(base: str) -> bool:
    """Whether a name such as dW or dgamma means the gradient of W or gamma."""
    rest = base[1:]
    return base[:1] == "d" and (len(rest) == 1 or rest in GREEK or rest[:1].isupper())


def _parts(name: str) -> tuple[str, str]:
    """The name and what stands below it: ("h", "t") for h_t, ("X_hat", "") for X_hat."""
    base, _, under = name.partition("_")
    if under == "hat" or under.startswith("hat_"):
        return f"{base}_hat", under.removeprefix("hat").removeprefix("_")
    return (base, under.replace("_", " ")) if len(base) <= 2 or base in GREEK else (name, "")


class _Writer:
    """Writes a NumPy expression as mathematics."""

    def __init__(self, style: Plain) -> None:
        self.style = style

    def write(self, node: ast.expr, above: int = 0) -> str:
        """Write an expression; it needs brackets if the one around it binds more strongly."""
        write: Callable[..., tuple[str, int]] = getattr(self, f"_{type(node).__name__}")
        shown, binding = write(node)
        return self.style.brackets(shown) if binding < above else shown

    def _Name(self, node: ast.Name) -> tuple[str, int]:
        return self.style.symbol(node.id), 9

    def _Constant(self, node: ast.Constant) -> tuple[str, int]:
        value = node.value
        return f"{value:.10g}" if isinstance(value, float) else str(value), 9

    def _Attribute(self, node: ast.Attribute) -> tuple[str, int]:
        return self.style.symbol(node.attr), 9  # np.pi

    def _UnaryOp(self, node: ast.UnaryOp) -> tuple[str, int]:
        sign = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "not ", ast.Not: "not "}[type(node.op)]
        return (
            f"{self.style.words(sign) if len(sign) > 1 else sign}{self.write(node.operand, 3)}",
            2,
        )

    def _BinOp(self, node: ast.BinOp) -> tuple[str, int]:
        style, op = self.style, type(node.op)
        if op in (ast.Add, ast.Sub):
            sign = "+" if op is ast.Add else "-"
            right = self.write(node.right, 3)
            right = style.brackets(right) if right.startswith("-") else right
            return f"{self.write(node.left, 2)} {sign} {right}", 2
        if op is ast.Mult:
            last = node.right
            again = isinstance(last, ast.BinOp) and isinstance(last.op, ast.Mult)
            right = self.write(last, 4 if again else 5)
            right = style.brackets(right) if right.startswith("-") else right
            return f"{self._first(node, 4)}{style.times}{right}", 4
        if op is ast.Div:
            above, below = style.over
            return style.fraction(self._first(node, above), self.write(node.right, below)), 4
        if op is ast.Pow:
            return style.power(self.write(node.left, 9), self.write(node.right, 8)), 8
        word = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.Mod: "mod"}[op]
        joined = style.words(f" {word} ")
        return f"{self.write(node.left, 2)}{joined}{self.write(node.right, 2)}", 1

    def _first(self, node: ast.BinOp, above: int) -> str:
        """The first factor: a minus in front of a product needs no brackets."""
        return self.write(node.left, min(above, 2) if isinstance(node.left, ast.UnaryOp) else above)

    def _Compare(self, node: ast.Compare) -> tuple[str, int]:
        shown = self.write(node.left, 2)
        for op, other in zip(node.ops, node.comparators, strict=True):
            sign = self.style.comparison(COMPARISONS[type(op)])
            shown += f" {sign} {self.write(other, 2)}"
        return shown, 1

    def _Call(self, node: ast.Call) -> tuple[str, int]:
        style = self.style
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        args = [self.write(a) for a in node.args]
        if name == "where":
            return style.choice(args[0], args[1], args[2]), 0
        if name == "sqrt":
            return style.root(args[0]), 9
        if name == "abs":
            return style.bars(args[0]), 9
        if name == "signbit":
            return f"{self.write(node.args[0], 2)} < 0", 1
        if name == "logaddexp":
            powers = " + ".join("1" if a == "0" else style.function("exp", a) for a in args)
            return style.function("log", powers), 9
        if name == "int64":
            return args[0], 9
        if name == "square":
            return style.power(self.write(node.args[0], 9), "2"), 8
        if name not in FUNCTIONS:
            raise ArgumentError(f"formulas have no notation for np.{name}: add it to FUNCTIONS.")
        return style.function(FUNCTIONS[name] or name, ", ".join(args)), 9


PLAIN, LATEX = Plain(), Latex()
