"""Whose gradient is it: the share of each sample, without a loop over samples.

The gradient of a parameter is a sum over the samples, among others, and its derivation names the
indices of that sum. Leaving out the index of the samples leaves their shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from phitodeep.core.call import within
from phitodeep.core.table import Shown
from phitodeep.core.types import Array
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Arrange, Sum
from phitodeep.derivations.language.terms import Replaced, Why
from phitodeep.errors import ArgumentError, ShapeError, UnknownNameError
from phitodeep.inspect.entries import Entries
from phitodeep.inspect.hooks import replaced_by
from phitodeep.inspect.recording import Recording, record
from phitodeep.layers.base import Layer
from phitodeep.training.objective import Trainable


class SampleGradients(Shown, Mapping[str, Array]):
    """Each sample's share of the gradients, by parameter path: arrays (N, *shape).

    The shares of all samples add up to the gradient of the batch. They are computed when they are
    asked for.
    """

    def __init__(self, recording: Recording, entries: Entries[Any]) -> None:
        self._entries, self.n = entries, recording.data.n
        layers = list(recording.model.walk())
        path_of = {id(layer): path for path, layer in layers}
        self._uses: dict[str, list[tuple[str, str]]] = {}  # (layer path, name) by parameter
        for path, layer in layers:
            for name in recording.passes[path].grads if path in recording.passes else ():
                owner, own = layer.tied.get(name, (layer, name))
                full = f"{path_of[id(owner)]}.{own}".removeprefix(".")
                self._uses.setdefault(full, []).append((path, name))

    def __getitem__(self, path: str) -> Array:
        if path not in self._uses:
            raise UnknownNameError.of(path, self._uses, "one of the parameters with gradients")
        shares = [self._share(*use) for use in self._uses[path]]
        return sum(shares[1:], shares[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._uses)

    def __len__(self) -> int:
        return len(self._uses)

    def __str__(self) -> str:
        return f"gradients of {self.n} samples for {', '.join(self)}"

    def _share(self, path: str, name: str) -> Array:
        """The shares in the gradient of one use of a parameter."""
        scope = self._entries.scope(path)
        shares = _shares(f"d{name}", scope)
        if shares is None:
            raise ArgumentError(
                f"layer {path}, {scope.layer!r}: its steps compute d{name} without a Sum, so it "
                "has no shares of samples."
            )
        if len(shares) != self.n:  # such as the steps of a TimeDistributed layer
            shares = shares.reshape(self.n, -1, *shares.shape[1:]).sum(axis=1)
        return shares

    @cached_property
    def norms(self) -> Array:
        """The length of each sample's gradient, over all parameters: (N,)."""
        squares = np.zeros(self.n)
        for path in self:
            g = self[path].reshape(self.n, -1)
            squares += np.einsum("np,np->n", g, g)
        return np.sqrt(squares)

    def which_samples(self, path: str, index: tuple[int, ...]) -> Why:
        """The samples that a cell of a parameter's gradient comes from, the largest share first."""
        shares = self[path]
        try:
            values = shares[(slice(None), *np.atleast_1d(index))]
        except IndexError:
            values = shares
        if values.ndim != 1:
            raise ShapeError(
                f"{path} has shape {shares.shape[1:]}, and {index!r} is no cell of it."
            )
        cell = ", ".join(map(str, np.atleast_1d(index)))
        return Why(f"d{path}[{cell}]", values, {"n": np.arange(self.n)}, {})


def _shares(symbol: str, scope: Scope) -> Array | None:
    """The shares of the samples in a sum, or in a sum whose numbers were moved to other places."""
    step = next((s for s in scope.derivation.backward if s.symbol == symbol), None)
    if isinstance(step, Sum):
        return _kept(step, scope)
    shares = _shares(step.of, scope) if isinstance(step, Arrange) else None
    if shares is None or not isinstance(step, Arrange):
        return None
    return np.stack([step.value(Replaced(scope, step.of, share)) for share in shares])


def _kept(step: Sum, scope: Scope) -> Array:
    """The sum with the index of the samples, the first axis of the operands, left out."""
    parts, out = step.letters(scope)
    arrays = [np.asarray(scope[name]) for name in step.operands]
    n = next(part[0] for part in parts if part[0] not in out)
    kept = out.replace("1", "")
    return np.einsum(f"{','.join(parts)}->{n}{kept}", *arrays, optimize=len(arrays) > 1)


def sample_gradients(model: Trainable, X: Any, y: Any, **options: Any) -> SampleGradients:
    """Return the shares of all samples: see `Sequential.sample_gradients`."""
    recording = record(model, X, y, **options)
    with within(recording.call):
        for path, layer in recording.model.walk():
            _check(path, layer)
    if not recording.loss.independent_samples:
        raise ArgumentError(
            f"{recording.loss!r} does not declare that it is a sum over samples: declare "
            "independent_samples = True in it."
        )
    edit, dtype = replaced_by(recording.watch), recording.model.dtype
    return SampleGradients(recording, Entries(recording.passes, dtype=dtype, edit=edit))


def _check(path: str, layer: Layer) -> None:
    """Refuse a layer that mixes samples, or whose derivation is not known."""
    if layer.children():
        return
    if not layer.independent_samples and layer.state:
        raise ArgumentError(
            f"layer {path}, {layer!r}, mixes the samples of a batch, so none of them has a "
            "gradient of its own: freeze it (trainable = False), or use LayerNorm, which does not."
        )
    if not layer.independent_samples:
        raise ArgumentError(
            f"layer {path}, {layer!r}, does not declare that its samples are independent: if they "
            "are, set independent_samples = True in its class, or in the call of Lambda."
        )
    if layer.params and layer.steps() is None:
        raise ArgumentError(
            f"layer {path}, {layer!r}, has no steps(), which would say how its gradients are sums "
            "over samples."
        )
