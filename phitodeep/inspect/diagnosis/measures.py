"""What `Sequential.diagnose` measures: one function for one row of the table of symptoms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from phitodeep.core.types import Array
from phitodeep.inspect.diagnosis.evidence import PAIR, Evidence, decaying, size
from phitodeep.inspect.diagnosis.findings import Measure, NotChecked
from phitodeep.inspect.diagnosis.thresholds import LIMITS
from phitodeep.layers.activation import HardSigmoid, HardTanh, Sigmoid, Tanh
from phitodeep.layers.base import Layer
from phitodeep.layers.recurrent import RNN
from phitodeep.optimization.lbfgs import LBFGS

Measures = Iterator[Measure]

BOUNDS: dict[type[Layer], tuple[float, float]] = {  # activations that saturate
    **dict.fromkeys((Tanh, HardTanh, RNN), (-1.0, 1.0)),
    **dict.fromkeys((Sigmoid, HardSigmoid), (0.0, 1.0)),
}
CLOSE = 0.015  # of the distance between the bounds: 0.97 for tanh
ENOUGH = 32  # values of a unit, to call it dead


def not_finite(evidence: Evidence) -> Measures:
    for path, name, array, given in evidence.arrays():
        bad = array.size - int(np.isfinite(array).sum())
        if bad:
            text = f"{name} is the first array with values that are not finite: {bad} of its "
            text += f"{array.size:,}"
            if given is not None and given.dtype.kind == "f":
                low, high = np.min(given), np.max(given)
                text += f"; what it was computed from lies between {low:.3g} and {high:.3g}"
            yield Measure(path, bad, text)
            return
    yield Measure("", 0, "all values are finite")


def _inputs(evidence: Evidence) -> tuple[str, Array]:
    """The features (rows, D) that the first weight matrix receives, and its path."""
    for path, p in evidence.step.passes.items():
        if not p.layer.children() and decaying(p.layer):
            X = p.X
            if X.dtype.kind != "f" or p.layer.takes_tokens:
                raise NotChecked("the inputs are tokens")
            if np.isin(X, (0, 1)).all():
                raise NotChecked("the inputs are 0 or 1")
            mask = p.call.mask
            if mask is not None and mask.shape == X.shape[:2]:
                X = X[mask]
            return path, X.reshape(-1, X.shape[-1]).astype(np.float64)
    raise NotChecked("the model has no weights")


def inputs_off_centre(evidence: Evidence) -> Measures:
    path, X = _inputs(evidence)
    means = np.abs(X.mean(axis=0))
    i = int(means.argmax())
    yield Measure(path, float(means[i]), f"feature {i} has the mean {X[:, i].mean():.3g}")


def _several(evidence: Evidence) -> tuple[str, Array]:
    """The same as `_inputs`, if they are at least two rows, which may differ."""
    path, X = _inputs(evidence)
    if len(X) < 2:
        raise NotChecked("there is one row of inputs")
    return path, X


def inputs_too_spread(evidence: Evidence) -> Measures:
    path, X = _several(evidence)
    stds = X.std(axis=0)
    i = int(stds.argmax())
    yield Measure(path, float(stds[i]), f"feature {i} has the standard deviation {stds[i]:.3g}")


def inputs_too_narrow(evidence: Evidence) -> Measures:
    path, X = _several(evidence)
    std = float(np.sqrt(X.var(axis=0).mean()))
    yield Measure(path, std, f"the features together have the standard deviation {std:.3g}")


def start_loss(evidence: Evidence) -> Measures:
    if not evidence.fresh:
        raise NotChecked("the model has been trained")
    value, guess = evidence.sound.value, evidence.guess()
    off = abs(value / guess - 1)
    if value < guess and LIMITS["start loss"].crossed(off):
        raise NotChecked("the weights are not new: the loss is far below what a guess would give")
    yield Measure("", off, f"L = {value:.4g} before training, {off:.0%} off {guess:.4g}, a guess")


def cannot_overfit(evidence: Evidence) -> Measures:
    found = evidence.overfitted
    left = found.left / found.guess
    text = f"after {found.steps} steps on {len(found.X)} samples, L = {found.left:.3g}, "
    yield Measure("", left if math.isfinite(left) else math.inf, f"{text}{left:.1%} of a guess")


def input_cut_off(evidence: Evidence) -> Measures:
    """Shuffle the samples: predictions that stay the same use none of them."""
    try:
        found = evidence.overfitted
        model, X, lengths = found.model, found.X, found.lengths
    except NotChecked:
        model, X, lengths = evidence.copied(), evidence.X, evidence.lengths
    others = _others(X)
    P, Q = model.predict(X, lengths=lengths), model.predict(others, lengths=lengths)
    change = float(np.abs(P - Q).max() / max(float(np.abs(P).max()), 1e-30))
    yield Measure("", change, f"shuffling the samples of X changes predictions by {change:.2g}")


def _others(X: Array) -> Array:
    """Return the samples of X in another order, always the same one."""
    others = X[np.random.default_rng(0).permutation(len(X))]
    if np.array_equal(X, others):
        raise NotChecked("all samples are the same")
    return others


def input_unused(evidence: Evidence) -> Measures:
    if evidence.fresh:
        raise NotChecked("the model has not been trained")
    if evidence.lengths is not None:
        raise NotChecked("the samples have different lengths")
    model, T = evidence.copied(), evidence.step.data.T
    if (T == T[0]).all():
        raise NotChecked("all targets are the same")
    true, other = (
        model.evaluate(X, evidence.y, sample_weight=evidence.sample_weight)["loss"]
        for X in (evidence.X, _others(evidence.X))
    )
    if other <= 0:
        raise NotChecked("the loss is not positive")
    gain = 1 - true / other
    yield Measure("", gain, f"L = {true:.4g}, and {other:.4g} with the samples of X shuffled")


def _first_leak(
    evidence: Evidence, name: str, pick: Callable[[Array], Array], what: str
) -> Measure:
    """The layer that receives no gradient where `pick` looks but passes some back."""
    leaks = evidence.leaks(pick)
    worst = max((dX for _, dX in leaks.values() if not math.isnan(dX)), default=0.0)
    for path, (dY, dX) in leaks.items():
        if dX > LIMITS[name].value >= dY:
            return Measure(path, dX, f"{dX:.1%} of |dX| {what}")
    return Measure("", worst, f"{worst:.1%} of |dX| {what}")


def samples_mix(evidence: Evidence) -> Measures:
    n = min(len(evidence.X), PAIR)
    if n < 2:
        raise NotChecked("there is one sample")

    def others(A: Array) -> Array:
        return A[: n - 1]  # all but the last

    what = f"lies in other samples, if L is a sum over the outputs of sample {n - 1} alone"
    yield _first_leak(evidence, "samples mix", others, what)


def reads_ahead(evidence: Evidence) -> Measures:
    X, y = evidence.X, evidence.y
    next_tokens = evidence.model.takes_tokens and X.ndim == 2 and X.shape == y.shape
    if not (next_tokens and X.shape[1] > 2 and np.array_equal(X[:, 1:], y[:, :-1])):
        raise NotChecked("the targets are not the next tokens")
    T = X.shape[1]
    t = T // 2

    def later(A: Array) -> Array:
        return A[:, t + 1 :] if A.ndim > 1 and A.shape[1] == T else A[:0]

    what = f"lies in later steps, if L is a sum over the outputs up to step {t}"
    yield _first_leak(evidence, "reads ahead", later, what)


def _ratios(evidence: Evidence) -> list[tuple[str, float]]:
    """(path, |dW step| / |W|) of each weight matrix, measured in one step."""
    after, found = dict(evidence.stepped.walk()), []
    before = dict(evidence.model.walk())
    for path, name, _ in evidence.matrices:
        W = before[path].params[name]
        if whole := size(W):
            moved = size(after[path].params[name].astype(np.float64) - W)
            found.append((f"{path}.{name}", moved / whole))
    return found


def updates_too_large(evidence: Evidence) -> Measures:
    if isinstance(evidence.model.optimizer, LBFGS):
        raise NotChecked("L-BFGS chooses its own steps")
    for path, ratio in _ratios(evidence):
        yield Measure(path, ratio, f"one step changes W by {ratio:.2g} of |W|")


def updates_too_small(evidence: Evidence) -> Measures:
    if callable(evidence.model.optimizer.alpha):
        raise NotChecked("a schedule may begin or end with a small rate: the callback knows more")
    for path, ratio in _ratios(evidence):
        yield Measure(path, ratio, f"one step changes W by {ratio:.2g} of |W|")


def dead_units(evidence: Evidence) -> Measures:
    for path, p in evidence.leaves:
        Y = p.Y.reshape(-1, p.Y.shape[-1])
        if p.layer.params or p.X.shape != p.Y.shape or p.Y.dtype.kind != "f" or len(Y) < ENOUGH:
            continue
        alive = p.X.reshape(Y.shape).any(axis=0)  # a unit whose input is 0 is not dead itself
        dead = alive & ~Y.any(axis=0)
        share = float(dead.mean())
        text = f"{int(dead.sum())} of {dead.size} units are 0 on all {len(p.Y)} samples"
        yield Measure(path, share, text)


def saturated_units(evidence: Evidence) -> Measures:
    for path, p in evidence.leaves:
        if type(p.layer) not in BOUNDS or p.layer is evidence.sound.model._last:
            continue
        low, high = BOUNDS[type(p.layer)]
        edge = CLOSE * (high - low)
        share = float(((p.Y > high - edge) | (p.Y < low + edge)).mean())
        text = f"{share:.0%} of the values are above {high - edge:.3g} or below {low + edge:.3g}"
        yield Measure(path, share, text)


def fading(evidence: Evidence) -> Measures:
    ends = [(path, p.dY) for path, p in evidence.leaves if decaying(p.layer) and p.dY is not None]
    if len(ends) < 2:
        raise NotChecked("there are fewer than two layers with weights")
    (path, first), (other, last) = ends[0], ends[-1]
    if not size(last):
        raise NotChecked("the gradient of the loss is 0")
    ratio = size(first) / size(last)
    text = f"|dY| is {size(first):.2g} at {path} and {size(last):.2g} at {other}: a ratio of "
    yield Measure(path, ratio, f"{text}{ratio:.2g}")


def twin_units(evidence: Evidence) -> Measures:
    for path, name, p in evidence.matrices[:-1]:  # targets tell the outputs apart
        columns = [
            _rounded(A.reshape(-1, A.shape[-1])) for A in (p.layer.params[name], p.grads[name])
        ]
        units = columns[0].shape[1]
        _, which, counts = np.unique(
            np.concatenate(columns), axis=1, return_inverse=True, return_counts=True
        )
        twins = int((counts[which.ravel()] > 1).sum())
        text = f"{twins} of {units} columns of {name} equal another, and so do their gradients"
        yield Measure(f"{path}.{name}", twins / units, text)


def _rounded(A: Array) -> Array:
    """A in steps of 1e-4 of its largest value, without signs of 0."""
    largest = float(np.abs(A).max())
    return np.round(A / (largest or 1.0), 4) + 0.0


def penalty_rules(evidence: Evidence) -> Measures:
    optimizer, found = evidence.model.optimizer, evidence.matrices
    l1, l2, decay = optimizer.l1, optimizer.l2, optimizer.weight_decay
    if not (l1 or l2 or decay):
        raise NotChecked("there are no penalties")
    Ws = [p.layer.params[name].astype(np.float64) for _, name, p in found]
    data = math.hypot(*(size(p.grads[name]) for _, name, p in found)) or 1e-30
    if l1 or l2:
        pull = math.hypot(*(size(l2 * W + l1 * np.sign(W)) for W in Ws))
        text = f"the gradient of the penalties is {pull:.2g}, that of the loss {data:.2g}: "
        yield Measure("", pull / data, f"{text}a ratio of {pull / data:.2g}")
    if decay:
        after, rate = dict(evidence.stepped.walk()), optimizer.rate
        shrunk = math.hypot(*(rate * decay * size(W) for W in Ws))
        rest = math.hypot(
            *(
                size(after[path].params[name] - (1 - rate * decay) * W)
                for (path, name, _), W in zip(found, Ws, strict=True)
            )
        )
        ratio = shrunk / (rest or 1e-30)
        text = f"weight decay changes the weights by {shrunk:.2g}, the rest of the step by "
        yield Measure("", ratio, f"{text}{rest:.2g}: a ratio of {ratio:.2g}")
