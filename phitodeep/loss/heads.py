"""The loss of a network with several outputs: a weighted sum of a loss for each."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from phitodeep.core.checks import check_number
from phitodeep.core.frame import Frame
from phitodeep.core.types import Array
from phitodeep.derivations import losses as derived
from phitodeep.errors import ArgumentTypeError, UnknownNameError
from phitodeep.loss.base import Loss


class Together(float):
    """The sum of several losses, which remembers each of them, (heads,)."""

    each: Array

    @classmethod
    def of(cls, each: Array, weights: Array) -> Together:
        made = cls(each @ weights)
        made.each = each
        return made


def by_name(given: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return settings of a network's inputs or outputs as a dict; refuse names that it lacks."""
    if not isinstance(given, Mapping):
        if given is None or (hasattr(given, "__len__") and len(given) == 0):
            return {}
        raise ArgumentTypeError(
            f"{what} of a network must be a dict by name ({', '.join(names)}), such as "
            f"{{{names[0]!r}: ...}}, got {reprlib.repr(given)}."
        )
    if unknown := [name for name in given if name not in names]:
        raise UnknownNameError.of(unknown[0], names, f"one of the names that take {what}")
    return dict(given)


class Heads(Loss, registered=False):
    """L = sum_k c_k L_k, over the outputs k that have a loss.

    Shapes: P, T, w and the gradient are tuples, with an array for each output; the T of an output
    without a loss, or without targets in a batch, is None. `total` is (outputs,).

    losses     by output; an output without one is predicted only
    factors    by output; 1 by default
    outputs    all names, in order

    Backward: dP_k = c_k dL_k / dP_k, and 0 for an output that is not trained.
    """

    steps = derived.heads

    def __init__(
        self, losses: Mapping[str, Loss], factors: Mapping[str, float], outputs: tuple[str, ...]
    ) -> None:
        self.outputs = outputs
        self.losses = {  # an object may be the loss of two outputs, but buffers belong to one
            name: loss._replica(Frame())
            for name, loss in by_name(losses, outputs, "losses").items()
        }
        self.factors = by_name(factors, outputs, "loss_weights")
        self.independent_samples = all(loss.independent_samples for loss in losses.values())
        self.scales = np.array(
            [
                check_number(factors.get(name, 1.0), f"factor of {name}", minimum=0)
                for name in outputs
            ]
        )

    def _replica(self, frame: Frame) -> Self:
        twin = type(self)(self.losses, self.factors, self.outputs)
        twin._frame = frame
        return twin

    def __repr__(self) -> str:
        terms = [f"{self.factor(name):g} {loss!r} of {name}" for name, loss in self.losses.items()]
        return " + ".join(term.removeprefix("1 ") for term in terms) or "no loss"

    @property
    def parts(self) -> list[Loss | None]:
        """The loss of each output, or None, in order."""
        return [self.losses.get(name) for name in self.outputs]

    def factor(self, name: str) -> float:
        """The factor of an output's loss."""
        return float(self.scales[self.outputs.index(name)])

    def children(self) -> dict[str, Loss]:
        """The losses by output."""
        return self.losses

    def present(self, T: Any) -> Heads:
        """Return the loss of those outputs that have targets."""
        own = {name: loss for _, name, loss in self.trained(T)}
        return Heads(own, self.factors, self.outputs)

    def divisor(self, T: Any, w: Any, shape: Any) -> Any:
        """Return the divisor of each output's loss, (outputs,)."""
        found = np.zeros(len(self.outputs))
        for k, _, loss in self.trained(T):
            found[k] = loss.divisor(T[k], w[k], shape[k])
        return found

    def value(self, P: Any, T: Any, w: Any, total: Any) -> Together:
        each = np.zeros(len(self.outputs))
        for k, _, loss in self.trained(T):
            each[k] = loss.value(P[k], T[k], w[k], None if total is None else float(total[k]))
        return Together.of(each, self.scales)

    def value_and_gradient(self, P: Any, T: Any, w: Any = None, total: Any = None) -> Any:
        each, dPs = np.zeros(len(self.outputs)), dict[int, Array]()
        for k, name, loss in self.trained(T):
            divisor = None if total is None else float(total[k])
            each[k], dP = loss.value_and_gradient(P[k], T[k], w[k], divisor)
            if self.scales[k] != 1:
                out = self.buffer(f"dP of {name}", dP.shape, dP.dtype)
                dP = np.multiply(dP, float(self.scales[k]), out=out)
            dPs[k] = dP
        whole = tuple([dPs[k] if k in dPs else np.zeros_like(A) for k, A in enumerate(P)])
        return Together.of(each, self.scales), whole

    def weights_of(self, n: int, P: Any, w: Any) -> Any:
        """Return the weights of each output with which only sample n counts."""
        every = zip(self.parts, P, w, strict=True)
        return tuple([None if part is None else part.weights_of(n, *own) for part, *own in every])

    def trained(self, T: Any) -> list[tuple[int, str, Loss]]:
        """Return the outputs that have a loss and, in this batch, targets: place, name and loss."""
        have = [t is not None for t in T]
        own = [(k, name) for k, name in enumerate(self.outputs) if name in self.losses and have[k]]
        return [(k, name, self.losses[name]) for k, name in own]
