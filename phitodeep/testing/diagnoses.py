"""Diagnoses of wrong gradients: tables of (predicate, sentence), where the first match counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np

from phitodeep.core.types import Array, Shape
from phitodeep.testing.report import Finding
from phitodeep.testing.slopes import Arrays

# --- before any slope is compared ---------------------------------------------

# A predicate of the shapes of the gradient and of its array.
SHAPES: tuple[tuple[Callable[[Shape, Shape], bool], str], ...] = (
    (lambda g, a: g == a[::-1], "Is it transposed?"),
    (lambda g, a: a == (*g[:1], 1) and len(set(g)) == 1, "Was (n,) broadcast against (n, 1)?"),
    (lambda g, a: math.prod(g) == math.prod(a), "It needs a reshape (keepdims?)."),
    (lambda g, a: g[-len(a) :] == a, "Was it not summed over the rows?"),
)
COUNTS = (
    "the batch size",
    "the number of rows",
    "the size of the last axis",
    "the number of elements of a sample",
    "the number of elements",
)


def malformed(arrays: Arrays, claims: Arrays, frozen: Container[str] = ()) -> Iterator[str]:
    """Describe claims that cannot be gradients of the arrays; frozen arrays need no gradient."""
    for name in {**arrays, **claims}:
        A, G = arrays.get(name), claims.get(name)
        if A is None:
            yield f"{name} is given, but nothing of that name has a gradient."
        elif G is None:
            if name not in frozen:
                yield f"{name} is missing: backward does not compute it."
        elif G.shape != A.shape:
            hints = (sentence for matches, sentence in SHAPES if matches(G.shape, A.shape))
            message = f"{name} has shape {G.shape}, but should have {A.shape}."
            yield f"{message} {next(hints, '')}".rstrip()
        elif G.dtype != np.float64:
            yield f"{name} is {G.dtype}, but everything else is float64: keep the dtype."
        elif not np.isfinite(G).all():
            where = np.argwhere(~np.isfinite(G))[0].tolist()
            yield f"{name} contains nan or infinity, first at {where}."


# --- after slopes are compared -------------------------------------------------


def fault(f: Finding) -> str:
    """Describe what is wrong and its likely cause; "" if nothing is wrong."""
    n, kinks = len(f.probes), len(f.probes) - len(f.smooth)
    if f.wrong:
        worst = max(f.wrong, key=lambda i: f.wrong[i].relative)
        index = [int(i) for i in np.unravel_index(worst, f.gradient.shape)]
        return (
            f"{f.name}{index or ''}: {f.wrong[worst]}; "
            f"{len(f.wrong)} of {n} probed entries are wrong. {_diagnosis(f)}"
        ).rstrip()
    for probe in f.along:
        if probe.verdict == "wrong":
            return (
                f"{f.name} along a random direction: {probe}. "
                f"The {n} entries probed are right, but some of "
                f"the other {f.gradient.size - n} are not: max_probes=None finds them."
            )
    if 2 * kinks > n:
        return (
            f"{f.name}: {kinks} of {n} probes are at kinks, where there is no derivative: "
            "move X off them (X + 0.1?), or is the function not smooth?"
        )
    return ""


def _diagnosis(f: Finding) -> str:
    """Return the sentence of the first diagnosis that matches, or ""."""
    with np.errstate(all="ignore"):  # values that overflow match no diagnosis
        found = ((matches(f), sentence) for matches, sentence in DIAGNOSES)
        return next((sentence.format(answer) for answer, sentence in found if answer), "")


def exact_diagnosis(findings: Sequence[Finding]) -> str:
    """Return the sentence of the diagnosis that accounts for every number in all findings."""
    for matches, sentence in DIAGNOSES:
        if matches in EXACT:
            with np.errstate(all="ignore"):  # values that overflow match no diagnosis
                answers = [matches(f) for f in findings]
            if all(answers) and len({str(a).partition(" (")[2] or str(a) for a in answers}) == 1:
                return sentence.format(answers[0])
    return ""


def alike(A: Array, B: Array) -> bool:
    """Return whether A and B differ by far less than a bug would cause."""
    return bool(np.abs(A - B).max(initial=0) <= 1e-5 * np.abs(B).max(initial=0))


def factor(A: Array, B: Array) -> float:
    """Return the k for which A = k B, or 0 if there is none."""
    k = float(A @ B / (B @ B)) if B.any() else 0.0
    return k if alike(A, k * B) else 0.0


def count(f: Finding, k: float) -> str:
    """Return what k counts, such as "5 (the batch size)", or "" if it counts nothing or is 1."""
    for whose, s in f.trial.shapes.items():
        for part, what in zip((s[:1], s[:-1], s[-1:], s[1:], s), COUNTS, strict=True):
            n = math.prod(part)
            if k > 1.5 and abs(k - n) <= 1e-5 * n:
                return f"{n} ({what}{whose})"
    return ""


def scaled(f: Finding) -> str:
    k = factor(f.got, f.expected)
    return f"{k:.6g}" if k and f.got.size > 1 and abs(k - 1) > 1e-4 else ""


def zero(f: Finding) -> bool:
    return not f.gradient.any()


def negative(f: Finding) -> bool:
    return alike(f.got, -f.expected)


def divided(f: Finding) -> str:
    return count(f, factor(f.expected, f.got))


def multiplied(f: Finding) -> str:
    return count(f, factor(f.got, f.expected))


def transposed(f: Finding) -> bool:
    G = f.gradient
    square = G.ndim > 1 and G.shape[-1] == G.shape[-2]
    return square and alike(f.take(np.swapaxes(G, -1, -2)), f.expected)


def missing_parameter(f: Finding) -> str:
    """Return the name of a missing factor with one value per feature, such as gamma."""
    last, arrays = f.gradient.shape[-1:], f.trial.arrays
    fitting = (name for name, a in arrays.items() if not name.startswith("dX") and a.shape == last)
    return next((k for k in fitting if alike(f.got * f.take(arrays[k]), f.expected)), "")


def missing_weights(f: Finding) -> bool:
    w, G = np.asarray(f.trial.sample_weight), f.gradient
    if f.name != "dX" or w.shape != G.shape[:1]:
        return False
    return factor(f.got * f.take(w.reshape(-1, *[1] * (G.ndim - 1))), f.expected) > 0


def of_the_logits(f: Finding) -> bool:
    """Return whether dX is p - t, which is right only for the logits."""
    if f.name != "dX" or f.trial.y is None:
        return False
    P, T = f.trial.arrays["dX"], np.asarray(f.trial.y)
    if T.shape == P.shape[:-1]:
        T = T[..., None] == np.arange(P.shape[-1])
    return T.shape == P.shape and factor(f.got, f.take(P - T)) > 0


def unmasked(f: Finding) -> bool:
    blocked = np.abs(f.expected) <= 1e-9 * np.abs(f.got)
    return bool(f.got[blocked].any()) and factor(f.got[~blocked], f.expected[~blocked]) > 0


def passed_through(f: Finding) -> bool:
    dY = f.trial.dY
    return f.name.startswith("dX") and np.shape(dY) == f.gradient.shape and alike(f.gradient, dY)


def missing_mean(f: Finding) -> str:
    """Return "row" or "feature ..." if the error is the same in each of them, else ""."""
    if f.got.size < f.gradient.size or f.gradient.ndim < 2:
        return ""
    missing = (f.expected - f.got).reshape(-1, f.gradient.shape[-1])
    for axis, where in ((0, "row"), (1, "feature of the last axis")):
        if missing.shape[axis] > 1 and alike(missing, missing.mean(axis, keepdims=True)):
            return where
    return ""


def one_sum(f: Finding) -> bool:
    """Return whether every entry is the sum of all the right ones."""
    whole = f.got.size == f.gradient.size > 1
    return whole and alike(f.got, np.full_like(f.got, f.expected.sum()))


def unwritten(f: Finding) -> bool:
    return bool(f.wrong) and not f.gradient.flat[list(f.wrong)].any()


def should_add_up(f: Finding) -> str:
    """Return "row" or "feature ..." if the right entries of each add up to 0 and these do not."""
    if f.got.size < f.gradient.size or f.gradient.ndim < 2:
        return ""
    got, expected = (A.reshape(-1, f.gradient.shape[-1]) for A in (f.got, f.expected))
    for axis, where in ((1, "row"), (0, "feature of the last axis")):
        size = np.abs(expected).sum(axis)
        ours, theirs = (np.abs(A.sum(axis)) for A in (got, expected))
        if (theirs < 1e-5 * size).all() and (ours > 1e-3 * size).any():
            return where
    return ""


def at_one_index(f: Finding) -> str:
    for axis, index in enumerate(np.indices(f.gradient.shape)):
        wrong, probed = ({*index.flat[list(probes)]} for probes in (f.wrong, f.smooth))
        if len(wrong) == 1 < len(probed):
            return f"{wrong.pop()} on axis {axis}"
    return ""


def only_dX(f: Finding) -> bool:
    others = [other for other in f.findings if other is not f]
    return f.name == "dX" and bool(others) and not any(other.wrong for other in others)


DIAGNOSES: tuple[tuple[Callable[[Finding], object], str], ...] = (
    (zero, "It is 0 everywhere: was it never written?"),
    (negative, "Its sign is wrong."),
    (
        divided,
        "It is exactly {} times too small: is the batch divided out twice, or is this a mean "
        "instead of a sum? Only the loss divides, and once.",
    ),
    (multiplied, "It is exactly {} times too large: was a mean's division left out?"),
    (scaled, "It is {} times what it should be: is a constant factor wrong?"),
    (transposed, "It is the right gradient transposed."),
    (missing_parameter, "It is right once multiplied by {}: was that factor left out?"),
    (missing_weights, "It is right once multiplied by sample_weight: was that left out?"),
    (
        of_the_logits,
        "It is p - t, the gradient with respect to the logits, not to the probabilities: "
        "the Jacobian of softmax or sigmoid belongs to that layer, not to the loss.",
    ),
    (unmasked, "It is right except where it should be 0: was the mask not applied?"),
    (
        lambda f: not f.trial.linear,
        "If dY doubles, backward does not: does every term of it contain dY?",
    ),
    (passed_through, "It is dY unchanged: was the Jacobian not applied?"),
    (one_sum, "Every entry is the sum of all the right ones: is `axis=` missing in a sum?"),
    (unwritten, "Every wrong entry is 0: was that part never written?"),
    (missing_mean, "Its error is the same in every {}: was a mean not subtracted?"),
    (at_one_index, "Only entries with index {} are wrong: is an edge treated differently?"),
    (
        should_add_up,
        "Its entries should add up to 0 in every {}, and they do not: does it leave out how each "
        "x changes the other outputs?",
    ),
    (only_dX, "All parameters are right: is a path from X to Y missing in dX?"),
)
EXACT = {zero, negative, divided, multiplied, scaled, passed_through}
