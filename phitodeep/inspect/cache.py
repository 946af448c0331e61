"""All arrays of a prediction, by name, and a model with some of its arrays replaced."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from phitodeep.core.call import Call, watching, within
from phitodeep.core.table import Shown
from phitodeep.core.types import Array, each, on_each
from phitodeep.errors import ShapeError
from phitodeep.inspect import hooks
from phitodeep.inspect.entries import Entries
from phitodeep.inspect.hooks import At, Hook
from phitodeep.inspect.recording import Recorder
from phitodeep.training.objective import Trainable


class Cache(Shown, Entries[Array]):
    """The arrays of a prediction, by keys such as "1.Y", in the model's dtype.

    A key is a path and a symbol, as in a trace but without the direction. What happens inside a
    layer is computed by its steps when it is asked for.
    """

    def __getitem__(self, key: str) -> Array:
        path, direction, symbol = self.find(key)
        if re.fullmatch(r"[XY]\d*", symbol):
            return self._passes[path].array(symbol)
        return self._entry(path, direction, symbol).array

    def __iter__(self) -> Iterator[str]:
        return (key.replace("forward.", "") for key in super().__iter__())

    def __str__(self) -> str:
        by_path: dict[str, list[str]] = {}
        for key in self:
            path, _, symbol = key.rpartition(".")
            by_path.setdefault(path, []).append(symbol)
        width = max(map(len, by_path), default=0)
        lines = [f"{path or 'model':{width}}  {', '.join(n)}" for path, n in by_path.items()]
        wrapped = [textwrap.fill(x, 88, subsequent_indent=" " * (width + 2)) for x in lines]
        return "\n".join([f"{len(self)} arrays, by path and symbol", *wrapped])


def run_with_cache(model: Trainable, X: Any, *, lengths: Any = None) -> tuple[Array, Cache]:
    """Return the output for X and all arrays on the way: see `Sequential.run_with_cache`."""
    X, mask = model._inputs(X, lengths)
    X = on_each(np.copy, X)  # the caller may change it later
    twin, outer = model.copy(), hooks.active(model)
    recorder = Recorder(outer)
    call = Call(training=False, caching=False, mask=mask, draw=1)
    with within(call), watching(recorder, root=twin, recomputed=True):
        Y = twin.forward(*each(X))
    edit = hooks.replaced_by(outer)
    return model._named(Y), Cache(recorder.passes, dtype=twin.dtype, edit=edit)


def _patched(name: str) -> Callable[..., Any]:
    """A method that calls the model's own inside the hooks that replace the arrays."""

    def method(self: Patched, *args: Any, **options: Any) -> Any:
        with self.hooks:
            return getattr(self.model, name)(*args, **options)

    method.__name__, method.__doc__ = name, f"`Sequential.{name}`, with these arrays replaced."
    return method


class Patched:
    """A model that runs with some of its arrays replaced: see `Sequential.patch`.

    `trace`, `debug`, `predict` and `run_with_cache` call the model's methods, with these arrays.
    """

    def __init__(self, model: Any, values: Mapping[str, Array]) -> None:
        self.model, self.values = model, dict(values)
        self.hooks = hooks.Hooks(model)  # a context manager
        for key, value in self.values.items():
            self.hooks.functions[hooks.place(model, key)] = _constant(value)

    trace, debug, predict, run_with_cache = map(
        _patched, ("trace", "debug", "predict", "run_with_cache")
    )

    def __repr__(self) -> str:
        return f"{self.model!r} with {', '.join(self.values)} replaced"


def _constant(value: Any) -> Hook:
    whole = np.array(value)  # a copy

    def replace(array: Any, at: At) -> Any:
        found = whole if at.t is None or whole.ndim < 2 else whole[:, at.t]
        if found.shape != np.shape(array):
            place = "" if at.t is None else f" for each of the steps in axis 1, at t = {at.t}"
            raise ShapeError(
                f"patch: {at.key!r} has shape {np.shape(array)}{place}, got {whole.shape}."
            )
        return found

    return replace
