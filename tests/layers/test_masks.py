"""Masks go through a chain with its steps, and what they leave out changes nothing."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from phitodeep import Sequential, SequentialBuilder
from phitodeep import layers as nn
from phitodeep.core.call import calling
from phitodeep.errors import ArgumentError, PhitodeepError, ShapeError
from phitodeep.layers.containers import Container
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same

T, D = 9, 4
LENGTHS = np.array([9, 5, 7, 1])
MASK = np.arange(T) < LENGTHS[:, None]
NAMES = vars(nn) | {"T": T, "D": D}

# each shortens or keeps the steps; the samples alone, without padding, must give the same
CHANGING = (
    *("Conv1D(3, 3)", "Conv1D(3, 2, stride=2)", "Conv1D(3, 2, dilation=3)"),
    *("Conv1D(3, 3, padding='same')", "Conv1D(3, 4, padding='same')"),
    *("Conv1D(3, 3, padding=2, stride=2)", "Conv1D(4, 3, padding='same', groups=2)"),
    "ConvTranspose1D(3, 3, stride=2, output_padding=1)",
    *("ConvTranspose1D(3, 4, stride=2, padding=1)", "MaxPool1D(2)", "AvgPool1D(3, stride=1)"),
    "Chain(Conv1D(4, 2, stride=2), ReLU(), GRU(3))",
    "Chain(Conv1D(4, 3), MultiHeadAttention(2), Conv1D(3, 3, padding=1))",
    "Chain(MaxPool1D(2), ConvTranspose1D(3, 2, stride=2), LSTM(2))",
    "Chain(Chain(MaxPool1D(2), Dense(3)), Chain(Conv1D(3, 2), RNN(2)))",
    "Chain(Parallel(Conv1D(2, 3), Conv1D(3, 3)), Bidirectional(GRU(2)))",
    "Chain(SkipConcat(Conv1D(2, 3, padding=1)), Residual(GRU(6)), LayerNorm())",
    "Chain(Conv1D(4, 2), TransformerBlock(2), MaxPool1D(2), Dense(2))",
    "Chain(Conv1D(4, 2), TransformerBlock(2, checkpoint=True), GRU(3))",
    "Parallel(Residual(MultiHeadAttention(2), Conv1D(4, 3, padding='same'), checkpoint=True),"
    " Chain(Bidirectional(LSTM(2), merge='add'), SkipConcat(Dense(2), PReLU())),"
    " Parallel(RNN(4), TimeDistributed(Chain(Dense(4), LayerNorm())), merge='multiply'))",
    "Chain(Reshape(-1, 2, 2), Permute(1, 3, 2), TimeDistributed(Chain(Conv1D(3, 2), Flatten())),"
    " GRU(2))",
    "Chain(PositionalEmbedding(9), SinusoidalEncoding(), RotaryEmbedding(), GRU(2))",
)


def layer_of(call):
    return eval(call, NAMES | {"running": running})


def data(rng):
    return rng.standard_normal((len(LENGTHS), T, D))


def test_masks_end_with_the_steps_and_gaps_pass_where_these_stay(rng):
    last = nn.LSTM(2, return_sequences=False)
    for layer in (last, nn.Bidirectional(last.copy()), nn.GlobalAvgPool()):
        assert layer.compute_mask(MASK) is None, layer
    chain = nn.Chain(nn.GRU(2, return_sequences=False), nn.Dense(3))
    assert chain.compute_mask(MASK) is None
    for layer in (nn.Dense(2), nn.LayerNorm(), nn.MultiHeadAttention(2), nn.Residual(nn.Dense(4))):
        assert layer.compute_mask(MASK) is MASK
    layer = made(
        lambda: nn.Chain(nn.GRU(12, return_sequences=False), nn.Reshape(3, 4), nn.GRU(2)), (1, T, D)
    )
    with calling(mask=MASK):  # which ends, and does not come back
        assert layer.forward(np.ones((4, T, D))).shape == (4, 3, 2)
    gaps = MASK.copy()
    gaps[0, 2] = False
    X = data(rng)
    same = made(lambda: nn.Conv1D(3, 3, padding="same"), (1, T, D))
    halved = made(lambda: nn.Conv1D(3, 2, stride=2), (1, T, D))
    assert same.compute_mask(gaps) is gaps
    with calling(mask=gaps):
        Y = same.forward(X)
    X[0, 2] = 0
    np.testing.assert_array_equal(same.forward(X)[0], Y[0])
    with pytest.raises(ShapeError, match="turns 9 steps into 4, so it requires lengths"):
        halved.compute_mask(gaps)
    with pytest.raises(ShapeError, match=r"layer 0 of Chain.*requires lengths"), calling(mask=gaps):
        made(lambda: nn.Chain(nn.Conv1D(3, 2), nn.GRU(2)), (1, T, D)).forward(X)
    accident = made(
        lambda: nn.Conv1D(3, 3, padding=2, stride=2), (1, 3, D)
    )  # 3 steps of 3, not of 4
    with pytest.raises(ShapeError, match="turns 3 steps into 3, so it requires lengths"):
        accident.compute_mask(np.array([[True, False, True]]))


def model_of(layers, **options):
    """A model of these layers, built for X (N, T, D), or tokens (N, T), in float64."""
    parts = eval(f"[{layers}]", dict(NAMES))
    options = {"loss_class": "softmax_cross_entropy", "metrics": ["accuracy"], **options}
    model = Sequential(*parts, dtype="float64", seed=1, **options)
    model.build((T,) if parts[0].takes_tokens else (T, D))
    return model


def tagger():
    tags = "Conv1D(5, 3, padding='same'), Tanh(), Bidirectional(GRU(3)), Dense(2)"
    return model_of(tags, alpha=0.02)


def test_the_loss_is_the_mean_over_the_steps_that_are_there_or_0(rng):
    X, y, model = data(rng), rng.integers(0, 2, (4, T)), tagger()
    scores = model.evaluate(X, y, lengths=LENGTHS, batch_size=3)
    P = model.predict(X, lengths=LENGTHS)[MASK]
    flat = np.log(np.exp(P).sum(axis=1)) - P[np.arange(len(P)), y[MASK]]
    assert scores["loss"] == pytest.approx(flat.mean(), rel=1e-12)
    assert scores["accuracy"] == pytest.approx((P.argmax(axis=1) == y[MASK]).mean())
    weighted = model.evaluate(X, y, lengths=LENGTHS, sample_weight=[1, 0, 2, 0.5])["loss"]
    w = np.repeat([1, 0, 2, 0.5], LENGTHS)
    assert weighted == pytest.approx((flat * w).sum() / w.sum(), rel=1e-12)
    X, y, model = data(rng), rng.integers(0, 2, (4, T)), tagger()
    history = model.train(X, y, lengths=[0, 0, 3, 0], epochs=2, batch_size=2, verbose=0)
    assert np.isfinite([train for train, _ in history]).all()
    assert all(np.isfinite(a).all() for a in model.get_weights().values())
    assert model.evaluate(X, y, lengths=np.zeros(4, int))["loss"] == 0
    X, Y = data(rng), rng.standard_normal((4, T, 2))
    each = model_of("GRU(2)", metrics=["mae"], loss_class="mse")
    P = each.predict(X, lengths=LENGTHS)
    scores = each.evaluate(X, Y, lengths=LENGTHS)
    assert scores["loss"] == pytest.approx(((P - Y)[MASK] ** 2).mean())
    assert scores["mae"] == pytest.approx(np.abs((P - Y)[MASK]).mean())
    np.testing.assert_array_equal(each.forward(X, lengths=LENGTHS), P)
    dX = each.backward(np.where(MASK[..., None], 1.0, 0.0) * P)
    assert not dX[~MASK].any()
    assert dX[MASK].any()


MODELS = {
    "recurrent": "Dense(4), Bidirectional(GRU(3)), Dense(2)",
    "attention": "PositionalEmbedding(T), TransformerBlock(2, checkpoint=True),"
    " Conv1D(3, 3, padding='same'), Dense(2)",
    "nested": "Residual(MultiHeadAttention(2, causal=True, rope=True), LayerNorm()),"
    " Parallel(TimeDistributed(Dense(3)), Chain(SkipConcat(LSTM(2), checkpoint=True))), Dense(2)",
    "pooled": "Parallel(Chain(Conv1D(3, 1), GlobalAvgPool()), GRU(2, return_sequences=False)),"
    " Dense(2)",
    "tokens": "Embedding(5, 4), Residual(Conv1D(4, 3, padding=1), Tanh()), LSTM(3), Dense(2)",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_a_padded_batch_is_the_step_on_its_samples(name, rng):
    """Loss, metrics and weights after a step: padded, and with each sample as a batch of its own,
    whatever the padding holds."""
    tokens, each = name == "tokens", name != "pooled"
    X = rng.integers(0, 5, (4, T)) if tokens else data(rng)
    y = rng.integers(0, 2, (4, T) if each else 4)
    samples = [
        (X[i : i + 1, :n], y[i : i + 1, :n] if each else y[i : i + 1])
        for i, n in enumerate(LENGTHS)
    ]

    alone = model_of(MODELS[name], optimizer="sgd", alpha=0.5)
    start = alone.copy()
    wanted = alone.train(samples, epochs=1, accumulate=4, verbose=0)
    scores = alone.evaluate(samples)
    for padding in (0, 4, -1) if tokens else (0.0, 1e300, np.nan, np.inf):
        padded, at = start.copy(), MASK if tokens else MASK[..., None]
        noisy = np.where(at, X, padding)
        y = np.where(MASK, y, -1) if each else y
        tested = {"X_test": noisy, "y_test": y, "lengths_test": MASK}
        found = padded.train(noisy, y, **tested, lengths=LENGTHS, epochs=1, verbose=0)
        assert found[0][1] == pytest.approx(scores["loss"])
        assert found[0][0] == pytest.approx(wanted[0][0], rel=1e-11)
        train, test = (found.metrics[f"{part}_accuracy"] for part in ("train", "test"))
        assert (train, test) == (wanted.metrics["train_accuracy"], [scores["accuracy"]])
        assert_same(padded.get_weights(), alone.get_weights(), rtol=1e-9, atol=1e-12)
        padded.set_weights(alone.get_weights())
        assert padded.evaluate(noisy, y, lengths=LENGTHS) == pytest.approx(scores)
        Y = padded.predict(noisy, lengths=LENGTHS)
        for i, n in enumerate(LENGTHS):
            one = alone.predict(X[i : i + 1, :n])[0]
            np.testing.assert_allclose(Y[i, :n] if each else Y[i], one, rtol=1e-10, atol=1e-12)


def running(X, *_):
    return X.cumsum(axis=1)


@pytest.mark.parametrize("loss", ["mse", "hinge", "poisson_nll", "kl_divergence"])
def test_targets_of_the_padding_may_hold_anything(loss, rng):
    X, model = data(rng), model_of("GRU(3), LogSoftmax()", loss_class=loss, metrics=[])
    y = rng.dirichlet(np.ones(3), (4, T)) if loss != "hinge" else np.ones((4, T, 3))
    wanted = model.evaluate(X, y, lengths=LENGTHS)
    y[~MASK] = np.nan
    assert model.evaluate(X, y, lengths=LENGTHS) == wanted
    assert np.isnan(y[~MASK]).all()
    y[0, 0] = np.nan
    with pytest.raises(ArgumentError, match=r"y\[0, 0, 0\] is nan"):
        model.evaluate(X, y, lengths=LENGTHS)


def test_batch_norm_remembers_the_steps_that_are_there(rng):
    """Both passes are in tests/derivations/test_special_cases.py."""
    X, padded = data(rng), made(nn.BatchNorm, (1, T, D))
    flat = padded.copy()
    flat.forward(X[MASK])
    with calling(mask=MASK):
        padded.forward(np.where(MASK[..., None], X, 1e30))
    assert_same(padded.state, flat.state)
    with calling(mask=np.zeros((4, T), bool)):
        assert not padded.forward(X).any()


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("counts", [True, False])
def test_only_placeholders_of_a_joint_batch_norm_get_no_gradient(sync, counts, rng):
    X, dY = data(rng), rng.standard_normal((4, T, D))
    layer = made(lambda: nn.BatchNorm(sync=sync), (1, T, D))
    wanted = passes(layer.copy(), X, dY)["dX"]
    with calling(ranks=SimpleNamespace(counts=counts, sum=lambda a: a)):
        dX = passes(layer, X, dY)["dX"]
    np.testing.assert_allclose(dX, wanted if counts or not sync else 0 * wanted, atol=1e-14)


class Sum(Container):
    """A container of a user's own, which says nothing of masks."""

    def __init__(self, *layers):
        self.layers = list(layers)

    def forward(self, X):
        return sum(layer.forward(X) for layer in self.layers)


class Told(Sum):
    def compute_mask(self, mask):
        return mask


class Turned(nn.Chain):
    """A chain whose forward is a user's own: what a Chain says of masks is no longer known."""

    def forward(self, X):
        return super().forward(X)[:, ::-1]


ENDING = "Chain(GRU(T * D, return_sequences=False), Reshape(T, D))"  # no steps, then other ones
ROUNDING = "Chain(MaxPool1D(3), ConvTranspose1D(D, 3, stride=3))"  # multiples of 3
CALLS = [
    lambda model, X, y, n: model.forward(X, lengths=n),
    lambda model, X, y, n: model.predict(X, lengths=n),
    lambda model, X, y, n: model.evaluate(X, y, lengths=n),
    lambda model, X, y, n: model.train(X, y, lengths=n, epochs=1, verbose=0),
    lambda model, X, y, n: model.train(X, y, X, y, lengths_test=n, epochs=1, verbose=0),
]


@pytest.mark.parametrize(
    ("calls", "says"),
    {
        "Tanh(), Flatten()": r"in layer 1 of Sequential: Flatten\(\).*GlobalAvgPool",
        "Reshape(4, 9)": r"in layer 0 of Sequential: Reshape.*GlobalAvgPool",
        "Permute(2, 1)": r"in layer 0 of Sequential: Permute.*Remedy",
        "Chain(Tanh(), Softmax(1))": r"in layer 1 of Chain, layer 0 of Seq.*Softmax.*axis=-1",
        "Lambda(running, running)": r"layer 0 of Sequential: Lambda.*steps=\"independent\"",
        "GroupNorm(2)": r"in layer 0 of Sequential: GroupNorm.*LayerNorm or RMSNorm",
        "InstanceNorm()": r"in layer 0 of Sequential: InstanceNorm.*LayerNorm or RMSNorm",
        "Reshape(9, 2, 2), Conv2D(2, 2)": r"in layer 1 of Sequential: Conv2D.*Conv1D",
        "Conv1D(2, 3, stride=2, padding='same')": r"layer 0 of Seq.*Conv1D.*Remedy: padding=1",
        "MaxPool1D(2, padding='same')": r'layer 0 of Sequential: MaxPool1D.*padding="valid"',
        "TimeDistributed(BatchNorm())": r"in layer 0 of Sequential: TimeDistributed.*Remedy",
        "Parallel(GlobalAvgPool(), Chain(Flatten()))": "in layer 0 of Chain, branch 1 of Parallel,"
        " layer 0 of Sequential: Flatten",
        f"Parallel(Tanh(), {ENDING})": "branches 0 and 1 differ",
        f"Parallel(Tanh(), Tanh(), {ROUNDING})": "branches 0 and 2 differ",
        f"Residual({ENDING})": "F must keep every step, but it removes the time axis",
        f"SkipConcat({ROUNDING})": "it changes which steps count",
        "Sum(Tanh(), Dense(4, 4))": r"in layer 0 of Sequential: Sum.*write compute_mask",
        "Turned(Tanh())": r"in layer 0 of Sequential: Turned.*write compute_mask",
    }.items(),
)
def test_layers_that_declare_nothing_refuse_lengths(calls, says, rng):
    model = Sequential(*eval(f"[{calls}]", NAMES | globals()), seed=0)
    model.build((T, D))
    X, y = data(rng), rng.standard_normal((4, *model.output_shape))
    before = model.get_weights()
    for call in CALLS:
        with pytest.raises(ArgumentError, match=says):
            call(model, X, y, LENGTHS)
    assert not any(layer.cache for _, layer in model.walk()), "a layer ran before the refusal"
    assert_same(model.get_weights(), before)


def test_containers_that_say_what_they_do_and_files_take_lengths(rng, tmp_path):
    model = Sequential(Told(nn.Tanh(), nn.Dense(4, 4)), nn.GRU(2))
    model.build((T, D))
    assert model.predict(np.ones((4, T, D)), lengths=LENGTHS).shape == (4, T, 2)
    model = SequentialBuilder(T, seed=0).dense(3).build()
    for call in CALLS:
        with pytest.raises(ShapeError, match=r"X \(N, T, ...\), with features at each step"):
            call(model, np.ones((4, T)), np.zeros((4, 3)), LENGTHS)
    X = np.memmap(tmp_path / "X", np.float32, "w+", shape=(4, T, D))
    model = SequentialBuilder(T, D, seed=0).flatten().dense(1).build()
    tagged = SequentialBuilder(T, D, seed=0).gru(2).global_avg_pool().dense(1).build()
    with pytest.raises(ArgumentError, match=r"^in layer 0 of Sequential: Flatten"):
        model.train(X, np.ones(4), lengths=LENGTHS, verbose=0)
    X[~MASK] = np.nan
    history = tagged.train(X, np.ones(4), lengths=LENGTHS, epochs=1, batch_size=2, verbose=0)
    assert np.isfinite(history[0][0])
    assert np.isfinite(tagged.predict(X, 2, lengths=LENGTHS)).all()


WRONG = [
    ([9, 10, 1, 1], r"lengths\[1\] is 10, but the samples have 9 steps"),
    ([9, -1, 1, 1], r"lengths\[1\] is -1"),
    ([9, 1, 1], r"integers of shape \(4,\)"),
    ([9.0, 1.0, 1.0, 1.0], "got float64"),
    (np.ones((4, 8), bool), r"boolean mask of shape \(4, 9\)"),
    (np.ones((4, 9)), "boolean mask"),
    (9, r"got int\d+ of shape"),
    (["a"] * 4, "real numbers"),
]


def test_lengths_and_masks_that_do_not_fit_are_refused(rng):
    X, y, model = data(rng), rng.integers(0, 2, (4, T)), tagger()
    before = model.get_weights()
    for (lengths, says), call in itertools.product(WRONG, CALLS):
        with pytest.raises((ShapeError, ArgumentError, TypeError), match=says):
            call(model, X, y, lengths)
    assert_same(model.get_weights(), before)
    chain = nn.Chain(nn.Conv1D(2, 2, stride=2), nn.GRU(2))
    for layer in (nn.MultiHeadAttention(2), nn.GRU(2), nn.Bidirectional(nn.GRU(2)), chain):
        layer.build((4, 4))
        for shape in ((2, 2), (2, 9), (1, 4), (2, 4, 1), None):
            mask = np.ones(shape, bool) if shape else np.ones((2, 4))
            with pytest.raises(PhitodeepError), calling(mask=mask):
                layer.forward(rng.standard_normal((2, 4, 4)))
    halves = nn.Lambda(
        lambda X: X[:, ::2], lambda dY, X, Y: np.repeat(dY, 2, 1), steps="independent"
    )
    model = Sequential(nn.Dense(D, 2), halves, seed=0)
    arrays = np.ones((4, 8, D)), np.ones((4, 4, 2))
    with pytest.raises(ShapeError, match=r"\(4, 8\).*\(4, 4"):
        model.train(*arrays, lengths=[8, 2, 3, 4], epochs=1, verbose=0)
