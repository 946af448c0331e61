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
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from phitodeep import functional as F
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


@dataclass(frozen=True, eq=False)
class Trial:
    """A function of some arrays, the gradients claimed for it, and what diagnoses look at."""

    subject: str
    run: Callable[[], Any]  # the output, or the loss, at the present values of `arrays`
    Y: Any  # what `run` gives
    dY: Any  # its upstream gradient; 1 for a loss
    arrays: dict[str, Array]
    claims: dict[str, Array]
    counts: dict[str, int]  # what a gradient may be divided by, rightly or wrongly
    y: Any
    sample_weight: Any


def check_gradients(
    obj: Layer | Loss,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | None = None,
    sample_weight: Any = None,
    training: bool = True,
    perturb: bool = True,
    max_probes: int | None = 128,
    seed: int = 0,
    rtol: float = 1e-7,
    atol: float = 0.0,
) -> GradientReport:
    """Compare every gradient of a layer, a model or a loss with central differences.

    `obj` is a Layer (X its input) or a Loss (X the predictions, y the targets). With y, a layer
    is checked together with `loss`, or with the attribute `loss` that models have; without y,
    against a random dY. All happens in float64 on a copy: `obj` stays as it is. An unbuilt layer
    is built for X, from `seed`, which also seeds everything else. Sizes that differ from each
    other and from 2 make the diagnosis of a wrong factor sharper.

    `training=False` checks what `saliency()` gives. `perturb` moves parameters and states that
    still have trivial values (gamma = 1, b = 0), since these would hide a lost factor. An array
    of more than `max_probes` numbers is probed at that many random places, and along one random
    direction that moves all of it (None: at every place), so that a network of 784-128-64-10
    takes a second or two.

    A claim a is right where, for a numeric slope n,

        |a - n| <= rtol max(|a|, |n|, floor)      rtol floor = atol + the rounding error of n

    If that fails down to the shortest step, and a is between the slopes to both sides, then this
    is a kink (of ReLU, say): it counts as skipped. More skipped than not is an error.

    Also checked: float64 stays float64; X, dY and the parameters are not written into; each
    parameter has one gradient of its shape (a frozen layer may leave it out); forward and
    backward, done again, give the same again.

    Raises GradientError, or returns a GradientReport.
    """
    if not isinstance(obj, Layer | Loss):
        raise ArgumentTypeError(f"check_gradients takes a layer or a loss, got {obj!r}.")
    rules = Rules(
        check_number(rtol, "rtol", above=0),
        check_number(atol, "atol", least=0),
        None if max_probes is None else check_count(max_probes, "max_probes"),
    )
    again = partial(
        check_gradients, training=training, max_probes=max_probes, seed=seed, rtol=rtol, atol=atol
    )
    rng = np.random.default_rng(seed)
    with calling(training=training, caching=True, needs_dX=True, reuse=False, step=0, first=0):
        if isinstance(obj, Loss):
            trial = _loss_trial(copy.deepcopy(obj), X, y, sample_weight)
        else:
            twin = _twin(obj, np.shape(X)[1:], seed, rng if perturb else None)
            pair = _loss_of(twin, y, loss, sample_weight)
            X = np.array(twin.admit(X), order="C")
            trial = _layer_trial(twin, X, pair, y, sample_weight, rng)
        findings: list[Finding] = []
        for name in trial.claims:
            findings.append(_find(trial, name, findings, rules, rng))
        faults = [fault for finding in findings if (fault := finding.fault())]
        if faults and isinstance(obj, Layer) and twin.children():
            faults += _culprits(twin, X, pair, y, sample_weight, again)
        _raise(trial.subject, faults)
    return GradientReport(trial.subject, tuple(finding.entry() for finding in findings))


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
                store[name] = a.copy()  # where weights are tied, each use answers for itself
                if rng is not None and np.unique(a).size < max(2, a.size):
                    store[name] += rng.uniform(0.1, 0.6, a.shape)  # a variance stays positive
    return twin


def _loss_of(layer: Layer, y: Any, loss: Loss | None, sample_weight: Any) -> Loss | None:
    """A copy of the loss to check with, or None for a random dY."""
    if y is None:
        if loss is None and sample_weight is None:
            return None
        raise ArgumentError("check_gradients takes loss and sample_weight only with targets y.")
    found = getattr(layer, "loss", None) if loss is None else loss
    if not isinstance(found, Loss):
        raise ArgumentError(f"check_gradients with y needs a loss: loss=..., got {found!r}.")
    return copy.deepcopy(found)


def _loss_trial(loss: Loss, X: Any, y: Any, sample_weight: Any) -> Trial:
    subject, P = _short(loss), np.array(as_float(X, np.float64, "X"), order="C")
    check_finite(P, "X")
    if y is None:
        raise ArgumentError(f"{subject} needs targets: check_gradients(loss, predictions, y).")
    kept = P.copy()
    claims, repeated = ({"dX": np.array(loss.loss_gradient(P, y, sample_weight))} for _ in range(2))
    faults = _changes("loss_gradient writes into", {"X": kept}, {"X": P})
    faults += _changes("loss_gradient, called again, gives another", claims, repeated)
    _raise(subject, [*faults, *_malformed({"dX": P}, claims)])

    def run() -> Any:
        return np.float64(loss.loss_func(P, y, sample_weight))

    return Trial(subject, run, run(), 1.0, {"dX": P}, claims, _counts(P), y, sample_weight)


def _layer_trial(
    twin: Layer, X: Array, loss: Loss | None, y: Any, sample_weight: Any, rng: np.random.Generator
) -> Trial:
    check_finite(X, "X")
    states = [(layer.state, copy.deepcopy(layer.state)) for _, layer in twin.walk() if layer.state]

    def forward() -> Array:
        for state, kept in states:
            state.update(copy.deepcopy(kept))
        return np.array(twin.forward(X))  # a copy: Y may be a view of X, which is moved

    def run() -> Any:
        Y = forward()
        return Y if loss is None else np.float64(loss.loss_func(Y, y, sample_weight))

    subject, params = _short(twin), dict(_gather(twin, "params"))
    before = copy.deepcopy({"X": X, **params})
    Y, repeated = forward(), forward()
    faults = _changes("forward writes into", before, {"X": X, **params})
    faults += _changes(
        "forward, called again at the same step, gives another", {"Y": Y}, {"Y": repeated}
    )
    if Y.dtype != np.float64:
        faults.append(f"Y is {Y.dtype} for X of float64: a layer keeps the dtype.")
    if not np.isfinite(Y).all():
        faults.append("Y holds nan or infinity.")
    _raise(subject, faults)

    dY = rng.standard_normal(Y.shape) if loss is None else loss.loss_gradient(Y, y, sample_weight)
    before["dY"] = dY.copy()
    claims, again = _backward(twin, dY), _backward(twin, dY)
    faults = _changes("backward writes into", before, {"X": X, **params, "dY": dY})
    faults += _changes("backward, called again, gives another", claims, again)
    differentiable = X.dtype.kind == "f"  # tokens are not
    arrays = {"dX": X, **params} if differentiable else params
    _raise(subject, [*faults, *_malformed(arrays, claims, dict(_gather(twin, "params", False)))])
    counts = _counts(X) | {f"{what} of Y": count for what, count in _counts(Y).items()}
    upstream = dY if loss is None else 1.0
    return Trial(subject, run, run(), upstream, arrays, claims, counts, y, sample_weight)


def _gather(top: Layer, store: str, trainable: bool | None = None) -> Iterator[tuple[str, Array]]:
    """The arrays of `store` ("params", "grads") here and below, by path."""
    for path, layer in top.walk():
        if trainable in (None, layer.trainable):
            for name, a in getattr(layer, store).items():
                yield f"{path}.{name}" if path else name, a


def _backward(layer: Layer, dY: Array) -> dict[str, Array]:
    """Copies of dX, if there is one, and of all gradients here and below."""
    dX = layer.backward(dY)
    claims = {} if dX is None else {"dX": dX}
    return {name: np.array(g) for name, g in (claims | dict(_gather(layer, "grads"))).items()}


def _counts(X: Array) -> dict[str, int]:
    batch, last = (X.shape[0], X.shape[-1]) if X.ndim else (1, 1)
    return {
        "the batch size": batch,
        "the number of rows": X.size // max(1, last),
        "the size of the last axis": last,
        "the number of elements": X.size,
    }


def _short(obj: object) -> str:
    """The object as it is written, or its class alone where that is long."""
    text = repr(obj)
    return text if len(text) <= 80 else type(obj).__name__


def _raise(subject: str, faults: Sequence[str]) -> None:
    if faults:
        raise GradientError("\n  ".join([f"{subject} has wrong gradients.", *faults]))


# --- what is wrong before any slope is compared --------------------------------------------


def _changes(event: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> list[str]:
    names = [
        name
        for name in {**before, **after}
        if name not in before
        or name not in after
        or not np.array_equal(before[name], after[name], equal_nan=True)
    ]
    return [f"{event} {', '.join(names)}."] if names else []


def _malformed(
    arrays: Mapping[str, Array], claims: Mapping[str, Array], frozen: Container[str] = ()
) -> Iterator[str]:
    for name in {**arrays, **claims}:
        A, G = arrays.get(name), claims.get(name)
        if A is None:
            yield f"{name} is given, but nothing of that name has a gradient."
        elif G is None:
            if name not in frozen:
                yield f"{name} is missing: backward does not give it."
        elif G.shape != A.shape:
            hints = (sentence for looks, sentence in SHAPES if looks(G.shape, A.shape))
            yield " ".join(
                [f"{name} has shape {G.shape}, and should have {A.shape}.", *list(hints)[:1]]
            )
        elif G.dtype != np.float64:
            yield f"{name} is {G.dtype}, where all else is float64: backward keeps the dtype."
        elif not np.isfinite(G).all():
            yield f"{name} holds nan or infinity, first at {_index(~np.isfinite(G))}."


def _index(mask: Array) -> str:
    """Where `mask` first is true, such as [1, 2]."""
    return str([int(i) for i in np.argwhere(mask)[0]])


SHAPES: tuple[tuple[Callable[[Shape, Shape], bool], str], ...] = (
    (lambda g, a: g == a[::-1], "Is it transposed?"),
    (lambda g, a: a == (*g[:1], 1) and len(set(g)) == 1, "Was (n,) broadcast against (n, 1)?"),
    (lambda g, a: g[-len(a) :] == a, "Was it not summed over the rows?"),
    (lambda g, a: math.prod(g) == math.prod(a), "It needs a reshape (keepdims?)."),
)


# --- comparing -----------------------------------------------------------------------------


class Probe(NamedTuple):
    """One slope: what was claimed and what was measured."""

    got: float
    expected: float
    scale: float  # an error of rtol times this is allowed
    verdict: str  # "right", "wrong" or "kink"


class Rules(NamedTuple):
    """How much is probed, and what is forgiven."""

    rtol: float
    atol: float
    max_probes: int | None


def _find(
    trial: Trial, name: str, findings: list[Finding], rules: Rules, rng: np.random.Generator
) -> Finding:
    """Probe the gradient `name` entry by entry, and along a direction where it has too many."""
    A, G = (a.reshape(-1) for a in (trial.arrays[name], trial.claims[name]))
    size, places, along = _size(A), np.arange(A.size), None
    if rules.max_probes is not None and A.size > rules.max_probes:
        v = rng.standard_normal(A.size) / math.sqrt(A.size)
        along = _probe(trial, _line(trial.run, A, slice(None), v), float(G @ v), size, 0, rules)
        places = np.sort(rng.choice(places, rules.max_probes, replace=False))
    probes = [
        _probe(trial, _line(trial.run, A, i), float(G[i]), size, abs(A[i]), rules) for i in places
    ]
    return Finding(name, trial, findings, places, probes, along)


def _probe(
    trial: Trial, line: Callable[[float], Any], got: float, size: float, own: float, rules: Rules
) -> Probe:
    """Compare the claim `got` with the slope of sum(dY line(t)) at t = 0.

    Differences are taken of outputs, and only then multiplied by dY: fewer digits cancel.
    Steps are relative to the array's `size`; for a number whose `own` size is far less, such as
    a probability near 0, one more is relative to that, if rounding leaves it any digits.
    """
    rounding = ROUNDINGS * EPS * float(np.linalg.norm(trial.dY * trial.Y))
    least = rules.atol + ROUNDINGS * EPS * float(np.linalg.norm(trial.dY)) / STEPS[0]
    steps = [step * size for step in STEPS]
    if 0 < own * STEPS[0] < steps[-1] and rounding < 1e-5 * abs(got) * own * STEPS[0]:
        steps.append(own * STEPS[0])
    slopes = []
    for h in steps:
        slopes.append(slope := float(np.sum(trial.dY * _derivative(line, h))))
        scale = max(abs(got), abs(slope), (least + rounding / h) / rules.rtol)
        if abs(got - slope) <= rules.rtol * scale:
            return Probe(got, slope, scale, "right")
    after, before = trial.dY * (line(h) - trial.Y) / h, trial.dY * (trial.Y - line(-h)) / h
    low, high = float(np.minimum(after, before).sum()), float(np.maximum(after, before).sum())
    slack = (high - low) / 10 + rounding / h  # the curve bends within h
    kink = low - slack <= got <= high + slack
    return Probe(got, float(np.median(slopes)), scale, "kink" if kink else "wrong")


@dataclass(frozen=True, eq=False)
class Finding:
    """All probes of one gradient, and what diagnoses may ask of them."""

    name: str
    trial: Trial
    findings: list[Finding]  # of the whole trial, this one included
    places: Array  # the flat index of each probe
    probes: list[Probe]
    along: Probe | None  # along a random direction, where only some places are probed

    def which(self, *verdicts: str) -> Array:
        return np.array([probe.verdict in verdicts for probe in self.probes], bool)

    @property
    def got(self) -> Array:
        """What was claimed, where there is a slope."""
        return np.array([p.got for p in self.probes if p.verdict != "kink"])

    @property
    def expected(self) -> Array:
        """The slopes."""
        return np.array([p.expected for p in self.probes if p.verdict != "kink"])

    def take(self, A: Array) -> Array:
        """The entries of A, of the gradient's shape, that belong to `got` and `expected`."""
        return A.reshape(-1)[self.places[self.which("right", "wrong")]]

    @property
    def gradient(self) -> Array:
        return self.trial.claims[self.name]

    def at(self, verdict: str) -> tuple[Array, ...]:
        """The indices of all probes of that verdict, an array for each axis."""
        return np.unravel_index(self.places[self.which(verdict)], self.gradient.shape or (1,))

    def entry(self) -> GradientEntry:
        probes = [*self.probes, *([self.along] if self.along else [])]
        errors = [(abs(p.got - p.expected), p.scale) for p in probes if p.verdict != "kink"]
        return GradientEntry(
            self.name,
            self.gradient.shape,
            len(probes),
            len(probes) - len(errors),
            max((error / scale for error, scale in errors if error), default=0.0),
            max((error for error, _ in errors), default=0.0),
        )

    def fault(self) -> str:
        """What is wrong and why it may be; empty if nothing is."""
        wrong, kinks, n = self.which("wrong"), self.which("kink").sum(), len(self.probes)
        if wrong.any():
            worst = max(np.flatnonzero(wrong), key=lambda i: _relative(self.probes[i]))
            index = [int(i) for i in np.unravel_index(self.places[worst], self.gradient.shape)]
            probe = self.probes[worst]
            return (
                f"{self.name}{index or ''}: expected {probe.expected:.9g}, got {probe.got:.9g}; "
                f"{wrong.sum()} of {n} probed entries are wrong. {self.diagnosis()}"
            ).rstrip()
        if self.along and self.along.verdict == "wrong":
            return (
                f"{self.name} along a random direction: expected {self.along.expected:.9g}, "
                f"got {self.along.got:.9g}. The {n} entries probed are right, but some of "
                f"the other {self.gradient.size - n} are not: max_probes=None finds them."
            )
        if 2 * kinks > n:
            return (
                f"{self.name}: {kinks} of {n} probes are at kinks, where there is no derivative: "
                "move X off them (X + 0.1?), or is the function rough?"
            )
        return ""

    def diagnosis(self) -> str:
        """The first of DIAGNOSES that fits."""
        with np.errstate(all="ignore"):  # numbers so wrong that they overflow resemble nothing
            found = ((looks_so(self), sentence) for looks_so, sentence in DIAGNOSES)
            return next((sentence.format(answer) for answer, sentence in found if answer), "")


def _relative(probe: Probe) -> float:
    return abs(probe.got - probe.expected) / probe.scale


# --- what wrong gradients look like --------------------------------------------------------


def _alike(A: Array, B: Array) -> bool:
    """A = B but for far less than any bug would change."""
    return bool(np.abs(A - B).max(initial=0) <= 1e-5 * np.abs(B).max(initial=0))


def _factor(A: Array, B: Array) -> float:
    """The k for which A = k B throughout, or 0."""
    k = float(A @ B / (B @ B)) if B.any() else 0.0
    return k if _alike(A, k * B) else 0.0


def never_written(f: Finding) -> bool:
    return not f.gradient.any()


def flipped(f: Finding) -> bool:
    return _alike(f.got, -f.expected)


def too_small(f: Finding) -> str:
    return _count(f.trial, _factor(f.expected, f.got))


def too_large(f: Finding) -> str:
    return _count(f.trial, _factor(f.got, f.expected))


def _count(trial: Trial, k: float) -> str:
    names = (f"{n} ({what})" for what, n in trial.counts.items() if abs(k - n) <= 1e-5 * n)
    return next(names, "") if k > 1.5 else ""


def scaled(f: Finding) -> str:
    k = _factor(f.got, f.expected)
    return f"{k:.6g}" if k and f.got.size > 1 and abs(k - 1) > 1e-4 else ""


def transposed(f: Finding) -> bool:
    G = f.gradient
    square = G.ndim > 1 and G.shape[-1] == G.shape[-2]
    return square and _alike(f.take(np.swapaxes(G, -1, -2)), f.expected)


def lost_parameter(f: Finding) -> str:
    """Such as gamma, of which each feature of the last axis has one."""
    for name, a in f.trial.arrays.items():
        if name != "dX" and a.shape == f.gradient.shape[-1:]:
            each = np.broadcast_to(a, f.gradient.shape)
            if _alike(f.got * f.take(each), f.expected):
                return name
    return ""


def lost_weights(f: Finding) -> bool:
    w, G = np.asarray(f.trial.sample_weight), f.gradient
    if w.shape != G.shape[:1] or f.name != "dX":
        return False
    each = np.broadcast_to(w.reshape(-1, *[1] * (G.ndim - 1)), G.shape)
    return _factor(f.got * f.take(each), f.expected) > 0


def of_the_logits(f: Finding) -> bool:
    """p - t, which is right only for what a softmax or sigmoid is applied to."""
    y, P = np.asarray(f.trial.y), f.trial.arrays.get("dX")
    if P is None or f.name != "dX" or y.shape not in (P.shape, P.shape[:-1]):
        return False
    if y.shape != P.shape:
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= P.shape[-1]:
            return False
        y = F.one_hot(y, P.shape[-1], np.float64)
    return _factor(f.got, f.take(P - y)) > 0


def unmasked(f: Finding) -> bool:
    blocked = np.abs(f.expected) <= 1e-9 * np.abs(f.got)
    passed = ~blocked
    leaks = bool(f.got[blocked].any()) and bool(passed.any())
    return leaks and _factor(f.got[passed], f.expected[passed]) > 0


def passed_through(f: Finding) -> bool:
    dY = np.asarray(f.trial.dY)
    return f.name == "dX" and dY.shape == f.gradient.shape and _alike(f.gradient, dY)


def lost_mean(f: Finding) -> str:
    """What is missing is one number for each row, or each feature."""
    if f.got.size < f.gradient.size or f.gradient.ndim < 2:
        return ""
    missing = (f.expected - f.got).reshape(-1, f.gradient.shape[-1])
    for axis, where in ((0, "row"), (1, "feature of the last axis")):
        mean = np.broadcast_to(missing.mean(axis=axis, keepdims=True), missing.shape)
        if missing.shape[axis] > 1 and _alike(missing, mean):
            return where
    return ""


def in_one_place(f: Finding) -> str:
    for axis, (wrong, right) in enumerate(zip(f.at("wrong"), f.at("right"), strict=True)):
        if len(set(wrong)) == 1 and not set(wrong) >= set(right) and right.size:
            return f"{wrong[0]} on axis {axis}"
    return ""


def only_dX(f: Finding) -> bool:
    others = [other for other in f.findings if other is not f]
    return f.name == "dX" and bool(others) and not any(o.which("wrong").any() for o in others)


DIAGNOSES: tuple[tuple[Callable[[Finding], object], str], ...] = (
    (never_written, "It is 0 everywhere: was it never written?"),
    (flipped, "Its sign is wrong."),
    (
        too_small,
        "It is exactly {} times too small: is the batch divided out twice, or is this a mean "
        "instead of a sum? Only the loss divides, and once.",
    ),
    (too_large, "It is exactly {} times too large: was a mean's division left out?"),
    (scaled, "It is {} times what it should be: is a constant factor wrong?"),
    (transposed, "It is the right gradient transposed."),
    (lost_parameter, "It is right once multiplied by {}: was that factor left out?"),
    (lost_weights, "It is right once multiplied by sample_weight: was that left out?"),
    (
        of_the_logits,
        "It is p - t, which is the gradient by the logits, not by the probabilities: "
        "the Jacobian of softmax or sigmoid belongs to that layer, and not to the loss.",
    ),
    (unmasked, "It is right except where it should be 0: was the mask not applied?"),
    (passed_through, "It is dY unchanged: was the Jacobian not applied?"),
    (lost_mean, "What is missing is the same in every {}: was a mean not subtracted?"),
    (in_one_place, "Only entries with index {} are wrong: is an edge treated otherwise?"),
    (only_dX, "All parameters are right: is a road from X to Y missing in dX?"),
)


def _culprits(
    twin: Layer,
    X: Array,
    loss: Loss | None,
    y: Any,
    sample_weight: Any,
    check: Callable[..., GradientReport],
) -> list[str]:
    """Which parts of a wrong whole are wrong alone, each checked at what it receives."""
    received: dict[str, Array] = {}

    def noting(path: str, forward: Callable[[Array], Array]) -> Callable[[Array], Array]:
        def noted(X: Array) -> Array:
            received[path] = np.array(X)
            return forward(X)

        return noted

    leaves = {path: layer for path, layer in twin.walk() if not layer.children()}
    for path, leaf in leaves.items():
        vars(leaf)["forward"] = noting(path, leaf.forward)
    Y = twin.forward(X)
    for leaf in leaves.values():
        del vars(leaf)["forward"]
    parts = [
        (f"layer {path}", partial(check, leaves[path], Z, perturb=False))
        for path, Z in received.items()
    ]
    if loss is not None:
        parts.append(("the loss", partial(check, loss, Y, y, sample_weight=sample_weight)))
    wrong = []
    for what, alone in parts:
        try:
            alone()
        except GradientError as error:
            wrong.append(f"Alone, {what} is wrong too: {error}")
    joins = f"Alone, every layer inside is right: does {type(twin).__name__} join them wrongly?"
    return wrong or [joins]
