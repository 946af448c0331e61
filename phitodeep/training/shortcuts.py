"""The tables of shortcuts: the same function with less work, in training and evaluation.

FUSED: a last layer and a loss that have one simple gradient together. Softmax's Jacobian and the
gradient of its cross-entropy multiply to p - onehot; so do sigmoid's slope and the binary
cross-entropy's. Training then leaves the last layer out and gives its input, the logits, to the
loss of the second column, which is finite where the long way divides 0 by 0.

SWAPPED: two layers of which the second may go first. max(relu(x)) is relu(max(x)), as ReLU never
falls; the gradient goes to the same place, or is 0 on both roads. Behind a pool of 2 x 2 the ReLU
has a quarter of the numbers.

Tests prove that both ways agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phitodeep.errors import ArgumentError, warn
from phitodeep.layers.activation import LogSoftmax, ReLU, Sigmoid, Softmax
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain
from phitodeep.layers.pooling import MaxPool1D, MaxPool2D
from phitodeep.loss import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    CategoricalCrossEntropy,
    Loss,
    NegativeLogLikelihood,
    SoftmaxCrossEntropy,
)

FUSED: dict[tuple[type[Layer], type[Loss]], Callable[[Any], Loss]] = {
    (Softmax, CategoricalCrossEntropy): lambda loss: SoftmaxCrossEntropy(
        loss.label_smoothing, loss.ignore_index, loss.class_weight
    ),
    (LogSoftmax, NegativeLogLikelihood): lambda loss: SoftmaxCrossEntropy(
        0.0, loss.ignore_index, loss.class_weight
    ),
    (Sigmoid, BinaryCrossEntropy): lambda loss: BinaryCrossEntropyWithLogits(),
}


SWAPPED: set[tuple[type[Layer], type[Layer]]] = {(ReLU, MaxPool1D), (ReLU, MaxPool2D)}


def swapped(chain: Chain) -> Chain:
    """The chain, or one of the same layers in a cheaper order."""
    layers = list(chain.layers)
    for i in range(1, len(layers)):
        if (type(layers[i - 1]), type(layers[i])) in SWAPPED:
            layers[i - 1 : i + 1] = layers[i], layers[i - 1]
    return chain if layers == chain.layers else chain._with_layers(layers)


def fused(last: Layer | None, loss: Loss) -> Loss | None:
    """The loss to use on the input of `last`, or None where there is no shortcut."""
    make = FUSED.get((type(last), type(loss)))  # type: ignore[arg-type]
    if make is None or getattr(last, "axis", -1) != -1:
        return None
    return make(loss)


_REMEDY = {
    "probabilities": "end the model with .softmax() or .sigmoid(), or use the loss that takes "
    "logits (SoftmaxCrossEntropy, BinaryCrossEntropyWithLogits)",
    "log-probabilities": "end the model with .log_softmax()",
}


def check_pair(last: Layer | None, loss: Loss) -> None:
    """Refuse a loss that cannot match the last layer; warn of a softmax that is taken twice."""
    gives = "" if last is None else last.gives
    if not gives or loss.wants in ("numbers", gives):
        return
    if loss.wants != "logits":
        raise ArgumentError(
            f"{loss!r} takes {loss.wants}, but {last!r} gives {gives}: {_REMEDY[loss.wants]}."
        )
    if gives != "numbers":
        warn(
            f"{loss!r} takes logits and applies its own softmax or sigmoid, but {last!r} has "
            f"applied one already: leave out {type(last).__name__}."
        )
