"""The evidence for a diagnosis: a recorded step, and experiments, all on copies of the model.

The callback `Diagnose` collects other evidence in the course of a training.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from phitodeep import loss as losses
from phitodeep.core.call import Call, watching, within
from phitodeep.core.checks import as_real, check_count
from phitodeep.core.types import Array, cut, each, numbered, on_each
from phitodeep.errors import PhitodeepWarning, ShapeError
from phitodeep.inspect.diagnosis.findings import LIMITS, NotChecked
from phitodeep.inspect.recording import Passes, Recorder, Recording, record
from phitodeep.layers.base import Layer
from phitodeep.loss.heads import Heads
from phitodeep.training.inputs import Data
from phitodeep.training.objective import Trainable
from phitodeep.training.progress import display

SAMPLES = 512  # of X that are looked at
FEW = 20  # samples to overfit
LEARNT = LIMITS["cannot overfit"].value  # the share of a guess's loss that may be left
CHUNK = 25  # steps between two looks at the loss
PAIR = 8  # samples, to see whether they mix
WINDOW = 100  # gradient norms whose median is taken
STEPS = 20  # with a gradient norm, to compare the next one with

_CLASSES = losses.CategoricalCrossEntropy, losses.SoftmaxCrossEntropy, losses.NegativeLogLikelihood
_BINARY = losses.BinaryCrossEntropy, losses.BinaryCrossEntropyWithLogits
GUESSES: dict[type[losses.Loss], Callable[[Data], float]] = {  # of a guess: no input is used
    **dict.fromkeys(_CLASSES, lambda data: math.log(data.outputs[-1])),
    **dict.fromkeys(_BINARY, lambda data: math.log(2)),
    losses.MeanSquaredError: lambda data: float(data.T.var(axis=0, dtype=np.float64).mean()),
}


class Overfitted(NamedTuple):
    """A copy of the model that was trained on a few samples only."""

    model: Trainable
    X: Array
    lengths: Any
    steps: int
    left: float  # the loss after the last step
    guess: float  # the loss of a guess


class Evidence:
    """What the symptoms look at. `model` is a copy; every experiment makes a copy of its own.

    At most 512 samples are used, evenly spaced over X.
    """

    def __init__(
        self,
        model: Trainable,
        X: Any,
        y: Any,
        *,
        overfit: int = 500,
        verbose: int | bool = 0,
        **options: Any,
    ) -> None:
        self.overfit = check_count(overfit, "overfit", minimum=0)
        self.verbose = verbose
        X, y = model._in_order(X, y)
        X, y = on_each(lambda A: as_real(A, "X"), X), on_each(lambda A: as_real(A, "y"), y)
        given = {name: as_real(A, name) for name, A in options.items() if A is not None}
        every = [A for A in (*each(X), *each(y), *given.values()) if A is not None]
        n = len(every[0]) if every[0].ndim else 0
        if not n or any(not A.ndim or len(A) != n for A in every):
            more = "".join(f", and {name} for each of them" for name in given)
            raise ShapeError(
                f"diagnose needs as many samples in X as in y, and at least one{more}, got arrays "
                f"of the shapes {', '.join(str(A.shape) for A in every)}."
            )
        self.model = model.copy()
        self.model.callbacks, self.model.metrics, self.model.batch_size = [], [], None
        self.fresh = model.optimizer.t == 0  # no step was taken yet
        rows = _spread(n, SAMPLES)
        self.X, self.y, self.n = cut(X, rows), cut(y, rows), min(n, SAMPLES)
        self.options = {name: A[rows] for name, A in given.items()}
        self.lengths = self.options.get("lengths")
        with np.errstate(all="ignore"):
            self.step = record(self.model, self.X, self.y, **self.options)
        self.finite = all(np.isfinite(array).all() for *_, array, _ in self.arrays())

    # --- the recorded step -----------------------------------------------------------------

    def arrays(self) -> Iterator[tuple[str, str, Array, Array | None]]:
        """Yield (path, name, array, its input) in the order in which a step computes them."""
        step = self.step
        leaves = [(path, p) for path, p in step.passes.items() if not p.layer.children()]
        for path, layer in step.model.walk():
            for name, W in {**layer.params, **layer.state}.items():
                yield path, name, W, None
        for path, p in leaves:
            yield from ((path, name, Y, each(p.X)[0]) for name, Y in numbered("Y", p.Y).items())
        P = each(step.P)[0]
        yield "", "the loss", np.array(step.value), P
        yield from (("", name, dP, P) for name, dP in numbered("dP", step.dP).items())
        for path, p in reversed(leaves):
            grads = {f"d{name}": dW for name, dW in p.grads.items()} | numbered("dX", p.dX)
            yield from ((path, n, d, each(p.dY)[0]) for n, d in grads.items() if d is not None)

    @property
    def sound(self) -> Recording:
        """The recorded step, if all its values are finite."""
        if not self.finite:
            raise NotChecked("some values are not finite")
        return self.step

    @property
    def leaves(self) -> list[tuple[str, Passes]]:
        """The passes of all layers without child layers, in the order of the forward pass.

        Layers with several inputs or outputs, which merge values, are left out.
        """
        return [
            (path, p)
            for path, p in self.sound.passes.items()
            if not p.layer.children() and (p.layer.inputs, p.layer.outputs) == (1, 1)
        ]

    @property
    def heads(self) -> list[tuple[losses.Loss, float, Data]]:
        """Each loss of the model, its factor, and the part of the data that it compares."""
        loss, data = self.sound.loss, self.sound.data
        if not isinstance(loss, Heads):
            return [(loss, 1.0, data)]
        return [
            (part, loss.factor(name), data._replace(T=data.T[k], outputs=data.outputs[k]))
            for k, name, part in loss.trained(data.T)
        ]

    @property
    def matrices(self) -> list[tuple[str, str, Passes]]:
        """(path, name, passes) of all weight matrices that learn, in the order of the passes."""
        return [
            (path, name, p)
            for path, p in self.leaves
            for name in decaying(p.layer)
            if p.layer.trainable and name in p.grads
        ]

    def guess(self, rows: Any = slice(None)) -> float:
        """Return the loss of a guess for these samples, such as ln C for C classes."""
        if not np.any(self.step.total):
            raise NotChecked("nothing counts in the loss: all weights are 0, or labels ignored")
        value = 0.0
        for loss, factor, data in self.heads:
            if type(loss) not in GUESSES:
                name = type(loss).__name__
                raise NotChecked(f"the loss of a guess is not known for {name}")
            value += factor * GUESSES[type(loss)](data._replace(T=data.T[rows]))
        if not value:
            raise NotChecked("all targets are the same")
        return value

    # --- experiments -----------------------------------------------------------------------

    def copied(self) -> Trainable:
        """Return a copy of the model, if all values of the recorded step are finite."""
        if not self.finite:
            raise NotChecked("some values are not finite")
        return self.model.copy()

    @cached_property
    def stepped(self) -> Trainable:
        """A copy of the model that took one step on all samples."""
        return _trained(self.copied(), self.X, self.y, 1, **self.options)

    @cached_property
    def overfitted(self) -> Overfitted:
        """A copy of the model that was trained on 20 samples, until it has learnt them."""
        if not self.overfit:
            raise NotChecked("overfit=0")
        rows = _spread(self.n, FEW)
        for loss, _, data in self.heads:
            soft = data.T.dtype.kind == "f" and not np.isin(data.T, (0, 1)).all()
            if loss.classes(data.outputs) is not None and (
                soft or getattr(loss, "label_smoothing", False)
            ):
                raise NotChecked("the loss of these targets cannot reach 0")
        X, y, guess = cut(self.X, rows), cut(self.y, rows), self.guess(rows)
        lengths = None if self.lengths is None else self.lengths[rows]
        twin, show = self.copied(), display(self.verbose)
        twin.optimizer.reset()
        learnt = LEARNT / 2 * guess
        done, left = 0, twin.evaluate(X, y, lengths=lengths)["loss"]
        show.begin(1, 1, self.overfit)
        try:
            while done < self.overfit and not left <= learnt:
                steps, end = min(CHUNK, self.overfit - done), twin.epoch + CHUNK
                _trained(twin, X, y, steps, lengths=lengths)
                done, left = done + steps, twin.evaluate(X, y, lengths=lengths)["loss"]
                if twin.epoch < end:  # it diverged, or has come to the end
                    break
                if show.due():
                    show.batch(done, done * len(rows), {"train_loss": left})
        finally:
            show.end()
        return Overfitted(twin, X, lengths, done, left, guess)

    def leaks(self, pick: Callable[[Array], Array]) -> dict[str, tuple[float, float]]:
        """Return the share of |dY| and |dX| of each layer that `pick` leaves, by path.

        `pick` splits the gradient of a few predictions: the loss is a random sum of what it does
        not pick. Batch statistics and dropout are off, because they mix samples on purpose.
        """
        data = self.sound.data.part(slice(PAIR))
        twin, recorder = self.copied(), Recorder()
        call = Call(training=False, caching=True, mask=data.mask)
        with within(call), watching(recorder, root=twin, recomputed=True):
            rng, dPs = np.random.default_rng(0), []
            for P in each(twin.forward(*each(data.X))):
                dPs.append(rng.standard_normal(P.shape).astype(P.dtype))
                pick(dPs[-1])[...] = 0
            twin.backward(*dPs)
        return {
            path: (_share(pick, p.dY), _share(pick, p.dX))
            for path, p in recorder.passes.items()
            if p.dY is not None
        }


def decaying(layer: Layer) -> list[str]:
    """Return the names of the layer's weight matrices, as weight decay distinguishes them."""
    return [name for name, param in layer._declared.items() if param.decay and name in layer.params]


def size(array: Any) -> float:
    """Return the length |A| of an array as a vector."""
    return float(np.linalg.norm(np.asarray(array, np.float64)))


def _share(pick: Callable[[Array], Array], A: Any) -> float:
    """Return the part of |A| in what `pick` picks; nan without an array, 0 if all of it is 0."""
    arrays = [a for a in each(A) if a is not None]
    if not arrays:
        return math.nan
    whole = size([size(a) for a in arrays])
    return size([size(pick(a)) for a in arrays]) / whole if whole else 0.0


def _spread(n: int, count: int) -> Array:
    """Return `count` indices below n, evenly spaced, or all of them."""
    return np.linspace(0, n - 1, min(n, count)).astype(int)


def _trained(twin: Trainable, X: Any, y: Any, steps: int, **options: Any) -> Trainable:
    """Train this copy on all samples at once; that it may diverge is no news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhitodeepWarning)
        twin.train(X, y, epochs=steps, shuffle=False, verbose=0, **options)
    return twin


@dataclass
class Course:
    """What the callback `Diagnose` has seen of a training so far, as plain values.

    steps, clipped    optimizer steps, and those whose gradient was longer than clip_norm
    norms             the lengths of the last gradients
    spike, at         the largest length / the median of those before it, and its step
    ratios            the largest |dW step| / |W| of each weight matrix
    train, test       the losses of each epoch that was tested
    clips             whether the optimizer clips the gradient by its length
    """

    steps: int = 0
    clipped: int = 0
    norms: list[float] = field(default_factory=list)
    spike: float = 0.0
    at: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    train: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    clips: bool = False

    def add_norm(self, step: int, norm: float, clip_norm: float | None) -> None:
        self.steps += 1
        self.clips = clip_norm is not None
        self.clipped += clip_norm is not None and norm > clip_norm
        if len(self.norms) >= STEPS:
            factor = norm / max(statistics.median(self.norms), 1e-30)
            if factor > self.spike:
                self.spike, self.at = factor, step
        self.norms = [*self.norms[1 - WINDOW :], norm]
