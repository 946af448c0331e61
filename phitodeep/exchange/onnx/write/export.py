"""Write a model as an ONNX file: see `Sequential.export_onnx`.

How each layer is written: `forms_containers.py`, `forms_general.py`, `forms_images.py` and
`forms_sequences.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from phitodeep.core.checks import check_count
from phitodeep.core.files import atomic_write, check_path
from phitodeep.core.types import Array, PathLike, Shape, each
from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError, extra
from phitodeep.exchange.correspondence import check_exportable, form_of
from phitodeep.exchange.numpy.export import resized
from phitodeep.exchange.onnx.write.graph import Graph, UnknownSizeError, type_of
from phitodeep.layers.base import Layer

OPSET = 20  # the newest that onnxruntime 1.17, of January 2024, reads
OPSETS = range(17, 29)  # before 17, there is no LayerNormalization; after 28, nothing was tested
LARGEST = 2_000_000_000  # bytes of constants in an ONNX file: protobuf's limit is 2^31 for all
SMALL = 1024  # bytes: constants up to this size are always in the ONNX file
REFUSAL = (
    "ONNX has no operator for {}. Use another layer, or write it with standard operators and "
    "declare that with @phitodeep.exchange.onnx.write.forms.exports(YourLayer)."
)
EMPTY: Mapping[str, int] = MappingProxyType({})
Sizes = dict[str, list[int | str]]  # by name
Shapes = dict[int, list[tuple[Sequence[Shape], Sequence[Shape]]]]  # see `Graph`


def export_onnx(model: Layer, path: PathLike, opset: int) -> None:
    """Write `path`, and if the weights are large, `path`.data: see `Sequential.export_onnx`."""
    with extra("onnx", "onnx", "export_onnx"):
        import onnx
    target = check_path(path)
    if target.suffix != ".onnx":
        raise ArgumentError(f'export_onnx: path must end in .onnx, as in "net.onnx", got {path!r}.')
    newest = min(OPSETS[-1], onnx.defs.onnx_opset_version())
    check_count(opset, "export_onnx opset", minimum=-sys.maxsize)
    if not OPSETS[0] <= opset <= newest:
        raise ArgumentError(
            f"export_onnx: opset must be from {OPSETS[0]} to {newest}, got {opset}."
        )
    check_exportable(model, "onnx", "export_onnx", REFUSAL)
    graph = written(model, opset)
    outside, offset = dict[str, int](), 0
    for name, a in graph.arrays.items():
        if a.nbytes > SMALL:
            outside[name], offset = offset, offset + a.nbytes
    check(message(model, graph, outside))
    target, *others = files_of(model, target)
    if not others:
        with atomic_write(target) as file:
            file.write(message(model, graph).SerializeToString())
        return
    (weights,) = others
    with atomic_write(target) as file, atomic_write(weights) as data:
        for name in outside:
            data.write(np.ascontiguousarray(graph.arrays[name]).data)
        file.write(message(model, graph, outside, weights.name).SerializeToString())


def files_of(model: Layer, path: Path) -> list[Path]:
    """Return the files that `export_onnx` writes: `path`, and `path`.data for large weights."""
    large = model.count_params() * model.dtype.itemsize > LARGEST
    return [path, *([path.with_name(f"{path.name}.data")] if large else [])]


def written(model: Layer, opset: int) -> Graph:
    """Return the graph of a model, for any number of steps if that is possible."""
    onnx_form = partial(form_of, library="onnx")
    graph = Graph(model, onnx_form, opset, shapes_of(model, free=True))
    try:
        graph.write(model)
    except UnknownSizeError:
        graph = Graph(model, onnx_form, opset, shapes_of(model, free=False))
        graph.write(model)
    return graph


def shapes_of(model: Layer, free: bool) -> Shapes:
    """Return the shapes of the inputs and outputs of each layer, for several numbers of steps.

    Samples with steps are tokens (T,), sequences (T, D) and videos (T, height, width, C).
    """
    builds = [model]
    for k, (shape, tokens) in enumerate(zip(model._ins(), each(model.takes_tokens), strict=True)):
        if free and shape and (tokens or len(shape) not in (1, 3)):
            builds += resized(model, 0, k)
    layers = zip(*(build.walk() for build in builds), strict=True)
    return {id(same[0][1]): [(layer._ins(), layer._outs()) for _, layer in same] for same in layers}


# --- the file -------------------------------------------------------------------------------------


def message(
    model: Layer, graph: Graph, outside: Mapping[str, int] = EMPTY, location: str = ""
) -> Any:
    """Return the model as ONNX's message.

    The constants in `outside` are in the file `location` from these bytes on. Without a location
    they become inputs, so that the graph can be checked without them.
    """
    from onnx import helper, numpy_helper

    X, Y = sizes_of(model, graph)
    inputs = tensor_infos(X, each(model.takes_tokens), graph)
    tensors = []
    for name, a in graph.arrays.items():
        if name not in outside:
            tensors.append(numpy_helper.from_array(a, name))
        elif location:
            tensors.append(external(name, a, location, outside[name]))
        else:
            inputs.append(tensor_info(name, a.dtype, a.shape))
    outputs = tensor_infos(Y, graph.gives_tokens, graph)
    opsets = [helper.make_opsetid("", graph.opset)]
    return helper.make_model(
        helper.make_graph(graph.nodes, "phitodeep", inputs, outputs, tensors),
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="phitodeep",
        producer_version=__version__,
        doc_string=description(X, Y),
    )


def sizes_of(model: Layer, graph: Graph) -> tuple[Sizes, Sizes]:
    """Return the shapes of the inputs and outputs by name, with names for sizes that may differ.

    T is the number of steps of X, or T_name that of an input; an axis of an output that is not
    always as long has a name of its own.
    """
    builds = graph.shapes[id(model)]
    ends = "T_{}" if len(graph.takes) > 1 else "T"
    steps = {
        tuple([X[k][:1] for X, _ in builds]): ends.format(n) for k, n in enumerate(graph.takes)
    }
    found: list[Sizes] = []
    for side, names in enumerate((graph.takes, graph.returns)):
        found.append({})
        for k, (name, sizes) in enumerate(zip(names, graph.all_sizes(model)[side], strict=True)):
            axes: list[int | str] = ["N"]
            for i, n in enumerate(sizes):
                same = tuple([build[side][k][i : i + 1] for build in builds])
                axes.append(steps.get(same, f"{name}{i + 1}") if n is None else n)
            found[side][name] = axes
    return found[0], found[1]


def tensor_infos(sizes: Sizes, tokens: Sequence[bool], graph: Graph) -> list[Any]:
    dtypes = [np.int64 if given else graph.dtype for given in tokens]
    return [tensor_info(n, d, sizes[n]) for n, d in zip(sizes, dtypes, strict=True)]


def tensor_info(name: str, dtype: Any, shape: Sequence[int | str]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, type_of(dtype), shape)


def external(name: str, a: Array, location: str, offset: int) -> Any:
    """Return a tensor whose elements are in another file."""
    from onnx import TensorProto, external_data_helper

    tensor = TensorProto(name=name, data_type=type_of(a.dtype), dims=a.shape, raw_data=b"")
    external_data_helper.set_external_data(tensor, location, offset, a.nbytes)
    tensor.ClearField("raw_data")
    return tensor


def description(X: Sizes, Y: Sizes) -> str:
    """Return what the file says to its readers."""
    x, y = (
        ", ".join(f"{name} ({', '.join(map(str, axes))})" for name, axes in sizes.items())
        for sizes in (X, Y)
    )
    return (
        f"A neural network, exported by phitodeep {__version__}: {y} from {x}. N is the "
        "number of samples, and T the number of steps if that may differ. Features and channels "
        "are on the last axis: images are (N, height, width, C). All steps count: there is no mask "
        "for padding. A tokenizer is not included."
    )


def check(proto: Any) -> None:
    """Refuse a graph that is not valid, which only a form of a user's own can bring about."""
    import onnx

    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ArgumentError(f"export_onnx: the graph is not valid ONNX: {error}") from error
