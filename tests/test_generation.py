"""Generation: the memory changes nothing, the draws are what they say, bad prompts are refused."""

import numpy as np
import pytest

from phitodeep.errors import ArgumentError, ArgumentTypeError, BackwardError, ShapeError
from phitodeep.functional import softmax
from phitodeep.generation import sample
from phitodeep.layers.base import calling
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.models import char_lstm, gpt

MODELS = {
    "gpt": lambda: gpt(11, 16, layers=2, heads=2, dim=8),
    "untied, dropout": lambda: gpt(11, 16, layers=1, heads=2, dim=8, tied=False, dropout=0.5),
    "rope": lambda: (
        SequentialBuilder(16)
        .embedding(11, 8)
        .transformer_block(2, causal=True, rope=True, norm="rms")
        .dense(11)
    ),
    "sinusoidal": lambda: (
        SequentialBuilder(16)
        .embedding(11, 8)
        .sinusoidal_encoding()
        .transformer_block(2, causal=True)
        .dense(11)
    ),
    "lstm": lambda: char_lstm(11, dim=5, units=6, layers=2).input(16),
    "gru": lambda: SequentialBuilder(16).embedding(11, 5).gru(6).dense(11),
    "rnn": lambda: SequentialBuilder(16).embedding(11, 5).rnn(6).dense(11),
}


def built(name: str) -> Sequential:
    model = MODELS[name]().dtype("float64").seed(0).build()
    rng = np.random.default_rng(0)
    weights = {path: 0.5 * rng.standard_normal(a.shape) for path, a in model.get_weights().items()}
    model.set_weights(weights)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_memory_changes_no_token(name):
    model, prompt = built(name), np.array([[1, 2, 3], [4, 5, 6]])
    quick = model.generate(prompt, 12, seed=3)
    slow = model.generate(prompt, 12, seed=3, cache=False)
    np.testing.assert_array_equal(quick, slow)
    assert quick.shape == (2, 15)
    np.testing.assert_array_equal(quick[:, :3], prompt)
    assert len(set(quick[0].tolist())) > 3
    assert not np.array_equal(quick, model.generate(prompt, 12, seed=4))


@pytest.mark.parametrize("name", ["gpt", "untied, dropout"])
def test_beyond_the_context_the_window_moves_on(name):
    model = built(name)
    quick = model.generate([1, 2, 3], 20, seed=3)
    np.testing.assert_array_equal(quick, model.generate([1, 2, 3], 20, seed=3, cache=False))
    assert quick.shape == (1, 23)


def test_nothing_is_cached_and_the_model_stays(monkeypatch):
    model = built("gpt")
    before = model.get_weights()
    model.generate([1], 5, seed=0)
    assert all(not layer.cache for _, layer in model.walk())
    for path, a in model.get_weights().items():
        np.testing.assert_array_equal(a, before[path])


def test_temperature_0_takes_the_greatest():
    model = built("gpt")
    tokens = model.generate([1, 2], 6, temperature=0)
    for t in range(2, 8):
        assert tokens[0, t] == model.predict(tokens[:, :t])[0, -1].argmax()


def drawn(scores, n=20_000, **options):
    rng = np.random.default_rng(0)
    rows = np.tile(scores, (n, 1))
    tokens = sample(
        rows, options.get("temperature", 1), options.get("top_k"), options.get("top_p"), rng
    )
    return np.bincount(tokens, minlength=len(scores)) / n


def test_draws_follow_the_scores():
    scores = np.log([0.5, 0.3, 0.15, 0.05])
    np.testing.assert_allclose(drawn(scores), [0.5, 0.3, 0.15, 0.05], atol=0.015)
    np.testing.assert_allclose(drawn(scores, temperature=0.5), softmax(2 * scores), atol=0.015)
    np.testing.assert_allclose(drawn(scores, top_k=2), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(drawn(scores, top_p=0.7), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(drawn(scores, top_p=0.4), [1, 0, 0, 0])
    np.testing.assert_allclose(drawn(scores, top_k=9, top_p=1.0), softmax(scores), atol=0.015)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([], {}, ArgumentTypeError, "prompt takes integer tokens"),
        (np.empty((1, 0), int), {}, ShapeError, "at least one"),
        ([1.0], {}, ArgumentTypeError, "integer tokens"),
        ([[[1]]], {}, ShapeError, "prompt takes tokens"),
        ([11], {}, ArgumentError, "tokens from 0 to 10, got 11"),
        ([1], {"temperature": -1}, ArgumentError, "temperature"),
        ([1], {"top_k": 0}, ArgumentError, "top_k"),
        ([1], {"top_p": 0}, ArgumentError, "top_p"),
        ([1], {"top_p": 1.5}, ArgumentError, "top_p"),
    ],
)
def test_bad_prompts_and_options_are_refused(prompt, options, error, says):
    with pytest.raises(error, match=says):
        built("gpt").generate(prompt, 2, **options)


def test_a_model_without_scores_at_each_step_is_refused():
    model = SequentialBuilder(4, seed=0).embedding(5, 4).reshape(-1, 2, 2).build()
    with pytest.raises(ArgumentError, match=r"scores \(N, T, vocabulary\)"):
        model.generate([1], 1)
    assert model.generate([1, 2], 0).tolist() == [[1, 2]]


def test_no_backward_goes_through_steps_of_generation():
    model = built("gpt")
    with calling(memory={}):
        Y = model.forward(np.array([[1, 2]]))
    with pytest.raises(BackwardError, match="run a forward pass in training mode"):
        model.backward(Y)
