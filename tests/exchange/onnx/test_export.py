"""ONNX files: what is in them, how they are checked, and what is refused.

Here, ONNX's own reference evaluator runs them; `test_export_runtime.py` does with onnxruntime.
"""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from phitodeep import layers as L
from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, NotBuiltError
from phitodeep.exchange import correspondence
from phitodeep.exchange.onnx.write import export
from phitodeep.exchange.onnx.write.forms import exports
from phitodeep.functional.rotary import DynamicRope
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model import architectures as models
from tests.conftest import assert_weights, model_for
from tests.exchange import several
from tests.random_networks import Gate, Ladder, Scale, randomize

NEWEST = onnx.defs.onnx_opset_version()
# its functions may do anything; base classes; what its layer has
NOT_EXPORTED = {"Lambda", "Layer", "Param", "State", "Shared"}


def built(*parts, shape, **settings):
    model = model_for(shape, *parts, seed=1, **settings)
    return randomize(model, np.random.default_rng(1), 0.5)


def exported(model, path, opset=20):
    model.export_onnx(path, opset)
    return onnx.load(path)


def operators(proto):
    return Counter(node.op_type for node in proto.graph.node)


def shapes(proto):
    values = (*proto.graph.input, *proto.graph.output)
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


def gpt(**settings):
    model = models.gpt(11, 8, layers=2, heads=2, dim=8, **settings).build()
    return randomize(model, np.random.default_rng(2), 0.5)


def cnn():
    first, second = L.Conv2D(4, 3, padding="same"), L.Conv2D(4, 3, padding="same")
    inside = L.Residual(second, L.PReLU()), L.SkipConcat(L.Dropout(0.5), L.GroupNorm(2))
    layers = first, L.BatchNorm(), L.ReLU(), L.MaxPool2D(2), *inside, L.Flatten(), L.Dense(3)
    return built(*layers, shape=(6, 6, 2))


def table():
    tokens = L.Chain(L.Select([2], tokens=True), L.Embedding(7, 3), L.Flatten())
    return built(L.Parallel(L.Select([0, 1]), tokens), L.Dense(2), shape=(3,))


TURNED = {"causal": True, "rope": True}
LLAMA = {**TURNED, "norm": "rms", "activation": "swiglu"}
SOME = {
    "cnn": cnn,
    "gpt": gpt,
    "rotary": lambda: built(
        L.Embedding(5, 8), L.TransformerBlock(2, **LLAMA), L.SinusoidalEncoding(), shape=(6,)
    ),
    "shared keys": lambda: built(L.MultiHeadAttention(4, kv_heads=2, **TURNED), shape=(5, 8)),
    "lstm": lambda: built(L.LSTM(3), L.LSTM(4, return_sequences=False), L.Dense(2), shape=(5, 3)),
    "gru": lambda: built(L.Bidirectional(L.GRU(3), merge="add"), L.Tanh(), shape=(5, 3)),
    "table": table,
    "video": lambda: built(
        L.TimeDistributed(L.Chain(L.Conv2D(2, 2), L.Flatten())), L.LSTM(3), shape=(4, 3, 3, 1)
    ),
}


def sample(model, n, steps=None):
    shape = model.input_shape or ()
    if steps is not None:
        shape = (steps, *shape[1:])
    rng = np.random.default_rng(3)
    if model.takes_tokens:
        return rng.integers(0, 5, (n, *shape))
    X = rng.standard_normal((n, *shape)).astype(model.dtype)
    if isinstance(model.layers[0], L.Parallel):
        X[:, 2] = rng.integers(0, 7, n)
    return X


@pytest.mark.parametrize("name", SOME)
def test_the_reference_evaluator_predicts_the_same(name, tmp_path):
    model = SOME[name]()
    for opset in (17, 20, min(26, NEWEST)):
        proto = exported(model, tmp_path / "net.onnx", opset)
        for n, steps in ((3, None), (1, 2 if "T" in shapes(proto)[0] else None)):
            X = sample(model, n, steps)
            try:
                (Y,) = ReferenceEvaluator(proto).run(None, {"X": X})
            except NotImplementedError:
                continue  # the installed onnx does not run all of its operators
            wanted = model.predict(X)
            assert Y.dtype == wanted.dtype
            limit = 1e-5 * max(1, np.abs(wanted).max())
            np.testing.assert_allclose(Y, wanted, rtol=0, atol=limit, err_msg=f"opset {opset}")


# --- what is in a file ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", several.NETWORKS)
def test_networks_with_several_inputs_and_outputs(make, tmp_path):
    model, X = several.built(make)
    proto = exported(model, tmp_path / "net.onnx")
    found = ReferenceEvaluator(proto).run([*model.returns], X)
    for (name, wanted), Y in zip(several.predicted(model, X).items(), found, strict=True):
        np.testing.assert_allclose(Y, wanted, rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_steps_of_each_input_have_a_name(tmp_path):
    builder = SequentialBuilder(a=(4,), b=(5, 3)).at("a").embedding(20, 3).name("vectors")
    builder.at("b").gru(3, return_sequences=False).output("code").at("b").concat("b").output("b2")
    model = builder.at("vectors").output("c").build()
    proto = exported(model, tmp_path / "net.onnx")
    dims = [["N", "T_a"], ["N", "T_b", 3], ["N", 3], ["N", "T_b", 6], ["N", "T_a", 3]]
    assert shapes(proto) == dims
    text = "code (N, 3), b2 (N, T_b, 6), c (N, T_a, 3) from a (N, T_a), b (N, T_b, 3)"
    assert text in proto.doc_string


def test_every_public_layer_has_a_form():
    without = {name for name in L.__all__ if not has_form(getattr(L, name))}
    assert without == NOT_EXPORTED


def has_form(kind):
    return any(
        correspondence.TABLE[base].onnx for base in kind.__mro__ if base in correspondence.TABLE
    )


@pytest.mark.parametrize("name", SOME)
def test_a_file_consists_of_standard_operators_and_our_parameters(name, tmp_path):
    model = SOME[name]()
    proto = exported(model, tmp_path / "net.onnx")
    assert {node.domain for node in proto.graph.node} == {""}
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 20)]
    assert (proto.producer_name, proto.producer_version) == ("phitodeep", __version__)
    assert not proto.functions
    assert not proto.metadata_props
    assert "no mask" in proto.doc_string
    assert "channels are on the last axis" in proto.doc_string
    paths = [path for path, _ in model.walk()]
    for node in proto.graph.node:
        path, slash, operator = node.name.rpartition("/")
        assert (path in paths) if slash else node is proto.graph.node[-1], node.name
        assert not slash or operator.startswith(node.op_type)
    read = {"Y", *(name for node in proto.graph.node for name in node.input)}
    assert all({*node.output} - {""} <= read and node.output[-1] for node in proto.graph.node)
    names = {a.name for a in proto.graph.initializer}
    joined = (".bh", ".layer", ".reverse")  # in b, and in one array for both directions
    assert {path for path in model.get_weights() if not any(j in path for j in joined)} <= names
    largest = sum(a.nbytes for a in model.get_weights().values())
    assert (tmp_path / "net.onnx").stat().st_size < largest + 12_000  # stored once


def test_a_tied_weight_is_stored_once(tmp_path):
    embedding = L.Embedding(2000, 16)
    model = built(embedding, L.Tanh(), L.TiedDense(embedding), shape=(4,))
    exported(model, tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size < 2000 * 16 * 4 + 2000


def test_axes_are_moved_only_where_the_layout_changes(tmp_path):
    def count(model):
        return operators(exported(model, tmp_path / "net.onnx"))["Transpose"]

    assert count(cnn()) == 2  # at the start, and before the Flatten
    images = (8, 8, 3)
    pooled = L.Conv2D(4, 3), L.BatchNorm(), L.ReLU(), L.GlobalAvgPool()
    assert count(built(*pooled, shape=images)) == 1
    assert count(built(L.Conv2D(4, 3), L.Permute(3, 1, 2), L.Flatten(), shape=images)) == 1
    chain = L.Chain(L.MaxPool2D(1), L.ReLU())
    inception = L.Parallel(L.Conv2D(2, 3, padding="same"), chain, L.Tanh())
    assert count(built(inception, L.MaxPool2D(2), shape=images)) == 3
    assert count(built(L.LSTM(3), L.Tanh(), L.Dense(4), L.LSTM(2), shape=(5, 3))) == 2
    assert count(built(L.LSTM(3), L.LSTM(2, return_sequences=False), L.Dense(1), shape=(5, 3))) == 1
    assert count(built(L.Bidirectional(L.GRU(3), merge="add"), L.GRU(2), shape=(5, 3))) == 2
    assert count(built(L.Permute(2, 1), L.Permute(2, 1), L.Dense(2), shape=(5, 3))) == 0
    assert count(built(L.Conv1D(3, 2), L.ReLU(), L.Conv1D(3, 2), shape=(9, 3))) == 2


def test_positions_are_computed_once(tmp_path):
    model = built(*(L.TransformerBlock(2, **TURNED) for _ in range(3)), shape=(5, 8))
    found = operators(exported(model, tmp_path / "net.onnx"))
    assert [found[op] for op in ("Shape", "Range", "Cos", "Sin", "GreaterOrEqual")] == [1] * 5
    assert found["Where"] == 3


def test_an_operator_is_used_from_the_version_that_has_it(tmp_path):
    for layer, operator, since in (
        (L.GELU(), "Gelu", 20),
        (L.GELU("tanh"), "Gelu", 20),
        (L.Mish(), "Mish", 18),
        (L.RMSNorm(), "RMSNormalization", 23),
        (L.GroupNorm(2), "GroupNormalization", 21),
    ):
        model = built(layer, shape=(3, 4))
        for opset in (since - 1, min(since, NEWEST)):
            used = operators(exported(model, tmp_path / "net.onnx", opset))
            assert (operator in used) == (opset >= since)


def test_small_models(tmp_path):
    """ONNX's momentum is the weight of the running statistics, and ours that of the batch."""
    proto = exported(built(L.BatchNorm(momentum=0.3, eps=0.2), shape=(3,)), tmp_path / "net.onnx")
    found = {a.name: a.f for a in proto.graph.node[0].attribute}
    assert found == {"momentum": pytest.approx(0.7), "epsilon": pytest.approx(0.2)}
    nothing = built(L.Dropout(0.5), shape=(3,))
    nothing.export_onnx(tmp_path / "net.onnx")
    proto = onnx.load(tmp_path / "net.onnx")
    assert operators(proto) == {"Identity": 1}
    assert (proto.opset_import[0].version, proto.ir_version) == (20, 9)  # the defaults


DYNAMIC = L.MultiHeadAttention(1, rope=DynamicRope(2.0, 4))
# Its zeros depend on the number of steps, in a way that not all programs know.
STRIDED = L.Conv1D(2, 3, stride=2, dilation=2, padding="same")
SIZES = [
    (cnn, "N 6 6 2", "N 3"),
    (gpt, "N T", "N T 11"),
    (SOME["lstm"], "N T 3", "N 2"),
    (SOME["video"], "N T 3 3 1", "N T 3"),
    (SOME["table"], "N 3", "N 2"),
    (lambda: built(L.Conv1D(2, 3), shape=(9, 2)), "N T 2", "N Y1 2"),
    (lambda: built(L.Conv1D(2, 3), L.Flatten(), L.Dense(1), shape=(9, 2)), "N 9 2", "N 1"),
    (lambda: built(L.Flatten(), L.Tanh(), shape=(3, 2)), "N T 2", "N Y1"),
    (lambda: built(L.Permute(2, 1), shape=(3, 2)), "N T 2", "N 2 T"),
    (lambda: built(L.Tanh(), shape=(3,)), "N 3", "N 3"),
    (lambda: built(L.Parallel(L.Flatten(), L.Flatten()), shape=(2, 2, 3)), "N 2 2 3", "N 24"),
    (lambda: built(STRIDED.copy(), shape=(9, 2)), "N 9 2", "N 5 2"),
    (lambda: built(DYNAMIC.copy(), shape=(6, 4)), "N 6 4", "N 6 4"),
    (lambda: built(L.Reshape(-1, 2, 1), shape=(6, 2)), "N T 2", "N T 2 1"),
]


def test_sizes_that_may_differ_have_names(tmp_path):
    for make, *expected in SIZES:
        model = make()
        found = shapes(exported(model, tmp_path / "net.onnx"))
        assert [" ".join(map(str, shape)) for shape in found] == expected, model


def test_tokens_come_in_and_go_out_as_integers(tmp_path):
    X, select = np.array([[1, 2, 3.0]], np.float32), L.Select([1, 0], tokens=True)
    for layers, wanted, dtype in (
        ([select], [[2, 1]], np.int64),
        ([select.copy(), L.Tanh()], np.tanh([[2, 1]]), np.float32),
    ):
        proto = exported(built(*layers, shape=(3,)), tmp_path / "net.onnx")
        (Y,) = ReferenceEvaluator(proto).run(None, {"X": X})
        assert Y.dtype == dtype
        np.testing.assert_allclose(Y, wanted, rtol=1e-6)


def test_large_weights_are_in_a_file_of_their_own(tmp_path, monkeypatch):
    model = gpt()
    small = exported(model, tmp_path / "net.onnx")
    monkeypatch.setattr(export, "LARGEST", 1000)
    monkeypatch.setattr(export, "SMALL", 100)
    large = exported(model, tmp_path / "big.onnx")  # with its weights
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.onnx", "big.onnx.data", "net.onnx"]
    assert (tmp_path / "big.onnx.data").stat().st_size > 3000
    raw = onnx.load(tmp_path / "big.onnx", load_external_data=False)
    outside = [a.name for a in raw.graph.initializer if a.external_data]
    assert "0.W" in outside
    assert "2.layers.0.layers.0.gamma" not in outside
    onnx.checker.check_model(str(tmp_path / "big.onnx"), full_check=True)
    X = sample(model, 2)
    found = [ReferenceEvaluator(p).run(None, {"X": X})[0] for p in (small, large)]
    np.testing.assert_array_equal(found[0], found[1])


class Named(L.Dense):
    """A layer that computes what its base class does."""

    def flops(self):
        return 1


@pytest.fixture
def own_forms(monkeypatch):
    monkeypatch.setattr(correspondence, "TABLE", {**correspondence.TABLE})


@pytest.mark.usefixtures("own_forms")
def test_a_layer_of_ones_own(tmp_path):
    @exports(Scale)
    def scale(graph, layer, x):
        product = graph.node("Mul", x, graph.param(layer, "gain"))
        return graph.node("Add", product, graph.param(layer, "shift"))

    @exports(Gate)
    def gate(graph, layer, x):
        return graph.node("Mul", *(graph.add(part, x) for part in layer.inside.values()))

    assert scale.__name__ == "scale"
    correspondence.declare(Named, "numpy", "exports")(np.abs)  # in ONNX, it is still a Dense
    gated = Gate(L.Chain(Scale(), L.Dense(3)), L.Dense(3))
    model = built(L.Conv2D(2, 2), gated, Named(2), shape=(4, 4, 1))
    proto = exported(model, tmp_path / "net.onnx")
    X = sample(model, 2)
    (Y,) = ReferenceEvaluator(proto).run(None, {"X": X})
    np.testing.assert_allclose(Y, model.predict(X), rtol=1e-4, atol=1e-5)
    assert "1.inside.value.layers.0.gain" in {a.name for a in proto.graph.initializer}


@pytest.mark.usefixtures("own_forms")
def test_a_wrong_form_is_found_before_anything_is_written(tmp_path, monkeypatch):
    model = built(Scale(), shape=(3,))
    wrong_forms = [
        lambda graph, layer, x: graph.node("Multiply", x, 2.0),
        lambda graph, layer, x: graph.node("Mul", x, np.ones((5, 7), np.float32)),
        lambda graph, layer, x: graph.node("Mul", x, np.ones(3)),  # float64
        lambda graph, layer, x: graph.node("Softmax", x, axes=3),
    ]
    for form in wrong_forms:
        exports(Scale)(form)
        for limit in (export.LARGEST, 10):
            with monkeypatch.context() as patch:
                patch.setattr(export, "LARGEST", limit)
                patch.setattr(export, "SMALL", min(limit, export.SMALL))
                with pytest.raises(ArgumentError, match="the graph is not valid ONNX"):
                    model.export_onnx(tmp_path / "net.onnx")
    wrong = [Scale(), int, "Scale"]
    for kind in wrong:
        with pytest.raises(ArgumentTypeError, match="exports takes a class of layers"):
            exports(kind)
    assert not [*tmp_path.iterdir()]


# --- what is refused ------------------------------------------------------------------------------


def square():
    return L.Lambda(np.square, lambda dY, X, Y: 2 * X * dY)


def test_layers_without_an_operator_are_named_by_their_paths(tmp_path):
    gated = Gate(L.Dense(2), Ladder(L.Dense(2)))
    model = built(L.Dense(2), L.Residual(L.Tanh(), square()), gated, shape=(3,))
    with pytest.raises(ArgumentError) as error:
        model.export_onnx(tmp_path / "net.onnx")
    message = str(error.value)
    named = "layer 1.layers.1, Lambda(square, <lambda>), layer 2, Gate("
    assert message.startswith(f"export_onnx cannot export {named}")
    assert "layer 2.inside.gate, Ladder(Dense(2" in message
    assert "ONNX has no operator for them" in message
    assert "@phitodeep.exchange.onnx.write.forms.exports(YourLayer)" in message
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ArgumentError, match="no operator for it"):
        built(square(), shape=(3,)).export_onnx(tmp_path / "net.onnx")


def test_a_wrong_opset_or_path_is_refused(tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    model, newest = built(L.Dense(2), shape=(3,)), min(28, NEWEST)
    opsets = [-1, 0, 16, 29, 10**9]
    for opset in opsets:
        with pytest.raises(ArgumentError, match=rf"from 17 to {newest}, got {opset}\."):
            model.export_onnx(tmp_path / "net.onnx", opset)
    opsets = [True, 20.0, "20", None]
    for opset in opsets:
        with pytest.raises(ArgumentTypeError, match="opset must be an integer"):
            model.export_onnx(tmp_path / "net.onnx", opset)
    for path in ("net", "net.onnx.txt", ".onnx"):
        with pytest.raises(ArgumentError, match=r"must end in \.onnx"):
            model.export_onnx(tmp_path / path)
    with pytest.raises(DataError, match="cannot write"):
        model.export_onnx(tmp_path / "folder.onnx")
    with pytest.raises(NotBuiltError, match="does not know its input shape"):
        Sequential(L.Dense(2)).export_onnx(tmp_path / "net.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.onnx"]


def test_an_export_changes_nothing_in_the_model(tmp_path):
    model = cnn()
    before = model.get_weights()
    layer = model.layers[0]
    layer.W.flags.writeable = False
    model.export_onnx(tmp_path / "net.onnx")
    first = (tmp_path / "net.onnx").read_bytes()
    model.export_onnx(tmp_path / "net.onnx")  # replaces it
    assert (tmp_path / "net.onnx").read_bytes() == first
    assert_weights(model, before)
