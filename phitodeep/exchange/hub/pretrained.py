"""A model from a folder in the format of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from phitodeep.core.types import PathLike
from phitodeep.errors import PhitodeepError
from phitodeep.exchange.hub import gpt2, llama
from phitodeep.exchange.hub.family import Plan, Settings
from phitodeep.exchange.hub.folder import find_folder, read_json, read_text
from phitodeep.exchange.hub.weights import Checkpoint
from phitodeep.layers.random import shapes_only
from phitodeep.text.tokenizer import HubTokenizer

FAMILIES: dict[str, Callable[[Settings], Plan]] = {
    "gpt2": gpt2.plan,
    "llama": llama.plan,
    "mistral": llama.mistral,
}


def read_pretrained(
    folder_or_name: PathLike, new: Callable[..., Any], *, revision: str | None,
    checkpoint: bool, seed: int | None,
) -> Any:  # fmt: skip
    """Return what `new` makes of a folder's layers: see `phitodeep.models.from_pretrained`."""
    folder = find_folder(folder_or_name, revision)
    plan = read_plan(folder)
    tokenizer = read_tokenizer(folder)
    weights = Checkpoint(folder)
    sources = weights.fit(plan)
    with shapes_only():
        model = new(*plan.layers(checkpoint), loss_class="softmax_cross_entropy", seed=seed)
        model.build((plan.steps,))
    for path, store, key in model._stored():
        store[key] = weights.parameter(sources[path])
    for _, layer in model.walk():
        layer._shapes_only = False
    model.tokenizer = tokenizer
    return model


def read_plan(folder: Path) -> Plan:
    """Return the plan of the model that the folder's config.json describes."""
    config = Settings(read_json(folder, "config.json"), str(folder / "config.json"))
    config.require(quantization_config=None)
    return FAMILIES[config.option("model_type", list(FAMILIES))](config)


def read_tokenizer(folder: Path) -> HubTokenizer | None:
    """Return the tokenizer of a folder, or None if it has no tokenizer.json.

    The special tokens around a text are those that tokenizer.json says, as in transformers.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    text = read_text(folder, path.name)
    try:
        return HubTokenizer(text)
    except PhitodeepError as error:
        error.at(str(path))
        raise
