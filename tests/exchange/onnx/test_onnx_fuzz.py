"""Damaged ONNX files: each one becomes a model, or is refused with our own error.

The files of `bases` are damaged in two ways. `noise` changes their bytes. `Hostile` takes a file
apart, changes fields of its messages (operators, attributes, names, shapes, constants) and writes
it again. All of it is a function of one number, so a case that fails can be run again: see `case`.
"""

import functools
import os
import random
import struct
import tempfile
import tracemalloc
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.errors import LONGEST, PhitodeepError
from phitodeep.exchange.onnx.read.interpreting import HANDLERS
from phitodeep.io import from_onnx
from tests.conftest import model_for, noted
from tests.exchange.onnx.graphs import floats, proto
from tests.rows import times
from tests.time_limit import within

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:onnx")  # of old versions
CASES = times(60)
SECONDS = 5  # of the processor: the most that one file may take
SHM = Path("/dev/shm")  # files in memory, on Linux

# --- the files before they are damaged -----------------------------------------------------------


def models():
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


def sklearn_like():
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


def pytorch_like():
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
def bases():
    """The content of each base file, and of two that are written by hand."""
    found = {f.__name__: bytes(f().SerializeToString()) for f in (sklearn_like, pytorch_like)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.onnx"
        for opset in (17, 20):
            for name, (layers, shape) in models().items():
                dtype = "float64" if name == "recurrent" else "float32"
                model = model_for(shape, *layers, seed=1, dtype=dtype)
                model.export_onnx(path, opset=opset)
                found[f"{name}{opset}"] = path.read_bytes()
    return found


# --- damage ---------------------------------------------------------------------------------------

NUMBERS = (*(0, -1, 1, 2, 3, 7, 64, 10**6, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)),)
FLOATS = (0.0, -1.0, 0.5, 1e-5, 1e30, float("nan"), float("inf"), -float("inf"), 1e-40)
TEXTS = (b"", b"x", b"SAME_UPPER", b"reverse", b"linear", b"\xff", b"LOGISTIC", b"tanh")
OPS = (*HANDLERS, "If", "Loop", "ConstantOfShape", "Range", "Tile", "Mod", "ArgMax", "NoSuchOne")
ATTRIBUTES = ("axis", "perm", "to", "epsilon", "group", "pads", "value", "location")


class Hostile:
    """Takes a file apart, changes any of its fields, and writes it again."""

    def __init__(self, rng, content):
        self.rng, self.proto = rng, onnx.load_model_from_string(content)
        graph = self.proto.graph
        self.names = [name for node in graph.node for name in node.output]
        self.names += [*(t.name for t in graph.initializer), "", "x", "?", "ai.onnx.ml"]

    def content(self):
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            self.change()
        return bytes(self.proto.SerializeToString())

    def change(self):
        """Change a field of a random message of a random kind, mostly one that is set."""
        rng, kinds = self.rng, defaultdict[str, list[Any]](list)
        for message in parts(self.proto.graph):
            kinds[message.DESCRIPTOR.name].append(message)
        kinds["version"] = [*self.proto.opset_import]
        message = rng.choice(kinds[rng.choice(sorted(kinds))])
        fields = [f for f, _ in message.ListFields() if f.name not in ("doc_string", "graph")]
        if not fields or rng.random() < 0.15:
            fields = message.DESCRIPTOR.fields
        field = rng.choice(fields)
        inside = getattr(message, field.name)
        if hasattr(inside, "extend"):
            self.change_list(inside, field)
        elif rng.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type:
            inside.SetInParent()
        else:
            setattr(message, field.name, self.value(field, inside))

    def change_list(self, values, field):
        """Remove, repeat, move, add or replace an element."""
        rng, n = self.rng, len(values)
        i, kind = rng.randrange(n or 1), rng.randrange(5)
        if kind == 0 and n:
            del values[i]
        elif kind == 1 and n:
            values.append(values.pop(i))
        elif kind == 2 and n:
            values.append(values[i])
            if field.name == "node":  # with an output of its own
                values[-1].output[0] += "'"
        elif field.message_type:
            values.add()
        elif kind == 3 or not n:
            values.extend(self.value(field, 0) for _ in range(rng.choice((1, 2, 40))))
        else:
            values[i] = self.value(field, values[i])

    def value(self, field, now):
        rng = self.rng
        if field.enum_type:
            return rng.choice([*field.enum_type.values_by_number])
        if field.name == "raw_data" and now and rng.random() < 0.8:  # one element, or its end
            kind = rng.choice(("<q", "<f"))
            number = struct.pack(kind, rng.choice(NUMBERS if kind == "<q" else FLOATS))
            at = rng.randrange(len(now)) // len(number) * len(number)
            return now[:at] + number + now[at + len(number) :]
        if field.name in ("data_type", "elem_type", "version"):
            return rng.choice((*range(24), 99, -1))
        if field.cpp_type == field.CPPTYPE_STRING:
            choices = {"op_type": OPS, "name": (*ATTRIBUTES, *self.names)}.get(field.name)
            return rng.choice(TEXTS if field.type == field.TYPE_BYTES else choices or self.names)
        if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            return rng.choice(FLOATS)
        small = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT64)
        return rng.choice([n for n in NUMBERS if 0 <= n < 2**31 or not small])


def parts(message):
    """Yield a message and all that are inside."""
    yield message
    for field, value in message.ListFields():
        if field.message_type:
            for inside in value if hasattr(value, "extend") else [value]:
                yield from parts(inside)


def noise(rng, content):
    """Cut, remove, insert or flip bytes."""
    at, n = rng.randrange(len(content)), rng.randrange(1, 9)
    start, rest = content[:at], content[at:]
    flipped = bytes([rest[0] ^ 1 << rng.randrange(8)]) + rest[1:]
    return start + rng.choice((b"", rest[n:], rng.randbytes(n) + rest, flipped, flipped))


def case(number):
    """The content of a damaged file."""
    rng = random.Random(f"onnx {number}")
    content = bases()[rng.choice(sorted(bases()))]
    return noise(rng, content) if rng.random() < 0.15 else Hostile(rng, content).content()


# --- what is done with the files ------------------------------------------------------------------


def read(path):
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


def test_damaged_files_are_refused_with_our_errors(tmp_path):
    path = (SHM if SHM.is_dir() else tmp_path) / f"phitodeep-{os.getpid()}.onnx"
    found = Counter()
    try:
        for number in range(CASES):
            content = case(number)
            path.write_bytes(content)
            with noted(number):
                if number % 8 == 0:
                    tracemalloc.start()
                found[read(path)] += 1
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak <= 100 * len(content) + (1 << 26), f"it takes {peak} bytes"
    finally:
        tracemalloc.stop()
        path.unlink(missing_ok=True)
    assert CASES // 50 < found["model"] < CASES - CASES // 3  # some damage matters to nobody


def test_files_without_damage_are_read(tmp_path):
    path = tmp_path / "a.onnx"
    for name, content in bases().items():
        path.write_bytes(content)
        assert read(path) == "model", name
