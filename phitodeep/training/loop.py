"""The training loop: what `Sequential.train` runs."""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from phitodeep.checks import check_count, check_number
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    DivergenceError,
    warn,
)
from phitodeep.layers.call import Call, calling, current, within
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss
from phitodeep.metrics import MetricLike
from phitodeep.training.callbacks import Callback, StopTraining
from phitodeep.training.history import History
from phitodeep.training.inputs import Data
from phitodeep.training.objective import Objective, Sums
from phitodeep.training.progress import display
from phitodeep.training.sources import Memory, Source, as_source
from phitodeep.training.threads import Team, one_blas_thread
from phitodeep.types import Array

SHUFFLE = 1 << 31  # sets the shuffles' random streams apart from those of layers


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
    lengths: Any = None,
    lengths_test: Any = None,
    columns: Sequence[str] | None = None,
    threads: int = 1,
    accumulate: int = 1,
    shuffle: bool = True,
    verbose: int | bool = 1,
) -> History:
    """Train `model`: see `Sequential.train`."""
    epochs = check_count(epochs, "epochs", least=0)
    objective = Objective(model, model.loss, metrics)
    for metric in objective.metrics:
        if not metric.scalar:
            raise ArgumentError(
                f"{metric!r} is no single number for a history: give it to evaluate instead, as "
                f"in model.evaluate(X, y, metrics=[{metric.name!r}])."
            )
    size = None if batch_size is None else check_count(batch_size, "batch_size")
    source = partial(as_source, model, model.loss, batch_size=size, columns=columns)
    data = source(X, y, sample_weight=sample_weight, class_weight=class_weight, lengths=lengths)
    if shuffle not in (True, False):
        raise ArgumentTypeError(f"shuffle must be True or False, got {shuffle!r}.")
    share = check_number(validation_split, "validation_split", least=0, below=1)
    test = None
    if X_test is not None:
        if share:
            raise ArgumentError("give either X_test and y_test or validation_split, not both.")
        test = source(X_test, y_test, lengths=lengths_test, names=("X_test", "y_test"))
    elif y_test is not None or lengths_test is not None:
        given = "y_test" if y_test is not None else "lengths_test"
        raise ArgumentTypeError(f"{given} came without X_test.")
    elif share:
        data, test = _held_out(data, share)
    if epochs > 1 and (data.once or (test is not None and test.once)):
        raise ArgumentError(
            f"an iterator gives its batches once, not for {epochs} epochs: give a function that "
            "makes one, or epochs=1."
        )
    run = _Run(
        model,
        objective,
        data,
        test,
        size=size,
        accumulate=check_count(accumulate, "accumulate"),
        shuffle=shuffle,
        callbacks=callbacks,
        verbose=verbose,
    )
    threads = check_count(threads, "threads")
    if model.input_shape is None:
        model.build(data.sample)
    if threads == 1:
        run.train(epochs)
    else:
        with one_blas_thread(), Team(objective.body, objective.loss, threads) as run.team:
            run.train(epochs)
    return run.history


def _held_out(data: Source, share: float) -> tuple[Source, Source]:
    """The data without its last part, and that part."""
    n = data.count
    kept = 0 if n is None else n - round(n * share)
    if n is not None and not 0 < kept < n:
        raise ArgumentError(f"validation_split {share} of {n} samples leaves a part empty.")
    return data.split(kept)


class _Run:
    """One call of `train`: the loop over epochs and batches, and what it reports."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        data: Source,
        test: Source | None,
        *,
        size: int | None,
        accumulate: int,
        shuffle: bool,
        callbacks: Sequence[Callback],
        verbose: int | bool,
    ) -> None:
        self.model, self.objective, self.data, self.test = model, objective, data, test
        self.size, self.accumulate, self.shuffle = size, accumulate, shuffle
        self.callbacks, self.display = callbacks, display(verbose)
        self.history, self.memory = History(), Memory()
        self.team: Team | None = None

    def train(self, epochs: int) -> None:
        """The whole training; it ends early where a callback, Ctrl-C or divergence asks."""
        self.model.optimizer.drop_held()
        self.model.optimizer._pack(self.model.layers).receive()
        first = self.model.epoch + 1
        self.display.begin(first, epochs, self.steps())
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
            self.model.optimizer.drop_held()  # of a step that was not taken
            for _, layer in self.model.walk():
                layer._frame.buffers.clear()
            with suppress(StopTraining):
                self.tell("on_train_end")

    def steps(self) -> int | None:
        """The optimizer steps of an epoch, once that is known."""
        batches = self.data.steps(self.size)
        return None if batches is None else -(-batches // self.accumulate)

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
        if self.callbacks:
            self.objective.check(self.model)

    def epoch(self, epoch: int) -> None:
        """All samples once, then the test data; raises StopTraining when this was the last."""
        began = time.perf_counter()
        self.tell("on_epoch_begin", epoch)
        self.loss, self.seen, self.sums = 0.0, 0, Sums()
        stop: StopTraining | None = None
        try:
            self.batches(epoch)
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
                size = max(self.size or 0, self.model.samples_at_once())
                scores = self.objective.evaluate(self.test.batches(size))
            logs |= {f"test_{name}": value for name, value in scores.items()}
        seconds = time.perf_counter() - began
        self.model.epoch = epoch
        self.history.record(logs, seconds, self.model.optimizer.last_rate)
        self.display.counted(self.steps())
        self.display.epoch(epoch, logs, speed, seconds)
        if stop is None:
            self.model.optimizer.observe(logs.get("test_loss", logs["train_loss"]))
        try:
            self.tell("on_epoch_end", epoch, logs)
        except StopTraining as reason:
            stop = reason
        if stop is None and self.pressed:
            stop = self.interrupt()
        if stop is not None:
            raise stop

    def rng(self, epoch: int) -> np.random.Generator | None:
        """What shuffles an epoch: a function of the model's seed and the epoch's number."""
        if not self.shuffle:
            return None
        root = self.model._seed_sequence
        key = (*root.spawn_key, SHUFFLE, epoch)
        return np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=key))

    def batches(self, epoch: int) -> None:
        """One optimizer step after another."""
        memory = self.memory if self.accumulate == 1 else None
        batches = self.data.batches(self.size, self.rng(epoch), memory)
        model, done = self.model, 0
        while group := list(itertools.islice(batches, self.accumulate)):
            done, self.samples = done + 1, 0
            try:
                loss = model.optimizer.run(model.layers, partial(self.loss_of, group))
            except DivergenceError as error:
                self.diverged(error)
            self.loss += loss * self.samples
            self.seen += self.samples
            if self.callbacks:
                self.tell("on_batch_end", model.optimizer.t, loss)
            if self.display.due():
                self.display.batch(done, self.seen, self.logs())
            if self.pressed:
                raise self.interrupt()

    def interrupt(self) -> StopTraining:
        """Ctrl-C was pressed: what to raise."""
        self.history.interrupted = True
        return StopTraining("interrupted: training ended after the running batch")

    def loss_of(self, group: Sequence[Data]) -> float:
        """Forward, loss and backward, which a step may want several times; the first one counts."""
        optimizer, objective, total = self.model.optimizer, self.objective, None
        if len(group) > 1 or self.team is not None:
            total = sum(objective.divisor(batch) for batch in group)
        new, loss, first = not self.samples, 0.0, 0
        for i, batch in enumerate(group, 1):
            call = Call(
                needs_dX=False,
                reuse=True,
                step=optimizer.t,
                first=first,
                mask=batch.mask,
                watch=objective.watch,
            )
            with within(call):
                parts = self.passes(batch, total)
            for _, value in parts:
                loss += value
            if new and objective.metrics:  # a user's functions: not within the pass, on all samples
                P = parts[0][0] if len(parts) == 1 else np.concatenate([P for P, _ in parts])
                objective.add_metrics(self.sums, P, batch)
            if not math.isfinite(loss):
                return loss  # which the optimizer refuses
            first += len(batch.X)
            if i < len(group):
                optimizer.accumulate(self.model.layers)
        self.samples = first
        return loss

    def passes(self, batch: Data, total: float | None) -> Sequence[tuple[Array, float]]:
        """For each part of a batch, the body's output and its share of the loss."""
        if self.team is None:
            objective = self.objective
            return (forward_backward(objective.body, objective.loss, batch, total),)
        first = current().first

        def in_a_thread(body: Chain, loss: Loss, part: Data, at: int) -> tuple[Array, float]:
            with calling(first=first + at, mask=part.mask):
                return forward_backward(body, loss, part, total)

        return self.team.work(batch, in_a_thread)

    def diverged(self, error: DivergenceError) -> NoReturn:
        """End the training before a step that would spoil the parameters."""
        warn(f"training stopped: {error}")
        raise StopTraining(f"stopped: {str(error).partition(':')[0]}") from error

    def logs(self) -> dict[str, float]:
        """The means over the samples of this epoch so far."""
        scores = {"loss": self.loss / self.seen, **self.objective.results(self.sums)}
        return {f"train_{name}": value for name, value in scores.items()}


def forward_backward(
    body: Chain, loss: Loss, part: Data, total: float | None
) -> tuple[Array, float]:
    """The body's output and its loss; runs backward if the loss is finite."""
    P = body.forward(part.X)
    measure = loss.value_and_gradient if current().watch is None else loss._watched
    value, dP = measure(P, part.T, part.w, total)
    if math.isfinite(value):
        body.backward(dP)
    return P, value


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Within the body, Ctrl-C adds to this list; pressed again, it interrupts at once."""
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()  # signals go there
    if not in_main_thread or before is None or before is signal.SIG_IGN:
        yield pressed  # an ignored signal stays so, and a handler that is not Python's stays
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
