"""Models from other libraries and for them: what `phitodeep.io` offers."""

from __future__ import annotations

from typing import Any

from phitodeep.core.types import PathLike
from phitodeep.exchange.onnx.read.from_onnx import read_onnx
from phitodeep.exchange.torch.compare import compare_with_torch as compare_with_torch
from phitodeep.exchange.torch.read.reading import read_torch
from phitodeep.exchange.torch.write.writing import to_torch as to_torch
from phitodeep.model.network import Network
from phitodeep.model.sequential import Sequential


def from_onnx(path: PathLike) -> Sequential | Network:
    """Return the model that an ONNX file describes, with its weights.

        model.export_onnx("net.onnx")
        again = phitodeep.io.from_onnx("net.onnx")

    The file may come from any exporter, such as `Sequential.export_onnx`, `torch.onnx.export` or
    skl2onnx: the layers are recognised in the graph itself. Where branches share values, they
    become a `Network`, and otherwise a `Sequential`. The model is float64 if the graph takes
    float64, and float32 otherwise. Its loss and its optimizer are the defaults of `Sequential`.

    **Axes.** The model takes and returns arrays with the axes of the graph, with one exception. If
    the first operator that depends on the order of axes takes images (N, C, height, width),
    sequences (N, C, T), or sequences with the steps first (T, N, D), then the model takes images
    (N, height, width, C) or sequences (N, T, C). Outputs of such a model also have their features
    last. `model.input_shape` shows the result. An axis of unknown size, other than the batch, gets
    some size in `input_shape`; the model takes others too.

    **Outputs.** A graph of a classifier may also return labels; the model returns probabilities.

    Nothing in the file is run, except that small graphs that were understood are evaluated once to
    compare their results with those of the model. An operator or a combination of operators that
    no layer computes is refused with a DataError that names the node. So is a file that is damaged.
    """
    model: Sequential | Network = read_onnx(path, Sequential, Network)
    return model


def from_torch(module: Any, input_shape: Any) -> Sequential | Network:
    """Return a model that computes what a torch.nn.Module computes, with copies of its weights.

        model = phitodeep.io.from_torch(module, (28, 28, 1))

    input_shape    the shape of one of phitodeep's samples: channels last, without the batch, such
                   as (height, width, C), (T, D) or (T,) for tokens; of several inputs, a tuple
                   of shapes in the order of forward's arguments, or a dict by their names

    A module that is no tree of branches, or has several inputs or outputs, becomes a `Network`, and
    a module that is used twice a `Shared` layer.

    The module's own input has the same axes, except that images are (N, C, H, W), and so are
    sequences (N, C, T) if the first module takes channels first, as Conv1d does. A module from
    `to_torch` says itself which layout it takes. The model takes and returns the channels last.

    forward runs on an example, and its steps are noted: it may use modules, functions and methods
    that move, merge or select parts of its values, but no control flow that depends on them. The
    model is built, in float64 if the module is, and otherwise in float32. Where all parameters of a
    module are frozen, so is its layer.

    Raises an ArgumentError that names the module or the operation that has no counterpart, or that
    has an option without one. The page "PyTorch" of the documentation lists what is supported.
    """
    model: Sequential | Network = read_torch(module, input_shape, Sequential, Network)
    return model
