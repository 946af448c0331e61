"""Folders in the format of the hub, written without its libraries."""

import json
from pathlib import Path

import numpy as np

from phitodeep.exchange.hub.pretrained import read_plan
from phitodeep.io.tensors import write_tensors

STORED = Path(__file__).parents[2] / "reference" / "hub"
GPT2 = {
    "model_type": "gpt2", "vocab_size": 11, "n_positions": 9, "n_embd": 6, "n_head": 2,
    "n_layer": 2, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 10,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "max_position_embeddings": 16,
}  # fmt: skip


def arrays_of(folder):
    """Return random arrays for the folder's config.json, under the names of the library."""
    rng = np.random.default_rng(1)
    return {
        name: rng.standard_normal(shape).astype(np.float32)
        for source in read_plan(folder).sources().values()
        for name, shape in source.shapes.items()
    }


def written(folder, config, **changed):
    """Write a folder with this config and random weights; `changed` are changed keys."""
    folder.mkdir(exist_ok=True)
    write_config(folder, config)
    write_tensors(folder / "model.safetensors", arrays_of(folder), {"format": "pt"})
    write_config(folder, config | changed)
    return folder


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
