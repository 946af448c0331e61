"""Every layer computes in PyTorch what it computes here, and comes back."""

import copy
import io
import pickle
import re
from typing import ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep.core.call import inference
from phitodeep.core.types import one
from phitodeep.errors import ArgumentError, ArgumentTypeError, NotBuiltError
from phitodeep.exchange.correspondence import TABLE
from phitodeep.exchange.torch import modules
from phitodeep.exchange.torch.layouts import outer, to_ours
from phitodeep.exchange.torch.pairs import counterpart
from phitodeep.exchange.torch.write.writing import export_torch
from phitodeep.functional.rotary import LongRope, Rope, YarnRope
from phitodeep.io import from_torch, to_torch
from phitodeep.model.network import Network
from phitodeep.optimization.optimizers import SGD
from phitodeep.testing.examples import EXAMPLES, TOKENS, cube, cube_gradient, data, made
from phitodeep.testing.examples import passes as our_passes
from tests.conftest import assert_same, model_for
from tests.exchange.several import NETWORKS, built, exportable, predicted, results, two_heads, unet
from tests.exchange.torch.support import draws, tensor, their_passes
from tests.random_networks import Gate, Ladder, Scale

ROWS = [(*row, 0)[:3] for row in [*EXAMPLES, *TOKENS]]
ROWS = [row for row in ROWS if not isinstance(row[0](), L.Lambda)]
INEXACT = ("CELU", "HardSigmoid")  # PyTorch computes with constants in single precision


def name(row):
    return f"{row[0]()!r}-{row[1]}"[:90]


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_every_layer_and_back(row):
    make, shape, tokens = row
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    before = layer.get_weights()
    model = from_torch(to_torch(layer), shape[1:])
    with inference():
        expected = layer.forward(X)
    found = model.predict(X)
    small = found.dtype == np.float32  # a module without parameters
    precision = {"rtol": 1e-5, "atol": 1e-6} if small else {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(found, expected, **precision)
    assert_same(layer.get_weights(), before, rtol=0)
    check_passes(layer, X, dY, training=False)
    single = isinstance(layer, L.BatchNorm) and shape[0] == 1  # PyTorch refuses a single row
    if not draws(layer) and not single:
        check_passes(layer, X, dY, training=True)


def check_passes(layer, X, dY, training):
    ours = our_passes(layer, X, dY, training=training)
    ours = {key: a for key, a in ours.items() if re.fullmatch(r"(Y|dX)\d*", key)}
    tied = any(isinstance(part, L.TiedDense) for _, part in layer.walk())
    own = {path: a for path, a in layer.gradients().items() if "embedding" not in path}
    exact = not any(part in repr(layer) for part in INEXACT)
    theirs = their_passes(layer, X, dY, training)
    if tied and not own:  # its embedding is outside
        theirs = {key: theirs[key] for key in ours}
    assert_same(theirs, ours | own, rtol=1e-9 if exact else 1e-6, atol=1e-10 if exact else 1e-7)


@pytest.mark.parametrize("make", NETWORKS)
def test_networks_take_their_inputs_in_order_and_return_outputs_by_name(make):
    model, X = built(make)
    module = to_torch(model)
    given = [tensor(a, outer(a.shape[1:])).detach() for a in X.values()]
    found, wanted = pickle.loads(pickle.dumps(module))(*given), predicted(model, X)
    found = found if len(wanted) > 1 else {model.returns[0]: found}
    assert [*found] == [*wanted]
    for name, Y in wanted.items():
        y = to_ours(found[name].detach().numpy(), outer(Y.shape[1:]))
        np.testing.assert_allclose(y, Y, rtol=1e-9, atol=1e-12, err_msg=name)
    spare = sum(a.numel() for a in module.parameters() if not a.requires_grad)  # second biases
    assert sum(a.numel() for a in module.parameters()) == model.count_params() + spare
    again = from_torch(module, model.input_shape)
    assert again.count_params() == model.count_params()
    assert_same(results(again, X), results(model, X), rtol=1e-9, atol=1e-12)
    if not draws(model):
        shapes = tuple([a.shape for a in X.values()])
        dY = data(model, shapes if len(shapes) > 1 else shapes[0])[1]
        check_passes(model, one([*X.values()], len(X) == 1), dY, training=True)


def test_a_written_program_takes_any_number_of_samples(tmp_path):
    model, X = built(unet)
    export_torch(model, tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    given = tensor(*X.values(), "first").detach()
    for n in (1, 5):
        Y = to_ours(program(given[:n]).detach().numpy(), "first")
        wanted = model.predict(X["input"][:n])
        np.testing.assert_allclose(Y, wanted, rtol=1e-9, atol=1e-12)


SETTINGS = [
    L.MultiHeadAttention(2, rope=True),
    L.MultiHeadAttention(
        3, causal=True, kv_heads=1, rope=YarnRope(4.0, 64), head_dim=2, bias=False
    ),
    L.MultiHeadAttention(2, rope=LongRope([1.0], [3.0], 3)),
    L.ScaledDotProductAttention(1, rope=Rope(50.0), dropout=0.3),
    L.LowRank(3, 2, alpha=5.0),
    L.RotaryEmbedding(77.0),
    L.Select([0, -1]),
]


@pytest.mark.parametrize("layer", SETTINGS, ids=repr)
def test_settings_come_back(layer):
    layer = layer.copy()
    layer.build((3, 6) if isinstance(layer, L.ScaledDotProductAttention) else (3, 4))
    module = to_torch(layer)
    assert repr(from_torch(module, layer.input_shape).layers) == f"[{layer!r}]"
    X = np.random.default_rng(0).standard_normal((2, 9, layer.input_shape[1])).astype("float32")
    with inference():  # the angles are those of the longer sequence
        expected = layer.forward(X)
    found = pickle.loads(pickle.dumps(module))(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_updates_and_what_is_frozen_come_back():
    model = model_for((3, 3, 2), L.Conv2D(3, 2), L.Flatten(), L.Dense(4), dtype="float64", seed=0)
    model.add_lora(rank=2)
    found = from_torch(to_torch(model), (3, 3, 2))
    X = np.random.default_rng(0).standard_normal((2, 3, 3, 2))
    np.testing.assert_allclose(found.predict(X), model.predict(X), rtol=1e-12)
    assert [type(part) for _, part in found.walk() if part.params and part.trainable] == [L.LowRank]


def test_tokens_of_several_axes_come_back():
    model = model_for((3, 4), L.TimeDistributed(L.Embedding(9, 2)))
    X = np.random.default_rng(0).integers(0, 9, (2, 3, 4))
    np.testing.assert_array_equal(from_torch(to_torch(model), (3, 4)).predict(X), model.predict(X))


def test_functions_of_pytorch_are_modules():
    module = modules.sin()
    assert pickle.loads(pickle.dumps(module))(torch.ones(1)) == torch.ones(1).sin()
    for name in ("no_such_function", "_C", "__path__"):
        assert not hasattr(modules, name)


@pytest.mark.parametrize("seed", range(60))
def test_random_networks_both_ways(seed):
    network = exportable(seed, (2, 3), (Scale, L.GradientReversal), size=3, depth=2, single=True)
    chain, X = network.layer, network.X
    if any(len(part.input_shape or ()) > 4 for _, part in chain.walk()):
        pytest.skip("has samples with more axes than PyTorch's norms take")
    dY = np.random.default_rng(seed).standard_normal((len(X), *chain.output_shape))
    for training in (False,) if draws(chain) else (False, True):
        try:
            check_passes(chain, X, dY, training)
        except (ValueError, RuntimeError) as error:  # a batch norm of one row, or no gradient
            if not re.search("more than 1 value per channel|does not require grad", str(error)):
                raise
    if any(isinstance(part, L.Wired | L.Shared) for _, part in chain.walk()):
        return  # trees alone come back
    model = from_torch(to_torch(chain), X.shape[1:])
    with inference():
        expected = chain.forward(X)
    single = model.dtype == np.float32
    precision = {"rtol": 1e-3, "atol": 1e-4} if single else {"rtol": 1e-8, "atol": 1e-9}
    np.testing.assert_allclose(model.predict(X), expected, **precision)


def image_model(dtype="float64"):
    layers = L.Conv2D(4, 3), L.BatchNorm(), L.ReLU(), L.MaxPool2D(2), L.Flatten(), L.ReLU()
    return model_for((8, 6, 2), *layers, L.Dense(5), L.Dense(3), seed=0, dtype=dtype)


def test_layouts_and_names():
    module = to_torch(image_model())
    assert (module.input_layout, module.output_layout) == ("NCHW", "NC")
    assert not module.training
    names = [name for name, _ in module.named_parameters()]
    assert names[:4] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert names[4:] == ["6.weight", "6.bias", "7.weight", "7.bias"]
    assert not any("Channels" in type(m).__name__ for m in module.modules())  # nothing is moved
    X = np.random.default_rng(0).standard_normal((5, 8, 6, 2))
    found = module(torch.from_numpy(X.transpose(0, 3, 1, 2).copy())).detach().numpy()
    np.testing.assert_allclose(found, image_model().predict(X), rtol=1e-12)
    nested = to_torch(model_for((4,), L.Residual(L.Dense(4), L.Chain(L.Dense(4)))))
    names = [name for name, _ in nested.named_parameters()]
    assert names[0] == "0.layers.0.weight"
    assert names[2] == "0.layers.1.layers.0.weight"
    tokens = to_torch(model_for((3,), L.Embedding(5, 4), L.MultiHeadAttention(2)))
    assert (tokens.input_layout, tokens.output_layout) == ("NT", "NTC")
    # A Dense of images takes the channels last.
    module = to_torch(model_for((2, 3, 4), L.Conv2D(4, 1), L.Dense(3)))
    assert (module.input_layout, module.output_layout) == ("NCHW", "NCHW")
    assert sum("Channels" in type(m).__name__ for m in module.modules()) == 2
    assert to_torch(built(two_heads)[0]).input_layout == {"image": "NCHW", "words": "NT"}


def test_a_network_inside_another_one():
    uses = [(L.Conv2D(5, 1), ["u"], ["w"]), (L.Flatten(), ["u"], ["v"])]
    inner = L.Wired(["u"], uses, ["v", "w"])
    model = Network(["a"], [(inner, ["a"], ["flat", "maps"])], ["maps", "flat"], loss_class={})
    model.build((3, 4, 2))
    module = to_torch(model)
    assert module.output_layout == {"maps": "NCHW", "flat": "NC"}
    assert next(name for name, _ in module.named_parameters()) == "0.layers.0.weight"
    found = module(torch.ones(1, 2, 3, 4))
    assert [found[name].shape[1:] for name in ("maps", "flat")] == [(5, 3, 4), (24,)]


def test_a_flatten_that_no_dense_follows_keeps_our_order():
    model = model_for((4, 3, 2), L.Conv2D(3, 2), L.Flatten(), dtype="float64")
    X = np.random.default_rng(0).standard_normal((2, 4, 3, 2))
    found = to_torch(model)(torch.from_numpy(X.transpose(0, 3, 1, 2).copy()))
    np.testing.assert_allclose(found.detach().numpy(), model.predict(X), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_and_copies(dtype):
    model = image_model(dtype)
    module = to_torch(model)
    wanted = getattr(torch, dtype)
    assert {p.dtype for p in module.parameters()} == {wanted}
    assert module[1].running_mean.dtype == wanted
    with torch.no_grad():
        for p in [*module.parameters(), module[1].running_mean]:
            p.zero_()
    assert all(a.any() for path, a in model.get_weights().items() if path.endswith("W"))
    again = from_torch(module, (8, 6, 2))
    assert again.dtype == np.dtype(dtype)
    for p in module.parameters():
        p.data.fill_(1)
    assert not any(a.any() for p, a in again.get_weights().items() if "running" not in p)


def test_pickles_and_state_dicts():
    layers = L.Embedding(6, 4), L.TransformerBlock(2, rope=True), L.Dense(4)
    model = Sequential(*layers, dtype="float64")
    model.add(L.TiedDense(model.layers[0]))
    model.build((5,))
    module = to_torch(model)
    X = np.random.default_rng(0).integers(0, 6, (2, 5))
    expected = module(torch.from_numpy(X))
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert torch.equal(other(torch.from_numpy(X)), expected)
        assert other[-1].weight is other[0].weight
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = to_torch(model)
    with torch.no_grad():
        for p in fresh.parameters():
            p.zero_()
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(fresh(torch.from_numpy(X)), expected)


def test_making_a_module_draws_no_random_numbers():
    before = torch.get_rng_state()
    to_torch(image_model())
    assert torch.equal(torch.get_rng_state(), before)


def test_one_step_of_training_in_both():
    rng = np.random.default_rng(0)
    for layers, shape in (
        ([L.Conv2D(3, 2), L.BatchNorm(), L.ReLU(), L.Flatten(), L.Dense(4)], (4, 3, 2)),
        ([L.LSTM(3), L.TransformerBlock(1), L.LSTM(2, return_sequences=False), L.Dense(4)], (4, 3)),
    ):
        options = {"loss_class": "softmax_cross_entropy", "dtype": "float64"}
        model = model_for(shape, *layers, optimizer=SGD(0.1), **options)
        X, y = rng.standard_normal((6, *shape)), rng.integers(0, 4, 6)
        module = to_torch(model).train()
        given = tensor(X, outer(shape)).detach()
        torch.nn.functional.cross_entropy(module(given), torch.from_numpy(y)).backward()
        torch.optim.SGD(module.parameters(), 0.1).step()
        model.train(X, y, epochs=1, verbose=0, batch_size=6)
        trained = from_torch(module, shape)
        np.testing.assert_allclose(trained.predict(X), model.predict(X), rtol=1e-9, atol=1e-12)


def test_frozen_layers():
    model = image_model()
    model.layers[0].trainable = model.layers[1].trainable = False
    module = to_torch(model).train()
    learns = {name: p.requires_grad for name, p in module.named_parameters()}
    frozen = [name for name, yes in learns.items() if not yes]
    assert frozen == ["0.weight", "0.bias", "1.weight", "1.bias"]
    X = np.random.default_rng(0).standard_normal((5, 8, 6, 2))
    found = module(torch.from_numpy(X.transpose(0, 3, 1, 2).copy()))  # running statistics
    np.testing.assert_allclose(found.detach().numpy(), model.predict(X), rtol=1e-12)
    again = from_torch(module, (8, 6, 2))
    assert [layer.trainable for layer in again.layers[:3]] == [False, False, True]


def test_a_layer_without_a_counterpart_is_named_by_its_path():
    model = model_for((3,), L.Dense(3), L.Residual(L.Dense(3), L.Lambda(cube, cube_gradient)))
    with pytest.raises(ArgumentError, match=r"layer 1\.layers\.1, Lambda\(cube.*counterpart of it"):
        to_torch(model)
    with pytest.raises(NotBuiltError, match="input shape"):
        to_torch(Sequential(L.Dense(3)))
    with pytest.raises(ArgumentTypeError, match="takes a model or a layer, got 3"):
        to_torch(3)
    for user in (Ladder(L.Dense(3)), Gate(L.Dense(3), L.Dense(3)), Scale()):
        model = model_for((3,), L.Dense(3), user)
        with pytest.raises(ArgumentError, match="cannot export layer 1, "):
            to_torch(model)
    model = model_for((2, 2, 2, 2, 2), L.BatchNorm())
    with pytest.raises(ArgumentError, match=r"path '0'\) has samples with 5 axes"):
        to_torch(model)


class TorchScale(torch.nn.Module):
    moves: ClassVar = {"gain": "gain", "shift": "shift"}

    def __init__(self, layer):
        super().__init__()
        self.gain, self.shift = (torch.nn.Parameter(torch.tensor(a)) for a in layer.params.values())

    def forward(self, X):
        return X * self.gain + self.shift

    def as_layer(self):
        return Scale()


def test_authors_may_declare_a_counterpart():
    assert counterpart(Scale)(TorchScale) is TorchScale
    try:
        layers = L.Conv2D(3, 2), Scale(), L.Flatten(), L.Dense(2)
        model = made(lambda: L.Chain(*layers), (2, 3, 3, 2))
        X, dY = data(model, (2, 3, 3, 2))
        ours = our_passes(model, X, dY)
        ours = {k: ours[k] for k in ("Y", "dX")} | model.gradients()
        assert_same(their_passes(model, X, dY, True), ours, rtol=1e-10, atol=1e-12)
        again = from_torch(to_torch(model), (3, 3, 2))
        assert any(isinstance(part, Scale) for part in again.layers)
        np.testing.assert_allclose(again.predict(X), ours["Y"], rtol=1e-10)
    finally:
        TABLE.pop(Scale)
    with pytest.raises(ArgumentTypeError, match="takes a class of layers"):
        counterpart(TorchScale)
