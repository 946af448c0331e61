"""The tiny models of references/make_hub_references.py, which need no torch."""

import numpy as np
import pytest
from click.testing import CliRunner

import phitodeep
from phitodeep.cli import main
from phitodeep.core.call import saliency
from phitodeep.model.architectures import from_pretrained
from phitodeep.text import HubTokenizer
from tests.conftest import assert_same
from tests.exchange.hub.folders import STORED

NEAR = {"rtol": 0, "atol": 1e-5}
each = pytest.mark.parametrize("name", ["gpt2", "llama"])


def reference(name):
    with np.load(STORED / name / "reference.npz") as file:
        return dict(file)


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_and_gradient(name, dtype):
    model, wanted = from_pretrained(STORED / name), reference(name)
    model.cast(dtype)
    tokens = wanted["tokens"]
    np.testing.assert_allclose(model.predict(tokens), wanted["logits"], **NEAR)
    with saliency():  # without GPT-2's dropout
        logits = model.forward(tokens)
        loss, dlogits = model.loss.value_and_gradient(logits, tokens[:, ::-1])
        model.backward(dlogits)
    assert loss == pytest.approx(float(wanted["loss"]), abs=1e-5)
    np.testing.assert_allclose(model.gradients()["0.W"], wanted["gradient"], **NEAR)


@each
def test_text_and_greedy_tokens(name):
    model, wanted = from_pretrained(STORED / name), reference(name)
    prompt, greedy = wanted["prompt"], wanted["greedy"]
    new = greedy.shape[1] - prompt.shape[1]
    text = str(wanted["text"])
    np.testing.assert_array_equal(model.tokenizer.encode(text), prompt[0])
    np.testing.assert_array_equal(model.generate(prompt, new, temperature=0), greedy)
    continued = model.generate(text, new, temperature=0)
    assert continued == model.tokenizer.decode(greedy[0])
    assert continued.startswith(text)
    streamed = [*model.stream(text, new, temperature=0)]
    np.testing.assert_array_equal(streamed, greedy[0, prompt.shape[1] :])


@each
def test_a_saved_model_keeps_its_tokenizer(name, tmp_path):
    model, wanted = from_pretrained(STORED / name), reference(name)
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = phitodeep.load(path)
    assert isinstance(again.tokenizer, HubTokenizer)
    assert again.tokenizer.json == model.tokenizer.json
    assert_same(again.get_weights(), model.get_weights())
    options = ["--prompt", str(wanted["text"]), "--temperature", "0", "-n", "12"]
    shown = CliRunner().invoke(main, ["generate", str(path), *options])
    assert shown.exit_code == 0, shown.output
    assert shown.output.rstrip("\n") == model.generate(str(wanted["text"]), 12, temperature=0)


@each
def test_fine_tuning_lowers_the_loss(name):
    model, tokens = from_pretrained(STORED / name, seed=1), reference(name)["tokens"]
    X, y = tokens[:, :-1], tokens[:, 1:]
    before = model.evaluate(X, y)["loss"]
    model.alpha = 0.01
    model.train(X, y, epochs=30, verbose=0)
    assert model.evaluate(X, y)["loss"] < before - 1


def test_a_checkpoint_gives_the_same_training():
    tokens = reference("gpt2")["tokens"]
    weights = []
    for checkpoint in (False, True):
        model = from_pretrained(STORED / "gpt2", checkpoint=checkpoint, seed=3)
        model.train(tokens[:, :-1], tokens[:, 1:], epochs=3, verbose=0)
        weights.append(model.get_weights())
    assert_same(*weights)
