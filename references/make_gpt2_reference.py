"""Create tests/reference/gpt2.npz: a small GPT-2 from the transformers library, with all gradients.

Run `python references/make_gpt2_reference.py` with torch and transformers installed. The stored
file was created with torch 2.13.0+cpu and transformers 5.23.0, and records the versions and the
seed. The tests need neither.

`weights/NAME` and `gradients/NAME` are the parameters under their names in transformers. `batch/`
holds tokens and targets (2, 24), logits and the mean loss; `greedy/` holds a prompt and the tokens
that `generate` appends to it. The head is tied to the embedding and has no entry of its own. The
weights are drawn as in GPT-2 and then all moved, since 1 and 0 would hide a missing factor. All are
odd multiples of 1/1024, so that the file stays small. All values are float64.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from make_references import TESTS, array

SEED = 20240620  # chosen so that the greedy text does not repeat itself
MOVE = 0.25
CONFIG = transformers.GPT2Config(
    vocab_size=61,
    n_positions=24,
    n_embd=32,
    n_layer=3,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=None,
    eos_token_id=None,
)
SEEN = 20  # the batch uses only these tokens, each of them several times


def odd(a: np.ndarray) -> np.ndarray:
    return (2 * np.floor(512 * a) + 1) / 1024


def write() -> None:
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    model = transformers.GPT2LMHeadModel(CONFIG).double().eval()
    named = dict(model.named_parameters())
    assert model.lm_head.weight is named["transformer.wte.weight"]
    for p in named.values():
        p.data = torch.tensor(odd(array(p) + MOVE * rng.standard_normal(p.shape)))
    text = rng.integers(0, SEEN, (2, CONFIG.n_positions + 1))
    tokens, targets = text[:, :-1], text[:, 1:]

    logits = model(torch.tensor(tokens)).logits
    loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()

    prompt = torch.tensor(tokens[:, :4])
    greedy = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_length=CONFIG.n_positions,
        do_sample=False,
        pad_token_id=0,
    )
    with torch.no_grad():
        best = model(greedy).logits[:, 3:-1].topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 0.01  # float32 must choose the same token
    assert all(row.unique().numel() > 5 for row in greedy[:, 4:])

    arrays = {
        "batch/tokens": tokens,
        "batch/targets": targets,
        "batch/logits": array(logits),
        "batch/loss": array(loss),
        "greedy/prompt": array(prompt),
        "greedy/tokens": array(greedy),
    }
    for name, p in named.items():
        arrays |= {f"weights/{name}": array(p), f"gradients/{name}": array(p.grad)}
        assert not np.isin(array(p), (0, 1)).any(), name
        assert np.abs(array(p.grad)).max() > 0.005, name  # far above the tests' 1e-4
    assert all(a.dtype in (np.float64, np.int64) for a in arrays.values())
    path = TESTS / "gpt2.npz"
    np.savez_compressed(
        path,
        torch=np.array(torch.__version__),
        transformers=np.array(transformers.__version__),
        seed=np.array(SEED),
        **arrays,
    )
    print(f"{path}: {len(named)} parameters, {path.stat().st_size:,} bytes, loss {loss:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
