"""Damaged files, ten thousand in a long run: each loads, or is refused with one of our errors.

The files of `BASES` are damaged in two ways. `noise` changes their bytes. `Hostile` takes a file
apart, changes a part (the header, an array, the model's config, the state of training) and puts it
together again, so that the damage is found only by the checks behind the file format. All of it is
a function of one number, so a case that fails can be run again: see `case`.

Long because the base files, the damage and the checks belong to one test.
"""

import contextlib
import functools
import gzip
import json
import os
import random
import struct
import tracemalloc
import warnings
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors

import phitodeep
from phitodeep import Network, Sequential, SequentialBuilder, SoftmaxCrossEntropy
from phitodeep import layers as nn
from phitodeep.core.config import restored
from phitodeep.core.types import each
from phitodeep.data import load_mnist
from phitodeep.errors import LONGEST, ArgumentError, DataError, PhitodeepError
from phitodeep.loss.metrics import TopKAccuracy
from phitodeep.model.callbacks import EarlyStopping
from phitodeep.optimization.optimizers import SGD, Adam, Nadam
from phitodeep.optimization.schedules import (
    CosineDecay,
    ExponentialDecay,
    ReduceOnPlateau,
    StepDecay,
    WarmUp,
)
from phitodeep.text import CharTokenizer
from tests.conftest import noted
from tests.io.test_faults import Snapshot
from tests.rows import LONG, times
from tests.time_limit import within

SECONDS = 5  # of the processor: the most that one file may take
SHM = Path("/dev/shm")  # files in memory, on Linux
CAUSES = (safetensors.SafetensorError, json.JSONDecodeError, OSError, EOFError, zlib.error)

# --- the files before they are damaged -----------------------------------------------------------


def mlp():
    first, second = nn.Dense(3, 4), nn.Dense(4, 2)
    layers = first, nn.ReLU(), nn.Dropout(0.1), second, nn.PReLU(), nn.Softmax()
    return Sequential(*layers, loss_class="categorical_cross_entropy", metrics=["f1"], seed=1)


def cnn():
    builder = SequentialBuilder(4, 4, 1, seed=1).conv2d(2, 3, padding="same").batch_norm().relu()
    loss = SoftmaxCrossEntropy(class_weight=[1.0, 2.0])
    return builder.max_pool2d(2).flatten().dense(2).loss(loss).build()


def gpt():
    table = nn.Embedding(5, 4)
    block = nn.TransformerBlock(2, causal=True, rope=True, norm="rms", activation="swiglu")
    builder = SequentialBuilder(6, seed=1).add(table).positional_embedding(6).add(block)
    model = builder.layer_norm().tied_dense(table).build()
    model.tokenizer = CharTokenizer("abcde")
    return model


def recurrent():
    builder = SequentialBuilder(3, 2, seed=1).bidirectional(nn.LSTM(2))
    builder.time_distributed(nn.Dense(3)).lstm(2, return_sequences=False)
    return builder.dtype("float64").build()


def containers():
    inner = Sequential(nn.Dense(4), nn.ReLU())
    branches = nn.Chain(nn.Dense(2), nn.PReLU(), checkpoint=True), nn.Dense(2)
    builder = SequentialBuilder(4, seed=1).residual(inner).skip_concat(nn.Dense(2))
    model = builder.parallel(*branches, merge="add").build()
    model.layers[0].trainable = False
    return model


def network():
    uses = [(nn.Dense(2), ["a"], ["h"]), (nn.Add(), ["h", "b"], ["y"]), (nn.Tanh(), ["h"], ["z"])]
    weights = {"loss_class": {"y": "mse", "z": "huber"}, "loss_weights": {"z": 0.5}}
    net = Network(["a", "b"], uses, ["y", "z"], seed=1, metrics={"y": ["mae"]}, **weights)
    net.build(((3,), (2,)))
    return net


def trained():
    groups = {"0.*": {"alpha": StepDecay(0.1, 2), "weight_decay": 0.1}}
    rate = WarmUp(ReduceOnPlateau(0.1, patience=1), 2)
    optimizer = Adam(rate, groups=groups, ema=0.9, clip_norm=1.0)
    options = {"loss_class": SoftmaxCrossEntropy(label_smoothing=0.1), "batch_size": 2}
    layers = nn.Dense(3, 4), nn.BatchNorm(), nn.Dropout(0.2), nn.Dense(2)
    metrics = ["accuracy", TopKAccuracy(2)]
    return Sequential(*layers, optimizer=optimizer, metrics=metrics, seed=1, **options)


def nadam():
    return Sequential(nn.Dense(3, 2), optimizer=Nadam(CosineDecay(0.1, 9)), batch_size=2, seed=1)


def momentum():
    optimizer = SGD(momentum=0.9, nesterov=True)
    return Sequential(nn.Dense(3, 2), optimizer=optimizer, batch_size=2, seed=1)


PLAIN = {f.__name__: f for f in (mlp, cnn, gpt, recurrent, containers, network)}
TRAINED = {f.__name__: f for f in (trained, nadam, momentum)}
X, Y = np.arange(12.0).reshape(4, 3) % 5, np.array([0, 1, 1, 0])


def stopping():
    return [EarlyStopping(3, monitor="train_loss")]


def targets(model):
    return Y if model.metrics else np.eye(2)[Y]


def resumed(model, path):
    model.train(X, targets(model), epochs=2, callbacks=stopping(), verbose=0, resume=path)
    return model


@functools.cache
def bases():
    """The content of each base file; checkpoints are of the third of four steps."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        found = {}
        for name, make in (PLAIN | TRAINED).items():
            model = make()
            if name in TRAINED:
                callbacks = [*stopping(), Snapshot(path, step=3)]
                model.train(X, targets(model), epochs=2, callbacks=callbacks, verbose=0)
            else:
                model.save(path, optimizer=name == "cnn")
            found[name] = path.read_bytes()
    return found


# --- damage ---------------------------------------------------------------------------------------

DIGITS, DEEP, SPECIAL = "@digits", "@deep", ("@NaN", "@Infinity", "@-Infinity", "@1e999")
NUMBERS = (
    *(0, -1, 1, 2, 7, 10**12, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.5, -1.5, 1e308, 1e-320),
)
TEXTS = (
    *("", "x", "nan", "float64", "i4,i4", "(1,", "relu", "../../etc/passwd"),
    *("a\0b", "a/b", "$", "\ud800", "9" * 400),
)
KINDS = ("layer", "loss", "optimizer", "initializer", "schedule", "metric", "callback", "object")
NAMES = (
    *("Dense", "ReLU", "Chain", "Sequential", "Layer", "Container", "Trainable", "DenseReLU"),
    *("Lambda", "TiedDense", "Embedding", "LSTM", "Conv2D", "Reshape", "Permute", "Select"),
    *("GELU", "Optimizer", "Adam", "Muon", "LBFGS", "Loss", "Huber", "Constant", "WarmUp"),
    *("Metric", "Accuracy", "Custom", "Initializer", "He", "ModelCheckpoint", "CSVLogger"),
    *("TensorBoard", "LambdaCallback", "SequentialBuilder", "Resumable", "os.system", "__init__"),
)


class Hostile:
    """Takes a file apart, changes it, and puts it together again."""

    def __init__(self, rng, content):
        self.rng = rng
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        data = content[8 + size :]
        self.texts = header.pop("__metadata__", {})
        self.arrays = {
            name: [e["dtype"], e["shape"], data[slice(*e["data_offsets"])]]
            for name, e in header.items()
        }

    def content(self):
        """Change something, and return the file."""
        rng = self.rng
        places = [self.header_text, self.array, *[self.json_text] * 6]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice(places)()
        return self.packed(damaged_header=rng.random() < 0.1)

    def packed(self, damaged_header=False):
        """Return the file with the texts and arrays as they are now."""
        header = {"__metadata__": self.texts} if self.texts else {}
        end = 0
        for name, (dtype, shape, data) in self.arrays.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
        if damaged_header:
            header = self.mutated(header)
        text = dumped(header).encode("utf-8", "surrogatepass")
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + b"".join(a[2] for a in self.arrays.values())

    def json_text(self):
        """Change the JSON of the model's config or of the state."""
        keys = [key for key in ("model", "state", "state", "tokenizer") if key in self.texts]
        if keys:
            key = self.rng.choice(keys)
            try:
                value = json.loads(self.texts[key])
            except (ValueError, RecursionError):
                return
            self.texts[key] = dumped(self.mutated(value))

    def header_text(self):
        key = self.rng.choice([*self.texts, "format", "version", "run", "tokenizer"])
        value = self.rng.choice(("", "0", "2", "{}", "null", "[1]", "9" * 5000, "phitodeep", "\0"))
        self.texts[key] = value
        if self.rng.random() < 0.3:
            del self.texts[key]

    def array(self):
        """Change an array; the file stays well-formed."""
        rng = self.rng
        if not self.arrays:
            return
        name = rng.choice(list(self.arrays))
        dtype, shape, data = self.arrays[name]
        kind = rng.randrange(8)
        if kind == 0:
            del self.arrays[name]
        elif kind == 1:
            self.arrays[rng.choice((*self.arrays, "state/x", "9.W", "", "__metadata__ ", "$"))] = [
                dtype, shape, data,
            ]  # fmt: skip
        elif kind == 2:
            self.arrays[name][1] = rng.choice(([*shape[::-1]], [1, *shape], [*shape, *[1] * 70]))
        elif kind == 3:
            self.arrays[name][0] = rng.choice(("I32", "U32", "F32", "BF16", "F64", "I64"))
        elif kind == 4:
            self.arrays[name][1:] = [rng.choice(([0], [0, 2**62], [2**62, 0, 2**62])), b""]
        elif kind == 5:
            self.arrays[name][2] = bytes([rng.choice((0, 255, 127))]) * len(data)
        elif kind == 6:
            self.arrays[name][1:] = [[2**31, 2**31], data]
        else:
            self.arrays[name] = ["F32", [3], b"\0" * 12]

    def mutated(self, value):
        """Change a random part of a JSON value."""
        rng = self.rng
        spots = list(walked(value))
        if not spots:
            return self.value()
        parent, key = rng.choice(spots)
        kind = rng.randrange(9)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[str(rng.choice((*TEXTS, *KINDS, "config", "id", key + "x")))] = parent[key]
        elif kind == 2:
            other, place = rng.choice(spots)
            parent[key], other[place] = other[place], parent[key]
            if too_deep(value):  # a part swapped with one inside it
                return self.value()
        elif kind == 3 and isinstance(parent, list):
            parent[:] = parent * rng.choice((2, 3, 50))
        elif kind == 4 and isinstance(parent[key], str):
            parent[key] = rng.choice(NAMES)
        else:
            parent[key] = self.value()
        return value

    def value(self, depth=0):
        def inner():
            return self.value(depth + 1)

        def entry():
            config = {pick(("layers", "rate", "units", "path")): inner()}
            return {pick(KINDS): pick(NAMES), "config": pick(({}, config))}

        pick = self.rng.choice
        plain = [
            *[lambda: pick(NUMBERS)] * 2,
            lambda: pick((*TEXTS, *SPECIAL, *[DIGITS] * 2, DEEP)),
            lambda: pick((None, True, False, [], {}, [[]], {"": {}})),
        ]
        nested = [
            lambda: [inner() for _ in range(self.rng.randrange(4))],
            lambda: {"ref": pick((1, 2, True, inner()))},
            lambda: {"array": inner(), "dtype": pick(("float32", *TEXTS))},
            lambda: {pick(("function", "enum", "float", "tuple")): inner()},
            lambda: {"pairs": [[inner(), inner()]]},
            lambda: {"array": [[1.0, 2.0], [3.0, 4.0]], "dtype": "float64"},
            lambda: {"$array": pick((*self.arrays, "x"))},
            lambda: {"$float": inner()},
            entry,
            lambda: entry() | {"id": inner()},
        ]
        return pick(plain + nested * (depth < 3))()


def dumped(value):
    """JSON with numbers and depths that Python would not write."""
    text = json.dumps(value)
    if "@" not in text:
        return text
    escape = "\\" if f'\\"{DEEP}' in text or f'\\"{DIGITS}' in text else ""
    for token in SPECIAL:
        text = text.replace(f'"{token}"', token[1:])
    text = text.replace(f'"{DIGITS}"', "9" * 5000)
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000) if not escape else text


def walked(value):
    """Every (dict or list, key) inside a JSON value."""
    stack = [value]
    while stack:
        parent = stack.pop()
        if isinstance(parent, dict | list):
            for key in parent if isinstance(parent, dict) else range(len(parent)):
                yield parent, key
                stack.append(parent[key])


def too_deep(value):
    try:
        json.dumps(value)
    except (ValueError, RecursionError):  # it contains itself
        return True
    return False


def noise(rng, content):
    """Flip, cut or insert bytes, mostly in the first part, where the header is."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        end = rng.choice((8, 64, len(damaged), len(damaged)))
        at = rng.randrange(max(1, min(end, len(damaged))))
        kind = rng.randrange(4)
        if kind == 0:
            del damaged[at:]
        elif kind == 1:
            damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 2:
            del damaged[at : at + rng.randrange(1, 9)]
        elif damaged[at:]:
            damaged[at] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def case(name, number):
    """The content of a damaged file."""
    rng = random.Random(f"{name} {number}")
    content = bases()[name]
    return noise(rng, content) if rng.random() < 0.25 else Hostile(rng, content).content()


# --- what is done with the files ------------------------------------------------------------------


@contextmanager
def limited():
    """Refuse whatever computes too long; ignore warnings."""
    with within(SECONDS), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def check(error):
    """An error is short, and it comes from nothing that the library did not expect."""
    assert len(str(error)) <= LONGEST
    for cause in (error.__cause__, error.__context__):
        if cause is None or isinstance(cause, (PhitodeepError, RecursionError, *CAUSES)):
            continue
        digits = type(cause) is ValueError and "Exceeds the limit" in str(cause)
        unhashable = type(cause) is TypeError and "unhashable type" in str(cause)
        seed = "seed" in str(error) and type(cause) in (TypeError, ValueError)
        dtype = "dtype" in str(error) and type(cause) is TypeError
        text = "UTF-8" in str(error) and type(cause) is UnicodeDecodeError
        # the tokenizers library raises Exception itself, or panics
        tokenizer = type(cause) is Exception or type(cause).__name__ == "PanicException"
        known = digits or unhashable or seed or dtype or text or tokenizer
        assert known, f"{error!r} comes from {cause!r}"


def refused(use):
    """Use a file; return whether it was refused."""
    try:
        with limited():
            use()
    except PhitodeepError as error:
        check(error)
        return True
    return False


def predicted(model):
    """Predict on one sample, if the sizes of the model are those of a small one."""
    shapes = model._ins()
    sizes = [np.prod(out, dtype=float) for _, layer in model.walk() for out in layer._outs()]
    if not shapes or max([*(np.prod(s, dtype=float) for s in shapes), *sizes]) > 1e5:
        return
    kinds = zip(shapes, each(model.takes_tokens), strict=True)
    X = tuple([np.ones((1, *shape), int if tokens else float) for shape, tokens in kinds])
    with contextlib.suppress(MemoryError):  # a layer such as RandomCrop may pad an image very far
        model.predict(X if len(X) > 1 else X[0])


def loaded(path):
    model = phitodeep.load(path)
    assert not model.callbacks
    predicted(model)
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The path of a file that is written again and again, in memory if possible."""
    folder = SHM if os.access(SHM, os.W_OK) else tmp_path_factory.mktemp("fuzz")
    path = folder / f"phitodeep-{os.getpid()}.safetensors"
    yield path
    path.unlink(missing_ok=True)


def refused_and_used(cases):
    """Use damaged files; some are used and some are refused, or the damage is no test."""
    outcomes = set()
    for name, use in cases:
        with noted(name):
            outcomes.add(refused(use))
    assert outcomes == {True, False}


def write(place, content):
    place.unlink(missing_ok=True)  # a file that is mapped into memory must not change
    place.write_bytes(content)


def run(name, place, use, start, count):
    def damaged(number):
        write(place, case(name, number))
        return lambda: use(place)

    numbers = range(start, start + count)
    refused_and_used(((name, number), damaged(number)) for number in numbers)


# --- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN | TRAINED)
def test_damaged_models_load_or_are_refused(name, place):
    run(name, place, loaded, 0, times(40))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_damaged_weights_are_read_or_refused(name, strict, place):
    model = PLAIN[name]()
    before = model.get_weights()

    def use(path):
        model.load_weights(path, strict=strict)
        model.set_weights(before)

    run(name, place, use, 10_000, times(20))
    after = model.get_weights()
    assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", TRAINED)
def test_damaged_checkpoints_continue_or_are_refused(name, place):
    model = TRAINED[name]()
    weights = model.get_weights()

    def use(path):
        copy = model.copy()
        try:
            resumed(copy, path)
        except PhitodeepError:
            if copy.epoch == 0:  # refused before the first step
                now = copy.get_weights()
                assert all(np.array_equal(weights[key], now[key]) for key in weights)
            raise

    run(name, place, use, 20_000, times(25))


# --- IDX files ------------------------------------------------------------------------------------

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX = (*IDX, *(name.replace("train", "t10k") for name in IDX))


def idx_files():
    """MNIST with two images for training and one for tests."""
    files = []
    for n in (2, 1):
        for shape in ((n, 28, 28), (n,)):
            header = struct.pack(f">{1 + len(shape)}I", 2048 + len(shape), *shape)
            files.append(header + bytes(int(np.prod(shape))))
    return files


def damaged_idx(rng, content, zipped):
    """Change the sizes that the header declares, or any bytes, before or after zipping."""
    ranks = (len(content) > 100) * 2 + 1
    if rng.random() < 0.4:
        sizes = [rng.choice((0, 1, 2, 28, 2**31, 2**32 - 1)) for _ in range(ranks)]
        content = content[:4] + struct.pack(f">{ranks}I", *sizes) + content[4 + 4 * ranks :]
    inside = rng.random() < 0.5
    content = noise(rng, content) if inside else content
    if zipped:
        content = gzip.compress(content, mtime=0)
    return content if inside and rng.random() < 0.5 else noise(rng, content)


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzipped"])
def test_damaged_idx_files_load_or_are_refused(zipped, tmp_path):
    rng, files = random.Random(f"idx {zipped}"), idx_files()
    for name, content in zip(IDX, files, strict=True):
        (tmp_path / name).write_bytes(content)

    def load(i):
        def use():
            (tmp_path / IDX[i]).write_bytes(damaged_idx(rng, files[i], zipped))
            try:
                load_mnist(folder=tmp_path)
            finally:
                (tmp_path / IDX[i]).write_bytes(files[i])

        return use

    refused_and_used((number, load(rng.randrange(4))) for number in range(2000 if LONG else 60))


# --- memory and time ------------------------------------------------------------------------------


def user(name, place):
    """What a user does with the file: resumes a training, or loads it."""
    return partial(partial(resumed, TRAINED[name]()) if name in TRAINED else loaded, place)


def peak(use):
    """The most memory that Python and NumPy hold at once, even if they never touch it."""
    tracemalloc.start()
    try:
        refused(use)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", PLAIN | TRAINED)
def test_no_damaged_file_takes_much_memory(name, place):
    for number in range(30_000, 30_000 + times(3)):
        write(place, content := case(name, number))
        taken = peak(user(name, place))
        assert taken < 20 * len(content) + 20e6, f"case({name!r}, {number})"


def nested(levels, value, around):
    return functools.reduce(lambda inside, _: around(inside), range(levels), value)


COUNT = 10_000 if LONG else 4_000
LARGE = {
    "text": lambda: "x" * 200_000,
    "numbers": lambda: list(range(COUNT)),
    "dict": lambda: {f"k{i}": i for i in range(5_000)},
    "texts": lambda: [*["a"] * 2000, "y" * 200_000],
    "lists": lambda: [[]] * COUNT,
    "layers": lambda: [{"layer": "ReLU"}] * (11_000 if LONG else 2_000),
    "layers in layers": lambda: nested(
        95 if LONG else 45,
        {"layer": "ReLU"},
        lambda inside: {"layer": "Chain", "config": {"layers": [inside]}},
    ),
    "deep": lambda: nested(390, [], lambda inside: [inside]),
    "pairs": lambda: {"pairs": [[i, i] for i in range(5_000)]},
    "tuple": lambda: {"tuple": [1] * COUNT},
    "array": lambda: {"array": [[1]] * COUNT, "dtype": "float64"},
    "texts in an array": lambda: {"array": [*["a"] * 2000, "y" * 200_000], "dtype": "float64"},
}


PLACES = [("mlp", "model", what) for what in LARGE]
PLACES += [("nadam", "state", what) for what in (LARGE if LONG else ("text", "numbers", "deep"))]


@pytest.mark.parametrize(("name", "key", "what"), PLACES)
def test_no_large_value_takes_much_memory_or_time(name, key, what, place):
    """A large value at some of the places."""
    whole = Hostile(random.Random(0), bases()[name])
    whole_text = whole.texts[key]
    places = range(len(list(walked(json.loads(whole_text)))))
    for i in places[:: len(places) // 2] if LONG else places[len(places) // 2 :][:1]:
        value = json.loads(whole_text)
        parent, last = list(walked(value))[i]
        parent[last] = LARGE[what]()
        whole.texts[key] = json.dumps(value)
        write(place, content := whole.packed())
        taken = peak(user(name, place))
        assert taken < 50 * len(content) + 20e6, f"at {last!r}"


# --- what fuzzing found ------------------------------------------------------------------------


def test_an_array_is_read_once(place):
    """Otherwise a small file could ask for one array a million times."""
    for name, change in (
        ("cnn", lambda state: state.update(seed=[{"$array": "0.W"}])),
        ("nadam", lambda state: state.update(settings=[state["model"]] * 2)),
    ):
        whole = Hostile(random.Random(0), bases()[name])
        state = json.loads(whole.texts["state"])
        change(state)
        whole.texts["state"] = json.dumps(state)
        write(place, whole.packed())
        with pytest.raises(DataError, match="its state needs the array"):
            user(name, place)()


def test_configs_are_small_and_name_public_classes():
    with pytest.raises(ArgumentError, match="at most 10000 objects"):
        restored({"layers": [{"layer": "ReLU"}] * 10_001})
    for name in ("Layer", "Container", "Optimizer", "Loss", "DenseReLU"):
        kind = {"Optimizer": "optimizer", "Loss": "loss"}.get(name, "layer")
        with pytest.raises(ArgumentError, match=f"unknown {kind} '{name}'"):
            restored({"x": {kind: name}})
    with pytest.raises(PhitodeepError) as caught:
        restored({"x": {"layer": "x" * 1_000_000}})
    assert len(str(caught.value)) <= LONGEST


def test_sizes_and_rates_without_limit():
    assert nn.MaxPool2D(10**6).build((10**6, 10**6, 1)) == (1, 1, 1)  # its taps are not listed
    for decay in (StepDecay(0.1, 1, factor=2), ExponentialDecay(0.1, 1, factor=2)):
        assert decay(10**18) == np.inf


def test_a_small_file_that_unzips_into_a_large_one(tmp_path):
    zipped = gzip.compress(bytes(10_000_000))
    for name in IDX:
        (tmp_path / f"{name}.gz").write_bytes(zipped)
    with pytest.raises(DataError, match="when they are unzipped"):
        load_mnist(folder=tmp_path)
