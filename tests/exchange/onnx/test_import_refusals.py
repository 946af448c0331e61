"""What `from_onnx` refuses: operators without a layer, by name, and files that would do harm."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phitodeep.errors import DataError, MissingExtraError, PhitodeepError
from phitodeep.exchange.onnx.read import rules_activations, rules_general, verifying
from phitodeep.io import from_onnx
from phitodeep.layers import BatchNorm, Conv2D, Dense, MultiHeadAttention, Permute, Reshape, Select
from phitodeep.model import Sequential

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
helper = onnx.helper
Arrays = dict[str, Any]


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """A node whose names are single letters or words, such as `node("Add", "x b", "y")`."""
    name = attributes.pop("name", "")
    domain = attributes.pop("domain", None)
    given = ["" if i == "_" else i for i in inputs.split()]
    return helper.make_node(op, given, outputs.split(), name=name, domain=domain, **attributes)


def write(
    path: Path,
    nodes: Sequence[Any],
    shape: Sequence[Any],
    arrays: Arrays,
    opset: int = 18,
    kind: int = 1,
) -> Path:
    """Write a graph from x (`shape`) to y."""
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", 1, [None])
    constants = [
        a if isinstance(a, onnx.TensorProto) else onnx.numpy_helper.from_array(np.asarray(a), name)
        for name, a in arrays.items()
    ]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(proto.SerializeToString())
    return path


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# --- by name --------------------------------------------------------------------------------------

BEYOND = {"i": np.array([-4])}
LIMITS = {"a": np.float32(0), "b": np.float32(6)}
EMPTY = onnx.GraphProto(name="empty")
REFUSED: dict[str, tuple[list[Any], list[Any], Arrays, str]] = {
    "an operator without a layer": ([node("Sin", "x", name="wave")], [None, 3], {}, "'wave'.*Sin"),
    "without a name": ([node("Cosh", "x")], [None, 3], {}, "Cosh that computes 'y'"),
    "a wrong constant": (
        [
            node("Div", "x c", "a"),
            node("Erf", "a", "b"),
            node("Add", "b one", "d"),
            node("Mul", "x d", "e"),
            node("Mul", "e half", name="gelu"),
        ],
        [None, 3],
        {"c": np.float32(1.4), "one": np.float32(1), "half": np.float32(0.5)},
        "Add|Erf",
    ),
    "a wrong cubic": (
        [
            node("Pow", "x three", "a"),
            node("Mul", "a c", "b"),
            node("Add", "x b", "d"),
            node("Mul", "d k", "e"),
            node("Tanh", "e", "f"),
            node("Add", "f one", "g"),
            node("Mul", "x g", "h"),
            node("Mul", "h half", name="gelu"),
        ],
        [None, 3],
        {
            "three": np.float32(3), "c": np.float32(0.05), "one": np.float32(1),
            "k": np.float32((2 / np.pi) ** 0.5), "half": np.float32(0.5),
        },
        "Add|Mul|Tanh|Pow",
    ),
    "an index out of range": ([node("Gather", "x i", axis=1)], [None, 3], BEYOND, "0 to 2"),
    "ReLU6": ([node("Clip", "x a b", name="six")], [None, 3], LIMITS, "six"),
    "another GRU": (
        [node("GRU", "x W R", hidden_size=4)],
        [5, None, 2],
        {"W": floats(1, 12, 2), "R": floats(1, 12, 4)},
        "linear_before_reset",
    ),
    "a reverse LSTM": (
        [node("LSTM", "x W R", direction="reverse", hidden_size=4)],
        [5, None, 2],
        {"W": floats(1, 16, 2), "R": floats(1, 16, 4)},
        "reverse",
    ),
    "a first state": (
        [node("RNN", "x W R _ _ z", hidden_size=4)],
        [5, 2, 2],
        {"W": floats(1, 4, 2), "R": floats(1, 4, 4), "z": floats(1, 2, 4)},
        "begin at 0",
    ),
    "dilated pools": (
        [node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 2])],
        [None, 3, 8, 8],
        {},
        "dilations",
    ),
    "a mean without the zeros": (
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[3, 3])],
        [None, 3, 6, 6],
        {},
        "leaves out the zeros",
    ),
    "ceil_mode": (
        [node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
        [None, 3, 5, 5],
        {},
        "ceil_mode",
    ),
    "a corner-aligned resize": (
        [node("Resize", "x _ s", mode="linear", coordinate_transformation_mode="align_corners")],
        [None, 3, 4, 4],
        {"s": np.array([1, 1, 2, 2], np.float32)},
        "half-pixel",
    ),
    "uneven sequences": (
        [node("Conv", "x W", pads=[2, 0])],
        [None, 3, 8],
        {"W": floats(4, 3, 3)},
        "unevenly",
    ),
    "the batch mixed": ([node("ReduceMean", "x", axes=[0])], [None, 3], {}, "batch"),
    "the batch moved": ([node("Transpose", "x", perm=[1, 0])], [None, 3], {}, "batch"),
    "samples cut": ([node("Reshape", "x s")], [2, 6], {"s": np.array([3, 4])}, "batch"),
    "a branch": (
        [node("If", "c", then_branch=EMPTY, else_branch=EMPTY)],
        [None, 3],
        {"c": np.array(True)},
        "If",
    ),
    "labels": ([node("ArgMax", "x", "a"), node("Cast", "a", to=1)], [None, 3], {}, "labels"),
    "only a constant": ([node("Identity", "c")], [None, 3], {"c": floats(2, 3)}, "not depend"),
    "float16": ([node("Cast", "x", to=10)], [None, 3], {}, "type 10"),
    "shared branches": (
        [
            node("Relu", "x", "a"),
            node("Tanh", "a", "b"),
            node("Sigmoid", "x", "c"),
            node("Add", "b c", "d"),
            node("Add", "d a", name="end"),
        ],
        [None, 3],
        {},
        "'end'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_node(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.checker, "check_model", lambda proto: None)  # so that ours is seen
    nodes, shape, arrays, named = REFUSED[name]
    path = write(tmp_path / "a.onnx", nodes, shape, arrays, opset=17)
    with pytest.raises(PhitodeepError, match=named):
        from_onnx(path)


def test_several_inputs_or_outputs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.onnx", [node("Relu", "x")], [None, 3], {})
    proto = onnx.load(path)
    proto.graph.output.append(helper.make_tensor_value_info("x", 1, [None]))
    onnx.save(proto, path)
    with pytest.raises(DataError, match="the outputs 'y', 'x': a model returns one"):
        from_onnx(path)
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, [3]))
    onnx.save(proto, path)
    with pytest.raises(DataError, match="the inputs 'x', 'w': a model takes exactly one"):
        from_onnx(path)


def test_a_missing_file_and_another_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(DataError, match="it is a folder"):
        from_onnx(tmp_path)
    (tmp_path / "a.onnx").write_bytes(b"\x08\x07hello")
    with pytest.raises(DataError, match=r"a\.onnx"):
        from_onnx(tmp_path / "a.onnx")


def test_without_onnx_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"phitodeep\[onnx\]"):
        from_onnx(tmp_path / "a.onnx")


# --- what comes in --------------------------------------------------------------------------------


def test_zeros_around_one_axis(tmp_path: Path) -> None:
    W = floats(4, 3, 1, 3)
    conv = node("Conv", "x W", pads=[0, 1, 0, 1])
    model = from_onnx(write(tmp_path / "a.onnx", [conv], [None, 3, 5, 5], {"W": W}))
    assert isinstance(model.layers[0], Conv2D)
    assert model.layers[0].padding == "same"
    uneven = node("Conv", "x W", pads=[1, 2, 0, 1])
    model = from_onnx(write(tmp_path / "a.onnx", [uneven], [None, 3, 5, 5], {"W": W}))
    assert [type(layer).__name__ for layer in model.layers] == ["ZeroPad2D", "Conv2D"]


def test_rows_of_a_dense_are_those_of_channels_first(tmp_path: Path) -> None:
    """A Flatten of channels first, after an operator that decides for channels last."""
    W = floats(3 * 2 * 2, 4)
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gemm", "f W"),
    ]
    model = from_onnx(write(tmp_path / "a.onnx", nodes, [None, 3, 4, 4], {"W": W}))
    assert model.input_shape == (4, 4, 3)
    wanted = W.reshape(3, 2, 2, 4).transpose(1, 2, 0, 3).reshape(12, 4)
    np.testing.assert_array_equal(model.layers[-1].params["W"], wanted)


def test_a_permute_of_ours_is_not_a_layout(tmp_path: Path) -> None:
    model = Sequential(Permute(3, 1, 2), Reshape(-1), Dense(2), seed=1)
    model.build((2, 3, 4))
    model.export_onnx(tmp_path / "a.onnx")
    again = from_onnx(tmp_path / "a.onnx")
    assert again.input_shape == (2, 3, 4)
    X = np.random.default_rng(0).standard_normal((5, 2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(again.predict(X), model.predict(X), atol=1e-6)


def test_an_uncentred_crop_selects(tmp_path: Path) -> None:
    arrays = {"a": np.array([0]), "b": np.array([2]), "c": np.array([2])}
    model = from_onnx(
        write(tmp_path / "a.onnx", [node("Slice", "x a b c")], [None, 3, 5, 2], arrays)
    )
    assert any(isinstance(layer, Select) for layer in model.layers)
    X = floats(2, 3, 5, 2)
    np.testing.assert_array_equal(model.predict(X), X[:, :, :2])


def test_constants_that_scale_and_shift(tmp_path: Path) -> None:
    nodes = [node("Sub", "x m", "a"), node("Div", "a s", "b"), node("Sub", "one b")]
    arrays = {"m": floats(3, 1, 1), "s": np.array([[[2.0]], [[3]], [[4]]], np.float32)}
    path = write(tmp_path / "a.onnx", nodes, [None, 3, 2, 2], {**arrays, "one": np.float32(1)})
    model = from_onnx(path)
    assert all(isinstance(layer, BatchNorm | Permute) for layer in model.layers)
    X = floats(2, 3, 2, 2)
    wanted = 1 - (X - arrays["m"]) / arrays["s"]
    np.testing.assert_allclose(model.predict(X), wanted, atol=1e-6)


def evaluated(path: Path, X: Any) -> Any:
    return onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": X})[0]


def test_columns_of_channels_first(tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gather", "f i", axis=1),
    ]
    path = write(tmp_path / "a.onnx", nodes, [None, 3, 4, 4], {"i": np.array([1, 11, 4])})
    X = floats(2, 3, 4, 4)
    found = from_onnx(path).predict(X.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found, evaluated(path, X))


@pytest.mark.parametrize("counted", [0, 1])
def test_a_mean_with_zeros_at_the_end(counted: int, tmp_path: Path) -> None:
    pool = node(
        "AveragePool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=counted
    )
    path = write(tmp_path / "a.onnx", [pool], [None, 3, 4, 4], {}, opset=19)
    X = floats(2, 3, 4, 4)
    wanted = np.pad(X, ((0, 0), (0, 0), (0, 1), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wanted, (2, 2), (2, 3))
    ones = np.lib.stride_tricks.sliding_window_view(
        np.pad(np.ones((4, 4)), ((0, 1), (0, 1))), (2, 2)
    )
    total = windows.sum((-1, -2)) / (4 if counted else ones.sum((-1, -2)))
    found = from_onnx(path).predict(X.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(found, total.transpose(0, 2, 3, 1), atol=1e-6)


@pytest.mark.parametrize("whole", [1, 2])
def test_a_probability_and_its_rest(whole: int, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x W", "z"),
        node("Sigmoid", "z", "p"),
        node("Sub", "c p", "q"),
        node("Concat", "q p", axis=1),
    ]
    arrays = {"W": floats(3, 1), "c": np.float32(whole)}
    path = write(tmp_path / "a.onnx", nodes, [None, 3], arrays)
    model = from_onnx(path)
    assert (type(model.layers[-1]).__name__ == "Softmax") == (whole == 1)
    X = floats(4, 3)
    np.testing.assert_allclose(model.predict(X), evaluated(path, X), atol=1e-6)


def test_both_biases_of_an_lstm(tmp_path: Path) -> None:
    arrays = {"W": floats(1, 16, 2), "R": floats(1, 16, 4), "B": floats(1, 32)}
    nodes = [node("LSTM", "x W R B", "a", hidden_size=4), node("Squeeze", "a one")]
    path = write(tmp_path / "a.onnx", nodes, [5, 3, 2], {**arrays, "one": np.array([1])})
    X = floats(5, 3, 2)
    found = from_onnx(path).predict(X.swapaxes(0, 1))
    np.testing.assert_allclose(found.swapaxes(0, 1), evaluated(path, X), atol=1e-6)


def softmax(a: Any) -> Any:
    e = np.exp(a)
    return e / e.sum(1, keepdims=True)


def standardised(a: Any) -> Any:
    scale, shift, mean, var = (floats(3)[:, None] ** 2 + i for i in range(4))
    return scale * (a - mean) / np.sqrt(var + 1e-5) + shift


def with_zeros(a: Any) -> Any:
    a = np.pad(a, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-np.inf)
    both = np.maximum(a[..., 1:], a[..., :-1])
    return np.maximum(both[:, :, 1:], both[:, :, :-1])


NOT_THE_EVALUATORS: dict[str, tuple[Any, int, tuple[int, ...], Callable[[Any], Any]]] = {
    "Softmax": (node("Softmax", "x"), 11, (3, 4), lambda x: softmax(x.reshape(-1, 12))),
    "BatchNorm": (node("BatchNormalization", "x s b m v"), 9, (3, 4), standardised),
    "MaxPool": (
        node("MaxPool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), 18, (2, 4, 5), with_zeros
    ),
    "GlobalMaxPool": (node("GlobalMaxPool", "x"), 18, (3, 4), lambda x: x.max(2, keepdims=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_THE_EVALUATORS)
def test_what_the_evaluator_computes_wrongly_is_read(name: str, tmp_path: Path) -> None:
    made, opset, shape, expected = NOT_THE_EVALUATORS[name]
    arrays = {key: floats(3) ** 2 + i for i, key in enumerate("sbmv")}
    write(tmp_path / "a.onnx", [made], ["N", *shape], arrays, opset)
    model, x = from_onnx(tmp_path / "a.onnx"), floats(2, *shape)
    first = np.moveaxis(x, 1, -1) if model.input_shape != shape else x
    Y = model.predict(first)
    wanted = np.asarray(expected(x)).reshape(2, -1)
    back = np.moveaxis(Y, -1, 1) if model.input_shape != shape else Y
    np.testing.assert_allclose(back.reshape(2, -1), wanted, rtol=1e-5, atol=1e-6)


NO_AXES = np.array([], np.int64)


def test_a_reduction_without_axes_reduces_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "MOST_NODES", -1)  # the rules alone must be right
    reduce = node("ReduceMax", "x axes", keepdims=0)
    write(tmp_path / "a.onnx", [reduce], ["N", 3, 4], {"axes": NO_AXES})
    with pytest.raises(DataError, match="ReduceMax that computes 'y' reduces the batch"):
        from_onnx(tmp_path / "a.onnx")


@pytest.mark.parametrize("given", ["", " axes"])
@pytest.mark.parametrize("noop", [0, 1])
def test_a_reduction_of_a_constant_without_axes(
    noop: int, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "MOST_NODES", -1)  # before 1.20, onnx computes one otherwise
    table = floats(4)
    reduce = node("ReduceMax", "c" + given, "m", noop_with_empty_axes=noop, keepdims=0)
    write(
        tmp_path / "a.onnx", [reduce, node("Add", "x m")], ["N", 4], {"c": table, "axes": NO_AXES}
    )
    x = floats(2, 4)
    expected = x + (table if noop else table.max())
    np.testing.assert_allclose(from_onnx(tmp_path / "a.onnx").predict(x), expected, rtol=1e-5)


def test_a_reduction_that_does_nothing(tmp_path: Path) -> None:
    reduce = node("ReduceSum", "x", noop_with_empty_axes=1)
    x = floats(2, 3)
    model = from_onnx(write(tmp_path / "a.onnx", [reduce], ["N", 3], {}))
    np.testing.assert_array_equal(model.predict(x), x)


def test_a_scale_along_the_width_leaves_the_features_last(tmp_path: Path) -> None:
    W, scale, x = floats(2, 2, 1, 1), floats(4), floats(3, 2, 4, 4)
    nodes = [node("Conv", "x W", "h"), node("Mul", "h scale")]
    model = from_onnx(write(tmp_path / "a.onnx", nodes, ["N", 2, 4, 4], {"W": W, "scale": scale}))
    expected = np.einsum("nchw,dc->nhwd", x, W[:, :, 0, 0]) * scale[:, None]
    Y = model.predict(x.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(Y, expected, rtol=1e-4, atol=1e-6)


def attention(path: Path, change: Callable[[Any], Any], **settings: Any) -> Path:
    """Write an attention, with some of its constants changed."""
    model = Sequential(MultiHeadAttention(4, **settings), seed=1)
    model.build((3, 8))
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


def test_attention_with_another_scale_is_refused(tmp_path: Path) -> None:
    scale = np.float32(1 / np.sqrt(2))
    path = attention(tmp_path / "a.onnx", lambda a: 0.5 if a.shape == () and a == scale else None)
    with pytest.raises(DataError, match="no layer"):
        from_onnx(path)


def test_keys_for_queries_that_are_not_neighbours_are_refused(tmp_path: Path) -> None:
    def apart(a: Any) -> Any:
        return [0, 0, 1, 2, 2] if a.tolist() == [0, 0, 2, 1, 2] else None

    path = attention(tmp_path / "a.onnx", apart, kv_heads=2)
    with pytest.raises(DataError, match="no layer"):
        from_onnx(path)


# --- harm -----------------------------------------------------------------------------------------

BOMBS: dict[str, tuple[list[Any], Arrays]] = {
    "ConstantOfShape": (
        [node("ConstantOfShape", "s", "c"), node("Add", "x c")],
        {"s": np.array([1 << 20, 1 << 20])},
    ),
    "Expand": (
        [node("Expand", "o s", "c"), node("Add", "x c")],
        {"o": np.ones(1, np.float32), "s": np.array([1 << 40, 3])},
    ),
    "Range": (
        [node("Range", "a b d", "c"), node("Gather", "W c", "e"), node("Add", "x e")],
        {"a": np.array(0), "b": np.array(1 << 50), "d": np.array(1), "W": floats(2, 3)},
    ),
    "Gather": (
        [node("Gather", "W i", "a"), node("Gather", "a i", "b"), node("Add", "x b")],
        {"W": floats(2, 3), "i": np.zeros((300, 300), np.int64)},
    ),
    "doubling": (
        [
            node("Identity", "c0", "c"),
            *(node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(60)),
            node("Add", "x c60"),
        ],
        {"c0": floats(1, 3)},
    ),
    "Reshape": (
        [node("Reshape", "W s", "c"), node("Add", "x c")],
        {"W": floats(2, 3), "s": np.array([1 << 62, -1])},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_constants_do_not_explode(name: str, tmp_path: Path) -> None:
    nodes, arrays = BOMBS[name]
    path = write(tmp_path / "a.onnx", nodes, [None, 3], arrays)
    from_onnx(write(tmp_path / "b.onnx", [node("Relu", "x")], [None, 3], {}))  # imports are made
    tracemalloc.start()
    try:
        with pytest.raises(PhitodeepError):
            from_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * path.stat().st_size + (1 << 26)


@pytest.mark.parametrize(
    "op", ["Mul", "Relu", "Attention", "RMS", "LayerNormalization", "Slice", "Gather", "Split"]
)
def test_sizes_that_no_array_has_take_no_memory(op: str, tmp_path: Path) -> None:
    huge = 1 << 45
    arrays = {"c": np.full(1, 2, np.float32), "i": np.array([0]), "e": np.array([huge - 1])}
    arrays["one"] = np.array([1])
    nodes: dict[str, Any] = {
        "Mul": node("Mul", "x c"),
        "Relu": node("Relu", "x"),
        "LayerNormalization": node("LayerNormalization", "x c"),
        "Slice": node("Slice", "x i e one"),
        "Attention": [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("MatMul", "x t", "s"),
            node("Mul", "s root", "r"),
            node("Softmax", "r", "p"),
            node("MatMul", "p x"),
        ],
        "RMS": [
            node("Mul", "x x", "a"),
            node("ReduceMean", "a one", "b"),
            node("Add", "b eps", "d"),
            node("Sqrt", "d", "f"),
            node("Div", "x f"),
        ],
        "Gather": node("Gather", "x e", axis=1),
        "Split": node("Split", "x", "y z", axis=1, num_outputs=2),
    }
    found = nodes[op] if isinstance(nodes[op], list) else [nodes[op]]
    arrays |= {"eps": np.float32(1e-5), "root": np.float32(huge**-0.5)}
    shape = [None, 4, huge] if op == "Attention" else [None, huge]
    path = write(tmp_path / "a.onnx", found, shape, arrays)
    tracemalloc.start()
    try:
        if op in ("Relu", "Gather"):
            from_onnx(path)
        else:
            with pytest.raises(PhitodeepError):
                from_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 26


def test_many_nodes_take_linear_time(tmp_path: Path) -> None:
    def lines(n: int) -> int:  # of Python that run
        nodes = [node("Relu", f"v{i}" if i else "x", f"v{i + 1}") for i in range(n)]
        nodes.append(node("Tanh", f"v{n}"))
        path = write(tmp_path / "a.onnx", nodes, [None, 3], {})
        counted, before = itertools.count(), sys.gettrace()

        def trace(*_: Any) -> Any:
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
    assert lines(1600) < 9 * lines(200)


def external(path: Path, location: str, offset: str, length: str, place: Path | None) -> None:
    """A Dense whose weights are in another file."""
    W = floats(3, 2)
    tensor = onnx.TensorProto(name="W", data_type=1, dims=[3, 2], data_location=1)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    write(path, [node("MatMul", "x W")], [None, 3], {"W": tensor})
    if place is not None:
        place.write_bytes(b"\0" * 8 + W.tobytes())


def test_external_data_next_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    external(path, "w.bin", "8", "24", tmp_path / "w.bin")
    np.testing.assert_array_equal(from_onnx(path).layers[0].params["W"], floats(3, 2))
    does_not_fit = r"^the constant 'W' in \S+a\.onnx does not fit the file w\.bin\.$"
    for offset, length in (("12", "24"), ("8", "20"), ("8", "9" * 30)):
        external(path, "w.bin", offset, length, None)
        with pytest.raises(DataError, match=does_not_fit):
            from_onnx(path)
    for offset, length in (("-8", "24"), ("x", "24")):
        external(path, "w.bin", offset, length, None)
        with pytest.raises(DataError, match="damaged offset or length"):
            from_onnx(path)
    (tmp_path / "w.bin").unlink()
    external(path, "w.bin", "8", "24", None)
    with pytest.raises(DataError, match=r"in the file 'w\.bin', which is missing"):
        from_onnx(path)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("location", ["../w.bin", "sub/w.bin", "ABSOLUTE", "link.bin", "..", ""])
def test_external_data_is_never_elsewhere(
    location: str, checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checked:  # our own check, if ONNX had none
        monkeypatch.setattr(onnx.checker, "check_model", lambda path: None)
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    for place in (tmp_path / "w.bin", inside / "sub" / "w.bin"):
        place.write_bytes(b"\0" * 32)
    (inside / "link.bin").symlink_to(tmp_path / "w.bin")
    where = str(tmp_path / "w.bin") if location == "ABSOLUTE" else location
    external(inside / "a.onnx", where, "8", "24", None)
    with pytest.raises(DataError, match="only read from the same folder"):
        from_onnx(inside / "a.onnx")


# --- the safety net -------------------------------------------------------------------------------


def test_a_wrong_rule_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rule were wrong, the comparison with the graph would name the node."""
    nodes = [node("Relu", "x", "a"), node("Softplus", "a", name="soft")]
    path = write(tmp_path / "a.onnx", nodes, [None, 3], {})
    from_onnx(path)
    monkeypatch.setitem(rules_activations.LAYERS, "Softplus", rules_activations.LAYERS["Mish"])
    with pytest.raises(DataError, match=r"'soft'.*would compute something else"):
        from_onnx(path)
    monkeypatch.setattr(verifying, "MOST_NODES", 1)  # a large graph is not evaluated
    from_onnx(path)


def test_wrong_weights_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.onnx", [node("MatMul", "x W")], [None, 3], {"W": floats(3, 3)})
    parts = rules_general.dense_parts

    def transposed(step: Any) -> Any:
        x, W, b = parts(step)
        return x, W.T, b

    monkeypatch.setattr(rules_general, "dense_parts", transposed)
    with pytest.raises(DataError, match="would compute something else"):
        from_onnx(path)
