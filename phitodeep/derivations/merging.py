"""Merges of several values: sums, products, means, maxima, and arrays side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phitodeep.derivations.language.step import Arrange, Derivation, Join, Let, Size, Step, Sum

AXES = "nhwcdefgij"  # names for the axes of a sum over repetitions


def _elementwise(layer: Any, Y: str, slopes: Callable[[str, list[str]], str]) -> Derivation:
    """Y is an expression of all inputs; `slopes` returns dY dY/dX_i for X_i and the others."""
    names = _names(layer)
    steps: list[Step] = [Let("Y", Y)]
    for name, shape in zip(names, layer.input_shape, strict=True):
        code = slopes(name, [other for other in names if other != name])
        steps += _summed(name, code, shape, layer.output_shape)
    return Derivation.of(*steps)


def _names(layer: Any) -> list[str]:
    return [f"X{k}" for k in range(1, len(layer.input_shape) + 1)]


def _summed(name: str, code: str, shape: Any, whole: Any) -> list[Step]:
    """The gradient of an input: a sum over the axes that were repeated, if there are any."""
    repeated = [n < m for n, m in zip(shape, whole, strict=True)]
    if not any(repeated):
        return [Let(f"d{name}", code)]
    axes = AXES[: len(whole) + 1]
    kept = axes[0] + "".join("1" if r else a for a, r in zip(axes[1:], repeated, strict=True))
    share = f"share{name[1:]}"
    return [
        Let(share, code, words=f"what each place of Y sends to {name}"),
        Sum(f"d{name}", f"{axes}->{kept}", share),
    ]


def add(layer: Any) -> Derivation:
    """Y = X1 + X2 + ...: each reaches Y directly."""
    return _elementwise(layer, " + ".join(_names(layer)), lambda X, others: "dY")


def subtract(layer: Any) -> Derivation:
    """Y = X1 - X2."""
    return _elementwise(layer, "X1 - X2", lambda X, others: "dY" if X == "X1" else "-dY")


def multiply(layer: Any) -> Derivation:
    """Y = X1 X2 ...: each is a factor of what the others pass on."""
    return _elementwise(
        layer, " * ".join(_names(layer)), lambda X, others: " * ".join(["dY", *others])
    )


def average(layer: Any) -> Derivation:
    """Y = (X1 + X2 + ...) / n."""
    names = _names(layer)
    return _elementwise(
        layer, f"({' + '.join(names)}) / {len(names)}", lambda X, others: f"dY / {len(names)}"
    )


def maximum(layer: Any) -> Derivation:
    """Y = the largest of X1, X2, ...: dY goes to the first of them."""
    names = _names(layer)
    Y = names[0]
    for name in names[1:]:
        Y = f"np.maximum({Y}, {name})"

    def slope(X: str, others: list[str]) -> str:
        earlier = names[: names.index(X)]
        wins = [f"({X} > {other})" for other in earlier]
        wins += [f"({X} >= {other})" for other in others if other not in earlier]
        return " * ".join(["dY", *wins])

    return _elementwise(layer, Y, slope)


def concat(layer: Any) -> Derivation:
    """Y = X1, X2, ... side by side: each gets its part of dY."""
    names, axis = _names(layer), layer._along()
    rank = len(layer.output_shape) + 1
    steps: list[Step] = []
    if axis == rank - 1:
        steps.append(Join("Y", *names))
    else:
        turned = [f"np.moveaxis({name}, {axis}, -1)" for name in names]
        steps += [
            Arrange(f"turned{k}", code, name, "with its features last")
            for k, (code, name) in enumerate(zip(turned, names, strict=True), 1)
        ]
        steps.append(Join("joined", *(f"turned{k}" for k in range(1, len(names) + 1))))
        steps.append(Arrange("Y", f"np.moveaxis(joined, -1, {axis})", "joined", "as they were"))
    sizes = [f"size{k}" for k in range(1, len(names) + 1)]
    return Derivation.of(*steps, *parts(names, sizes, axis, "the size"))


def parts(names: list[str], sizes: list[str], axis: int, words: str) -> list[Step]:
    """The gradient of each array, given the gradient dY of all of them side by side."""
    before = "..., " if axis < 0 else ":, " * axis
    found: list[Step] = []
    for k, name in enumerate(names):
        start, end = " + ".join(sizes[:k]), " + ".join(sizes[: k + 1])
        found.append(Size(sizes[k], name, axis, f"{words} of {name}"))
        code = f"dY[{before}{start}:{end}]"
        found.append(Arrange(f"d{name}", code, "dY", f"the part for {name}"))
    return found


def dot(layer: Any) -> Derivation:
    """y = sum_d x1_d x2_d."""
    return Derivation.of(
        Sum("Y", "...d,...d->...1", "X1", "X2"), Let("dX1", "dY * X2"), Let("dX2", "dY * X1")
    )


def bilinear(layer: Any) -> Derivation:
    """y_k = sum_ij x1_i W_ijk x2_j + b_k; every row uses the same W and b."""
    product = "X2V" if layer.bias else "Y"
    return Derivation.of(
        Sum("V", "...i,ijk->...jk", "X1", "W"),
        Sum(product, "...j,...jk->...k", "X2", "V"),
        *([Let("Y", "X2V + b"), Sum("db", "...k->k", "dY")] if layer.bias else []),
        Sum("dX2", "...k,...jk->...j", "dY", "V"),
        Sum("dV", "...j,...k->...jk", "X2", "dY"),
        Sum("dW", "...i,...jk->ijk", "X1", "dV"),
        Sum("dX1", "...jk,ijk->...i", "dV", "W"),
    )
