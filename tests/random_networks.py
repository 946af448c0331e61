"""Random nested networks for property tests: a strategy, and parts of a user's own.

`networks()` draws a chain of layers from the whole catalogue, with random options and nested in
every container, together with inputs for it. It is built in float64, has random parameters and
may have frozen parts.
"""

import math
import random
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import PhitodeepError
from phitodeep.layers import Layer, Param, activation
from phitodeep.layers.containers import Container
from phitodeep.testing.examples import EXAMPLES, Make

MOST = 160  # numbers of a sample between layers, so that networks stay quick

# --- parts of a user's own ---------------------------------------------------------------------


class Scale(Layer):
    """Y = gain X + shift: a layer of a user's own, with a parameter for each feature."""

    gain, shift = Param(decay=True), Param()
    independent_samples, time_steps = True, "independent"

    def create(self, shape):
        self.gain, self.shift = np.ones(shape[-1]), np.zeros(shape[-1])
        return shape

    def forward(self, X):
        self.save_for_backward(X=X)
        return X * self.gain + self.shift

    def backward(self, dY):
        axes = tuple(range(dY.ndim - 1))
        np.sum(dY * self.saved("X"), axis=axes, out=self.grad_array("gain"))
        self.grads["shift"] = dY.sum(axis=axes)
        return dY * self.gain


class Gate(Container):
    """Y = value(X) * gate(X): a container of a user's own, which holds layers by name."""

    independent_samples, time_steps = Container.independent_samples, Container.time_steps

    def __init__(self, value, gate):
        super().__init__()
        self.inside = {"value": value, "gate": gate}

    def __repr__(self):
        return f"Gate({self.inside['value']!r}, {self.inside['gate']!r})"

    def create(self, shape):
        shapes = {layer.build(shape) for layer in self.inside.values()}
        assert len(shapes) == 1
        return shapes.pop()

    def forward(self, X):
        V, G = (layer.forward(X) for layer in self.inside.values())
        self.save_for_backward(V=V, G=G)
        return V * G

    def backward(self, dY):
        V, G = self.saved("V", "G")
        dX_v = self.inside["value"].backward(dY * G)
        dX_g = self.inside["gate"].backward(dY * V)
        assert dX_v is not None
        assert dX_g is not None
        return dX_v + dX_g


class Ladder(L.Chain):
    """A chain of a user's own, which calls the forward and backward that it inherits.

    It does not declare that its samples are independent, so threads do not split a batch.
    """

    def forward(self, X):
        return super().forward(X) * 0.5

    def backward(self, dY):
        return super().backward(dY * 0.5)


def sine(X):
    return np.sin(X)


def sine_gradient(dY, X, Y):
    return np.cos(X) * dY


class Centred(L.Lambda):
    """Looks across the samples of a batch."""

    def __init__(self):
        super().__init__(centred, centred_gradient)


def centred(X):
    return X - X.mean(axis=0)


def centred_gradient(dY, X, Y):
    return dY - dY.mean(axis=0)


# --- the strategy ------------------------------------------------------------------------------


class Network(NamedTuple):
    """A built chain, and data for it."""

    chain: L.Chain
    X: Array
    seed: int

    def __repr__(self):
        frozen = [path for path, part in self.chain.walk() if part.params and not part.trainable]
        return f"Network({self.chain!r}, X {self.X.shape}, {frozen=}, seed={self.seed})"

    def dY(self, Y):
        """A random upstream gradient for the output Y."""
        rng = np.random.default_rng(self.seed + 1)
        return rng.standard_normal(Y.shape).astype(Y.dtype)

    @property
    def steps(self):
        """Whether X has steps: tokens (N, T), or (N, T, D)."""
        return self.X.ndim == (2 if self.chain.takes_tokens else 3)


SIZED = (L.Dense, L.LowRank, L.TiedDense, L.MultiHeadAttention, L.TransformerBlock, L.Lambda)


@cache
def fitting(shape):
    """Rows of the table of examples: activations, others that keep this shape, and the rest."""
    activations, keep, change = dict[str, Make](), dict[str, Make](), dict[str, Make]()
    for make, _ in EXAMPLES:
        layer = make()
        if any(isinstance(p, L.Wired | L.Shared) or p.surrogate for _, p in layer.walk()):
            continue  # tests/random_wirings.py draws these
        if any(isinstance(p, SIZED) or getattr(p, "eps", 1) < 0.05 for _, p in layer.walk()):
            continue  # central differences of 1 / sqrt(1e-5) would be coarse
        with suppress(PhitodeepError):
            found = layer._measured(shape).output_shape or ()
            if found == shape:
                kept = activations if type(layer).__name__ in activation.__all__ else keep
                kept[repr(layer)] = make
            elif math.prod(found) <= MOST:
                change[repr(layer)] = make
    return [*activations.values()], [*keep.values()], [*change.values()]


class Maker:
    """Draws layers that fit a given sample shape, and are not of the classes `without`.

    With `masked`, most of them take a mask.
    """

    def __init__(self, rng, without, masked):
        self.rng, self.without, self.masked = rng, without, masked
        self.embeddings = []

    def pick(self, *options):
        return self.rng.choice(options)

    def one_of(self, makers):
        """A layer by one of the makers, and not of the classes that are left out."""
        for _ in range(9):
            layer = self.pick(*makers)()
            if not any(isinstance(part, self.without) for _, part in layer.walk()):
                return layer
        return L.Tanh()

    # --- leaves that keep the shape ---

    def others(self, shape):
        """What keeps any shape, and has a size or is a user's own."""
        pick, D = self.pick, shape[-1]
        return [
            lambda: L.Dense(D, bias=pick(True, False)),
            lambda: L.LowRank(D, min(D, pick(1, 2)), pick(1.0, 3.0)),
            lambda: L.Lambda(sine, sine_gradient, independent_samples=True, steps="independent"),
            Centred,
            Scale,
        ]

    def recurrent(self, units, last):
        kind = self.pick(L.RNN, L.LSTM, L.GRU)
        return kind(units, return_sequences=not last)

    def heads(self, D):
        return self.pick(*[h for h in (1, 2, 3, 4) if D % h == 0])

    def attention(self, D):
        pick, heads = self.pick, self.heads(D)
        return L.MultiHeadAttention(
            heads,
            causal=pick(False, True),
            kv_heads=pick(*[k for k in range(1, heads + 1) if heads % k == 0]),
            rope=pick(False, D // heads % 2 == 0),
            dropout=pick(0.0, 0.3),
            bias=pick(True, False),
        )

    def block(self, D):
        pick, heads = self.pick, self.heads(D)
        return L.TransformerBlock(
            heads,
            mlp_ratio=pick(1, 1.5),
            activation=pick("gelu", "gelu_tanh", "relu", "swiglu"),
            causal=pick(False, True),
            norm=pick("layer", "rms"),
            pre_norm=pick(True, False),
            dropout=pick(0.0, 0.3),
            rope=pick(False, D // heads % 2 == 0),
            checkpoint=pick(False, True),
        )

    def conv1d(self, C, filters):
        """One that keeps the steps."""
        pick = self.pick
        groups = pick(*[g for g in (1, 2, 3) if C % g == filters % g == 0])
        bias = pick(True, False)
        if pick(True, False):
            return L.Conv1D(filters, 3, padding=1, groups=groups, bias=bias)
        size, dilation = pick(1, 2, 3), pick(1, 2)
        return L.Conv1D(filters, size, padding="same", dilation=dilation, groups=groups, bias=bias)

    def on_steps(self, shape):
        """What keeps samples (T, D)."""
        pick, D = self.pick, shape[-1]
        return [
            lambda: self.recurrent(D, last=False),
            lambda: L.Bidirectional(self.recurrent(D, last=False), merge="add"),
            lambda: self.conv1d(D, D),
            lambda: self.attention(D),
            lambda: L.Chain(
                L.Dense(3 * D), L.ScaledDotProductAttention(self.heads(D), causal=pick(False, True))
            ),
            lambda: self.block(D),
            lambda: pick(L.MaxPool1D, L.AvgPool1D)(3, 1, pick("same", 1)),
        ]

    def on_images(self, shape):
        """What keeps samples (H, W, C)."""
        pick, C = self.pick, shape[-1]
        return [
            lambda: L.Conv2D(C, pick(1, 3, (2, 3)), padding="same", dilation=pick(1, 2)),
            lambda: L.DepthwiseConv2D(pick(2, 3), padding="same", bias=pick(True, False)),
            lambda: L.ConvTranspose2D(C, pick(2, 3), padding="same"),
            lambda: pick(L.MaxPool2D, L.AvgPool2D)(3, 1, pick("same", 1)),
        ]

    def keeping(self, shape):
        """A layer that keeps the shape."""
        special = {2: self.on_steps, 3: self.on_images}.get(len(shape), self.others)(shape)
        activations, others, _ = fitting(shape)
        among = [activations, [*others, *self.others(shape)], special]
        return self.one_of(self.pick(*among, *[special] * (2 * self.masked)))

    # --- leaves that change the shape ---

    def to_width(self, shape, width):
        """A layer that changes the last axis to `width`, and keeps the others."""
        makers = [lambda: L.Dense(width)]
        if len(shape) == 2:
            makers.append(lambda: self.conv1d(shape[-1], width))
            makers.append(lambda: self.recurrent(width, last=False))
        if len(shape) == 3:
            makers.append(lambda: L.Conv2D(width, 3, padding="same"))
        tied = [e for e in self.embeddings if e.dim == shape[-1] and e.vocab_size == width]
        if tied:
            makers.append(lambda: L.TiedDense(self.pick(*tied)))
        return self.one_of(makers)

    def changing(self, shape):
        """A layer that may change the shape."""
        pick, D = self.pick, shape[-1]
        small = [lambda: self.to_width(shape, pick(1, 2, 3, 4, 6))]
        tied = [e for e in self.embeddings if e.dim == D]
        if tied:
            small += [lambda: L.TiedDense(pick(*tied))] * 3
        if len(shape) > 1 and (not self.masked or pick(*[False] * 5, True)):
            axes = list(range(1, len(shape) + 1))
            small += [
                lambda: L.Reshape(-1),
                lambda: L.Select([D - 1, *range(0, D, 2)]),
                lambda: L.Reshape(math.prod(shape[:-1]), D),
                lambda: L.Reshape(-1, *shape[-2:]),
                lambda: L.Permute(*self.rng.sample(axes, len(axes))),
                lambda: L.Reshape(*shape, 1),
                lambda: pick(L.GlobalAvgPool, L.GlobalMaxPool)(),
            ]
        elif len(shape) > 1:
            small.append(lambda: pick(L.GlobalAvgPool, L.GlobalMaxPool)())
        if len(shape) == 2:
            small += self.shorter_steps(shape)
        if not self.masked and pick(False, True):
            small = fitting(shape)[2] or small
        return self.one_of(small)

    def shorter_steps(self, shape):
        pick, (T, D) = self.pick, shape
        sizes = [k for k in (1, 2, 3) if k <= T]
        found = [
            lambda: self.recurrent(pick(2, 3), last=True),
            lambda: L.Bidirectional(self.recurrent(pick(2, 3), last=pick(True, False))),
            lambda: L.Conv1D(pick(2, 4), pick(*sizes), stride=pick(1, 2)),
            lambda: L.Conv1D(pick(2, 4), pick(*sizes), stride=2, padding=pick(1, "same")),
            lambda: L.MaxPool1D(pick(*sizes), pick(None, 1)),
            lambda: L.AvgPool1D(pick(*sizes), pick(None, 1)),
            lambda: self.windowed(pick(*sizes)),
            *[self.halved] * (2 * (T % 2 == 0)),
        ]
        if T * D <= MOST // 4:
            found += [
                lambda: L.ConvTranspose1D(pick(2, 3), pick(2, 3), stride=2),
                lambda: L.ConvTranspose1D(D, 3, stride=2, padding=1, output_padding=1, groups=D),
            ]
        return found

    def windowed(self, size):
        """Branches that shorten the steps alike."""
        pool = self.pick(L.MaxPool1D, L.AvgPool1D)(size, 1)
        return L.Parallel(L.Conv1D(self.pick(1, 2), size), pool)

    def halved(self):
        """Branches that shorten T steps alike, but other counts of steps unlike."""
        conv, pool = L.Conv1D(self.pick(1, 2), 3, stride=2, padding=1), L.MaxPool1D(2)
        return L.Parallel(*self.pick((conv, pool), (pool, conv)))

    # --- containers ---

    def chain(self, shape, depth, keep=False):
        """One to three layers; with `keep`, the shape comes out as it went in."""
        layers = []
        for _ in range(self.pick(1, 2, 3)):
            layer = self.layer(shape, depth - 1, keep)
            layers.append(layer)
            if not keep:
                shape = self.measure(layer, shape)
        kind = self.pick(L.Chain, L.Chain, L.Chain, Ladder)
        return kind(*layers, checkpoint=self.pick(False, False, True))

    def branch(self, shape, depth, width):
        """Layers that change the last axis to `width`, and keep the others."""
        kept = self.chain(shape, depth, keep=True)
        return [*kept.layers, self.to_width(shape, width)]

    def merged(self, shape, depth, width):
        """Branches of one shape, added or multiplied."""
        if self.pick(False, True):
            return Gate(L.Chain(*self.branch(shape, depth, width)), self.to_width(shape, width))
        branches = [L.Chain(*self.branch(shape, depth, width)) for _ in range(self.pick(1, 2, 3))]
        return L.Parallel(*branches, merge=self.pick("add", "multiply"))

    def concatenated(self, shape, depth):
        widths = [self.pick(1, 2) for _ in range(self.pick(1, 2, 3))]
        return L.Parallel(*[L.Chain(*self.branch(shape, depth, width)) for width in widths])

    def time_distributed(self, shape, depth, keep):
        """Often with random numbers inside; each step of each sample has its own."""
        chain = self.chain(shape[1:], depth, keep)
        inside = L.Chain(L.Dropout(0.5), chain) if self.pick(True, False) else chain
        return L.TimeDistributed(inside)

    def container(self, shape, depth, keep):
        pick = self.pick

        def residual():
            inside = self.chain(shape, depth, keep=True).layers
            return L.Residual(*inside, checkpoint=pick(False, True))

        def skip():
            inside = self.branch(shape, depth, pick(1, 2))
            return L.SkipConcat(*inside, checkpoint=pick(False, True))

        makers = [
            residual,
            lambda: self.merged(shape, depth, shape[-1]),
            lambda: self.chain(shape, depth, keep),
        ]
        if len(shape) > 1:
            makers += [lambda: self.time_distributed(shape, depth, keep)] * 2
        if not keep and math.prod(shape) * 3 <= MOST:
            makers.append(lambda: self.merged(shape, depth, pick(2, 3)))
            makers.append(lambda: self.concatenated(shape, depth))
            makers.append(skip)
        return self.one_of(makers)

    def layer(self, shape, depth, keep=False):
        """Any layer, with at most `depth` containers around each other."""
        kinds = ["keeping", *["changing"] * (not keep), *["container"] * 2 * (depth > 0)]
        kind = self.pick(*kinds)
        if kind == "container":
            return self.container(shape, depth, keep)
        return self.keeping(shape) if kind == "keeping" else self.changing(shape)

    # --- inputs ---

    def embedding(self, shape):
        """What takes tokens: an Embedding, or several side by side."""
        pick, vocab = self.pick, 5
        made = [L.Embedding(vocab, pick(2, 3, 4)) for _ in range(pick(1, 1, 2))]
        self.embeddings += made
        if len(made) == 1:
            return made[0]
        if made[0].dim == made[1].dim and pick(True, False):
            return L.Parallel(*made, merge=pick("add", "multiply"))
        return L.Parallel(*made)

    def measure(self, layer, shape):
        return layer._measured(shape).output_shape or ()


KINDS = ("features", "sequences", "images", "tokens")


@st.composite
def networks(draw, kinds=KINDS, without=(), samples=(2, 3, 4), masked=False):
    """A network, and X of one of the kinds: see `Maker`.

    A number stands for each network, so that one has nothing to do with the one before; a failure
    shrinks to a network of fewer layers and containers, which another number gives.
    """
    seed, size, depth = (draw(st.integers(*ends)) for ends in ((0, 2**32 - 1), (1, 4), (0, 2)))
    return drawn(Maker(random.Random(seed), without, masked), kinds, samples, size, depth, seed)


def drawn(maker, kinds, samples, size, depth, seed):
    pick, kind = maker.pick, maker.pick(*kinds)
    axes = {"features": 1, "sequences": 2, "images": 3, "tokens": 1}[kind]
    shape = (*[pick(3, 4, 5) for _ in range(axes - 1)], pick(2, 3, 4, 6))
    if kind == "images":
        shape = (*shape[:2], pick(1, 2, 3))
    sample, layers = shape, list[Layer]()
    if kind == "tokens":
        sample = shape = (pick(3, 4, 5),)
        layers.append(maker.embedding(shape))
        shape = maker.measure(layers[0], shape)
    for _ in range(size):
        layers.append(maker.layer(shape, depth))
        shape = maker.measure(layers[-1], shape)
    if maker.embeddings and pick(True, False):
        tied = pick(*maker.embeddings)
        layers += [L.Dense(tied.dim), L.TiedDense(tied)]
    chain = L.Chain(*layers, checkpoint=pick(False, False, False, True))
    chain.build(sample, seed=seed, dtype=np.float64)
    rng = np.random.default_rng(seed)
    chain.set_weights({path: fresh(path, a.shape, rng) for path, a in chain.get_weights().items()})
    parts = [part for path, part in chain.walk() if path and part._learns()]
    for _ in range(pick(0, 0, 1, 2) if parts else 0):
        pick(*parts).trainable = False
    X = rng.standard_normal((pick(*samples), *sample))
    return Network(chain, rng.integers(0, 5, X.shape) if kind == "tokens" else X, seed)


def fresh(path, shape, rng):
    """Values of a parameter or state: 1 and 0 would hide a lost factor."""
    return rng.uniform(0.5, 2, shape) if "var" in path else 0.7 * rng.standard_normal(shape)
