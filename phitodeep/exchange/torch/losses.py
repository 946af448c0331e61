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
    targets = torch.from_numpy(T)
    if compute is _cross_entropy:
        return _cross_entropy(torch.nn.functional, loss, P, targets)
    return compute and compute(torch.nn.functional, loss, P, targets.to(P.dtype))


def _same_shape(name: str, *settings: str) -> Any:
    """Return a function for a loss that compares element by element."""
    return lambda F, loss, P, T: getattr(F, name)(P, T, **{n: getattr(loss, n) for n in settings})


def _hinge(F: Any, loss: Any, P: Any, T: Any) -> Any:
    margin = (1 - T * P).clamp(min=0)
    return (margin**2 if type(loss) is losses.SquaredHinge else margin).mean()


def _cross_entropy(F: Any, loss: Any, P: Any, T: Any) -> Any:
    """From logits, probabilities or log-probabilities; PyTorch has the classes on axis 1."""
    labels = T.ndim < P.ndim
    weighted = loss.class_weight is not None
    if weighted and not labels:  # PyTorch then divides by another number
        return None
    given: dict[str, Any] = {}
    if weighted:
        given["weight"] = P.new_tensor(loss._class_weights(P.shape[-1], np.dtype(np.float64)))
    if labels and loss.ignore_index is not None:
        given["ignore_index"] = loss.ignore_index
    T = T.long() if labels else T.to(P.dtype).movedim(-1, 1)
    scores = (P.log() if loss.wants == "probabilities" else P).movedim(-1, 1)
    if loss.wants == "logits":
        return F.cross_entropy(scores, T, label_smoothing=loss.label_smoothing, **given)
    if labels and not loss.label_smoothing:
        return F.nll_loss(scores, T, **given)
    return None  # log-probabilities do not sum to 1 if a Softmax does not precede


LOSSES: dict[type[Loss], Any] = {
    losses.MeanSquaredError: _same_shape("mse_loss"),
    losses.MeanAbsoluteError: _same_shape("l1_loss"),
    losses.Huber: _same_shape("huber_loss", "delta"),
    losses.BinaryCrossEntropy: _same_shape("binary_cross_entropy"),
    losses.BinaryCrossEntropyWithLogits: _same_shape("binary_cross_entropy_with_logits"),
    losses.Hinge: _hinge,
    losses.SquaredHinge: _hinge,
    losses.KLDivergence: lambda F, loss, P, T: F.kl_div(P, T, reduction="batchmean"),
    losses.PoissonNLL: lambda F, loss, P, T: F.poisson_nll_loss(P, T, loss.log_input, eps=0.0),
    losses.CosineSimilarityLoss: lambda F, loss, P, T: (1 - F.cosine_similarity(P, T, -1)).mean(),
    losses.CategoricalCrossEntropy: _cross_entropy,
    losses.SoftmaxCrossEntropy: _cross_entropy,
    losses.NegativeLogLikelihood: _cross_entropy,
}
