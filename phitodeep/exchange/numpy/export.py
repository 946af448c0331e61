"""Write a model as a Python file that requires NumPy alone: see `Sequential.export_numpy`."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from phitodeep.core.files import atomic_write
from phitodeep.core.types import Array, Shape, each
from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError
from phitodeep.exchange.correspondence import check_exportable, form_of
from phitodeep.exchange.numpy import plain
from phitodeep.exchange.numpy.network import Line, Network, one_line
from phitodeep.exchange.numpy.sources import Sources, literal, wrapped
from phitodeep.exchange.tree import Sizes, common, outer_names
from phitodeep.layers.base import Layer

RULE = "# --- {} "
REFUSAL = (
    "there is no NumPy function for {}. Use another layer, or write its forward pass as a NumPy "
    "function and declare it with @phitodeep.exchange.numpy.forms.exports(YourLayer)."
)


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
    layers = sources.of(network.functions)
    helpers = sources.finish()
    inputs, outputs = ports(model)
    surroundings = [
        *sources.of([plain.as_array, plain.batches, plain.load_weights, plain.main]),
        *sources.of([plain.in_order] * (len(inputs) > 1)),
        *sources.finish(),
    ]
    several = len(inputs) + len(outputs) > 2
    X, Y = ("the inputs", "the outputs") if several else (inputs[0], outputs[0])
    variables = ", ".join(network.inputs)
    names = [literal([port.name for port in some], "the names") for some in (inputs, outputs)]
    by_name = f"{{n: np.concatenate(A) for n, A in zip({names[1]}, zip(*parts))}}"
    pairs = zip(inputs, model._ins(), strict=True)
    built = [f"{port.name} {_shape(shape)}" for port, shape in pairs if None in port.sizes]
    example = f", here for {' and '.join(built)}" if built else ""
    shapes = f"Where a layer changes the shape, the new one is next to it{example}."
    lines = [
        f'"""{_docstring(model, name, inputs, outputs)}"""',
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
        f"def predict(X: Any, batch_size: int = {samples}) -> {_type(outputs)}:",
        f'    """Return {Y} for {X}, as arrays or lists."""',
        *[f"    {variables} = in_order(X, {names[0]})"] * (len(inputs) > 1),
        *[
            str(Line(f"{variable} = as_array", ", ".join([variable, *port.checks()])))
            for variable, port in zip(network.inputs, inputs, strict=True)
        ],
        f"    parts = [network(*batch) for batch in batches([{variables}], batch_size)]",
        f"    return {by_name if len(outputs) > 1 else 'np.concatenate(parts)'}",
        "",
        "",
        f"def network({', '.join(f'{v}: Array' for v in network.inputs)}) -> {_type(outputs)}:",
        f'    """Compute {Y} from {X}, layer by layer.',
        "",
        wrapped(shapes, "    ", "    "),
        '    """',
        *map(str, network.lines),
        f"    return {', '.join(each(network.result))}",
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
        "    main(predict)" if len(outputs) == 1 else '    main(predict, "npz")',
        "",
    ]
    return "\n".join(lines), network.weights


class Port(NamedTuple):
    """An input or an output.

    sizes    of one sample
    dtype    of the array
    """

    name: str
    sizes: Sizes
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {_shape(self.sizes)}"

    def checks(self) -> list[str]:
        """Return the arguments of `as_array` after the array."""
        found = [literal(self.sizes, "the input shape"), literal(self.dtype, "the dtype")]
        return found + [f'name="{self.name}"'] * (self.name != "X")


def ports(model: Layer) -> tuple[list[Port], list[Port]]:
    """Return the inputs and the outputs; a single one is X or Y, whatever a network calls it."""
    taken = ["int64" if tokens else str(model.dtype) for tokens in each(model.takes_tokens)]
    dtypes = taken, [str(model.dtype)] * len(model._outs())
    names = [n if len(n) > 1 else [one] for n, one in zip(outer_names(model), "XY", strict=True)]
    sides = zip(names, free_shapes(model), dtypes, strict=True)
    inputs, outputs = ([*map(Port, *side)] for side in sides)
    return inputs, outputs


def _type(outputs: list[Port]) -> str:
    return "Array" if len(outputs) == 1 else "Any"


def _section(title: str, blocks: list[str]) -> list[str]:
    lines = ["", "", RULE.format(title).ljust(99, "-")] if blocks else []
    for block in blocks:
        lines += [*([""] if lines[-1:] == [""] else ["", ""]), block]
    return lines


def _docstring(model: Layer, name: str, inputs: list[Port], outputs: list[Port]) -> str:
    """Return the text that says what the file is, safe inside triple quotes."""
    width = max(len(port.name) for port in (*inputs, *outputs))
    about = [
        f"{port.name:{width}}    {_shape(port.sizes)}, {port.dtype}" for port in (*inputs, *outputs)
    ]
    about[0] += "; N is the number of samples"
    pairs = ", ".join(f"{port.name}={port.name}" for port in inputs)
    call = "X" if len(inputs) == 1 else f"dict({pairs})"
    files = " ".join(
        f"{word}.np{'yz'[len(some) > 1]}" for word, some in (("input", inputs), ("output", outputs))
    )
    rows = [("path", "layer", "output", "parameters")]
    for key, layer in model.children().items():
        text = one_line(layer, 45)
        row = key.removeprefix("layers."), text, ", ".join(map(_shape, layer._outs()))
        rows.append((*row, f"{layer.count_params():,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join([*map(str.ljust, row[:3], widths), row[3].rjust(widths[3])]) for row in rows]
    text = f"""A neural network in plain NumPy, exported by phitodeep {__version__}.

    from {name} import predict
    Y = predict({call})

{chr(10).join(about)}

On the command line: python {name}.py {files}
The weights are in {name}.npz, in the same folder: {model.count_params():,} parameters.

{chr(10).join(f"    {row}" for row in table)}
"""
    return text.replace("\\", "\\\\").replace('"', "'")


def _shape(shape: Sizes) -> str:
    return f"({', '.join(['N', *('any' if n is None else str(n) for n in shape or ())])})"


def free_shapes(model: Layer) -> tuple[list[Sizes], list[Sizes]]:
    """Return the shapes of each X and Y, with None for an axis whose size may differ.

    An axis of X is free if the model, with the weights that it has, takes several other sizes.
    """
    builds = [model]
    for k, shape in enumerate(model._ins()):
        for axis in range(len(shape)):
            builds += resized(model, axis, k)
    return common(build._ins() for build in builds), common(build._outs() for build in builds)


def resized(model: Layer, axis: int, k: int = 0) -> list[Layer]:
    """Return copies of the model that are built for other sizes of an axis of input k, no arrays.

    There are none if its weights do not fit one of these sizes: the axis is then not free. If the
    number of steps has a limit, smaller sizes do, too.
    """
    n = model._ins()[k][axis]
    trials = [{n + 1, 2 * n + 1, 3 * n + 2}]
    if axis == 0 and model.max_steps is not None:
        trials = [{n + 1, 2 * n + 1}, {n - 1, n // 2} - {0}]
    for sizes in trials:
        twins = [_fitting(model, size, axis, k) for size in sizes]
        found = [twin for twin in twins if twin is not None]
        if len(found) == len(sizes) > 0:
            return found
    return []


def _fitting(model: Layer, size: int, axis: int, k: int) -> Layer | None:
    """Return a copy for samples of this size on an axis of input k; None if weights do not fit."""
    shapes = [*model._ins()]
    shapes[k] = (*shapes[k][:axis], size, *shapes[k][axis + 1 :])
    try:
        twin = model._measured(shapes[0] if model.inputs == 1 else cast(Shape, tuple(shapes)))
    except ValueError:
        return None
    pairs = zip(model.walk(), twin.walk(), strict=True)
    fits = all(
        a.shape == other.params[name].shape
        for (_, layer), (_, other) in pairs
        for name, a in layer.params.items()
    )
    return twin if fits else None
