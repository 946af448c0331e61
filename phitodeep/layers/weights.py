"""Reading and writing all parameters and gradients of a tree of layers, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phitodeep.core.checks import as_real
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers.random import Seeded


class Weights(Seeded):
    """A tree of layers, whose parameters and state have paths such as `3.layers.0.W`."""

    def walk(self, path: str = "") -> Iterator[tuple[str, Any]]:
        """Yield (path, layer) for this layer and all layers below it."""
        raise NotImplementedError

    def _measured(self) -> Weights:
        """Return a copy that was built without allocating any array."""
        raise NotImplementedError

    def count_params(self) -> int:
        """Return the number of elements in all parameters; counting allocates none of them."""
        unbuilt = any(part._declared and part.output_shape is None for _, part in self.walk())
        built = self._measured() if unbuilt else self
        arrays = {id(a): a.size for _, layer in built.walk() for a in layer.params.values()}
        return sum(arrays.values())

    def gradients(self) -> dict[str, Array]:
        """Return copies of the last gradients of all parameters, by path.

        The gradient of a parameter with several uses, such as a tied weight, is their sum.
        """
        layers = list(self.walk())
        path_of = {id(layer): path for path, layer in layers}
        found: dict[str, Array] = {}
        for _, layer in layers:
            for name, gradient in layer.grads.items():
                owner, own_name = layer.tied.get(name, (layer, name))
                if id(owner) in path_of:
                    full = f"{path_of[id(owner)]}.{own_name}".removeprefix(".")
                    found[full] = found.get(full, 0) + gradient
        return found

    def get_weights(self) -> dict[str, Array]:
        """Return copies of all parameters and state, by path."""
        return {path: store[name].copy() for path, store, name in self._stored()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Write all parameters and state, by path; if anything does not fit, nothing changes."""
        slots = {path: (store, name) for path, store, name in self._stored()}
        if not isinstance(weights, Mapping):
            raise ArgumentTypeError(
                f"{self!r} expects weights by path, as get_weights() returns them, such as "
                f"{{{next(iter(slots), '0.W')!r}: array}}, got a {type(weights).__name__}."
            )
        if slots.keys() != weights.keys():
            missing, extra = sorted(slots.keys() - weights), sorted(weights.keys() - slots)
            wrong = [f"lack {missing}"] * bool(missing) + [f"have extra {extra}"] * bool(extra)
            raise ArgumentError(f"{self!r}: weights {' and '.join(wrong)}.")
        for path, (store, name) in slots.items():
            new = as_real(weights[path], f"{self!r}: {path}")
            if store[name].shape != new.shape:
                raise ShapeError(
                    f"{self!r}: {path} has shape {store[name].shape}, got {new.shape}."
                )
        for path, (store, name) in slots.items():
            store[name][...] = weights[path]

    def _stored(self) -> Iterator[tuple[str, dict[str, Array], str]]:
        """Yield (path, dict that holds the array, name) for every parameter and state."""
        for path, layer in self.walk():
            layer._make_parameters()
            for store in (layer.params, layer.state):
                for name in store:
                    yield f"{path}.{name}" if path else name, store, name
