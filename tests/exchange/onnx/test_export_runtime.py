"""onnxruntime predicts from ONNX files what the models predict: all layers, and random networks."""

import random
from contextlib import suppress
from functools import partial

import numpy as np
import onnx
import pytest

from phitodeep import inference
from phitodeep import layers as L
from phitodeep.core.types import each
from phitodeep.errors import ShapeError
from phitodeep.exchange import correspondence
from phitodeep.exchange.onnx.write import export
from phitodeep.exchange.onnx.write.export import OPSETS, export_onnx
from phitodeep.exchange.onnx.write.forms import exports
from phitodeep.functional.rotary import YarnRope
from phitodeep.testing.examples import ELEMENTWISE, data, made
from tests.conftest import model_for
from tests.exchange.onnx.test_import import CASES
from tests.exchange.several import exportable
from tests.random_networks import Scale

ort = pytest.importorskip("onnxruntime")
failures = ort.capi.onnxruntime_pybind11_state

NEWEST = min(OPSETS[-1], onnx.defs.onnx_opset_version())
PRECISION = 1e-5  # compared with the largest output
NO_DOUBLE = (  # what onnxruntime says of operators that it has in float32 only
    "NOT_IMPLEMENTED",
    "does not support double yet",
)


def named(kinds):
    return [getattr(L, kind) for kind in kinds.split()]


def session(path):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(layer, X, path, opset=20, precision=PRECISION):
    """Export the layer, and compare the predictions for X and for other sizes; return Y of X."""
    export_onnx(layer, path, opset)
    running = session(path)
    sources, Xs = running.get_inputs(), each(X)
    inputs = [Xs, [np.concatenate([X, X[::-1], X]) for X in Xs]]
    if len(Xs) == 1 and sources[0].shape[1:2] == ["T"]:
        longer = np.concatenate([X, X[:, ::-1]], axis=1)
        inputs += [[A] for A in (longer[:, : layer.max_steps], *shorter(layer, X))]
    for As in inputs:
        with inference():
            wanted = each(layer.forward(*As))
        tokens = each(layer.takes_tokens) * len(As)  # of a layer with one input, or of each input
        given = [A if t else A.astype(layer.dtype) for A, t in zip(As, tokens, strict=False)]
        named = {source.name: A for source, A in zip(sources, given, strict=True)}
        for Y, P in zip(running.run(None, named), wanted, strict=True):
            assert Y.shape == P.shape
            assert Y.dtype == P.dtype
            limit = precision * max(1, np.abs(P).max())
            np.testing.assert_allclose(Y, P, rtol=0, atol=limit, err_msg=f"{layer!r}, {opset}")
    return running


def shorter(layer, X):
    """X without its last steps, if the layer takes it."""
    for steps in {1, X.shape[1] - 1} - {0}:
        with suppress(ShapeError), inference():
            layer.forward(X[:, :steps])
            yield X[:, :steps]


@pytest.mark.parametrize("opset", OPSETS)
def test_every_layer(opset, tmp_path):
    if opset > NEWEST:
        pytest.skip("the installed onnx does not know it")
    everything = opset in (17, 18, 20, 21, 23, NEWEST)  # where operators came
    for _, make, shape, *tokens in CASES if everything else CASES[opset % 5 :: 5]:
        layer = made(make, shape, np.float32, seed=opset)
        X, _ = data(layer, shape, *tokens, seed=opset)
        check(layer, X, tmp_path / "net.onnx", opset)


@pytest.mark.parametrize("opset", [17, 20, NEWEST])
def test_in_float64_where_onnxruntime_has_it(opset, tmp_path):
    checked = 0
    for _, make, shape, *tokens in CASES:
        layer = made(make, shape, np.float64)
        X, _ = data(layer, shape, *tokens)
        export_onnx(layer, tmp_path / "net.onnx", opset)
        if has_kernels(tmp_path / "net.onnx", X, layer):
            check(layer, X, tmp_path / "net.onnx", opset, precision=1e-7)
            checked += 1
    assert checked > 90


def has_kernels(path, X, layer):
    """Whether onnxruntime can run a model in float64."""
    try:
        running = session(path)
        name = running.get_inputs()[0].name
        running.run(None, {name: X if layer.takes_tokens else X.astype(layer.dtype)})
    except (failures.NotImplemented, failures.RuntimeException) as error:
        if any(said in str(error) for said in NO_DOUBLE):
            return False
        raise
    return True


def test_sequences_of_a_fixed_length(tmp_path, monkeypatch):
    """onnxruntime computes with lengths when it loads such a graph, and must like what it finds."""
    monkeypatch.setattr(export, "resized", lambda *_: [])
    for _, make, shape, *tokens in CASES:
        if len(shape) == 3 or tokens:
            layer = made(make, shape, np.float32)
            X, _ = data(layer, shape, *tokens)
            running = check(layer, X, tmp_path / "net.onnx")
            assert "T" not in running.get_inputs()[0].shape


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_large_inputs(size, tmp_path):
    makers = [
        *ELEMENTWISE,
        *named("GELU SiLU Softplus Sigmoid Tanh Softmax LogSoftmax LayerNorm RMSNorm BatchNorm"),
        *(lambda: L.GELU("tanh"), lambda: L.GroupNorm(2)),
        lambda: L.MultiHeadAttention(1, causal=True),
    ]
    rng = np.random.default_rng(4)
    for make in makers:
        layer = make()
        layer.build((5, 4), seed=1)
        X = (size * rng.standard_normal((3, 5, 4))).astype(np.float32)
        for opset in (17, 20):
            check(layer, X, tmp_path / "net.onnx", opset)


@pytest.mark.parametrize("opset", [17, NEWEST])
def test_late_positions(opset, tmp_path):
    """Their angles, such as 2999.123, have few digits after the point in float32."""
    rng = np.random.default_rng(5)
    for layer in (
        L.RotaryEmbedding(),
        L.SinusoidalEncoding(),
        L.MultiHeadAttention(1, causal=True, rope=True),
        L.MultiHeadAttention(2, kv_heads=1, rope=YarnRope(4.0, max_positions=64)),
    ):
        layer.build((7, 8), seed=1)
        X = rng.standard_normal((1, 3000, 8)).astype(np.float32)
        check(layer, X, tmp_path / "net.onnx", opset)


BEHIND_IMAGES = [
    *named("PReLU Softmax LogSoftmax LayerNorm RMSNorm BatchNorm Flatten Reparameterize"),
    *named("GlobalMaxPool GlobalAvgPool InstanceNorm"),
    *(lambda: L.Softmax(1), lambda: L.Softmax(-2), lambda: L.GroupNorm(2), lambda: L.Dense(3)),
    *(lambda: L.Select([2, 0]), lambda: L.ZeroPad2D(((0, 1), (2, 0))), lambda: L.RandomCrop(2)),
    *(lambda: L.RandomCrop((2, 6), padding=(0, 2)), lambda: L.Reshape(-1, 2)),
    lambda: L.Permute(2, 3, 1),
    lambda: L.Chain(L.Permute(3, 1, 2), L.Softmax(1), L.Permute(2, 3, 1)),
    *(lambda: L.Parallel(L.Tanh(), L.Dense(3)), lambda: L.SkipConcat(L.Select([0]))),
    lambda: L.Residual(L.Tanh()),
]
BEHIND_STEPS = [
    *named("PReLU Softmax LayerNorm RMSNorm BatchNorm Reparameterize SinusoidalEncoding"),
    *named("GlobalMaxPool GlobalAvgPool InstanceNorm RotaryEmbedding Tanh"),
    *(lambda: L.Softmax(1), lambda: L.GroupNorm(2), lambda: L.Dense(3), lambda: L.Select([2, 0])),
    lambda: L.Chain(L.Permute(2, 1), L.GlobalMaxPool()),
    *(lambda: L.Permute(2, 1), lambda: L.MultiHeadAttention(2), lambda: L.Conv1D(2, 2)),
    *(lambda: L.PositionalEmbedding(20), lambda: L.TimeDistributed(L.Dense(2))),
    *(lambda: L.Parallel(L.Tanh(), L.Conv1D(3, 1)), lambda: L.Residual(L.GRU(4), L.Tanh())),
]


def behind(first, second):
    return L.Chain(first(), second())


@pytest.mark.parametrize("opset", [17, 20, NEWEST])
def test_layers_behind_others_that_move_the_axes(opset, tmp_path):
    rng = np.random.default_rng(9)
    for first, shape, makers in (
        (lambda: L.Conv2D(4, 2), (5, 4, 3), BEHIND_IMAGES),
        (lambda: L.LSTM(4), (5, 3), BEHIND_STEPS),
        (lambda: L.Bidirectional(L.GRU(2)), (5, 3), BEHIND_STEPS),
    ):
        for make in makers:
            layer = made(partial(behind, first, make), (2, *shape), np.float32)
            check(layer, rng.standard_normal((2, *shape)).astype("f"), tmp_path / "net.onnx", opset)


def random_window_layer(rng):
    """A convolution or pool of random settings, and a shape that may be too small for it."""
    pick, rank = rng.choice, rng.choice((1, 2))
    size, stride, dilation = ([rng.randint(1, n) for _ in range(rank)] for n in (4, 4, 3))
    shape = (*(rng.randint(1, 9) for _ in range(rank)), pick((2, 4)))
    kind = pick(("Conv", "ConvTranspose", "MaxPool", "AvgPool"))
    padding = pick(("valid", "same", 1, 2))
    if "Pool" in kind:
        padding = padding if isinstance(padding, str) else min(size) // 2
        return getattr(L, f"{kind}{rank}D")(size, pick((stride, None)), padding), shape
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": pick((1, 2))}
    if kind == "ConvTranspose" and padding != "same":
        settings["output_padding"] = [rng.randint(0, s - 1) for s in stride]
    return getattr(L, f"{kind}{rank}D")(4, size, **settings, bias=pick((True, False))), shape


def test_random_windows(tmp_path):
    checked = 0
    for seed in range(400):
        rng = random.Random(seed)
        with suppress(ShapeError):
            layer, shape = random_window_layer(rng)
            layer.build(shape, seed=seed)
            X = np.random.default_rng(seed).standard_normal((2, *shape)).astype("f")
            check(layer, X, tmp_path / "net.onnx", rng.choice((17, 20, NEWEST)))
            checked += 1
    assert checked > 300


def test_random_crops(tmp_path):
    for seed in range(40):
        rng = random.Random(seed)
        size, pads = ([rng.randint(low, 4) for _ in range(2)] for low in (1, 0))
        layer = L.RandomCrop(size, padding=pads)
        shape = (rng.randint(1, 5), rng.randint(1, 5), 2)
        with suppress(ShapeError):
            layer.build(shape)
            X = np.random.default_rng(seed).standard_normal((2, *shape)).astype("f")
            check(layer, X, tmp_path / "net.onnx")


def test_steps_of_every_length_with_padding_that_depends_on_it(tmp_path):
    windows = L.Conv1D(2, 4, stride=3, padding="same"), L.MaxPool1D(3, 2, "same")
    model = model_for((9, 2), *windows, seed=1)
    rng = np.random.default_rng(7)
    for steps in range(1, 20):
        check(model, rng.standard_normal((2, steps, 2)).astype("f"), tmp_path / "net.onnx")


@pytest.fixture
def own_form(monkeypatch):
    monkeypatch.setattr(correspondence, "TABLE", {**correspondence.TABLE})

    @exports(Scale)
    def scale(graph, layer, x):
        product = graph.node("Mul", x, graph.param(layer, "gain"))
        return graph.node("Add", product, graph.param(layer, "shift"))


@pytest.mark.usefixtures("own_form")
@pytest.mark.parametrize("start", range(0, 300, 50))
def test_random_networks(start, tmp_path):
    for seed in range(start, start + 50):
        network = exportable(seed, (1, 2, 5))
        opset = random.Random(seed).choice([17, 18, 20, 21, 23, NEWEST])
        check(network.layer, network.cast("float32"), tmp_path / "net.onnx", opset, precision=3e-5)


def test_columns_from_the_end_of_any_number_of_steps(tmp_path):
    model = model_for((4, 3), L.Permute(2, 1), L.Select([-1, 0]))
    model.export_onnx(tmp_path / "net.onnx")
    running = session(tmp_path / "net.onnx")
    for steps in (1, 4, 7):
        X = np.random.default_rng(steps).random((2, steps, 3)).astype("f")
        np.testing.assert_array_equal(running.run(None, {"X": X})[0], model.predict(X))
