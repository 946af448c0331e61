"""How rotary embeddings are recognised: pairs of features that are rotated by known angles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.exchange.onnx.read.axes import PROBES, Group, count, leaves, size_of
from phitodeep.exchange.onnx.read.expressions import op
from phitodeep.exchange.onnx.read.placing import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.rules_sequences import equal
from phitodeep.exchange.onnx.read.values import Constant, Step, View
from phitodeep.functional.rotary import LinearRope, LongRope, Rope, original
from phitodeep.layers import RotaryEmbedding

ENDLESS = 1 << 40  # positions: more than any sequence has


class Rotated(NamedTuple):
    """A rotation of x by the angles of `rope`, where `time` is the axis of the positions."""

    x: View
    time: Group
    rope: Rope


def rotary(step: Step) -> Plan | None:
    """A RotaryEmbedding of sequences."""
    found = rotation(step)
    if found is None or len(found.x.groups) != 3 or type(found.rope) is not Rope:
        return None
    x, time, rope = found
    if leaves(time) != leaves(x.groups[1]):
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        lead = w.lead(x.groups[0])
        layout = ((w.batch,), *((axis,) for axis in lead), *x.groups[1:])
        p = w.arranged(placed[0], layout)
        return w.layer_in(lead, RotaryEmbedding(rope.base), p, (*layout[:-1], step.groups[-1]))

    return Plan((x,), write)


def rotation(step: Step) -> Rotated | None:
    """Concat(a cos - b sin, a sin + b cos), with a and b the halves of the last axis of x."""
    if step.op != "Concat" or len(step.inputs) != 2:
        return None
    if step.settings["axis"] != len(step.groups) - 1 or len(step.groups) < 2:
        return None
    first, second = op(step.view(0), "Sub"), op(step.view(1), "Add")
    if first is None or second is None:
        return None
    terms = [t for s in (first, second) for i in (0, 1) if (t := _turned(s.inputs[i]))]
    if len(terms) < 4:
        return None
    (a, cos), (b, sin), (a2, sin2), (b2, cos2) = terms
    if a2.is_(b):  # the terms of the sum may be in any order
        (a2, sin2), (b2, cos2) = (b2, cos2), (a2, sin2)
    halves = [h for view in (a, b) if (h := _half(view))]
    if not (a.is_(a2) and b.is_(b2)) or len(halves) < 2:
        return None
    (x, i), (x2, j) = halves
    same = _identical(cos, cos2) and _identical(sin, sin2)
    if (i, j) != (0, 1) or not x.is_(x2) or not same:
        return None
    time = _time(cos, a)
    if time is None or time != _time(sin, a):
        return None
    rope = _rope_of(cos, sin, size_of(time), count(x.groups[-1]))
    return None if rope is None else Rotated(x, time, rope)


def _turned(value: object) -> tuple[View, Constant] | None:
    """Return the view and the constant that are multiplied."""
    step = op(value, "Mul") if isinstance(value, View) else None
    if step is not None:
        for i in (0, 1):
            x, c = step.inputs[i], step.inputs[1 - i]
            if isinstance(x, View) and isinstance(c, Constant):
                return x, c
    return None


def _half(view: View) -> tuple[View, int] | None:
    """Return x and which half of its last axis the view is."""
    step = op(view, "Take")
    if step is None or step.settings["axis"] != len(step.groups) - 1:
        return None
    x, places = step.view(), step.settings["places"]
    n = count(x.groups[-1])
    for i in (0, 1):
        half = n % 2 == 0 and all(2 * len(p) == n for p in places)
        if half and places == [list(range(i * n // 2, (i + 1) * n // 2))] * PROBES:
            return x, i
    return None


def _identical(a: Constant, b: Constant) -> bool:
    return all(np.array_equal(p, q) for p, q in zip(a.each(), b.each(), strict=True))


def _time(c: Constant, x: View) -> Group | None:
    """Return the only axis, other than the last, along which a constant differs."""
    varying = set()
    for a in c.each():
        offset = len(x.groups) - a.ndim
        varying |= {offset + i for i, n in enumerate(a.shape[:-1]) if n > 1}
    if len(varying) > 1 or min(varying, default=0) < 0:
        return None
    return x.groups[varying.pop()] if varying else ()


def _rope_of(cos: Constant, sin: Constant, steps: Sequence[int], d: int) -> Rope | None:
    """Return the angles of cos and sin (T, d / 2), or None if no Rope has them."""
    if any(
        a.size != T * (d // 2) for c in (cos, sin) for a, T in zip(c.each(), steps, strict=True)
    ):
        return None
    arrays = [
        (c.reshape(T, -1), s.reshape(T, -1), T)
        for c, s, T in zip(cos.each(), sin.each(), steps, strict=True)
    ]
    amplitude = float(arrays[0][0][0, 0])
    if not math.isfinite(amplitude) or amplitude <= 0:
        return None
    amplitude = 1.0 if abs(amplitude - 1) < 1e-7 else amplitude
    return next(
        (
            rope
            for w in _candidates(cos, arrays, d)
            for rope in _ropes(w, d, amplitude)
            if all(_fits(rope, c, s, T, d) for c, s, T in arrays)
        ),
        None,
    )


def _candidates(
    cos: Constant, arrays: Sequence[tuple[Array, Array, int]], d: int
) -> Iterator[Array]:
    """Yield frequencies that may be the ones: those in the file, and those of the first angle."""
    for source in cos.sources:
        if source.size == d // 2:
            yield source.ravel().astype(np.float64)
    c, s, T = max(arrays, key=lambda a: a[2])
    if T == 1:
        yield original(d, 10000.0)
    else:
        yield np.arctan2(s[1].astype(np.float64), c[1].astype(np.float64))


def _ropes(w: Array, d: int, amplitude: float) -> Iterator[Rope]:
    """Yield Ropes that may have these frequencies, the simplest first."""
    if not (np.isfinite(w).all() and w.min() > 0):
        return
    if amplitude == 1:
        exact = float(w[1] / w[0]) ** (-d / 2) if len(w) > 1 else 10000.0
        for base, factor in (
            (_rounded(exact), _rounded(1 / float(w[0]))),
            (exact, 1 / float(w[0])),
        ):
            if 1 < base < 1e30:
                yield Rope(base) if factor == 1 else LinearRope(factor, base)
    factors = (original(d, 10000.0) / w).tolist()
    yield LongRope(factors, factors, ENDLESS, amplitude)


def _rounded(value: float) -> float:
    """Return the value with six digits, if that is what it is up to rounding."""
    short = float(f"{value:.6g}")
    return short if math.isclose(short, value, rel_tol=2e-6) else value


def _fits(rope: Rope, cos: Array, sin: Array, T: int, d: int) -> bool:
    """Return whether a Rope has these cosines and sines (T, d / 2)."""
    double: Any = np.dtype(np.float64)
    wanted = rope.cos_and_sin(0, T, d, double)
    return all(equal(a, b) for a, b in zip((cos, sin), wanted, strict=True))
