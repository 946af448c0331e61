"""`phitodeep info`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from phitodeep.cli.app import model_file
from phitodeep.cli.inputs import sample_shapes
from phitodeep.core.table import facts
from phitodeep.core.types import Shape
from phitodeep.errors import DataError, shortened
from phitodeep.inspect.summary import summarize
from phitodeep.io.model_file import ModelFile, open_model
from phitodeep.layers.random import shapes_only
from phitodeep.model.model import Model


@click.command()
@model_file
def info(file: Path) -> None:
    """Show the layers, settings and size of a model file.

    The weights are not read.

    \b
    Example:
      phitodeep info digits.safetensors
    """
    with open_model(file) as opened:
        with shapes_only():
            model, _ = opened.build()
        if not isinstance(model, Model):
            raise DataError(f"{file} holds a {type(model).__name__}, not a model.")
        title = facts(_facts(opened, model))
    dataclasses.replace(summarize(model), title=f"{title}\n").show()


def _facts(file: ModelFile, model: Model) -> dict[str, Any]:
    state = _inside(file.texts, "state")
    place, trained = _inside(state, "place"), _inside(state, "model").get("epoch")
    if place.get("step"):
        trained = f"{trained}, and {place['step']} steps of the next"
    parts = {
        "weights": True,
        "the optimizer's memory": bool(state),
        "the place in training": bool(place),
        "a tokenizer": "tokenizer" in file.texts,
    }
    known = {
        "file": f"{file.path}, {file.path.stat().st_size:,} bytes",
        "written by": f"phitodeep {file.library}, format version {file.version}",
        "holds": ", ".join(part for part, held in parts.items() if held),
        "input": _listed(sample_shapes(model)) or "unknown",
        "dtype": model.dtype,
        "loss": model.loss,
        "optimizer": model.optimizer,
        "batch size": model.batch_size or "all samples",
        "epochs trained": trained,
    }
    return {name: shortened(str(fact)) for name, fact in known.items() if fact is not None}


def _listed(shapes: dict[str, Shape]) -> str:
    """Return the shape of the only input, or "name shape" for each of several."""
    if len(shapes) == 1:
        return str(*shapes.values())
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _inside(outer: Any, key: str) -> dict[str, Any]:
    """Return the dict at this key, or an empty one."""
    found = outer.get(key)
    return found if isinstance(found, dict) else {}
