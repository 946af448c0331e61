"""A GPT with GPT-2's weights is GPT-2: see references/make_gpt2_reference.py."""

import numpy as np
import pytest

from phitodeep.model.architectures import gpt
from tests.conftest import references

STORED = references("gpt2")
BATCH = STORED["batch"]
PRECISION = {"float32": {"rtol": 0, "atol": 3e-5}, "float64": {"rtol": 1e-11, "atol": 1e-13}}
each_dtype = pytest.mark.parametrize("dtype", PRECISION)

LAYERS = [  # of a block: transformers' name, our path, and our weight and bias
    ("ln_1", "0.layers.0", "gamma", "beta"),
    ("attn.c_attn", "0.layers.1", "Wqkv", "bqkv"),
    ("attn.c_proj", "0.layers.1", "Wo", "bo"),
    ("ln_2", "1.layers.0", "gamma", "beta"),
    ("mlp.c_fc", "1.layers.1.layers.0", "W", "b"),
    ("mlp.c_proj", "1.layers.1.layers.2", "W", "b"),
]  # matrices are (in, out) in both, and queries, keys and values side by side
LAYERS = [(f"h.{i}.{n}", f"{2 + i}.layers.{p}", *own) for i in range(3) for n, p, *own in LAYERS]
LAYERS.append(("ln_f", "5", "gamma", "beta"))
NAMES = {
    "transformer.wte.weight": "0.W",
    "transformer.wpe.weight": "1.W",
}  # the head is wte in both
for name, path, weight, bias in LAYERS:
    NAMES[f"transformer.{name}.weight"] = f"{path}.{weight}"
    NAMES[f"transformer.{name}.bias"] = f"{path}.{bias}"
WEIGHTS, GRADIENTS = (
    {NAMES[theirs]: a for theirs, a in STORED[kind].items()} for kind in ("weights", "gradients")
)


def gpt2(dtype):
    builder = gpt(61, 24, layers=3, heads=4, dim=32, activation="gelu_tanh")
    model = builder.loss("softmax_cross_entropy").dtype(dtype).optimizer("sgd").alpha(0.5).build()
    model.set_weights(WEIGHTS)  # refuses weights that are missing, too many or of another shape
    return model


def assert_near(found, wanted, dtype):
    assert found.keys() == wanted.keys()
    for name, a in found.items():
        assert a.dtype == dtype
        np.testing.assert_allclose(a, wanted[name], err_msg=name, **PRECISION[dtype])


@each_dtype
def test_logits_loss_and_every_gradient(dtype):
    model = gpt2(dtype)
    logits = model.forward(BATCH["tokens"])
    loss, dlogits = model.loss.value_and_gradient(logits, BATCH["targets"])
    model.backward(dlogits)
    assert_near({"logits": logits}, {"logits": BATCH["logits"]}, dtype)
    np.testing.assert_allclose(loss, BATCH["loss"], **PRECISION[dtype])
    assert len(GRADIENTS) == len(NAMES) == 40
    assert_near(model.gradients(), GRADIENTS, dtype)


@each_dtype
def test_a_step_of_training_takes_these_gradients(dtype):
    model = gpt2(dtype)
    model.train(BATCH["tokens"], BATCH["targets"], epochs=1, verbose=0)
    wanted = {path: W - 0.5 * GRADIENTS[path] for path, W in WEIGHTS.items()}
    assert_near(model.get_weights(), wanted, dtype)


@each_dtype
@pytest.mark.parametrize("cache", [True, False])
def test_greedy_generation(dtype, cache):
    prompt, tokens = STORED["greedy"]["prompt"], STORED["greedy"]["tokens"]
    new = tokens.shape[1] - prompt.shape[1]
    found = gpt2(dtype).generate(prompt, new, temperature=0, cache=cache)
    np.testing.assert_array_equal(found, tokens)
