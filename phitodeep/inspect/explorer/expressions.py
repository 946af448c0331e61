"""NumPy expressions of derivations as nested lists, which the explorer evaluates cell by cell.

The tree of "gamma * X_hat + 1" is ["+", ["*", "gamma", "X_hat"], 1.0].

A text is a symbol and a number is itself; a list is an operation and what it takes.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from phitodeep.errors import ArgumentError

BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.Mod: "%",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
UNARY = {ast.USub: "neg", ast.UAdd: "plus", ast.Invert: "not", ast.Not: "not"}
COMPARE = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
SAME = {"logical_and": "and", "logical_or": "or", "logical_not": "not", "int64": "trunc"}
CONSTANTS = {"pi": math.pi, "inf": "Infinity"}  # JSON has no infinity


def tree(code: str) -> Any:
    """An expression as nested lists."""
    return _tree(ast.parse(code, mode="eval").body)


def _tree(node: ast.expr) -> Any:
    match node:
        case ast.Name():
            return node.id
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Attribute() if node.attr in CONSTANTS:
            return ["number", CONSTANTS[node.attr]]
        case ast.BinOp() if type(node.op) in BINARY:
            return [BINARY[type(node.op)], _tree(node.left), _tree(node.right)]
        case ast.UnaryOp():
            return [UNARY[type(node.op)], _tree(node.operand)]
        case ast.Compare(ops=[op], comparators=[other]) if type(op) in COMPARE:
            return [COMPARE[type(op)], _tree(node.left), _tree(other)]
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return [SAME.get(name, name), *map(_tree, node.args)]
    raise ArgumentError(f"the explorer cannot evaluate {ast.unparse(node)!r}.")
