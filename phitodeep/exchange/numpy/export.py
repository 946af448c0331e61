"""Write a model as a Python file that requires NumPy alone: see `Sequential.export_numpy`."""

from __future__ import annotations

import hashlib
import os
import sys
from bisect import bisect
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.files import atomic_write
from phitodeep.core.types import Array, Shape
from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError
from phitodeep.exchange.correspondence import check_exportable, form_of
from phitodeep.exchange.numpy import plain
from phitodeep.exchange.numpy.network import Line, Network, one_line
from phitodeep.exchange.numpy.sources import Sources, literal
from phitodeep.layers.base import Layer

RULE = "# --- {} "
REFUSAL = (
    "there is no NumPy function for {}. Use another layer, or write its forward pass as a NumPy "
    "function and declare it with @phitodeep.exchange.numpy.forms.exports(YourLayer)."
)
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
    check_exportable(model, "numpy", "export_numpy", REFUSAL)
    network = Network(model, partial(form_of, library="numpy"))
    own = {"Array", "W", "network", "predict", *network.variables}  # no names of functions
    sources = Sources({**dict.fromkeys(own, network), "np": np})
    layers = sources.of(network.functions.values())
    helpers = sources.finish()
    surroundings = [
        *sources.of([plain.as_array, plain.load_weights, plain.main]),
        *sources.finish(),
    ]
    shape, output = free_shapes(model)
    example = f", here for X {_shape(model.input_shape or ())}" if None in shape else ""
    dtype = "int64" if model.takes_tokens else str(model.dtype)
    checks = ["X", literal(shape, "the input shape"), literal(dtype, "the dtype")]
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
        str(Line("X = as_array", tuple(checks))),
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
        *_section("the layers, as functions of arrays", layers),
        *_section("functions that the layers use", helpers),
        *_section("input, weights and command line", surroundings),
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
        "    main(predict)",
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
    text = f"""A neural network in plain NumPy, exported by phitodeep {__version__}.

    from {name} import predict
    Y = predict(X)

X    {_shape(shape)}, {kind}; N is the number of samples{steps}
Y    {_shape(output)}, {model.dtype}

On the command line: python {name}.py input.npy output.npy
The weights are in {name}.npz, in the same folder: {model.count_params():,} parameters.

{chr(10).join(f"    {row}" for row in table)}
"""
    return text.replace("\\", "\\\\").replace('"', "'")


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
    twins: list[Layer] = []
    for size in sizes - {0, n}:
        twin = _fitting(model, (*shape[:axis], size, *shape[axis + 1 :]))
        if twin is None:
            return []
        twins.append(twin)
    return twins


def most_steps(model: Layer) -> int | None:
    """Return the largest size of the first axis of a sample, or None if there is no limit.

    Layers may lengthen or shorten the steps before the layer that has the limit `max_steps`.
    """
    if model.max_steps is None or not model.input_shape:
        return None
    n, *rest = model.input_shape
    sizes = range(n, MANY * n)
    fit = bisect(sizes, False, key=lambda size: _fitting(model, (size, *rest)) is None)
    return None if fit == len(sizes) else sizes[fit - 1]


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
