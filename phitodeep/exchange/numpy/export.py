"""Write a model as a Python file that requires NumPy alone: see `Sequential.export_numpy`."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import dis
import hashlib
import inspect
import os
import pathlib
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from keyword import iskeyword
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from phitodeep.core.files import atomic_write
from phitodeep.core.types import Array, Shape, same
from phitodeep.errors import ArgumentError, ArgumentTypeError, NotBuiltError
from phitodeep.exchange.numpy import plain
from phitodeep.exchange.numpy.forms import literal
from phitodeep.exchange.numpy.network import WIDTH, Line, Network, one_line
from phitodeep.layers.base import Layer

RULE = "# --- {} "
MANY = 2**16  # times as many steps as the model was built for: there is no limit
Sizes = tuple[int | None, ...]  # of one sample; None: any


def export_numpy(model: Layer, path: str | os.PathLike[str], samples: int) -> None:
    """Write `path`, which ends in .py, and its weights next to it: see `Sequential.export_numpy`.

    `samples` is the size of the batches in which `predict` computes.
    """
    target = Path(path)
    if target.suffix != ".py" or not target.stem.isidentifier() or iskeyword(target.stem):
        raise ArgumentError(
            "export_numpy writes a Python module, so path must end in .py, and the name before it "
            f'must be an identifier, as in "net.py", got {os.fspath(path)!r}.'
        )
    if target.stem in {"numpy", *sys.stdlib_module_names}:
        raise ArgumentError(
            f"export_numpy: {target.name} would hide the module {target.stem} from the programs "
            'next to it: choose another name, such as "net.py".'
        )
    if model.input_shape is None or model.output_shape is None:
        raise NotBuiltError(
            "export_numpy: the model does not know its input shape yet: train it, or call "
            "model.build(input_shape)."
        )
    code, weights = written(model, target.stem, samples)
    digest = hashlib.sha256(code.encode())
    for name, a in weights.items():
        digest.update(f"{name} {a.dtype} {a.shape}".encode() + np.ascontiguousarray(a).tobytes())
    export_id = digest.hexdigest()[:16]
    arrays: dict[str, Any] = {**weights, "export_id": np.array(export_id)}
    with atomic_write(target) as file, atomic_write(target.with_suffix(".npz")) as npz:
        np.savez(npz, **arrays)
        file.write(code.replace(_ID, export_id).encode())


_ID = "0" * 15 + "?"  # stands for the identifier, which is computed from the code


def written(model: Layer, name: str, samples: int) -> tuple[str, dict[str, Array]]:
    """Return the code of the module `name`, and the weights that it reads."""
    network = Network(model)
    own = {"Array", "W", "network", "predict", *network.variables}  # no names of functions
    sources = Sources({**dict.fromkeys(own, network), "np": np})
    for function in network.functions.values():
        sources.add(function.__name__, function, function.__name__)
    ends = [len(sources.blocks)]
    sources.finish()
    ends.append(len(sources.blocks))
    prepare = plain.as_tokens if model.takes_tokens else plain.as_numbers
    for function in (prepare, plain.load_weights, plain.main):
        sources.add(function.__name__, function, function.__name__, helpers_first=True)
    shape, output = free_shapes(model)
    example = f", here for X {_shape(model.input_shape or ())}" if None in shape else ""
    checks = ["X", literal(shape, "the input shape")]
    if not model.takes_tokens:
        checks.append(f'"{model.dtype}"')
    limit = most_steps(model) if shape[:1] == (None,) else None
    if limit is not None:
        checks.append(f"max_steps={limit}")
    lines = [
        f'"""{_docstring(model, name, shape, output, limit)}"""',
        "",
        "from __future__ import annotations",
        "",
        *sources.header(),
        "",
        "import numpy as np",
        "",
        "Array = np.ndarray",
        "",
        "",
        f"def predict(X: Any, batch_size: int = {samples}) -> Array:",
        f'    """Return the outputs {_shape(output)} for X {_shape(shape)}, an array or lists."""',
        str(Line(f"X = {prepare.__name__}", tuple(checks))),
        "    if batch_size < 1:",
        '        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")',
        "    batches = [X[i : i + batch_size] for i in range(0, len(X), batch_size)]",
        "    return np.concatenate([network(batch) for batch in batches])",
        "",
        "",
        "def network(X: Array) -> Array:",
        f'    """Compute Y {_shape(output)} from X {_shape(shape)}, layer by layer.',
        "",
        f"    Where a layer changes the shape, the new one is next to it{example}.",
        '    """',
        *map(str, network.lines),
        f"    return {network.result}",
        *_section("the layers, as functions of arrays", sources.blocks[: ends[0]]),
        *_section("functions that the layers use", sources.blocks[ends[0] : ends[1]]),
        *_section("input, weights and command line", sources.blocks[ends[1] :]),
        "",
        "",
        "try:",
        f'    W = load_weights(Path(__file__).with_suffix(".npz"), "{_ID}")',
        "except (OSError, ValueError) as error:",
        '    if __name__ != "__main__":',
        "        raise",
        "    sys.exit(str(error))",
        "",
        'if __name__ == "__main__":',
        "    main(predict, sys.argv)",
        "",
    ]
    return "\n".join(lines), network.weights


def _section(title: str, blocks: list[str]) -> list[str]:
    lines = ["", "", RULE.format(title).ljust(99, "-")] if blocks else []
    for block in blocks:
        lines += [*([""] if lines[-1:] == [""] else ["", ""]), block]
    return lines


def _docstring(model: Layer, name: str, shape: Sizes, output: Sizes, limit: int | None) -> str:
    """Return the text that says what the file is, safe inside triple quotes."""
    kind = "int64" if model.takes_tokens else str(model.dtype)
    steps = "" if limit is None else f", and any at most {limit}"
    rows = [("path", "layer", "output", "parameters")]
    for key, layer in model.children().items():
        text = one_line(layer, 45)
        row = key.removeprefix("layers."), text, _shape(layer.output_shape or ())
        rows.append((*row, f"{layer.count_params():,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join([*map(str.ljust, row[:3], widths), row[3].rjust(widths[3])]) for row in rows]
    text = f"""A neural network in plain NumPy, exported by phitodeep {_version()}.

    from {name} import predict
    Y = predict(X)

X    {_shape(shape)}, {kind}; N is the number of samples{steps}
Y    {_shape(output)}, {model.dtype}

On the command line: python {name}.py input.npy output.npy
The weights are in {name}.npz, in the same folder: {model.count_params():,} parameters.

{chr(10).join(f"    {row}" for row in table)}
"""
    return text.replace("\\", "\\\\").replace('"', "'")


def _version() -> str:
    return str(sys.modules["phitodeep"].__version__)  # importing what is above all is refused


def _shape(shape: Sizes) -> str:
    return f"({', '.join(['N', *('any' if n is None else str(n) for n in shape or ())])})"


def free_shapes(model: Layer) -> tuple[Sizes, Sizes]:
    """Return the shapes of X and Y, with None for each axis whose size may differ in predictions.

    An axis of X is free if the model, with the weights that it has, takes several other sizes.
    """
    shape, output = model.input_shape or (), model.output_shape or ()
    free: list[int | None] = list(shape)
    found: list[int | None] = list(output)
    for axis in range(len(shape)):
        for twin in resized(model, axis):
            free[axis] = None
            pairs = zip(found, twin.output_shape or (), strict=True)
            found = [a if a == b else None for a, b in pairs]
    return tuple(free), tuple(found)


def resized(model: Layer, axis: int) -> list[Layer]:
    """Return copies of the model that are built for other sizes of an axis of X, without arrays.

    There are none if its weights do not fit one of these sizes: the axis is then not free.
    """
    shape = model.input_shape or ()
    n = shape[axis]
    limit = most_steps(model) if axis == 0 else None
    sizes = {n + 1, 2 * n + 1, 3 * n + 2} if limit is None else {limit // 2, limit - 1, limit}
    found = [_fitting(model, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes - {0, n}]
    twins = [twin for twin in found if twin is not None]
    return twins if len(twins) == len(found) else []


def most_steps(model: Layer) -> int | None:
    """Return the largest size of the first axis of a sample, or None if there is no limit.

    Layers may lengthen or shorten the steps before the layer that has the limit `max_steps`.
    """
    if model.max_steps is None or not model.input_shape:
        return None
    n, *rest = model.input_shape
    low = high = n
    while _fitting(model, (high, *rest)) is not None:
        low, high = high, 2 * high
        if high > MANY * n:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if _fitting(model, (middle, *rest)) is None:
            high = middle
        else:
            low = middle
    return low


def _fitting(model: Layer, shape: Shape) -> Layer | None:
    """Return a copy that is built for samples of this shape, or None if the weights do not fit."""
    try:
        twin = model._measured(shape)
    except ValueError:
        return None
    pairs = zip(model.walk(), twin.walk(), strict=True)
    fits = all(
        a.shape == other.params[name].shape
        for (_, layer), (_, other) in pairs
        for name, a in layer.params.items()
    )
    return twin if fits else None


# --- the sources of functions ---------------------------------------------------------------------

IMPORTED = {"collections.abc": collections.abc, "pathlib": pathlib, "typing": typing}


class Sources:
    """The sources of functions and of all that they use.

    The constants that a function uses are defined right before it. The functions that it uses wait
    until `finish` adds them, so that they are after all functions that the caller adds.

    names      everything that the file defines or imports, by name
    modules    the lines that import modules
    imports    the names imported from a module, by its name
    blocks     the sources of functions and constants, in order
    waiting    functions that others use: (name, function, who uses it)
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.modules: set[str] = set()
        self.imports: dict[str, set[str]] = {}
        self.blocks: list[str] = []
        self.waiting: list[tuple[str, FunctionType, str]] = []

    def finish(self) -> None:
        """Add the functions that are waiting, and those that they use."""
        while self.waiting:
            self.add(*self.waiting.pop(0))

    def add(self, name: str, value: Any, who: str, helpers_first: bool = False) -> None:
        """Define `name` as this function, module or constant, which `who` uses.

        If `helpers_first`, the functions that it uses do not wait: they are defined before it.
        """
        if name in self.names:
            if not same(self.names[name], value):
                raise ArgumentError(
                    f"export_numpy: the name {name!r}, which {who} uses, means something else in "
                    "the exported file: rename it."
                )
            return
        if hasattr(builtins, name):
            raise ArgumentError(
                f"export_numpy: {name!r}, which {who} uses, would hide Python's own {name!r} in "
                "the exported file: rename it."
            )
        self.names[name] = value
        home = _home(name, value)
        if home is not None:
            self.imports.setdefault(home, set()).add(name)
        elif isinstance(value, ModuleType):
            full = _allowed(value.__name__, who)
            self.modules.add(f"import {full}" if full == name else f"import {full} as {name}")
        elif isinstance(value, FunctionType):
            self._add_function(name, value, who, helpers_first)
        else:
            self.blocks.append(assignment(name, value, f"the constant {name} of {who}"))

    def _add_function(
        self, name: str, function: FunctionType, who: str, helpers_first: bool
    ) -> None:
        source, tree = _source(function)
        if function.__name__ != name:
            raise ArgumentError(
                f"export_numpy: {who} uses {function.__name__} under the name {name!r}: use its "
                "own name."
            )
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    _allowed(alias.name, name)
            elif isinstance(node, ast.ImportFrom):
                _allowed(node.module or ".", name)
        known = function.__globals__
        before = _names([*tree.decorator_list, *tree.args.defaults, *tree.args.kw_defaults])
        used = [*before, *_globals(function.__code__)]
        missing = next((n for n in used if n not in known and not hasattr(builtins, n)), None)
        if missing is not None:
            raise ArgumentError(f"export_numpy: {name} uses {missing!r}, which is not defined.")
        # nothing evaluates annotations, but editors look up their names
        kinds = (
            getattr(n, kind, None) for n in ast.walk(tree) for kind in ("annotation", "returns")
        )
        used += [n for n in _names(kinds) if n in known and _home(n, known[n])]
        for n in sorted(used, key=lambda n: isinstance(known.get(n), FunctionType)):
            value = known.get(n)
            if isinstance(value, FunctionType) and not helpers_first and n not in before:
                self.waiting.append((n, value, name))
            elif n in known:
                self.add(n, value, name, helpers_first=True)
        self.blocks.append(source)

    def header(self) -> list[str]:
        """Return the lines that import what the sources use, except NumPy."""
        named = [f"from {home} import {', '.join(sorted(n))}" for home, n in self.imports.items()]
        return [*sorted(self.modules), *sorted(named)]


def _home(name: str, value: Any) -> str | None:
    """Return the module of IMPORTED that exports this value under this name, if one does."""
    homes = (h for h, m in IMPORTED.items() if name in m.__all__ and getattr(m, name) is value)
    return next(homes, None)


def assignment(name: str, value: Any, who: str) -> str:
    """Return the source `name = value`, in lines that are not too long."""
    text: str = literal(value, who)
    if len(name) + len(text) + 3 > WIDTH and isinstance(value, dict):
        items = (f"{literal(k, who)}: {_wrapped(v, who, 4)},\n" for k, v in value.items())
        text = f"{{\n    {'    '.join(items)}}}"
    elif len(name) + len(text) + 3 > WIDTH:
        text = _wrapped(value, who, 0)
    return f"{name} = {text}"


def _wrapped(value: Any, who: str, indent: int) -> str:
    """Return a constant as source; the numbers of a long tuple are in lines of their own."""
    text = literal(value, who)
    if len(text) + indent < 80 or not isinstance(value, tuple):
        return text
    start, parts = "\n" + " " * (indent + 4), [literal(v, who) for v in value]
    rows = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    return f"({''.join(start + ', '.join(row) + ',' for row in rows)}\n{' ' * indent})"


def _allowed(module: str, who: str) -> str:
    """Return the name of a module, which must be NumPy's or Python's own."""
    if module.partition(".")[0] not in {"numpy", *sys.stdlib_module_names}:
        raise ArgumentError(
            f"export_numpy: {who} uses {module}, but exported files use NumPy and Python's own "
            "modules only."
        )
    return module


def _source(function: FunctionType) -> tuple[str, ast.FunctionDef]:
    """Return the source of a function and its tree, without the decorator `exports`."""
    name, defined_as = function.__qualname__, inspect.unwrap(function).__code__.co_name
    tree = None
    # Within `python -c`, Python 3.13 takes other text for the source of what `exec` has defined.
    with suppress(OSError, SyntaxError, ValueError):
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
        (tree,) = ast.parse("\n".join(lines)).body
    if tree is None or (isinstance(tree, ast.FunctionDef) and tree.name != defined_as):
        raise ArgumentTypeError(
            f"export_numpy needs the source of {name}, but it is not there: define the function "
            "in a file, with def."
        )
    if not isinstance(tree, ast.FunctionDef) or function.__closure__:
        raise ArgumentTypeError(
            f"export_numpy cannot copy {name}: define it with def, at module level, without "
            "decorators."
        )
    for decorator in reversed(tree.decorator_list):
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(named).rpartition(".")[2] == "exports":
            del lines[decorator.lineno - 1 : decorator.end_lineno]
            tree.decorator_list.remove(decorator)
    return "\n".join(lines), tree


def _names(parts: Iterable[ast.AST | None]) -> list[str]:
    """Return the names in parts of a source."""
    nodes = (node for part in parts if part is not None for node in ast.walk(part))
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def _globals(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function reads, in the order of its code."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
