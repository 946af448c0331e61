"""The mode of the current forward or backward pass, and its watcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import numpy as np

from phitodeep.core.threads import Part
from phitodeep.core.types import Array, each, one
from phitodeep.errors import ArgumentTypeError


class Summing(Protocol):
    """What a layer needs from the processes that share its batch."""

    counts: bool  # False: this process has no samples of the batch, only a placeholder

    def sum(self, a: Array) -> Array:
        """Return the sum of this array over all processes, in place."""
        ...


class Call(NamedTuple):
    """The mode of the current forward or backward pass; it belongs to the call, not to a layer."""

    training: bool = True  # dropout is active; batch statistics are used and recorded
    caching: bool = True  # forward saves what backward needs
    needs_dX: bool = True  # False: the gradient of the input is not used
    needs_frozen: bool = True  # False: the gradients of frozen parameters are not used
    reuse: bool = False  # buffers of the previous step may be overwritten
    step: int | None = None  # the optimizer's step; None outside training
    first: int = 0  # index of this batch's first sample in the global batch
    mask: Array | None = None  # (N, T) bool: False for padding
    memory: dict[Any, Any] | None = None  # in generation: earlier steps, by layer
    again: bool = False  # a checkpoint recomputes this forward pass: nothing is counted twice
    watch: Watch | None = None  # what observes every pass: see `watching`
    draw: int | None = None  # the number of a prediction, which all its batches share
    ranks: Summing | None = None  # the processes that share this batch; None: one has all of it
    part: Part = Part()  # of a batch, if its parts are computed at once
    ended: Callable[[Any], None] | None = None  # is called with each layer when `backward` is done
    scratch: dict[Any, Array] | None = None  # in training: memory that all layers of a thread share

    @property
    def keeps(self) -> bool:
        """Whether a backward pass may follow; after generation, none does."""
        return self.caching and self.memory is None


_OUTSIDE = Call()  # outside any context
_CALL: ContextVar[Call] = ContextVar("phitodeep_call", default=_OUTSIDE)
current = _CALL.get


class within:
    """Run the body of a `with` statement under this `Call`."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __enter__(self) -> None:
        self.token = _CALL.set(self.call)

    def __exit__(self, *_: object) -> None:
        _CALL.reset(self.token)


class calling(within):
    """Run the body of a `with` statement with some fields of the current `Call` changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __enter__(self) -> None:
        self.call = _CALL.get()._replace(**self.changes)
        super().__enter__()


class inference(within):
    """Run the body in prediction mode.

    Dropout is off, BatchNorm uses its running statistics, nothing is cached, and nothing that
    threads share is written.
    """

    caching = False

    def __init__(self) -> None:
        """Takes no arguments."""

    def __enter__(self) -> None:
        call = _CALL.get()
        if call is _OUTSIDE:  # `_replace` takes longer
            self.call = Call(training=False, caching=self.caching)
        else:
            self.call = call._replace(training=False, caching=self.caching, reuse=False)
        super().__enter__()


class saliency(inference):
    """Like `inference`, but with caching, so that `backward` can differentiate a prediction."""

    caching = True


class Event(NamedTuple):
    """What a watcher receives before and after each pass: see `watching`.

    what     "forward" or "backward" of a layer, "loss", or "step" of the optimizer
    when     "before" or "after"
    path     the layer's path, such as "3.layers.0"; "" for the outermost layer, a loss and a step
    source   the layer, loss or optimizer; after a backward pass, `source.grads` is set
    array    before and after: X and Y of a forward pass; dY and dX of a backward pass (dX is None
             for tokens, or if it is not needed); P and dP of a loss; the flat gradient of a step.
             A layer with several inputs or outputs has a tuple of them
    value    the loss, once it is computed; the learning rate of a step; otherwise None
    time     time.perf_counter(), in seconds
    """

    what: str
    when: str
    path: str
    source: Any
    array: Array | None
    value: float | None
    time: float


Watcher = Callable[[Event], Array | None]


class Watch(NamedTuple):
    """A watcher, and the paths of the layers that it observes."""

    watcher: Watcher
    recomputed: bool  # whether it also observes forward passes that a checkpoint recomputes
    paths: Mapping[int, str] | None  # by layer id; None until the outermost layer runs
    inside: tuple[str, Any] = ("", None)  # the current pass, so that super() is not reported too

    def notify(
        self, what: str, when: str, source: Any, array: Any, value: float | None = None
    ) -> Any:
        """Call the watcher; return the array, or what the watcher returned instead."""
        passes = what in ("forward", "backward")
        path = (self.paths or {}).get(id(source._original), "?") if passes else ""
        with calling(watch=None, part=Part()):  # the watcher's own computations are its own
            given = self.watcher(Event(what, when, path, source, array, value, time.perf_counter()))
        if given is None:
            return array
        news, olds = each(given), each(array)
        if len(news) != len(olds) or any(
            not isinstance(new, np.ndarray) or old is None or new.shape != old.shape
            for new, old in zip(news, olds, strict=True)
        ):
            raise ArgumentTypeError(
                f"a watcher must return None or an array like the one it received: {when} the "
                f"{what} of {source!r}, expected {_shape_of(array)}, got {_shape_of(given)}."
            )
        cast = [A.astype(old.dtype, copy=False) for A, old in zip(news, olds, strict=True)]
        return one(cast, not isinstance(array, tuple))

    def run(
        self, what: str, layer: Any, run: Callable[..., Any], A: Array, kwargs: dict[str, Any]
    ) -> Any:
        """Run the pass `run(layer, A, **kwargs)`, and call the watcher before and after it."""
        call = current()
        again = what == "forward" and call.again and not self.recomputed
        if again or self.inside == (what, layer):
            return run(layer, *each(A), **kwargs)
        watch = self.of(layer)
        with within(call._replace(watch=watch._replace(inside=(what, layer)))):
            A = watch.notify(what, "before", layer, A)
            return watch.notify(what, "after", layer, run(layer, *each(A), **kwargs))

    def of(self, root: Any) -> Watch:
        """Return this watch with paths as seen from `root`, unless it already has paths."""
        if self.paths is not None:
            return self
        return self._replace(paths={id(layer): path for path, layer in root._original.walk()})


def _shape_of(array: Any) -> str:
    return f"of shape {array.shape}" if isinstance(array, np.ndarray) else repr(array)


class watching(within):
    """Call `watcher` before and after each pass of a layer, each loss and each optimizer step.

        def watcher(event):
            print(event.when, event.what, event.path)

        with phitodeep.watching(watcher):
            model.train(X, y, epochs=1)

    The watcher is a function of one `Event`. It is called once before and once after each pass. If
    it returns an array of the same shape, that array replaces the event's; if it returns None,
    nothing changes. Paths start at the model, or at the outermost layer that runs, or at `root` if
    given. A forward pass that a checkpoint recomputes is reported only with `recomputed=True`,
    which a watcher that replaces arrays needs. If training uses several threads, each of them calls
    the watcher. Training overwrites its arrays, so keep copies.
    """

    def __init__(self, watcher: Watcher, *, root: Any = None, recomputed: bool = False) -> None:
        if not callable(watcher):
            raise ArgumentTypeError(f"watching expects a function of an event, got {watcher!r}.")
        watch = Watch(watcher, recomputed, None)
        self.watch = watch if root is None else watch.of(root)

    def __enter__(self) -> None:
        self.call = _CALL.get()._replace(watch=self.watch)
        super().__enter__()
