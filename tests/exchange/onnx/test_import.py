"""What `export_onnx` wrote comes back as the same network, from the graph alone."""

import numpy as np
import pytest

import phitodeep
from phitodeep import inference
from phitodeep import layers as L
from phitodeep.exchange.onnx.write.export import export_onnx
from phitodeep.io import from_onnx
from phitodeep.model import architectures as models
from phitodeep.testing.examples import data, made
from tests.conftest import model_for, noted
from tests.exchange import several
from tests.exchange.onnx.graphs import mangled
from tests.exchange.rows import EACH
from tests.exchange.several import MODELS, exportable
from tests.random_networks import Scale
from tests.rows import LONG, times

onnx = pytest.importorskip("onnx")

PRECISION = 1e-6  # relative to the largest output
CASES = [
    (i, *row)
    for i, row in enumerate(EACH)
    if not any(isinstance(part, L.Lambda) for _, part in row[0]().walk())
]
NOTHING = (  # layers that only matter in training, or only group others
    *(L.Chain, L.Dropout, L.GaussianNoise, L.SpatialDropout, L.RandomFlip, L.RandomShift),
    *(L.FeedForward, L.TransformerBlock, L.GradientReversal),
)
OTHERWISE = (  # layers that come back as others that compute the same
    *(L.Reparameterize, L.SwiGLU, L.GEGLU, L.RandomCrop, L.TimeDistributed, L.TiedDense),
    *(L.Flatten, L.Reshape, L.Permute, L.Parallel, L.LowRank, L.Shared),
)


def kinds(layer):
    parts = [part for path, part in layer.walk() if path]
    return [type(part).__name__ for part in parts if not isinstance(part, NOTHING)]


def assert_same(a, b, precision=PRECISION):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= precision * (np.abs(a).max(initial=0) + 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("opset", [17, 20, min(23, onnx.defs.onnx_opset_version())])
def test_every_layer_comes_back(opset, dtype, tmp_path):
    path = tmp_path / "a.onnx"
    part = opset % 3 + 3 * (dtype == "float64")  # a sixth of the rows, or all in a long run
    for i, make, shape, *tokens in CASES if LONG else CASES[part::6]:
        layer = made(make, shape, dtype=dtype)
        if isinstance(layer, L.Wired):  # merges that a tree does not have
            continue
        model = model_for(shape[1:], layer, dtype=dtype)
        model.export_onnx(path, opset=opset)
        mangled(path, seed=i)
        X, _ = data(layer, shape, *tokens)
        with noted(f"row {i}: {layer!r} on {shape}"):
            again = from_onnx(path)
            assert_same(model.predict(X), again.predict(X))
            if not any(isinstance(part, OTHERWISE) for _, part in layer.walk()):
                assert kinds(again) == kinds(model)


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back(name, tmp_path):
    make, shape, tokens = MODELS[name]
    model = make().seed(3).build()
    model.build(shape[1:])
    rng = np.random.default_rng(3)
    X = rng.integers(0, tokens, shape) if tokens else rng.standard_normal(shape)
    path = tmp_path / "a.onnx"
    model.export_onnx(path)
    mangled(path, seed=3)
    again = from_onnx(path)
    assert_same(model.predict(X), again.predict(X), 2e-6)
    assert again.count_params() == model.count_params()
    if tokens:  # any number of steps
        assert_same(model.predict(X[:, :5]), again.predict(X[:, :5]), 2e-6)
    mapped = kinds(again) == kinds(model)
    assert mapped or name in ("lenet", "vae", "untied")  # LeNet's last pool is a global one


@pytest.mark.parametrize("make", several.NETWORKS[:4])
def test_networks_with_several_inputs_and_outputs_come_back(make, tmp_path):
    model, X = several.built(make)
    model.export_onnx(tmp_path / "a.onnx")
    again = from_onnx(tmp_path / "a.onnx")
    if model.inputs > 1:
        assert again.takes == model.takes
    assert "Permute" not in repr(again)
    for k, Y in several.results(model, X).items():
        assert_same(Y, several.results(again, X)[k], 1e-9)


def test_random_networks_come_back(tmp_path):
    path = tmp_path / "a.onnx"
    for seed in range(times(8)):
        net = exportable(seed, (2, 3), (Scale,), states=False, single=True)  # as from_onnx takes
        export_onnx(net.layer, path, 20)
        mangled(path, seed)
        with inference():
            wanted = net.layer.forward(net.X)
        with noted(net):
            assert_same(wanted, from_onnx(path).predict(net.X), 1e-9)


def test_an_imported_model_can_do_all_that_others_can(tmp_path):
    model = models.gpt(9, 12, layers=1, heads=2, dim=8).seed(3).build()
    model.build((12,))
    model.export_onnx(tmp_path / "a.onnx")
    again = from_onnx(tmp_path / "a.onnx")
    X = np.random.default_rng(3).integers(0, 9, (4, 6))
    again.setloss("softmax_cross_entropy")
    before = again.predict(X)
    again.train(X, X, epochs=2, verbose=0)
    assert np.abs(again.predict(X) - before).max() > 1e-4
    again.save(tmp_path / "a.safetensors")
    loaded = phitodeep.load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(loaded.predict(X), again.predict(X))
    again.export_onnx(tmp_path / "b.onnx")
    assert_same(again.predict(X), from_onnx(tmp_path / "b.onnx").predict(X))
    assert again.generate(X[:1, :3], 4, temperature=0).shape[-1] >= 4
    copied = again.copy()
    np.testing.assert_array_equal(copied.predict(X), again.predict(X))
