"""Losses as PyTorch computes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep import loss as losses
from phitodeep.core.types import Array
from phitodeep.loss import Loss


def torch_loss(torch: Any, loss: Loss, P: Any, T: Array) -> Any:
    """Return the loss of predictions P (a tensor in our layout) by PyTorch's own function, or None.

    T holds the targets, in the form that the loss uses. None means that PyTorch has no such loss.
    """
    compute = LOSSES.get(type(loss))
    return None if compute is None else compute(torch, loss, P, T)


def _same_shape(name: str, **given: Any) -> Any:
    """Return a function for a loss that compares element by element."""

    def compute(torch: Any, loss: Any, P: Any, T: Array) -> Any:
        settings = {theirs: getattr(loss, ours) for theirs, ours in given.items()}
        compare = getattr(torch.nn.functional, name)
        return compare(P, torch.from_numpy(T).to(P.dtype), **settings)

    return compute


def _hinge(torch: Any, loss: Any, P: Any, T: Array) -> Any:
    margin = (1 - torch.from_numpy(T).to(P.dtype) * P).clamp(min=0)
    return (margin**2 if type(loss) is losses.SquaredHinge else margin).mean()


def _kl(torch: Any, loss: Any, P: Any, T: Array) -> Any:
    target = torch.from_numpy(T).to(P.dtype)
    return torch.nn.functional.kl_div(P, target, reduction="batchmean")


def _poisson(torch: Any, loss: Any, P: Any, T: Array) -> Any:
    target = torch.from_numpy(T).to(P.dtype)
    return torch.nn.functional.poisson_nll_loss(P, target, loss.log_input, eps=0.0)


def _cosine(torch: Any, loss: Any, P: Any, T: Array) -> Any:
    target = torch.from_numpy(T).to(P.dtype)
    return (1 - torch.nn.functional.cosine_similarity(P, target, dim=-1)).mean()


def _cross_entropy(torch: Any, loss: Any, P: Any, T: Array) -> Any:
    """From logits, probabilities or log-probabilities; PyTorch has the classes on axis 1."""
    functional = torch.nn.functional
    labels = T.ndim < P.ndim
    weighted = loss.class_weight is not None
    if weighted and not labels:  # PyTorch then divides by another number
        return None
    given: dict[str, Any] = {}
    if weighted:
        weights = loss._class_weights(P.shape[-1], np.dtype(np.float64))
        given["weight"] = torch.from_numpy(weights).to(P.dtype)
    if labels and loss.ignore_index is not None:
        given["ignore_index"] = loss.ignore_index
    scores = P if loss.wants == "logits" else P.log() if loss.wants == "probabilities" else P
    target = torch.from_numpy(T)
    if labels:
        target = target.long()
    else:
        target = target.to(P.dtype).movedim(-1, 1)
    scores = scores.movedim(-1, 1)
    if loss.wants != "logits" and labels and not loss.label_smoothing:
        return functional.nll_loss(scores, target, **given)
    if loss.wants != "logits":  # log-probabilities do not sum to 1 if a Softmax does not precede
        return None
    return functional.cross_entropy(scores, target, label_smoothing=loss.label_smoothing, **given)


LOSSES: dict[type[Loss], Any] = {
    losses.MeanSquaredError: _same_shape("mse_loss"),
    losses.MeanAbsoluteError: _same_shape("l1_loss"),
    losses.Huber: _same_shape("huber_loss", delta="delta"),
    losses.BinaryCrossEntropy: _same_shape("binary_cross_entropy"),
    losses.BinaryCrossEntropyWithLogits: _same_shape("binary_cross_entropy_with_logits"),
    losses.Hinge: _hinge,
    losses.SquaredHinge: _hinge,
    losses.KLDivergence: _kl,
    losses.PoissonNLL: _poisson,
    losses.CosineSimilarityLoss: _cosine,
    losses.CategoricalCrossEntropy: _cross_entropy,
    losses.SoftmaxCrossEntropy: _cross_entropy,
    losses.NegativeLogLikelihood: _cross_entropy,
}
