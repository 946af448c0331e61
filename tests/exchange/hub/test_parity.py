"""Models of the transformers library and ours from their files, for random configs.

The configs are drawn from a seed each, so that a case that fails can be run again.
"""

import json

import numpy as np
import pytest

from phitodeep.exchange.hub.pretrained import read_plan
from phitodeep.model.architectures import from_pretrained
from tests.rows import few

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEAR = {"rtol": 0, "atol": 1e-4}
NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
STEPS = 24


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def gpt2_config(rng, **more):
    heads = int(rng.integers(1, 5))
    chosen = {
        "vocab_size": int(rng.integers(20, 90)), "n_positions": int(rng.integers(STEPS, 40)),
        "n_embd": heads * int(rng.integers(1, 9)), "n_layer": int(rng.integers(0, 4)),
        "n_head": heads, "n_inner": rng.choice([None, 20, 33]),
        "layer_norm_epsilon": float(rng.choice([1e-5, 1e-6, 1e-3])),
        "activation_function": str(rng.choice(["gelu_new", "gelu", "relu", "silu", "gelu_fast"])),
        "tie_word_embeddings": bool(rng.integers(2)),
        "reorder_and_upcast_attn": bool(rng.integers(2)),
        **{f"{at}_pdrop": float(rng.choice([0.0, 0.1])) for at in ("embd", "attn", "resid")},
    }  # fmt: skip
    return transformers.GPT2Config(**(chosen | NONE | more))


def llama_config(rng, **more):
    heads, shared = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    d = 2 * int(rng.integers(2, 7))
    chosen = {
        "vocab_size": int(rng.integers(20, 90)),
        "hidden_size": heads * shared * int(rng.choice([d, 2 * d])),
        "intermediate_size": int(rng.integers(5, 60)),
        "num_hidden_layers": int(rng.integers(0, 4)),
        "num_attention_heads": heads * shared, "num_key_value_heads": heads, "head_dim": d,
        "hidden_act": str(rng.choice(["silu", "gelu", "gelu_pytorch_tanh"])),
        "max_position_embeddings": int(rng.integers(16, 100)),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-5, 1e-3])),
        **{f: bool(rng.integers(2)) for f in ("tie_word_embeddings", "attention_bias", "mlp_bias")},
        "rope_parameters": rope(rng, d),
    }  # fmt: skip
    return transformers.LlamaConfig(**(chosen | NONE | more))


def rope(rng, d, kind=None):
    """Draw rotary angles; sequences of STEPS are longer than some of the first contexts."""
    kind = kind or str(rng.choice(["default", "linear", "dynamic", "llama3", "yarn", "longrope"]))
    base = float(rng.choice([10000.0, 500000.0, 17.0]))
    found = {"rope_type": kind, "rope_theta": base}
    first = int(rng.integers(8, 40))
    if kind in ("linear", "dynamic", "llama3", "yarn", "longrope"):
        found["factor"] = float(rng.uniform(1, 9))
    if kind in ("llama3", "yarn", "longrope"):
        found["original_max_position_embeddings"] = first
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": float(rng.uniform(1.5, 5))}
    if kind == "yarn":
        found |= {"beta_fast": float(rng.uniform(4, 33)), "beta_slow": float(rng.uniform(0.2, 2))}
        found |= {"truncate": bool(rng.integers(2))}
        extra = int(rng.integers(3))
        found |= {"attention_factor": float(rng.uniform(0.5, 2))} if extra == 1 else {}
        found |= {"mscale": 0.7, "mscale_all_dim": 1.1} if extra == 2 else {}
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            found[name] = rng.uniform(0.8, 4, d // 2).tolist()
        found |= {"attention_factor": 1.2} if rng.integers(2) else {}
    return found


CONFIGS = {"GPT2": gpt2_config, "Llama": llama_config}


def theirs(family, rng, head="LMHeadModel", **more):
    """Return a model with random biases and scales of norms, since 0 and 1 would hide mistakes.

    Its matrices keep the size of what they multiply, so that float32 is precise enough.
    """
    config = CONFIGS[family](rng, **more)
    head = "ForCausalLM" if family == "Llama" and head == "LMHeadModel" else head
    kind = getattr(transformers, f"{family}{head}")
    config._attn_implementation = "eager"
    model = kind(config).eval()
    for name, p in model.named_parameters():
        size = 1 / np.sqrt(max(p.shape)) if p.ndim == 2 else 0.3
        centre = 1.0 if "norm" in name or "ln_" in name else 0.0
        p.data = torch.tensor(rng.normal(centre, size, p.shape), dtype=torch.float32)
    return model


def tokens(model, rng, n=2, steps=STEPS):
    return rng.integers(0, model.config.vocab_size, (n, steps))


def logits(model, X):
    with torch.no_grad():
        return model(torch.tensor(X)).logits.float().numpy()


def saved(model, folder, **options):
    model.save_pretrained(folder, **options)
    return folder


def assert_same_logits(ours, model, rng):
    X = tokens(model, rng)
    found = ours.predict(X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, logits(model, X), **NEAR)


@pytest.mark.parametrize("seed", few(range(25), 8))
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_of_random_configs(family, seed, tmp_path):
    rng = np.random.default_rng([seed, len(family)])
    model = theirs(family, rng)
    assert_same_logits(from_pretrained(saved(model, tmp_path)), model, rng)


@pytest.mark.parametrize("seed", few(range(6), 2))
@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn", "longrope"])
def test_every_kind_of_rotary_angles(kind, seed, tmp_path):
    """With sequences shorter and longer than the first context, in the old spelling and the new."""
    rng = np.random.default_rng(seed)
    angles = rope(rng, 8, kind)
    longest = int(rng.integers(10, 60))
    model = theirs(
        "Llama", rng, head_dim=8, rope_parameters=angles, num_hidden_layers=2,
        max_position_embeddings=longest,
    )  # fmt: skip
    saved(model, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for old in (False, True):
        if old:
            angles = written.pop("rope_parameters")
            written["rope_theta"] = angles.pop("rope_theta")
            angles["type"] = angles.pop("rope_type")
            written["rope_scaling"] = None if kind == "default" else angles
            (tmp_path / "config.json").write_text(json.dumps(written))
        ours = from_pretrained(tmp_path)
        for steps in (5, 9, STEPS, 70):
            X = tokens(model, rng, steps=steps)
            # transformers remembers the longest sequence for "dynamic", so a fresh model is needed
            fresh = type(model)(model.config).eval()
            fresh.load_state_dict(model.state_dict())
            np.testing.assert_allclose(ours.predict(X), logits(fresh, X), **NEAR)


@pytest.mark.parametrize("seed", few(range(10), 3))
@pytest.mark.parametrize("family", CONFIGS)
def test_gradients_of_every_parameter(family, seed, tmp_path):
    rng = np.random.default_rng([seed, 1])
    off = {f"{at}_pdrop": 0.0 for at in ("embd", "attn", "resid")} if family == "GPT2" else {}
    model = theirs(family, rng, **off)
    X, y = tokens(model, rng), tokens(model, rng)
    loss = torch.nn.functional.cross_entropy(
        model(torch.tensor(X)).logits.flatten(0, 1), torch.tensor(y).flatten()
    )
    loss.backward()
    ours = from_pretrained(saved(model, tmp_path), checkpoint=bool(seed % 2))
    P = ours.forward(X)
    value, dP = ours.loss.value_and_gradient(P, y)
    ours.backward(dP)
    assert value == pytest.approx(loss.item(), rel=1e-5)
    gradients = ours.gradients()
    compared = 0
    for path, names in read_plan(tmp_path).sources().items():
        parts = [dict(model.named_parameters())[name].grad.numpy() for name in names.shapes]
        wanted = np.concatenate([a.T if names.transposed else a for a in parts], axis=-1)
        np.testing.assert_allclose(gradients[path], wanted, err_msg=path, **NEAR)
        assert np.abs(wanted).max() > 1e-3, path  # a wrong gradient is not near by chance
        compared += 1
    assert compared == len(gradients)


@pytest.mark.parametrize("seed", few(range(8), 3))
@pytest.mark.parametrize("family", CONFIGS)
def test_the_same_greedy_tokens(family, seed, tmp_path):
    rng = np.random.default_rng([seed, 2])
    model = theirs(family, rng)
    ours = from_pretrained(saved(model, tmp_path))
    prompt = tokens(model, rng, steps=int(rng.integers(1, 6)))
    new = STEPS - prompt.shape[1]
    mask = torch.ones(prompt.shape, dtype=torch.int64)
    options = {"attention_mask": mask, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(torch.tensor(prompt), max_new_tokens=new, **options).numpy()
    best = np.sort(logits(model, wanted), axis=-1)
    assert (best[..., -1] - best[..., -2]).min() > 1e-5  # no two tokens are equally good
    for cache in (True, False):
        if cache or "dynamic" not in str(model.config.rope_parameters if family == "Llama" else ""):
            found = ours.generate(prompt, new, temperature=0, cache=cache)
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_half_precision_becomes_float32(family, dtype, tmp_path):
    rng = np.random.default_rng(5)
    model = theirs(family, rng).to(getattr(torch, dtype))
    ours = from_pretrained(saved(model, tmp_path))
    again = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert_same_logits(ours, again, rng)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_checkpoint_without_a_head(family, tmp_path):
    rng = np.random.default_rng(3)
    base = theirs(family, rng, head="Model", tie_word_embeddings=True)
    ours = from_pretrained(saved(base, tmp_path))
    X = tokens(base, rng)
    with torch.no_grad():
        hidden = base(torch.tensor(X)).last_hidden_state
    wanted = hidden @ base.get_input_embeddings().weight.T
    np.testing.assert_allclose(ours.predict(X), wanted.detach().numpy(), **NEAR)


@pytest.mark.parametrize("kind", ["yarn", "longrope", "llama3"])
def test_the_first_context_may_be_written_outside(kind, tmp_path):
    rng = np.random.default_rng(8)
    saved(theirs("Llama", rng, head_dim=8, rope_parameters=rope(rng, 8, kind)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["original_max_position_embeddings"] = 7
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.rope_parameters["original_max_position_embeddings"] == 7
    assert_same_logits(from_pretrained(tmp_path), again, rng)


def test_mistral_without_a_sliding_window(tmp_path):
    rng = np.random.default_rng(4)
    torch.manual_seed(4)
    config = transformers.MistralConfig(
        vocab_size=41, hidden_size=24, intermediate_size=31, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, sliding_window=None, **NONE,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    assert_same_logits(from_pretrained(saved(model, tmp_path)), model, rng)


def test_the_ends_of_the_shapes_that_people_use(tmp_path):
    """SmolLM2, TinyLlama and Llama 3 with fewer and smaller layers, from configs as they are."""
    shared = {"model_type": "llama", "vocab_size": 50, "num_hidden_layers": 2, "head_dim": None}
    smol = {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3}
    smol |= {"intermediate_size": 96, "tie_word_embeddings": True, "rope_theta": 100000}
    smol |= {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None}
    tiny = {"hidden_size": 64, "num_attention_heads": 32, "num_key_value_heads": 4}
    tiny |= {"intermediate_size": 70, "rms_norm_eps": 1e-5, "pretraining_tp": 1}
    big = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
    big |= {"intermediate_size": 80, "rope_theta": 500000.0, "max_position_embeddings": 131072}
    big["rope_scaling"] = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    big["rope_scaling"] |= {"original_max_position_embeddings": 8192, "rope_type": "llama3"}
    for i, own in enumerate((smol, tiny, big)):
        config = {key: value for key, value in (shared | own).items() if value is not None}
        read = transformers.LlamaConfig.from_dict(config | NONE)
        torch.manual_seed(i)
        model = transformers.LlamaForCausalLM(read).eval()
        folder = saved(model, tmp_path / str(i))
        (folder / "config.json").write_text(json.dumps(config))
        assert_same_logits(from_pretrained(folder), model, np.random.default_rng(i))
