"""The exercises, in the order of the lessons: what students write, and what it is compared with.

Every exercise draws its batches from a seed, so that nobody can write the answers down. The sizes
of a batch differ from each other, which makes a wrong factor easy to name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phitodeep.core.types import Shape
from phitodeep.layers import LSTM, Conv2D, Dense, Layer, LayerNorm, ReLU, RMSNorm
from phitodeep.layers import MultiHeadAttention as Attention
from phitodeep.loss import Loss, SoftmaxCrossEntropy
from phitodeep.teach.references import Chain, Neuron, ScaledDense, Swish, TwoPaths

ONE = "a batch of 1"


@dataclass(frozen=True)
class Case:
    """One hidden batch.

    shape      the shape of X, or of the predictions P of a loss
    options    the arguments of the class
    part       what the batch tests on its own, such as "a batch of 1"; "" for an ordinary batch
    scale      what the random numbers in X are multiplied by
    shift      what is added to them
    """

    shape: Shape
    options: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    scale: float = 1.0
    shift: float = 0.0


Draw = Callable[[np.random.Generator], list[Case]]


@dataclass(frozen=True)
class Exercise:
    """What students write, and how it is graded.

    name         the `spec` of `phitodeep.teach.grade`
    task         one sentence: what to write
    reference    makes the right layer or loss from the same arguments; it must have `steps()`
    cases        draws the hidden batches; at least two of them are ordinary ones
    """

    name: str
    task: str
    reference: Callable[..., Layer | Loss]
    cases: Draw


def _sizes(rng: np.random.Generator, count: int, low: int = 2, high: int = 9) -> list[int]:
    """Return sizes that all differ, in random order."""
    return [int(n) for n in rng.choice(np.arange(low, high + 1), count, replace=False)]


EXERCISES: dict[str, Exercise] = {}


def _exercise(reference: Callable[..., Layer | Loss]) -> Callable[[Draw], Draw]:
    """Add an exercise: a function draws its batches, and its name and docstring say what it is."""

    def add(cases: Draw) -> Draw:
        name = cases.__name__
        EXERCISES[name] = Exercise(name, cases.__doc__ or "", reference, cases)
        return cases

    return add


@_exercise(Neuron)
def neuron(rng: np.random.Generator) -> list[Case]:
    """Neuron(): the backward pass of y = w x + b with several inputs, for one sample."""
    return [*(Case((1, D)) for D in _sizes(rng, 3)), Case((1, 1), part="one input")]


@_exercise(Chain)
def chain(rng: np.random.Generator) -> list[Case]:
    """Chain(w, v): the backward pass of Y = v tanh(w X)."""

    def drawn(shape: Shape, part: str = "") -> Case:
        w, v = rng.choice(np.arange(4, 20), 2, replace=False) * rng.choice([-0.1, 0.1], 2)
        return Case(shape, {"w": round(float(w), 1), "v": round(float(v), 1)}, part)

    rows = [_sizes(rng, 2) for _ in range(3)]
    ordinary = [drawn((N, D)) for N, D in rows]
    return [*ordinary, drawn((1, 7), ONE), drawn((3, 4, 2), "rank 3")]


@_exercise(TwoPaths)
def two_paths(rng: np.random.Generator) -> list[Case]:
    """TwoPaths(w, v): the backward pass of Y = X + v tanh(w X)."""
    return chain(rng)


@_exercise(lambda units: Dense(units))
def dense(rng: np.random.Generator) -> list[Case]:
    """Dense(units): the backward pass of Y = X W + b."""
    rows = [_sizes(rng, 3) for _ in range(3)]
    ordinary = [Case((N, D), {"units": K}) for N, D, K in rows]
    N, T, D, K = _sizes(rng, 4)
    return [*ordinary, Case((1, D), {"units": K}, ONE), Case((N, T, D), {"units": K}, "rank 3")]


@_exercise(ReLU)
def relu(rng: np.random.Generator) -> list[Case]:
    """ReLU(): the backward pass of Y = max(X, 0)."""
    ordinary = [Case((N, D)) for N, D in (_sizes(rng, 2) for _ in range(3))]
    N, H, W, C = _sizes(rng, 4)
    return [*ordinary, Case((1, 7), part=ONE), Case((N, H, W, C), part="rank 4")]


@_exercise(SoftmaxCrossEntropy)
def softmax_cross_entropy(rng: np.random.Generator) -> list[Case]:
    """SoftmaxCrossEntropy(): the gradient of the mean of -log softmax(z)[label]."""
    rows = [_sizes(rng, 2, 3) for _ in range(3)]
    N, K = _sizes(rng, 2, 3)
    return [
        *(Case((N, K), scale=2.0) for N, K in rows),
        Case((1, K), part=ONE),
        Case((N, K), part="large logits", scale=1000.0),
    ]


@_exercise(Swish)
def own_layer(rng: np.random.Generator) -> list[Case]:
    """Swish(): the backward pass of Y = X sigmoid(a X), where a is learned."""
    ordinary = [Case((N, D), scale=2.0) for N, D in (_sizes(rng, 2) for _ in range(3))]
    N, T, D = _sizes(rng, 3)
    return [*ordinary, Case((1, D), part=ONE), Case((N, T, D), part="rank 3")]


@_exercise(lambda units: ScaledDense(units))
def initial_weights(rng: np.random.Generator) -> list[Case]:
    """ScaledDense(units): the backward pass of Y = X W / sqrt(D)."""
    return dense(rng)


@_exercise(LayerNorm)
def layer_norm(rng: np.random.Generator) -> list[Case]:
    """LayerNorm(eps=1e-5): the backward pass, through mean and deviation."""
    rows = [_sizes(rng, 2, 3) for _ in range(3)]
    N, T, D = _sizes(rng, 3, 3)
    eps = round(float(rng.uniform(0.2, 0.9)), 2)
    return [
        *(Case((N, D), scale=2.0, shift=3.0) for N, D in rows),
        Case((1, D), part=ONE, scale=2.0, shift=3.0),
        Case((N, T, D), part="rank 3", scale=2.0, shift=3.0),
        Case((N, D), {"eps": eps}, "a larger eps"),
    ]


@_exercise(Conv2D)
def conv2d(rng: np.random.Generator) -> list[Case]:
    """Conv2D(filters, kernel_size, stride=1, padding=0): the backward pass."""

    def drawn(part: str = "", **more: Any) -> Case:
        N, C, K = _sizes(rng, 3, 2, 5)
        h, w = _sizes(rng, 2, 2, 4)
        H, W = _sizes(rng, 2, 6, 9)
        options = {"filters": K, "kernel_size": (h, w), **more}
        return Case((1 if part == ONE else N, H, W, C), options, part)

    ordinary = [drawn() for _ in range(3)]
    return [*ordinary, drawn(ONE), drawn("stride", stride=(2, 3)), drawn("padding", padding=1)]


@_exercise(LSTM)
def lstm(rng: np.random.Generator) -> list[Case]:
    """LSTM(units): one step back in time, which a given loop repeats."""

    def drawn(part: str = "") -> Case:
        N, T, D, H = _sizes(rng, 4, 3, 7)
        shape = 1 if part == ONE else N, 1 if part == "one step" else T, D
        return Case(shape, {"units": H}, part)

    return [drawn(), drawn(), drawn(), drawn(ONE), drawn("one step")]


@_exercise(lambda causal=False: Attention(1, causal=causal))
def attention(rng: np.random.Generator) -> list[Case]:
    """Attention(causal=False): back through scores, softmax and average."""

    def drawn(part: str = "", **options: Any) -> Case:
        N, T, D = _sizes(rng, 3, 3, 7)
        return Case((1 if part == ONE else N, 1 if part == "one position" else T, D), options, part)

    ordinary = [drawn() for _ in range(3)]
    return [*ordinary, drawn(ONE), drawn("one position"), drawn("causal", causal=True)]


@_exercise(RMSNorm)
def rms_norm(rng: np.random.Generator) -> list[Case]:
    """RMSNorm(eps=1e-5): the backward pass, directly and through the length of a row."""
    return layer_norm(rng)
