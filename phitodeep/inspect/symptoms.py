"""The symptoms that `Sequential.diagnose` looks for: one function measures one symptom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from phitodeep.inspect.diagnosis import Diagnosis, Measure, NotChecked, Symptom, examine
from phitodeep.inspect.evidence import PAIR, Evidence, decaying, shuffled, size
from phitodeep.inspect.thresholds import LIMITS
from phitodeep.layers.activation import HardSigmoid, HardTanh, Sigmoid, Tanh
from phitodeep.layers.base import Layer
from phitodeep.layers.recurrent import RNN
from phitodeep.optimization.lbfgs import LBFGS
from phitodeep.training.objective import Trainable
from phitodeep.types import Array

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


def inputs_too_spread(evidence: Evidence) -> Measures:
    path, X = _inputs(evidence)
    stds = X.std(axis=0)
    i = int(stds.argmax())
    yield Measure(path, float(stds[i]), f"feature {i} has the standard deviation {stds[i]:.3g}")


def inputs_too_narrow(evidence: Evidence) -> Measures:
    path, X = _inputs(evidence)
    std = float(np.sqrt(X.var(axis=0).mean()))
    yield Measure(path, std, f"the features together have the standard deviation {std:.3g}")


def start_loss(evidence: Evidence) -> Measures:
    if not evidence.fresh:
        raise NotChecked("the model has been trained")
    value, guess = evidence.sound.value, evidence.guess
    if not guess:
        raise NotChecked("all targets are the same")
    off = abs(value / guess - 1)
    yield Measure("", off, f"L = {value:.4g} before training, {off:.0%} off {guess:.4g}, a guess")


def cannot_overfit(evidence: Evidence) -> Measures:
    found = evidence.overfitted
    if not found.guess:
        raise NotChecked("all targets are the same")
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
    P, Q = model.predict(X, lengths=lengths), model.predict(shuffled(X), lengths=lengths)
    change = float(np.abs(P - Q).max() / max(float(np.abs(P).max()), 1e-30))
    yield Measure("", change, f"shuffling the samples of X changes predictions by {change:.2g}")


def input_unused(evidence: Evidence) -> Measures:
    if evidence.fresh:
        raise NotChecked("the model has not been trained")
    if evidence.lengths is not None:
        raise NotChecked("the samples have different lengths")
    model = evidence.copied()
    true, other = (
        model.evaluate(X, evidence.y, sample_weight=evidence.sample_weight)["loss"]
        for X in (evidence.X, shuffled(evidence.X))
    )
    gain = 1 - true / other if other > 0 else 0.0
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


def _fading(evidence: Evidence) -> Measures:
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


_SCALE = "Standardise X (subtract the mean of each feature, divide by its standard deviation); "
_SCALE += "divide images by 255."
_LABELS = "Check that X and y belong together, make the model larger, raise the learning rate, "
_LABELS += "and run check_gradients on layers of your own."

SYMPTOMS = (
    Symptom(
        "not finite",
        not_finite,
        "Weights or inputs that are too large, or a logarithm, root or division at 0.",
        "Use a loss that takes logits, lower the learning rate, and look at that layer's input.",
        "TensorBoard debugger v2",
    ),
    Symptom(
        "inputs off centre",
        inputs_off_centre,
        "The features are not centred, so that the gradients of a unit's weights share a sign.",
        _SCALE,
        "[C]",
    ),
    Symptom(
        "inputs too spread",
        inputs_too_spread,
        "The features are large, so that no learning rate suits all weights.",
        _SCALE,
        "[C]",
    ),
    Symptom(
        "inputs too narrow",
        inputs_too_narrow,
        "The features hardly differ from sample to sample, so that units hardly react to them.",
        _SCALE,
        "[C]",
    ),
    Symptom(
        "start loss",
        start_loss,
        "The last layer's initial weights are too large, or its bias is far from the targets.",
        "Use smaller initial weights in the last layer; set its bias to the mean of y, or "
        "standardise y.",
        "[K], [C]",
    ),
    Symptom(
        "cannot overfit",
        cannot_overfit,
        "Wrong labels or a wrong loss, too little capacity, a poor learning rate, or a wrong "
        "gradient.",
        _LABELS,
        "[K], [C]",
    ),
    Symptom(
        "input cut off",
        input_cut_off,
        "A layer multiplies by 0, all units of a layer are dead, or a layer of your own drops X.",
        "Follow X through the layers, and look for the first Y that is the same for all samples.",
        "[K]",
    ),
    Symptom(
        "input unused",
        input_unused,
        "The labels do not belong to X, or the model has learnt only how frequent they are.",
        "Check how X and y are shuffled; train longer; compare with a model that sees zeros.",
        "[K]",
    ),
    Symptom(
        "samples mix",
        samples_mix,
        "A layer of your own reshapes, transposes or averages over the batch axis.",
        "Keep axis 0 for the samples; use Permute and Reshape, which do so.",
        "[K]",
    ),
    Symptom(
        "reads ahead",
        reads_ahead,
        "A layer sees the token that it should predict: attention without causal=True, a "
        "Bidirectional layer, or a convolution with padding on both sides.",
        "Write causal=True, or remove the layer.",
        "[K]",
    ),
    Symptom(
        "updates too large",
        updates_too_large,
        "The learning rate is too high for these weights.",
        "Lower the learning rate until a step changes W by about 1e-3 of its size; warm up.",
        "[C]",
    ),
    Symptom(
        "updates too small",
        updates_too_small,
        "The learning rate is too low, or no gradient reaches these weights.",
        "Raise the learning rate until a step changes W by about 1e-3 of its size: see "
        "model.find_alpha.",
        "[C]",
    ),
    Symptom(
        "dead units",
        dead_units,
        "A learning rate that was too high, or initial weights or biases that are too negative.",
        "Lower the learning rate, use He's initial weights, or use LeakyReLU.",
        "[C]",
    ),
    Symptom(
        "saturated units",
        saturated_units,
        "The weights or the inputs are too large, so that the slope is almost 0.",
        "Use smaller initial weights (Xavier), or a norm before the activation.",
        "[M]",
    ),
    Symptom(
        "vanishing gradients",
        _fading,
        "Each layer shrinks the gradient: small weights, saturated units, many layers.",
        "Use He's initial weights, residual connections or norms.",
        "[G]",
    ),
    Symptom(
        "exploding gradients",
        _fading,
        "Each layer enlarges the gradient: large weights, many layers.",
        "Use He's initial weights, residual connections or norms, and warm up the learning rate.",
        "[G]",
    ),
    Symptom(
        "twin units",
        twin_units,
        "The initial weights are equal, so that units compute, and learn, the same.",
        "Draw the initial weights at random: He, Xavier, Normal.",
        "known widely",
    ),
    Symptom(
        "penalty rules",
        penalty_rules,
        "l1, l2 or weight_decay is so strong that the weights shrink rather than fit the data.",
        "Divide it by 10.",
        "[C]",
    ),
)


def diagnose(model: Trainable, X: Any, y: Any, **options: Any) -> Diagnosis:
    """Look for all symptoms, on copies of the model: see `Sequential.diagnose`."""
    return examine(SYMPTOMS, Evidence(model, X, y, **options))
