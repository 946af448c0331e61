"""Exported files run where only NumPy can be imported, and predict what the model predicts."""

from __future__ import annotations

import ast
import functools
import io
import json
import linecache
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, NotBuiltError
from phitodeep.exchange import correspondence
from phitodeep.exchange.correspondence import form_of
from phitodeep.exchange.numpy import plain
from phitodeep.exchange.numpy.forms import exports
from phitodeep.exchange.numpy.network import Form, Network, Weight, arguments
from phitodeep.exchange.numpy.sources import literal
from phitodeep.functional.rotary import DynamicRope
from phitodeep.layers.containers import Container
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential
from phitodeep.model import architectures as models
from phitodeep.testing.examples import EXAMPLES, TOKENS
from tests.rows import LONG, few

pytestmark = pytest.mark.xdist_group("export")  # the models are exported once

PRECISION = {"float64": 1e-12, "float32": 3e-6}  # compared with the largest output
NOT_EXPORTED = {
    "Lambda": "its functions may use anything",
    "Layer": "the base class",
    "Param": "a descriptor",
    "State": "a descriptor",
}
ELEMENTWISE = (
    "CELU ELU GELU HardSigmoid HardSwish HardTanh LeakyReLU Mish PReLU ReLU SELU SiLU Sigmoid "
    "Softplus Softsign Tanh"
)
OTHERS: list[tuple[Callable[[], L.Layer], Shape]] = [
    *((getattr(L, name), (3, 4)) for name in ELEMENTWISE.split()),
    (lambda: L.GELU("tanh"), (3, 4)),
    (lambda: L.ELU(0.3), (3, 4)),
    (lambda: L.CELU(0.3), (3, 4)),
    (lambda: L.LeakyReLU(0.3), (3, 4)),
    (lambda: L.Chain(L.Dense(4), L.PReLU()), (3, 4)),
    (lambda: L.Dense(2), (3, 4)),
    (lambda: L.Dense(2, bias=False), (3, 2, 4)),
    (lambda: L.Softmax(), (3, 4)),
    (lambda: L.Softmax(axis=1), (3, 4, 2)),
    (lambda: L.LogSoftmax(), (3, 4)),
    (lambda: L.LogSoftmax(axis=1), (3, 4, 2)),
    (lambda: L.LayerNorm(), (3, 4)),
    (lambda: L.LayerNorm(0.1), (3, 2, 4)),
    (lambda: L.BatchNorm(eps=0.1), (3, 4)),
    (lambda: L.Flatten(), (3, 4, 2)),
    (lambda: L.Reshape(2, -1), (3, 4, 3)),
    (lambda: L.Dropout(0.5), (3, 4)),
    (lambda: L.GaussianNoise(0.5), (3, 4)),
    (lambda: L.Residual(L.Dropout(0.5)), (3, 4)),
    (lambda: L.Parallel(L.Dense(2), L.Chain(L.Dropout(0.1)), L.ReLU()), (3, 4)),
    (lambda: L.Parallel(L.Dense(2), L.Tanh(), merge="add"), (3, 2)),
    (lambda: L.Parallel(L.Dense(2), L.Tanh(), L.Dense(2), merge="multiply"), (3, 2)),
    (
        lambda: L.Residual(L.Parallel(L.Residual(L.Dense(4)), L.Residual(L.Tanh()), merge="add")),
        (3, 4),
    ),
    (
        lambda: L.Parallel(L.Parallel(L.Dense(2), L.Dense(1)), L.Parallel(L.Dense(1), L.ReLU())),
        (3, 4),
    ),
    (
        lambda: L.TimeDistributed(L.Residual(L.TimeDistributed(L.Residual(L.Dense(2))))),
        (2, 3, 2, 2),
    ),
    (lambda: Sequential(Sequential(L.Dense(3), L.ReLU()), L.Dense(2)), (3, 4)),
    (lambda: L.Chain(*(L.Dense(4) for _ in range(6))), (3, 4)),
    (lambda: L.Chain(L.ReLU(), *(L.Residual(*blocks()) for _ in range(3))), (3, 4)),
    (
        lambda: L.Parallel(L.Select([0, 1]), L.Chain(L.Select([2], tokens=True), *embedded())),
        (3, 3),
    ),
    (lambda: L.MultiHeadAttention(2, causal=True, bias=False, kv_heads=1, rope=True), (2, 5, 8)),
    (lambda: L.Chain(L.AvgPool2D(3, 1, "same"), L.AvgPool2D((2, 3), padding=1)), (2, 4, 3, 2)),
]


def blocks() -> list[L.Layer]:
    return [
        L.LayerNorm(),
        L.Residual(L.Dense(4)),
        L.Residual(L.Dense(4)),
        L.Residual(L.Dense(4)),
        L.Tanh(),
    ]


def embedded() -> list[L.Layer]:
    return [L.Embedding(4, 3), L.Flatten()]


class Scale(L.Layer):
    """A layer as an author writes it: two parameters, a state and settings."""

    s = L.Param()
    shift = L.State()

    def __init__(self, power: int = 2, slopes: tuple[float, ...] = (0.5, float("inf"))) -> None:
        super().__init__()
        self.power, self.slopes = power, slopes

    def create(self, shape: Shape) -> Shape:
        self.s, self.shift = np.ones(shape[-1]), np.zeros(shape[-1])
        return shape

    def forward(self, X: Array) -> Array:
        return scale(X, self.s, self.shift, self.power, self.slopes)


LIMITS = {"low": -12.0, "it's": -float("inf")}
FAR = (1.5, 'a "quoted" text')


def first(numbers: tuple[Any, ...]) -> Any:
    """Called where `scale` is defined, so it must be before it."""
    return numbers[0]


def clipped(X: Array) -> Array:
    return np.clip(X, max(LIMITS.values()), 12)


@exports(Scale)
def scale(
    X: Array,
    s: Array,
    shift: Array,
    power: int,
    slopes: tuple[float, ...],
    missing: Any = None,
    top: float = first(FAR),
) -> Array:
    """Some function."""
    Y = np.minimum(clipped(s * X) ** power, slopes[1]) * slopes[0] * top
    return Y + shift if missing is None else Y


class Deeper(L.Dense):
    """It changes nothing that matters."""

    def create(self, shape: Shape) -> Shape:
        return super().create(shape)

    def backward(self, dY: Array) -> Array | None:
        return super().backward(dY)


def build(layer: L.Layer, shape: Shape, dtype: str, tokens: int = 0) -> tuple[Sequential, Array]:
    """A model of the layer, whose weights and statistics are random, and its input."""
    model = Sequential(layer, dtype=dtype, seed=1)
    return with_random_weights(model, shape), inputs(model, (max(shape[0], 3), *shape[1:]), tokens)


def with_random_weights(model: Sequential, shape: Shape) -> Sequential:
    model.build(shape[1:])
    rng = np.random.default_rng(3)
    model.set_weights(
        {
            path: rng.uniform(0.5, 2, a.shape) if "var" in path else rng.standard_normal(a.shape)
            for path, a in model.get_weights().items()
        }
    )
    return model


def inputs(model: L.Layer, shape: Shape, tokens: int = 0) -> Array:
    rng = np.random.default_rng(4)
    if tokens:
        return rng.integers(0, tokens, shape)
    X = rng.standard_normal(shape)
    if any(isinstance(part, L.Select) and part.tokens for _, part in model.walk()):
        X[..., 2] = rng.integers(0, 4, shape[:-1])
    return X.astype(model.dtype)


Case = tuple[Sequential, Array]


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Every layer of the contract in a dtype or both, and whole models, by the name of a module."""
    for dtype in PRECISION:
        single = [*((m, s, 0) for m, s in [*EXAMPLES, *OTHERS]), *TOKENS]
        for n, (make, shape, tokens) in enumerate(single):
            wanted = LONG or n % 2 == (dtype == "float64")  # rows in turn
            if wanted and not any(
                isinstance(part, L.Lambda) or getattr(part, "rotation", "") == "by length"
                for _, part in make().walk()
            ):
                yield (
                    f"layer_{n}_{dtype}",
                    lambda m=make, s=shape, d=dtype, t=tokens: build(m(), s, d, t),
                )
        for name, (whole, shape, tokens) in WHOLE.items():
            yield f"{name}_{dtype}", lambda w=whole, s=shape, d=dtype, t=tokens: built(w, s, d, t)


def built(make: Callable[[], Any], shape: Shape, dtype: str, tokens: int) -> Case:
    model = with_random_weights(make().dtype(dtype).seed(0).build(), shape)
    return model, inputs(model, shape, tokens)


WHOLE: dict[str, tuple[Callable[[], Any], Shape, int]] = {
    "mlp": (lambda: models.mlp(5, 8, 8, 3, dropout=0.2).softmax(), (4, 5), 0),
    "lenet": (lambda: models.lenet(12, 12, 1).batch_norm(), (3, 12, 12, 1), 0),
    "resnet": (lambda: models.resnet_small(8, 8, 3, blocks=3), (2, 8, 8, 3), 0),
    "lstm": (lambda: models.char_lstm(11, dim=4, units=5, layers=2), (3, 6), 11),
    "gpt": (lambda: models.gpt(13, 8, layers=3, heads=2, dim=8, dropout=0.1), (3, 8), 13),
    "untied": (lambda: models.gpt(13, 8, layers=1, heads=2, dim=8, tied=False), (3, 8), 13),
    "vae": (lambda: models.vae(6, 5, latent=2), (3, 6), 0),
    "own": (
        lambda: models.mlp(5, 4).add(Scale(slopes=(0.25, 7.0))).add(Deeper(3)).add(Scale()),
        (3, 5),
        0,
    ),
}
CASES = {name: functools.cache(make) for name, make in cases()}

CLEAN = '''
"""Runs every exported file of a folder where nothing but NumPy can be imported."""

import importlib
import json
import linecache
import sys
import warnings

folder, packages = sys.argv[1:]
own = json.loads(open(f"{folder}/names.json").read())
sys.path += [folder, packages]


class OnlyNumPy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {"numpy", *own} | sys.stdlib_module_names:
            raise ImportError(f"{name} is not NumPy")


sys.meta_path.insert(0, OnlyNumPy)
for absent in ("phitodeep", "scipy", "threadpoolctl", "tests"):
    try:
        importlib.import_module(absent)
    except ImportError:
        continue
    raise SystemExit(f"{absent} can be imported")

import numpy as np

warnings.simplefilter("error")
X, Y = np.load(f"{folder}/X.npz"), {}
for name in own:
    module = importlib.import_module(name)
    before = X[name]
    Y[name] = module.predict(before)
    Y[f"{name} one by one"] = module.predict(before.tolist(), batch_size=1)
    assert (before == X[name]).all(), f"{name} writes into X"
assert not [m for m in sys.modules if m.partition(".")[0] == "phitodeep"]
np.savez(f"{folder}/Y.npz", **Y)
'''


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Array]]:
    """The folder of all exported files, and what they predict in a process of their own."""
    folder = tmp_path_factory.mktemp("exported")
    X = {}
    for name, make in CASES.items():
        model, X[name] = make()
        model.export_numpy(folder / f"{name}.py")
    (folder / "names.json").write_text(json.dumps(list(X)))
    (folder / "clean.py").write_text(CLEAN)
    np.savez(folder / "X.npz", **X)
    run_clean(folder, "clean.py", str(folder), str(Path(np.__file__).parent.parent))
    with np.load(folder / "Y.npz") as file:
        return folder, dict(file)


def run_clean(folder: Path, *arguments: str) -> str:
    """Run a script of the folder without site packages or the environment's settings."""
    command = [sys.executable, "-I", "-S", str(folder / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CASES)
def test_a_file_predicts_what_its_model_predicts(
    name: str, exported: tuple[Path, dict[str, Array]]
) -> None:
    model, X = CASES[name]()
    Y, dtype = model.predict(X), str(model.dtype)
    for found in (exported[1][name], exported[1][f"{name} one by one"]):
        assert found.dtype == dtype
        assert found.shape == Y.shape
        atol = PRECISION[dtype] * max(1, np.abs(Y).max())
        np.testing.assert_allclose(found, Y, rtol=0, atol=atol)


@pytest.mark.parametrize("name", [*ELEMENTWISE.split(), "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dtype", PRECISION)
def test_large_values_do_not_overflow(name: str, dtype: str) -> None:
    model = Sequential(getattr(L, name)(), dtype=dtype, seed=0)
    model.build((6,))
    X = np.array([[-900, -90, 0, 1, 90, 900], [900, 900, -900, 900, 0, 0]], dtype)
    (layer,) = model.layers
    form = form_of(layer, "numpy")
    given = {} if form is np.tanh else dict(settings_of(form, layer))
    found, Y = form(X, **given), model.predict(X)
    np.testing.assert_allclose(found, Y, rtol=PRECISION[dtype], atol=1e-37)


def settings_of(form: Form, layer: L.Layer) -> Iterator[tuple[str, Any]]:
    for name, _, value in arguments(form, layer):
        yield name, value[0].params[value[1]] if isinstance(value, tuple) else eval(value)


def test_every_public_layer_is_exported_and_tested_or_listed_with_a_reason() -> None:
    public = {name: getattr(L, name) for name in L.__all__}
    numpy_rows = {kind for kind, row in correspondence.TABLE.items() if row.numpy is not None}
    known = {kind.__name__ for kind in public.values() if set(kind.__mro__) & numpy_rows}
    assert known == {kind.__name__ for kind in public.values()} - NOT_EXPORTED.keys()
    tested = {type(part).__name__ for make in CASES.values() for _, part in make()[0].walk()}
    assert known - tested == set()


def test_every_plain_function_is_exported(exported: tuple[Path, dict[str, Array]]) -> None:
    """So each of them runs in the tests above."""
    own = {n for n, f in vars(plain).items() if getattr(f, "__module__", "") == plain.__name__}
    text = "\n".join(path.read_text() for path in exported[0].glob("*.py"))
    assert own == {n for n in own if f"\ndef {n}(" in text}
    assert len(own) > 50


def test_a_file_imports_numpy_alone(exported: tuple[Path, dict[str, Array]]) -> None:
    found = set()
    for name in CASES:
        text = (exported[0] / f"{name}.py").read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.add(str(getattr(node, "module", node.names[0].name)).partition(".")[0])
        assert max(map(len, text.splitlines())) <= 100, name
        assert "type: ignore" not in text, name
    assert found - {"numpy"} <= sys.stdlib_module_names
    assert found >= {"numpy", "math", "sys"}


# --- what the file says and does ------------------------------------------------------------------


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    """net.py of a small network for X (N, 3), in a folder of its own."""
    export(tmp_path / "net.py")
    return tmp_path / "net.py"


def export(path: Path, seed: int = 0, *more: L.Layer) -> Sequential:
    model = Sequential(L.Dense(3, 4), L.ReLU(), L.Dropout(0.5), *more, L.Dense(4, 2), seed=seed)
    model.build((3,))
    model.export_numpy(path)
    return model


def load(path: Path) -> Any:
    """The names of an exported file."""
    names: dict[str, Any] = {"__file__": str(path), "__name__": "net"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def predict(path: Path) -> Callable[..., Array]:
    return load(path)["predict"]


def test_the_file_reads_like_the_network(mlp: Path) -> None:
    text = mlp.read_text()
    assert (
        """
    X = dense(X, W["0.W"], W["0.b"])  # (N, 4)
    X = relu(X)
    # Dropout(0.5) does nothing in prediction
    X = dense(X, W["3.W"], W["3.b"])  # (N, 2)
    return X
"""
        in text
    )
    doc = text.split('"""')[1]
    for part in ("phitodeep 0.", "from net import predict", "X    (N, 3), float32", "26 param"):
        assert part in doc
    assert re.search(r"0 +Dense\(3, 4\) +\(N, 4\) +16\n", doc)
    assert "def conv(" not in text


def test_layers_that_repeat_are_a_loop(tmp_path: Path) -> None:
    make, shape, _ = WHOLE["gpt"]
    with_random_weights(make().build(), shape).export_numpy(tmp_path / "net.py")
    text = (tmp_path / "net.py").read_text()
    assert "    for i in range(3, 6):\n" in text
    assert 'W[f"{i}.layers.0.layers.1.Wqkv"]' in text
    assert text.count("attention(") == 2  # its definition and one call
    make, shape, _ = WHOLE["resnet"]
    with_random_weights(make().build(), shape).export_numpy(tmp_path / "net.py")
    assert "    for i in range(2, 8, 2):\n" in (tmp_path / "net.py").read_text()


def test_the_weights_have_the_paths_of_get_weights(mlp: Path) -> None:
    model = export(mlp)
    with np.load(mlp.with_suffix(".npz"), allow_pickle=False) as file:
        assert set(file.files) == {"export_id", *model.get_weights()}
        for path, a in model.get_weights().items():
            np.testing.assert_array_equal(file[path], a)


def test_the_same_model_gives_the_same_files(mlp: Path, tmp_path: Path) -> None:
    before = mlp.read_bytes(), mlp.with_suffix(".npz").read_bytes()
    export(mlp)
    assert (mlp.read_bytes(), mlp.with_suffix(".npz").read_bytes()) == before
    export(mlp, seed=1)
    assert mlp.read_bytes() != before[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.npz", "net.py"]  # nothing else


Script = Callable[..., str]


@pytest.fixture
def script(mlp: Path, tmp_path: Path) -> Script:
    """Run net.py with these arguments, and return what it prints."""
    packages = f"import sys; sys.path.append({str(Path(np.__file__).parent.parent)!r})\n"
    run = "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    (tmp_path / "start.py").write_text(packages + run)
    return lambda *arguments: run_clean(tmp_path, "start.py", str(mlp), *map(str, arguments))


def test_it_runs_as_a_script(script: Script, mlp: Path, tmp_path: Path) -> None:
    X = np.ones((2, 3))
    np.save(tmp_path / "X.npy", X)
    assert script(str(tmp_path / "X.npy"), str(tmp_path / "Y.npy")) == ""
    Y = np.load(tmp_path / "Y.npy")
    np.testing.assert_array_equal(Y, predict(mlp)(X))
    assert script(str(tmp_path / "X.npy")).strip() == str(Y)
    usage = r"usage: python .*net.py input.npy \[output.npy\]\n"
    with pytest.raises(AssertionError, match=usage):
        script()
    assert re.fullmatch(usage, script("--help"))
    np.save(tmp_path / "X.npy", np.ones(3))
    with pytest.raises(AssertionError, match=r"X.npy: X must have the shape \(N, 3\)"):
        script(str(tmp_path / "X.npy"))
    with pytest.raises(AssertionError, match=r"nothing.npy: .*No such file"):
        script("nothing.npy")


def npy(X: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, X, allow_pickle=True)
    return stream.getvalue()


NUMBERS = npy(np.ones((2, 3)))
NO_NUMBERS = {
    "text": b"1, 2, 3\n",
    "nothing": b"",
    "objects": npy(np.array([None, {}])),
    "cut short": NUMBERS[:-1],
    "no shape": NUMBERS.replace(b"(2, 3)", b"'2, 3'"),
    "an open bracket": NUMBERS.replace(b"}", b" "),
    "too large": NUMBERS.replace(b"(2, 3), }        ", b"(2222222222222,)}"),
}


@pytest.mark.parametrize("content", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_script_refuses_what_is_no_npy_file(content: bytes, mlp: Path, tmp_path: Path) -> None:
    assert content != NUMBERS
    (tmp_path / "X.npy").write_bytes(content)
    with pytest.raises(SystemExit, match=r"X\.npy is not an \.npy file of numbers\.$"):
        load(mlp)["main"](None, ["net.py", str(tmp_path / "X.npy")])


def test_a_script_reports_in_one_line(script: Script, mlp: Path, tmp_path: Path) -> None:
    X = tmp_path / "X.npy"
    X.write_bytes(NUMBERS)
    mlp.with_suffix(".npz").rename(tmp_path / "away")
    before = sorted(tmp_path.iterdir())
    missing = r"^.*net\.npz is missing\. It holds .* copy it next to this file\.\n"
    with pytest.raises(AssertionError, match=missing) as caught:
        script(X)
    assert "Traceback" not in str(caught.value)
    (tmp_path / "away").rename(mlp.with_suffix(".npz"))
    for target, says in {
        "Y.csv": r"^\S*Y\.csv: the output is an \.npy file, so its name must end in \.npy\.\n",
        "no/Y.npy": r"^\S*no/Y\.npy: No such file or directory\n",
    }.items():
        with pytest.raises(AssertionError, match=says):
            script(X, tmp_path / target)
    assert len(list(tmp_path.iterdir())) == len(before)


def test_batches_have_at_least_one_sample(mlp: Path) -> None:
    one_by_one = predict(mlp)(np.ones((3, 3)), batch_size=1)
    np.testing.assert_allclose(one_by_one, predict(mlp)(np.ones((3, 3))), rtol=1e-5)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
            predict(mlp)(np.ones((3, 3)), batch_size=size)


def test_the_functions_of_the_layers_come_first(tmp_path: Path) -> None:
    export(tmp_path / "net.py", 0, L.GELU(), L.SiLU(), L.Sigmoid())
    text = (tmp_path / "net.py").read_text()
    marks = re.findall(r"^(?:def (\w+)|([A-Z_]{3,}) =|# --- ([\w ]+))", text, re.MULTILINE)
    names = ["".join(mark).strip() for mark in marks]
    assert names[: names.index("input")] == [
        *("predict", "network", "the layers"),
        *("dense", "relu", "gelu", "silu", "sigmoid"),
        *("functions that the layers use", "ERF_NEAR", "ERF_TAIL", "erf"),
        *("_polynomial", "floats"),
    ]


WRONG_X: dict[str, tuple[Any, type[Exception], str]] = {
    "one sample": (np.ones(3), ValueError, r"shape \(N, 3\), got \(3,\).*predict\(\[x\]\)"),
    "another size": (np.ones((2, 4)), ValueError, r"shape \(N, 3\), got \(2, 4\)\.$"),
    "too many axes": (np.ones((2, 3, 3)), ValueError, r"got \(2, 3, 3\)\.$"),
    "a number": (1.0, ValueError, r"got \(\)\.$"),
    "no samples": (np.ones((0, 3)), ValueError, "no samples"),
    "an empty list": ([], ValueError, r"shape \(N, 3\), got \(0,\)"),
    "text": ([["a", "b", "c"]], TypeError, "real numbers, got dtype <U1"),
    "complex": (np.ones((1, 3)) * 1j, TypeError, "real numbers"),
    "None": ([[1, 2, None]], TypeError, "real numbers, got dtype object"),
    "NaN": ([[1, 2, np.nan]], ValueError, "finite"),
    "too large": ([[1, 2, 1e300]], ValueError, "too large"),
}


@pytest.mark.parametrize("case", WRONG_X)
def test_wrong_input_is_refused(case: str, mlp: Path) -> None:
    X, kind, says = WRONG_X[case]
    with pytest.raises(kind, match=says):
        predict(mlp)(X)


def test_input_may_be_lists_integers_and_booleans(mlp: Path) -> None:
    model = export(mlp)
    for X in ([[1, 2, 3]], np.ones((2, 3), bool), np.ones((2, 3), np.uint8), ((1.5, 2, 3),)):
        Y = predict(mlp)(X)
        assert Y.dtype == np.float32
        np.testing.assert_allclose(Y, model.predict(X), rtol=0, atol=1e-6)


def test_tokens_are_integers_in_range_and_may_be_fewer(tmp_path: Path) -> None:
    make, shape, _ = WHOLE["gpt"]
    model = with_random_weights(make().dtype("float64").build(), shape)
    model.export_numpy(tmp_path / "net.py")
    run = predict(tmp_path / "net.py")
    for steps in (1, 2, 5, 8):
        X = np.random.default_rng(steps).integers(0, 13, (2, steps))
        np.testing.assert_allclose(run(X), model.predict(X), rtol=0, atol=1e-11)
        np.testing.assert_array_equal(run(X.astype(np.uint8)), run(X))
    for X, kind, says in (
        (np.ones((1, 8)), TypeError, "integers, got dtype float64"),
        ([["a"]], TypeError, "integers"),
        ([[0, 13]], ValueError, "tokens must be from 0 to 12, got 13"),
        ([[0, -1]], ValueError, "tokens must be from 0 to 12, got -1"),
        (np.zeros((1, 9), int), ValueError, "9 steps, but the network takes at most 8"),
        (np.zeros((1, 0), int), ValueError, r"shape \(N, any\), got \(1, 0\)"),
        (np.zeros((0, 8), int), ValueError, "no samples"),
    ):
        with pytest.raises(kind, match=says):
            run(X)


def test_axes_are_free_only_if_the_weights_fit_other_sizes(tmp_path: Path) -> None:
    for name, (builder, shape, expected) in {
        "pooled": (models.resnet_small(8, 8, 3, blocks=1), (8, 8, 3), "(None, None, 3)"),
        "flat": (models.lenet(12, 12, 1), (12, 12, 1), "(12, 12, 1)"),
        "text": (models.char_lstm(5), (7,), "(None,)"),
    }.items():
        model = builder.build()
        model.build(shape)
        model.export_numpy(tmp_path / f"{name}.py")
        text = (tmp_path / f"{name}.py").read_text()
        assert f"(X, {expected}" in text
        assert ("Y    (N, any, 5)" in text) == (name == "text")
        assert ("here for X (N, 7)" in text) == (name == "text")
    model = models.resnet_small(8, 8, 3, blocks=1).dtype("float64").build()
    model.export_numpy(tmp_path / "net.py")
    X = inputs(model, (2, 11, 5, 3))
    np.testing.assert_allclose(predict(tmp_path / "net.py")(X), model.predict(X), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "shape", "most"),
    [
        (lambda: (L.Conv1D(3, 3, stride=2, padding="same"), L.PositionalEmbedding(2)), (4,), 4),
        (lambda: (L.ConvTranspose1D(3, 2, stride=2), L.PositionalEmbedding(8)), (2,), 4),
        (lambda: (L.Conv1D(3, 3), L.PositionalEmbedding(8)), (4,), 10),
        (lambda: (L.PositionalEmbedding(2), L.GlobalAvgPool()), (2,), 2),
        (lambda: (L.GlobalAvgPool(), L.Reshape(3, 1), L.PositionalEmbedding(3)), (4,), None),
    ],
)
def test_the_most_steps_are_those_of_the_input(
    make: Callable[[], tuple[L.Layer, ...]], shape: Shape, most: int | None, tmp_path: Path
) -> None:
    """A layer may change the number of steps before it reaches the one with a limit."""
    model = Sequential(L.Embedding(4, 3), *make(), seed=0, dtype="float64")
    model.build(shape)
    model.export_numpy(tmp_path / "net.py")
    assert ("max_steps=" in (tmp_path / "net.py").read_text().split("def network")[0]) == bool(most)
    run = predict(tmp_path / "net.py")
    for steps in (*shape, most or 30):
        X = np.ones((2, steps), int)
        np.testing.assert_allclose(run(X), model.predict(X), rtol=1e-12)
    if most is not None:
        with pytest.raises(ValueError, match=f"takes at most {most}"):
            run(np.ones((2, most + 1), int))


def test_normalisation_of_large_values_does_not_overflow() -> None:
    X = np.array([[1e30, -1e30, 3e30]], np.float32)
    small, one = (X / 1e30).astype(np.float32), np.float32(1)
    for form in (plain.normalise, lambda X, eps: plain.rms_norm(X, one, eps)):
        np.testing.assert_allclose(form(X, 1e-5), form(small, 1e-30), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: plain.center_crop(np.zeros((1, 2, 2, 1)), (3, 2), (0, 1)),
            r"\(3, 2\) does not fit into \(2, 4\) pixels",
        ),
        (
            lambda: plain.conv(np.ones((1, 2, 5, 1)), np.ones((3, 3, 1, 1))),
            r"a window of \(3, 3\) does not fit into \(2, 5\)",
        ),
        (
            lambda: plain.select_tokens(np.array([[1, 2.5]]), (1,)),
            r"columns \(1,\) of X must hold whole numbers",
        ),
    ],
)
def test_functions_refuse_what_does_not_fit(call: Callable[[], Array], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


# --- weights that do not fit ----------------------------------------------------------------------


def test_weights_of_another_export_are_refused(mlp: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    export(other / "net.py", seed=1)  # the same shapes
    shutil.copy(other / "net.npz", tmp_path)
    with pytest.raises(ValueError, match=r"net\.npz does not belong to this file.*[Ee]xport"):
        predict(mlp)
    np.savez(tmp_path / "net.npz", a=np.ones(3))
    with pytest.raises(ValueError, match="does not belong"):
        predict(mlp)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 and no more"])
def test_damaged_or_missing_weights_are_reported(mlp: Path, content: bytes) -> None:
    mlp.with_suffix(".npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"net\.npz is damaged: export the network again"):
        predict(mlp)
    mlp.with_suffix(".npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"net\.npz is missing"):
        predict(mlp)


def test_both_files_may_be_renamed_and_moved(mlp: Path, tmp_path: Path) -> None:
    Y = predict(mlp)(np.ones((1, 3)))
    (tmp_path / "far").mkdir()
    for end in ("py", "npz"):
        shutil.move(tmp_path / f"net.{end}", tmp_path / "far" / f"renamed.{end}")
    np.testing.assert_array_equal(predict(tmp_path / "far" / "renamed.py")(np.ones((1, 3))), Y)


# --- refusals, which write nothing ----------------------------------------------------------------


class Own(L.Layer):
    def forward(self, X: Array) -> Array:
        return X


class OwnContainer(Container):
    def __init__(self) -> None:
        super().__init__()
        self.inner = L.ReLU()


class OwnDense(L.Dense):
    def product(self, X: Array) -> Array:
        return 2 * super().product(X)


class OwnModel(Sequential):
    def forward(self, X: Array, **options: Any) -> Array:
        return super().forward(X, **options)


LAYERS: dict[str, L.Layer] = {}  # of a class for each of the following functions, by its name


def own_layer(form: Any, name: str = "", **settings: Any) -> Any:
    """Declare a function as the prediction of a layer class of its own."""
    name = name or form.__name__
    kind = type(name.title().replace("_", ""), (Own,), settings)
    exports(kind)(form)
    LAYERS[name] = kind()
    return form


own = SimpleNamespace(exports=own_layer)  # decorators of this name are not copied


@own.exports
def asks(X: Array, unknown: float) -> Array:
    return X


@own.exports
def uses_others(X: Array) -> Array:
    return X + len(json.dumps(1)) + pytest.approx(1)


@own.exports
def imports_inside(X: Array) -> Array:
    import math

    from phitodeep.functional import softplus

    return softplus(X) * math.pi


def closure() -> Callable[[Array], Array]:
    two = 2

    def twice(X: Array) -> Array:
        return two * X

    return twice


own_layer(lambda X: X, "is_lambda")
own_layer(closure(), "closure")


@own.exports
@np.errstate(all="ignore")
def decorated(X: Array) -> Array:
    return X


_names: dict[str, Any] = {}
exec("def made_up(X): return X", _names)
own_layer(_names["made_up"], "no_source")
linecache.cache["<other text>"] = (1, None, ["def other(X): return 2 * X\n"], "<other text>")
exec(compile("def made_up(X): return X", "<other text>", "exec"), _names)
own_layer(_names["made_up"], "other_source")


@own.exports
def relu(X: Array) -> Array:
    return X


@own.exports
def network(X: Array) -> Array:
    return X


@own.exports
def F(X: Array) -> Array:
    return X


@own.exports
def abs(X: Array) -> Array:
    return X


TABLE = np.ones(3)


@own.exports
def uses_arrays(X: Array) -> Array:
    return X + TABLE


def set_to_array(X: Array, table: Array) -> Array:
    return X + table


own_layer(set_to_array, table=TABLE)
ABSENT = 1  # a test deletes it


@own.exports
def undefined(X: Array) -> Array:
    return X + ABSENT


other_name = clipped


@own.exports
def renames(X: Array) -> Array:
    return other_name(X)


def by_position(X: Array, power: int, /) -> Array:
    return X**power


own_layer(by_position, power=2)
REFUSED: list[tuple[L.Layer, type[Exception], str]] = [
    (L.Lambda(np.abs, np.multiply), ArgumentError, r"layer 1, Lambda\("),
    (Own(), ArgumentError, r"layer 1, Own\(\): .*@phitodeep\.exchange\.numpy\.forms\.exports"),
    (L.Residual(L.Tanh(), Own()), ArgumentError, r"layer 1\.layers\.1, Own\(\)"),
    (L.Chain(Own(), Own()), ArgumentError, r"layer 1\.l.*layer 1\.layers\.1"),
    (OwnContainer(), ArgumentError, "layer 1, OwnContainer"),
    (OwnDense(3), ArgumentError, r"layer 1, OwnDense\(3, 3\)"),
    (OwnModel(L.Dense(3)), ArgumentError, "layer 1, OwnModel"),
    (LAYERS["asks"], ArgumentError, r"asks takes 'unknown', but Asks\(\)"),
    (LAYERS["uses_others"], ArgumentError, "uses_others uses pytest, but exported"),
    (LAYERS["imports_inside"], ArgumentError, r"uses phitodeep\.functional, but"),
    (LAYERS["is_lambda"], ArgumentTypeError, "lambda.* def"),
    (LAYERS["closure"], ArgumentTypeError, "twice: define it .* at module level"),
    (LAYERS["decorated"], ArgumentTypeError, "decorated: .* without decorators"),
    (LAYERS["no_source"], ArgumentTypeError, "source of made_up"),
    (LAYERS["other_source"], ArgumentTypeError, "source of made_up"),
    (L.Chain(L.ReLU(), LAYERS["relu"]), ArgumentError, "two functions .*'relu'"),
    (LAYERS["network"], ArgumentError, "name 'network'.*rename it"),
    (L.Residual(LAYERS["F"]), ArgumentError, "name 'F'.*rename it"),
    (LAYERS["uses_arrays"], ArgumentTypeError, "constant TABLE of uses_arrays is a nd"),
    (LAYERS["set_to_array"], ArgumentTypeError, "table of SetToArray.*Param or State"),
    (LAYERS["abs"], ArgumentError, "would hide Python's own 'abs'.*rename it"),
    (LAYERS["by_position"], ArgumentError, "takes 'power' by position only.*\"/\""),
    (LAYERS["renames"], ArgumentError, "clipped under the name 'other_name'"),
    (
        L.MultiHeadAttention(1, rope=DynamicRope(2.0, 4)),  # angles that depend on the length
        ArgumentError,
        "layer 1, MultiHeadAttention",
    ),
]


@pytest.mark.parametrize(("layer", "kind", "says"), REFUSED, ids=lambda part: str(part)[:40])
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    layer: L.Layer, kind: type[Exception], says: str, tmp_path: Path
) -> None:
    shape = (3, 4) if isinstance(layer, L.MultiHeadAttention) else (3,)
    model = Sequential(L.Dense(shape[-1]), layer.copy())
    model.build(shape)
    with pytest.raises(kind, match=says):
        model.export_numpy(tmp_path / "net.py")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_not_defined_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(globals(), "ABSENT")
    model = Sequential(L.Dense(3, 3), LAYERS["undefined"])
    model.build((3,))
    with pytest.raises(ArgumentError, match="undefined uses 'ABSENT', which is not defined"):
        model.export_numpy(tmp_path / "net.py")


def test_a_model_that_changes_forward_is_refused(tmp_path: Path) -> None:
    model = OwnModel(L.Dense(3, 2))
    model.build((3,))
    with pytest.raises(ArgumentError, match=r"cannot export OwnModel\(Dense\(3, 2\)\):"):
        model.export_numpy(tmp_path / "net.py")


def test_exports_takes_a_class_of_layers() -> None:
    wrong: list[Any] = [L.Dense(3), dict, "Dense"]
    for kind in wrong:
        with pytest.raises(ArgumentTypeError, match="exports takes a class of layers"):
            exports(kind)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        *((f"{n}.py", rf"{n}\.py would hide the module {n}") for n in ("numpy", "math", "token")),
        *(
            (path, r'must end in \.py.*"net\.py", got')
            for path in ("class.py", "net", "net.txt", "my-net.py", "1.py", ".py", "net.py.bak")
        ),
    ],
)
def test_a_path_that_is_no_module_or_hides_one_is_refused(
    path: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=says):
        export(tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_an_unbuilt_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotBuiltError, match=r"train it, or call model\.build\(input_shape\)"):
        Sequential(L.Dense(3)).export_numpy(tmp_path / "net.py")
    assert list(tmp_path.iterdir()) == []


def test_if_one_file_cannot_be_written_the_other_stays(mlp: Path, tmp_path: Path) -> None:
    before = mlp.read_bytes()
    mlp.with_suffix(".npz").unlink()
    mlp.with_suffix(".npz").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        export(mlp, seed=1)
    assert mlp.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.npz", "net.py"]


def test_a_folder_without_permission_is_reported(mlp: Path, tmp_path: Path) -> None:
    before = mlp.read_bytes(), mlp.with_suffix(".npz").read_bytes()
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        if can_write(tmp_path):
            pytest.skip("this user may write anywhere")
        with pytest.raises(DataError, match=r"cannot write .*Permission denied"):
            export(mlp, seed=1)
    finally:
        tmp_path.chmod(stat.S_IRWXU)
    assert (mlp.read_bytes(), mlp.with_suffix(".npz").read_bytes()) == before


def can_write(folder: Path) -> bool:
    try:
        (folder / "probe").touch()
    except PermissionError:
        return False
    (folder / "probe").unlink()
    return True


# --- names and constants are data -----------------------------------------------------------------


class HostileChain(L.Chain):
    """Its text would run code if it were copied as it is."""

    def __repr__(self) -> str:
        return '"""\nraise SystemExit("injected")\n"""\\'


def test_names_cannot_inject_code(tmp_path: Path) -> None:
    name = 'A"""\nraise SystemExit("injected")\n"""'
    kind = type(name, (L.Dense,), {"__module__": __name__})
    model = Sequential(kind(3, 4), HostileChain(L.Dropout(0.5), L.ReLU()), seed=0)
    model.build((3,))
    model.export_numpy(tmp_path / "net.py")
    X = np.ones((2, 3))
    np.testing.assert_allclose(predict(tmp_path / "net.py")(X), model.predict(X), atol=1e-6)


def test_a_loop_counts_the_paths_of_its_own_layers() -> None:
    weight = Weight("b=", "3.a.W")
    assert str(weight) == 'b=W["3.a.W"]'
    assert str(weight.counted("3", "i + 1")) == 'b=W[f"{i + 1}.a.W"]'
    assert str(weight.counted("3.a", "i").counted("3", "j")) == 'b=W[f"{j}.{i}.W"]'
    assert weight.counted("3.a.W", "i") == weight.counted("4", "i") == weight
    layer = L.Dense(2, 3)
    layer.build((2,))
    network = Network(layer, lambda layer: plain.dense)
    network.paths[id(layer)] = "3.a{1 / 0}"  # would be code in an f-string: it is in no loop
    assert network._weight(layer, layer, "W") == 'W["3.a{1 / 0}.W"]'


@pytest.mark.parametrize("merge", few(["concat", "add", "multiply"], 1))
def test_three_thousand_branches(merge: str, tmp_path: Path) -> None:
    model = Sequential(L.Parallel(*(L.Tanh() for _ in range(3000)), merge=merge))
    model.build((2,))
    model.export_numpy(tmp_path / "net.py")
    X = np.array([[0.1, 9.0]], np.float32)
    np.testing.assert_allclose(predict(tmp_path / "net.py")(X), model.predict(X), rtol=1e-5)


def test_comments_say_what_the_first_axis_counts(tmp_path: Path) -> None:
    model = Sequential(L.TimeDistributed(L.Dense(4)), L.Dense(5), seed=0)
    model.build((2, 3))
    model.export_numpy(tmp_path / "net.py")
    text = (tmp_path / "net.py").read_text()
    assert 'F = dense(F, W["0.layer.W"], W["0.layer.b"])  # (N T, 4)\n' in text
    assert 'X = dense(X, W["1.W"], W["1.b"])  # (N, 2, 5)\n' in text


@pytest.mark.parametrize(
    "value",
    [
        *(0.1, -1e-300, 5, True, None, "a", "it's", 'say "hi"', "both ' and \"", "a\\b\n", "é"),
        *(np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), float("-inf"), np.nan),
        *((), (1,), (1, "a", (2.5, None)), [1, [2]], {"a": (1, 2), 3: []}),
    ],
)
def test_constants_are_exact(value: Any) -> None:
    again = eval(literal(value, "it"))
    assert again == value or (np.isnan(again) and np.isnan(value))
    assert type(again) is type(value.item() if isinstance(value, np.generic) else value)


def test_a_trained_model_needs_no_build(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).standard_normal((8, 6, 6, 1)), np.arange(8) % 2
    model = Sequential(
        *(L.RandomFlip(), L.Conv2D(2, 3), L.BatchNorm(), L.ReLU(), L.Flatten(), L.Dense(2)),
        loss_class=SoftmaxCrossEntropy(),
        seed=0,
    )
    model.train(X, y, epochs=3, verbose=0)
    model.export_numpy(tmp_path / "net.py")
    np.testing.assert_allclose(predict(tmp_path / "net.py")(X), model.predict(X), atol=1e-5)


def test_a_sequence_is_read_from_its_last_state(tmp_path: Path) -> None:
    model = Sequential(L.Embedding(5, 3), L.LSTM(4, return_sequences=False), L.Dense(2), seed=0)
    model.build((6,))
    model.export_numpy(str(tmp_path / "net.py"))
    X = np.random.default_rng(0).integers(0, 5, (3, 9))
    np.testing.assert_allclose(predict(tmp_path / "net.py")(X), model.predict(X), atol=1e-6)
