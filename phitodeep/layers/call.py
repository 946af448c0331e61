"""What holds for the current forward or backward pass, and who watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import numpy as np

from phitodeep.errors import (
    ArgumentTypeError,
)
from phitodeep.types import Array


class Tree(Protocol):
    """What a watcher needs to know of a layer."""

    @property
    def _original(self) -> Tree: ...
    def walk(self, path: str = "") -> Iterator[tuple[str, Any]]: ...


class Call(NamedTuple):
    """How the current forward or backward pass is meant: a value of the call, not of a layer."""

    training: bool = True  # dropout drops, batch statistics are used and recorded
    caching: bool = True  # forward keeps what backward needs
    needs_dX: bool = True  # False: nobody reads the gradient of the input
    reuse: bool = False  # output buffers of the previous step may be written again
    step: int | None = None  # of the optimizer; None: each forward pass counts for itself
    first: int = 0  # place of this batch's first sample in the global batch
    mask: Array | None = None  # (N, T) bool: the steps of each sample that are there
    memory: dict[Any, Any] | None = None  # in generation: what layers keep between the calls
    again: bool = False  # this forward pass was done before: nothing counts or is noted twice
    watch: Watch | None = None  # who is told of every pass: see `watching`

    @property
    def keeps(self) -> bool:
        """Whether a backward pass may follow; none goes back through steps of generation."""
        return self.caching and self.memory is None


_CALL: ContextVar[Call] = ContextVar("phitodeep_call", default=Call())  # noqa: B039
current = _CALL.get


class within:
    """Run the body of a `with` in this `Call`."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __enter__(self) -> None:
        self.token = _CALL.set(self.call)

    def __exit__(self, *_: object) -> None:
        _CALL.reset(self.token)


class calling(within):
    """Run the body of a `with` with some fields of the current `Call` changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __enter__(self) -> None:
        self.call = _CALL.get()._replace(**self.changes)
        super().__enter__()


class inference(within):
    """Predict: no dropout, running statistics, nothing cached and nothing shared written."""

    caching = False

    def __init__(self) -> None:
        """Takes no arguments."""

    def __enter__(self) -> None:
        self.call = _CALL.get()._replace(training=False, caching=self.caching, reuse=False)
        super().__enter__()


class saliency(inference):
    """As `inference`, but cached, so that `backward` gives the gradient of what was predicted."""

    caching = True


class Event(NamedTuple):
    """What a watcher is told, before and after each pass: see `watching`.

    what     "forward" or "backward" of a layer, "loss", or "step" of the optimizer
    when     "before" or "after"
    path     of the layer, such as "3.layers.0"; "" for the outermost layer, a loss and a step
    source   the layer, loss or optimizer itself: `source.grads` after a backward pass
    array    before and after: X and Y of a forward pass, dY and dX of a backward pass (None for
             tokens, and where nobody reads it), P and dP of a loss, and the flat g of a step
    value    the loss after it was computed (before: None), the learning rate of a step
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
    """A watcher, and what the passes know of it."""

    watcher: Watcher
    recomputed: bool  # whether it is also told of a checkpoint's second forward pass
    paths: Mapping[int, str] | None  # by id of the layer; None before the outermost layer is known
    inside: tuple[str, Any] = ("", None)  # the pass that runs: it is not told again by super()

    def tell(
        self,
        what: str,
        when: str,
        source: Any,
        array: Any,
        value: float | None = None,
        path: str = "",
    ) -> Any:
        """Tell the watcher; the array, or what it gave in place of it."""
        with calling(watch=None):  # what the watcher computes is not watched
            given = self.watcher(Event(what, when, path, source, array, value, time.perf_counter()))
        if given is None:
            return array
        if not isinstance(given, np.ndarray) or array is None or given.shape != array.shape:
            raise ArgumentTypeError(
                f"a watcher returns None, or an array in place of the one it was given: {when} "
                f"the {what} of {source!r} that is {_shape_of(array)}, got {_shape_of(given)}."
            )
        return given.astype(array.dtype, copy=False)

    def run(
        self, what: str, layer: Tree, run: Callable[..., Any], A: Array, how: dict[str, Any]
    ) -> Any:
        """The pass `run(layer, A, **how)`, with the watcher told before and after it."""
        call = current()
        again = what == "forward" and call.again and not self.recomputed
        if again or self.inside == (what, layer):
            return run(layer, A, **how)
        watch = self.of(layer)
        path = (watch.paths or {}).get(id(layer._original), "?")
        with within(call._replace(watch=watch._replace(inside=(what, layer)))):
            A = watch.tell(what, "before", layer, A, path=path)
            return watch.tell(what, "after", layer, run(layer, A, **how), path=path)

    def of(self, root: Tree) -> Watch:
        """This watch, with paths as seen from `root` unless it has some."""
        if self.paths is not None:
            return self
        return self._replace(paths={id(layer): path for path, layer in root._original.walk()})


def _shape_of(array: Any) -> str:
    return f"of shape {array.shape}" if isinstance(array, np.ndarray) else repr(array)


class watching(within):
    """Tell `watcher` of each pass of a layer, of each loss and of each optimizer's step.

        def watcher(event):
            print(event.when, event.what, event.path)

        with phitodeep.watching(watcher):
            model.train(X, y, epochs=1)

    The watcher is a function of one `Event`. It is told once before and once after a pass. What
    it returns, an array of the same shape, takes the place of the event's array; None leaves it.
    Paths are those in the model, or in the outermost layer that runs, or in `root` if given. A
    forward pass that a checkpoint computes again is told of only with `recomputed=True`, which a
    watcher that replaces arrays needs there. With threads, the watcher is called in each of them.
    Training writes into the same arrays again: keep copies.
    """

    def __init__(
        self, watcher: Watcher, *, root: Tree | None = None, recomputed: bool = False
    ) -> None:
        if not callable(watcher):
            raise ArgumentTypeError(f"watching takes a function of an event, got {watcher!r}.")
        watch = Watch(watcher, recomputed, None)
        self.watch = watch if root is None else watch.of(root)

    def __enter__(self) -> None:
        self.call = _CALL.get()._replace(watch=self.watch)
        super().__enter__()
