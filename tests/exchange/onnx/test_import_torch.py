"""Networks that PyTorch exported come in right, from both of its exporters, in several opsets."""

import contextlib
import io
import random
import warnings
from itertools import pairwise

import numpy as np
import pytest

from phitodeep.errors import DataError
from phitodeep.io import from_onnx

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
torch = pytest.importorskip("torch")
nn = torch.nn

from tests.conftest import noted
from tests.exchange.torch.networks import Calls

PRECISION = 1e-5
EXPORTERS = [(True, 18), (True, 20), (False, 17), (False, 18), (False, 20)]


def export(module, X, path, dynamo, opset, free="N"):
    """Export a module, with the axes of these names free: N, and T."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"opset_version": opset, "dynamo": dynamo}
        if dynamo:
            dims = {i: torch.export.Dim(name, max=12) for i, name in enumerate(free)}
            settings |= {"external_data": False, "dynamic_shapes": (dims,), "verbose": False}
        elif free:
            settings |= {"input_names": ["x"], "dynamic_axes": {"x": dict(enumerate(free))}}
        torch.onnx.export(module, (X,), path, **settings)


def randomised(module, seed):
    """Give a module random parameters and statistics, in evaluation mode."""
    torch.manual_seed(seed)
    for name, p in [*module.named_parameters(), *module.named_buffers()]:
        if p.dtype.is_floating_point:
            with torch.no_grad():
                p.copy_(torch.rand(p.shape) + 0.5 if "var" in name else 0.5 * torch.randn(p.shape))
    return module.eval()


def channels_last(a):
    return np.moveaxis(a, 1, -1) if a.ndim > 2 else a


def check(module, X, path, first=False):
    """Compare the imported model with the module, and return the classes of its layers.

    first    the module takes and returns channels first
    """
    model = from_onnx(path)
    with torch.no_grad():
        wanted = module(X).numpy()
    given = X.numpy()
    found = model.predict(channels_last(given) if first else given)
    wanted = channels_last(wanted) if first else wanted
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= PRECISION * np.abs(wanted).max()
    return [type(layer).__name__ for layer in model.layers]


def block(channels):
    """A residual block of images."""
    first, last = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
    norms = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
    inside = nn.Sequential(first, norms[0], nn.ReLU(), last, norms[1])
    return Calls(lambda s, x: torch.relu(x + s.inside(x)), inside=inside)


def outputs(layer, last=False):
    """All outputs of a recurrent layer, or the last one."""
    return Calls(lambda s, x: s.layer(x)[0][:, -1] if last else s.layer(x)[0], layer=layer)


def attending(D, heads, causal):
    """Attention as in small GPT programs."""

    def forward(s, x):
        N, T, _ = x.shape
        parts = s.qkv(x).split(D, dim=2)
        q, k, v = (a.view(N, T, heads, D // heads).transpose(1, 2) for a in parts)
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return s.out(z.transpose(1, 2).contiguous().view(N, T, D))

    return Calls(forward, qkv=nn.Linear(D, 3 * D), out=nn.Linear(D, D))


def gpt(vocab, T, D):
    """A small GPT with tied embeddings."""

    def forward(s, x):
        x = s.tokens(x) + s.positions(torch.arange(x.shape[1]))
        x = x + s.attention(s.norm(x))
        return s.head(x + s.inside(x))

    tokens, head = nn.Embedding(vocab, D), nn.Linear(D, vocab, bias=False)
    head.weight = tokens.weight
    inside = nn.Sequential(
        nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.GELU(approximate="tanh"), nn.Linear(4 * D, D)
    )
    parts = {"norm": nn.LayerNorm(D), "attention": attending(D, 2, causal=True), "inside": inside}
    return Calls(forward, tokens=tokens, positions=nn.Embedding(T, D), head=head, **parts)


ACTIVATIONS = [
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SELU, nn.Softplus, nn.Softsign),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Mish, nn.Identity),
    lambda: nn.LeakyReLU(0.2),
    lambda: nn.CELU(0.7),
    lambda: nn.GELU(approximate="tanh"),
]


def mlp(rng):
    sizes = [rng.choice((2, 3, 5, 8)) for _ in range(rng.choice((2, 3, 4)))]
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, bias=rng.random() < 0.8), rng.choice(ACTIVATIONS)()]
        layers += [nn.Dropout(0.5)] if rng.random() < 0.3 else []
        layers += [nn.LayerNorm(b)] if rng.random() < 0.4 else []
        layers += [nn.BatchNorm1d(b)] if rng.random() < 0.3 else []
    if any(isinstance(layer, nn.BatchNorm1d) for layer in layers) or rng.random() < 0.5:
        return nn.Sequential(*layers, nn.Softmax(-1)), (3, sizes[0]), False
    return nn.Sequential(*layers), (3, 4, sizes[0]), False


def cnn(rng):
    c, f, size = rng.choice((1, 2, 3)), rng.choice((2, 4)), rng.choice((7, 8))
    pad = rng.choice((0, 1, "same"))
    pool = rng.choice((nn.MaxPool2d, nn.AvgPool2d))
    layers = [
        nn.Conv2d(c, f, 3, stride=1 if pad == "same" else rng.choice((1, 2)), padding=pad),
        rng.choice((nn.BatchNorm2d(f), nn.GroupNorm(2, f), nn.InstanceNorm2d(f, affine=True))),
        rng.choice(ACTIVATIONS)(),
        rng.choice((nn.Conv2d(f, f, (1, 3), padding=(0, 1), groups=f), nn.PReLU(f), block(f))),
        pool(3, 1, padding=rng.choice((0, 1))),
        rng.choice((nn.Upsample(scale_factor=2), nn.ConvTranspose2d(f, f, 3, 2, 1, 1), nn.ReLU())),
    ]
    body = nn.Sequential(*layers).eval()
    end = rng.choice(("flatten", "mean", "none"))
    if end == "none":
        return body, (2, c, size, size), True
    if end == "mean":
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(f, 3)]
    else:
        count = body(torch.zeros(1, c, size, size)).numel()
        layers += [nn.Flatten(), nn.Linear(count, 3), nn.LogSoftmax(1)]
    return nn.Sequential(*layers), (2, c, size, size), True


def recurrent(rng):
    kind = rng.choice((nn.LSTM, nn.GRU, nn.RNN))
    both = rng.random() < 0.5
    layer = kind(3, 4, batch_first=True, bidirectional=both, num_layers=rng.choice((1, 2)))
    return outputs(layer, last=not both and rng.random() < 0.5), (2, 5, 3), False


def convolution_of_steps(rng):
    layers = [nn.Conv1d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 2, 2)]
    return nn.Sequential(*layers), (2, 3, 8), True


def attention(rng):
    return attending(8, rng.choice((1, 2, 4)), rng.random() < 0.5), (2, 5, 8), False


def decoder(rng):
    return gpt(7, 5, 8), (2, 5), False


NETS = [*(mlp, cnn, recurrent, convolution_of_steps, attention, decoder)]


@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("dynamo", "opset"), EXPORTERS)
def test_random_modules(make, dynamo, opset, tmp_path):
    path = tmp_path / "a.onnx"
    for seed in range(2 if dynamo else 5):
        torch.manual_seed(seed)
        module, shape, first = make(random.Random(f"{make.__name__} {opset} {dynamo} {seed}"))
        module = randomised(module, seed)
        X = torch.randint(0, 7, shape) if make is decoder else torch.randn(shape)
        export(module, X, path, dynamo, opset)
        with noted(f"seed {seed}: {module}"):
            check(module, X, path, first)


def test_an_encoder_layer(tmp_path):
    module = randomised(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"), 1
    )
    X = torch.randn(2, 5, 8)
    export(module, X, tmp_path / "a.onnx", True, 18)
    assert check(module, X, tmp_path / "a.onnx") == ["Residual", "LayerNorm"] * 2


def test_layers_come_back_as_themselves(tmp_path):
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    module = randomised(nn.Sequential(*layers, nn.Linear(4 * 4 * 3, 3)), 2)
    X = torch.randn(2, 2, 8, 6)
    for dynamo in (True, False):
        export(module, X, tmp_path / "a.onnx", dynamo, 18)
        kinds = check(module, X, tmp_path / "a.onnx", first=True)
        assert kinds == ["Conv2D", "ReLU", "MaxPool2D", "Flatten", "Dense"]
    model = from_onnx(tmp_path / "a.onnx")
    assert model.input_shape == (8, 6, 2)  # channels last
    np.testing.assert_array_equal(
        model.layers[0].params["W"], module[0].weight.detach().numpy().transpose(2, 3, 1, 0)
    )


@pytest.mark.parametrize("dynamo", [True, False])
def test_a_batch_of_fixed_size(dynamo, tmp_path):
    layers = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)
    module = randomised(nn.Sequential(*layers), 3)
    X = torch.randn(1, 1, 6, 6)
    export(module, X, tmp_path / "a.onnx", dynamo, 18, free="")
    check(module, X, tmp_path / "a.onnx", first=True)
    more = torch.randn(5, 1, 6, 6)
    check(module, more, tmp_path / "a.onnx", first=True)


def test_steps_before_samples(tmp_path):
    module = randomised(outputs(nn.GRU(3, 4)), 4)
    X = torch.randn(5, 2, 3)  # (T, N, D)
    export(module, X, tmp_path / "a.onnx", False, 18, free="")
    model = from_onnx(tmp_path / "a.onnx")
    with torch.no_grad():
        wanted = module(X).numpy()
    found = model.predict(X.numpy().swapaxes(0, 1)).swapaxes(0, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "shape", "named"),
    [
        (nn.Hardshrink(), (2, 3), "Cast|Where"),
        (nn.Linear(3, 4).requires_grad_(False), (3,), "batch"),
    ],
)
def test_what_no_layer_computes_is_named(module, shape, named, tmp_path):
    free = "N" if len(shape) > 1 else ""
    export(module.eval(), torch.randn(shape), tmp_path / "a.onnx", False, 18, free)
    with pytest.raises(DataError, match=named):
        from_onnx(tmp_path / "a.onnx")


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("kind", ["decoder", "attention", "lstm"])
def test_a_free_number_of_steps(kind, dynamo, tmp_path):
    modules = {
        "decoder": (gpt(7, 12, 8), torch.randint(0, 7, (2, 5))),
        "attention": (attending(8, 2, causal=True), torch.randn(2, 5, 8)),
        "lstm": (outputs(nn.LSTM(3, 4, batch_first=True)), torch.randn(2, 5, 3)),
    }
    module, X = modules[kind]
    module, path = randomised(module, 6), tmp_path / "a.onnx"
    export(module, X, path, dynamo, 18, free="NT")
    for steps in (5, 3):
        check(module, X[:, :steps], path)
    if kind == "decoder":
        assert from_onnx(path).input_shape == (12,)
