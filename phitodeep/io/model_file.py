"""Model files: weights as safetensors, everything else as JSON in the metadata of the same file.

    metadata    format       "phitodeep"
                version      of the format: see `VERSION`
                library      the version of phitodeep that wrote the file
                model        the architecture and all settings, as `get_config` writes them
                state        what training needs to continue (optional): see `Run.state_dict`
                tokenizer    the model's tokenizer, as `get_config` writes it (optional)
                run          a name for the call of `train` that wrote a checkpoint (optional)
    arrays      0.W, ...     parameters and running statistics by path, as in `get_weights`
                state/...    the arrays inside the state, by their keys

In the JSON of the state, {"$array": name} stands for an array of the file, and {"$float": "nan"}
for a number that JSON does not have. Reading a file imports no modules and runs no code except the
constructors of registered classes. Callbacks are never part of a file: they may write to any path.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.config import Configurable, restored
from phitodeep.core.state import StateDict
from phitodeep.core.types import Array
from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, first_few
from phitodeep.io.json_text import parsed
from phitodeep.io.tensors import Entry, Tensors, open_tensors

JSON = ("model", "state", "tokenizer", "run")  # the texts that are JSON
DEEPEST = 400  # levels of lists and dicts: a model in a model takes about four
VERSION = 1  # raise it when a reader of the last version would misread a file


def packed(
    weights: Mapping[str, Array], state: StateDict | None = None, **configs: Any
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays and the metadata of a model file; configs that are None are left out."""
    arrays = dict(weights)
    texts = {"format": "phitodeep", "version": str(VERSION), "library": __version__}
    if state is not None:
        texts["state"] = _text(_plain(state, "state", arrays))
    given = {key: value for key, value in configs.items() if value is not None}
    return arrays, texts | {key: _text(without_callbacks(value)) for key, value in given.items()}


class ModelFile:
    """An open model file.

    tensors      the arrays, which are read when they are asked for
    weights      the entries of the arrays that are weights; the others are part of the state
    version      of the format
    library      the version of phitodeep that wrote the file
    model        the model's config, as {"layer": class, "config": settings}
    run          the name of the call of `train` that wrote it, or None
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors, self.path = tensors, tensors.path
        self.weights = weights_in(tensors)
        texts = tensors.metadata
        if texts.get("format") != "phitodeep":
            raise DataError(
                f"{self.path} holds arrays, but no description of a model: build the model, and "
                "read its weights with model.load_weights(path)."
            )
        version = texts.get("version", "")
        if version not in {str(n) for n in range(1, VERSION + 1)}:
            raise DataError(
                f"{self.path} has the format version {version!r}, and this phitodeep "
                f"({__version__}) reads versions 1 to {VERSION}: install a newer one."
            )
        self.version, self.library = int(version), texts.get("library", "")
        self.texts = {key: self._json(key) for key in JSON if key in texts}
        self.run = self.texts.get("run")
        self.model = self.texts.get("model")
        if not isinstance(self.model, dict) or "layer" not in self.model:
            raise DataError(f"{self.path} is damaged: it has no config of a model.")

    def build(self) -> tuple[Any, Any]:
        """Return the model that the config describes and its tokenizer, which may be None."""
        configs = {"model": self.model, "tokenizer": self.texts.get("tokenizer")}
        model, tokenizer = restored(configs, os.fspath(self.path)).values()
        return model, check_tokenizer(tokenizer)

    def state(self) -> StateDict | None:
        """Return the state with its arrays, or None if the file has none."""
        if "state" not in self.texts:
            return None
        self._unread = {name for name in self.tensors.entries if name not in self.weights}
        state = self._read(self.texts["state"])
        if not isinstance(state, dict):
            raise DataError(f"{self.path} is damaged: its state is not a dict.")
        return state

    def model_state(self, state: StateDict) -> StateDict:
        """Return the part of the state that belongs to the model."""
        if not isinstance(state.get("model"), dict):
            raise DataError(f"{self.path} is damaged: its state has no state of the model.")
        return state["model"]

    def _json(self, key: str) -> Any:
        """Return a text of the metadata as JSON."""
        found = parsed(self.tensors.metadata[key], self.path, repr(key))
        if _deeper(found, DEEPEST):
            raise DataError(f"{self.path} is damaged: {key!r} is nested too deeply.")
        return found if key == "state" else without_callbacks(found)

    def _read(self, value: Any) -> Any:
        """Return what a value of the state stands for."""
        if isinstance(value, list):
            return [self._read(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "$array" in value:
            name = value["$array"]
            if not isinstance(name, str) or name not in self._unread:  # each is needed once
                raise DataError(f"{self.path} is damaged: its state needs the array {name!r}.")
            self._unread.remove(name)
            return self.tensors.read(name)
        if "$float" in value:
            found = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(str(value["$float"]))
            if found is None:
                raise DataError(f"{self.path} is damaged: {value!r} is not a number.")
            return found
        return {key: self._read(v) for key, v in value.items()}


def check_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer that a file can hold, or None."""
    if tokenizer is not None and not isinstance(tokenizer, Configurable):
        raise ArgumentTypeError(
            f"the tokenizer {tokenizer!r} cannot be saved: use an object such as CharTokenizer, or "
            "derive your class from phitodeep.core.config.Configurable and register it."
        )
    return tokenizer


class Differences(NamedTuple):
    """The differences between the weights of a file and the weights of a model, by path.

    missing       paths that the file lacks
    unexpected    paths that the model lacks
    different     paths that both have, with another shape or dtype
    """

    missing: list[str]
    unexpected: list[str]
    different: list[str]

    def __str__(self) -> str:
        parts = zip(("lacks", "has the unknown", "differs in"), self, strict=True)
        found = [f"{what} {_listed(paths)}" for what, paths in parts if paths]
        return f"the file {'; '.join(found)}" if found else "no difference"


def differences(wanted: Mapping[str, Entry], found: Mapping[str, Entry]) -> Differences:
    """Compare the weights that a model needs with those that a file has."""
    return Differences(
        [path for path in wanted if path not in found],
        [path for path in found if path not in wanted],
        [
            f"{path} ({found[path].dtype} {found[path].shape} instead of {entry.dtype} "
            f"{entry.shape})"
            for path, entry in wanted.items()
            if path in found and found[path] != entry
        ],
    )


def weights_in(tensors: Tensors) -> dict[str, Entry]:
    """Return the entries of the arrays that are not part of a state."""
    return {name: e for name, e in tensors.entries.items() if not name.startswith("state/")}


def _listed(paths: list[str]) -> str:
    """Return the first paths; one with line breaks is quoted, or it could look like a message."""
    return first_few([path if path.isprintable() else repr(path) for path in paths])


@contextmanager
def open_model(path: str | os.PathLike[str]) -> Iterator[ModelFile]:
    """Open a model file; refuse one that is missing, damaged or of a newer version."""
    with open_tensors(path) as tensors:
        yield ModelFile(tensors)


def without_callbacks(config: Any) -> Any:
    """Return a config without the callbacks in it, wherever they are; None for a callback."""
    if isinstance(config, dict):
        kept = {k: without_callbacks(v) for k, v in config.items() if not _is_callback(v)}
        return None if _is_callback(config) else kept
    if isinstance(config, list):
        return [without_callbacks(value) for value in config if not _is_callback(value)]
    return config


def _is_callback(value: Any) -> bool:
    return isinstance(value, dict) and "callback" in value


def _deeper(value: Any, levels: int) -> bool:
    """Return whether lists and dicts in `value` are nested more deeply than this."""
    layer = [value]
    for _ in range(levels):
        inner = [
            v.values() if isinstance(v, dict) else v for v in layer if isinstance(v, dict | list)
        ]
        layer = [v for group in inner for v in group]
    return any(isinstance(v, dict | list) for v in layer)


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _plain(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    """Return a value of the state as JSON, and move its arrays to `arrays`, named by their path."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                raise ArgumentError(
                    f"the state has the key {key!r} in {path!r}: keys must be "
                    "text that does not begin with $."
                )
        return {key: _plain(v, f"{path}/{key}", arrays) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{path}/{i}", arrays) for i, v in enumerate(value)]
    if isinstance(value, np.ndarray):
        if path in arrays:
            raise ArgumentError(f"the state has two arrays with the name {path!r}.")
        arrays[path] = value
        return {"$array": path}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, int | float | str):
        return value
    raise ArgumentTypeError(
        f"the state has {value!r} at {path!r}, which cannot be saved: use numbers, text, lists, "
        "dicts and arrays."
    )
