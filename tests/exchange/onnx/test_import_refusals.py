"""Graphs written by hand: how `from_onnx` reads them, what it refuses, and files that do harm."""

import itertools
import sys
import tracemalloc

import numpy as np
import pytest

from phitodeep.errors import DataError, MissingExtraError, PhitodeepError
from phitodeep.exchange.onnx.read import activations, products, verifying
from phitodeep.io import from_onnx
from phitodeep.layers import BatchNorm, Dense, Mish, MultiHeadAttention, Permute, Reshape
from tests.conftest import model_for, noted
from tests.exchange.onnx.graphs import floats, nodes, write

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
NO_AXES = np.array([], np.int64)

# --- refused, by name -----------------------------------------------------------------------------


def gelu(root):
    text = "Div x c -> a; Erf a -> b; Add b one -> d; Mul x d -> e; Mul e half name=gelu"
    constants = {"c": root, "one": 1, "half": 0.5}
    return text, [None, 3], {name: np.float32(value) for name, value in constants.items()}


def gelu_tanh(cubic):
    text = (
        "Pow x three -> a; Mul a c -> b; Add x b -> d; Mul d k -> e; Tanh e -> f; Add f one -> g;"
        "Mul x g -> h; Mul h half name=gelu"
    )
    constants = {"three": 3, "c": cubic, "one": 1, "k": (2 / np.pi) ** 0.5, "half": 0.5}
    return text, [None, 3], {name: np.float32(value) for name, value in constants.items()}


GRU = {"W": floats(1, 12, 2), "R": floats(1, 12, 4)}
LSTM = {"W": floats(1, 16, 2), "R": floats(1, 16, 4)}
RNN = {"W": floats(1, 4, 2), "R": floats(1, 4, 4), "z": floats(1, 2, 4)}
ALL_SIDES = "kernel_shape=[3,3] pads=[1,1,1,1] strides=[3,3]"
CORNERS = "mode='linear' coordinate_transformation_mode='align_corners'"
TWICE = {"s": np.array([1, 1, 2, 2], np.float32)}
IF = onnx.helper.make_node(
    *("If", ["c"], ["y"]),
    **dict.fromkeys(("then_branch", "else_branch"), onnx.GraphProto(name="empty")),
)
REFUSED = [
    ("Sin x name=wave", [None, 3], {}, "'wave'.*Sin"),
    ("Cosh x", [None, 3], {}, "Cosh that computes 'y'"),
    (*gelu(1.4), "Add|Erf"),
    (*gelu(2**0.5 * (1 + 3e-6)), "Add|Erf"),
    (*gelu_tanh(0.05), "Add|Mul|Tanh|Pow"),
    ("Gather x i axis=1", [None, 3], {"i": np.array([-4])}, "0 to 2"),
    ("Clip x a b name=six", [None, 3], {"a": np.float32(0), "b": np.float32(6)}, "six"),
    ("GRU x W R hidden_size=4", [5, None, 2], GRU, "linear_before_reset"),
    ("LSTM x W R direction='reverse' hidden_size=4", [5, None, 2], LSTM, "reverse"),
    ("RNN x W R _ _ z hidden_size=4", [5, 2, 2], RNN, "begin at 0"),
    ("MaxPool x -> p i kernel_shape=[2,2]; Cast i to=1", [None, 3, 8, 8], {}, "its output 'i' is"),
    ("MaxPool x kernel_shape=[2,2] dilations=[2,2]", [None, 3, 8, 8], {}, "dilations"),
    (f"AveragePool x {ALL_SIDES}", [None, 3, 6, 6], {}, "leaves out the zeros"),
    ("MaxPool x kernel_shape=[2,2] strides=[2,2] ceil_mode=1", [None, 3, 5, 5], {}, "ceil_mode"),
    (f"Resize x _ s {CORNERS}", [None, 3, 4, 4], TWICE, "half-pixel"),
    ("Resize x _ s", [None, 3, 4], {"s": np.array([1, 1, 2], np.float32)}, "only images"),
    ("Resize x _ s", [None, 3, 4, 4], {"s": np.array([1, 2, 2, 2], np.float32)}, "only images"),
    ("Conv x W pads=[2,0]", [None, 3, 8], {"W": floats(4, 3, 3)}, "unevenly"),
    ("Conv x W group=3", [None, 3, 8], {"W": floats(4, 1, 3)}, "3 channels do not fit 3 groups"),
    ("Conv x W b", [None, 3, 8], {"W": floats(4, 3, 3), "b": floats(3)}, "does not fit 4 filters"),
    ("HardSigmoid x", [None, 3], {}, "no layer"),
    ("ReduceSum x i keepdims=0", [None, 3, 4], {"i": np.array([1])}, "ReduceSum.*no layer"),
    ("Gather x i", [None, 3], {"i": np.array([0])}, "selects samples of the batch"),
    ("ReduceMean x axes=[0]", [None, 3], {}, "batch"),
    ("Transpose x perm=[1,0]", [None, 3], {}, "batch"),
    ("Reshape x s", [2, 6], {"s": np.array([3, 4])}, "batch"),
    ([IF], [None, 3], {"c": np.array(True)}, "If"),
    ("ArgMax x -> a; Cast a to=1", [None, 3], {}, "labels"),
    ("Identity c", [None, 3], {"c": floats(2, 3)}, "not depend"),
    ("Cast x to=10", [None, 3], {}, "type 10"),
    ("Clip x a", [None, 3], {"a": np.float32(1e-30)}, "Clip.*no layer"),
    ("Clip x a", [None, 3], {"a": np.float32(-1e-8)}, "Clip.*no layer"),
    ("LeakyRelu x alpha=1", [None, 3], {}, "damaged: .*alpha"),
    ("Relu x; Tanh x", [None, 3], {}, "damaged: .*names multiple times"),
    ("Relu z", [None, 3], {}, "damaged: .*'z'"),
    ("Div one x name=inverse", [None, 3], {"one": np.float32(1)}, "'inverse'.*: no layer"),
]


def test_what_is_not_covered_is_refused_by_name(tmp_path):
    for *graph, named in REFUSED:
        path = write(tmp_path, *graph, opset=17)
        with noted(graph[0]), pytest.raises(PhitodeepError, match=f"(?s){named}"):
            from_onnx(path)
    for graph in (gelu(2**0.5), gelu_tanh(0.044715)):  # the right constants
        (layer,) = from_onnx(write(tmp_path, *graph)).layers
        assert type(layer).__name__ == "GELU"


def test_several_inputs_or_outputs(tmp_path):
    path = write(tmp_path, "Relu x; ArgMax y -> label axis=1", [None, 3], {})
    proto = onnx.load(path)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("label", 7, [None, 1]))
    onnx.save(proto, path)
    assert repr(from_onnx(path).layers) == "[ReLU()]"  # labels are left out
    proto.graph.output[1].CopyFrom(onnx.helper.make_tensor_value_info("x", 1, [None]))
    onnx.save(proto, path)
    assert from_onnx(path).returns == ("y", "x")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [3]))
    onnx.save(proto, path)
    with pytest.raises(DataError, match=r"the input 'w' of .* must have the batch as its first"):
        from_onnx(path)
    proto.graph.input[1].CopyFrom(onnx.helper.make_tensor_value_info("w", 1, [None, 3]))
    onnx.save(proto, path)
    with pytest.raises(PhitodeepError, match="nobody reads 'w'"):
        from_onnx(path)


def test_a_missing_file_and_another_file(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"\x08\x07hello")
    for name, says in (("none.onnx", "no such file"), ("", "a folder"), ("a.onnx", r"a\.onnx")):
        with pytest.raises(DataError, match=says):
            from_onnx(tmp_path / name)


def test_without_onnx_the_error_names_the_extra(tmp_path, monkeypatch):
    model = model_for((3,), Dense(3, 2))
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (from_onnx, model.export_onnx):
        with pytest.raises(MissingExtraError, match=r"phitodeep\[onnx\]"):
            call(tmp_path / "a.onnx")


THRESHOLDS = (  # each differs from an activation, or from nothing, in some interval
    "Abs x -> a; Greater a t -> g; Where g x zero",
    "Abs x -> a; Less a t -> g; Where g zero x",
    "Mul x k -> s; Abs s -> a; Greater a t -> g; Where g s zero",
    "Abs x -> a; Greater a t -> g; Where g x zero -> w; Mul w k",
    "Relu x -> r; Greater r t -> g; Where g r zero",
    "Relu x -> r; Greater x t -> g; Where g r zero",
    "Relu x -> r; Greater t x -> g; Where g zero r",
    "Relu x -> r; Less x t -> g; Where g zero r",
    "Relu x -> r; Mul x k -> s; Sub s t -> d; Greater d zero -> g; Where g r zero",
    "Relu x -> r; Mul x x -> s; Greater s t -> g; Where g r zero",
    "Relu x -> r; Clip x zero t -> c; Div c t -> d; Mul r d",
    "Relu x -> r; Sub x t -> d; Abs d -> a; Greater a narrow -> g; Where g r zero",
    "Relu x -> r; Sub x t -> d; Div narrow d -> e; Add e one -> f; Mul r f",
)


def test_no_interval_is_too_narrow(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "MOST_NODES", -1)  # the rules alone must be right
    factors = [(text, k) for text in THRESHOLDS for k in (1e-6, 1e3)[: 1 + (" k" in text)]]
    for (text, k), power in itertools.product(factors, range(-30, 31, 20)):
        arrays = {"t": 10.0**power, "k": k, "zero": 0, "one": 1, "narrow": 1e-12}
        arrays = {name: np.float32(value) for name, value in arrays.items()}
        path = write(tmp_path, text, [None, 3], arrays)
        with noted(f"{text} {power} {k}"), pytest.raises(DataError, match="no layer comp"):
            from_onnx(path)


# --- read as these layers, which compute the same -------------------------------------------------

POOL = "MaxPool x -> p kernel_shape=[2,2] strides=[2,2]; Flatten p -> f; "
PIXELS = {"i": np.array([1, 11, 4])}
SCALED = "Sub x m -> a; Div a s -> b; Sub one b"
CONSTANTS = {"m": floats(3, 1, 1), "s": floats(3, 1, 1) ** 2 + 1, "one": np.float32(1)}
SOFTPLUS = "Mul x one -> s; Greater s t -> g; Softplus x -> p; Where g x p"
CROP = {"a": np.array([0]), "b": np.array([2]), "c": np.array([2])}
BOTH = "MatMul x W -> z; Sigmoid z -> p; Sub c p -> q; Concat q p axis=1"
LAYER_NORM = (
    "ReduceMean x last -> m; Sub x m -> d; Mul d d -> s; ReduceMean s last -> v; Add v eps -> w;"
    "Sqrt w -> r; Div d r -> n; "
)
RMS_NORM = "Mul x x -> s; ReduceMean s last -> v; Add v eps -> w; Pow w power -> r; Mul x r -> n; "
NORM = {"eps": 0.01, "power": -0.5, "zero": 0, "tiny": 1e-12}
NORM = {name: np.float32(value) for name, value in NORM.items()} | {"last": np.array([-1])}
NORM |= {"g": floats(4), "b": floats(4) + 1, "rows": floats(3, 1) + 2}
READ = [
    (f"{LAYER_NORM}Mul n g -> o; Add o b", [None, 3, 4], NORM, "LayerNorm"),
    (f"{LAYER_NORM}Mul n rows", [None, 3, 4], NORM, ""),
    (f"{RMS_NORM}Mul n g", [None, 4], NORM, "RMSNorm"),
    (f"{RMS_NORM}Add n b", [None, 4], NORM, "RMSNorm BatchNorm"),
    ("Conv x W pads=[0,1,0,1]", [None, 3, 5, 5], {"W": floats(4, 3, 1, 3)}, "Conv2D"),
    ("Conv x W pads=[1,2,0,1]", [None, 3, 5, 5], {"W": floats(4, 3, 1, 3)}, "ZeroPad2D Conv2D"),
    (POOL + "Gemm f W", [None, 3, 4, 4], {"W": floats(12, 4)}, "MaxPool2D Flatten Dense"),
    (POOL + "Gather f i axis=1", [None, 3, 4, 4], PIXELS, "MaxPool2D Flatten Select"),
    ("Slice x a b c", [None, 3, 5, 2], CROP, "Permute Select Permute"),
    (SCALED, [None, 3, 2, 2], CONSTANTS, "Permute BatchNorm BatchNorm Permute"),
    ("Conv x W -> h; Mul h s", [None, 2, 4, 4], {"W": floats(2, 2, 1, 1), "s": floats(4)}, ""),
    (BOTH, [None, 3], {"W": floats(3, 1), "c": np.float32(1)}, "Dense Dense Softmax"),
    (BOTH, [None, 3], {"W": floats(3, 1), "c": np.float32(2)}, "Dense Sigmoid Parallel"),
    ("ReduceSum x noop_with_empty_axes=1", [None, 3], {}, ""),
    ("Resize x _ s", [None, 3, 4, 4], {"s": np.array([1, 1, 2, 3], np.float32)}, "Upsample2D"),
    *((f"{name.capitalize()} x", [None, 9], {}, name) for name in ("ELU", "CELU", "SELU")),
    *((f"{name} x", [None, 9], {}, name) for name in ("Softplus", "Softsign", "HardSwish")),
    *((f"LeakyRelu x alpha={alpha}", [None, 9], {}, "LeakyReLU") for alpha in (0.01, 1.0, 1e-20)),
    (SOFTPLUS, [None, 9], {"one": np.float32(1), "t": np.float32(20)}, "Softplus"),
    ("LayerNormalization x g", [None, 4], {"g": floats(4)}, "LayerNorm"),
    ("HardSigmoid x alpha=0.16666667", [None, 9], {}, "HardSigmoid"),
]


def assert_computes(path, wanted, x):
    """Read a file whose input may have its channels moved to the end; return the model."""
    model = from_onnx(path)
    moved = model.input_shape != x.shape[1:]
    found = model.predict(np.moveaxis(x, 1, -1) if moved else x)
    found = np.moveaxis(found, -1, 1) if moved else found
    np.testing.assert_allclose(found, wanted.reshape(found.shape), rtol=1e-5, atol=1e-6)
    return model


def evaluated(path, x):
    return onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": x})[0]


def test_graphs_are_read(tmp_path):
    for *graph, kinds in READ:
        with noted(graph[0]):
            path, x = write(tmp_path, *graph), floats(2, *graph[1][1:])
            model = assert_computes(path, evaluated(path, x), x)
            if kinds:
                assert [type(layer).__name__ for layer in model.layers] == kinds.split()
            assert all(layer.trainable != isinstance(layer, BatchNorm) for layer in model.layers)


def test_settings_and_layouts(tmp_path):
    arrays = {name: floats(3) ** 2 for name in "sbmv"}
    text = "BatchNormalization x s b m v momentum=0.8"
    (norm,) = from_onnx(write(tmp_path, text, [None, 3], arrays)).layers
    assert norm.momentum == 0.2
    text = "LSTM x W R B -> a hidden_size=4; Squeeze a one"  # with both biases
    arrays = {**LSTM, "B": floats(1, 32), "one": np.array([1])}
    path, x = write(tmp_path, text, [5, 3, 2], arrays), floats(5, 3, 2)
    found = from_onnx(path).predict(x.swapaxes(0, 1))
    np.testing.assert_allclose(found.swapaxes(0, 1), evaluated(path, x), atol=1e-6)
    own_order = Permute(3, 1, 2), Reshape(-1), Dense(2)  # which is not a layout
    model = model_for((2, 3, 4), *own_order, seed=1)
    model.export_onnx(path)
    again, X = from_onnx(path), floats(5, 2, 3, 4)
    assert again.input_shape == (2, 3, 4)
    np.testing.assert_allclose(again.predict(X), model.predict(X), atol=1e-6)


def softmax(x):
    e = np.exp(x.reshape(-1, 12))
    return e / e.sum(1, keepdims=True)


def standardised(x):
    scale, shift, mean, var = (floats(3)[:, None] ** 2 + i for i in range(4))
    return scale * (x - mean) / np.sqrt(var + 1e-5) + shift


def pooled(function, outside):
    """Return the pool of windows (2, 2), with one row and one column added at the end."""

    def compute(x):
        x = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=outside)
        return function(np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)), (-1, -2))

    return compute


ENDS = "kernel_shape=[2,2] pads=[0,0,1,1]"
NOT_THE_EVALUATORS = [
    ("Softmax x", 11, (3, 4), softmax),
    ("BatchNormalization x s b m v", 9, (3, 4), standardised),
    (f"MaxPool x {ENDS}", 18, (2, 4, 5), pooled(np.max, -np.inf)),
    (f"AveragePool x {ENDS} count_include_pad=1", 19, (2, 4, 5), pooled(np.mean, 0)),
    (f"AveragePool x {ENDS}", 19, (2, 4, 5), pooled(np.nanmean, np.nan)),
    ("GlobalMaxPool x", 18, (3, 4), lambda x: x.max(2)),
]


def test_what_the_evaluator_computes_wrongly_is_read(tmp_path):
    arrays = {key: floats(3) ** 2 + i for i, key in enumerate("sbmv")}
    for text, opset, shape, expected in NOT_THE_EVALUATORS:
        path, x = write(tmp_path, text, ["N", *shape], arrays, opset=opset), floats(2, *shape)
        with noted(text):
            assert_computes(path, expected(x), x)


@pytest.mark.parametrize("axes", ["", "axes"])
@pytest.mark.parametrize("noop", [0, 1])
def test_a_reduction_without_axes(noop, axes, tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "MOST_NODES", -1)  # the rules alone must be right
    arrays, x = {"c": floats(4), "axes": NO_AXES}, floats(2, 4)
    text = f"ReduceMax c {axes} -> m noop_with_empty_axes={noop} keepdims=0; Add x m"
    wanted = x + (arrays["c"] if noop else arrays["c"].max())
    assert_computes(write(tmp_path, text, ["N", 4], arrays), wanted, x)
    path = write(tmp_path, f"ReduceMax x {axes} keepdims=0", ["N", 3, 4], arrays)
    with pytest.raises(DataError, match="ReduceMax that computes 'y' reduces the batch"):
        from_onnx(path)


def attention(path, change, **settings):
    """Write an attention, with some of its constants changed."""
    model = model_for((3, 8), MultiHeadAttention(4, **settings), seed=1)
    model.export_onnx(path)
    proto = onnx.load(path)
    changed = 0
    for tensor in proto.graph.initializer:
        a = onnx.numpy_helper.to_array(tensor)
        new = change(a)
        if new is not None:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(new, a.dtype), tensor.name))
            changed += 1
    assert changed
    onnx.save(proto, path)
    return path


def another_scale(a):
    return 0.5 if a.shape == () and a == np.float32(1 / np.sqrt(2)) else None


def apart(a):
    """Keys that serve queries which are not neighbours."""
    return [0, 0, 1, 2, 2] if a.tolist() == [0, 0, 2, 1, 2] else None


def test_other_norms_and_attentions_are_refused(tmp_path):
    for old, new, shape in (
        ("m; Sub", "m keepdims=0; Sub", [4, 4, 4]),
        ("Add v eps -> w", "Identity v -> w", [None, 3, 4]),
        ("Div d", "Abs d -> f; Greater f tiny -> h; Where h d zero -> e; Div e", [None, 3, 4]),
    ):
        text = f"{LAYER_NORM.replace(old, new)}Mul n g"
        with noted(text), pytest.raises(DataError, match="no layer"):
            from_onnx(write(tmp_path, text, shape, NORM))
    for change, kv_heads in ((another_scale, 4), (apart, 2)):
        path = attention(tmp_path / "a.onnx", change, kv_heads=kv_heads)
        with pytest.raises(DataError, match="no layer"):
            from_onnx(path)


SCORES = "Transpose x -> t perm=[0,2,1]; MatMul x t -> s; Mul s root -> r; Softmax r -> p"
UPPER = np.triu(np.full((3, 3), -np.inf), 1)
MASKS = {  # for three steps, and whether they hide the later steps, and nothing else
    "infinite": (UPPER, True),
    "low": (np.maximum(UPPER, -1e31)[None], True),
    "boolean": (UPPER == 0, True),
    "not low": (np.maximum(UPPER, -1e4), False),
    "earlier steps": (UPPER.T, False),
    "its own step": (UPPER + np.diag([0, -np.inf, 0]), False),
    "two steps ahead": (np.triu(UPPER, 2), False),
    "nothing": (np.zeros((3, 3)), False),
    "a bias": (np.where(UPPER, UPPER, np.tri(3)), False),
    "the same for all": (UPPER[:1], False),
    "inverted": (UPPER != 0, False),
}


def test_a_mask_is_causal_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "MOST_NODES", -1)  # the rule alone must be right
    x = floats(2, 3, 4)
    S = np.where(np.tri(3), x @ x.swapaxes(1, 2) / 2, -np.inf)
    P = np.exp(S - S.max(2, keepdims=True))
    for name, (mask, causal) in MASKS.items():
        added = "Where m r low -> z" if mask.dtype == bool else "Add r m -> z"
        text = f"{SCORES.replace('Softmax r', f'{added}; Softmax z')}; MatMul p x"
        arrays = {"root": np.float32(0.5), "low": np.float32(-1e31)}
        arrays["m"] = mask if mask.dtype == bool else mask.astype(np.float32)
        path = write(tmp_path, text, [None, 3, 4], arrays)
        with noted(name):
            if causal:
                model = assert_computes(path, P / P.sum(2, keepdims=True) @ x, x)
                assert model.layers[-1].causal
            else:
                with pytest.raises(DataError, match="no layer"):
                    from_onnx(path)


# --- harm -----------------------------------------------------------------------------------------

DOUBLING = "; ".join(f"Concat c{i} c{i} -> c{i + 1} axis=0" for i in range(60))
RANGE = {"a": np.array(0), "b": np.array(1 << 50), "d": np.array(1), "W": floats(2, 3)}
BOMBS = [
    ("ConstantOfShape s -> c; Add x c", {"s": np.array([1 << 20, 1 << 20])}),
    ("Expand o s -> c; Add x c", {"o": np.ones(1, np.float32), "s": np.array([1 << 40, 3])}),
    ("Range a b d -> c; Gather W c -> e; Add x e", RANGE),
    (
        "Gather W i -> a; Gather a i -> b; Add x b",
        {"W": floats(2, 3), "i": np.zeros((300, 300), np.int64)},
    ),
    (f"{DOUBLING}; Add x c60", {"c0": floats(1, 3)}),
    ("Reshape W s -> c; Add x c", {"W": floats(2, 3), "s": np.array([1 << 62, -1])}),
]
HUGE = 1 << 45
HUGE_ARRAYS = {
    "c": np.full(1, 2, np.float32),
    "i": np.array([0]),
    "e": np.array([HUGE - 1]),
    "one": np.array([1]),
    "eps": np.float32(1e-5),
    "root": np.float32(HUGE**-0.5),
}
RMS = "Mul x x -> a; ReduceMean a one -> b; Add b eps -> d; Sqrt d -> f; Div x f"
HUGE_SIZES = [  # and whether a model can be made
    ("Mul x c", [None, HUGE], False),
    ("Relu x", [None, HUGE], True),
    ("LayerNormalization x c", [None, HUGE], False),
    ("Slice x i e one", [None, HUGE], False),
    (f"{SCORES}; MatMul p x", [None, 4, HUGE], False),
    (RMS, [None, HUGE], False),
    ("Gather x e axis=1", [None, HUGE], True),
    ("Split x -> y z axis=1 num_outputs=2", [None, HUGE], False),
]


def assert_little_memory(path, read):
    tracemalloc.start()
    try:
        if read:
            from_onnx(path)
        else:
            with pytest.raises(PhitodeepError):
                from_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * path.stat().st_size + (1 << 26)


def test_no_file_makes_large_arrays(tmp_path):
    from_onnx(write(tmp_path, "Relu x", [None, 3], {}))  # imports are made
    for text, arrays in BOMBS:
        with noted(text[:40]):
            assert_little_memory(write(tmp_path, text, [None, 3], arrays), read=False)
    for text, shape, read in HUGE_SIZES:
        with noted(text):
            assert_little_memory(write(tmp_path, text, shape, HUGE_ARRAYS), read)


@pytest.mark.parametrize("op", ["Relu x", "Mul x x"])
def test_many_nodes_take_linear_time(op, tmp_path):
    def lines(n):  # of Python that run
        chain = [op.replace("x", f"v{i}" if i else "x") + f" -> v{i + 1}" for i in range(n)]
        path = write(tmp_path, nodes("; ".join([*chain, f"Tanh v{n}"])), [None, 3], {})
        counted, before = itertools.count(), sys.gettrace()

        def trace(*_):
            next(counted)
            return trace

        sys.settrace(trace)
        try:
            model = from_onnx(path)
        finally:
            sys.settrace(before)
        assert len(model.layers) == n + 1
        return next(counted)

    lines(10)  # imports
    assert lines(160) < 9 * lines(20)


def external(folder, location, offset="8", length="24"):
    """Write a Dense whose weights are in another file."""
    tensor = onnx.TensorProto(name="W", data_type=1, dims=[3, 2], data_location=1)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    return write(folder, "MatMul x W", [None, 3], {"W": tensor})


def test_external_data_next_to_the_file(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 8 + floats(3, 2).tobytes())
    path = external(tmp_path, "w.bin")
    np.testing.assert_array_equal(from_onnx(path).layers[0].params["W"], floats(3, 2))
    does_not_fit = r"^the constant 'W' in \S+a\.onnx does not fit the file w\.bin\.$"
    damaged = "damaged offset or length"
    for offset, length, message in (
        *(("12", "24", does_not_fit), ("8", "20", does_not_fit), ("8", "9" * 30, does_not_fit)),
        *(("-8", "24", damaged), ("x", "24", damaged)),
    ):
        external(tmp_path, "w.bin", offset, length)
        with pytest.raises(DataError, match=message):
            from_onnx(path)
    (tmp_path / "w.bin").unlink()
    external(tmp_path, "w.bin")
    with pytest.raises(DataError, match=r"in the file 'w\.bin', which is missing"):
        from_onnx(path)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("location", ["../w.bin", "sub/w.bin", "ABSOLUTE", "link.bin", "..", ""])
def test_external_data_is_never_elsewhere(location, checked, tmp_path, monkeypatch):
    if not checked:  # our own check, if ONNX had none
        monkeypatch.setattr(onnx.checker, "check_model", lambda path: None)
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    for place in (tmp_path / "w.bin", inside / "sub" / "w.bin"):
        place.write_bytes(b"\0" * 32)
    (inside / "link.bin").symlink_to(tmp_path / "w.bin")
    where = str(tmp_path / "w.bin") if location == "ABSOLUTE" else location
    with pytest.raises(DataError, match="only read from the same folder"):
        from_onnx(external(inside, where))


def test_a_wrong_rule_is_caught(tmp_path, monkeypatch):
    """If a rule were wrong, the comparison with the graph would name the output."""
    path = write(tmp_path, "Softplus x -> a name=soft; Add a c", [None, 3], {"c": floats(3)})
    from_onnx(path)
    monkeypatch.setattr(activations, "with_values", lambda *_: Mish())
    with pytest.raises(DataError, match=r"output is 'y'.*would compute something else"):
        from_onnx(path)
    monkeypatch.setattr(verifying, "MOST_NODES", 1)  # a large graph is not evaluated
    from_onnx(path)


def test_wrong_weights_are_caught(tmp_path, monkeypatch):
    path = write(tmp_path, "MatMul x W", [None, 3], {"W": floats(3, 3)})
    parts = products.dense_parts

    def transposed(step):
        x, W, b = parts(step)
        return x, W.T, b

    monkeypatch.setattr(products, "dense_parts", transposed)
    with pytest.raises(DataError, match="would compute something else"):
        from_onnx(path)
