"""The facts about each loss in `facts/losses.toml`.

A check is a sentence and an expression in P, T, L and dP (an example's batch and its loss), which
the build evaluates: a page can only say what is true.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phitodeep import functional as F
from phitodeep import loss as losses
from phitodeep.loss import Loss
from website.facts import read


class Facts(NamedTuple):
    """The keys of `losses.toml`, with the loss itself and the functions of `also`."""

    loss: Loss
    question: str
    answer: str
    use: str
    axis: str
    span: tuple[float, float]
    targets: dict[str, Any]
    P: Any
    T: Any
    checks: tuple[tuple[str, str], ...]
    siblings: tuple[str, ...]
    row: str = "x[:, None]"
    also: tuple[Any, ...] = ()

    def rows(self, x: Any) -> Any:
        """The predictions for the values of the picture's axis, one row each."""
        return eval(self.row, {"np": np, "x": x, "shared": _shared})


def _shared(p: Any) -> Any:
    """Probabilities of three classes: the first moves, the others share the rest."""
    return np.stack([p, (1 - p) / 2, (1 - p) / 2], axis=1)


def _facts(name: str, row: dict[str, Any]) -> Facts:
    loss = eval(row.pop("loss", f"{name}()"), vars(losses))
    return Facts(loss, also=tuple(getattr(F, name) for name in row.pop("also", ())), **row)


FACTS = tuple(_facts(name, row) for name, row in read("losses").items())
