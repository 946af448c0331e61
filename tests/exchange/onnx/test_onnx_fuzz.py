"""Damaged ONNX files: each one becomes a model, or is refused with our own error.

The files of `bases` are damaged in two ways. `noise` changes their bytes. `Hostile` takes a file
apart, changes its graph (operators, attributes, names, shapes, constants) and writes it again. All
of it is a function of one number, so a case that fails can be run again: see `case`.
"""

from __future__ import annotations

import functools
import os
import random
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.errors import LONGEST, PhitodeepError
from phitodeep.exchange.onnx.read.interpreting import HANDLERS
from phitodeep.io import from_onnx
from phitodeep.model import Sequential
from tests.exchange.onnx.graphs import floats, proto
from tests.rows import times
from tests.time_limit import within

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:onnx")  # of old versions
CASES = times(250)
SECONDS = 5  # of the processor: the most that one file may take
SHM = Path("/dev/shm")  # files in memory, on Linux

# --- the files before they are damaged -----------------------------------------------------------


def models() -> dict[str, tuple[list[L.Layer], tuple[int, ...]]]:
    """Return the layers of each model, and the shape of its input."""
    table = L.Embedding(5, 4)
    block = L.TransformerBlock(2, causal=True, rope=True, norm="rms", activation="swiglu")
    inside = L.Conv2D(3, 3, padding="same"), L.GroupNorm(3), L.SiLU()
    images = L.Conv2D(3, 2, stride=2), L.BatchNorm(), L.Residual(*inside), L.MaxPool2D(2)
    states = L.Bidirectional(L.LSTM(2)), L.GRU(3), L.SinusoidalEncoding(), L.GlobalAvgPool()
    branches = L.Chain(L.Select([1, 2]), L.PReLU()), L.Dense(3), L.Chain(L.Dense(2), L.Mish())
    return {
        "mlp": ([L.Dense(4), L.GELU(), L.LayerNorm(), L.Dense(2), L.Softmax()], (3,)),
        "cnn": ([*images, L.Upsample2D(2), L.Flatten(), L.Dense(2)], (6, 6, 1)),
        "gpt": ([table, L.PositionalEmbedding(6), block, L.TiedDense(table)], (5,)),
        "recurrent": ([*states], (4, 2)),
        "parts": (
            [L.Parallel(*branches), L.SkipConcat(L.RMSNorm()), L.Reshape(2, -1), L.Permute(2, 1)],
            (4,),
        ),
    }


def sklearn_like() -> Any:
    """A scaler, a linear classifier, and labels, as skl2onnx writes them."""
    made = proto(
        "ai.onnx.ml:Scaler x -> a offset=[1.0,2.0] scale=[3.0];"
        "ai.onnx.ml:LinearClassifier a -> label b coefficients=[1.0,2.0,3.0,4.0] "
        "intercepts=[0.1,0.2] classlabels_ints=[0,1] post_transform='SOFTMAX';"
        "ai.onnx.ml:Normalizer b norm='L1'",
        *([None, 2], {}),
    )
    made.graph.output.insert(0, onnx.helper.make_tensor_value_info("label", 7, [None]))
    return made


def pytorch_like() -> Any:
    """Shape arithmetic, a mask and channels first, as torch.onnx.export writes them."""
    shapes = {"W": (2, 3, 3, 3), "b": (2,), "V": (4, 32), "d": (4,), "half": (1,)}
    integers = {"from": 0, "to": 4, "one": 1, "zero": [0], "rest": [2, -1], "size": [3, 4]}
    arrays = {name: floats(*shape) for name, shape in shapes.items()}
    arrays |= {name: np.array(value) for name, value in integers.items()}
    text = (
        "Conv x W b -> c pads=[1,1,1,1] kernel_shape=[3,3]; Shape c -> s; Gather s zero -> n;"
        "Concat n rest -> target axis=0; Reshape c target -> r; ConstantOfShape n -> zeros;"
        "Range from to one -> range; Expand half size -> big; Transpose r -> t perm=[0,2,1];"
        "Flatten t -> f; Gemm f V d transB=1"
    )
    return proto(text, ["n", 3, 4, 4], arrays)


@functools.cache
def bases() -> dict[str, bytes]:
    """The content of each base file, and of two that are written by hand."""
    found = {f.__name__: bytes(f().SerializeToString()) for f in (sklearn_like, pytorch_like)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.onnx"
        for opset in (17, 20):
            for name, (layers, shape) in models().items():
                dtype = "float64" if name == "recurrent" else "float32"
                model = Sequential(*layers, seed=1, dtype=dtype)
                model.build(shape)
                model.export_onnx(path, opset=opset)
                found[f"{name}{opset}"] = path.read_bytes()
    return found


# --- damage ---------------------------------------------------------------------------------------

NUMBERS = (*(0, -1, 1, 2, 3, 7, 64, 10**6, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)),)
FLOATS = (0.0, -1.0, 0.5, 1e-5, 1e30, float("nan"), float("inf"), -float("inf"), 1e-40)
TEXTS = (
    *(b"", b"x", b"SAME_UPPER", b"SAME_LOWER", b"reverse", b"linear", b"\xff", b"LOGISTIC"),
    b"tanh",
)
OPS = (
    *(*HANDLERS, "If", "Loop", "Scan", "Constant", "ConstantOfShape", "Range", "Tile", "Trilu"),
    *("Mod", "ArgMax", "Einsum", "NoSuchOperator"),
)


class Hostile:
    """Takes a file apart, changes its graph, and writes it again."""

    def __init__(self, rng: random.Random, content: bytes) -> None:
        self.rng = rng
        self.proto = onnx.load_model_from_string(content)
        self.graph = self.proto.graph

    def content(self) -> bytes:
        changes: list[Callable[[], None]] = [
            *([self.rewire] * 2 + [self.attribute] * 3 + [self.values] * 4 + [self.shape] * 3),
            *(self.operator, self.tensor, self.remove, self.repeat, self.version, self.swap),
            *(self.outputs, self.subgraph, self.outside),
        ]
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            self.rng.choice(changes)()
        return bytes(self.proto.SerializeToString())

    def node(self) -> Any:
        return self.rng.choice(self.graph.node) if len(self.graph.node) else self.graph.node.add()

    def name(self) -> str:
        """A name that something in the graph may have."""
        made = [name for node in self.graph.node for name in node.output]
        constants = [t.name for t in self.graph.initializer]
        return self.rng.choice([*made, *constants, "", "X", "x", "?"])

    def rewire(self) -> None:
        node = self.node()
        if len(node.input):
            node.input[self.rng.randrange(len(node.input))] = self.name()
        else:
            node.input.append(self.name())
        if self.rng.random() < 0.2:
            node.input.append(self.name())

    def operator(self) -> None:
        node = self.node()
        node.op_type = self.rng.choice(OPS)
        if self.rng.random() < 0.3:
            del node.attribute[:]
        if self.rng.random() < 0.1:
            node.domain = self.rng.choice(("ai.onnx.ml", "com.microsoft", "ai.onnx", "x"))

    def attribute(self) -> None:
        rng, nodes = self.rng, [n for n in self.graph.node if len(n.attribute)]
        if not nodes:
            return
        node, kind = rng.choice(nodes), rng.randrange(6)
        a = rng.choice(node.attribute)
        if kind == 0 and a.type in (1, 2, 3):
            name, values = {1: ("f", FLOATS), 2: ("i", NUMBERS), 3: ("s", TEXTS)}[a.type]
            setattr(a, name, rng.choice(values))
        elif kind == 1 and len(a.ints):
            a.ints[rng.randrange(len(a.ints))] = rng.choice(NUMBERS)
        elif kind == 2:
            field, values = ("floats", FLOATS) if a.type == 6 else ("ints", NUMBERS)
            del getattr(a, field)[:]
            getattr(a, field).extend(rng.choice(values) for _ in range(rng.randrange(6)))
        elif kind == 3:
            node.attribute.remove(a)
        elif kind == 4:
            a.name = rng.choice(("axis", "perm", "to", "epsilon", "group", "pads", "value", "x"))
        else:
            a.type = rng.randrange(12)

    def tensor(self) -> None:
        """Change the shape or the type of a constant, but not its bytes."""
        rng, found = self.rng, self.graph.initializer
        if not len(found):
            return
        t = rng.choice(found)
        kind = rng.randrange(7)
        if kind == 0:
            t.data_type = rng.choice((0, 1, 2, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 22, 99))
        elif kind == 1 and len(t.dims):
            t.dims[rng.randrange(len(t.dims))] = rng.choice(NUMBERS)
        elif kind == 2:
            t.dims.append(rng.choice((1, 0, 2**62)))
        elif kind == 3:
            dims = list(t.dims)[::-1]
            del t.dims[:]
            t.dims.extend(dims)
        elif kind == 4:
            t.raw_data = t.raw_data[: rng.randrange(1 + len(t.raw_data))]
        elif kind == 5:
            t.float_data.extend([1.0, 2.0])
        else:
            t.dims.extend([1] * rng.choice((5, 70)))

    def values(self) -> None:
        """Change the elements of a constant, such as a shape."""
        rng, found = self.rng, self.graph.initializer
        if not len(found):
            return
        small = [t for t in found if t.data_type == 7] or found
        t = rng.choice(small if rng.random() < 0.7 else found)
        if t.data_location == onnx.TensorProto.EXTERNAL:
            return
        try:
            a = onnx.numpy_helper.to_array(t).copy()
        except (ValueError, TypeError, KeyError):
            return
        if a.size and a.dtype.kind in "if":
            choices = NUMBERS if a.dtype.kind == "i" else FLOATS
            value = rng.choice(choices)
            if a.dtype.kind == "f" or np.iinfo(a.dtype).min <= value <= np.iinfo(a.dtype).max:
                with np.errstate(all="ignore"):
                    a.ravel()[rng.randrange(a.size)] = value
        t.CopyFrom(onnx.numpy_helper.from_array(a, t.name))

    def remove(self) -> None:
        nodes = self.graph.node
        if len(nodes):
            del nodes[self.rng.randrange(len(nodes))]

    def repeat(self) -> None:
        node = self.graph.node.add()
        node.CopyFrom(self.node())
        if self.rng.random() < 0.7:
            for i in range(len(node.output)):
                node.output[i] += "'"
            for i, name in enumerate(node.output):
                if i < len(self.graph.output):
                    self.graph.output[i].name = name

    def swap(self) -> None:
        nodes = list(self.graph.node)
        i, j = (self.rng.randrange(len(nodes) or 1) for _ in range(2))
        if nodes:
            nodes[i], nodes[j] = nodes[j], nodes[i]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def shape(self) -> None:
        """Change a size of the input."""
        rng = self.rng
        tensor = self.graph.input[0].type.tensor_type
        dims = tensor.shape.dim
        kind = rng.randrange(5)
        if kind == 0 and len(dims):
            rng.choice(dims).dim_value = rng.choice(NUMBERS)
        elif kind == 1 and len(dims):
            rng.choice(dims).dim_param = "n"
        elif kind == 2:
            dims.add().dim_value = rng.choice((1, 2, 2**40))
        elif kind == 3 and len(dims):
            del dims[-1]
        else:
            tensor.elem_type = rng.choice((1, 7, 11, 6, 10, 0, 8))

    def version(self) -> None:
        opset = self.rng.choice(self.proto.opset_import)
        opset.version = self.rng.choice((0, 1, 7, 9, 11, 13, 17, 18, 21, 23, 99, -1))

    def outputs(self) -> None:
        self.graph.output[0].name = self.name()
        if self.rng.random() < 0.3:
            self.graph.output.add().name = self.name()

    def subgraph(self) -> None:
        a = self.node().attribute.add()
        a.name, a.type = "body", onnx.AttributeProto.GRAPH
        a.g.CopyFrom(onnx.GraphProto(name="inner"))

    def outside(self) -> None:
        if not len(self.graph.initializer):
            return
        t = self.rng.choice(self.graph.initializer)
        t.data_location = onnx.TensorProto.EXTERNAL
        t.ClearField("raw_data")
        entries: dict[str, tuple[Any, ...]] = {
            "location": ("../secret", "/etc/passwd", "a.onnx", "", "missing", ".", "a\0b"),
            "offset": (0, 4, 2**60, -1, "x"),
            "length": (4, 16, 2**60, -1, ""),
        }
        for key, choices in entries.items():
            t.external_data.add(key=key, value=str(self.rng.choice(choices)))


def noise(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut or insert bytes."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(max(1, len(damaged)))
        kind = rng.randrange(5)
        if kind == 0:
            del damaged[at:]
        elif kind == 1:
            damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 2:
            del damaged[at : at + rng.randrange(1, 9)]
        elif damaged[at:]:
            damaged[at] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def case(number: int) -> bytes:
    """The content of a damaged file."""
    rng = random.Random(f"onnx {number}")
    content = bases()[rng.choice(sorted(bases()))]
    return noise(rng, content) if rng.random() < 0.15 else Hostile(rng, content).content()


# --- what is done with the files ------------------------------------------------------------------


def read(path: Path) -> str:
    """Read a file, and return what came of it."""
    with within(SECONDS):
        try:
            model = from_onnx(path)
        except PhitodeepError as refused:
            error = refused
        else:
            assert model.output_shape is not None
            return "model"
    assert 0 < len(str(error)) <= LONGEST
    return type(error).__name__


def test_damaged_files_are_refused_with_our_errors(tmp_path: Path) -> None:
    path = (SHM if SHM.is_dir() else tmp_path) / f"phitodeep-{os.getpid()}.onnx"
    found: Counter[str] = Counter()
    try:
        for number in range(CASES):
            content = case(number)
            path.write_bytes(content)
            measure = number % 8 == 0
            if measure:
                tracemalloc.start()
            try:
                found[read(path)] += 1
                peak = tracemalloc.get_traced_memory()[1] if measure else 0
                assert peak <= 100 * len(content) + (1 << 26), f"it takes {peak} bytes"
            except BaseException as error:
                error.add_note(f"case({number})")
                raise
            finally:
                tracemalloc.stop()
    finally:
        path.unlink(missing_ok=True)
    assert CASES // 50 < found["model"] < CASES - CASES // 3  # some damage matters to nobody


@pytest.mark.parametrize("name", sorted(bases()))
def test_files_without_damage_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(bases()[name])
    assert read(path) == "model"
