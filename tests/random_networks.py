"""Random networks for property tests: a strategy, and parts of a user's own.

`networks()` draws layers from the whole catalogue, with random options and nested in every
container, together with inputs for them. They are wired: there are one to three inputs and several
outputs, values are read twice, merged and ignored, and layers are shared. A chain is the case in
which each value has one reader. Networks are built in float64, have random parameters and may have
frozen parts.
"""

import math
import random
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from phitodeep import PhitodeepError
from phitodeep import layers as L
from phitodeep.core.types import each
from phitodeep.functional.rotary import DynamicRope, LongRope
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


class Closed(Scale):
    """The same layer, whose derivation nobody knows."""

    independent_samples, time_steps = True, "independent"

    def steps(self):
        return None


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
        return self.inside["value"].backward(dY * G) + self.inside["gate"].backward(dY * V)


class Ladder(L.Chain):
    """A chain of a user's own, which calls the forward and backward that it inherits.

    It does not declare that its samples are independent, so threads do not split a batch.
    """

    def forward(self, X):
        return super().forward(X) * 0.5

    def backward(self, dY):
        return super().backward(dY * 0.5)


def bell(X):
    return 1 / (1 + X * X)


def bell_gradient(dY, X, Y):
    return -2 * X * Y * Y * dY


class Centred(L.Lambda):
    """Looks across the samples of a batch."""

    def __init__(self):
        super().__init__(centred, centred_gradient)


def centred(X):
    return X - X.mean(axis=0)


def centred_gradient(dY, X, Y):
    return dY - dY.mean(axis=0)


OWN = (Scale, Gate, Ladder, Centred, L.Lambda)  # which files and other formats do not know


# --- the strategy ------------------------------------------------------------------------------


class Network(NamedTuple):
    """A built chain or wiring, and its inputs: one array, or a tuple of several."""

    layer: L.Chain | L.Wired
    X: Any
    seed: int

    def __repr__(self):
        frozen = [path for path, part in self.layer.walk() if part.params and not part.trainable]
        shapes = [X.shape for X in each(self.X)]
        return f"Network({self.layer!r}, X {shapes}, {frozen=}, seed={self.seed})"

    def dY(self, Y):
        """A random upstream gradient for the output Y, or for each of several."""
        rng = np.random.default_rng(self.seed + 1)
        return one([rng.standard_normal(A.shape).astype(A.dtype) for A in each(Y)])

    @property
    def steps(self):
        """Whether each input has steps: tokens (N, T), or (N, T, D)."""
        pairs = zip(each(self.X), each(self.layer.takes_tokens), strict=True)
        return all(X.ndim == (2 if tokens else 3) for X, tokens in pairs)

    def cast(self, dtype):
        """Change the dtype, and return the inputs in it."""
        self.layer.cast(dtype)
        return one([X if X.dtype.kind == "i" else X.astype(dtype) for X in each(self.X)])


def one(values):
    """The only value, or a tuple of several."""
    return values[0] if len(values) == 1 else tuple(values)


ROPES = (LongRope, DynamicRope)  # which do not fit all sizes of heads
ELEMENTWISE = (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum)


@cache
def fitting(shape, masked):
    """Rows of the table of examples: activations, others that keep this shape, and the rest.

    With `masked`, they take a mask if samples have steps.
    """
    activations, keep, change = dict[str, Make](), dict[str, Make](), dict[str, Make]()
    for make, _ in EXAMPLES:
        layer = make()
        parts = [part for _, part in layer.walk()]
        if any(isinstance(p, L.TiedDense | L.Lambda | L.Shared) for p in parts):
            continue  # they are drawn below
        if any(getattr(p, "eps", 1) < 0.05 or type(getattr(p, "rope", 0)) in ROPES for p in parts):
            continue  # central differences of 1 / sqrt(1e-5) would be coarse
        with suppress(PhitodeepError):
            layer = layer._measured(shape)
            if masked and len(shape) == 2:
                layer.compute_mask(np.ones((1, shape[0]), bool))
            if layer.output_shape == shape:
                kept = activations if type(layer).__name__ in activation.__all__ else keep
                kept[repr(layer)] = make
            elif math.prod(layer.output_shape or ()) <= MOST:
                change[repr(layer)] = make
    return [*activations.values()], [*keep.values()], [*change.values()]


class Maker:
    """Draws layers that fit a given sample shape, and are not of the classes `without`.

    With `masked`, most of them take a mask.
    """

    def __init__(self, rng, without=(), masked=False):
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

    # --- one layer ---

    def recurrent(self, units, last, **states):
        kind = self.pick(L.RNN, L.LSTM, L.GRU)
        return kind(units, return_sequences=not last, **states)

    def sized(self, shape, width):
        """What changes the last axis to `width`, and keeps the others."""
        pick, D = self.pick, shape[-1]
        settings = {"padding": "same", "bias": pick(True, False), "dilation": pick(1, 2)}
        makers = [lambda: L.Dense(width, bias=pick(True, False))]
        makers.append(lambda: L.LowRank(width, min(D, width, pick(1, 2)), pick(1.0, 3.0)))
        if len(shape) == 2:
            groups = pick(*[g for g in (1, 2, 3) if D % g == width % g == 0])
            makers.append(lambda: self.recurrent(width, last=False))
            makers.append(lambda: L.Bidirectional(self.recurrent(width, last=False), merge="add"))
            makers.append(lambda: L.Conv1D(width, pick(1, 2, 3), groups=groups, **settings))
        if len(shape) == 3:
            makers.append(lambda: L.Conv2D(width, pick(1, 3, (2, 3)), **settings))
            makers.append(lambda: L.ConvTranspose2D(width, pick(2, 3), **settings))
        return self.one_of(makers)

    def layer(self, shape, depth, keep=False):
        """Any layer, with at most `depth` containers around each other."""
        pick = self.pick
        if depth and pick(True, False):
            return self.container(shape, depth, keep)
        groups = [*fitting(shape, self.masked)][: 2 if keep else 3]
        own = L.Lambda(bell, bell_gradient, independent_samples=True, steps="independent")
        groups += [[Centred, Scale, lambda: own], [lambda: self.sized(shape, shape[-1])]]
        if not keep:
            groups.append([lambda: self.sized(shape, pick(1, 2, 3, 4, 6))])
            alike = [e for e in self.embeddings if e.dim == shape[-1]]
            groups.append([partial(L.TiedDense, e) for e in alike])
        if len(shape) == 2 and not keep:
            groups.append([lambda: self.windows(shape)])
        return self.one_of(pick(*filter(None, groups)))

    def windows(self, shape):
        """Branches that shorten the steps alike; if strided, only an even count of them."""
        pick, (T, _), filters = self.pick, shape, self.pick(1, 2)
        if T % 2 == 0 and pick(True, False):
            both = [L.Conv1D(filters, 3, stride=2, padding=1), L.MaxPool1D(2)]
            return L.Parallel(*self.rng.sample(both, 2))
        size = pick(*[k for k in (1, 2, 3) if k <= T])
        return L.Parallel(L.Conv1D(filters, size), pick(L.MaxPool1D, L.AvgPool1D)(size, 1))

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

    def branches(self, shape, depth, *widths):
        """Chains that change the last axis to these widths, and keep the others."""
        kept = [self.chain(shape, depth, keep=True).layers for _ in widths]
        ends = [self.sized(shape, width) for width in widths]
        return [L.Chain(*inside, end) for inside, end in zip(kept, ends, strict=True)]

    def container(self, shape, depth, keep):
        pick = self.pick
        small, again = not keep and math.prod(shape) * 3 <= MOST, {"checkpoint": pick(False, True)}
        D = pick(2, 3, shape[-1]) if small else shape[-1]
        branches = partial(self.branches, shape, depth)
        makers = [
            lambda: L.Residual(*self.chain(shape, depth, keep=True).layers, **again),
            lambda: Gate(*branches(D, D)),
            lambda: L.Parallel(*branches(*[D] * pick(1, 2, 3)), merge=pick("add", "multiply")),
            lambda: self.chain(shape, depth, keep),
        ]
        if len(shape) > 1:  # with random numbers, each step of each sample has its own
            drops = [L.Dropout(0.5)] * pick(0, 1)
            steps = partial(self.chain, shape[1:], depth, keep)
            makers += [lambda: L.TimeDistributed(L.Chain(*drops, steps()))] * 2
        if small:
            makers += [
                lambda: L.Parallel(*branches(*[pick(1, 2) for _ in range(pick(1, 2, 3))])),
                lambda: L.SkipConcat(*branches(pick(1, 2))[0].layers, **again),
                lambda: self.wired({"x": shape}, 2, depth - 1, single=True),
            ]
        return self.one_of(makers)

    # --- inputs ---

    def embedding(self):
        """What takes tokens: an Embedding, or several side by side."""
        made = [L.Embedding(5, self.pick(2, 3, 4)) for _ in range(self.pick(1, 1, 2))]
        self.embeddings += made
        return made[0] if len(made) == 1 else L.Parallel(*made)

    def measure(self, layer, shape):
        return layer._measured(shape).output_shape or ()

    # --- wirings ---

    def wired(self, shapes, size, depth, tokens=(), chained=False, single=False):
        """Layers between named values, from values with these shapes, some of which are tokens.

        chained    each value has one reader, and reads only the one before: a Chain
        single     there is one output, which depends on all values
        """
        pick, takes, shapes, uses = self.pick, [*shapes], dict(shapes), []

        def append(layer, *reads):
            outs = layer._measured(one([shapes[name] for name in reads]))._outs()
            gives = [f"v{len(shapes) + k}" for k in range(len(outs))]
            shapes.update(zip(gives, outs, strict=True))
            uses.append((layer, reads, gives))

        def unread(names):
            return [name for name in names if not any(name in reads for _, reads, _ in uses)]

        for _ in range(size):
            last = [*shapes][-1]
            if chained:
                append(self.reader(shapes, last, tokens, depth), last)
            else:
                append(*self.use(shapes, uses, tokens, depth))
        for name in unread(takes):
            append(self.reader(shapes, name, tokens, depth), name)
        if tokens and pick(True, False):
            tied = pick(*self.embeddings)
            append(L.Dense(tied.dim), [*shapes][-1])
            append(L.TiedDense(tied), [*shapes][-1])
        checkpoint = pick(False, False, False, True)
        if chained:
            return L.Chain(*[layer for layer, _, _ in uses], checkpoint=checkpoint)
        returns = unread(shapes)
        if single and len(returns) > 1:
            for name in [name for name in returns if len(shapes[name]) > 1]:
                append(L.GlobalAvgPool(), name)
            append(L.Concat(), *unread(shapes))
            returns = unread(shapes)
        elif not single:
            read = [name for name in [*shapes][len(takes) :] if name not in returns]
            returns += [name for name in read if pick(*[False] * 6, True)]
            self.rng.shuffle(returns)
        return L.Wired(takes, uses, returns, checkpoint=checkpoint)

    def use(self, shapes, uses, tokens, depth):
        """A layer, and the names of the values that it reads."""
        pick, names = self.pick, [*shapes]
        first = pick(names[-1], pick(*names))
        kind = pick("layer", "layer", "merge", "merge", "shared", "several")
        if kind == "shared" and uses:
            layer, reads, _ = pick(*uses)
            kinds = {name: (shapes[name], name in tokens) for name in names}
            alike = [[v for v in names if kinds[v] == kinds[name]] for name in reads]
            return L.Shared(layer), *[pick(*found) for found in alike]
        values = [name for name in names if name not in tokens]
        if kind == "merge" and first in values:
            return self.merge(shapes, first, pick(*values), depth)
        if kind == "several" and first in values and depth:
            reads = [first, pick(*values)][: pick(1, 2)]
            inside = {f"in{k}": shapes[name] for k, name in enumerate(reads)}
            return self.wired(inside, 2, depth - 1), *reads
        if kind == "several" and first in values and len(shapes[first]) == 2:
            return self.recurrent(pick(2, 3), last=pick(False, True), return_state=True), first
        return self.reader(shapes, first, tokens, depth), first

    def reader(self, shapes, name, tokens, depth):
        """A layer that reads one value."""
        return self.embedding() if name in tokens else self.layer(shapes[name], depth)

    def merge(self, shapes, first, second, depth):
        """What merges two values, or a layer that reads the first if nothing fits them."""
        pick, shape, H = self.pick, shapes[first], shapes[second][-1]
        makers = [*ELEMENTWISE, L.Dot, lambda: L.Concat(pick(*range(-len(shape), 0)))]
        makers.append(lambda: L.Bilinear(pick(1, 2, 3), bias=pick(True, False)))
        if len(shape) == 2:
            heads = pick(*[h for h in (1, 2, 3) if shape[-1] % h == 0])
            given = {"dropout": pick(0.0, 0.3), "bias": pick(True, False)}
            makers += [lambda: L.CrossAttention(heads, **given)] * 3
            makers += [lambda: self.recurrent(H, last=pick(True, False), initial_state=True)] * 3
        for make in self.rng.sample(makers, len(makers)):
            layer = make()
            reads = [first, *[second] * ((layer.inputs or 2) - 1)]
            with suppress(PhitodeepError):
                out = self.measure(layer, tuple([shapes[name] for name in reads]))
                if not isinstance(layer, self.without) and math.prod(out) <= MOST:
                    return layer, *reads
        return self.layer(shape, depth), first


KINDS = ("features", "sequences", "images", "tokens")


@st.composite
def networks(draw, **options):
    """A network: see `drawn`.

    A number stands for each network, so that one has nothing to do with the one before; a failure
    shrinks to a network of fewer layers and containers, which another number gives.
    """
    seed, size, depth = (draw(st.integers(*ends)) for ends in ((0, 2**32 - 1), (1, 4), (0, 2)))
    return drawn(seed, size, depth, **options)


def drawn(seed, size=None, depth=None, *, kinds=KINDS, samples=(2, 3, 4), single=False, **options):
    """A network of so many layers and containers around each other, and its inputs.

    kinds      of the inputs
    samples    how many there may be
    single     there is one input and one output
    options    of `Maker`
    """
    maker = Maker(random.Random(seed), **options)
    pick, chained, shapes, tokens = maker.pick, maker.pick(True, False), {}, []
    size, depth = size or pick(1, 2, 3, 4), pick(0, 1, 2) if depth is None else depth
    T = pick(3, 4, 5)
    for k in range(1 if chained or single else pick(1, 2, 3)):
        kind = pick(*kinds)
        shapes[f"in{k}"] = {
            "features": (pick(2, 3, 4, 6),),
            "sequences": (T, pick(2, 3, 4, 6)),
            "images": (pick(3, 4, 5), pick(3, 4, 5), pick(1, 2, 3)),
            "tokens": (T,),
        }[kind]
        tokens += [f"in{k}"] * (kind == "tokens")
    layer = maker.wired(shapes, size + len(tokens), depth, tokens, chained, single)
    layer.build(one([*shapes.values()]), seed=seed, dtype=np.float64)
    rng = np.random.default_rng(seed)
    randomize(layer, rng)
    parts = [part for path, part in layer.walk() if path and part._learns()]
    for _ in range(pick(0, 0, 1, 2) if parts else 0):
        pick(*parts).trainable = False
    N = pick(*samples)
    Xs = [
        rng.integers(0, 5, (N, *shape)) if name in tokens else rng.standard_normal((N, *shape))
        for name, shape in shapes.items()
    ]
    return Network(layer, one(Xs), seed)


def randomize(layer, rng, scale=0.7):
    """Draw all parameters and state: 1 and 0 would hide a lost factor."""
    weights = layer.get_weights()
    for path, a in weights.items():
        a[...] = rng.uniform(0.5, 2, a.shape) if "var" in path else rng.standard_normal(a.shape)
        a *= 1 if "var" in path else scale
    layer.set_weights(weights)
    return layer
