"""What every layer is: parameters, one frame of scratch memory, and the context of the call."""

from __future__ import annotations

import copy
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, cast, overload

import numpy as np

from phitodeep.checks import as_float, as_real, as_tokens, check_shape
from phitodeep.config import Configurable
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackwardError,
    NotBuiltError,
    OrderError,
    ShapeError,
)
from phitodeep.optimization.initialization import Initializer
from phitodeep.types import Array, DType, Shape, describe

Ticket = tuple[int, int, int]
STEPS = {  # what `Layer.steps` says of step t of Y
    "independent": "it depends on step t of X alone",
    "remembered": "it depends on steps up to t, which generation keeps in the call's memory",
    "joined": "it may depend on all steps",
}


class Call(NamedTuple):
    """How the current forward or backward pass is meant: a value of the call, not of a layer."""

    training: bool = True  # dropout drops, batch statistics are used and recorded
    caching: bool = True  # forward keeps what backward needs
    needs_dX: bool = True  # False: nobody reads the gradient of the input
    reuse: bool = False  # output buffers of the previous step may be written again
    step: int | None = None  # of the optimizer; None: each forward pass counts for itself
    first: int = 0  # place of this batch's first sample in the global batch
    mask: Array | None = None  # (N, T) bool: the steps of each sample that are there
    memory: dict[Layer, Any] | None = None  # in generation: what layers keep between the calls
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
        self, what: str, layer: Layer, run: Callable[..., Any], A: Array, how: dict[str, Any]
    ) -> Any:
        """The pass `run(layer, A, **how)`, with the watcher told before and after it."""
        call = current()
        again = what == "forward" and call.again and not self.recomputed
        if again or self.inside == (what, layer):
            return run(layer, A, **how)
        watch = self.of(layer)
        path = (watch.paths or {}).get(id(layer.original), "?")
        with within(call._replace(watch=watch._replace(inside=(what, layer)))):
            A = watch.tell(what, "before", layer, A, path=path)
            return watch.tell(what, "after", layer, run(layer, A, **how), path=path)

    def of(self, root: Layer) -> Watch:
        """This watch, with paths as seen from `root` unless it has some."""
        if self.paths is not None:
            return self
        return self._replace(paths={id(layer): path for path, layer in root.original.walk()})


def _shape_of(array: Any) -> str:
    return f"of shape {array.shape}" if isinstance(array, np.ndarray) else repr(array)


class watching(within):
    """Tell `watcher` of each pass of a layer, of each loss and of each optimizer's step.

        def watcher(event):
            print(event.when, event.what, event.path, event.array.shape)

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
        self, watcher: Watcher, *, root: Layer | None = None, recomputed: bool = False
    ) -> None:
        if not callable(watcher):
            raise ArgumentTypeError(f"watching takes a function of an event, got {watcher!r}.")
        watch = Watch(watcher, recomputed, None)
        self.watch = watch if root is None else watch.of(root)

    def __enter__(self) -> None:
        self.call = _CALL.get()._replace(watch=self.watch)
        super().__enter__()


class _NoGrads(dict[str, Array]):
    """The gradients before the first backward pass."""

    def __missing__(self, name: str) -> NoReturn:
        raise BackwardError(
            f"there is no gradient {name!r} yet: backward leaves gradients, after forward."
        )


class Frame:
    """The memory of one pass: cache, gradients, and buffers that the training loop reuses."""

    def __init__(self) -> None:
        self.cache: dict[str, Any] = {}
        self.grads: dict[str, Array] = _NoGrads()
        self.grad_arrays: dict[str, Array] = {}  # where a training step wants gradients written
        self.buffers: dict[str, Array] = {}
        self.output: tuple[Shape, np.dtype[Any]] | None = None  # of the last cached forward
        self.passes = 0  # forward passes that drew random numbers outside any counted step
        self.start: tuple[Array, Call] | None = None  # of a pass that is to be computed again


# Linux's allocator hands memory above 128 kB back to the system when an array is freed, and each
# page of the next one is a fault: more work than a layer's own. Once it has seen a block of 32 MB
# freed, it keeps that much. The block is never touched, so it costs nothing.
if sys.platform == "linux":
    np.empty(2**25 - 2**13, np.uint8)


class Buffered:
    """Something that writes its results into a frame."""

    frame: Frame

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Array:
        """An uninitialised array to write into: last step's one inside the training loop, else new.

        A shorter last batch gets the head of the longer one, so that an epoch allocates once.
        """
        return self.reused(name, shape, dtype) if _CALL.get().reuse else np.empty(shape, dtype)

    def reused(self, name: str, shape: Shape, dtype: DType) -> Array:
        """The array of this name that the frame keeps, made where there is none that fits."""
        old = self.frame.buffers.get(name)
        if old is not None and old.dtype == dtype:
            if old.shape == shape:
                return old
            if old.shape[1:] == shape[1:] and old.ndim and shape[0] < old.shape[0]:
                return old[: shape[0]]
        made = self.frame.buffers[name] = np.empty(shape, dtype)
        return made


class Param:
    """A parameter of a layer: `layer.W` reads it, `layer.W = a` writes into it.

    `decay` says whether weight decay and penalties pull on it: they do on the matrices of a
    layer, and never on biases and on the scales of norms.
    """

    store = "params"

    def __init__(self, *, decay: bool = False) -> None:
        self.decay = decay

    def __set_name__(self, owner: type[Layer], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type[Layer]) -> Self: ...
    @overload
    def __get__(self, layer: Layer, owner: type[Layer]) -> Array: ...
    def __get__(self, layer: Layer | None, owner: type[Layer]) -> Self | Array:
        if layer is None:
            return self
        store: dict[str, Array] = getattr(layer, self.store)
        try:
            return store[self.name]
        except KeyError:
            layer.make_parameters()
            if self.name in store:
                return store[self.name]
            raise NotBuiltError(f"{layer!r} has no parameter {self.name!r}.") from None

    def __set__(self, layer: Layer, value: Any) -> None:
        store: dict[str, Array] = getattr(layer, self.store)
        if not layer.creating and self.name not in store:
            layer.make_parameters()
        new = value
        if type(new) is not np.ndarray or new.dtype.kind not in "fiub":
            new = as_real(new, f"{layer!r}: parameter {self.name!r}")
        old = store.get(self.name)
        if old is None:
            if not layer.creating:
                raise NotBuiltError(f"{layer!r} has no parameter {self.name!r}.")
            store[self.name] = np.array(new, layer.dtype) if layer.creates else new
        elif old.shape != new.shape:
            raise ShapeError(
                f"{layer!r}: parameter {self.name!r} has shape {old.shape}, got {new.shape}."
            )
        elif not layer.creating:  # building again keeps what was learnt
            old[...] = new


class State(Param):
    """What a layer remembers but does not learn, such as running statistics."""

    store = "state"


def _spread(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a list, tuple or dict holds, and those inside it, with names such as `layers.0`."""
    for key, v in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(v, list | tuple | dict):
            yield from _spread(f"{name}.{key}", v)
        else:
            yield f"{name}.{key}", v


def _guard_forward(forward: Callable[..., Array]) -> Callable[..., Array]:
    """Bring X to the layer's dtype, and remember the shape that backward must be given."""

    @functools.wraps(forward)
    def guarded(self: Layer, X: Array, **how: Any) -> Array:
        if self.output_shape is None:
            self.make_parameters()
        if type(X) is not np.ndarray or X.dtype != self.dtype or self.takes_tokens:
            X = self.admit(X)
        if X.ndim == 0:
            raise ShapeError(f"{self!r} takes a batch of at least rank 1, got a single number.")
        call = _CALL.get()
        if call.watch is None:
            Y = forward(self, X, **how)
        else:
            Y = call.watch.run("forward", self, forward, X, how)
        frame = self.frame
        if frame.output is None or type(Y) is not np.ndarray or Y.shape != frame.output[0]:
            self._check_output(X, Y)
        if call.caching and call.memory is None:
            frame.output = Y.shape, Y.dtype
        return Y

    return guarded


def _guard_backward(backward: Callable[..., Array | None]) -> Callable[..., Array | None]:
    """Insist on a forward pass before, and on a dY that fits what it gave."""

    @functools.wraps(backward)
    def guarded(self: Layer, dY: Array) -> Array | None:
        frame = self.frame
        if frame.output is None:
            raise BackwardError(
                f"{self!r} has nothing to go back through: run a forward pass in training mode "
                "first (inference keeps no cache)."
            )
        shape, dtype = frame.output
        if type(dY) is not np.ndarray or dY.dtype != dtype:
            dY = as_float(dY, dtype, f"{self!r}: dY")
        if dY.shape != shape:
            raise ShapeError(f"{self!r} gave Y of shape {shape}, got dY of shape {dY.shape}.")
        frame.grads = {}
        watch = _CALL.get().watch
        if watch is None:
            return backward(self, dY)
        return watch.run("backward", self, backward, dY, {})

    return guarded


class Layer(Buffered, Configurable):
    """One differentiable step Y = f(X; parameters), with its hand-derived backward pass.

    An author writes `__init__` (settings only), `create(input_shape) -> output_shape` (makes the
    parameters; shapes are of one sample), `forward(X) -> Y` and `backward(dY) -> dX`. Then

        layer.params, layer.grads    dicts by parameter name; grads are of the last backward
        layer.state                  what is remembered but not learnt
        layer.cache                  what forward saved for backward

    `backward` returns exactly dL/dX and overwrites `grads`; it never divides by the batch and
    never writes into dY, as `forward` never writes into X.
    """

    config_kind = "layer"
    takes_tokens = False  # True: X are integers, such as token ids, and stay integers
    flops_per_output = 1  # the work of an elementwise layer; matrix layers override `flops`
    declared: ClassVar[dict[str, Param]] = {}  # parameters and states of the class

    # What others must know of a layer. A class that overrides `forward` declares them again, and
    # one that overrides `backward` alone the first:
    independent_samples: Any = False  # sample i of Y depends on sample i of X alone
    steps: Any = "joined"  # how the steps of (N, T, ...) depend on each other: see `STEPS`
    output_shape: Shape | None = None  # of one sample, once built
    gives: Any = ""  # "probabilities", "log-probabilities", "numbers", or "" for unknown
    max_steps: int | None = None  # the most steps that the layer takes, if there is a limit
    mask_remedy: ClassVar[str] = (  # what to do where `compute_mask` refuses
        'leave out `lengths`; a layer of your own declares steps = "independent", or writes '
        "compute_mask"
    )
    refers_to: ClassVar[tuple[str, ...]] = ()  # attributes that are layers held elsewhere

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        mixed = [kind for kind in cls.__mro__ if kind is cls or not issubclass(kind, Layer)]
        own = set()
        for name, guard in (("forward", _guard_forward), ("backward", _guard_backward)):
            home = next(kind for kind in cls.__mro__ if name in vars(kind))
            if home in mixed:  # the class itself, or a mixin that is no layer
                setattr(cls, name, guard(vars(home)[name]))
                own.add(name)
        if not cls.__module__.startswith("phitodeep."):
            again = ["independent_samples"] if own else []
            again += ["steps", "gives", "compute_mask"] if "forward" in own else []
            for name in again:
                if all(name not in vars(kind) for kind in mixed):
                    setattr(cls, name, getattr(Layer, name))
        declared = {name: p for name, p in vars(cls).items() if isinstance(p, Param)}
        cls.declared = {**cls.declared, **declared}

    def __init__(self) -> None:
        if type(self).__hash__ is None:
            raise ArgumentTypeError(
                f"{type(self).__name__} compares layers by value, but each is one of its own: a "
                "dataclass of a layer is a @dataclass(eq=False)."
            )
        self.params: dict[str, Array] = {}
        self.state: dict[str, Array] = {}
        self.frame = Frame()
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.input_shape: Shape | None = None
        self.output_shape = None
        self.creating = False  # while `create` runs
        self.creates = True  # False in a copy that only measures shapes
        self._trainable = True
        self._generator: np.random.Generator | None = None
        self._seed: np.random.SeedSequence | None = None

    def __repr__(self) -> str:
        return describe(self)

    # --- what an author writes -------------------------------------------------------------

    def create(self, shape: Shape) -> Shape:
        """Make the parameters for samples of `shape`, and return the shape of the output."""
        return shape

    def forward(self, X: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must implement forward(X) -> Y.")

    def backward(self, dY: Array) -> Array | None:
        raise NotImplementedError(f"{type(self).__name__} must implement backward(dY) -> dX.")

    def compute_mask(self, mask: Array) -> Array | None:
        """Which steps of Y are there, given those of X (N, T); None where Y has no steps.

        The same ones where each step is handled alone. Any other layer must write this method,
        and keep to the mask of the call in its passes: else `lengths` are refused.
        """
        if self.steps != "independent":
            raise ArgumentError(
                f"{self!r} does not take `lengths`: what they leave out would change the other "
                f"steps. Remedy: {self.mask_remedy}."
            )
        return mask

    def matrices(self, name: str, W: Array) -> list[Array]:
        """The matrices in W, an array of this parameter's size: stacks (n, rows, columns), views.

        Muon steps by them: one matrix unless a layer says otherwise, and none for tables of
        vectors, such as an embedding's.
        """
        W = W.reshape(-1, self.params[name].shape[-1])
        return [W[None]]

    @property
    def tied(self) -> dict[str, tuple[Layer, str]]:
        """Gradients of this layer that belong to another's parameters: name -> (layer, name)."""
        return {}

    def known_input(self) -> Shape | None:
        """The input shape that the settings alone tell, as those of `Dense(784, 128)` do."""
        return None

    def flops(self) -> int:
        """Floating-point operations of a forward pass, for one sample."""
        return self.flops_per_output * math.prod(self.output_shape or ())

    # --- what an author uses ---------------------------------------------------------------

    def save_for_backward(self, **values: Any) -> None:
        """Keep values for `backward`, unless this is inference or generation."""
        call = _CALL.get()
        if call.caching and call.memory is None:
            self.frame.cache = values

    def save(self, path: Any = None, **values: Any) -> NoReturn:
        """Refused: it is the name of what will write files."""
        remedy = (
            f"to keep values for backward, call self.save_for_backward({', '.join(values)}=...)."
            if values
            else "writing a model to a file is not there yet: pickle keeps all of it, and "
            "np.savez(path, **model.get_weights()) its weights."
        )
        raise OrderError(f"{type(self).__name__}.save: {remedy}")

    def saved(self, *names: str) -> Any:
        """What `save_for_backward` kept under these names: one value, or a tuple of several."""
        cache = self.frame.cache
        try:
            return cache[names[0]] if len(names) == 1 else tuple([cache[name] for name in names])
        except KeyError as missing:
            raise BackwardError(
                f"{self!r}: backward asks for {missing}, which forward did not keep: call "
                f"self.save_for_backward({missing.args[0]}=...) in forward."
            ) from None

    def grad_array(self, name: str) -> Array:
        """The array to write dL/dparameter into, registered in `grads`: uninitialised.

        In a training step it is a piece of the optimizer's vector of all gradients, so that
        nothing is copied; elsewhere it is a new array.
        """
        W, frame = self.params.get(name), self.frame
        if W is None:
            owner, own_name = self.tied.get(name, (self, name))
            if own_name not in owner.params:
                known = ", ".join([*self.params, *self.tied]) or "none"
                raise ArgumentError(
                    f"{self!r} has no parameter {name!r}: grad_array knows {known}."
                )
            W = owner.params[own_name]
        dtype = self.dtype if frame.output is None else frame.output[1]
        made = None
        if _CALL.get().reuse:
            made = frame.grad_arrays.get(name)
            if made is None:
                made = self.reused(f"gradient of {name}", W.shape, dtype)
        if made is None:
            made = np.empty(W.shape, dtype)
        frame.grads[name] = made
        return made

    def draw(self, initializer: Initializer, shape: Shape) -> Array:
        """Initial values of a parameter, from this layer's own generator."""
        if not self.creates:
            return np.broadcast_to(np.float32(0), shape)
        assert self._generator is not None
        return initializer.draw(shape, self._generator)

    def check_steps(self, X: Array) -> Array | None:
        """The call's mask, if it fits X (N, T, ...), which must have samples and steps."""
        if X.size == 0:
            raise ShapeError(f"{self!r} needs at least one sample and step, got shape {X.shape}.")
        mask = _CALL.get().mask
        if mask is not None and (mask.dtype != bool or mask.shape != X.shape[:2]):
            raise ShapeError(
                f"{self!r} takes a mask of True and False of shape {X.shape[:2]}, "
                f"got {mask.dtype} of shape {mask.shape}."
            )
        return mask

    def ticket(self) -> Ticket:
        """What sets this forward pass's random numbers apart.

        The place of the first sample, and the step, or outside any step the count of passes.
        """
        call = _CALL.get()
        if call.step is not None:
            return call.first, call.step, 0
        self.frame.passes += not call.again
        return call.first, self.frame.passes, 1

    def uniform(self, shape: Shape, ticket: Ticket | None = None, part: int = 0) -> Array:
        """float32 numbers in [0, 1): a pure function of seed, layer path, ticket and sample place.

        Philox is counter based: its counter is set to (place of the first sample, ticket, part),
        so the part of a batch that a thread handles sees the numbers that the whole batch would
        see, and a backward pass can have the numbers of its forward again.
        """
        n, each = shape[0], math.prod(shape[1:])
        ticks = -(-each // 8)  # one tick of the counter gives eight float32
        key = self.seed_sequence.generate_state(2, np.uint64)
        first, step, kind = ticket or self.ticket()
        counter = [first * ticks, step, kind, part]
        drawn = self.buffer("uniform", (n, 8 * ticks), np.float32)
        bits = np.random.Philox(key=key, counter=counter)
        np.random.Generator(bits).random(out=drawn, dtype=np.float32)
        return drawn[:, :each].reshape(shape)

    # --- building --------------------------------------------------------------------------

    def build(self, input_shape: Shape, *, seed: Any = None, dtype: DType = None) -> Shape:
        """Make the parameters for samples of `input_shape` (no batch axis), once.

        Building again is harmless: another dtype casts, another seed does not redraw, and a
        shape that the parameters do not fit is refused. `dtype` is float32 unless given.
        """
        shape = check_shape(input_shape, repr(self))
        if not shape and self.declared and not self.takes_tokens:
            raise ShapeError(f"{self!r} needs samples of at least one axis, got shape ().")
        self.cast(self.dtype if dtype is None else dtype)
        if seed is not None:
            self.plant(seed)
        self._generator = np.random.default_rng(self.seed_sequence) if self.creates else None
        if not self.children() and any(isinstance(v, Layer) for _, v in self._spread()):
            raise ArgumentTypeError(f"{self!r} holds layers: derive it from Container.")
        self.creating = True
        try:
            self.output_shape = self.create(shape)
        finally:
            self.creating = False
        self.input_shape = shape
        return self.output_shape

    def check_begun(self) -> None:
        """Refuse a layer whose author forgot `super().__init__()`."""
        if "frame" not in vars(self):
            raise NotBuiltError(
                f"{type(self).__name__} has no parameters yet: its __init__ must begin "
                "with super().__init__()."
            )

    def make_parameters(self) -> None:
        """Build from the settings alone, or say that they do not tell the input's shape."""
        self.check_begun()
        if self.output_shape is None and self.declared:
            self.build(self._known_or_refuse())

    def measured(self, input_shape: Shape | None = None) -> Self:
        """A copy built without making any array: for shapes and counts."""
        shape = self._known_or_refuse() if input_shape is None else input_shape
        ghost = self.replica()
        for _, layer in ghost.walk():
            layer.creates, layer.params, layer.state = False, {}, {}
        ghost.build(shape)
        return ghost

    def _known_or_refuse(self) -> Shape:
        known = self.known_input() if self.input_shape is None else self.input_shape
        if known is None:
            raise NotBuiltError(
                f"{self!r} does not know its input shape yet: call build(input_shape), "
                "or give the model its input with .input(...)."
            )
        return known

    def cast(self, dtype: DType) -> None:
        """Change the dtype of every parameter and state here and below."""
        try:
            wanted = np.dtype(dtype)
        except TypeError:
            wanted = np.dtype(object)
        if wanted not in (np.float32, np.float64):
            raise ArgumentTypeError(f"dtype must be float32 or float64, got {dtype!r}.")
        for _, layer in self.walk():
            if layer.dtype != wanted:
                layer.dtype = wanted
                layer.frame = Frame()
                for store in (layer.params, layer.state):
                    store.update({name: a.astype(wanted) for name, a in store.items()})

    def plant(self, seed: Any) -> None:
        """Give this layer and those below random streams of their own, one for each path.

        `seed` is an integer or a NumPy SeedSequence.
        """
        root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._seed = root
        for i, child in enumerate(self.children().values()):
            key = (*root.spawn_key, i)
            child.plant(np.random.SeedSequence(root.entropy, spawn_key=key))

    @property
    def seed_sequence(self) -> np.random.SeedSequence:
        if self._seed is None:
            self.plant(np.random.SeedSequence())
        assert self._seed is not None
        return self._seed

    def admit(self, X: Any) -> Array:
        """X as an array of this layer's dtype; a layer that was never built keeps floats as is."""
        if self.takes_tokens:
            return as_tokens(X, self)
        return as_float(X, None if self.output_shape is None else self.dtype, self)

    # --- the tree --------------------------------------------------------------------------

    def children(self) -> dict[str, Layer]:
        """The layers inside, by attribute and index, such as `layers.0`: see `Container`."""
        return {}

    def walk(self, path: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer and all below it with their paths: `3.layers.0` in a model, `` for itself."""
        yield path, self
        for key, child in self.children().items():
            yield from child.walk(f"{path}.{key}" if path else key.removeprefix("layers."))

    def replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        """The same layer with the same parameters and a frame of its own, as a thread needs it.

        `frames` keeps the frames by layer, for the replicas that are made of it later.
        """
        frame = None if frames is None else frames.get(self)
        if frame is None:
            frame = Frame()
            if frames is not None:
                frames[self] = frame
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), frame=frame, _original=self.original)
        return twin

    @property
    def original(self) -> Layer:
        """The layer that this one is a replica of, or itself."""
        return cast(Layer, vars(self).get("_original", self))

    def copy(self) -> Self:
        """An independent copy: parameters and state, without cache and gradients."""
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "frame": Frame()}

    # --- parameters ------------------------------------------------------------------------

    @property
    def cache(self) -> dict[str, Any]:
        return self.frame.cache

    @property
    def grads(self) -> dict[str, Array]:
        return self.frame.grads

    @grads.setter
    def grads(self, grads: dict[str, Array]) -> None:
        self.frame.grads = grads

    @property
    def trainable(self) -> bool:
        """Whether optimizers change the parameters here and below; setting it sets all below."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for _, layer in self.walk():
            layer._trainable = bool(value)

    def learns(self) -> bool:
        """Whether any parameter here or below is trainable."""
        own = self._trainable and bool(self.params)
        return own or any(child.learns() for child in self.children().values())

    def count_params(self) -> int:
        """How many numbers are in the parameters here and below; counting makes none of them."""
        waiting = any(part.declared and part.output_shape is None for _, part in self.walk())
        built = self.measured() if waiting else self
        arrays = {id(a): a.size for _, layer in built.walk() for a in layer.params.values()}
        return sum(arrays.values())

    def gradients(self) -> dict[str, Array]:
        """Copies of the last gradients of all parameters here and below, by path.

        Where a parameter has several uses, as tied weights do, the gradients of all are added.
        """
        layers = list(self.walk())
        path_of = {id(layer): path for path, layer in layers}
        found: dict[str, Array] = {}
        for _, layer in layers:
            for name, gradient in layer.grads.items():
                owner, own_name = layer.tied.get(name, (layer, name))
                if id(owner) in path_of:
                    full = f"{path_of[id(owner)]}.{own_name}".removeprefix(".")
                    found[full] = found.get(full, 0) + gradient
        return found

    def get_weights(self) -> dict[str, Array]:
        """Copies of all parameters and state, by path."""
        return {path: store[name].copy() for path, store, name in self._stored()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Write all parameters and state, by path; nothing is written unless everything fits."""
        slots = {path: (store, name) for path, store, name in self._stored()}
        if not isinstance(weights, Mapping):
            raise ArgumentTypeError(
                f"{self!r} takes weights by path, as get_weights() gives them, such as "
                f"{{{next(iter(slots), '0.W')!r}: array}}, got a {type(weights).__name__}."
            )
        if slots.keys() != weights.keys():
            missing, extra = sorted(slots.keys() - weights), sorted(weights.keys() - slots)
            wrong = [f"are missing {missing}"] * bool(missing) + [f"have extra {extra}"] * bool(
                extra
            )
            raise ArgumentError(f"{self!r}: weights {' and '.join(wrong)}.")
        for path, (store, name) in slots.items():
            new = as_real(weights[path], f"{self!r}: {path}")
            if store[name].shape != new.shape:
                raise ShapeError(
                    f"{self!r}: {path} has shape {store[name].shape}, got {new.shape}."
                )
        for path, (store, name) in slots.items():
            store[name][...] = weights[path]

    def _spread(self) -> Iterator[tuple[str, Any]]:
        """The attributes, and what lists, tuples and dicts among them hold, by attribute and index.

        Without those that the layer only refers to.
        """
        for name, value in vars(self).items():
            if name in self.refers_to or name == "_original":
                continue
            if isinstance(value, list | tuple | dict):
                yield from _spread(name, value)
            else:
                yield name, value

    def _check_output(self, X: Array, Y: Any) -> None:
        """Refuse what forward gave, if it is not what `create` promised."""
        if not isinstance(Y, np.ndarray):
            raise ArgumentTypeError(
                f"{self!r}: forward must return an array, got {type(Y).__name__}."
            )
        at = f"{self!r}: forward gave Y of shape {Y.shape} for X of shape {X.shape}, but"
        if Y.shape[:1] != X.shape[:1] and X.ndim > 1:  # one axis may be that of the features
            raise ShapeError(f"{at} the first axis is that of the batch, in X and in Y.")
        if X.shape[1:] == self.input_shape and Y.shape[1:] != self.output_shape:
            raise ShapeError(f"{at} create promised samples of shape {self.output_shape}.")

    def _stored(self) -> Iterator[tuple[str, dict[str, Array], str]]:
        for path, layer in self.walk():
            layer.make_parameters()
            for store in (layer.params, layer.state):
                for name in store:
                    yield f"{path}.{name}" if path else name, store, name
