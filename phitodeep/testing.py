"""Are the gradients true? Every number is moved a little, and the slope compared with `backward`.

    check_gradients(Dense(3, 4), X)                a layer or a model, against a random dY
    check_gradients(model, X, y)                   a model with its loss
    check_gradients(MeanSquaredError(), P, y)      a loss

A wrong gradient raises `GradientError`, which says where, by how much, and what it looks like:
the table DIAGNOSES holds what is recognised.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phitodeep.checks import as_float, check_count, check_finite, check_number
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError
from phitodeep.layers.base import Layer, calling
from phitodeep.loss import Loss
from phitodeep.types import Array, Shape

STEPS = (1e-3, 1e-4, 1e-5, 1e-6)  # a shorter one is tried where a longer one disagrees
ROUNDINGS = 32  # how many roundings of each output a difference is forgiven
EPS = float(np.finfo(np.float64).eps)


class GradientError(PhitodeepError, AssertionError):
    """A gradient is not the derivative of its function."""


class GradientEntry(NamedTuple):
    """How well one gradient fits: the worst of its probes."""

    name: str  # "dX", or the path of a parameter such as "3.layers.0.W"
    shape: Shape
    probed: int
    skipped: int  # probes at a kink, where only one-sided slopes exist
    relative: float  # to the larger of both values, or to what rounding can tell apart
    absolute: float


@dataclass(frozen=True)
class GradientReport:
    """All gradients of one object, which are right; `report["0.W"]` is the entry of one."""

    subject: str
    entries: tuple[GradientEntry, ...]

    @property
    def worst(self) -> float:
        """The worst relative error of all."""
        return max((entry.relative for entry in self.entries), default=0.0)

    def __getitem__(self, name: str) -> GradientEntry:
        return {entry.name: entry for entry in self.entries}[name]

    def __str__(self) -> str:
        width = max(len(e.name) for e in self.entries) if self.entries else 4
        deep = max((len(str(e.shape)) for e in self.entries), default=5)
        head = f"{'':{width}}  {'shape':{deep}}  probed  skipped  relative  absolute"
        rows = [
            f"{e.name:{width}}  {e.shape!s:{deep}}  {e.probed:6}  {e.skipped:7}"
            f"  {e.relative:8.1e}  {e.absolute:8.1e}"
            for e in self.entries
        ]
        return "\n".join([f"{self.subject}: worst errors of each gradient", head, *rows])


# --- slopes --------------------------------------------------------------------------------


def numeric_gradient(f: Callable[[Array], Any], X: Array, *, step: float = 1e-3) -> Array:
    """The gradient of the scalar function f at X by central differences, of the shape of X.

    For each number x, with h = step max(1, rms(X)) and D(h) = (f(x + h) - f(x - h)) / 2h,

        D(h) = f' + h^2 f''' / 6 + O(h^4)      so      (4 D(h) - D(2h)) / 3 = f' + O(h^4)

    X is float64, is written into while f is called, and is restored.
    Source: Richardson 1911, "The approximate arithmetical solution by finite differences".
    """
    if not isinstance(X, np.ndarray) or X.dtype != np.float64:
        raise ArgumentTypeError(
            f"numeric_gradient takes a float64 array, got {getattr(X, 'dtype', type(X).__name__)}: "
            "float32 has too few digits for differences (X.astype(np.float64)?)."
        )
    h = check_number(step, "step", above=0) * _size(X)
    G = np.empty_like(X)
    for at in np.ndindex(X.shape):
        G[at] = _derivative(_line(lambda: np.float64(f(X)), X, at), h)
    return G


def _size(A: Array) -> float:
    """The length that steps are relative to."""
    return max(1.0, math.sqrt(np.mean(A * A))) if A.size else 1.0


def _line(f: Callable[[], Any], A: Array, at: Any, v: Any = 1.0) -> Callable[[float], Any]:
    """t -> f() while A[at] is moved by t v."""
    kept = A[at].copy()

    def moved(t: float) -> Any:
        A[at] = kept + t * v
        try:
            return f()
        finally:
            A[at] = kept

    return moved


def _derivative(line: Callable[[float], Any], h: float) -> Any:
    """The derivative of line(t) at t = 0, elementwise if it gives an array."""
    return (8 * (line(h) - line(-h)) - (line(2 * h) - line(-2 * h))) / (12 * h)


# --- what is checked -----------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A function of some arrays, the gradients claimed for it, and what diagnoses look at."""

    who: str
    run: Callable[[], Any]  # Y, or the loss, at the present values of `arrays`
    dY: Any  # the upstream gradient of what `run` gives; 1 for a loss
    arrays: dict[str, Array]
    claims: dict[str, Array]
    sizes: dict[str, int]  # counts that a gradient may wrongly be divided by
    y: Any = None
    sample_weight: Any = None


def check_gradients(
    obj: Layer | Loss,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | None = None,
    sample_weight: Any = None,
    training: bool = True,
    perturb: bool = True,
    max_probes: int | None = 256,
    seed: int = 0,
    rtol: float = 1e-7,
    atol: float = 0.0,
) -> GradientReport:
    """Compare every gradient of a layer, a model or a loss with central differences.

    `obj` is a Layer (X its input), or a Loss (X the predictions, y the targets). With y, a layer
    is checked together with `loss`, or with its own attribute `loss` as models have one; without
    y, against a random upstream dY. All happens in float64 on a copy: `obj` stays as it is. An
    unbuilt layer is built for X, from `seed`, which also seeds everything else.

    `training=False` checks what `saliency()` gives. `perturb` moves parameters and states that
    still have trivial values (gamma = 1, b = 0), which would hide a lost factor. Arrays of more
    than `max_probes` numbers are probed at that many random places, and along one random
    direction that moves all of them (None: everywhere). So a 784-128-64-10 network takes seconds.

    A claim a is right where, for a numeric slope n,

        |a - n| <= rtol max(|a|, |n|, floor)

    with rtol floor the rounding error that n must have, plus `atol`. Where that fails down to the
    shortest step, a between the slopes of both sides means a kink (of ReLU, say): it is counted
    as skipped, and more than half of them is an error.

    Also checked: float64 stays float64; X, dY and the parameters are not written into; there is
    one gradient of the right shape for each parameter (a frozen layer may leave it out); and
    neither forward nor backward changes when done again.

    Raises GradientError, or returns a GradientReport.
    """
    if not isinstance(obj, Layer | Loss):
        raise ArgumentTypeError(f"check_gradients takes a layer or a loss, got {obj!r}.")
    rtol = check_number(rtol, "rtol", above=0)
    atol = check_number(atol, "atol", least=0)
    if max_probes is not None:
        check_count(max_probes, "max_probes")
    options: dict[str, Any] = {"max_probes": max_probes, "rtol": rtol, "atol": atol, "seed": seed}
    rng = np.random.default_rng(seed)
    with calling(training=training, caching=True, needs_dX=True, reuse=False, step=0, first=0):
        if isinstance(obj, Loss):
            trial = _loss_trial(copy.deepcopy(obj), X, y, sample_weight)
        else:
            twin = _twin(obj, np.shape(X)[1:], seed, rng if perturb else None)
            pair = _loss_of(twin, y, loss, sample_weight)
            X = np.array(twin.admit(X))
            trial = _layer_trial(twin, X, pair, y, sample_weight, rng)
        findings = [_find(trial, name, rng, max_probes, rtol, atol) for name in trial.claims]
        faults = [f"{f.name}{fault}" for f in findings if (fault := _fault(f, findings))]
        if faults and isinstance(obj, Layer) and twin.children():
            faults += _culprits(twin, X, pair, y, sample_weight, options | {"training": training})
        _raise(trial.who, faults)
    return GradientReport(trial.who, tuple(f.entry for f in findings))


def _twin(obj: Layer, shape: Shape, seed: int, rng: np.random.Generator | None) -> Layer:
    """A float64 copy with parameters of its own, none of them trivial if there is an rng."""
    twin = obj.copy()
    if twin.output_shape is None:
        twin.build(shape, seed=seed, dtype=np.float64)
    else:
        twin.cast(np.float64)
    for _, layer in twin.walk():
        for store in (layer.params, layer.state):
            for name, a in store.items():
                store[name] = a.copy()  # tied weights: each use answers for itself
                if rng is not None and np.unique(a).size < max(2, a.size):
                    store[name] += rng.uniform(0.1, 0.6, a.shape)  # a variance stays positive
    return twin


def _loss_of(layer: Layer, y: Any, loss: Loss | None, sample_weight: Any) -> Loss | None:
    """A copy of the loss to check with, or None for a random dY."""
    found = getattr(layer, "loss", None) if loss is None else loss
    if y is None and (loss is not None or sample_weight is not None):
        raise ArgumentError("check_gradients takes loss and sample_weight together with targets y.")
    if y is None:
        return None
    if not isinstance(found, Loss):
        raise ArgumentError(f"check_gradients needs a loss to compare with y: loss=..., {found!r}.")
    return copy.deepcopy(found)


def _loss_trial(loss: Loss, X: Any, y: Any, sample_weight: Any) -> Trial:
    who, P = _name(loss), np.array(as_float(X, np.float64, "X"))
    check_finite(P, "X")
    if y is None:
        raise ArgumentError(f"{who} compares X with targets: check_gradients(loss, X, y).")
    kept = P.copy()
    claims = {"dX": np.array(loss.loss_gradient(P, y, sample_weight))}
    again = {"dX": loss.loss_gradient(P, y, sample_weight)}
    faults = _changed("loss_gradient wrote into", {"X": kept}, {"X": P})
    faults += _changed("a second loss_gradient gives another", claims, again)
    _raise(who, faults + list(_malformed({"dX": P}, claims)))

    def run() -> Any:
        return np.float64(loss.loss_func(P, y, sample_weight))

    return Trial(who, run, 1.0, {"dX": P}, claims, _sizes(P), y, sample_weight)


def _layer_trial(
    twin: Layer, X: Array, loss: Loss | None, y: Any, sample_weight: Any, rng: np.random.Generator
) -> Trial:
    check_finite(X, "X")
    states = [(layer, dict(layer.state)) for _, layer in twin.walk() if layer.state]
    states = [(layer, {name: a.copy() for name, a in state.items()}) for layer, state in states]

    def forward() -> Array:
        for layer, state in states:
            layer.state.update({name: a.copy() for name, a in state.items()})
        return np.array(twin.forward(X))  # a copy: Y may be a view of X, which is about to move

    def run() -> Any:
        Y = forward()
        return Y if loss is None else np.float64(loss.loss_func(Y, y, sample_weight))

    arrays = {_join(path, n): a for path, layer in twin.walk() for n, a in layer.params.items()}
    inputs = {"X": X, **arrays}
    kept = {name: a.copy() for name, a in inputs.items()}
    Y, again = forward(), forward()
    faults = _changed("forward wrote into", kept, inputs)
    faults += _changed(
        "a second forward (same step, same state) gives another", {"Y": Y}, {"Y": again}
    )
    if Y.dtype != np.float64:
        faults.append(f"Y became {Y.dtype}: a layer keeps the dtype of X")
    if not np.isfinite(Y).all():
        faults.append("Y holds nan or infinity")
    _raise(_name(twin), faults)

    dY = rng.standard_normal(Y.shape) if loss is None else loss.loss_gradient(Y, y, sample_weight)
    kept["dY"], inputs["dY"] = dY.copy(), dY
    claims, repeated = _backward(twin, dY), _backward(twin, dY)
    faults = _changed("backward wrote into", kept, inputs)
    faults += _changed("a second backward gives another", claims, repeated)
    optional = {
        _join(p, n) for p, layer in twin.walk() for n in layer.params if not layer.trainable
    }
    if X.dtype.kind == "f":
        arrays = {"dX": X, **arrays}
    else:
        optional.add("dX")  # tokens have no derivative
        claims.pop("dX", None)
    _raise(_name(twin), faults + list(_malformed(arrays, claims, optional)))
    sizes = _sizes(X) | {f"{name} of Y": n for name, n in _sizes(Y).items()}
    upstream = dY if loss is None else 1.0
    return Trial(_name(twin), run, upstream, arrays, claims, sizes, y, sample_weight)


def _backward(layer: Layer, dY: Array) -> dict[str, Array]:
    """Copies of dX, if there is one, and of all gradients below."""
    dX = layer.backward(dY)
    claims = {} if dX is None else {"dX": np.array(dX)}
    for path, below in layer.walk():
        claims |= {_join(path, name): np.array(g) for name, g in below.grads.items()}
    return claims


def _sizes(X: Array) -> dict[str, int]:
    last = X.shape[-1] if X.ndim else 1
    return {
        "the batch size": len(X) if X.ndim else 1,
        "the number of rows": X.size // max(1, last),
        "the size of the last axis": last,
        "the number of elements": X.size,
    }


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(obj: object) -> str:
    """The object as it is written, or its class alone where that is long."""
    text = repr(obj)
    return text if len(text) <= 80 else type(obj).__name__


def _raise(who: str, faults: list[str]) -> None:
    if faults:
        raise GradientError("\n  ".join([f"{who} has wrong gradients:", *faults]))


# --- what can be wrong before any number is compared ---------------------------------------


def _changed(event: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        f"{event} {name}"
        for name in before.keys() | after.keys()
        if name not in before
        or name not in after
        or not np.array_equal(before[name], after[name], equal_nan=True)
    ]
