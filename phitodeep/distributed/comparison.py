"""What all ranks must have in common when training begins, as short texts and hashes."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.types import each
from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError, PhitodeepError, first_few
from phitodeep.training.sources import Arrays, ShardSource, Source


def description(training: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return what the ranks compare, by name."""
    model, run = training.model, training.run
    settings = {**run.settings, "threads": None}
    if isinstance(training.data, ShardSource):
        settings["samples"] = None
    if isinstance(training.test, ShardSource):
        settings["test_samples"] = None
    try:
        config = model.get_config()
    except PhitodeepError:  # parts without a name, such as a lambda
        config = model.optimizer, model.loss, list(model.layers)
    parameters = [(p, k, a.shape) for p, layer in model.walk() for k, a in layer.params.items()]
    return {
        "the version of phitodeep": __version__,
        "the version of Python": platform.python_version(),
        "the version of NumPy": np.__version__,
        "the code of phitodeep": _code_of_phitodeep(),
        "the code of the script": _digest(_script()),
        "the options of DataParallel": options,
        "the options of train": settings,
        "the layers": _text(list(model.layers)),
        "the loss": _text(model.loss),
        "the optimizer": _text(model.optimizer),
        "the settings of the model": _digest(_text(config).encode()),
        "the shapes of the parameters": _digest(_text(parameters).encode()),
        "the seed": model.seed,
        "the epochs and steps so far": (model.epoch, model.optimizer.t, run.step),
        "the memory of the optimizer": sorted(model.optimizer._slots),
        "the callbacks": [type(callback).__name__ for callback in training.callbacks],
        "X and y": _shape(training.data),
        "X_test and y_test": None if training.test is None else _shape(training.test),
    }


def compare(found: list[dict[str, Any]]) -> None:
    """Refuse ranks whose descriptions differ from that of rank 0."""
    for name, value in found[0].items():
        wrong = [i for i, other in enumerate(found) if other[name] != value]
        if wrong:
            theirs = found[wrong[0]][name]
            if isinstance(value, dict):
                keys = [key for key in value if value[key] != theirs.get(key)]
                value, theirs = ({key: part.get(key) for key in keys} for part in (value, theirs))
            raise ArgumentError(
                f"the ranks do not agree on {name}: rank 0 has {value}, rank {wrong[0]} has "
                f"{theirs} (different: {first_few([*map(str, wrong)], 8)}). All ranks must run the "
                "same script on the same data, with the same arguments."
            )


def _shape(source: Source) -> Any:
    """Return the shapes of a source's data and, for arrays, a hash of 16 of the rows."""
    if isinstance(source, ShardSource):
        return type(source.source).__name__, tuple(source.sample)
    found: list[Any] = [type(source).__name__, tuple(source.sample), source.count]
    if isinstance(source, Arrays):
        data = source.data
        rows = np.unique(np.linspace(0, data.n - 1, 16).astype(int))
        for a in [a for part in (data.X, data.T, data.w, data.mask) for a in each(part)]:
            if a is not None:
                found += [a.shape, str(a.dtype), _digest(np.ascontiguousarray(a[rows]).tobytes())]
    return found


def _text(value: Any) -> str:
    """Return a text that is the same in every process: without the addresses of objects."""
    return " ".join(word for word in repr(value).split() if "0x" not in word)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()


@functools.cache
def _code_of_phitodeep() -> str:
    folder = Path(__file__).parents[1]
    files = sorted(folder.rglob("*.py"))
    return _digest(b"".join(hashlib.blake2b(file.read_bytes()).digest() for file in files))


def _script() -> bytes:
    path = Path(getattr(sys.modules["__main__"], "__file__", ""))
    return path.read_bytes() if path.is_file() else b""
