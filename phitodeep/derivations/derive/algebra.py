"""The algebra of elementwise expressions: read, differentiate and write them as a person would.

    >>> show(slope(parse("X / (1 + np.abs(X))"), "X"))
    '1 / (1 + np.abs(X)) - X * np.sign(X) / (1 + np.abs(X)) ** 2'
    >>> show(directional(parse("np.tanh(u)"), {"u": parse("tu")}))
    'tu * (1 - np.tanh(u) ** 2)'

An expression is a sum of products of powers of atoms. An atom is a name, or text that stays whole:
a call, a choice, or a sum inside a product or a power. Nothing is multiplied out.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import cast

from phitodeep.errors import DerivationError

Powers = tuple[tuple[str, Fraction], ...]  # the atoms of a product with their exponents
Poly = dict[Powers, Fraction]  # each product with its coefficient
ONE: Poly = {(): Fraction(1)}

# The derivative of each function by its argument u; y is the value of the call itself.
SLOPES = {
    "exp": "y",
    "expm1": "y + 1",
    "exp2": "0.6931471805599453 * y",
    "log": "1 / u",
    "log1p": "1 / (1 + u)",
    "tanh": "1 - y ** 2",
    "sin": "np.cos(u)",
    "cos": "-np.sin(u)",
    "tan": "1 + y ** 2",
    "sinh": "np.cosh(u)",
    "cosh": "np.sinh(u)",
    "arctan": "1 / (1 + u ** 2)",
    "sqrt": "1 / (2 * y)",
    "square": "2 * u",
    "abs": "np.sign(u)",
    "erf": "2 / np.sqrt(np.pi) * np.exp(-u ** 2)",
    "sigmoid": "y * (1 - y)",
    "softplus": "sigmoid(u)",
    **dict.fromkeys(("sign", "signbit", "int64", "floor", "ceil", "round"), "0"),
}
# Functions of several arguments a, b, c, which move by ta, tb, tc. Of equal ones, b moves in a
# maximum and a in a minimum: max(X, 0) has the slope 0 at 0, and max(X, 0) + min(X, 0) has 1.
DIRECTIONAL = {
    "where": "np.where(a, tb, tc)",
    "maximum": "np.where(a > b, ta, tb)",
    "minimum": "np.where(a > b, tb, ta)",
    "clip": "np.where((b < a) & (a < c), ta, np.where((a <= b) & (b < c), tb, tc))",
    "logaddexp": "np.exp(a - y) * ta + np.exp(b - y) * tb",
}


def atom(text: str, power: int | Fraction = 1) -> Poly:
    return {((text, Fraction(power)),): Fraction(1)}


def add(p: Poly, q: Poly, sign: int = 1) -> Poly:
    out = dict(p)
    for powers, k in q.items():
        out[powers] = out.get(powers, Fraction(0)) + sign * k
    return {powers: k for powers, k in out.items() if k}


def product(a: Powers, b: Powers) -> Powers:
    found = dict(a)
    for name, k in b:
        found[name] = found.get(name, Fraction(0)) + k
    return tuple((name, k) for name, k in found.items() if k)


def divided(a: Powers, b: Powers) -> Powers:
    return product(a, tuple((name, -k) for name, k in b))


def times(p: Poly, q: Poly) -> Poly:
    """The product; of two sums, the second stays whole."""
    if len(p) > 1 and len(q) > 1:
        p, q = (power(p, 2), ONE) if p == q else (p, atom(show(q)))
    out: Poly = {}
    for a, j in p.items():
        for b, k in q.items():
            out = add(out, canonical({product(a, b): j * k}))
    return out


def quotient(p: Poly, q: Poly) -> Poly:
    """The product m of names with p = m q; nothing if there is none."""
    for (a, j), (b, k) in itertools.product(p.items(), q.items()):
        m = {divided(a, b): j / k}
        if all(e > 0 for _, e in divided(a, b)) and times(m, q) == p:
            return m
    return {}


def power(p: Poly, k: int | Fraction) -> Poly:
    """A sum to a power stays whole, and so does the power of a coefficient that is no fraction."""
    if k == 1:
        return p
    if len(p) == 1:
        ((powers, c),) = p.items()
        if k == int(k) or c == 1:
            return canonical({tuple((name, e * k) for name, e in powers): c ** int(k)})
    return atom(show(p), k)


def canonical(p: Poly) -> Poly:
    """The same with the factors of each product in one order, so that equal products are found."""
    return {tuple(sorted(powers, key=_rank)): k for powers, k in p.items()}


def _rank(factor: tuple[str, Fraction]) -> tuple[bool, str]:
    return not factor[0].isidentifier(), factor[0].swapcase()  # names first, dA before X


def common(p: Poly) -> Powers:
    """The powers that all terms have."""
    first, *rest = map(dict, p)
    found = []
    for name, k in first.items():
        ks = [k, *(other.get(name, Fraction(0)) for other in rest)]
        if all(e > 0 for e in ks) or all(e < 0 for e in ks):
            found.append((name, min(ks, key=abs)))
    return tuple(found)


# --- reading -------------------------------------------------------------------------------------


def parse(code: str | ast.expr) -> Poly:
    node = ast.parse(code, mode="eval").body if isinstance(code, str) else code
    match node:
        case ast.Constant(value=value):
            return {(): Fraction(cast(float, value))} if value else {}
        case ast.Name(id=name):
            return atom(name)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return add({}, parse(inner), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return add(parse(left), parse(right), 1 if isinstance(op, ast.Add) else -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return times(parse(left), parse(right))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return times(parse(left), power(parse(right), -1))
        case ast.BinOp(left=left, op=ast.Pow(), right=right) if (k := _number(right)) is not None:
            return power(parse(left), k)
        case ast.Call(func=func, args=args) if ast.unparse(func) != "np.where":
            return atom(f"{ast.unparse(func)}({', '.join(show(parse(a)) for a in args)})")
    return atom(ast.unparse(node))  # np.pi, a comparison, a choice


def _number(node: ast.expr) -> Fraction | None:
    try:
        return Fraction(str(ast.literal_eval(node)))  # 0.1 is 1/10
    except ValueError:
        return None


# --- differentiating -----------------------------------------------------------------------------


def slope(p: Poly, name: str) -> Poly:
    """The derivative by a name."""
    return directional(p, {name: ONE})


def directional(p: Poly, moves: Mapping[str, Poly]) -> Poly:
    """How p moves if these names do; the others are constants."""
    out: Poly = {}
    for powers, c in p.items():
        for text, k in powers:
            moved = _moved(text, moves)
            if moved:
                out = add(out, times({divided(powers, ((text, Fraction(1)),)): c * k}, moved))
    return out


def _moved(text: str, moves: Mapping[str, Poly]) -> Poly:
    """How an atom moves."""
    if text.isidentifier():
        return moves.get(text, {})
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _number(node.right) is None:
        a, b = ast.unparse(node.left), ast.unparse(node.right)
        by_base = times(directional(parse(a), moves), parse(f"({b}) * ({a}) ** ({b} - 1)"))
        by_power = times(directional(parse(b), moves), parse(f"({text}) * np.log({a})"))
        return add(by_base, by_power)
    if not isinstance(node, ast.Call):
        inner = parse(node)
        return {} if inner == atom(text) else directional(inner, moves)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    arguments = [directional(parse(a), moves) for a in node.args]
    if not any(arguments):
        return {}
    if name in ("maximum", "minimum") and isinstance(node.args[0], ast.Constant):
        arguments, node.args = arguments[::-1], node.args[::-1]
    given = dict(zip("abc", map(ast.unparse, node.args), strict=False)) | {"y": text}
    if name in DIRECTIONAL:
        given |= {f"t{k}": show(t) if t else "0.0" for k, t in zip("abc", arguments, strict=False)}
        return parse(put(DIRECTIONAL[name], given))
    if name not in SLOPES:
        raise DerivationError(
            f"no derivative is known for {ast.unparse(node.func)}: add it to SLOPES in "
            "phitodeep.derivations.derive.algebra, or write it with functions that are there: "
            f"{', '.join(sorted({*SLOPES, *DIRECTIONAL}))}."
        )
    return times(arguments[0], parse(put(SLOPES[name], {"u": given["a"], "y": text})))


def put(code: str, texts: Mapping[str, str]) -> str:
    """Write texts in the places of names."""
    nodes = {name: ast.parse(text, mode="eval").body for name, text in texts.items()}

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return nodes.get(node.id, node)

        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            texts = [ast.unparse(a) for a in node.args[1:]]
            return ast.Constant(0.0) if texts == ["0.0", "0.0"] else node  # neither moves

    return ast.unparse(Put().visit(ast.parse(code, mode="eval")))


# --- writing -------------------------------------------------------------------------------------


def show(p: Poly) -> str:
    """The expression as code, with the factors that all terms share taken out."""
    if not p:
        return "0"
    shared = common(p)
    if len(p) == 1 or not shared:
        return _sum(p)
    inside = {divided(powers, shared): c for powers, c in p.items()}
    return _term(product(shared, ((_sum(inside), Fraction(1)),)), Fraction(1))


def _sum(p: Poly) -> str:
    counts = Counter(name for powers in p for name, k in powers if k > 0 and name.isidentifier())
    name = max(counts, key=lambda name: counts[name], default="")
    part = {powers: c for powers, c in p.items() if dict(powers).get(name, 0) > 0}
    shared = show(part) if 1 < len(part) < len(p) else ""  # with a factor that only some have
    alone = [(k, c) for k, c in p.items() if not (shared and k in part)]
    terms = [(c < 0, _term(powers, abs(c))) for powers, c in alone]
    terms += [(shared.startswith("-"), shared.removeprefix("-"))] * bool(shared)
    out = ""
    for minus, term in sorted(terms, key=lambda term: term[0]):  # begins without a minus
        out += f" {'-' if minus else '+'} {term}" if out else "-" * minus + term
    return out


def _term(powers: Powers, c: Fraction) -> str:
    for factor in powers:  # a slope that is 1 or 0
        found = re.fullmatch(r"np\.where\((.*), 1, 0\.0\)", factor[0])
        if found and factor[1] == 1 and len(powers) > 1:
            return f"np.where({found[1]}, {_term(divided(powers, (factor,)), c)}, 0)"
    powers = tuple(pair for name, k in powers for pair in _without_roots(name, k))
    above = [_factor(name, k) for name, k in powers if k > 0]
    below = [_factor(name, -k) for name, k in powers if k < 0]
    if c.denominator > 4096 or c.numerator > 1e15:  # not a fraction that a person would write
        above, c = [repr(float(c)), *above], Fraction(1)
    if c.numerator != 1 or not above:
        above.insert(0, str(c.numerator))
    if c.denominator != 1:
        below.insert(0, str(c.denominator))
    return " / ".join([" * ".join(above), *below])


def _without_roots(text: str, k: Fraction) -> Powers:
    """A factor, without the square of a root."""
    whole = Fraction(int(k / 2)) if text.startswith("np.sqrt(") else Fraction(0)
    return tuple(pair for pair in ((text[8:-1], whole), (text, k - 2 * whole)) if pair[1])


def _factor(text: str, k: Fraction) -> str:
    node = ast.parse(text, mode="eval").body
    whole = isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Constant)
    shown = text if whole else f"({text})"
    return shown if k == 1 else f"{shown} ** {k if k.denominator == 1 else float(k)}"
