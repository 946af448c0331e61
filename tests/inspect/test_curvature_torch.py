"""Products with the Hessian and the Jacobian against torch.func, for functions written by hand."""

import numpy as np
import pytest

from phitodeep import SequentialBuilder as B
from phitodeep import layers as L
from phitodeep.inspect.recording import record

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
F = torch.nn.functional
RNG = np.random.default_rng(0)
IMAGES, ROWS = RNG.standard_normal((4, 6, 6, 2)), RNG.standard_normal((6, 5))
WORDS, STEPS = RNG.integers(0, 7, (3, 5)), RNG.standard_normal((4, 5, 3))
LABELS, KEEP = RNG.integers(0, 3, 6), np.arange(5) < np.array([5, 2, 3, 1])[:, None]


def wired(W, X):
    h = torch.tanh(X @ W["0.W"] + W["0.b"])
    a, b = h @ W["2.W"] + W["2.b"], (h * h) @ W["4.W"] + W["4.b"]
    t = torch.from_numpy(ROWS[:, :2])
    return F.cross_entropy(a, torch.from_numpy(LABELS)) + 0.3 * ((b - t) ** 2).mean()


def two_heads():
    b = B(x=(5,), seed=0).dense(4).tanh().name("h").dense(3)
    b = b.output("a", loss="softmax_cross_entropy").at("h").multiply("h").dense(2)
    return b.output("b", loss="mse", weight=0.3), ROWS, {"a": LABELS, "b": ROWS[:, :2]}


def recurrent(W, X):
    """LSTM, then a GRU, where only the steps that count move the states."""
    for k in "01":
        h = c = X.new_zeros(4, 3)
        found = []
        for t in range(5):
            a = X[:, t] @ W[f"{k}.Wx"] + W[f"{k}.b"]
            u = h @ W[f"{k}.Wh"]
            if k == "0":
                i, f, g, o = (a + u).chunk(4, 1)
                new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                new = torch.sigmoid(o) * torch.tanh(new_c)
            else:
                (ar, az, an), (ur, uz, un) = a.chunk(3, 1), (u + W["1.bh"]).chunk(3, 1)
                z = torch.sigmoid(az + uz)
                new_c, new = c, (1 - z) * torch.tanh(an + torch.sigmoid(ar + ur) * un) + z * h
            m = torch.from_numpy(KEEP[:, t, None])
            h, c = torch.where(m, new, h), torch.where(m, new_c, c)
            found.append(torch.where(m, h, 0))
        X = torch.stack(found, 1)
    each = (X @ W["2.W"] + W["2.b"] - torch.from_numpy(STEPS[..., :2])) ** 2
    return each[torch.from_numpy(KEEP)].mean()


def masked():
    return B(5, 3, seed=0).lstm(3).gru(3).dense(2).loss("mse"), STEPS, STEPS[..., :2]


def attention(W, X):
    """Tied words, a block of attention, and a Dense that is used twice."""
    A = W["0.W"][X]
    qkv = F.layer_norm(A, (4,), W["1.layers.0.layers.0.gamma"], W["1.layers.0.layers.0.beta"])
    at, mlp = "1.layers.0.layers.1.", "1.layers.1.layers.1.layers."
    Q, K, V = (qkv @ W[f"{at}Wqkv"] + W[f"{at}bqkv"]).reshape(3, 5, 3, 2, 2).permute(2, 0, 3, 1, 4)
    S = Q @ K.transpose(-1, -2) / 2**0.5
    S = S.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    Z = (S.softmax(-1) @ V).transpose(1, 2).reshape(3, 5, 4)
    A = A + Z @ W[f"{at}Wo"] + W[f"{at}bo"]
    B_ = F.layer_norm(A, (4,), W["1.layers.1.layers.0.gamma"], W["1.layers.1.layers.0.beta"])
    B_ = F.gelu(B_ @ W[f"{mlp}0.W"] + W[f"{mlp}0.b"])
    A = A + B_ @ W[f"{mlp}2.W"] + W[f"{mlp}2.b"]
    for _ in range(2):
        A = torch.sigmoid(A @ W["2.W"] + W["2.b"])
    return F.cross_entropy((A @ W["0.W"].T).flatten(0, 1), torch.from_numpy(WORDS).flatten())


def tied():
    words, twice = L.Embedding(7, 4), L.Dense(4)
    b = B(5, seed=0).add(words).transformer_block(2, causal=True).add(twice).sigmoid()
    b = b.add(L.Shared(twice)).sigmoid().add(L.TiedDense(words))
    return b.loss("softmax_cross_entropy"), WORDS, WORDS


def images(W, X):
    A = F.conv2d(X.permute(0, 3, 1, 2), W["0.W"].permute(3, 2, 0, 1), W["0.b"], padding=1)
    A = F.batch_norm(A, None, None, W["1.gamma"], W["1.beta"], training=True)
    A = F.max_pool2d(F.leaky_relu(A), 2).permute(0, 2, 3, 1).flatten(1)
    P = F.softmax(A @ W["5.W"] + W["5.b"], -1)
    return ((P - torch.from_numpy(ROWS[:4, :2])) ** 2).mean()


def pictures():
    b = B(6, 6, 2, seed=0).conv2d(3, 3, padding="same").batch_norm().leaky_relu().max_pool2d(2)
    return b.flatten().dense(2).softmax().loss("mse"), IMAGES, ROWS[:4, :2]


CASES = {
    "wired": (two_heads, wired, {}),
    "masked": (masked, recurrent, {"lengths": [5, 2, 3, 1]}),
    "tied": (tied, attention, {}),
    "images": (pictures, images, {}),
}


def check(model, X, y, loss, options):
    weights = {p: W for p, W in model.get_weights().items() if "running" not in p}
    W, V = (
        {p: torch.from_numpy(A) for p, A in found.items()}
        for found in (weights, {p: RNG.standard_normal(A.shape) for p, A in weights.items()})
    )
    given = {p: A.numpy() for p, A in V.items()}

    def of(W):
        return loss(W, torch.from_numpy(np.asarray(X)))

    _, wanted = torch.func.jvp(torch.func.grad(of), (W,), (V,))
    found = model.hvp(X, y, given, **options)
    assert found.keys() == wanted.keys()
    for path, A in wanted.items():
        scale = max(1.0, float(A.abs().max()))
        np.testing.assert_allclose(found[path], A.numpy(), rtol=0, atol=1e-9 * scale, err_msg=path)


@pytest.mark.parametrize("name", CASES)
def test_a_product_with_the_hessian_is_that_of_torch(name):
    made, loss, options = CASES[name]
    builder, X, y = made()
    model = builder.dtype("float64").build()
    check(model, X, y, loss, options)


def test_dropout_keeps_its_draws():
    model = B(5, seed=0).dense(8).gelu().dropout(0.4).dense(3).loss("softmax_cross_entropy")
    model = model.dtype("float64").build()
    passes = record(model, ROWS, LABELS).passes["2"]
    kept = torch.from_numpy(passes.Y != 0).double() / 0.6
    assert 0.3 < kept.count_nonzero() / kept.numel() < 0.9

    def loss(W, X):
        A = F.gelu(X @ W["0.W"] + W["0.b"]) * kept
        return F.cross_entropy(A @ W["3.W"] + W["3.b"], torch.from_numpy(LABELS))

    check(model, ROWS, LABELS, loss, {})


def test_a_product_with_the_jacobian_is_that_of_torch():
    model = B(5, seed=0).dtype("float64").dense(4).layer_norm().silu().dense(3).loss("mse").build()
    W = {p: torch.from_numpy(A) for p, A in model.get_weights().items()}
    V = {p: torch.randn_like(A) for p, A in W.items()}
    tX = RNG.standard_normal(ROWS.shape)

    def predictions(W, X):
        A = F.layer_norm(X @ W["0.W"] + W["0.b"], (4,), W["1.gamma"], W["1.beta"])
        return F.silu(A) @ W["3.W"] + W["3.b"]

    given = (W, torch.from_numpy(ROWS)), (V, torch.from_numpy(tX))
    Y, tY = model.jvp(ROWS, {p: A.numpy() for p, A in V.items()}, tX)
    for found, wanted in zip((Y, tY), torch.func.jvp(predictions, *given), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-10)
