"""Numbers that PyTorch computed for layers, losses and optimizers, to compare phitodeep with.

The files in `phitodeep/testing/stored/` were written by references/make_*references.py. Each case
is named after the call that it checks, with a remark after " | " if there are several, and holds
float64 arrays such as `X`, `params.W`, `dY` and `grads.W`. Reading them needs no PyTorch.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers, loss
from phitodeep.core.types import Array
from phitodeep.functional import rotary
from phitodeep.layers import Dense, Layer, LayerNorm
from phitodeep.loss import Loss
from phitodeep.optimization import optimizers
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.testing.examples import passes

FOLDER = Path(__file__).parent / "stored"
Arrays = dict[str, Array]


class Pair(NamedTuple):
    """An array that phitodeep computed, and the one that is expected, which may be stored."""

    name: str
    found: Array
    stored: Array

    def difference(self) -> float:
        """Return the largest |found - stored| / max(1, |stored|)."""
        error = np.abs(self.found - self.stored) / np.maximum(1, np.abs(self.stored))
        return float(error.max(initial=0))

    def fault(self, dtype: Any, rtol: float, atol: float) -> str:
        """Return what is wrong with the array that was found, or ""."""
        if self.found.shape != self.stored.shape:
            return f"{self.name} has shape {self.found.shape}, expected {self.stored.shape}"
        if self.found.dtype != dtype:
            return f"{self.name} is {self.found.dtype}, expected {np.dtype(dtype)}"
        if not np.allclose(self.found, self.stored, rtol, atol):
            return f"{self.name} differs from the expected numbers by {self.difference():.1e}"
        return ""


# --- reading ---------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Arrays]:
    """Return the arrays of each case in a file, by case."""
    cases: dict[str, Arrays] = defaultdict(dict)
    with np.load(path) as stored:
        for key in stored.files:
            case, _, array = key.rpartition("/")
            if case:
                cases[case][array] = stored[key]
    return dict(cases)


@functools.cache
def layer_cases() -> dict[str, Arrays]:
    """Return the cases of layers; those in catalogue.npz are numbered and hold their names."""
    numbered = read(FOLDER / "catalogue.npz").values()
    return read(FOLDER / "layers.npz") | {str(stored.pop("call")): stored for stored in numbered}


@functools.cache
def loss_cases() -> dict[str, Arrays]:
    return read(FOLDER / "losses.npz")


@functools.cache
def optimizer_cases() -> dict[str, Arrays]:
    """Return the parameters after each step, by path."""
    return {k: stored for k, stored in trajectories().items() if k not in ("start", "gradients")}


@functools.cache
def trajectories() -> dict[str, Arrays]:
    """Return all arrays of optimizers: also "start" before the first step, and all "gradients"."""
    return read(FOLDER / "optimizers.npz")


def construct(case: str, module: ModuleType) -> Any:
    """Return the object that a case is named after, made of classes of the module and Ropes."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Call):
            named = {str(k.arg): value(k.value) for k in node.keywords}
            name = ast.unparse(node.func)
            kind = getattr(module if hasattr(module, name) else rotary, name)
            return kind(*map(value, node.args), **named)
        if isinstance(node, ast.List | ast.Tuple):
            return (list if isinstance(node, ast.List) else tuple)(map(value, node.elts))
        return ast.literal_eval(node)

    return value(ast.parse(case.partition(" | ")[0], mode="eval").body)


# --- layers ----------------------------------------------------------------------------------


def layer_of(case: str, stored: Arrays, dtype: Any) -> Layer:
    """Return the layer of a case, with the stored parameters and state."""
    layer: Layer = construct(case, layers)
    layer.build(stored["X"].shape[1:], dtype=dtype)
    weights = layer.get_weights()
    for key, a in stored.items():
        if key.startswith(("params.", "before.")):
            weights[key.partition(".")[2]] = a
    layer.set_weights(weights)  # refuses unknown names and other shapes
    return layer


def layer_pairs(case: str, dtype: Any) -> Iterator[Pair]:
    """Yield Y, dX, all gradients and the state after a forward and a backward pass."""
    stored = layer_cases()[case]
    layer = layer_of(case, stored, dtype)
    how = {"training": "saliency" not in case, "mask": stored.get("mask")}
    found = {
        name if name in ("Y", "dX") else f"grads.{name}": a
        for name, a in passes(layer, stored["X"], stored["dY"], **how).items()
    }
    found |= {f"after.{name}": a for name, a in layer.state.items() if f"after.{name}" in stored}
    computed = {k for k in stored if k in ("Y", "dX") or k.startswith(("grads.", "after."))}
    yield from _paired(found, {name: stored[name] for name in computed})


def _paired(found: Arrays, stored: Arrays) -> Iterator[Pair]:
    """Pair arrays by name; one that is missing on either side is paired with an empty array."""
    nothing = np.empty(0)
    for name in sorted({*found, *stored}):
        yield Pair(name, found.get(name, nothing), stored.get(name, nothing))


# --- losses ----------------------------------------------------------------------------------


def loss_pairs(case: str, dtype: Any) -> Iterator[Pair]:
    """Yield a loss's value and its gradient."""
    stored = loss_cases()[case]
    made: Loss = construct(case, loss)
    P, y, w = stored["y_pred"].astype(dtype), stored["y_true"], stored.get("sample_weight")
    for T in (y, y.astype(dtype if y.dtype.kind == "f" else np.int32)):
        value = np.array(made.loss_func(P, T, w), dtype)
        yield Pair(f"the value for {T.dtype} targets", value, stored["value"])
        gradient = made.loss_gradient(P, T, w)
        yield Pair(f"the gradient for {T.dtype} targets", gradient, stored["gradient"])


# --- optimizers ------------------------------------------------------------------------------


def referenced(dtype: Any = np.float64) -> list[Layer]:
    """Return the layers of the trajectories, at their start."""
    made: list[Layer] = [Dense(4, 3), LayerNorm(), Dense(3, 2)]
    made[1].build((3,), dtype=dtype)
    for path, a in trajectories()["start"].items():
        i, _, name = path.partition(".")
        made[int(i)].cast(dtype)
        setattr(made[int(i)], name, a)
    return made


def give(made: Sequence[Layer], step: int) -> None:
    """Give the layers the stored gradients of a step, as backward leaves them."""
    gradients = trajectories()["gradients"]
    for i, layer in enumerate(made):
        layer.grads = {n: gradients[f"{i}.{n}"][step].astype(layer.dtype) for n in layer.params}


def optimizer_pairs(case: str, dtype: Any) -> Iterator[Pair]:
    """Yield every parameter after each step."""
    stored, made = optimizer_cases()[case], referenced(dtype)
    optimizer: Optimizer = construct(case, optimizers)
    for step in range(len(next(iter(stored.values())))):
        give(made, step)
        optimizer.step(made)
        for i, layer in enumerate(made):
            for name, a in layer.params.items():
                yield Pair(
                    f"{i}.{name} after step {step + 1}", a.copy(), stored[f"{i}.{name}"][step]
                )


# --- comparing -------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Layers, losses or optimizers: their cases, what to compare, and how closely."""

    cases: Callable[[], dict[str, Arrays]]
    pairs: Callable[[str, Any], Iterator[Pair]]
    tolerances: dict[str, tuple[float, float]]  # by dtype: rtol and atol


# The BLAS of browsers rounds differently: rotary attention is 6.3e-5 away from PyTorch there.
LAYERS_32 = 1e-4 if sys.platform == "emscripten" else 5e-5
KINDS = {
    "layer": Kind(
        layer_cases, layer_pairs, {"float64": (1e-10, 1e-11), "float32": (LAYERS_32, LAYERS_32)}
    ),
    "loss": Kind(loss_cases, loss_pairs, {"float64": (3e-10, 1e-11), "float32": (3e-5, 1e-6)}),
    "optimizer": Kind(
        optimizer_cases, optimizer_pairs, {"float64": (1e-10, 1e-13), "float32": (1e-3, 1e-4)}
    ),
}


def compare(kind: str, case: str, dtype: str) -> tuple[float, list[str]]:
    """Return the largest difference from the stored numbers of a case, and what is wrong."""
    _, pairs, tolerances = KINDS[kind]
    difference, faults = 0.0, []
    for pair in pairs(case, dtype):
        if fault := pair.fault(dtype, *tolerances[dtype]):
            faults.append(f"{case} in {dtype}: {fault}")
        if pair.found.shape == pair.stored.shape:
            difference = float(np.maximum(difference, pair.difference()))  # keeps nan
    return difference, faults
