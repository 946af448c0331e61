"""Exported files run where only NumPy can be imported, and predict what the model predicts."""

import functools
import io
import json
import linecache
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from phitodeep import inference
from phitodeep import layers as L
from phitodeep.core.types import each
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, NotBuiltError
from phitodeep.exchange import correspondence
from phitodeep.exchange.correspondence import form_of
from phitodeep.exchange.numpy import plain
from phitodeep.exchange.numpy.export import export_numpy
from phitodeep.exchange.numpy.forms import exports
from phitodeep.exchange.numpy.network import MARK, Line, Network, _counted
from phitodeep.exchange.numpy.sources import literal
from phitodeep.functional.rotary import DynamicRope
from phitodeep.layers.containers import Container
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model import architectures as models
from phitodeep.testing.examples import data, made
from tests import random_networks
from tests.conftest import assert_weights, model_for
from tests.exchange.rows import EACH
from tests.exchange.several import MODELS, NETWORKS, built, exportable, predicted
from tests.random_networks import one
from tests.rows import LONG

PRECISION = {"float64": 1e-12, "float32": 3e-6}  # compared with the largest output
# its functions may do anything; base classes; what its layer has
NOT_EXPORTED = {"Lambda", "Layer", "Param", "State", "Shared"}
NOT_OVERFLOWING = (
    "CELU ELU GELU HardSigmoid HardSwish HardTanh LeakyReLU LogSoftmax Mish PReLU ReLU SELU SiLU "
    "Sigmoid Softmax Softplus Softsign Tanh"
)


def blocks():
    return [L.LayerNorm(), *(L.Residual(L.Dense(4)) for _ in range(3)), L.Tanh()]


def tokens():
    return L.Chain(L.Select([2], tokens=True), L.Embedding(4, 3), L.Flatten())


def merges():
    pairs = [L.Parallel(L.Dense(2), L.Dense(1)), L.Parallel(L.Dense(1), L.ReLU())]
    sums = [L.Residual(L.Dense(4)), L.Residual(L.Tanh())]
    return L.Chain(L.Residual(L.Parallel(*sums, merge="add")), L.Parallel(*pairs))


OTHERS = [
    (lambda: L.Chain(L.Dense(4), L.PReLU()), (3, 4), 0),
    (lambda: L.Residual(L.Dropout(0.5)), (3, 4), 0),
    (lambda: L.Parallel(L.Dense(2), L.Chain(L.Dropout(0.1)), L.ReLU()), (3, 4), 0),
    (merges, (3, 4), 0),
    (lambda: L.TimeDistributed(L.Residual(L.TimeDistributed(L.Dense(2)))), (2, 3, 2, 2), 0),
    (lambda: Sequential(Sequential(L.Dense(3), L.ReLU()), L.Dense(2)), (3, 4), 0),
    (lambda: L.Chain(*(L.Dense(4) for _ in range(6))), (3, 4), 0),
    (lambda: L.Chain(L.ReLU(), *(L.Residual(*blocks()) for _ in range(3))), (3, 4), 0),
    (lambda: L.Parallel(L.Select([0, 1]), tokens()), (3, 3), 4),
    (lambda: L.MultiHeadAttention(2, causal=True, bias=False, kv_heads=1, rope=True), (2, 5, 8), 0),
    (lambda: L.Chain(L.AvgPool2D(3, 1, "same"), L.AvgPool2D((2, 3), padding=1)), (2, 4, 3, 2), 0),
]


class Scale(L.Layer):
    """A layer as an author writes it: two parameters, a state and settings."""

    s = L.Param()
    shift = L.State()

    def __init__(self, power=2, slopes=(0.5, float("inf"))):
        super().__init__()
        self.power, self.slopes = power, slopes

    def create(self, shape):
        self.s, self.shift = np.ones(shape[-1]), np.zeros(shape[-1])
        return shape

    def forward(self, X):
        return scale(X, self.s, self.shift, self.power, self.slopes)


LIMITS = {"low": -12.0, "it's": -float("inf")}
FAR = (1.5, 'a "quoted" text')


def first(numbers):
    """Called where `scale` is defined, so it must be before it."""
    return numbers[0]


def clipped(X):
    return np.clip(X, max(LIMITS.values()), 12)


@exports(Scale)
def scale(X, s, shift, power, /, slopes, missing=None, top: float = first(FAR)):
    """Some function."""
    Y = np.minimum(clipped(s * X) ** power, slopes[1]) * slopes[0] * top
    return Y + shift if missing is None else Y


class Deeper(L.Dense):
    """It changes nothing that matters."""

    def create(self, shape):
        return super().create(shape)

    def backward(self, dY):
        return super().backward(dY)


def own():
    return models.mlp(5, 4).add(Scale(slopes=(0.25, 7.0))).add(Deeper(3)).add(Scale())


WHOLE = {**MODELS, "own": (own, (3, 5), 0)}


def case(make, shape, tokens, dtype):
    """A model whose weights and statistics are random, and its input."""
    shape, builder = (max(shape[0], 3), *shape[1:]), isinstance(make(), SequentialBuilder)
    layer = made(lambda: make().dtype(dtype).build() if builder else make(), shape, dtype)
    model = layer if isinstance(layer, Sequential) and builder else Sequential(layer, dtype=dtype)
    model.build(shape[1:])
    return model, data(model, shape, tokens)[0]


def has_form(layer):
    parts = [part for _, part in layer.walk()]
    by_length = any(getattr(part, "rotation", "") == "by length" for part in parts)
    return not by_length and not any(isinstance(part, L.Lambda) for part in parts)


ROWS = {f"case_{n}": row for n, row in enumerate([*EACH, *OTHERS]) if has_form(row[0]())} | WHOLE
CASES = {  # by the name of a module; the dtypes take turns
    f"{name}_{dtype}": functools.cache(partial(case, *row, dtype))
    for n, (name, row) in enumerate(reversed(ROWS.items()))
    for turn, dtype in enumerate(PRECISION)
    if LONG or n % 2 != turn
}
CLEAN = '''
"""Runs every exported file of a folder where nothing but NumPy can be imported."""

import importlib
import json
import runpy
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
np.savez(f"{folder}/Y.npz", **Y)
np.save(f"{folder}/X.npy", X[own[0]])
sys.argv = [f"{folder}/{own[0]}.py", f"{folder}/X.npy", f"{folder}/Y.npy"]
runpy.run_path(sys.argv[0], run_name="__main__")
assert (np.load(f"{folder}/Y.npy") == Y[own[0]]).all()
assert not [m for m in sys.modules if m.partition(".")[0] == "phitodeep"]
'''


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of all exported files, and what they predict in a process of their own.

    That process has no site packages and none of the environment's settings.
    """
    folder = tmp_path_factory.mktemp("exported")
    X = {}
    for name, make in CASES.items():
        model, X[name] = make()
        model.export_numpy(folder / f"{name}.py")
    (folder / "names.json").write_text(json.dumps(list(X)))
    (folder / "clean.py").write_text(CLEAN)
    np.savez(folder / "X.npz", **X)
    numpy = Path(np.__file__).parent.parent
    command = [sys.executable, "-I", "-S", str(folder / "clean.py"), str(folder), str(numpy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "Y.npz") as file:
        return folder, dict(file)


def whole(name, exported):
    """The exported file of a whole network."""
    return next(exported[0].glob(f"{name}_*.py"))


def test_a_file_predicts_what_its_model_predicts(exported):
    for name, make in CASES.items():
        model, X = make()
        Y, dtype = model.predict(X), str(model.dtype)
        for found in (exported[1][name], exported[1][f"{name} one by one"]):
            assert (found.dtype, found.shape) == (dtype, Y.shape), model
            atol = PRECISION[dtype] * max(1, np.abs(Y).max())
            np.testing.assert_allclose(found, Y, rtol=0, atol=atol, err_msg=f"{name}: {model}")


@pytest.mark.parametrize("dtype", PRECISION)
def test_large_values_do_not_overflow(dtype):
    X = np.array([[-900, -90, 0, 1, 90, 900], [900, 900, -900, 900, 0, 0]], dtype)
    for name in NOT_OVERFLOWING.split():
        model = model_for((6,), getattr(L, name)(), dtype=dtype, seed=0)
        network = Network(model, partial(form_of, library="numpy"))
        names = {**vars(plain), "X": X, "W": network.weights}
        exec("\n".join(str(line).strip() for line in network.lines), names)
        Y = model.predict(X)
        np.testing.assert_allclose(names["X"], Y, rtol=PRECISION[dtype], atol=1e-37, err_msg=name)


def test_every_public_layer_is_exported_and_tested():
    public = {name: getattr(L, name) for name in L.__all__}
    numpy_rows = {kind for kind, row in correspondence.TABLE.items() if row.numpy is not None}
    known = {kind.__name__ for kind in public.values() if set(kind.__mro__) & numpy_rows}
    assert known == {kind.__name__ for kind in public.values()} - NOT_EXPORTED
    tested = {type(part).__name__ for make in CASES.values() for _, part in make()[0].walk()}
    assert known - tested == set()


def test_what_is_in_the_files(exported):
    """Every plain function, so that each of them has run; and no import but NumPy's."""
    own = {n for n, f in vars(plain).items() if getattr(f, "__module__", "") == plain.__name__}
    texts = {name: (exported[0] / f"{name}.py").read_text() for name in CASES}
    found = {n for n in own if any(f"\ndef {n}(" in text for text in texts.values())}
    assert own - {"in_order"} == found
    assert len(own) > 50
    found = set()
    for name, text in texts.items():
        found |= {*re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)}
        assert max(map(len, text.splitlines())) <= 100, name
        assert "type: ignore" not in text, name
    assert found - {"numpy"} <= sys.stdlib_module_names
    assert found >= {"numpy", "math", "sys"}


@pytest.mark.parametrize("make", NETWORKS)
def test_networks_take_and_give_values_by_name(make, tmp_path):
    model, X = built(make)
    model.export_numpy(tmp_path / "net.py")
    names = runpy.run_path(tmp_path / "net.py")
    wanted, alone = predicted(model, X), len(X) == 1
    for given in [*X.values()][:1] if alone else (X, tuple(X.values())):
        found = names["predict"](given, batch_size=3)
        found = found if len(wanted) > 1 else {model.returns[0]: found}
        assert [*found] == [*wanted]
        for name, Y in wanted.items():
            np.testing.assert_allclose(found[name], Y, rtol=1e-12, atol=1e-14)
    text = (tmp_path / "net.py").read_text()
    assert max(map(len, text.splitlines())) <= 100
    assert alone or all(f"\n{name} " in text for name in X)
    assert all(f"\n{name} " in text for name in (wanted if len(wanted) > 1 else "Y"))


def test_the_inputs_of_a_network_are_checked(tmp_path):
    model, X = built(NETWORKS[0])
    model.export_numpy(tmp_path / "net.py")
    predict = runpy.run_path(tmp_path / "net.py")["predict"]
    for given, says in (
        ({"image": X["image"]}, "X must be a dict with the inputs image, words, or a tuple"),
        ((X["image"],), "X must be a dict with the inputs image, words, or a tuple"),
        ({**X, "words": X["words"][:3]}, r"different numbers of samples: \[7, 3\]"),
        ({**X, "image": X["words"]}, r"image must have the shape \(N, 5, 4, 1\)"),
        ({**X, "words": X["image"]}, "words must hold tokens"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            predict(given)


def test_a_network_runs_as_a_script_with_npz_files(tmp_path):
    model, X = built(NETWORKS[0])
    model.export_numpy(tmp_path / "net.py")
    np.savez(tmp_path / "X.npz", **X)
    command = [sys.executable, "net.py", "X.npz", "Y.npz"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    with np.load(tmp_path / "Y.npz") as Y:
        for name, wanted in model.predict(X).items():
            np.testing.assert_allclose(Y[name], wanted, rtol=1e-12, atol=1e-14)


# --- what the file says and does ------------------------------------------------------------------


@pytest.fixture
def mlp(tmp_path):
    """net.py of a small network for X (N, 3), in a folder of its own."""
    export(tmp_path / "net.py")
    return tmp_path / "net.py"


def export(path, seed=0, *more):
    layers = L.Dense(3, 4), L.ReLU(), L.Dropout(0.5), *more, L.Dense(4, 2)
    model = model_for((3,), *layers, seed=seed)
    model.export_numpy(path)
    return model


def exported_text(folder, *layers, shape):
    model = model_for(shape, *layers, seed=0)
    model.export_numpy(folder / "net.py")
    return (folder / "net.py").read_text()


def predict(path):
    return runpy.run_path(str(path), run_name="net")["predict"]


def check_predictions(model, X, folder, **precision):
    model.export_numpy(folder / "net.py")
    found = predict(folder / "net.py")(X)
    np.testing.assert_allclose(found, model.predict(X), **({"rtol": 0} | precision))


def test_the_file_reads_like_the_network(mlp):
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


def test_layers_that_repeat_are_a_loop(exported):
    gpt, resnet = (whole(name, exported).read_text() for name in ("gpt", "resnet"))
    assert "    for i in range(3, 6):\n" in gpt
    assert 'W[f"{i}.layers.0.layers.1.Wqkv"]' in gpt
    assert gpt.count("dot_product_attention(") == 2  # its definition and one call
    assert "    for i in range(2, 8, 2):\n" in resnet


def test_containers_and_attention_are_several_lines(tmp_path):
    text = exported_text(tmp_path, L.MultiHeadAttention(2, causal=True), shape=(3, 4))
    assert (
        """
    X = dense(X, W["0.Wqkv"], W["0.bqkv"])
    X = dot_product_attention(X, heads=2, causal=True)
    X = dense(X, W["0.Wo"], W["0.bo"])
    return X
"""
        in text
    )
    layers = L.TimeDistributed(L.Dense(4)), L.Dense(5)  # comments say what the first axis counts
    text = exported_text(tmp_path, *layers, shape=(2, 3))
    assert 'F = dense(F, W["0.layer.W"], W["0.layer.b"])  # (N T, 4)\n' in text
    assert 'X = dense(X, W["1.W"], W["1.b"])  # (N, 2, 5)\n' in text


def test_the_same_model_gives_the_same_files(mlp, tmp_path):
    before = mlp.read_bytes(), mlp.with_suffix(".npz").read_bytes()
    model = export(mlp)
    with np.load(mlp.with_suffix(".npz"), allow_pickle=False) as file:
        assert set(file.files) == {"export_id", *model.get_weights()}
        assert_weights(model, {path: file[path] for path in model.get_weights()})
    assert (mlp.read_bytes(), mlp.with_suffix(".npz").read_bytes()) == before
    export(mlp, seed=1)
    assert mlp.read_bytes() != before[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.npz", "net.py"]  # nothing else


@pytest.fixture
def script(mlp, monkeypatch, capsys):
    """Run net.py with these arguments, and return what it prints or says at its end."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(mlp), *map(str, arguments)])
        try:
            runpy.run_path(str(mlp), run_name="__main__")
        except SystemExit as end:
            printed = capsys.readouterr()
            return f"{end.code}" if isinstance(end.code, str) else printed.out + printed.err
        return capsys.readouterr().out

    return run


def test_it_runs_as_a_script(script, mlp, tmp_path):
    source, target = tmp_path / "X.npy", tmp_path / "Y.npy"
    X = np.ones((2, 3))
    np.save(source, X)
    assert script(source, target) == ""
    Y = np.load(target)
    np.testing.assert_array_equal(Y, predict(mlp)(X))
    assert script(source).strip() == str(Y)
    usage = r"usage: net.py \[-h\] input.npy \[output.npy\]\n"
    for arguments in ((), ("--help",), (source, target, source)):
        assert re.match(usage, script(*arguments))
    np.save(source, np.ones(3))
    before = sorted(tmp_path.iterdir())
    ending = r"Y\.csv: the output is an \.npy file, so its name must end in \.npy\.$"
    for given, says in (
        ((source,), r"\S*X.npy: X must have the shape \(N, 3\)"),
        (("nothing.npy",), r"nothing.npy: .*No such file"),
        ((source, "Y.csv"), ending),
    ):
        assert re.match(says, script(*given))
    np.save(source, X)
    assert re.match(r"\S*no/Y\.npy: No such file or d\w+$", script(source, tmp_path / "no/Y.npy"))
    mlp.with_suffix(".npz").rename(tmp_path / "away")
    missing = r"\S*net\.npz is missing\. It holds .* copy it next to this file\.$"
    assert re.match(missing, script(source))
    assert len(list(tmp_path.iterdir())) == len(before)


def npy(X):
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


def test_a_script_refuses_what_is_no_npy_file(script, tmp_path):
    for name, content in NO_NUMBERS.items():
        assert content != NUMBERS
        (tmp_path / "X.npy").write_bytes(content)
        says = script(tmp_path / "X.npy")
        assert re.search(r"X\.npy is not an \.npy file of numbers\.$", says), name


def test_the_functions_of_the_layers_come_first(tmp_path):
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


WRONG_X = [
    (np.ones(3), ValueError, r"shape \(N, 3\), got \(3,\).*predict\(\[x\]\)"),
    (np.ones((2, 4)), ValueError, r"shape \(N, 3\), got \(2, 4\)\.$"),
    (np.ones((2, 3, 3)), ValueError, r"got \(2, 3, 3\)\.$"),
    (1.0, ValueError, r"got \(\)\.$"),
    (np.ones((0, 3)), ValueError, "no samples"),
    ([], ValueError, r"shape \(N, 3\), got \(0,\)"),
    ([["a", "b", "c"]], TypeError, "real numbers, got dtype <U1"),
    (np.ones((1, 3)) * 1j, TypeError, "real numbers"),
    ([[1, 2, None]], TypeError, "real numbers, got dtype object"),
    ([[1, 2, np.nan]], ValueError, "finite"),
    ([[1, 2, 1e300]], ValueError, "too large"),
]
WRONG_TOKENS = [
    (np.ones((1, 8)), TypeError, "integers, got dtype float64"),
    ([["a"]], TypeError, "integers"),
    ([[0, 13]], ValueError, "tokens must be from 0 to 12, got 13"),
    ([[0, -1]], ValueError, "tokens must be from 0 to 12, got -1"),
    (np.zeros((1, 9), int), ValueError, "takes at most 8 steps, got 9"),
    (np.zeros((1, 0), int), ValueError, r"shape \(N, any\), got \(1, 0\)"),
    (np.zeros((0, 8), int), ValueError, "no samples"),
]


def check_refused(run, wrong):
    for X, kind, says in wrong:
        with pytest.raises(kind, match=says):
            run(X)


def test_input_may_be_lists_integers_and_booleans(mlp):
    model, run = export(mlp), predict(mlp)
    for X in ([[1, 2, 3]], np.ones((2, 3), bool), np.ones((2, 3), np.uint8), ((1.5, 2, 3),)):
        Y = run(X)
        assert Y.dtype == np.float32
        np.testing.assert_allclose(Y, model.predict(X), rtol=0, atol=1e-6)
    check_refused(run, WRONG_X)
    np.testing.assert_allclose(run(np.eye(3), batch_size=1), run(np.eye(3)), rtol=1e-5)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
            run(np.eye(3), batch_size=size)


def test_tokens_are_integers_in_range_and_may_be_fewer(exported):
    path = whole("gpt", exported)
    (model, _), run = CASES[path.stem](), predict(path)
    for steps in (1, 2, 5, 8):
        X = np.random.default_rng(steps).integers(0, 13, (2, steps))
        atol = 10 * PRECISION[str(model.dtype)]
        np.testing.assert_allclose(run(X), model.predict(X), rtol=0, atol=atol)
        np.testing.assert_array_equal(run(X.astype(np.uint8)), run(X))
    check_refused(run, WRONG_TOKENS)


def test_axes_are_free_only_if_the_weights_fit_other_sizes(tmp_path):
    for name, (builder, shape, expected) in {
        "pooled": (models.resnet_small(8, 8, 3, blocks=1), (8, 8, 3), "(None, None, 3)"),
        "flat": (models.lenet(12, 12, 1), (12, 12, 1), "(12, 12, 1)"),
        "text": (models.char_lstm(5), (7,), "(None,)"),
    }.items():
        model = builder.dtype("float64").build()
        model.build(shape)
        model.export_numpy(tmp_path / f"{name}.py")
        text = (tmp_path / f"{name}.py").read_text()
        assert f"(X, {expected}" in text
        assert ("Y    (N, any, 5)" in text) == (name == "text")
        assert ("here for X (N, 7)" in text) == (name == "text")
        if name == "pooled":
            X = np.random.default_rng(4).standard_normal((2, 11, 5, 3))
            Y = predict(tmp_path / "pooled.py")(X)
            np.testing.assert_allclose(Y, model.predict(X), atol=1e-12)


def test_a_layer_with_a_limit_refuses_more_steps(tmp_path):
    """Other layers may change the number of steps before it."""
    same = L.Conv1D(3, 3, stride=2, padding="same")
    for layers, shape, most in (
        ((same, L.PositionalEmbedding(2)), (4,), 4),
        ((L.ConvTranspose1D(3, 2, stride=2), L.PositionalEmbedding(8)), (2,), 4),
        ((L.Conv1D(3, 3), L.PositionalEmbedding(8)), (4,), 10),
        ((L.PositionalEmbedding(2), L.GlobalAvgPool()), (2,), 2),
        ((L.GlobalAvgPool(), L.Reshape(3, 1), L.PositionalEmbedding(3)), (4,), None),
    ):
        model = model_for(shape, L.Embedding(4, 3), *layers, seed=0, dtype="float64")
        model.export_numpy(tmp_path / "net.py")
        run = predict(tmp_path / "net.py")
        for steps in (*shape, most or 30):
            X = np.ones((2, steps), int)
            np.testing.assert_allclose(run(X), model.predict(X), rtol=1e-12)
        if most is not None:
            with pytest.raises(ValueError, match=r"takes at most \d steps, got \d"):
                run(np.ones((2, most + 1), int))


def test_normalisation_of_large_values_does_not_overflow():
    X = np.array([[1e30, -1e30, 3e30]], np.float32)
    small, one = (X / 1e30).astype(np.float32), np.float32(1)
    for form in (plain.normalise, lambda X, eps: plain.rms_norm(X, one, eps)):
        np.testing.assert_allclose(form(X, 1e-5), form(small, 1e-30), rtol=1e-6, atol=1e-6)


def test_functions_refuse_what_does_not_fit():
    kernel, images = np.ones((3, 3, 1, 1)), np.ones((1, 2, 5, 1))
    with pytest.raises(ValueError, match=r"\(3, 2\) does not fit into \(2, 4\) pixels"):
        plain.center_crop(np.zeros((1, 2, 2, 1)), (3, 2), (0, 1))
    with pytest.raises(ValueError, match=r"a window of \(3, 3\) does not fit into \(2, 5\)"):
        plain.conv(images, kernel)
    with pytest.raises(ValueError, match=r"columns \(1,\) of X must hold whole numbers"):
        plain.select_tokens(np.array([[1, 2.5]]), (1,))


def test_weights_belong_to_one_file(mlp, tmp_path):
    (tmp_path / "far").mkdir()
    export(tmp_path / "far" / "net.py", seed=1)  # the same shapes
    renamed, weights = tmp_path / "far" / "renamed.py", mlp.with_suffix(".npz")
    Y = predict(mlp)(np.ones((1, 3)))
    for path in (mlp, weights):
        shutil.copy(path, renamed.with_suffix(path.suffix))
    np.testing.assert_array_equal(predict(renamed)(np.ones((1, 3))), Y)
    shutil.copy(tmp_path / "far" / "net.npz", tmp_path)
    with pytest.raises(ValueError, match=r"net\.npz does not belong to this file.*[Ee]xport"):
        predict(mlp)
    np.savez(weights, a=np.ones(3))
    with pytest.raises(ValueError, match="does not belong"):
        predict(mlp)
    for content in (b"", b"nonsense", b"PK\x03\x04 and no more"):
        weights.write_bytes(content)
        with pytest.raises(ValueError, match=r"net\.npz is damaged: export the network again"):
            predict(mlp)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"net\.npz is missing"):
        predict(mlp)


# --- refusals, which write nothing ----------------------------------------------------------------


class Own(L.Layer):
    table, power = np.ones(3), 2

    def forward(self, X):
        return X


class OwnContainer(Container):
    def __init__(self):
        super().__init__()
        self.inner = L.ReLU()


class OwnDense(L.Dense):
    def product(self, X):
        return 2 * super().product(X)


class OwnModel(Sequential):
    def forward(self, X, **options):
        return super().forward(X, **options)


FUNCTIONS = [  # of Own; what the last line defines
    ("def asks(X, unknown): return X", ArgumentError, r"asks takes 'unknown', but Own\(\)"),
    ("def f(X): return json.dumps(pytest)", ArgumentError, "f uses pytest, but exported"),
    ("def f(X):\n from phitodeep.io import a", ArgumentError, r"f uses phitodeep\.io, but exp"),
    ("def f(X):\n import math, phitodeep", ArgumentError, r"f uses phitodeep, but exported"),
    ("f = lambda X: X", ArgumentTypeError, "lambda.* def"),
    ("f = (lambda n: (f := lambda X: n))(2)", ArgumentTypeError, "define it .* at module level"),
    ("@np.errstate()\ndef f(X): return X", ArgumentTypeError, "f: .* without decorators"),
    ("exec('def made_up(X): return X')", ArgumentTypeError, "source of made_up"),
    ("exec(compile('def up(X): return X', 'b', 'exec'))", ArgumentTypeError, "source of up"),
    ("def relu(X): return X", ArgumentError, "'relu'.*means something else.*rename it"),
    ("def network(X): return X", ArgumentError, "name 'network'.*rename it"),
    ("def F(X): return X", ArgumentError, "name 'F'.*rename it"),
    ("A = np.ones(3)\ndef f(X): return X + A", ArgumentTypeError, "constant A of f is a ndarray"),
    ("def f(X, table): return X", ArgumentTypeError, "table of Own.*make it a Param or State"),
    ("def abs(X): return X", ArgumentError, "'abs'.*means something else.*rename it"),
    ("def f(X): return absent", ArgumentError, "f uses 'absent', which is not defined"),
    ("def g(X): pass\nh = g\ndef f(X): return h(X)", ArgumentError, "g under the name 'h'"),
]
REFUSED = [
    (L.Lambda(np.abs, np.multiply), r"layer 1, Lambda\("),
    (Own(), r"layer 1, Own\(\): .*@phitodeep\.exchange\.numpy\.forms\.exports"),
    (L.Residual(L.Tanh(), Own()), r"layer 1\.layers\.1, Own\(\)"),
    (L.Chain(Own(), Own()), r"layer 1\.l.*layer 1\.layers\.1"),
    (OwnContainer(), "layer 1, OwnContainer"),
    (OwnDense(3), r"layer 1, OwnDense\(3, 3\)"),
    (OwnModel(L.Dense(3)), "layer 1, OwnModel"),
    (L.MultiHeadAttention(1, rope=DynamicRope(2.0, 4)), "layer 1, MultiHeadAttention"),
]
WRONG_PATHS = {
    r'must end in \.py.*"net\.py", got': "class.py net net.txt my-net.py 1.py .py net.py.bak",
    r"\.py would hide the module": "numpy.py math.py token.py",
}


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tmp_path):
    for layer, says in REFUSED:
        shape = (3, 4) if isinstance(layer, L.MultiHeadAttention) else (3,)
        model = model_for(shape, L.Dense(shape[-1]), layer.copy())
        with pytest.raises(ArgumentError, match=says):
            model.export_numpy(tmp_path / "net.py")
    own = OwnModel(L.Dense(3, 2))
    with pytest.raises(NotBuiltError, match=r"train it, or call model\.build\(input_shape\)"):
        own.export_numpy(tmp_path / "net.py")
    own.build((3,))
    with pytest.raises(ArgumentError, match=r"cannot export OwnModel\(Dense\(3, 2\)\):"):
        own.export_numpy(tmp_path / "net.py")
    for says, paths in WRONG_PATHS.items():
        for path in paths.split():
            with pytest.raises(ArgumentError, match=says):
                export(tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_functions_that_cannot_be_copied_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(correspondence, "TABLE", {**correspondence.TABLE})
    linecache.cache["b"] = (1, None, ["def other(X): return 2 * X\n"], "b")
    model = model_for((3,), L.Dense(3, 3), L.ReLU(), L.Residual(Own()))
    for i, (code, kind, says) in enumerate(FUNCTIONS):
        file = tmp_path / f"own_{i}.py"
        file.write_text(f"import json, numpy as np, pytest\n{code}\n")
        names = runpy.run_path(str(file))
        exports(Own)([*names.values()][-1])
        with pytest.raises(kind, match=says):
            model.export_numpy(tmp_path / "net.py")
        assert not (tmp_path / "net.py").exists(), code
    wrong = [L.Dense(3), dict, "Dense"]
    for not_a_class in wrong:
        with pytest.raises(ArgumentTypeError, match="exports takes a class of layers"):
            exports(not_a_class)


def test_if_one_file_cannot_be_written_the_other_stays(mlp, tmp_path):
    before = mlp.read_bytes()
    mlp.with_suffix(".npz").unlink()
    mlp.with_suffix(".npz").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        export(mlp, seed=1)
    assert mlp.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.npz", "net.py"]


class HostileChain(L.Chain):
    """Its text would run code if it were copied as it is."""

    def __repr__(self):
        return '"""\nraise SystemExit("injected")\n"""\\'


def test_names_cannot_inject_code(tmp_path):
    name = 'A"""\nraise SystemExit("injected")\n"""'
    kind = type(name, (L.Dense,), {"__module__": __name__})
    model = model_for((3,), kind(3, 4), HostileChain(L.Dropout(0.5), L.ReLU()), seed=0)
    check_predictions(model, np.ones((2, 3)), tmp_path, atol=1e-6)


def test_a_loop_counts_the_paths_of_its_own_layers():
    line = Line("X = f", f"X, b={MARK}3.a.W{MARK}")
    assert str(line) == '    X = f(X, b=W["3.a.W"])'
    assert 'b=W[f"{i + 1}.a.W"]' in str(_counted([("2", []), ("3", [line])], "i")[0])
    inner = _counted([("3.a", [line])], "i")
    assert 'b=W[f"{j}.{i}.W"]' in str(_counted([("3", inner)], "j")[0])
    assert _counted([("3.a.W", [line])], "i") == _counted([("4", [line])], "i") == [line]
    layer = L.Dense(2, 3)
    layer.build((2,))
    network = Network(layer, lambda layer: plain.dense)
    network.paths[id(layer)] = "3.a{1 / 0}"  # would be code in an f-string: it is in no loop
    assert '"3.a{1 / 0}.W"' in next(iter(network.arguments(plain.dense, layer, {})))


def test_hundreds_of_branches_with_names_of_their_own(tmp_path):
    for merge in ("concat", "add", "multiply"):
        many = [L.Tanh() for _ in range(3000 if LONG else 101)]
        branches = L.Residual(L.Tanh()), L.Residual(L.Tanh()), *many
        model = model_for((2,), L.Parallel(*branches, merge=merge), dtype="float64")
        check_predictions(model, np.array([[0.1, 9.0]]), tmp_path, rtol=1e-12)


def test_constants_are_exact():
    for value in (
        *(0.1, -1e-300, 5, True, None, "a", "it's", 'say "hi"', "both ' and \"", "a\\b\n", "é"),
        *(np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), float("-inf"), np.nan),
        *((), (1,), (1, "a", (2.5, None)), [1, [2]], {"a": (1, 2), 3: []}),
    ):
        again = eval(literal(value, "it"))
        assert again == value or (np.isnan(again) and np.isnan(value))
        assert type(again) is type(value.item() if isinstance(value, np.generic) else value)


def test_random_networks_predict_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(correspondence, "TABLE", {**correspondence.TABLE})
    exports(random_networks.Scale)(gain_and_shift)
    kinds = set()
    dtypes = ("float64", 1e-12), ("float32", 3e-5)
    cases = [(seed, each) for seed in range(60) for each in dtypes]
    for seed, (dtype, tolerance) in cases if LONG else cases[::9]:
        network = exportable(seed, (1, 2, 5))
        Xs = each(network.cast(dtype))
        with inference():
            Ys = each(network.layer.forward(*Xs))
        for X in Xs:
            X.flags.writeable = False
        export_numpy(network.layer, tmp_path / "net.py", samples=2)
        run = predict(tmp_path / "net.py")
        for found in (run(one(Xs)), run(one([*map(np.asfortranarray, Xs)]), batch_size=1)):
            found = found.values() if isinstance(found, dict) else (found,)
            for A, Y in zip(found, Ys, strict=True):
                limit = tolerance * max(1, np.abs(Y).max())
                assert A.dtype == Y.dtype, network
                assert not any(np.shares_memory(A, X) for X in Xs), network
                np.testing.assert_allclose(A, Y, rtol=0, atol=limit, err_msg=repr(network))
        kinds |= {type(part) for _, part in network.layer.walk()}
    assert len(kinds) > (40 if LONG else 25)  # otherwise the networks say little


def gain_and_shift(X, gain, shift):
    return X * gain + shift
