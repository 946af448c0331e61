"""A model next to its PyTorch counterpart, layer by layer: `phitodeep.io.compare_with_torch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep import loss as losses
from phitodeep.core.call import Event, calling, watching
from phitodeep.core.table import Table, Tabled
from phitodeep.core.types import Array, each, one
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.exchange.torch.layouts import LAST, outer, to_ours, to_theirs
from phitodeep.exchange.torch.library import load
from phitodeep.exchange.torch.pairs import moves_of
from phitodeep.exchange.torch.write.writing import Place, Written, tensor_of, write
from phitodeep.layers.attention import Attention
from phitodeep.layers.base import Layer
from phitodeep.loss import Loss
from phitodeep.loss.heads import Heads
from phitodeep.training.inputs import validate

Arrays = Sequence[Array | None]
QUIET = {L.Dropout: "rate", L.GaussianNoise: "std", Attention: "dropout"}
DRAWS = (L.Reparameterize, L.RandomFlip, L.RandomCrop)  # in training, always


class Row(NamedTuple):
    """How far one array of a layer is from PyTorch's.

    path, layer    the layer, or "loss" and the loss
    array          "Y", "dX", the gradient of a parameter such as "dW", or "L"
    absolute       the largest difference of two elements
    relative       the same, divided by the largest magnitude in PyTorch's array; for the gradient
                   of a parameter, in its gradients of all parameters of the layer
    """

    path: str
    layer: str
    array: str
    absolute: float
    relative: float


@dataclass(frozen=True, repr=False)
class Comparison(Tabled):
    """What `compare_with_torch` found: a table with a row for each array.

    rows        from the first layer to the loss
    training    whether both ran as in training, apart from dropout, or as in prediction
    """

    rows: tuple[Row, ...]
    training: bool

    @property
    def worst(self) -> Row:
        """The row with the largest relative difference."""
        return max(self.rows, key=lambda row: row.relative)

    def table(self) -> Table:
        mode = "in training mode, without dropout" if self.training else "in prediction mode"
        head = ("path", "layer", "array", "difference", "relative")
        rows = [(*row[:3], f"{row.absolute:.1e}", f"{row.relative:.1e}") for row in self.rows]
        worst = self.worst
        below = f"largest relative difference: {worst.relative:.1e} ({worst.array} of {worst.path})"
        return Table(f"phitodeep and PyTorch, {mode}", head, rows, below, left=3)


def compare_with_torch(model: Any, X: Any, y: Any) -> Comparison:
    """Return how far each layer's Y, dX and parameter gradients are from PyTorch's.

        phitodeep.io.compare_with_torch(model, X, y).show()

    `to_torch` makes the counterpart, PyTorch's autograd computes its gradients, and the model's
    loss has its own counterpart there; where it has none, both backward passes begin with the
    gradient that phitodeep's loss returns. X (N, ...) and y are as for `train`. The model itself
    is left unchanged.

    Each layer is given PyTorch's X and dY, so a row shows the fault of its own layer, and not what
    a layer before it passed on. Both run as in training, but without dropout and noise: BatchNorm
    normalises with the statistics of the batch, which needs at least two rows. If a layer always
    draws in training (an augmentation, or Reparameterize), both run as in prediction.

    The result prints as a table. `rows` holds its data, and `worst` is the row with the largest
    relative difference: about 1e-6 in float32 and 1e-15 in float64 if all is well.
    """
    torch, *_ = load("compare_with_torch")
    if not isinstance(model, L.Chain | L.Wired) or not hasattr(model, "loss"):
        raise ArgumentTypeError(f"compare_with_torch takes a model with a loss, got {model!r}.")
    model = model.copy()
    for _, layer in model.walk():
        for kind, setting in QUIET.items():
            if isinstance(layer, kind):
                setattr(layer, setting, 0.0)
    training = not any(isinstance(layer, DRAWS) for _, layer in model.walk())
    written = write(model)
    data = validate(model, model.loss, X, y)

    def result(P: Any) -> Any:
        return model.loss.value_and_gradient(P, data.T, data.w)

    theirs = _Theirs(torch, written, model, training)
    loss = theirs.run(each(data.X), data.T, lambda P: result(P)[1])
    ours = _Ours(model, theirs)
    with calling(training=training, step=0), watching(ours.watch, root=model, recomputed=True):
        P = model.forward(*each(data.X))
        model.backward(*each(ours.given("dY", "", result(P)[1])))
    name = type(model.loss).__name__
    rows = list(ours.rows())
    value, dP = result(one(theirs.arrays["Y"][""], model.outputs == 1))
    if loss is not None:
        rows.append(_row("loss", name, "L", np.asarray(value), np.asarray(loss)))
        rows += _rows("loss", name, "dP", dP, theirs.arrays["dY"][""])
    return Comparison(tuple(rows), training)


def _row(
    path: str, layer: str, array: str, ours: Array, theirs: Array, size: float | None = None
) -> Row:
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.subtract(ours, theirs, dtype=np.float64))
    apart = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0, apart)
    absolute = float(np.nan_to_num(apart, nan=np.inf).max(initial=0))
    size = _size(theirs) if size is None else size
    relative = absolute / size if 0 < size < np.inf else absolute
    return Row(path, layer, array, absolute, relative)


def _rows(path: str, layer: str, kind: str, ours: Any, theirs: Arrays) -> list[Row]:
    """Return the row of an array, or those of several, which are numbered."""
    names = [kind] if len(theirs) == 1 else [f"{kind}{i}" for i in range(1, len(theirs) + 1)]
    return [
        _row(path, layer, name, a, b)
        for name, a, b in zip(names, each(ours), theirs, strict=True)
        if a is not None and b is not None
    ]


def _size(array: Array) -> float:
    return float(np.abs(array).max(initial=0))


class _Theirs:
    """The pass of the module, with the X, Y, dX and dY of each layer, as ours.

    arrays    by kind and path, one for each input or output; the path "" is the whole module
    """

    def __init__(self, torch: Any, written: Written, model: Any, training: bool) -> None:
        self.torch, self.written, self.model = torch, written, model
        self.module = written.module.train(training).requires_grad_(True)
        self.tensors: dict[str, dict[str, Any]] = {"X": {}, "Y": {}}
        self.arrays: dict[str, dict[str, Arrays]] = {n: {} for n in ("X", "Y", "dX", "dY")}
        for path, place in written.places.items():
            if path:
                given, made = partial(self._kept, "X", path), partial(self._kept, "Y", path)
                place.module.register_forward_pre_hook(lambda _, args, keep=given: keep(args))
                place.module.register_forward_hook(lambda _, args, Y, keep=made: keep(Y))

    def _kept(self, kind: str, path: str, given: Any) -> Any:
        """Return an alias of each tensor, which receives the gradient of this use alone.

        Of a module at two places, the first use is that of its layer.
        """
        if path in self.tensors[kind]:
            return given
        aliases = tuple([tensor.view_as(tensor) for tensor in each(given)])
        for alias in aliases:
            if alias.requires_grad:
                alias.retain_grad()
        self.tensors[kind][path] = aliases
        return one(aliases, not isinstance(given, tuple))

    def run(self, Xs: Sequence[Array], T: Any, gradient: Callable[[Any], Any]) -> float | None:
        """Run both passes; return the loss, or None if PyTorch does not have it.

        `gradient` computes ours from the predictions.
        """
        torch, model = self.torch, self.model
        takes, returns = [outer(s) for s in model._ins()], [outer(s) for s in model._outs()]
        starts = [
            torch.from_numpy(np.array(to_theirs(X, layout)))
            for X, layout in zip(Xs, takes, strict=True)
        ]
        for start in starts:
            start.requires_grad_(start.is_floating_point())
        try:
            found = self.module(*starts)
        except ValueError as error:  # of a BatchNorm that is given a single row
            raise ArgumentError(f"compare_with_torch: PyTorch refuses this X: {error}") from None
        Ys = self._kept("Y", "", tuple(found.values()) if isinstance(found, dict) else (found,))
        pairs = zip(Ys, returns, strict=True)
        Ps = [Y.movedim(1, -1) if layout != LAST else Y for Y, layout in pairs]
        loss = torch_loss(torch, model.loss, one(Ps, len(Ps) == 1), T)
        if loss is None:
            dPs = each(gradient(one([P.detach().numpy() for P in Ps], len(Ps) == 1)))
            torch.autograd.backward(Ps, [torch.from_numpy(np.array(dP)) for dP in dPs])
        else:
            loss.backward()
        places = {**self.written.places, "": Place(None, tuple(takes), tuple(returns))}
        for kind, slope in (("X", "dX"), ("Y", "dY")):
            for path, tensors in self.tensors[kind].items():
                layouts = each(places[path].takes if kind == "X" else places[path].returns)
                both = [*zip(tensors, layouts, strict=True)]
                self.arrays[kind][path] = [to_ours(t.detach().numpy(), order) for t, order in both]
                self.arrays[slope][path] = [
                    None if t.grad is None else to_ours(t.grad.numpy(), order) for t, order in both
                ]
        return None if loss is None else float(loss.detach())

    def of_parameter(self, path: str, layer: Layer, name: str) -> Array:
        """Return the gradient of a parameter, as ours."""
        place = self.written.places[path]
        there, move = moves_of(layer)[name]
        tensor = tensor_of(place.module, there)
        found = self.torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        array = move.back(found.numpy())
        flattened = name == "W" and isinstance(place.takes, np.ndarray)
        return array[np.argsort(place.takes)] if flattened else array


class _Ours:
    """The model's passes, in which each layer is given PyTorch's X and dY."""

    def __init__(self, model: Any, theirs: _Theirs) -> None:
        self.model, self.theirs = model, theirs
        self.found: dict[tuple[str, str], Any] = {}  # by path, and "Y" or "dX"

    def given(self, kind: str, path: str, array: Any) -> Any:
        """Return PyTorch's array, or several, in place of ours, if it has one."""
        known = self.theirs.arrays[kind].get(path, each(array))
        found = [_in_place_of(a, b) for a, b in zip(each(array), known, strict=True)]
        return one(found, not isinstance(array, tuple))

    def watch(self, event: Event) -> Any:
        if event.what not in ("forward", "backward") or event.path == "":
            return None
        forward = event.what == "forward"
        if event.when == "before":
            return self.given("X" if forward else "dY", event.path, event.array)
        kind = "Y" if forward else "dX"
        if event.array is not None:
            copies = [None if a is None else a.copy() for a in each(event.array)]
            self.found[event.path, kind] = tuple(copies)
        return self.given(kind, event.path, event.array)

    def rows(self) -> Any:
        gradients = self.model.gradients()
        for path, layer in self.model.walk():
            if path not in self.theirs.written.places:
                continue
            name = type(layer).__name__
            for kind in ("Y", "dX"):
                ours, theirs = self.found.get((path, kind)), self.theirs.arrays[kind].get(path)
                if ours is not None and theirs is not None:
                    yield from _rows(path, name, kind, ours, theirs)
            known = {n: self.theirs.of_parameter(path, layer, n) for n in layer.params}
            size = max((_size(a) for a in known.values()), default=0.0)
            for parameter, gradient in known.items():
                found = gradients.get(f"{path}.{parameter}", np.zeros_like(gradient))
                yield _row(path, name, f"d{parameter}", found, gradient, size)


def _in_place_of(ours: Array | None, theirs: Array | None) -> Array | None:
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return ours
    return np.ascontiguousarray(theirs).astype(ours.dtype, copy=False)


# --- losses as PyTorch computes them -------------------------------------------------------------


def torch_loss(torch: Any, loss: Loss, P: Any, T: Any) -> Any:
    """Return the loss of predictions P (a tensor in our layout) by PyTorch's own function, or None.

    T holds the targets, in the form that the loss uses. None means that PyTorch has no such loss.
    """
    if isinstance(loss, Heads):
        own = [
            (loss.factor(name), torch_loss(torch, part, P[k], T[k]))
            for k, name, part in loss.trained(T)
        ]
        return None if any(L is None for _, L in own) else sum(factor * L for factor, L in own)
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
