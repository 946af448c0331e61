"""Writes the file of a derived layer: a class whose code, docstring and steps say the same."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any

import numpy as np

from phitodeep.core.types import Shape
from phitodeep.derivations.language.returning import Returned, ToLargest
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    Arrange,
    Carry,
    Derivation,
    Join,
    Let,
    Loop,
    Max,
    Size,
    Step,
    Sum,
    evaluate,
    flat,
    is_round,
    listed,
)
from phitodeep.errors import ArgumentError, DerivationError

WIDTH = 92  # of a line of code in a method
TEMPLATE = '''\
"""{0.name}: derived from its {0.source_of}, and checked by `check_gradients`."""

from __future__ import annotations

{imports}


class {0.name}({0.base}):
    """{0.summary}

    Forward:

{formulas[0]}

    Backward, from the last step to the first:

{formulas[1]}
    """

{head}    def {0.passes[0]}: Array) -> Array:
{bodies[0]}

    def {0.passes[1]}: Array) -> Array:
{bodies[1]}

    def steps(self) -> Derivation:
        return {0.call}(
            [
{steps[0]}
            ],
            [
{steps[1]}
            ],{0.more}
        )
'''


class Writer:
    """The parts of a layer's source, from a derivation whose passes have run in `scope`.

    params      the names of the parameters
    settings    numbers by name, which become arguments of the constructor
    fixed       None if X may have any number of axes; else, the axes of a sample whose sizes must
                be those of the example
    alone       whether each sample of Y depends on its own X only
    """

    source_of, base, call, more = "forward pass", "Layer", "Derivation", ""
    passes = "forward(self, X", "backward(self, dY"

    def __init__(
        self, found: Derivation, scope: Scope, name: str, params: Sequence[str],
        settings: Mapping[str, float], fixed: Sequence[int] | None = None, alone: bool = False,
    ) -> None:  # fmt: skip
        self.found, self.scope, self.name, self.fixed = found, scope, name, fixed
        self.alone = alone
        self.told = found  # in the docstring
        self.summary = f"Y from X{' with the parameters ' * bool(params)}{', '.join(params)}."
        self.params, self.settings = params, settings
        owned = {name: f"self.{name}" for name in (*params, *settings)}
        self.series = self.arrays({*owned})
        self.written = owned | self.series  # how symbols are written
        self.X = np.shape(scope["X"])
        new = sorted({n for p in params for n in np.shape(scope[p])} - {*self.X[1:], 1})
        free = [f"units{k}" for k in ("", *range(2, 99)) if f"units{k}" not in {*params, *settings}]
        self.units = dict(zip(new, free, strict=False))  # sizes that the user chooses

    def source(self) -> str:
        forward = [self.line(step, "X") for step in self.found.forward]
        backward = "\n".join([self.line(step, "dY") for step in self.found.backward]).split("\n")
        made = ["X", *(s.symbol for s in flat(self.found.forward) if not isinstance(s, Loop))]
        read = {n.id for n in ast.walk(ast.parse("\n".join(backward))) if isinstance(n, ast.Name)}
        kept = [n for n in dict.fromkeys(self.series.get(n, n) for n in made) if n in read]
        if kept:
            forward.append(_call("self.save_for_backward", [f"{n}={n}" for n in kept]))
            saved = _call(f"{', '.join(kept)} = self.saved", [f'"{n}"' for n in kept])
            backward.insert(0, saved)
        create = f"    def create(self, shape: Shape) -> Shape:\n{_lines(8, self.create())}\n\n"
        decays = {p: "decay=True" * (np.ndim(self.scope[p]) > 1) for p in self.params}
        params = "".join(f"    {p} = Param({decays[p]})\n" for p in decays) + "\n" * bool(decays)
        alone = "    independent_samples = True\n\n" * self.alone
        head = alone + params + self.constructor() + create
        return self.file(head, [*forward, "return Y"], returning("dX", backward))

    def file(self, head: str, *bodies: Sequence[str]) -> str:
        """The whole file, from what stands before the passes, and their bodies."""
        return TEMPLATE.format(
            self,
            imports=self.imports("\n".join([head, *chain(*bodies)])),
            formulas=[_lines(8, [*listed(steps, "")]) for steps in self.told],
            head=head,
            bodies=[_lines(8, body) for body in bodies],
            steps=[_lines(16, [_constructed(s) for s in steps]) for steps in self.found],
        )

    def imports(self, body: str) -> str:
        kinds = {type(step) for step in self.found.every()}
        modules = self.modules()
        modules["phitodeep.functional"] = [
            f for f in ("erf", "sigmoid", "softplus") if re.search(rf"\b{f}\(", body)
        ]
        for kind in (*kinds, Derivation):
            modules.setdefault(kind.__module__, []).append(kind.__name__)
        lines = sorted((m, sorted(names)) for m, names in modules.items() if names)
        text = "\n".join(f"from {m} import {', '.join(names)}" for m, names in lines)
        if self.name in {"np", "super", "int", "float", *re.findall(r"\w+", text)}:
            raise ArgumentError(
                f"{self.name} has another meaning in the file: choose another name."
            )
        return "import numpy as np\n\n" * ("np." in body) + text

    def modules(self) -> dict[str, list[str]]:
        """What the class itself imports, by module."""
        return {
            "phitodeep.core.types": ["Array", "Shape"],
            "phitodeep.errors": ["ShapeError"] * (self.fixed is not None),
            "phitodeep.layers": ["Layer", *["Param"] * bool(self.params)],
            "phitodeep.layers.initialization": ["Xavier"] * ("Xavier()" in "".join(self.create())),
        }

    def constructor(self) -> str:
        given = [f"{unit}: int = {n}" for n, unit in self.units.items()]
        given += [f"{name}: float = {value!r}" for name, value in self.settings.items()]
        if not given:
            return ""
        stored = [f"self.{n} = {n}" for n in (*self.units.values(), *self.settings)]
        head = f"    def __init__(self, {', '.join(given)}) -> None:\n"
        return head + _lines(8, stored) + "\n\n"

    def create(self) -> list[str]:
        """What makes the parameters: initial values are what a person may want to change."""
        made, axes = list[str](), len(self.X) - 1
        if self.fixed is not None:
            same = [f"shape[{k}] {{}}= {self.X[k + 1]}" for k in self.fixed]
            wrong = " or ".join([f"len(shape) != {axes}", *same]).replace("{}", "!")
            words = [f"takes samples of {axes} ax{'i' if axes == 1 else 'e'}s", *same]
            given = f'f"{{self!r}} {", ".join(words).replace("{}", "=")}, got shape {{shape}}."'
            made += [f"if {wrong}:", f"    raise ShapeError({given})"]
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
        chosen = {value: name for name, value in self.settings.items()} | self.units
        times, rest = divmod(n, self.X[-1])
        multiple = str(n) if rest else f"{times} * shape[-1]"
        return f"self.{chosen[n]}" if n in chosen else multiple

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
        if isinstance(step, Loop):
            return self.loop(step, like)
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
                if taken := re.fullmatch(
                    rf"{of}(\[[-\d:., ]*(\[[-\d, ]*\])?[-\d:., ]*\])", step.step.code
                ):
                    once = f"{target}{taken[1]} = {g}"  # each element once, or some again
                    back = f"np.add.at({target}, np.s_{taken[1]}, {g})" if taken[2] else once
                    return self.own(f"{target} = np.zeros_like({of})\n{back}")
                if found := re.fullmatch(rf"np\.repeat\({of}, \w+, axis=(\d+)\)", step.step.code):
                    a = int(found[1]) + 1
                    rows = f"{g}.reshape(*{of}.shape[:{a}], -1, *{of}.shape[{a}:])"
                    return self.own(f"{target} = {rows}.sum(axis={a})")
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
                code = ast.unparse(_Typed(self.scope, step.operands, like).visit(tree))
            case Arrange() | Join():
                code = step.code
            case _:
                raise DerivationError(f"{step!r}: no NumPy code for a {type(step).__name__} yet.")
        text = self.own(code)
        long = len(target + text) > WIDTH - 3
        return _broken(f"{target} = ", text) if long else f"{target} = {text}"

    def own(self, code: str) -> str:
        """Code with `self.` before parameters and settings, and arrays for symbols of loops."""
        lines = [line.encode() for line in code.split("\n")]
        found = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)]
        for n in sorted(found, key=lambda n: -n.col_offset):
            line, end = lines[n.lineno - 1], n.col_offset + len(n.id.encode())
            text = self.written.get(n.id, n.id).encode()
            lines[n.lineno - 1] = line[: n.col_offset] + text + line[end:]
        return b"\n".join(lines).decode()

    # --- loops over time -----------------------------------------------------------------------

    def arrays(self, taken: set[str]) -> dict[str, str]:
        """The arrays (N, T, ...) of what loops compute and steps outside read, by symbol."""
        steps, found = [*self.found.every()], dict[str, str]()
        taken |= {name for step in steps for name in (step.symbol, *step.operands)}
        for loop in steps:
            body = loop.body if isinstance(loop, Loop) else ()
            read = {name for step in steps if step not in body for name in step.operands}
            for step in body:
                if step.symbol in read:
                    base = step.symbol.removesuffix("_t")
                    array = f"{step.symbol}_all" if base in taken else base
                    found[step.symbol] = step.of if is_round(step) else array
                    taken.add(array)
        return found

    def loop(self, loop: Loop, like: str) -> str:
        """The statements of a loop: states are variables, and what others read fills arrays."""
        carries = [step for step in loop.body if isinstance(step, Carry)]
        before = _together([(c.of, self.own(c.start)) for c in carries])
        read = {name for step in loop.body for name in step.operands}
        read -= {step.symbol for step in loop.body}
        body = [f"{n} = {array}[:, t]" for n, array in self.series.items() if n in read]
        body += _together([(c.symbol, c.of) for c in carries])
        outside, arrays = (self.scope, self.written), dict[str, list[str]]()
        self.scope = self.scope.at(0)
        self.written = {n: text for n, text in self.written.items() if n not in self.series}
        for step in loop.body:
            array = "" if is_round(step) else self.series.get(step.symbol, "")
            line = step.symbol if step in carries else self.line(step, like)
            if array:
                arrays.setdefault(self.new(outside[0], step.symbol, like), []).append(array)
                body += [line] * ("\n" in line)  # several statements
                line = f"{array}[:, t] = {step.symbol if line in body else line}"
            body += [line] * (line != step.symbol)
        self.scope, self.written = outside
        for new, names in arrays.items():
            left, n = f"{', '.join(names)} = ", len(names)
            before.append(_call(left, [f"{new} for _ in range({n})"]) if n > 1 else left + new)
        T = f"range({loop.along}.shape[1])"
        head = f"for t in {f'reversed({T})' if loop.reverse else T}:"
        return "\n".join([*before, head, _lines(4, body)])

    def new(self, scope: Scope, name: str, like: str) -> str:
        """An empty array for all rounds of a symbol: sizes are those of X and of parameters."""
        shape = np.shape(scope[name])
        if shape == np.shape(scope[like]):
            return f"np.empty_like({like})"
        of = {n: f"X.shape[{k}]" for k, n in enumerate(self.X)}
        for p in self.params:
            of |= {n: f"self.{p}.shape[{k}]" for k, n in enumerate(np.shape(scope[p]))} | of
        sizes = ", ".join(["*X.shape[:2]", *(of.get(n, str(n)) for n in shape[2:])])
        return f"np.empty_like({like}, shape=({sizes}))"

    # --- sums ----------------------------------------------------------------------------------

    def total(self, step: Sum) -> str:
        """A sum of products as a person would write it."""
        parts, _, out = step.code.replace(" ", "").partition("->")
        given, names = parts.split(","), step.operands
        if len(names) == 2 and (code := _matrices(given, out, names)):
            return code
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

    def __init__(self, scope: Scope, names: Sequence[str], like: str) -> None:
        self.like = like
        self.values = {name: _single(scope[name]) for name in (like, *names)}

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


def _matrices(given: Sequence[str], out: str, names: Sequence[str]) -> str:
    """A sum of two factors as a product of matrices; "" if it is none."""
    both = [(part.replace("...", "."), name) for part, name in zip(given, names, strict=True)]
    out = out.replace("...", ".")
    for (a, A), (b, B) in (both, both[::-1]):
        for (left, one), (right, other) in product(_turned(a, A), _turned(b, B)):
            lead = left[:-1]
            same = left[-1:] == right[-2:-1] and out[-1:] == right[-1:] and out[:-1] == lead
            if same and right[:-2] in ("", lead[:-1]) and out[-1] not in left:
                return f"{one} @ {other}"
        if a[:-1] == b[:-1] and a != b and out == a[-1:] + b[-1:]:
            return f"{A}.reshape(-1, {A}.shape[-1]).T @ {B}.reshape(-1, {B}.shape[-1])"
    return ""


def _turned(part: str, name: str) -> list[tuple[str, str]]:
    """The indices of an array and of its transpose, with their code."""
    if len(part) < 2 or "." in part[-2:]:
        return [(part, name)]
    turned = f"{name}.T" if len(part) == 2 else f"{name}.swapaxes(-1, -2)"
    return [(part, name), (part[:-2] + part[:-3:-1], turned)]


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


def _together(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """One assignment of values to names; none without names."""
    return [" = ".join(map(", ".join, zip(*pairs, strict=True)))] * bool(pairs)


def _call(function: str, arguments: Sequence[str]) -> str:
    """A call, in several lines if it is long."""
    one = f"{function}({', '.join(arguments)})"
    return one if len(one) <= WIDTH else _broken(function, ", ".join(arguments))


def _broken(head: str, code: str) -> str:
    """Long code in brackets, in several lines."""
    whole = textwrap.TextWrapper(WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return f"{head}(\n{_lines(4, whole.wrap(code))}\n)"


def _constructed(step: Step) -> str:
    """The code that makes a step."""
    match step:
        case Size():
            return f'Size("{step.symbol}", "{step.of}", {step.axis}, "{step.words}"),'
        case Returned() | ToLargest():
            inner = _constructed(step.step).rstrip(",")
            return f'{type(step).__name__}("{step.symbol}", "{step.gradient}", {inner}),'
        case Loop():
            body = _lines(8, [_constructed(inner) for inner in step.body])
            back = "    reverse=True,\n" * step.reverse
            return f'Loop(\n    "{step.along}",\n    [\n{body}\n    ],\n{back}),'
        case Carry():
            args = [step.symbol, step.of, step.start]
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


def returning(name: str, lines: Sequence[str]) -> list[str]:
    """Statements that compute a value and return it."""
    if lines[-1].startswith(f"{name} = "):
        return [*lines[:-1], f"return {lines[-1].partition(' = ')[2]}"]
    return [*lines, f"return {name}"]


def _lines(indent: int, lines: Sequence[str]) -> str:
    """Lines of code, indented."""
    text = "\n".join(lines)
    return "\n".join(" " * indent + line if line else "" for line in text.split("\n"))
