"""Three tables of shortcuts, which compute the same function with less work.

Training and evaluation use all three, predictions SWAPPED and JOINED.

FUSED: a last layer and a loss that together have one simple gradient. Softmax's Jacobian times the
gradient of its cross-entropy is p - onehot; for sigmoid with binary cross-entropy, it is p - t.
Training then leaves out the last layer and passes its input, the logits, to the loss in the table,
which is finite where the long way would divide 0 by 0.

SWAPPED: two neighbouring layers that may run in the other order. max(relu(x)) = relu(max(x)),
because ReLU never decreases; the gradient reaches the same element either way, or is 0. After a
2 x 2 pool, ReLU has a quarter of the work.

JOINED: two neighbouring layers that one layer runs, in fewer passes over their arrays. Watchers see
the two layers, because a watched training does not join them.

`plan` applies all of them. `model.summary()` prints the plan, and `train(..., shortcuts=False)`
runs the layers as written. Tests check that both ways agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from phitodeep.errors import ArgumentError, warn
from phitodeep.layers.activation import LogSoftmax, ReLU, Sigmoid, Softmax
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain, Container
from phitodeep.layers.dense import Dense, DenseReLU
from phitodeep.layers.pooling import MaxPool1D, MaxPool2D
from phitodeep.layers.wiring import Wired
from phitodeep.loss import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    CategoricalCrossEntropy,
    Loss,
    NegativeLogLikelihood,
    SoftmaxCrossEntropy,
)
from phitodeep.loss.heads import Heads

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

JOINED: dict[tuple[type[Layer], type[Layer]], type[Chain]] = {(Dense, ReLU): DenseReLU}


class Plan(NamedTuple):
    """What training runs for a model and its loss."""

    body: Container  # the layers that run
    loss: Loss  # of the body's output
    lasts: tuple[Layer | None, ...]  # for each output, the layer that the loss replaces, if any
    notes: tuple[str, ...]  # how this differs from the layers as written, for `summary()`


def plan(model: Container, loss: Loss, *, shortcuts: bool = True, watched: bool = False) -> Plan:
    """Return what training runs: the layers as written, or with the shortcuts that apply."""
    returns = model.returns if isinstance(model, Wired) else ("",)
    losses = dict(loss.losses) if isinstance(loss, Heads) else {returns[0]: loss}
    lasts: dict[str, Layer | None] = dict.fromkeys(returns)
    notes: list[str] = []

    def change(stretch: Chain, gives: str) -> Chain:
        last, own = stretch._last, losses.get(gives)
        read = isinstance(model, Wired) and model.readers(gives)
        short = None if own is None or read else fused(last, own)
        stretch = stretch if short is None else stretch._without_last()
        stretch, changes = _rearranged(stretch, joins=not watched)
        notes.extend(changes)
        if short is not None:
            losses[gives], lasts[gives] = short, last
            notes.append(f"{last!r} and {own!r} run as one, {short!r}")
        return stretch

    body = _changed(model, change) if shortcuts else model
    whole = losses.get(returns[0], loss)
    if isinstance(loss, Heads):
        whole = Heads(losses, loss.factors, loss.outputs)
    return Plan(body, whole, tuple(lasts.values()), tuple(notes))


def _changed(model: Container, change: Callable[[Chain, str], Chain]) -> Container:
    """Change each stretch of layers, with the value that it gives; a chain is one of them."""
    if not _is_ours(model):
        return model
    if isinstance(model, Wired):
        return model._with_stretches(change)
    return change(model, "") if isinstance(model, Chain) else model


def _is_ours(layer: Layer) -> bool:
    """Whether this package defines both passes, so that a chain runs its layers in order."""
    passes = ("forward", "backward")
    replaced = any(name in vars(layer) for name in passes)
    kinds = (getattr(type(layer), name).__module__ for name in passes)
    return not replaced and all(module.startswith("phitodeep.") for module in kinds)


def fused(last: Layer | None, loss: Loss) -> Loss | None:
    """Return the loss to apply to the input of `last`, or None if there is no shortcut."""
    make = FUSED.get((type(last), type(loss)))  # type: ignore[arg-type]  # None is not in the table
    if make is None or getattr(last, "axis", -1) != -1:
        return None
    return make(loss)


def logits(model: Container, rank: int, output: int = 0) -> Container:
    """Return the model without a last layer that turns logits into probabilities, or itself.

    `rank` is the rank of the output (N, ..., K), which has this number among several.
    """

    if not _is_ours(model):
        return model
    name = model.returns[output] if isinstance(model, Wired) else ""

    def shorter(chain: Chain, gives: str) -> Chain:
        last = chain._last
        known = any(type(last) is kind for kind, _ in FUSED)
        along_last = getattr(last, "axis", -1) in (-1, rank - 1)
        return chain._without_last() if gives == name and known and along_last else chain

    if isinstance(model, Wired):
        return model if model.readers(name) else model._with_stretches(shorter)
    return shorter(model, "") if isinstance(model, Chain) else model


def rearranged(chain: Container) -> Container:
    """Return the chain with its layers swapped and joined, or the container itself."""
    return _changed(chain, lambda stretch, _: _rearranged(stretch)[0])


def _rearranged(chain: Chain, *, joins: bool = True) -> tuple[Chain, tuple[str, ...]]:
    """Return the chain with its layers swapped and, perhaps, joined, and a note on each pair."""
    order, notes = [(chain._number(i), layer) for i, layer in enumerate(chain.layers)], []
    for k in range(1, len(order)):
        (i, first), (j, second) = order[k - 1 : k + 1]
        if (type(first), type(second)) in SWAPPED:
            order[k - 1 : k + 1] = (j, second), (i, first)
            notes.append(f"{type(second).__name__} ({j}) runs before {type(first).__name__} ({i})")
    found: list[tuple[int, Layer]] = []
    for j, layer in order:
        i, before = found[-1] if found else (-1, layer)
        join = JOINED.get((type(before), type(layer))) if joins else None
        if join and getattr(before, "bias", False) and _is_ours(before) and _is_ours(layer):
            found[-1] = i, join(before, layer)
            one, two = f"{type(before).__name__} ({i})", f"{type(layer).__name__} ({j})"
            notes.append(f"{one} and {two} run as one, {join.__name__}")
        else:
            found.append((j, layer))
    if not notes:
        return chain, ()
    layers = [layer for _, layer in found]
    return chain._with_layers(layers, [number for number, _ in found]), tuple(notes)


_REMEDY = {
    "probabilities": "end the model with .softmax() or .sigmoid(), or use the loss for logits "
    "(SoftmaxCrossEntropy, BinaryCrossEntropyWithLogits)",
    "log-probabilities": "end the model with .log_softmax()",
}


def check_pair(last: Layer | None, loss: Loss) -> None:
    """Refuse a loss that cannot match the last layer; warn if softmax would be applied twice."""
    gives = "" if last is None else last.gives
    if not gives or loss.wants in ("numbers", gives):
        return
    if loss.wants != "logits":
        raise ArgumentError(
            f"{loss!r} expects {loss.wants}, but {last!r} returns {gives}: {_REMEDY[loss.wants]}."
        )
    if gives != "numbers":
        warn(
            f"{loss!r} expects logits and applies its own softmax or sigmoid, but {last!r} has "
            f"already applied one: leave out {type(last).__name__}."
        )
