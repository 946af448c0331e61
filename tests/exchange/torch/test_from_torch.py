"""Modules of PyTorch become models that compute and learn the same."""

import copy
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, RLock
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

from phitodeep import Flatten, Permute
from phitodeep.core.call import calling
from phitodeep.core.types import each
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError
from phitodeep.io import from_torch, to_torch
from phitodeep.layers import GRU, Chain, RandomCrop
from phitodeep.model.network import Network
from tests.exchange.several import results
from tests.exchange.torch import networks as N
from tests.exchange.torch.networks import Calls
from tests.exchange.torch.support import quiet, randomised, tensor

CLOSE = {"rtol": 1e-8, "atol": 1e-10}


def assert_same(module, shape, tokens=0, seed=0, axis=-1):
    """Predictions, dX and the parameters after a step of gradient descent are the same.

    axis    where the module takes the channels; images have them first
    """
    module = quiet(randomised(module, seed))
    rng = np.random.default_rng(seed)
    X = rng.integers(0, tokens, (4, *shape)) if tokens else rng.standard_normal((4, *shape))
    given = torch.from_numpy(np.moveaxis(X, -1, 1 if len(shape) == 3 else axis).copy())
    state = {name: t.clone() for name, t in module.state_dict().items()}
    ours = from_torch(module, shape)
    for name, t in module.state_dict().items():
        assert torch.equal(t, state[name]), name

    def as_ours(Y):
        return Y if tuple(Y.shape[1:]) == ours.output_shape else Y.movedim(1, -1)

    module.eval()
    np.testing.assert_allclose(ours.predict(X), as_ours(module(given)).detach().numpy(), **CLOSE)
    module.train()
    given = given.detach().requires_grad_(not tokens)
    Y = as_ours(module(given))
    dY = rng.standard_normal(Y.shape)
    Y.backward(torch.from_numpy(dY))
    with calling(training=True):
        np.testing.assert_allclose(ours.forward(X), Y.detach().numpy(), **CLOSE)
        dX = ours.backward(dY)
    if not tokens:
        their_dX = given.grad.movedim(1, -1) if given.shape[1:] != shape else given.grad
        np.testing.assert_allclose(dX, their_dX.numpy(), **CLOSE)
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.1 * p.grad if p.grad is not None else 0
    trained, weights = from_torch(module, shape), ours.get_weights()
    layers = dict(ours.walk())
    for path, gradient in ours.gradients().items():
        layer = layers[path.rpartition(".")[0]]
        if not layer.trainable:
            continue
        twice = path.endswith(".b") and hasattr(layer, "Wx") and not isinstance(layer, GRU)
        weights[path] -= (0.2 if twice else 0.1) * gradient  # PyTorch has two such biases
    for path, a in trained.get_weights().items():
        np.testing.assert_allclose(a, weights[path], **CLOSE, err_msg=path)
    return ours


Pick = Callable[..., Any]
Modules = dict[str, Callable[[Pick], Any]]
VECTORS = {
    "Linear": lambda pick: nn.Linear(4, pick(1, 3), bias=pick(True, False)),
    "BatchNorm1d": lambda pick: nn.BatchNorm1d(4, eps=pick(1e-5, 0.1), momentum=pick(0.1, 0.6)),
    "LayerNorm": lambda pick: nn.LayerNorm(
        4, eps=pick(1e-5, 0.1), elementwise_affine=pick(True, False)
    ),
    "RMSNorm": lambda pick: nn.RMSNorm(
        4, eps=pick(None, 0.1), elementwise_affine=pick(True, False)
    ),
    "GroupNorm": lambda pick: nn.GroupNorm(pick(1, 2), 4, affine=pick(True, False)),
    "PReLU": lambda pick: nn.PReLU(4),
    "Identity": lambda pick: nn.Identity(),
    "Softmax": lambda pick: pick(nn.Softmax, nn.LogSoftmax)(dim=pick(1, -1)),
}


def picking(seed):
    rng = np.random.default_rng(seed)
    return lambda *options: options[rng.integers(len(options))]


def conv2d(pick):
    padding = pick(0, 1, (1, 0), "same", "valid")
    stride = 1 if padding == "same" else pick(1, 2, (2, 1))
    sizes = (4, pick(2, 6), pick(1, 3, (2, 3)), stride, padding)
    return nn.Conv2d(*sizes, pick(1, 2), pick(1, 2), pick(True, False))


def conv_transpose2d(pick):
    stride, groups = pick(2, 3), pick(1, 2)
    sizes = (4, pick(2, 4), pick(2, 3), stride, pick(0, 1), pick(0, 1), groups)
    return nn.ConvTranspose2d(*sizes, pick(True, False), pick(1, 2))


IMAGES = {
    "Conv2d": conv2d,
    "ConvTranspose2d": conv_transpose2d,
    "MaxPool2d": lambda pick: nn.MaxPool2d(pick(2, (3, 2)), pick(None, 1, (2, 1)), pick(0, 1)),
    "AvgPool2d": lambda pick: nn.AvgPool2d(pick(2, (3, 2)), pick(None, 1), pick(0, 1, (1, 0))),
    "BatchNorm2d": lambda pick: nn.BatchNorm2d(4, eps=pick(1e-5, 0.1), momentum=pick(0.1, 0.6)),
    "GroupNorm": lambda pick: nn.GroupNorm(pick(1, 2, 4), 4),
    "InstanceNorm2d": lambda pick: nn.InstanceNorm2d(4, affine=pick(True, False)),
    "Upsample": lambda pick: nn.Upsample(
        scale_factor=pick(2, (3, 2)), mode=pick("nearest", "bilinear")
    ),
    "ZeroPad2d": lambda pick: nn.ZeroPad2d(pick(1, (0, 1, 2, 0))),
    "AdaptiveAvgPool2d": lambda pick: nn.AdaptiveAvgPool2d(pick(1, (1, 1))),
    "AdaptiveMaxPool2d": lambda pick: nn.AdaptiveMaxPool2d(1),
    "Dropout2d": lambda pick: nn.Dropout2d(0.4),
    "PReLU": lambda pick: nn.PReLU(4),
    "Softmax": lambda pick: nn.Softmax(dim=pick(1, 2, -1)),
    "Flatten": lambda pick: nn.Flatten(),
    "Linear": lambda pick: nn.Linear(5, 2),
}


def conv1d(pick):
    padding = pick(0, 1, "same")
    stride = 1 if padding == "same" else pick(1, 2)
    return nn.Conv1d(4, 2, pick(1, 3), stride, padding, pick(1, 2), pick(1, 2), pick(True, False))


SEQUENCES = {
    "Conv1d": conv1d,
    "ConvTranspose1d": lambda pick: nn.ConvTranspose1d(4, 2, 3, 2, pick(0, 1), pick(0, 1)),
    "MaxPool1d": lambda pick: nn.MaxPool1d(pick(2, 3), pick(None, 1), pick(0, 1)),
    "AvgPool1d": lambda pick: nn.AvgPool1d(pick(2, 3), pick(None, 1), pick(0, 1)),
    "BatchNorm1d": lambda pick: nn.BatchNorm1d(4),
    "InstanceNorm1d": lambda pick: nn.InstanceNorm1d(4, affine=pick(True, False)),
    "AdaptiveAvgPool1d": lambda pick: nn.AdaptiveAvgPool1d(1),
    "Dropout1d": lambda pick: nn.Dropout1d(0.4),
    "Flatten": lambda pick: nn.Sequential(
        nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(28, 3)
    ),
}


FIRST = {  # before each, and the axis of channels
    "vectors": (lambda: nn.Linear(3, 4), (3,), -1),
    "images": (lambda: nn.Conv2d(2, 4, 2), (7, 6, 2), 1),
    "sequences": (lambda: nn.Conv1d(3, 4, 2), (8, 3), 1),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        (inputs, kind)
        for inputs, modules in zip(FIRST, (VECTORS, IMAGES, SEQUENCES), strict=True)
        for kind in modules.items()
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_single_modules(inputs, kind, seed):
    first, shape, axis = FIRST[inputs]
    assert_same(nn.Sequential(first(), kind[1](picking(seed))), shape, seed=seed, axis=axis)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_modules(kind, bidirectional, layers):
    rnn = kind(3, 2, layers, batch_first=True, bidirectional=bidirectional)
    assert_same(Calls(lambda s, x: s.rnn(x)[0], rnn=rnn), (4, 3), seed=layers)


USES = ["first", "last", "last, all features", "h", "all", "mean", "max", "last and mean"]


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("use", [*USES, "both h", "both h are the same", "both h and mean"])
def test_what_is_read_of_a_recurrent_module(kind, use, bidirectional):
    if use.startswith("both") and not bidirectional:
        return
    ours = assert_same(N.Recurrent(kind, use, bidirectional), (5,), tokens=9)
    whole = use in ("first", "all", "mean", "max", "last and mean", "both h and mean")
    whole |= bidirectional and use.startswith("last")  # the last step is not the last state
    assert ("return_sequences=False" not in repr(ours.layers[:4])) == whole


NETWORKS = {
    "LeNet": (N.LeNet, (10, 8, 1), 0),
    "ResNet": (N.ResNet, (8, 8, 3), 0),
    "UNet": (N.unet, (4, 6, 2), 0),
    "TextCNN": (N.text_cnn, (6,), 9),
    "GPT": (N.GPT, (5,), 9),
    "attention": (lambda: N.attention(False), (4, 6), 0),
    "causal attention": (lambda: N.attention(True), (4, 6), 0),
    "Gated": (N.gated, (4,), 0),
    "Moved": (N.moved, (6, 5, 3), 0),
    "Mixer": (N.mixer, (6, 5, 3), 0),
    "Squeezed": (N.squeezed, (5, 4, 2), 0),
    "Slices": (N.slices, (4, 5), 0),
    **{
        f"Encoder {first} {activation}": (
            lambda first=first, activation=activation: N.Encoder(first, activation), (5,), 9
        )
        for first in (False, True)
        for activation in ("relu", "gelu")
    },
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, seed):
    make, shape, tokens = NETWORKS[name]
    assert_same(make(), shape, tokens, seed)


def test_what_the_layers_are():
    lenet = from_torch(N.LeNet(), (10, 8, 1))
    assert repr(lenet.layers) == (
        "[Conv2D(3, 3, padding=1), ReLU(), MaxPool2D(2), Conv2D(4, 3), ReLU(), MaxPool2D((1, 2)), "
        "Flatten(), Dropout(0.2), Dense(12, 12), ReLU(), Dropout(0.3), Dense(12, 5)]"
    )
    for make in (N.ResNet, N.unet, N.moved):  # moves of axes vanish
        shape = {N.ResNet: (8, 8, 3), N.unet: (4, 6, 2), N.moved: (6, 5, 3)}[make]
        model = from_torch(make(), shape)
        assert not any(isinstance(part, Permute) for _, part in model.walk())
    gpt = from_torch(N.GPT(), (5,))
    assert repr(gpt.layers[0]) == "Embedding(9, 4)"
    assert repr(gpt.layers[1]) == "PositionalEmbedding(8)"
    assert repr(gpt.layers[-1]).startswith("TiedDense")
    assert gpt.layers[-1].embedding is gpt.layers[0]
    both = from_torch(N.Recurrent(nn.LSTM, "both h", True), (5,))
    assert len(both.layers) == 5  # the two states are the Bidirectional's own output


def test_a_flatten_before_something_else_gets_a_permute():
    parts = {"conv": nn.Conv2d(2, 3, 2), "norm": nn.LayerNorm(36), "head": nn.Linear(36, 2)}
    normed = Calls(lambda s, x: s.head(s.norm(s.conv(x).flatten(1))), **parts)
    model = assert_same(normed, (5, 4, 2))
    assert [type(layer) for layer in model.layers[1:3]] == [Permute, Flatten]


MOVED = {
    "transpose": lambda x: x.transpose(2, 3),
    "permute": lambda x: x.permute(0, 3, 2, 1),
    "movedim": lambda x: x.transpose(1, 2).movedim(1, 3),
    "a part of another axis": lambda x: x[:, :, 1:4],
    "both": lambda x: torch.cat([x[:, :, ::2], x.tanh()], 2).transpose(1, 3),
}


@pytest.mark.parametrize("move", MOVED)
def test_axes_are_returned_in_the_order_of_the_module(move):
    """Only the channels, which the last layer had last, may move to the end."""
    module = Calls(lambda s, x: MOVED[move](s.conv(x)), conv=nn.Conv2d(3, 4, 1)).double()
    X = np.random.default_rng(0).standard_normal((2, 5, 7, 3))
    theirs = module(torch.from_numpy(X.transpose(0, 3, 1, 2).copy())).detach().numpy()
    found = from_torch(module, (5, 7, 3)).predict(X)
    channels = [j for j, n in enumerate(theirs.shape) if n == 4] or [-1]
    np.testing.assert_allclose(found, np.moveaxis(theirs, channels[0], -1), **CLOSE)


def test_steps_on_parts():
    def add_to_the_sum(s, x):
        h = s.a(x)
        h += s.b(x)
        h *= s.c(x)
        return h

    swapped = Calls(lambda s, x: torch.cat(x.chunk(2, -1)[::-1], -1))
    assert_same(nn.Sequential(nn.Linear(4, 6), swapped), (4,))
    assert_same(Calls(lambda s, x: s.e(x[:, 1:]), e=nn.Embedding(9, 3)), (4,), tokens=9)
    large = Calls(lambda s, x: F.interpolate(s.c(x), scale_factor=2), c=nn.Conv2d(2, 3, 2))
    assert_same(large, (4, 3, 2))
    assert_same(Calls(add_to_the_sum, **{name: nn.Linear(4, 4) for name in "abc"}), (4,))
    for at in ((slice(None), slice(None), None, None), (..., None, None)):

        def gated(s, x, at=at):
            h = s.c(x)
            return h * s.g(h.mean((2, 3)))[at]

        assert_same(Calls(gated, c=nn.Conv2d(2, 3, 2), g=nn.Linear(3, 3)), (4, 5, 2))
    ones = Calls(lambda s, x: s.a(x).unsqueeze(1).softmax(1), a=nn.Linear(4, 3))
    assert_same(ones, (4,))
    assert_same(Calls(lambda s, x: s.a(x).unsqueeze(-1).amax(1), a=nn.Linear(4, 3)), (4,))


LAST = {
    "[:, -1]": lambda x: x[:, -1],
    "[:, -2:]": lambda x: x[:, -2:],
    "[:, -3:-1]": lambda x: x[:, -3:-1].mean(1),
    "[:, 0]": lambda x: x[:, 0],
}


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("select", LAST)
def test_steps_from_the_end_are_those_of_any_sequence(select, recurrent):
    gru, linear = nn.GRU(3, 4, batch_first=True, bidirectional=True), nn.Linear(3, 4)
    steps = (lambda s, x: s.a(x)[0]) if recurrent else (lambda s, x: s.b(x))
    module = Calls(lambda s, x: LAST[select](steps(s, x)), a=gru, b=linear).double()
    model = from_torch(module, (5, 3))
    for T in (3, 5, 8):
        X = np.random.default_rng(T).standard_normal((2, T, 3))
        found = model.predict(X)
        np.testing.assert_allclose(found, module(torch.from_numpy(X)).detach().numpy(), **CLOSE)


def test_a_module_that_the_output_does_not_depend_on_is_left_out():
    two = Calls(lambda s, x: (s.a(x), s.b(x))[1], a=nn.Linear(3, 4), b=nn.Linear(3, 2))
    assert repr(from_torch(two, (3,)).layers) == "[Dense(3, 2)]"


@pytest.mark.parametrize("theirs", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes(theirs):
    ours, theirs = "float64" if theirs == "float64" else "float32", getattr(torch, theirs)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4)).to(theirs)
    model = from_torch(module, (3,))
    assert model.dtype == np.dtype(ours)
    assert module[0].weight.dtype == theirs
    found = model.layers[0].W
    np.testing.assert_array_equal(found, module[0].weight.detach().to(torch.float64).numpy().T)


def test_each_layer_of_a_module_is_frozen_alone():
    module = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith(("_l0", "_l1_reverse")))
    model = from_torch(Calls(lambda s, x: s.r(x)[0], r=module), (6, 3))
    for made in (model, from_torch(to_torch(model), (6, 3))):
        cells = [cell for layer in made.layers for cell in (layer.layer, layer.reverse)]
        assert [cell.trainable for cell in cells] == [True, False, False, True]
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder.self_attn.requires_grad_(False)
    made = from_torch(encoder.eval(), (5, 4))
    frozen = {type(part).__name__ for _, part in made.walk() if part.params and not part.trainable}
    assert frozen == {"MultiHeadAttention"}


def test_frozen_modules():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    model = from_torch(module, (3,))
    assert [layer.trainable for layer in model.layers] == [False, True, True]
    norm = nn.LayerNorm(4, elementwise_affine=False)
    plain = from_torch(nn.Sequential(nn.Linear(3, 4), norm), (3,))
    assert [layer.trainable for layer in plain.layers] == [True, False]
    for learns in (True, False):
        table = nn.Parameter(torch.ones(1, 6, 3), requires_grad=learns)
        add = Calls(
            lambda s, x: s.out(x + s.table[:, : x.shape[1]]), table=table, out=nn.Linear(3, 2)
        )
        assert from_torch(add, (4, 3)).layers[0].trainable == learns


def test_the_module_is_left_as_it_was():
    module = N.ResNet().train()
    module.layers[0].eval()
    modes = [m.training for m in module.modules()]
    state, random_state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    from_torch(module, (8, 8, 3))
    assert [m.training for m in module.modules()] == modes
    assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


MERGED = {  # what becomes a network
    "a mean of the same axes": lambda s, x: s.a(x) + x.mean(1, keepdim=True),
    "a gate": lambda s, x: (g := torch.sigmoid(s.a(x).mean((1, 2), keepdim=True))) * s.b(x) - g,
    "a value read far away": lambda s, x: torch.cat([s.b(y := s.a(x)), x, y - s.c(y)], -1),
    "a module at two places": lambda s, x: torch.maximum(s.a(s.b(x)), s.b(s.a(x)).tanh()),
    "three outputs": lambda s, x: (s.a(x), s.b(s.a(x)), x),
}


@pytest.mark.parametrize("name", MERGED)
def test_graphs_that_are_no_trees_become_networks(name):
    module = randomised(calls(MERGED[name]), 1).eval()
    X = np.random.default_rng(0).standard_normal((4, 3, 4))
    model = from_torch(module, (3, 4))
    assert isinstance(model, Network)
    found, wanted = results(model, {"x": X}), module(tensor(X))
    for k, Y in enumerate(each(wanted)):
        np.testing.assert_allclose(found[k], Y.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_several_inputs_are_named_like_the_arguments():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.word = nn.Conv2d(2, 3, 2), nn.Embedding(5, 4)
            self.both = nn.Bilinear(3, 4, 2)

        def forward(self, image, word):
            seen = self.image(image).mean((2, 3))
            return {"both": self.both(seen, self.word(word)), "seen": seen}

    module, rng = randomised(Two(), 0).eval(), np.random.default_rng(0)
    X = {"image": rng.standard_normal((3, 4, 5, 2)), "word": rng.integers(0, 5, 3)}
    wanted = module(tensor(X["image"], "first"), torch.from_numpy(X["word"]))
    for shapes in (((4, 5, 2), ()), {"word": (), "image": (4, 5, 2)}):
        model = from_torch(module, shapes)
        assert (model.takes, model.returns) == (("image", "word"), ("both", "seen"))
        for name, Y in model.predict(X).items():
            np.testing.assert_allclose(Y, wanted[name].detach().numpy(), rtol=1e-9, atol=1e-12)


def changed(module, change):
    """The module after a change of it."""
    change(module)
    return module


def tied(bias):
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=bias))
    module[1].weight = module[0].weight
    return module


def linear():
    return nn.Linear(3, 3)


def encoder():
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)


def weight_norm(module):
    nn.utils.parametrizations.weight_norm(getattr(module, "linear1", module))


def with_the_old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(3, 3))


def in_place(step):
    """A module that overwrites a part of h, and reads h afterwards."""

    def forward(s, x):
        h = s.a(x)
        step(h)
        return s.b(h)

    return Calls(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 2))


def add_to_the_same(s, x):
    h = same = s.a(x)
    h += s.b(x)
    return s.c(same)


LINEARS = {name: nn.Linear(4, 4) for name in "abc"}
ATTEND = {"a": nn.MultiheadAttention(4, 2, batch_first=True)}


def calls(function, **modules):
    return Calls(function, **(modules or LINEARS))


def outputs(kind, **options):
    return Calls(lambda s, x: s.r(x)[0], r=kind(3, 4, **options))


WRONG = [
    (nn.Sequential(nn.Linear(3, 3), nn.Hardshrink()), (3,), r"path '1'\) has no"),
    (nn.Sequential(nn.Sequential(nn.RReLU())), (3,), r"path '0.0'\) has no counterpart"),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (5, 5, 2), "padding_mode"),
    (nn.Conv3d(2, 1, 1), (2, 2, 2, 2), "Conv3d.*has no counterpart"),
    (nn.MaxPool2d(2, ceil_mode=True), (5, 5, 2), "has ceil_mode=True"),
    (nn.MaxPool2d(2, return_indices=True), (5, 5, 2), "return_indices=True"),
    (nn.MaxPool2d(2, dilation=2), (5, 5, 2), "dilation=2"),
    (nn.MaxPool2d(3, padding=(1, 0)), (5, 5, 2), r"padding=\(1, 0\); only one number"),
    (nn.AvgPool2d(3, padding=1, count_include_pad=False), (5, 5, 2), "count_include_pad"),
    (nn.AvgPool2d(3, divisor_override=2), (5, 5, 2), "divisor_override=2"),
    (nn.AdaptiveAvgPool2d(2), (4, 4, 2), "output_size=2; only 1"),
    (nn.BatchNorm1d(3, affine=False), (3,), "affine=False"),
    (nn.BatchNorm1d(3, momentum=None), (3,), "momentum=None"),
    (nn.BatchNorm1d(3, track_running_stats=False), (3,), "track_running_stats=False"),
    (nn.InstanceNorm2d(3, track_running_stats=True), (4, 4, 3), "track_running_stats=True"),
    (nn.LayerNorm((2, 3)), (2, 3), r"normalized_shape=\(2, 3\)"),
    (nn.LayerNorm(3, bias=False), (3,), "has no bias, but LayerNorm.* beta"),
    (nn.PReLU(), (3,), r"has a alpha of shape \(1,\)"),
    (nn.Hardtanh(-2, 2), (3,), "min_val=-2"),
    (nn.Softplus(2), (3,), "beta=2"),
    (nn.Softplus(1, 5), (3,), "threshold=5"),
    (nn.Upsample(size=(4, 4)), (2, 2, 1), "has a size"),
    (nn.Upsample(scale_factor=1.5), (2, 2, 1), "scale_factor=1.5"),
    (nn.UpsamplingBilinear2d(scale_factor=2), (2, 2, 1), "align_corners=True"),
    (nn.Embedding(5, 3, padding_idx=0), (4,), "padding_idx=0"),
    (nn.Embedding(5, 3, max_norm=1.0), (4,), "max_norm=1.0"),
    (nn.Softmax(dim=0), (3,), "dim=0"),
    (outputs(nn.LSTM, batch_first=True, proj_size=2), (5, 3), r"path 'r'\) has proj_size=2"),
    (outputs(nn.LSTM), (5, 3), "batch_first=False"),
    (outputs(nn.GRU, bias=False, batch_first=True), (5, 3), "bias=False"),
    (outputs(nn.RNN, nonlinearity="relu", batch_first=True), (5, 3), "nonlinearity='relu'"),
    (calls(lambda s, x: s.r(x)[1][1][-1], r=nn.LSTM(3, 4, batch_first=True)),
     (5, 3), "reads the cell state"),
    (calls(lambda s, x: s.r(x)[1][0], r=nn.GRU(3, 4, 2, batch_first=True)),
     (5, 3), "not the last layer's"),
    (calls(lambda s, x: s.a(x, x, x)[1], **ATTEND), (3, 4), r"takes a tensor of shape \(3, 3, 3\)"),
    (calls(lambda s, x: s.a(x, x, x.tanh())[0], **ATTEND), (3, 4), "another value"),
    (calls(lambda s, x: s.a(x, x, x, attn_mask=torch.eye(3) > 0)[0], **ATTEND),
     (3, 4), "not the causal one"),
    (nn.TransformerEncoderLayer(4, 2, 8, batch_first=False), (3, 4), "batch_first=False"),
    (calls(lambda s, x: x.cumsum(1)), (3,), r"path 'cumsum'\) has no counterpart"),
    (nn.Sequential(nn.Linear(3, 3), Calls(lambda s, x: x.cumsum(1))), (3,), "path '1: cumsum'"),
    (calls(lambda s, x: torch.fft.fft(x)), (3,), "has no counterpart"),
    (calls(lambda s, x: x * 2), (3,), "takes 2, which is not a value"),
    (calls(lambda s, x: x + 2), (3,), "takes 2, which is not a value"),
    (calls(lambda s, x: x.view(-1, 2)), (4,), "mixes the samples"),
    (calls(lambda s, x: x.transpose(0, 1)), (4, 3), "mixes the samples"),
    (calls(lambda s, x: torch.cat([x, x], 0)), (4,), "mixes the samples"),
    (calls(lambda s, x: x[:2]), (4,), "mixes the samples"),
    (calls(lambda s, x: F.dropout(x, 0.5)), (4,), "drops values in evaluation"),
    (calls(lambda s, x: F.dropout(x, 0.5, not s.training)), (4,), "drops values in evaluation"),
    (calls(lambda s, x: F.softmax(s.a(x), 2 - s.a.training)), (3, 4), "other steps in training"),
    (changed(linear(), lambda m: setattr(m, "forward", lambda x: x * 2)), (3,), "path 'mul'"),
    (calls(lambda s, x: x.tanh() if s.training else x), (4,), "other steps in training"),
    (calls(lambda s, x: x if x.sum() > 0 else -x), (4,), "control flow.*Remedy"),
    (calls(lambda s, x: x + torch.relu_(x)), (4,), r"path 'add'\) reads a value that was"),
    (in_place(lambda h: F.relu(h.flatten(1), inplace=True)), (3, 4), r"path 'b'\) reads"),
    (calls(lambda s, x: (h := s.a(x), h.tanh_())[0]), (4,), "path 'output'.*overwritten"),
    (calls(lambda s, x: s.a(x) * x.max().item()), (4,), "item of a value.*Remedy"),
    (in_place(lambda h: h.chunk(2, -1)[0].relu_()), (4,), "overwritten in place"),
    (in_place(lambda h: h[:, :2].mul_(h[:, 2:])), (4,), "in place"),
    (in_place(lambda h: h.__setitem__((slice(None), 0), 0)), (4,), r"'setitem'\) has no"),
    (calls(add_to_the_same), (4,), r"path 'c'\) reads a value that was overwritten"),
    (calls(lambda s, x: s.a(x) if len(x) > 3 else s.b(x)),
     (4,), "other steps for 4 samples than for 3"),
    (calls(lambda s, x: s.a(x).view(3, -1)), (3, 4), "steps for 4 samples"),
    (calls(lambda s, x: s.a(x)[:, [0, 1], [0, 2]]), (3, 4), "several lists"),
    (calls(lambda s, x: s.a(x)[:, 3:]), (3, 4), "selects nothing"),
    (calls(lambda s, x: s.a(x)[:, 0]), (4,), "one number without an axis"),
    (calls(lambda s, x: s.a(x).mean(None)), (4,), "reduces the batch"),
    (calls(lambda s, x: s.a(x).amax()),
     (4,), r"not supported: missing 1 required positional argument: 'dim'"),
    (calls(lambda s, x: s.a(input=x)), (4,), r"path 'a'\) is given its input"),
    (calls(lambda s, x: s.c(x, (5, 5)), c=nn.ConvTranspose2d(2, 1, 2, 2)),
     (2, 2, 2), "with more than its input"),
    (calls(lambda s, x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True)),
     (2, 2, 1), "antialias=True"),
    (changed(encoder(), lambda m: m.linear1.register_forward_hook(lambda *_: None)),
     (3, 4), r"Linear\(.*\) \(path 'linear1'\) has hooks"),
    (changed(linear(), lambda m: m.register_full_backward_hook(lambda *_: None)),
     (3,), "has hooks"),
    (changed(encoder(), weight_norm), (3, 4), "has parametrizations.*remove_parametr"),
    (changed(linear(), weight_norm), (3,), "has parametrizations.*remove_parametrizations"),
    (with_the_old_weight_norm(), (3,), "cannot be copied"),
    (changed(linear(), lambda m: setattr(m, "lock", RLock())), (3,), "cannot be copied.*RLock"),
    (calls(lambda s, x: torch.func.functional_call(s.a, {"weight": 2 * s.b.weight}, x)),
     (4,), "at 'a' runs with other parameters"),
    (tied(True), (3,), r"path '1'\) shares its weight with '0'"),
    (tied(False), (3,), r"path '1'\) shares its weight with '0'"),
    (changed(linear(), lambda m: m.register_forward_hook(lambda *_: None)), (3,), "has hooks"),
    (calls(lambda s, x: s.r(x)[0][:, -1] + s.r(x)[0].mean(1), r=nn.GRU(4, 4, batch_first=True)),
     (3, 4), "in different ways"),
    (changed(linear(), lambda m: m.bias.requires_grad_(False)), (3,), "both frozen and trainable"),
    (calls(lambda s, x: s.a(x)[:, :, 3 if s.training else 2]), (3, 4), "other steps in training"),
    (calls(lambda s, x: s.a(x)[:, :, len(x) - 2]), (3, 4), "for 4 samples"),
    (calls(lambda s, x: s.a(x)), ((4,), (4,)), "forward takes x, but input_shape holds 2 shapes"),
    (nn.Linear(4, 2), (3,), r"does not take samples of shape \(3,\)"),
    (nn.Conv2d(3, 4, 3), (3, 8, 8), "with the channels last"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "shape", "message"), WRONG, ids=range(len(WRONG)))
def test_what_no_layer_does_is_refused(module, shape, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        from_torch(module, shape)
    assert "from_torch" in str(caught.value)


def test_modules_are_read_in_several_threads():
    """Tracing replaces the call of all modules."""
    call, started, ready = nn.Module.__call__, Event(), Event()

    def waits(s, x):
        started.set()
        ready.wait(10)
        return s.a(x)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(from_torch, Calls(waits, a=nn.Linear(4, 2)), (4,))
        started.wait(10)
        second = pool.submit(from_torch, nn.Linear(4, 3), (4,))
        nn.Linear(4, 2)(torch.ones(1, 4))
        ready.set()
        assert [len(model.result().layers) for model in (first, second)] == [1, 1]
    assert nn.Module.__call__ is call


def test_names_of_outputs_that_are_no_text():
    model = from_torch(Calls(lambda s, x: {0: s.a(x), 1: x}, a=nn.Linear(4, 2)), (4,))
    assert model.returns == ("output_1", "output_2")


def test_wrong_arguments():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(ArgumentTypeError, match=r"Module that runs in Python, got Recursive"):
        from_torch(compiled, (3,))
    with pytest.raises(ArgumentTypeError, match=r"takes a torch.nn.Module, got 3"):
        from_torch(3, (3,))
    with pytest.raises(PhitodeepError, match="input_shape"):
        from_torch(nn.Linear(3, 2), (3, -1))


def test_a_random_crop_of_its_own_size_is_a_crop():
    model = Chain(RandomCrop(2))
    model.build((4, 4, 1))
    assert repr(from_torch(to_torch(model), (4, 4, 1)).layers) == "[RandomCrop(2)]"
