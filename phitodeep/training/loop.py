"""The training loop, from the top down.

    train        the threads of BLAS, then epochs, until a callback, Ctrl-C or divergence ends them
    epoch        every sample once, then the test data
    batches      one step after another, until the data run out
    step         the gradients of one batch or several, then the optimizer's step
    gradients    forward, loss and backward of each batch, whole or in parts: see `BatchSplitter`

`Sequential.train` checks its arguments and calls `Training.train`.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from phitodeep.core.call import Call, current, within
from phitodeep.core.types import Array, each, joined
from phitodeep.errors import AnomalyError, ArgumentError, DivergenceError, warn
from phitodeep.kernels import report_compilation
from phitodeep.layers.containers import Container
from phitodeep.loss import Loss
from phitodeep.optimization.divergence import bad_loss
from phitodeep.training.callback import Callback, StopTraining
from phitodeep.training.history import History
from phitodeep.training.inputs import Data
from phitodeep.training.objective import Objective, Trainable
from phitodeep.training.parts import BatchSplitter
from phitodeep.training.progress import display
from phitodeep.training.ranks import Muted, Work
from phitodeep.training.run import Sums, Totals, TrainingRun
from phitodeep.training.sources import Arrays, BatchBuffer, Epoch, Source

SHUFFLE = 1 << 31  # keeps the random streams of shuffles apart from those of layers


@dataclass(eq=False)
class Training:
    """One call of `Sequential.train`.

    run           the call's settings, and the place that training has reached
    size          samples per batch; None: all samples are one batch
    accumulate    batches per step
    threads       the number of threads that share a large batch
    locates       whether a number that is not finite raises an AnomalyError
    """

    model: Trainable
    objective: Objective
    data: Source
    test: Source | None
    run: TrainingRun
    _: KW_ONLY
    size: int | None
    accumulate: int
    threads: int
    shuffle: bool
    callbacks: Sequence[Callback]
    verbose: int | bool
    locates: bool = False

    def __post_init__(self) -> None:
        self.splitter = BatchSplitter(self.objective.body, self.objective.loss, self.threads)
        self.ranks = self.model._ranks
        self.display = display(self.verbose if self.ranks.rank == 0 else 0)
        self.memory = BatchBuffer()
        self.pressed: list[int] = []  # an entry for each Ctrl-C
        self.pauses = any(_overrides(callback, "on_pause") for callback in self.callbacks)

    def train(self) -> History:
        """Train to the last epoch; a callback, Ctrl-C or divergence may end training early."""
        with _ctrl_c(self.pressed), self.splitter.blas(self.data.batch_size(self.size)):
            self.epochs()
        return self.run.history

    def epochs(self) -> None:
        """Train one epoch after another, and tidy up."""
        model, run = self.model, self.run
        keep_freed_memory()
        model.optimizer.drop_held()  # gradients left by a hand-written loop
        model.optimizer._pack(model.layers).receive()  # backward writes into its vector g
        self.ranks.begin(self)
        self.display.begin(model.epoch + 1, max(run.last - model.epoch, 0), self.steps())
        if self.pauses:
            run.keep_settings()
        note = ""
        if 0 < int(run.settings["epochs"]) <= model.epoch - run.first + 1:
            note = f"epoch {run.last} is done: pass a larger epochs= to continue"
        try:
            self.notify("on_train_begin")
            if self.pauses:  # a Ctrl-C so far ends training after the first batch
                self.notify("on_pause", run)
            if run.stopped is not None:
                raise StopTraining(run.stopped)
            with np.errstate(over="ignore", invalid="ignore"):
                for epoch in range(model.epoch + 1, run.last + 1):
                    self.epoch(epoch)
        except StopTraining as reason:
            note = str(reason)
        except BaseException:
            self.ranks.failed()
            raise
        finally:
            self.display.end(note)
            model.optimizer.drop_held()  # gradients of an unfinished step
            for _, layer in model.walk():
                layer._frame.buffers.clear()
            with suppress(StopTraining):
                self.notify("on_train_end")
            self.ranks.end(self)

    def epoch(self, epoch: int) -> None:
        """Train on every sample once, then evaluate; raise StopTraining to end training."""
        run, stop = self.run, None
        if not run.step:  # an epoch that is continued began earlier
            run.began, run.totals = time.perf_counter(), Totals()
            self.notify("on_epoch_begin", epoch)
        began = run.began
        try:
            self.batches(epoch)
        except StopTraining as reason:
            stop = reason
        run.totals = totals = self.ranks.merged(run.totals, self.objective.metrics)
        if stop is not None and not totals.samples:
            raise stop
        self.ranks.settle(self, epoch)
        speed = totals.samples / max(time.perf_counter() - began, 1e-9)
        logs = self.logs(totals)
        if self.test is not None:
            names = ["loss", *(m.name for m in self.objective.metrics)]
            scores = dict.fromkeys(names, math.nan)  # if the epoch was cut short
            if stop is None:
                size = max(self.size or 0, self.model.samples_at_once())
                test = self.test.batches(Epoch(size, share=self.ranks.share))
                scores = self.objective.evaluate(test, self.splitter.threads, self.ranks)
            logs |= {f"test_{name}": value for name, value in scores.items()}
        seconds = time.perf_counter() - began
        self.model.epoch, run.step = epoch, 0
        run.history.record(logs, seconds, self.model.optimizer.last_rate)
        report_compilation()
        self.display.counted(self.steps())
        self.display.epoch(epoch, logs, speed, seconds)
        whole = stop is None
        if whole:
            self.model.optimizer.observe(logs.get("test_loss", logs["train_loss"]))
        try:
            self.notify("on_epoch_end", epoch, logs)
        except StopTraining as reason:
            stop = reason
        if whole:  # the state of an epoch that was cut short would not continue exactly
            run.stopped = None if stop is None else str(stop)
            self.pause()
        if stop is None and run.interrupted:
            stop = self.interrupted()
        if stop is not None:
            raise stop

    def batches(self, epoch: int) -> None:
        """Take one step after another, until the data run out."""
        optimizer, display, run = self.model.optimizer, self.display, self.run
        memory = self.memory if self.accumulate == 1 else None
        first = run.step * self.accumulate
        later = self.splitter.parts(self.data.batch_size(self.size)) > 1
        reading = Epoch(self.size, self.rng(epoch), memory, first, self.ranks.share, later)
        batches = self.data.batches(reading)
        count, divisor = self.accumulate, self.objective.divisor
        while work := self.ranks.meet(
            list(itertools.islice(batches, count)), count, divisor, run.step, bool(self.pressed)
        ):
            if not isinstance(self.data, Arrays):  # an iterable may have changed layers
                self.splitter.refresh()
            try:
                loss = self.step(work, run.totals)
            except DivergenceError as error:
                if self.locates:
                    raise self.anomaly(work, epoch, error) from error
                warn(f"training stopped: {error}")
                raise StopTraining(f"stopped: {str(error).partition(':')[0]}") from error
            totals = run.totals
            totals.loss += loss * work.samples
            totals.samples += sum([batch.n for batch in work.batches if batch.counts])
            run.step += 1
            if self.callbacks:
                self.notify("on_batch_end", optimizer.t, self.ranks.add(loss))
            self.pause(work.pressed)
            if display.due():
                display.batch(run.step, run.totals.samples, self.logs(run.totals))
            if run.interrupted:
                raise self.interrupted()

    def anomaly(self, work: Work, epoch: int, error: DivergenceError) -> DivergenceError:
        """Return an error that says where in this step the first number is not finite."""
        step = self.run.step
        numbers = range(step * self.accumulate, step * self.accumulate + len(work.batches))
        rows = [self.data.rows(self.size, self.rng(epoch), number) for number in numbers]
        own = [None if r is None else r[self.ranks.share.rows(0, len(r))[0]] for r in rows]
        found = self.model._find_anomaly(work, own, epoch, step + 1, error)
        stop_reason = self.ranks.agree(str(found) if isinstance(found, AnomalyError) else None)
        if stop_reason is not None and not isinstance(found, AnomalyError):
            error.message = f"another rank has found a number that is not finite: {stop_reason}"
        return found

    def step(self, work: Work, totals: Totals) -> float:
        """Take an optimizer step; return this rank's part of the loss before the step."""
        optimizer, layers = self.model.optimizer, self.model.layers
        batches, objective = work.batches, self.objective
        if work.total is None and (
            objective.losses or len(batches) > 1 or self.splitter.parts(batches[0].n) > 1
        ):
            work = work._replace(total=sum(objective.divisor(batch) for batch in batches))
        if optimizer.evaluates_often:
            return self.minimise(optimizer, work, totals)
        loss = self.gradients(work, totals.sums)
        if self.ranks.size == 1 and not math.isfinite(loss):
            raise bad_loss(loss, optimizer.t + 1, optimizer._remedy())
        try:
            optimizer.step(layers, **objective.untrained(work))
        except DivergenceError:
            whole = self.ranks.add(loss)  # on several ranks, it spoils the gradients of all
            if not math.isfinite(whole):
                raise bad_loss(whole, optimizer.t + 1, optimizer._remedy()) from None
            raise
        return loss

    def gradients(self, work: Work, sums: Sums | None) -> float:
        """Return the loss of these batches, and leave its gradients for the optimizer's step.

        The metrics are added to `sums`. If the loss is not finite, there are no gradients or, on
        several ranks, they are not finite either.
        """
        optimizer, objective, ranks = self.model.optimizer, self.objective, self.ranks
        batches, total = work.batches, work.total
        loss, ended, summing = 0.0, None, ranks.summing
        for i, batch in enumerate(batches):
            if i:  # hold the previous batch's gradients; the step adds them to the last batch's
                optimizer.accumulate(self.model.layers)
            if i == len(batches) - 1:
                ended = ranks.backward_begins(optimizer, self.model.layers)
            call = Call(
                needs_dX=False, needs_frozen=objective.watch is not None, reuse=True,
                step=optimizer.t, first=work.firsts[i], mask=batch.mask, watch=objective.watch,
                scratch=self.splitter.members[0].scratch,
                ranks=summing if batch.counts or summing is None else Muted(summing), ended=ended,
            )  # fmt: skip
            with within(call):
                parts = self.splitter.work(forward_backward, batch, total)
            for _, value in parts:
                loss += value
            if sums is not None:  # metrics on all parts together, outside the pass
                objective.add_losses(sums, [value for _, value in parts], work, batch)
                if objective.metrics:
                    P = parts[0][0] if len(parts) == 1 else joined([P for P, _ in parts])
                    objective.add_metrics(sums, P, batch)
            if ranks.size == 1 and not math.isfinite(loss):
                break
        return loss

    def minimise(self, optimizer: Any, work: Work, totals: Totals) -> float:
        """Let the rule evaluate loss and gradients several times; metrics use the first one."""
        sums, ranks = itertools.chain([totals.sums], itertools.repeat(None)), self.ranks
        loss: float = optimizer.run(
            self.model.layers,
            lambda: ranks.add(self.gradients(work, next(sums))),
            **self.objective.untrained(work),
        )
        return loss / ranks.size

    # --- around the steps ------------------------------------------------------------------

    def logs(self, totals: Totals) -> dict[str, float]:
        """Return the means over the samples so far."""
        scores = {"loss": totals.loss / totals.samples, **self.objective.results(totals.sums)}
        return {f"train_{name}": value for name, value in scores.items()}

    def pause(self, pressed: bool = False) -> None:
        """Give callbacks the moment between two steps; Ctrl-C may have been `pressed` before it.

        If it is pressed later, training goes on to the next pause, so that callbacks see it too.
        """
        self.run.interrupted = pressed or (self.ranks.size == 1 and bool(self.pressed))
        if self.pauses:
            self.notify("on_pause", self.run)

    def steps(self) -> int | None:
        """Return the number of steps per epoch, or None until it is known."""
        batches = self.data.steps(self.size)
        return None if batches is None else -(-batches // self.accumulate)

    def rng(self, epoch: int) -> np.random.Generator | None:
        """Return the generator that shuffles this epoch, which depends only on seed and epoch."""
        if not self.shuffle:
            return None
        root = self.model._seed_sequence
        key = (*root.spawn_key, SHUFFLE, epoch)
        return np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=key))

    def notify(self, method: str, *args: Any) -> None:
        """Call this method of every callback, then raise StopTraining if one of them did."""
        if not self.callbacks:
            return
        stop_reason: str | None = None
        for callback in self.callbacks:
            try:
                self.ranks.call(callback, method, self.model, *args)
            except StopTraining as stop:
                stop_reason = str(stop)
        stop_reason = self.ranks.agree(stop_reason)
        if stop_reason is not None:
            raise StopTraining(stop_reason)
        self.objective.check(self.model)
        self.splitter.refresh()

    def interrupted(self) -> StopTraining:
        """Record in the history that Ctrl-C was pressed; return the exception to raise."""
        self.run.history.interrupted = True
        return StopTraining("interrupted: training ended after the current batch")


def forward_backward(
    body: Container, loss: Loss, batch: Data, total: float | None
) -> tuple[Array, float]:
    """Return the body's output and its loss; run backward if the loss is finite.

    On several ranks, or in parts with BatchNorm, which must meet in it, backward always runs:
    without samples that count, on gradients of 0; with a loss that is not finite, on NaN.
    """
    P = body.forward(*[X[:] for X in each(batch.X)])
    call = current()
    value, dP = loss._watched(P, batch.T, batch.w, total)
    if not batch.counts:
        value, dP = 0.0, tuple([np.zeros_like(d) for d in each(dP)])
    if math.isfinite(value):
        body.backward(*each(dP))
    elif call.ranks is not None or call.part.joins:
        body.backward(*[np.full_like(d, np.nan) for d in each(dP)])
    return P, value


def _overrides(callback: Callback, method: str) -> bool:
    """Whether a callback, or a function that was set on it, replaces this method of `Callback`."""
    return getattr(getattr(callback, method), "__func__", None) is not getattr(Callback, method)


def held_out(data: Source, share: float) -> tuple[Source, Source]:
    """Return the data without their last samples, and those samples, a fraction `share` of all."""
    n = data.count or 0  # 0: batches, which cannot be split
    kept = n - round(n * share)
    if n and not 0 < kept < n:
        raise ArgumentError(f"validation_split {share} of {n} samples leaves a part empty.")
    return data.split(kept)


@contextmanager
def _ctrl_c(pressed: list[int]) -> Iterator[None]:
    """Inside the `with` block, record the first Ctrl-C in `pressed`; the second interrupts."""

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    previous = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or previous is None or previous is signal.SIG_IGN:
        yield  # only the main thread may set a handler; one set outside Python, or SIG_IGN, stays
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


LARGEST = 1 << 25  # bytes: 32 MB, the maximum that glibc accepts
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h: see `man mallopt`


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks, unless PHITODEEP_KEEP_MEMORY=0; return whether it will.

    On Linux, glibc returns the memory of an array above 128 kB to the system when the array is
    freed. Every page of the next array then causes a page fault, which often costs more than the
    layer itself. Training asks glibc, for the whole process, to keep blocks of up to 32 MB.
    """
    if sys.platform != "linux" or os.environ.get("PHITODEEP_KEEP_MEMORY") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, 2 * LARGEST)
    )
