"""Writes the file of a derived layer: a class whose code, docstring and steps say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phitodeep.core.types import Shape
from phitodeep.derivations.language.returning import Returned, ToLargest
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    Arrange,
    Derivation,
    Join,
    Let,
    Max,
    Size,
    Step,
    Sum,
    evaluate,
)
from phitodeep.errors import ArgumentError, DerivationError

TEMPLATE = '''\
"""{name}: derived from its forward pass, and checked by `check_gradients`."""

from __future__ import annotations

import numpy as np

{imports}


class {name}(Layer):
    """Y from X{given}.

    Forward:

{forward_formulas}

    Backward, from the last step to the first:

{backward_formulas}
    """

{params}{constructor}    def create(self, shape: Shape) -> Shape:
{create}

    def forward(self, X: Array) -> Array:
{forward}

    def backward(self, dY: Array) -> Array:
{backward}

    def steps(self) -> Derivation:
        return Derivation(
            [
{forward_steps}
            ],
            [
{backward_steps}
            ],
        )
'''
PRODUCTS = {"...i,ij->...j": "{0} @ {1}", "...j,ij->...i": "{0} @ {1}.T"}


class Writer:
    """The parts of a layer's source, from a derivation whose passes have run in `scope`.

    params      the names of the parameters
    settings    numbers by name, which become arguments of the constructor
    fixed       whether X must have as many axes as here
    """

    def __init__(
        self, found: Derivation, scope: Scope, name: str, params: Sequence[str],
        settings: Mapping[str, float], fixed: bool = False,
    ) -> None:  # fmt: skip
        self.found, self.scope, self.name, self.fixed = found, scope, name, fixed
        self.params, self.settings = params, settings
        self.X = np.shape(scope["X"])
        shapes = [np.shape(scope[p]) for p in params] + [np.shape(scope["Y"])[1:]]
        new = sorted({n for shape in shapes for n in shape} - {*self.X[1:], 1})
        free = [f"units{k}" for k in ("", *range(2, 99)) if f"units{k}" not in {*params, *settings}]
        self.units = dict(zip(new, free, strict=False))  # sizes that the user chooses

    def source(self) -> str:
        forward = [self.line(step, "X") for step in self.found.forward]
        backward = "\n".join([self.line(step, "dY") for step in self.found.backward]).split("\n")
        made = ["X", *(step.symbol for step in self.found.forward)]
        read = {n for step in self.found.backward for n in step.operands}
        kept = [n for n in made if n in read]
        if kept:
            forward.append(f"self.save_for_backward({', '.join(f'{n}={n}' for n in kept)})")
            names = ", ".join(f'"{n}"' for n in kept)
            backward.insert(0, f"{', '.join(kept)} = self.saved({names})")
        last = backward[-1]
        if last.startswith("dX = "):
            backward[-1] = f"return {last.removeprefix('dX = ')}"
        else:
            backward.append("return dX")
        imports = self.imports("\n".join([*forward, *backward]))
        if self.name in {"np", "super", "int", "float", *re.findall(r"\w+", imports)}:
            raise ArgumentError(
                f"{self.name} has another meaning in the file: choose another name."
            )
        return TEMPLATE.format(
            name=self.name,
            given=" with the parameters " * bool(self.params) + ", ".join(self.params),
            imports=imports,
            forward_formulas=_lines(8, [step.formula for step in self.found.forward]),
            backward_formulas=_lines(8, [step.formula for step in self.found.backward]),
            params="".join(f"    {p} = Param()\n" for p in self.params) + "\n" * bool(self.params),
            constructor=self.constructor(),
            create=_lines(8, self.create()),
            forward=_lines(8, [*forward, "return Y"]),
            backward=_lines(8, backward),
            forward_steps=_lines(16, [_constructed(step) for step in self.found.forward]),
            backward_steps=_lines(16, [_constructed(step) for step in self.found.backward]),
        )

    def imports(self, body: str) -> str:
        used = [f for f in ("erf", "sigmoid", "softplus") if re.search(rf"\b{f}\(", body)]
        kinds = {type(step) for step in (*self.found.forward, *self.found.backward)}
        modules = {
            "phitodeep.core.types": ["Array", "Shape"],
            "phitodeep.errors": ["ShapeError"] * self.fixed,
            "phitodeep.functional": used,
            "phitodeep.layers": ["Layer", *["Param"] * bool(self.params)],
            "phitodeep.layers.initialization": ["Xavier"] * ("Xavier()" in "".join(self.create())),
        }
        for kind in (*kinds, Derivation):
            modules.setdefault(kind.__module__, []).append(kind.__name__)
        lines = sorted((m, sorted(names)) for m, names in modules.items() if names)
        return "\n".join(f"from {m} import {', '.join(names)}" for m, names in lines)

    def constructor(self) -> str:
        given = [f"{unit}: int = {n}" for n, unit in self.units.items()]
        given += [f"{name}: float = {value!r}" for name, value in self.settings.items()]
        if not given:
            return ""
        stored = [f"self.{n} = {n}" for n in (*self.units.values(), *self.settings)]
        head = f"    def __init__(self, {', '.join(given)}) -> None:\n"
        return head + _lines(8, ["super().__init__()", *stored]) + "\n\n"

    def create(self) -> list[str]:
        """What makes the parameters: initial values are what a person may want to change."""
        made, axes = list[str](), len(self.X) - 1
        if self.fixed:
            words = f"takes samples of {axes} ax{'i' if axes == 1 else 'e'}s, got shape {{shape}}."
            made.append(f"if len(shape) != {axes}:")
            made.append(f'    raise ShapeError(f"{{self!r}} {words}")')
        for p in self.params:
            shape = np.shape(self.scope[p])
            sizes = [self.size(n) for n in shape]
            if len(shape) == 1:
                made.append(f"self.{p} = self.full({sizes[0]}, {int(p == 'beta' or p[0] != 'b')})")
            else:
                made.append(f"self.{p} = self.draw(Xavier(), ({', '.join(sizes)}))")
        return [*made, f"return {self.returned(np.shape(self.scope['Y'])[1:])}"]

    def size(self, n: int) -> str:
        """A size in terms of the shape of X and of the constructor's arguments."""
        if n in self.X[1:]:
            return f"shape[{self.X[1:].index(n) - len(self.X[1:])}]"
        return f"self.{self.units[n]}" if n in self.units else str(n)

    def returned(self, shape: Shape) -> str:
        if shape == self.X[1:]:
            return "shape"
        if len(shape) == len(self.X) - 1 and shape[:-1] == self.X[1:-1]:
            return f"(*shape[:-1], {self.size(shape[-1])})"
        sizes = [self.size(n) for n in shape]
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    # --- one step as code ----------------------------------------------------------------------

    def line(self, step: Step, like: str) -> str:
        """The statements that compute a step, in the dtype of `like`."""
        target = step.symbol
        if target.startswith("d") and target[1:] in self.params:
            target = f'self.grads["{target[1:]}"]'
        match step:
            case Sum():
                code = self.total(step)
            case Max():
                code = f"{step.operands[0]}.max{_axes(step.code)}"
            case Returned():
                of, g = step.step.of, step.gradient
                if re.fullmatch(rf"{of}\[[-\d:., ]*\]", step.step.code):  # a part, each once
                    part = step.step.code.removeprefix(of)
                    return self.own(f"{target} = np.zeros_like({of})\n{target}{part} = {g}")
                places = re.sub(rf"\b{of}\b", "places", step.step.code)
                return self.own(
                    f"places = np.arange(1, {of}.size + 1).reshape({of}.shape)  # 0: nobody's\n"
                    f"{target} = np.bincount({places}.ravel(), {g}.ravel(), {of}.size + 1)[1:]\n"
                    f"{target} = {target}.reshape({of}.shape).astype({g}.dtype)"
                )
            case ToLargest():
                part, _, out = step.step.code.partition("->")
                axes = [k - len(part) for k, i in enumerate(part) if i not in out and i != "."]
                if len(axes) > 1:
                    raise DerivationError(f"{step!r}: write a maximum along one axis at a time.")
                g = step.gradient if "1" in out else f"np.expand_dims({step.gradient}, {axes[0]})"
                first = f"{step.of}.argmax(axis={axes[0]}, keepdims=True)"
                return self.own(
                    f"{target} = np.zeros_like({step.of})\n"
                    f"np.put_along_axis({target}, {first}, {g}, axis={axes[0]})"
                )
            case Size():
                code = f"{step.of}.shape[{step.axis}]"
            case Let():
                tree = ast.parse(step.code, mode="eval")
                code = ast.unparse(_Typed(self.scope.values, like).visit(tree))
            case Arrange() | Join():
                code = step.code
            case _:
                raise DerivationError(f"{step!r}: no NumPy code for a {type(step).__name__} yet.")
        return f"{target} = {self.own(code)}"

    def own(self, code: str) -> str:
        """Code with `self.` before parameters and settings."""
        owned = {*self.params, *self.settings}
        lines = [line.encode() for line in code.split("\n")]
        found = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name) and n.id in owned]
        for n in sorted(found, key=lambda n: -n.col_offset):
            line = lines[n.lineno - 1]
            lines[n.lineno - 1] = line[: n.col_offset] + b"self." + line[n.col_offset :]
        return b"\n".join(lines).decode()

    def total(self, step: Sum) -> str:
        """A sum of products as a person would write it."""
        parts, _, out = step.code.replace(" ", "").partition("->")
        given, names = parts.split(","), step.operands
        if step.code in PRODUCTS:
            return PRODUCTS[step.code].format(*names)
        if re.fullmatch(r"\.\.\.(\w),\.\.\.(?!\1)(\w)->\1\2", step.code):
            rows = [f"{n}.reshape(-1, {n}.shape[-1])" for n in names]
            return f"{rows[0]}.T @ {rows[1]}"
        if len({*given}) == 1:
            square = len(names) == 2 and names[0] == names[1]
            inside = f"{names[0]} ** 2" if square else " * ".join(names)
            inside = inside if inside.isidentifier() else f"({inside})"
            if out in ("", "1"):
                return f"{inside}.sum()" + ".reshape(1)" * len(out)
            if axes := _axes(step.code):
                return f"{inside}.sum{axes}"
            if given[0] == f"...{out}":
                sizes = (
                    f"{names[0]}.shape[-1]" if len(out) == 1 else f"*{names[0]}.shape[-{len(out)}:]"
                )
                return f"{inside}.reshape(-1, {sizes}).sum(axis=0)"
        if "..." in parts and "..." not in out:
            given, out = step.letters(self.scope)
            parts = ",".join(given)
        code = f'np.einsum("{parts}->{out.replace("1", "")}", {", ".join(names)})'
        ones = tuple(k - len(out) for k, i in enumerate(out) if i == "1")
        return f"np.expand_dims({code}, {ones})" if ones else code


class _Typed(ast.NodeTransformer):
    """Gives np.sqrt(5) and np.where(X > 0, 1, 0), which are float64, the dtype of `like`."""

    def __init__(self, values: Mapping[str, Any], like: str) -> None:
        self.like = like
        self.values = {name: _single(value) for name, value in values.items()}

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node, ast.Call | ast.BinOp):
            return node
        code = ast.unparse(node)
        value = evaluate(code, self.values)
        if not isinstance(value, np.ndarray | np.generic) or value.dtype in (bool, np.float32):
            return node
        text = f"({code}).astype({self.like}.dtype)" if np.ndim(value) else f"float({code})"
        return ast.parse(text, mode="eval").body


def _single(value: Any) -> Any:
    if not np.ndim(value):
        return value.item() if isinstance(value, np.generic | np.ndarray) else value
    return value if value.dtype == bool else value.astype(np.float32)


def _axes(code: str) -> str:
    """The arguments of a sum or a maximum along axes; "" if it is over all samples."""
    part, _, out = code.replace(" ", "").partition("->")
    part = part.split(",")[0]
    if part.startswith("...") and not out.startswith("..."):
        return ""
    gone = [k - len(part) for k, i in enumerate(part) if i not in out and i != "."]
    left = "".join(i if i in out else "1" * ("1" in out) for i in part)
    if not gone or left != out:
        return ""
    axis = gone[0] if len(gone) == 1 else tuple(gone)
    return f"(axis={axis}{', keepdims=True' * ('1' in out)})"


def _constructed(step: Step) -> str:
    """The code that makes a step."""
    match step:
        case Size():
            return f'Size("{step.symbol}", "{step.of}", {step.axis}, "{step.words}"),'
        case Returned() | ToLargest():
            inner = _constructed(step.step).rstrip(",")
            return f'{type(step).__name__}("{step.symbol}", "{step.gradient}", {inner}),'
        case Join():
            args = [step.symbol, *step.operands]
        case Arrange():
            args = [step.symbol, step.code, step.of, step.words]
        case Sum() | Max():
            args = [step.symbol, step.code, *step.operands]
        case _:
            args = [step.symbol, step.code]
    texts = ", ".join(f'"{a}"' for a in args)
    return f"{type(step).__name__}({texts}),"


def _lines(indent: int, lines: Sequence[str]) -> str:
    """Lines of code, indented."""
    text = "\n".join(lines)
    return "\n".join(" " * indent + line if line else "" for line in text.split("\n"))
