"""What is measured for each symptom; `symptoms.toml` has the thresholds, causes and remedies.

`tools/calibrate_diagnosis.py` starts with thresholds of the literature and replaces those that do
not separate healthy models from sick ones; `docs/_diagnosis.md` shows both. A test compares the
table with the script's output.

Sources: [K] Karpathy 2019, "A recipe for training neural networks"; [C] Stanford CS231n, "Neural
networks part 3"; [G] Godbole et al. 2023, "Deep learning tuning playbook"; [M] Karpathy 2022,
"makemore part 3"; [T] TensorBoard, "Debugger V2".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from phitodeep.core.types import Array, cut, each
from phitodeep.inspect.diagnosis import findings
from phitodeep.inspect.diagnosis.evidence import (
    PAIR,
    STEPS,
    WINDOW,
    Course,
    Evidence,
    decaying,
    size,
)
from phitodeep.inspect.diagnosis.findings import LIMITS, Diagnosis, Measure, NotChecked, symptoms
from phitodeep.layers.activation import HardSigmoid, HardTanh, Sigmoid, Tanh
from phitodeep.layers.base import Layer
from phitodeep.layers.recurrent import RNN
from phitodeep.training.objective import Trainable

Measures = Iterator[Measure]

BOUNDS: dict[type[Layer], tuple[float, float]] = {  # activations that saturate
    **dict.fromkeys((Tanh, HardTanh, RNN), (-1.0, 1.0)),
    **dict.fromkeys((Sigmoid, HardSigmoid), (0.0, 1.0)),
}
CLOSE = 0.015  # of the distance between the bounds: 0.97 for tanh
ENOUGH = 32  # values of a unit, to call it dead
EPOCHS = 18  # test losses that show a period
PATIENCE = 3  # epochs without a lower test loss


def not_finite(evidence: Evidence) -> Measures:
    for path, name, array, given in evidence.arrays():
        if bad := array.size - int(np.isfinite(array).sum()):
            text = f"{name} is the first array with values that are not finite: {bad} of its "
            text += f"{array.size:,}"
            if given is not None and given.dtype.kind == "f":
                low, high = np.min(given), np.max(given)
                text += f"; what it was computed from lies between {low:.3g} and {high:.3g}"
            yield Measure(path, bad, text)
            return
    yield Measure("", 0, "all values are finite")


def _inputs(evidence: Evidence, least: int = 1) -> tuple[str, Array]:
    """The features (rows, D) that the first weight matrix receives, and its path.

    least    how many rows are needed: the deviation of one row is 0
    """
    for path, p in evidence.step.passes.items():
        if not p.layer.children() and decaying(p.layer) and not isinstance(p.X, tuple):
            X = p.X
            if X.dtype.kind != "f" or p.layer.takes_tokens:
                raise NotChecked("the inputs are tokens")
            if np.isin(X, (0, 1)).all():
                raise NotChecked("the inputs are 0 or 1")
            mask = p.call.mask
            if mask is not None and mask.shape == X.shape[:2]:
                X = X[mask]
            X = X.reshape(-1, X.shape[-1]).astype(np.float64)
            if len(X) < least:
                raise NotChecked("there is one row of inputs")
            return path, X
    raise NotChecked("the model has no weights")


def inputs_off_centre(evidence: Evidence) -> Measures:
    path, X = _inputs(evidence)
    means = np.abs(X.mean(axis=0))
    i = int(means.argmax())
    yield Measure(path, float(means[i]), f"feature {i} has the mean {X[:, i].mean():.3g}")


def inputs_too_spread(evidence: Evidence) -> Measures:
    path, X = _inputs(evidence, least=2)
    stds = X.std(axis=0)
    i = int(stds.argmax())
    yield Measure(path, float(stds[i]), f"feature {i} has the standard deviation {stds[i]:.3g}")


def inputs_too_narrow(evidence: Evidence) -> Measures:
    path, X = _inputs(evidence, least=2)
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
    text = f"after {found.steps} steps on {len(each(found.X)[0])} samples, L = {found.left:.3g}, "
    yield Measure("", left if math.isfinite(left) else math.inf, f"{text}{left:.1%} of a guess")


def input_cut_off(evidence: Evidence) -> Measures:
    """Shuffle the samples: predictions that stay the same use none of them."""
    try:
        found = evidence.overfitted
        model, X, lengths = found.model, found.X, found.lengths
    except NotChecked:
        model, X, lengths = evidence.copied(), evidence.X, evidence.lengths
    others = _others(X)
    P, Q = (model._in_order(X, model.predict(A, lengths=lengths))[1] for A in (X, others))
    apart = max(float(np.abs(p - q).max()) for p, q in zip(each(P), each(Q), strict=True))
    change = apart / max(1e-30, *(float(np.abs(p).max()) for p in each(P)))
    yield Measure("", change, f"shuffling the samples of X changes predictions by {change:.2g}")


def _others(X: Any) -> Any:
    """Return the samples of X in another order, always the same one."""
    others = cut(X, np.random.default_rng(0).permutation(len(each(X)[0])))
    if all(np.array_equal(A, other) for A, other in zip(each(X), each(others), strict=True)):
        raise NotChecked("all samples are the same")
    return others


def input_unused(evidence: Evidence) -> Measures:
    if evidence.fresh:
        raise NotChecked("the model has not been trained")
    if evidence.lengths is not None:
        raise NotChecked("the samples have different lengths")
    model, T = evidence.copied(), evidence.step.data.T
    if all((t == t[0]).all() for t in each(T) if t is not None):
        raise NotChecked("all targets are the same")
    true, other = (
        model.evaluate(X, evidence.y, **evidence.options)["loss"]
        for X in (evidence.X, _others(evidence.X))
    )
    if other <= 0:
        raise NotChecked("the loss is not positive")
    gain = 1 - true / other
    yield Measure("", gain, f"L = {true:.4g}, and {other:.4g} with the samples of X shuffled")


def _first_leak(evidence: Evidence, pick: Callable[[Array], Array], what: str) -> Measure:
    """The layer that receives no gradient where `pick` looks but passes some back."""
    leaks = evidence.leaks(pick)
    worst = max((dX for _, dX in leaks.values() if not math.isnan(dX)), default=0.0)
    for path, (dY, dX) in leaks.items():
        if LIMITS["samples mix"].crossed(dX) and not LIMITS["samples mix"].crossed(dY):
            return Measure(path, dX, f"{dX:.1%} of |dX| {what}")
    return Measure("", worst, f"{worst:.1%} of |dX| {what}")


def samples_mix(evidence: Evidence) -> Measures:
    n = min(evidence.n, PAIR)
    if n < 2:
        raise NotChecked("there is one sample")
    what = f"lies in other samples, if L is a sum over the outputs of sample {n - 1} alone"
    yield _first_leak(evidence, lambda A: A[: n - 1], what)


def reads_ahead(evidence: Evidence) -> Measures:
    X, y = evidence.X, evidence.y
    if isinstance(X, tuple) or isinstance(y, tuple):
        raise NotChecked("the model has several inputs or outputs")
    next_tokens = evidence.model.takes_tokens and X.ndim == 2 and X.shape == y.shape
    if not (next_tokens and X.shape[1] > 2 and np.array_equal(X[:, 1:], y[:, :-1])):
        raise NotChecked("the targets are not the next tokens")
    T = X.shape[1]
    t = T // 2

    def later(A: Array) -> Array:
        return A[:, t + 1 :] if A.ndim > 1 and A.shape[1] == T else A[:0]

    what = f"lies in later steps, if L is a sum over the outputs up to step {t}"
    yield _first_leak(evidence, later, what)


def _update_ratios(evidence: Evidence) -> Measures:
    """|dW step| / |W| of each weight matrix, measured in one step."""
    after, before = dict(evidence.stepped.walk()), dict(evidence.model.walk())
    for path, name, _ in evidence.matrices:
        W = before[path].params[name]
        if whole := size(W):
            ratio = size(after[path].params[name].astype(np.float64) - W) / whole
            yield Measure(f"{path}.{name}", ratio, f"one step changes W by {ratio:.2g} of |W|")


def updates_too_large(evidence: Evidence) -> Measures:
    if evidence.model.optimizer.evaluates_often:
        raise NotChecked("L-BFGS chooses its own steps")
    return _update_ratios(evidence)


def updates_too_small(evidence: Evidence) -> Measures:
    if callable(evidence.model.optimizer.alpha):
        raise NotChecked("a schedule may begin or end with a small rate: the callback knows more")
    return _update_ratios(evidence)


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
        pair = (A.reshape(-1, A.shape[-1]) for A in (p.layer.params[name], p.grads[name]))
        columns = np.concatenate([*map(_rounded, pair)])
        units = columns.shape[1]
        _, which, counts = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
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
        moved = zip((after[path].params[name] for path, name, _ in found), Ws, strict=True)
        rest = math.hypot(*(size(new - (1 - rate * decay) * W) for new, W in moved))
        ratio = shrunk / (rest or 1e-30)
        text = f"weight decay changes the weights by {shrunk:.2g}, the rest of the step by "
        yield Measure("", ratio, f"{text}{rest:.2g}: a ratio of {ratio:.2g}")


# --- in the course of a training -----------------------------------------------------------------


def spikes(course: Course) -> Measures:
    if course.steps <= STEPS:
        raise NotChecked("there were too few steps")
    text = f"at step {course.at}, the gradient is {course.spike:.1f} times as long as the median"
    yield Measure("", course.spike, f"{text} of the {WINDOW} steps before")


def clipped_too_often(course: Course) -> Measures:
    if not course.clips or course.steps <= STEPS:
        raise NotChecked("the optimizer has no clip_norm, or took too few steps")
    share = course.clipped / course.steps
    yield Measure("", share, f"{course.clipped} of {course.steps} steps were clipped, {share:.0%}")


def largest_update(course: Course) -> Measures:
    if not course.ratios:
        raise NotChecked("no step was measured")
    for path, ratio in course.ratios.items():
        yield Measure(path, ratio, f"the largest step changes W by {ratio:.2g} of |W|")


def validation_periodic(course: Course) -> Measures:
    """The autocorrelation of the changes that one period and two periods have in common."""
    if len(course.test) < EPOCHS:
        raise NotChecked(f"there are fewer than {EPOCHS} epochs with test data")
    _check_positive(course)
    changes = np.diff(np.log(course.test))
    changes -= np.median(changes)
    bound = 3 * float(np.quantile(np.abs(changes), 0.75))  # a few large ones must not decide
    changes = np.clip(changes, -bound, bound)
    changes -= changes.mean()
    n, power = len(changes), float(changes @ changes) or 1.0
    r = [float(changes[k:] @ changes[: n - k]) / power * n / (n - k) for k in range(n // 2 + 1)]
    common = {k: min(r[k], r[2 * k], r[k] - min(r[1:k])) for k in range(2, n // 4 + 1)}
    period = max(common, key=lambda k: common[k])
    text = f"the test loss repeats itself every {period} epochs: its autocorrelation is "
    yield Measure("", common[period], f"{text}{common[period]:.2f}")


def _check_positive(course: Course) -> None:
    if min(course.test) <= 0:
        raise NotChecked("the test loss is not always positive")


def validation_rising(course: Course) -> Measures:
    test, train = course.test, course.train
    if len(test) <= PATIENCE:
        raise NotChecked("there are too few epochs with test data")
    _check_positive(course)
    best = int(np.argmin(test))
    since, last = len(test) - 1 - best, min(test[-PATIENCE:])
    rise = last / test[best] - 1 if train[-1] < train[best] else 0.0
    text = f"the test loss was lowest {since} epochs before the end, {test[best]:.4g}; since then "
    yield Measure("", rise, f"{text}the training loss fell, and the test loss is {rise:.0%} higher")


SYMPTOMS = symptoms(
    {
        "not finite": not_finite,
        "inputs off centre": inputs_off_centre,
        "inputs too spread": inputs_too_spread,
        "inputs too narrow": inputs_too_narrow,
        "start loss": start_loss,
        "cannot overfit": cannot_overfit,
        "input cut off": input_cut_off,
        "input unused": input_unused,
        "samples mix": samples_mix,
        "reads ahead": reads_ahead,
        "updates too large": updates_too_large,
        "updates too small": updates_too_small,
        "dead units": dead_units,
        "saturated units": saturated_units,
        "vanishing gradients": fading,
        "exploding gradients": fading,
        "twin units": twin_units,
        "penalty rules": penalty_rules,
    }
)
COURSE = symptoms(
    {
        "spikes": spikes,
        "clipped too often": clipped_too_often,
        "updates too large": largest_update,
        "updates too small": largest_update,
        "validation periodic": validation_periodic,
        "validation rising": validation_rising,
    }
)


def diagnose(model: Trainable, X: Any, y: Any, **options: Any) -> Diagnosis:
    """Look for all symptoms, on copies of the model: see `Sequential.diagnose`."""
    return findings.examine(SYMPTOMS, Evidence(model, X, y, **options))
