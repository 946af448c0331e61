"""What every layer is: parameters, one frame of scratch memory, and the context of the call."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, Self, cast, overload

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
from phitodeep.initialization import Initializer
from phitodeep.layers.call import Call as Call
from phitodeep.layers.call import Event as Event
from phitodeep.layers.call import calling as calling
from phitodeep.layers.call import current as current
from phitodeep.layers.call import inference as inference
from phitodeep.layers.call import saliency as saliency
from phitodeep.layers.call import watching as watching
from phitodeep.layers.frame import Buffered, Frame
from phitodeep.types import Array, DType, Shape, describe

RandomKey = tuple[int, int, int]
STEPS = {  # what `Layer.steps` says of step t of Y
    "independent": "it depends on step t of X alone",
    "remembered": "it depends on steps up to t, which generation keeps in the call's memory",
    "joined": "it may depend on all steps",
}


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
            layer._make_parameters()
            if self.name in store:
                return store[self.name]
            raise NotBuiltError(f"{layer!r} has no parameter {self.name!r}.") from None

    def __set__(self, layer: Layer, value: Any) -> None:
        store: dict[str, Array] = getattr(layer, self.store)
        if not layer.creating and self.name not in store:
            layer._make_parameters()
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
            self._make_parameters()
        if type(X) is not np.ndarray or X.dtype != self.dtype or self.takes_tokens:
            X = self._cast_input(X)
        if X.ndim == 0:
            raise ShapeError(f"{self!r} takes a batch of at least rank 1, got a single number.")
        call = current()
        if call.watch is None:
            Y = forward(self, X, **how)
        else:
            Y = call.watch.run("forward", self, forward, X, how)
        frame = self._frame
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
        frame = self._frame
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
        watch = current().watch
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
    _flops_per_output = 1  # the work of an elementwise layer; matrix layers override `flops`
    _declared: ClassVar[dict[str, Param]] = {}  # parameters and states of the class

    # What others must know of a layer. A class that overrides `forward` declares them again, and
    # one that overrides `backward` alone the first:
    independent_samples: Any = False  # sample i of Y depends on sample i of X alone
    steps: Any = "joined"  # how the steps of (N, T, ...) depend on each other: see `STEPS`
    output_shape: Shape | None = None  # of one sample, once built
    gives: Any = ""  # "probabilities", "log-probabilities", "numbers", or "" for unknown
    max_steps: int | None = None  # the most steps that the layer takes, if there is a limit
    _mask_remedy: ClassVar[str] = (  # what to do where `compute_mask` refuses
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
        cls._declared = {**cls._declared, **declared}

    def __init__(self) -> None:
        if type(self).__hash__ is None:
            raise ArgumentTypeError(
                f"{type(self).__name__} compares layers by value, but each is one of its own: a "
                "dataclass of a layer is a @dataclass(eq=False)."
            )
        self.params: dict[str, Array] = {}
        self.state: dict[str, Array] = {}
        self._frame = Frame()
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
                f"steps. Remedy: {self._mask_remedy}."
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
        return self._flops_per_output * math.prod(self.output_shape or ())

    # --- what an author uses ---------------------------------------------------------------

    def save_for_backward(self, **values: Any) -> None:
        """Keep values for `backward`, unless this is inference or generation."""
        call = current()
        if call.caching and call.memory is None:
            self._frame.cache = values

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
        cache = self._frame.cache
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
        W, frame = self.params.get(name), self._frame
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
        if current().reuse:
            made = frame.grad_arrays.get(name)
            if made is None:
                made = self._reused(f"gradient of {name}", W.shape, dtype)
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
        mask = current().mask
        if mask is not None and (mask.dtype != bool or mask.shape != X.shape[:2]):
            raise ShapeError(
                f"{self!r} takes a mask of True and False of shape {X.shape[:2]}, "
                f"got {mask.dtype} of shape {mask.shape}."
            )
        return mask

    def _random_key(self) -> RandomKey:
        """What sets this forward pass's random numbers apart.

        The place of the first sample, and the step, or outside any step the count of passes.
        """
        call = current()
        if call.step is not None:
            return call.first, call.step, 0
        self._frame.passes += not call.again
        return call.first, self._frame.passes, 1

    def uniform(self, shape: Shape, ticket: RandomKey | None = None, part: int = 0) -> Array:
        """float32 numbers in [0, 1): a pure function of seed, layer path, ticket and sample place.

        Philox is counter based: its counter is set to (place of the first sample, ticket, part),
        so the part of a batch that a thread handles sees the numbers that the whole batch would
        see, and a backward pass can have the numbers of its forward again.
        """
        n, each = shape[0], math.prod(shape[1:])
        ticks = -(-each // 8)  # one tick of the counter gives eight float32
        key = self._seed_sequence.generate_state(2, np.uint64)
        first, step, kind = ticket or self._random_key()
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
        if not shape and self._declared and not self.takes_tokens:
            raise ShapeError(f"{self!r} needs samples of at least one axis, got shape ().")
        self.cast(self.dtype if dtype is None else dtype)
        if seed is not None:
            self._set_seed(seed)
        self._generator = np.random.default_rng(self._seed_sequence) if self.creates else None
        if not self.children() and any(isinstance(v, Layer) for _, v in self._spread()):
            raise ArgumentTypeError(f"{self!r} holds layers: derive it from Container.")
        self.creating = True
        try:
            self.output_shape = self.create(shape)
        finally:
            self.creating = False
        self.input_shape = shape
        return self.output_shape

    def _check_initialized(self) -> None:
        """Refuse a layer whose author forgot `super().__init__()`."""
        if "_frame" not in vars(self):
            raise NotBuiltError(
                f"{type(self).__name__} has no parameters yet: its __init__ must begin "
                "with super().__init__()."
            )

    def _make_parameters(self) -> None:
        """Build from the settings alone, or say that they do not tell the input's shape."""
        self._check_initialized()
        if self.output_shape is None and self._declared:
            self.build(self._known_or_refuse())

    def _measured(self, input_shape: Shape | None = None) -> Self:
        """A copy built without making any array: for shapes and counts."""
        shape = self._known_or_refuse() if input_shape is None else input_shape
        ghost = self._replica()
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
                layer._frame = Frame()
                for store in (layer.params, layer.state):
                    store.update({name: a.astype(wanted) for name, a in store.items()})

    def _set_seed(self, seed: Any) -> None:
        """Give this layer and those below random streams of their own, one for each path.

        `seed` is an integer or a NumPy SeedSequence.
        """
        root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._seed = root
        for i, child in enumerate(self.children().values()):
            key = (*root.spawn_key, i)
            child._set_seed(np.random.SeedSequence(root.entropy, spawn_key=key))

    @property
    def _seed_sequence(self) -> np.random.SeedSequence:
        if self._seed is None:
            self._set_seed(np.random.SeedSequence())
        assert self._seed is not None
        return self._seed

    def _cast_input(self, X: Any) -> Array:
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

    def _replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        """The same layer with the same parameters and a frame of its own, as a thread needs it.

        `frames` keeps the frames by layer, for the replicas that are made of it later.
        """
        frame = None if frames is None else frames.get(self)
        if frame is None:
            frame = Frame()
            if frames is not None:
                frames[self] = frame
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), _frame=frame, _original=self._original)
        return twin

    @property
    def _original(self) -> Layer:
        """The layer that this one is a replica of, or itself."""
        return cast(Layer, vars(self).get("_original", self))

    def copy(self) -> Self:
        """An independent copy: parameters and state, without cache and gradients."""
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_frame": Frame()}

    # --- parameters ------------------------------------------------------------------------

    @property
    def cache(self) -> dict[str, Any]:
        return self._frame.cache

    @property
    def grads(self) -> dict[str, Array]:
        return self._frame.grads

    @grads.setter
    def grads(self, grads: dict[str, Array]) -> None:
        self._frame.grads = grads

    @property
    def trainable(self) -> bool:
        """Whether optimizers change the parameters here and below; setting it sets all below."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for _, layer in self.walk():
            layer._trainable = bool(value)

    def _learns(self) -> bool:
        """Whether any parameter here or below is trainable."""
        own = self._trainable and bool(self.params)
        return own or any(child._learns() for child in self.children().values())

    def count_params(self) -> int:
        """How many numbers are in the parameters here and below; counting makes none of them."""
        waiting = any(part._declared and part.output_shape is None for _, part in self.walk())
        built = self._measured() if waiting else self
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
            layer._make_parameters()
            for store in (layer.params, layer.state):
                for name in store:
                    yield f"{path}.{name}" if path else name, store, name
