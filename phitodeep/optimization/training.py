"""The training loop, and evaluation: what `Sequential.train` and `evaluate` run."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from phitodeep.checks import (
    as_float,
    as_real,
    as_tokens,
    check_count,
    check_finite,
    check_number,
)
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    PhitodeepWarning,
    ShapeError,
)
from phitodeep.fusion import fused
from phitodeep.layers.base import Buffered, Frame, calling, inference
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss
from phitodeep.metrics import MetricLike, as_metrics
from phitodeep.optimization.callbacks import Callback, StopTraining
from phitodeep.optimization.progress import display
from phitodeep.optimization.schedules import Observer
from phitodeep.types import Array, Shape

Sums = dict[str, Array]  # of metrics, by name
SHUFFLE = 1 << 31  # sets the shuffles' random streams apart from those of layers


class History(list[tuple[float, float]]):
    """One (train_loss, test_loss) pair an epoch, and what else was seen.

    metrics        lists by name, such as metrics["test_accuracy"], one value an epoch
    seconds        of each epoch, evaluation included
    rates          the learning rate of each epoch's last step
    interrupted    whether Ctrl-C ended the training
    """

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, list[float]] = {}
        self.seconds: list[float] = []
        self.rates: list[float] = []
        self.interrupted = False

    def record(self, logs: Mapping[str, float], seconds: float, rate: float) -> None:
        """Append an epoch."""
        self.append((logs["train_loss"], logs.get("test_loss", math.nan)))
        for name, value in logs.items():
            if name not in ("train_loss", "test_loss"):
                self.metrics.setdefault(name, []).append(value)
        self.seconds.append(seconds)
        self.rates.append(rate)

    def plot(self, path: str | None = None) -> Any:
        """The losses, and each metric, against epochs: a matplotlib figure, saved to `path`."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError.of("matplotlib", "plot", "History.plot") from None
        names = list(dict.fromkeys(n.split("_", 1)[1] for n in self.metrics))
        figure = Figure(figsize=(5 * (1 + len(names)), 3.5), layout="constrained")
        panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
        epochs = range(1, len(self) + 1)
        curves = {"train_loss": [a for a, _ in self], "test_loss": [b for _, b in self]}
        for panel, name in zip(panels, ["loss", *names], strict=True):
            for part in ("train", "test"):
                values = {**curves, **self.metrics}.get(f"{part}_{name}", [math.nan])
                if not all(map(math.isnan, values)):
                    panel.plot(epochs[: len(values)], values, label=part)
            panel.set(xlabel="epoch", ylabel=name)
            if panel.lines:
                panel.legend()
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure


class Data(NamedTuple):
    """Samples that were checked and cast: inputs, the loss's targets, weights or none."""

    X: Array
    T: Array
    w: Array | None
    outputs: Shape  # (N, ...): the shape of all predictions

    def part(self, which: slice) -> Data:
        """Some of the samples, as views."""
        X, T = self.X[which], self.T[which]
        w = None if self.w is None else self.w[which]
        return Data(X, T, w, (len(X), *self.outputs[1:]))

    def take(self, rows: Array, into: Buffered) -> Data:
        """The samples at `rows`, in memory that the next batch writes again."""

        def pick(name: str, A: Array) -> Array:
            out = into.buffer(name, (len(rows), *A.shape[1:]), A.dtype)
            return np.take(A, rows, axis=0, out=out, mode="clip")  # rows are in range

        w = None if self.w is None else pick("w", self.w)
        outputs = (len(rows), *self.outputs[1:])
        return Data(pick("X", self.X), pick("T", self.T), w, outputs)


class _Batches(Buffered):
    """Memory of the current batch."""

    def __init__(self) -> None:
        self.frame = Frame()


class Objective:
    """What training makes small: the loss of a model, by the short way where there is one."""

    def __init__(self, model: Chain, loss: Loss, metrics: Sequence[MetricLike]) -> None:
        last = model.last
        short = fused(last, loss)
        self.body = model if short is None else model.without_last()
        self.last = None if short is None else last
        self.loss = loss if short is None else short
        self.metrics = as_metrics(metrics, loss.threshold, loss.labels is not None)
        self.ignored: int | None = getattr(loss, "ignore_index", None)

    def predictions(self, P: Array) -> Array:
        """The model's output, from that of the body."""
        if self.last is None:
            return P
        with inference():
            return self.last.forward(P)

    def evaluate(self, data: Data, batch_size: int) -> dict[str, float]:
        """Loss and metrics of all the data, in batches that do not show in the result."""
        total = self.loss.divisor(data.T, data.w, data.outputs)
        value, sums = 0.0, Sums()
        with inference():
            for start in range(0, len(data.X), batch_size):
                part = slice(start, start + batch_size)
                T, w = data.T[part], None if data.w is None else data.w[part]
                P = self.body.forward(data.X[part])
                value += self.loss.value(P, T, w, total)
                self.add_metrics(sums, P, T)
        return {"loss": value, **self.results(sums)}

    def add_metrics(self, sums: Sums, P: Array, T: Array) -> None:
        """Add one batch, whose body gave P, to the metrics' sums."""
        if self.metrics:
            Y = self.predictions(P)
            if self.ignored is not None and T.dtype.kind == "i":
                T = np.where(self.ignored == T, -1, T)  # which metrics leave out
            for metric in self.metrics:
                new, old = metric.sums(Y, T), sums.get(metric.name)
                sums[metric.name] = new if old is None else metric.merge(old, new)

    def results(self, sums: Sums) -> dict[str, float]:
        """The metrics' values from their sums."""
        return {m.name: m.result(sums[m.name]) for m in self.metrics}


def admit(
    model: Chain,
    loss: Loss,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    class_weight: Any = None,
    *,
    names: tuple[str, str] = ("X", "y"),
) -> Data:
    """Check samples and targets against the model and its loss, and cast them once."""
    X = admit_inputs(model, X, names[0])
    if y is None:
        raise ArgumentTypeError(f"{names[0]} came without {names[1]}.")
    y = as_real(y, names[1])
    if y.ndim == 0 or len(y) != len(X):
        count = "a single number" if y.ndim == 0 else f"{len(y)} samples"
        raise ShapeError(f"{names[0]} has {len(X)} samples, {names[1]} has {count}.")
    shape = model.output_shape if X.shape[1:] == model.input_shape else None
    shape = model.measured(X.shape[1:]).output_shape if shape is None else shape
    outputs = (len(X), *(shape or ()))
    T = loss.targets(y, outputs, names[1])
    if T.dtype.kind == "f":
        T = as_float(T, model.dtype, names[1])
        check_finite(T, names[1])
    w = loss.weights(sample_weight, T, outputs)
    if class_weight is not None:
        by_class = _class_weights(class_weight, T, outputs, loss)
        w = by_class if w is None else w * by_class
    return Data(X, T, None if w is None else w.astype(model.dtype, copy=False), outputs)


def admit_inputs(model: Chain, X: Any, name: str = "X") -> Array:
    """Samples as a checked array of the model's dtype."""
    X = as_tokens(X, name) if model.takes_tokens else as_real(X, name)
    if X.ndim == 0 or X.size == 0:
        raise ShapeError(f"{name} needs at least one sample, got shape {X.shape}.")
    if X.shape[1:] != model.input_shape:
        model.measured(X.shape[1:])  # raises where the layers do not take such samples
    if not model.takes_tokens:
        X = as_float(X, model.dtype, name)
        check_finite(X, name)
    return X


def _class_weights(class_weight: Any, T: Array, outputs: Shape, loss: Loss) -> Array:
    """The weight of each target's class, of the shape of the loss's positions.

    Classes that a mapping lacks weigh 1; a sequence has a weight for each class in order.
    """
    classes = loss.classes(outputs)
    if classes is None:
        raise ArgumentError(f"class_weight needs a loss of classes, not {loss!r}.")
    if not isinstance(class_weight, Mapping):
        given = as_real(class_weight, "class_weight")
        if given.shape != (len(classes),):
            raise ArgumentError(
                f"class_weight needs a number for each of {len(classes)} classes, "
                f"got shape {given.shape}."
            )
        class_weight = dict(zip(classes, given.tolist(), strict=True))
    w = np.ones(loss.positions(outputs))
    labels = T if T.shape == w.shape else T.argmax(axis=-1)
    for label, weight in class_weight.items():
        if label not in classes:
            raise ArgumentError(f"class_weight names {label!r}, the classes are {classes}.")
        w[labels == label] = check_number(weight, f"class_weight of {label}", least=0)
    return w


def fit(
    model: Any,
    X: Any,
    y: Any,
    X_test: Any = None,
    y_test: Any = None,
    *,
    epochs: int,
    batch_size: int | None,
    metrics: Sequence[MetricLike] = (),
    callbacks: Sequence[Callback] = (),
    validation_split: float = 0.0,
    sample_weight: Any = None,
    class_weight: Any = None,
    accumulate: int = 1,
    shuffle: bool = True,
    verbose: int | bool = 1,
) -> History:
    """Train `model`: see `Sequential.train`."""
    epochs = check_count(epochs, "epochs", least=0)
    objective = Objective(model, model.loss, metrics)
    data = admit(model, model.loss, X, y, sample_weight, class_weight)
    data, test = _held_out(model, model.loss, data, X_test, y_test, validation_split)
    if batch_size is not None:
        batch_size = check_count(batch_size, "batch_size")
    run = _Run(
        model,
        objective,
        data,
        test,
        size=min(batch_size or len(data.X), len(data.X)),
        accumulate=check_count(accumulate, "accumulate"),
        shuffle=shuffle,
        callbacks=callbacks,
        verbose=verbose,
    )
    run.train(epochs)
    return run.history


def _held_out(
    model: Chain, loss: Loss, data: Data, X_test: Any, y_test: Any, validation_split: float
) -> tuple[Data, Data | None]:
    """The training data, and the test data: what was given, or the last part of the samples."""
    if (X_test is None) != (y_test is None):
        given, missing = ("X_test", "y_test") if y_test is None else ("y_test", "X_test")
        raise ArgumentTypeError(f"{given} came without {missing}.")
    share = check_number(validation_split, "validation_split", least=0, below=1)
    if X_test is not None:
        if share:
            raise ArgumentError("give either X_test and y_test or validation_split, not both.")
        return data, admit(model, loss, X_test, y_test, names=("X_test", "y_test"))
    if not share:
        return data, None
    n = len(data.X)
    kept = n - round(n * share)
    if not 0 < kept < n:
        raise ArgumentError(f"validation_split {share} of {n} samples leaves a part empty.")
    return data.part(slice(kept)), data.part(slice(kept, n))


class _Run:
    """One call of `train`: the loop over epochs and batches, and what it reports."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        data: Data,
        test: Data | None,
        *,
        size: int,
        accumulate: int,
        shuffle: bool,
        callbacks: Sequence[Callback],
        verbose: int | bool,
    ) -> None:
        self.model, self.objective, self.data, self.test = model, objective, data, test
        self.size, self.accumulate, self.shuffle = size, accumulate, shuffle
        self.callbacks, self.display = callbacks, display(verbose)
        self.history, self.memory = History(), _Batches()

    def train(self, epochs: int) -> None:
        """The whole training; it ends early where a callback, Ctrl-C or divergence asks."""
        if self.model.input_shape is None:
            self.model.build(self.data.X.shape[1:])
        self.model.optimizer.drop_held()
        self.model.optimizer.pack(self.model.layers).receive()
        n, first = len(self.data.X), self.model.epoch + 1
        self.display.begin(first, epochs, -(-n // (self.size * self.accumulate)))
        note = ""
        try:
            self.tell("on_train_begin")
            with _ctrl_c() as self.pressed, np.errstate(over="ignore", invalid="ignore"):
                for epoch in range(first, first + epochs):
                    self.epoch(epoch)
        except StopTraining as reason:
            note = str(reason)
        finally:
            self.display.end(note)
            for _, layer in self.model.walk():
                layer.frame.buffers.clear()
            with suppress(StopTraining):
                self.tell("on_train_end")

    def tell(self, moment: str, *news: Any) -> None:
        """Call this method of every callback; a wish to stop waits until all have heard."""
        stop: StopTraining | None = None
        for callback in self.callbacks:
            try:
                getattr(callback, moment)(self.model, *news)
            except StopTraining as reason:
                stop = reason
        if stop is not None:
            raise stop

    def epoch(self, epoch: int) -> None:
        """All samples once, then the test data; raises StopTraining when this was the last."""
        began = time.perf_counter()
        self.tell("on_epoch_begin", epoch)
        self.loss, self.seen, self.sums = 0.0, 0, Sums()
        stop: StopTraining | None = None
        try:
            self.batches(self.order(epoch))
        except StopTraining as reason:
            stop = reason
            if not self.seen:
                raise
        speed = self.seen / max(time.perf_counter() - began, 1e-9)
        logs = self.logs()
        if self.test is not None:
            names = ["loss", *(m.name for m in self.objective.metrics)]
            scores = dict.fromkeys(names, math.nan)  # of an epoch that was cut short
            if stop is None:
                scores = self.objective.evaluate(self.test, max(self.size, 1024))
            logs |= {f"test_{name}": value for name, value in scores.items()}
        seconds = time.perf_counter() - began
        self.model.epoch = epoch
        self.history.record(logs, seconds, self.model.optimizer.last_rate)
        self.display.epoch(epoch, logs, speed, seconds)
        if isinstance(self.model.optimizer.alpha, Observer) and stop is None:
            self.model.optimizer.alpha.observe(logs.get("test_loss", logs["train_loss"]))
        try:
            self.tell("on_epoch_end", epoch, logs)
        except StopTraining as reason:
            stop = reason
        if stop is None and self.pressed:
            stop = self.interrupt()
        if stop is not None:
            raise stop

    def order(self, epoch: int) -> Array:
        """The order of the samples: a permutation of the model's seed and the epoch's number."""
        n = len(self.data.X)
        if not self.shuffle:
            return np.arange(n)
        root = self.model.seed_sequence
        key = (*root.spawn_key, SHUFFLE, epoch)
        return np.random.default_rng(
            np.random.SeedSequence(root.entropy, spawn_key=key)
        ).permutation(n)

    def batches(self, order: Array) -> None:
        """One optimizer step after another."""
        group = self.size * self.accumulate
        for done, start in enumerate(range(0, len(order), group), 1):
            rows = order[start : start + group]
            loss = self.step(rows)
            self.loss += loss * len(rows)
            self.seen += len(rows)
            if self.callbacks:
                self.tell("on_batch_end", self.model.optimizer.t, loss)
            if self.display.due():
                self.display.batch(done, self.seen, self.logs())
            if self.pressed:
                raise self.interrupt()

    def interrupt(self) -> StopTraining:
        """Ctrl-C was pressed: what to raise."""
        self.history.interrupted = True
        return StopTraining("interrupted: training ended after the running batch")

    def step(self, rows: Array) -> float:
        """Forward, loss, backward and update for the samples at `rows`; the loss."""
        model, objective, total = self.model, self.objective, None
        if self.accumulate > 1:
            T, w = self.data.T[rows], None if self.data.w is None else self.data.w[rows]
            total = objective.loss.divisor(T, w, (len(rows), *self.data.outputs[1:]))
        loss = 0.0
        for first in range(0, len(rows), self.size):
            with calling(
                training=True,
                caching=True,
                needs_dX=False,
                reuse=True,
                step=model.optimizer.t,
                first=first,
            ):
                batch = self.batch(rows[first : first + self.size])
                P = objective.body.forward(batch.X)
                objective.add_metrics(self.sums, P, batch.T)
                value, dP = objective.loss.value_and_gradient(P, batch.T, batch.w, total)
                if not math.isfinite(value):
                    self.diverged(value)
                objective.body.backward(dP)
            loss += value
            last = first + self.size >= len(rows)
            (model.optimizer.step if last else model.optimizer.accumulate)(model.layers)
        return loss

    def batch(self, rows: Array) -> Data:
        """The samples at `rows`; all of them need no gathering, since their order has no effect."""
        return self.data if len(rows) == len(self.data.X) else self.data.take(rows, self.memory)

    def diverged(self, value: float) -> None:
        """Stop before a step that would make all parameters NaN."""
        optimizer = self.model.optimizer
        warnings.warn(
            f"the loss became {value} at step {optimizer.t + 1}: training stopped before that "
            f"step. Try a rate below {optimizer.rate:g}, or clip_norm=1.",
            PhitodeepWarning,
            stacklevel=6,
        )
        raise StopTraining(f"stopped: the loss became {value}")

    def logs(self) -> dict[str, float]:
        """The means over the samples of this epoch so far."""
        scores = {"loss": self.loss / self.seen, **self.objective.results(self.sums)}
        return {f"train_{name}": value for name, value in scores.items()}


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Within the body, Ctrl-C adds to this list; pressed again, it interrupts at once."""
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield pressed  # signals reach the main thread only
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
