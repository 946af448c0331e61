"""Generation: the memory changes nothing, the draws are what they say, bad prompts are refused."""

import contextvars
from functools import partial

import numpy as np
import pytest

from phitodeep import Layer, Sequential, SequentialBuilder
from phitodeep import layers as nn
from phitodeep.core.call import calling, current
from phitodeep.errors import ArgumentError, ArgumentTypeError, BackwardError, ShapeError
from phitodeep.functional import softmax
from phitodeep.model.architectures import char_lstm, gpt
from phitodeep.text.generation import sample
from tests.conftest import assert_weights
from tests.random_networks import randomize
from tests.rows import LONG, few

block = partial(nn.TransformerBlock, 2, causal=True)


def embedded(dim):
    return SequentialBuilder(16).embedding(11, dim)


MODELS = {
    "gpt": lambda: gpt(11, 16, layers=2, heads=2, dim=8),
    "untied, dropout": lambda: gpt(11, 16, layers=1, heads=2, dim=8, tied=False, dropout=0.5),
    "rope": lambda: embedded(8).add(block(rope=True, norm="rms")).dense(11),
    "sinusoidal": lambda: embedded(8).sinusoidal_encoding().add(block()).dense(11),
    "lstm": lambda: char_lstm(11, dim=5, units=6, layers=2).input(16),
    "gru": lambda: embedded(5).gru(6).dense(11),
    "rnn": lambda: embedded(5).rnn(6).dense(11),
}


def built(name, *ends, scale=1):
    builder = MODELS[name]().dtype("float64").seed(0)
    for end in ends:
        builder.add(end)
    model = builder.build()
    rng = np.random.default_rng(0)
    weights = {path: 0.5 * rng.standard_normal(a.shape) for path, a in model.get_weights().items()}
    weights |= {path: scale * a for path, a in list(weights.items())[-2:]}  # of the scores
    model.set_weights(weights)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_neither_memory_nor_streaming_changes_tokens(name):
    model, prompt = built(name), np.array([[1, 2, 3], [4, 5, 6]])
    quick = model.generate(prompt, 12, seed=3)
    slow = model.generate(prompt, 12, seed=3, cache=False)
    np.testing.assert_array_equal(quick, slow)
    assert quick.shape == (2, 15)
    np.testing.assert_array_equal(quick[:, :3], prompt)
    assert len(set(quick[0].tolist())) > 3
    assert not np.array_equal(quick, model.generate(prompt, 12, seed=4))
    model, prompt = built(name), np.array([[1, 2, 3], [4, 5, 6]])
    options = {"seed": 3, "temperature": 0.9, "top_k": 8, "top_p": 0.95}
    tokens = list(model.stream(prompt, 20, **options))
    assert all(t.shape == (2,) and t.dtype == np.int64 for t in tokens)
    np.testing.assert_array_equal(np.stack(tokens, 1), model.generate(prompt, 20, **options)[:, 3:])
    for i, given_away in enumerate(model.stream(prompt, 20, **options)):
        np.testing.assert_array_equal(given_away, tokens[i])
        given_away[:] = 0
    one = list(model.stream(prompt[0], 20, stop=5, **options))
    assert {type(token) for token in one} == {int}
    assert one == model.generate(prompt[0], 20, stop=5, **options)[0, 3:].tolist()
    assert list(model.stream(prompt, 0)) == []


def test_the_model_stays_and_temperature_0_takes_the_greatest(monkeypatch):
    model = built("gpt")
    before = model.get_weights()
    model.generate([1], 5, seed=0)
    assert all(not layer.cache for _, layer in model.walk())
    assert_weights(model, before)
    model = built("gpt")
    tokens = model.generate([1, 2], 6, temperature=0)
    for t in range(2, 8):
        assert tokens[0, t] == model.predict(tokens[:, :t])[0, -1].argmax()


def drawn(scores, n=20_000, **options):
    rng = np.random.default_rng(0)
    rows = np.tile(scores, (n, 1))
    settings = {"temperature": 1, "top_k": None, "top_p": None, **options}
    tokens = sample(rows, **settings, rng=rng)
    return np.bincount(tokens, minlength=len(scores)) / n


def test_draws_follow_the_scores():
    scores = np.log([0.5, 0.3, 0.15, 0.05])
    np.testing.assert_allclose(drawn(scores), [0.5, 0.3, 0.15, 0.05], atol=0.015)
    np.testing.assert_allclose(drawn(scores, temperature=0.5), softmax(2 * scores), atol=0.015)
    np.testing.assert_allclose(drawn(scores, top_k=2), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(drawn(scores, top_p=0.7), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(drawn(scores, top_p=0.4), [1, 0, 0, 0])
    np.testing.assert_allclose(drawn(scores, top_k=9, top_p=1.0), softmax(scores), atol=0.015)
    scores = np.array([[1.0, 3.0, 2.0]], np.float32)
    assert sample(scores, 1e-320, None, None, np.random.default_rng(0)) == [1]


ENDS = [nn.Softmax(), nn.LogSoftmax(), nn.Softmax(axis=2), nn.Chain(nn.Chain(nn.Softmax()))]
ENDS += [nn.TimeDistributed(end) for end in (nn.Softmax(), nn.Chain(nn.Softmax()))]


OPTIONS = [{"temperature": 2.0, "top_k": 5, "top_p": 0.9}, {}, {"cache": False}]
OPTIONS += [{"top_k": 3}, {"top_p": 0.6}, {"temperature": 0}, {"temperature": 0.5}]


@pytest.mark.parametrize("end", ENDS, ids=repr)
@pytest.mark.parametrize("scale", [1, 1e4])  # at 1e4, most probabilities are 0
def test_probabilities_are_drawn_as_they_are(end, scale):
    ended, model = built("lstm", end.copy(), scale=scale), built("lstm", scale=scale)
    prompt = [[1, 2], [3, 4]]
    for options in OPTIONS if LONG or end is ENDS[0] else OPTIONS[:1]:
        wanted = model.generate(prompt, 6, seed=3, **options)
        np.testing.assert_array_equal(ended.generate(prompt, 6, seed=3, **options), wanted)
        streamed = list(ended.stream(prompt, 6, seed=3, **options))
        np.testing.assert_array_equal(np.transpose(streamed), wanted[:, 2:])


def test_other_outputs_are_scores_and_models_without_them_are_refused():
    model = built("lstm", nn.Residual(nn.Softmax()))
    scores = np.tile(model.predict([[1]])[:, -1], (1000, 1))
    assert model.gives == ""
    np.testing.assert_array_equal(
        model.generate(np.full((1000, 1), 1), 1, seed=0)[:, 1],
        sample(scores, 1, None, None, np.random.default_rng(0)),
    )
    model = SequentialBuilder(4, seed=0).embedding(5, 4).reshape(-1, 2, 2).build()
    with pytest.raises(ArgumentError, match=r"scores \(N, T, vocabulary\)"):
        model.generate([1], 1)
    assert model.generate([1, 2], 0).tolist() == [[1, 2]]
    model = built("gpt")
    with calling(memory={}):
        Y = model.forward(np.array([[1, 2]]))
    with pytest.raises(BackwardError, match="run a forward pass in training mode"):
        model.backward(Y)


# --- the memory and the whole window -------------------------------------------------------------

V, D, PLACES = 9, 4, 5


def mean_so_far(X, *_):
    return X.cumsum(axis=1)


REMEMBERED = [
    *(partial(kind, D) for kind in (nn.GRU, nn.LSTM, nn.RNN, nn.Dense)),
    *(nn.Tanh, nn.LayerNorm, nn.RMSNorm, nn.BatchNorm, nn.SinusoidalEncoding, nn.RotaryEmbedding),
    lambda: nn.MultiHeadAttention(2, causal=True),
    lambda: nn.MultiHeadAttention(2, causal=True, kv_heads=1, rope=True, dropout=0.3),
    lambda: nn.TransformerBlock(2, causal=True, rope=True, norm="rms", dropout=0.2),
    lambda: nn.TransformerBlock(2, causal=True, pre_norm=False, checkpoint=True),
    lambda: nn.PositionalEmbedding(PLACES),
    lambda: nn.Dropout(0.5),
    lambda: nn.FeedForward(5, "swiglu"),
    lambda: nn.TimeDistributed(nn.Chain(nn.Reshape(2, 2), nn.GRU(2), nn.Flatten())),
    lambda: nn.Reshape(-1, D),
    lambda: nn.Residual(nn.GRU(D), nn.Tanh()),
    lambda: nn.Parallel(nn.LSTM(D), nn.Chain(nn.RNN(D), checkpoint=True), merge="add"),
    lambda: nn.Chain(nn.SkipConcat(nn.GRU(D)), nn.Dense(D), nn.PositionalEmbedding(PLACES)),
]
JOINED = [
    lambda: nn.Conv1D(D, 3, padding="same"),
    lambda: nn.AvgPool1D(3, stride=1, padding="same"),
    lambda: nn.GroupNorm(1),
    lambda: nn.Softmax(axis=1),
    lambda: nn.MultiHeadAttention(2),
    lambda: nn.TransformerBlock(2),
    lambda: nn.Bidirectional(nn.GRU(D), merge="add"),
    lambda: nn.Lambda(mean_so_far, mean_so_far),
    lambda: nn.Chain(nn.Permute(2, 1), nn.Tanh(), nn.Permute(2, 1)),
]


def written(layers, dtype=np.float64, seed=0):
    """A model of these layers between an Embedding and scores, with large random weights."""
    model = Sequential(nn.Embedding(V, D), *layers, nn.Dense(V), dtype=dtype, seed=seed)
    model.build((4,))
    return randomize(model, np.random.default_rng(seed), 1)


def slowly(model, prompt, n, seed, most, **how):
    """The same draws from predictions on the window."""
    rng, ids = np.random.default_rng(seed), np.atleast_2d(prompt)
    for _ in range(n):
        scores = model.predict(ids[:, -most:])[:, -1]
        options = {"temperature": 1.0, "top_k": None, "top_p": None, **how}
        ids = np.concatenate([ids, sample(scores, **options, rng=rng)[:, None]], axis=1)
    return ids


@pytest.mark.parametrize("make", [*REMEMBERED, *JOINED], ids=lambda make: repr(make()))
@pytest.mark.parametrize("dtype", few([np.float32, np.float64], 1))
def test_each_layer_generates_as_it_predicts(make, dtype):
    model = written([make()], dtype)
    caches = (None, False) if model.time_steps == "joined" else (None, False, True)
    for prompt, how in (([1, 2, 3], {"temperature": 0}), ([[4, 5], [6, 7]], {"temperature": 0.7})):
        wanted = slowly(model, prompt, 6, 5, PLACES if model.max_steps else 99, **how)
        for cache in caches:
            tokens = model.generate(prompt, 6, seed=5, cache=cache, **how)
            np.testing.assert_array_equal(tokens, wanted)


@pytest.mark.parametrize("make", JOINED, ids=lambda make: repr(make()))
def test_only_an_explicit_memory_is_refused(make):
    model = written([nn.Residual(nn.Tanh(), make())])
    assert model.time_steps == "joined"
    says = r"cache=True, but layer 1\.layers\.1.*Remedy: leave out"
    with pytest.raises(ArgumentError, match=says):
        model.generate([1, 2], 2, cache=True)
    assert model.generate([1, 2], 2).shape == (1, 4)


def test_own_layers_see_the_whole_window_and_it_is_the_least_of_all_limits():
    class Running(Layer):
        def forward(self, X):
            return X.cumsum(axis=1)

    class Alone(Layer):
        time_steps = "independent"

        def forward(self, X):
            return np.tanh(X)

    for layer, steps in ((Running(), "joined"), (Alone(), "independent")):
        model = written([layer])
        assert model.time_steps == steps
        tokens = model.generate([1, 2], 6, seed=0)
        np.testing.assert_array_equal(tokens, slowly(model, [1, 2], 6, 0, 99))
    model = written(
        [nn.Parallel(nn.Residual(nn.PositionalEmbedding(6)), nn.PositionalEmbedding(4))]
    )
    assert model.max_steps == 4
    for cache in (True, False):
        tokens = model.generate([1] * 9, 5, seed=1, cache=cache)
        np.testing.assert_array_equal(tokens, slowly(model, [1] * 9, 5, 1, 4))
    inside = written(
        [nn.TimeDistributed(nn.Chain(nn.Reshape(2, 2), nn.PositionalEmbedding(2), nn.Flatten()))]
    )
    assert inside.max_steps is None
    assert inside.generate([1, 2, 3], 4).shape == (1, 7)


# --- a window of fixed length --------------------------------------------------------------------


def n_gram():
    """Scores of the next token from the three before it, and from no other number of them."""
    return SequentialBuilder(3, seed=0).embedding(V, D).flatten().dense(8).tanh().dense(V).build()


def test_models_that_join_all_steps_read_the_window_again():
    model = n_gram()
    tokens = model.generate([[1, 2, 3, 4], [5, 6, 7, 8]], 5, temperature=0)
    for t in range(4, 9):
        wanted = model.predict(tokens[:, t - 3 : t]).argmax(axis=-1)
        np.testing.assert_array_equal(tokens[:, t], wanted)
    streamed = list(model.stream([1, 2, 3], 5, temperature=0))
    assert streamed == model.generate([1, 2, 3], 5, temperature=0)[0, 3:].tolist()
    says = r"shape \(3,\).*prompt of 2 tokens.*Remedy: use a longer prompt"
    with pytest.raises(ShapeError, match=says):
        model.stream([1, 2], 5)
    builder = SequentialBuilder(4).embedding(V, 3).gru(6, return_sequences=False).reshape(6, 1)
    model = builder.gru(V).dtype("float64").build()
    assert model.time_steps == "joined"
    tokens = model.generate([1, 2], 6, seed=0)
    np.testing.assert_array_equal(tokens, slowly(model, [1, 2], 6, 0, 99))
    model = SequentialBuilder(4, seed=0).embedding(V, 3).lstm(V, return_sequences=False).build()
    ids = np.array([[1, 2]])
    for _ in range(4):
        ids = np.append(ids, model.predict(ids).argmax(axis=-1)[:, None], axis=1)
    for cache in (None, False, True):
        tokens = model.generate([1, 2], 4, temperature=0, cache=cache)
        np.testing.assert_array_equal(tokens, ids)


# --- stop and stream -----------------------------------------------------------------------------


def test_a_stopped_sample_repeats_its_stop_and_disturbs_no_other():
    model, prompt = built("gpt"), np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    free = model.generate(prompt, 30, seed=3)
    for stop in (0, [0], (2, 7), np.array([1, 3])):
        stops, tokens = np.atleast_1d(stop), model.generate(prompt, 30, seed=3, stop=stop)
        ends = []
        for row, whole in zip(tokens, free, strict=True):
            found = np.flatnonzero(np.isin(whole[3:], stops))
            end = 3 + found[0] if len(found) else len(whole) - 1
            ends.append(end)
            np.testing.assert_array_equal(row[: end + 1], whole[: end + 1])
            assert (row[end:] == whole[end]).all()
        assert tokens.shape[1] == max(ends) + 1  # it ends where the last one does
    np.testing.assert_array_equal(model.generate(prompt, 30, seed=3, stop=[]), free)
    assert built("gpt").generate([0, 0, 0], 4, seed=1, stop=0).shape[1] > 3


def test_a_stream_neither_disturbs_its_consumer_nor_is_disturbed():
    model, wanted = built("gpt"), built("gpt").generate([1, 2], 9, seed=3)[0, 2:].tolist()
    X, y = np.ones((2, 4), int), np.ones((2, 4), int)
    before, found = current(), []
    stream = model.stream([1, 2], 9, seed=3)
    alone = model.generate([7], 3, seed=1)
    for i, token in enumerate(stream):
        assert current() is before
        found.append(token)
        model.predict(X)
        np.testing.assert_array_equal(model.generate([7], 3, seed=1), alone)
        model.forward(X)
        model.backward(np.ones((2, 4, 11)))
        if i == 3:  # its consumer may change contexts as it likes
            with calling(mask=np.zeros((1, 1), bool), memory={}, training=True):
                found.append(next(stream))
        if i == 5:
            found += [contextvars.copy_context().run(next, stream)]
    assert found == wanted
    other = built("gpt")
    other.setloss("softmax_cross_entropy")
    for i, _ in enumerate(other.stream([1, 2], 9, seed=3)):
        other.train(X, y, epochs=1, verbose=0)
        if i == 2:
            break  # abandoned
    assert current() is before
    assert np.isfinite(other.evaluate(X, y)["loss"])
    model, twin = (written([nn.Conv1D(D, 3, padding="same")]) for _ in range(2))
    stream = model.stream([1, 2, 3], 2, temperature=0)
    next(stream)
    weights = {path: -a for path, a in model.get_weights().items()}
    model.set_weights(weights)
    first = twin.generate([1, 2, 3], 1, temperature=0)
    twin.set_weights(weights)
    assert next(stream) == twin.generate(first[0], 1, temperature=0)[0, -1]


def test_bad_prompts_and_options_are_refused_at_the_call():
    for prompt, options, error, says in (
        ([], {}, ArgumentTypeError, "prompt takes integer tokens"),
        (np.empty((1, 0), int), {}, ShapeError, "at least one"),
        ([1.0], {}, ArgumentTypeError, "integer tokens"),
        ([[[1]]], {}, ShapeError, "prompt takes at least one"),
        ([11], {}, ArgumentError, "tokens from 0 to 10, got 11"),
        ([1], {"temperature": -1}, ArgumentError, "temperature"),
        ([1], {"top_k": 0}, ArgumentError, "top_k"),
        ([1], {"top_p": 0}, ArgumentError, "top_p"),
        ([1], {"top_p": 1.5}, ArgumentError, "top_p"),
        ([[1], [2, 3]], {}, ShapeError, "prompt takes an array, got nested .* unequal length"),
        ([1], {"stop": 11}, ArgumentError, "stop takes tokens from 0 to 10, got 11"),
        ([1], {"stop": [3, -1]}, ArgumentError, r"stop takes tokens from 0 to 10, got \[3, -1\]"),
        ([1], {"stop": 1.0}, ArgumentTypeError, "stop takes integer tokens"),
        ([1], {"stop": "\n"}, ArgumentTypeError, "stop takes integer tokens"),
    ):
        model = built("gpt")
        for method in (model.stream, model.generate):
            with pytest.raises(error, match=says):
                method(prompt, 2, **options)


# --- scores that nothing can be drawn from -------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_without_a_greatest_are_refused(bad, temperature):
    scores = np.zeros((3, 4))
    scores[1] = bad
    with pytest.raises(ArgumentError, match=rf"sample 1: its highest score is {bad}.*finite"):
        sample(scores, temperature, None, None, np.random.default_rng(0))
    scores[1, 2] = 0
    if np.isneginf(bad):
        assert sample(scores, temperature, None, None, np.random.default_rng(0))[1] == 2
    model = built("gpt")
    model.layers[0].W[...] = np.nan
    with pytest.raises(ArgumentError, match="Are the model's weights finite"):
        model.generate([1], 2, temperature=temperature)
