"""Reading an ONNX file: its nodes, constants, inputs and outputs, with every size checked.

An ONNX file may come from a stranger. Nothing is allocated because a number in the file asks for
it: an array is as long as its bytes in the file, and external data comes only from files in the
same folder. What is wrong with the file raises a DataError.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.files import check_path, readable
from phitodeep.core.types import Array
from phitodeep.errors import DataError, extra
from phitodeep.exchange.onnx.read.values import LabelError

OPSETS = range(9, 29)  # of the standard operators
ML_OPSETS = range(1, 6)  # of the operators of ai.onnx.ml
LARGEST = (1 << 31) - 1  # bytes of an ONNX file: protobuf's limit
MOST_AXES = 32
ML = "ai.onnx.ml"
TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}  # by their number
FLOATS, INTEGERS = {1, 11}, {6, 7}
FIELDS = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}  # of attributes, by type
INPUTS = {  # after the first, that are attributes in older versions
    "Slice": ("starts", "ends", "axes"),
    "Split": ("split",),
    "Pad": ("pads", "value"),
    "Clip": ("min", "max"),
    **dict.fromkeys(["Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean"], ("axes",)),
    **dict.fromkeys(["ReduceProd", "ReduceMax", "ReduceMin"], ("axes",)),
}
CONVERT = "convert the file to float32"


class Node(NamedTuple):
    """An operation, with the inputs of newer versions; `name` is for error messages."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class Input(NamedTuple):
    """What a graph reads. A size that the file leaves open is the name of the axis."""

    name: str
    type: int
    sizes: list[int | str]


class File:
    """The content of an ONNX file.

    constants    arrays by name; an array of a type that is not supported is a DataError, which is
                 raised only if a layer needs it
    size         bytes of the file and of the external data that it uses
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_path(path)
        self._external = 0  # bytes read from other files
        self._files: dict[str, int] = {}  # their sizes
        self.proto = self._parsed()
        self.opset = self._versions()
        graph = self.proto.graph
        self.constants: dict[str, Array | DataError] = {}
        for tensor in graph.initializer:
            self.constants[tensor.name] = self.array(tensor, f"the constant {tensor.name!r}")
        if len(graph.sparse_initializer):
            raise DataError(f"{self.path} has sparse constants: convert them to dense ones.")
        self.inputs = [self._input(i) for i in graph.input if i.name not in self.constants]
        self.outputs = [o.name for o in graph.output]
        self.nodes = [self._node(n) for n in graph.node]
        self.size = self._bytes + self._external

    def _parsed(self) -> Any:
        """Return the file as ONNX's message, after ONNX's own checks."""
        with extra("onnx", "onnx", "from_onnx"):
            import onnx
            from google.protobuf.message import DecodeError
        path = readable(self.path, LARGEST)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}.") from None
        self._bytes = len(content)
        try:
            proto = onnx.load_model_from_string(content)
            outside = [t for t in proto.graph.initializer if t.data_location == t.EXTERNAL]
            for tensor in outside:  # ONNX calls a file damaged if its data file is missing
                self._place(_entries(tensor), f"the constant {tensor.name!r}")
            onnx.checker.check_model(os.fspath(self.path) if outside else proto)
        except DecodeError as error:
            raise DataError(f"{self.path} is not an ONNX file: {error}.") from None
        except DataError:  # which is a ValueError, too
            raise
        except (onnx.checker.ValidationError, ValueError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} is damaged: {error}") from None
        return proto

    def _versions(self) -> int:
        """Return the version of the standard operators; refuse versions that nobody tested."""
        standard = 1
        for entry in self.proto.opset_import:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            known = {"": OPSETS, ML: ML_OPSETS}.get(domain)
            if known is not None and entry.version not in known:
                raise DataError(
                    f"{self.path} uses opset {entry.version}{f' of {domain}' if domain else ''}: "
                    f"{known[0]} to {known[-1]} are supported."
                )
            standard = entry.version if domain == "" else standard
        return standard

    def _input(self, info: Any) -> Input:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise DataError(f"the input {info.name!r} of {self.path} has no shape.")
        dims = tensor.shape.dim
        if len(dims) > MOST_AXES:
            raise DataError(f"the input {info.name!r} of {self.path} has {len(dims)} axes.")
        sizes: list[int | str] = []
        for i, d in enumerate(dims):
            free = d.dim_param if d.dim_param not in ("", *sizes) else f"{info.name} {i}"
            sizes.append(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else free)
        return Input(info.name, tensor.elem_type, sizes)

    def _node(self, node: Any) -> Node:
        outputs = list(node.output)
        op = node.op_type if node.domain in ("", ML) else f"{node.domain}.{node.op_type}"
        if node.name:
            name = f"the node {node.name!r} ({op})"
        else:
            name = f"the node {op} that computes {next(filter(None, outputs), '')!r}"
        attributes = {a.name: self._attribute(a, name) for a in node.attribute}
        inputs = list(node.input)
        for i, key in enumerate(INPUTS.get(op, ()), 1):
            if key in attributes:
                inputs += [""] * (i + 1 - len(inputs))
                inputs[i] = f"{key} of {outputs}"
                self.constants[inputs[i]] = np.array(attributes.pop(key))
        return Node(op, name, inputs, outputs, attributes)

    def _attribute(self, a: Any, name: str) -> Any:
        """Return the value of an attribute; a graph, which only control flow has, is None."""
        if a.type == a.TENSOR:
            return self.array(a.t, f"the attribute {a.name!r} of {name}")
        if a.type not in FIELDS:
            return None
        value = getattr(a, FIELDS[a.type])
        if a.type == a.STRING:
            return value.decode("utf-8", "replace")
        if a.type == a.STRINGS:
            return [text.decode("utf-8", "replace") for text in value]
        return value if a.type in (a.FLOAT, a.INT) else list(value)

    # --- arrays ----------------------------------------------------------------------------

    def array(self, tensor: Any, where: str) -> Array | DataError:
        """Return a tensor of the file as an array, or an error if its type is not supported."""
        from onnx import TensorProto, numpy_helper

        if tensor.data_type == TensorProto.STRING:
            return LabelError(f"{where} in {self.path} holds text, such as labels of classes.")
        if tensor.data_type not in TYPES:
            known = tensor.data_type in TensorProto.DataType.values()
            kind = TensorProto.DataType.Name(tensor.data_type) if known else tensor.data_type
            return DataError(f"{where} in {self.path} has the type {kind}: {CONVERT}.")
        dtype, shape = np.dtype(TYPES[tensor.data_type]), tuple(tensor.dims)
        if len(shape) > MOST_AXES or min(shape, default=0) < 0:
            raise DataError(f"{where} in {self.path} has the shape {shape[:MOST_AXES]}.")
        if tensor.data_location == tensor.EXTERNAL:
            data = self._outside(tensor, math.prod(shape) * dtype.itemsize, where)
            return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        try:
            return np.asarray(numpy_helper.to_array(tensor))
        except (ValueError, TypeError) as error:
            raise DataError(f"{where} in {self.path} is damaged: {error}.") from None

    def _outside(self, tensor: Any, size: int, where: str) -> bytes:
        """Return the bytes of a tensor that another file in the same folder holds."""
        entry = _entries(tensor)
        path = self._place(entry, where)
        name = path.name
        offset, length = entry.get("offset", "0"), entry.get("length", str(size))
        if not (offset.isdecimal() and length.isdecimal() and len(offset + length) < 40):
            raise DataError(f"{where} in {self.path} has a damaged offset or length.")
        start, count = int(offset), int(length)
        readable(path)
        try:
            with open(path, "rb") as file:
                self._files[name] = os.fstat(file.fileno()).st_size
                self._external += size
                if count != size or start + size > self._files[name]:
                    raise DataError(f"{where} in {self.path} does not fit the file {name}.")
                if self._external > sum(self._files.values()):
                    raise DataError(f"{self.path} is damaged: its constants share bytes of {name}.")
                file.seek(start)
                return file.read(size)
        except DataError:
            raise
        except OSError as error:
            raise DataError(f"{where} in {self.path}: {name} cannot be read: {error}.") from None

    def _place(self, entry: dict[str, str], where: str) -> Path:
        """Return the path of a data file, which must be in the folder of the ONNX file."""
        name = entry.get("location", "")
        plain = name not in ("", ".", "..") and not set(name) & set("/\\\0:")
        path = self.path.parent / (name if plain else "x")
        folder = os.path.realpath(self.path.parent)
        if not plain or os.path.dirname(os.path.realpath(path)) != folder:
            raise DataError(
                f"{where} in {self.path} is in the file {name!r}: data are only read from the same "
                "folder, by a name without a path, and not through a link that leaves it."
            )
        if not os.path.exists(path):  # unlike Path.exists, it raises no error
            raise DataError(
                f"{where} in {self.path} is in the file {name!r}, which is missing: put it into "
                "the same folder."
            )
        return path


def _entries(tensor: Any) -> dict[str, str]:
    """Return where a tensor is in its data file: location, offset and length."""
    return {entry.key: entry.value for entry in tensor.external_data}
