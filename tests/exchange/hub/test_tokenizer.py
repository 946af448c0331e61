"""Tokenizers from files, and the tiny models of references/make_hub_references.py."""

import copy
import json
import pickle
import shutil

import numpy as np
import pytest
import tokenizers
from click.testing import CliRunner

import phitodeep
from phitodeep.cli import main
from phitodeep.core.call import saliency
from phitodeep.core.config import Configurable
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import Dense, Embedding
from phitodeep.model import Sequential
from phitodeep.model.architectures import from_pretrained
from phitodeep.text import HubTokenizer
from tests.conftest import assert_same
from tests.exchange.hub.folders import STORED

TEXT = "the question, that is"
WITHOUT, WITH = (
    HubTokenizer((STORED / name / "tokenizer.json").read_text()) for name in ("gpt2", "llama")
)


def test_a_text_and_its_tokens():
    tokens = WITHOUT.encode(TEXT)
    assert tokens.dtype == np.int64
    assert WITHOUT.decode(tokens) == TEXT
    assert "".join(WITHOUT.decode(int(token)) for token in tokens) == TEXT
    assert WITHOUT.vocab_size == 64
    assert WITHOUT.encode("").shape == (0,)
    assert repr(WITHOUT) == "HubTokenizer(<64 tokens>)"


def test_special_tokens():
    tokens = WITH.encode(TEXT)
    assert tokens[0] == 0
    np.testing.assert_array_equal(WITH.encode(TEXT, special=False), tokens[1:])
    assert WITH.decode(tokens) == TEXT
    assert WITH.decode(tokens, special=True) == f"<s>{TEXT}"
    np.testing.assert_array_equal(WITHOUT.encode("<|endoftext|>"), [0])


def test_truncation_and_padding_are_off():
    theirs = tokenizers.Tokenizer.from_str(WITHOUT.json)
    theirs.enable_truncation(3)
    theirs.enable_padding(length=50)
    ours = HubTokenizer(theirs.to_str())
    np.testing.assert_array_equal(ours.encode(TEXT), WITHOUT.encode(TEXT))


def test_copies():
    for twin in (copy.deepcopy(WITH), pickle.loads(pickle.dumps(WITH))):
        assert isinstance(twin, Configurable)
        np.testing.assert_array_equal(twin.encode(TEXT), WITH.encode(TEXT))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("own", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_the_tokens_of_transformers(name, own, tmp_path):
    """Its settings for special tokens have no effect where there is a tokenizer.json."""
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(STORED / name, tmp_path / name)
    config = own | {"bos_token": {"gpt2": "<|endoftext|>", "llama": "<s>"}[name]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = from_pretrained(folder).tokenizer
    for text in (TEXT, "", " to  be\n", "<s>or"):
        tokens = ours.encode(text)
        assert tokens.tolist() == theirs(text)["input_ids"]
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)


def test_refusals():
    for json_text in ("", "{}", "[", '{"model": {"type": "BPE", "vocab": {}, "merges": [1]}}'):
        with pytest.raises(ArgumentError, match=r"the text is not a tokenizer\.json"):
            HubTokenizer(json_text)
    with pytest.raises(ArgumentTypeError, match="got a int"):
        HubTokenizer(3)
    with pytest.raises(ArgumentTypeError, match="encode takes a text"):
        WITH.encode(3)
    with pytest.raises(ShapeError, match="decode each row"):
        WITH.decode(np.zeros((2, 2), int))
    for token in (-1, 1 << 32):
        with pytest.raises(ArgumentError, match=r"tokens\[1\] is"):
            WITH.decode(np.array([1, token]))
    assert WITH.decode([1 << 31]) == ""


def test_a_panic_of_the_library_is_an_error():
    """Which code panics is up to the library: this damage makes version 0.23 do it."""
    damaged = json.loads(WITHOUT.json)
    damaged["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    with pytest.raises(ArgumentError, match=r"the text is not a tokenizer\.json"):
        HubTokenizer(json.dumps(damaged))


def test_generation_from_text_needs_a_tokenizer():
    model = Sequential(Embedding(64, 2), Dense(2, 64), seed=1)
    for call in (model.generate, model.stream):
        with pytest.raises(ArgumentError, match=r"model\.tokenizer is not set"):
            call("to be", 3)
    model.tokenizer = WITHOUT
    text = model.generate("to be", 5, seed=1)
    assert text.startswith("to be")


# --- the stored models ----------------------------------------------------------------------------


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


def test_a_checkpoint_gives_the_same_training():
    tokens = reference("gpt2")["tokens"]
    weights = []
    for checkpoint in (False, True):
        model = from_pretrained(STORED / "gpt2", checkpoint=checkpoint, seed=3)
        model.train(tokens[:, :-1], tokens[:, 1:], epochs=3, verbose=0)
        weights.append(model.get_weights())
    assert_same(*weights)
