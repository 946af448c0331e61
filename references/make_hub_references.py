"""Create tests/reference/hub: a tiny GPT-2 and a tiny Llama as folders of the transformers library.

Run `python references/make_hub_references.py` with torch, transformers and tokenizers installed.
The stored folders were created with torch 2.13.0+cpu and transformers 5.23.0. The tests need
neither.

gpt2/    float32 in one file, with a tied head, and a byte-level tokenizer
llama/   bfloat16 in several files, with grouped queries, scaled rotary angles, an untied head, and
         a tokenizer that puts <s> before a text

Each folder also holds reference.npz: tokens (2, 12), the logits, the mean cross-entropy of
predicting the tokens in reverse order, the gradient of the embedding, and the tokens that greedy
generation appends to `prompt`, which is the text `text`.
"""

from __future__ import annotations

import shutil

import numpy as np
import torch
import transformers
from make_references import TESTS, array
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = TESTS / "hub"
SEED = 20240703
TEXT = "to be or not to be, that is the question: whether 'tis nobler in the mind to suffer"
SMALL = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None}
GPT2 = transformers.GPT2Config(
    n_embd=8, n_head=2, n_layer=2, n_positions=32, **SMALL,
)  # fmt: skip
LLAMA = transformers.LlamaConfig(
    hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=4, num_hidden_layers=2,
    intermediate_size=12, max_position_embeddings=64, **SMALL,
    rope_parameters={
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    },
)  # fmt: skip


def tokenizer(first: str | None) -> Tokenizer:
    """Return a tokenizer of 64 tokens, which puts `first` before each text."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>" if first is None else first]
    trainer = trainers.BpeTrainer(vocab_size=64, special_tokens=special, show_progress=False)
    found.train_from_iterator([TEXT], trainer)
    if first is None:
        found.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        found.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, 0)]
        )
    return found


def write(name: str, model: torch.nn.Module, words: Tokenizer, **options: object) -> None:
    rng = np.random.default_rng(SEED)
    for key, p in model.named_parameters():
        size = 1 / np.sqrt(max(p.shape)) if p.ndim == 2 else 0.3
        centre = 1.0 if "norm" in key or "ln_" in key else 0.0
        p.data = torch.tensor(rng.normal(centre, size, p.shape)).to(p.dtype)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    words.save(str(folder / "tokenizer.json"))
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()

    tokens = rng.integers(0, 64, (2, 12))
    logits = model(torch.tensor(tokens)).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(tokens[:, ::-1].copy()).flatten()
    )
    loss.backward()
    prompt = torch.tensor([words.encode("to be or").ids])
    greedy = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_length=24,
        do_sample=False,
        pad_token_id=0,
    )
    with torch.no_grad():
        best = model(greedy).logits.topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 1e-3  # float32 must choose the same token
    np.savez_compressed(
        folder / "reference.npz",
        text="to be or",
        prompt=prompt.numpy(),
        greedy=greedy.numpy(),
        tokens=tokens,
        logits=array(logits),
        loss=array(loss),
        gradient=array(model.get_input_embeddings().weight.grad),
    )
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    print(name, sizes)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("gpt2", transformers.GPT2LMHeadModel(GPT2), tokenizer(None))
    llama = transformers.LlamaForCausalLM(LLAMA).to(torch.bfloat16)
    write("llama", llama, tokenizer("<s>"), max_shard_size="2KB")
