"""The base class of all layers: their parameters, the contract of both passes, and the tree.

Long because the whole contract of a layer is in one place: what its author writes, what its author
calls, and what happens before and after each pass.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, cast, overload

import numpy as np

from phitodeep.core.call import Call as Call
from phitodeep.core.call import Event as Event
from phitodeep.core.call import Watch as Watch
from phitodeep.core.call import calling as calling
from phitodeep.core.call import current as current
from phitodeep.core.call import inference as inference
from phitodeep.core.call import saliency as saliency
from phitodeep.core.call import watching as watching
from phitodeep.core.call import within as within
from phitodeep.core.checks import as_dtype, as_float, as_real, as_tokens, check_shape
from phitodeep.core.config import Configurable
from phitodeep.core.frame import Buffered as Buffered
from phitodeep.core.frame import Frame
from phitodeep.core.settings import Checked
from phitodeep.core.state import check_entries
from phitodeep.core.types import Array, DType, Shape, each, one
from phitodeep.derivations.language.step import Derivation
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackwardError,
    NotBuiltError,
    OrderError,
    ShapeError,
)
from phitodeep.layers.random import _SHAPES_ONLY, LARGEST, Seeded
from phitodeep.layers.random import RandomKey as RandomKey

__all__ = ["Layer", "Param", "State"]


class Param:
    """A parameter of a layer: `layer.W` reads it, `layer.W = a` writes into it.

    decay    whether weight decay and penalties apply: they do for a layer's weight matrices,
             and never for biases or the scales of norms
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
            return self._existing(layer)

    def __set__(self, layer: Layer, value: Any) -> None:
        """Write into the array, because other objects may hold views of it; `create` makes it.

        A layer that is built again keeps the values that it has.
        """
        new = value
        if type(new) is not np.ndarray or new.dtype.kind not in "fiub":
            new = as_real(new, f"{layer!r}: parameter {self.name!r}")
        store: dict[str, Array] = getattr(layer, self.store)
        if self.name not in store:
            if layer._creating:
                store[self.name] = new if layer._shapes_only else np.array(new, layer.dtype)
                return
            layer._make_parameters()
        old = self._existing(layer)
        if old.shape != new.shape:
            raise ShapeError(
                f"{layer!r}: parameter {self.name!r} has shape {old.shape}, got {new.shape}."
            )
        if not layer._creating:
            old[...] = new

    def _existing(self, layer: Layer) -> Array:
        store: dict[str, Array] = getattr(layer, self.store)
        if self.name not in store:
            raise NotBuiltError(f"{layer!r} has no parameter {self.name!r}.")
        return store[self.name]


class State(Param):
    """An array that a layer remembers but does not learn, such as running statistics."""

    store = "state"


def _nested_items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each item of a list, tuple or dict, and of those nested in it."""
    for key, v in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(v, list | tuple | dict):
            yield from _nested_items(f"{name}.{key}", v)
        else:
            yield f"{name}.{key}", v


def _guard_forward(forward: Callable[..., Any], several: bool) -> Callable[..., Any]:
    """Wrap `forward`: cast X to the layer's dtype, and remember the shape that dY must have.

    Several inputs, or the gradients of several outputs, may also come as one value, a tuple.
    """

    @functools.wraps(forward)
    def guarded(self: Layer, X: Any, *more: Any, **kwargs: Any) -> Any:
        if self.output_shape is None:
            self._make_parameters()
        if more or (several and self.inputs != 1):
            X = self._each_input((X, *more) if more else X)
        if type(X) is not np.ndarray or X.dtype != self.dtype or self.takes_tokens or not X.ndim:
            X = self._cast_input(X)
        call = current()
        if call.watch is not None:
            Y = call.watch.run("forward", self, forward, X, kwargs)
        elif several or kwargs:
            Y = forward(self, *each(X), **kwargs)
        else:
            Y = forward(self, X)
        if (
            type(Y) is not np.ndarray
            or type(X) is tuple
            or Y.shape[1:] != self.output_shape
            or Y.shape[:1] != X.shape[:1]
        ):
            self._check_output(X, Y)
        if call.caching and call.memory is None:  # call.keeps, without a function call
            tupled = type(Y) is tuple
            self._frame.output = [(y.shape, y.dtype) for y in Y] if tupled else (Y.shape, Y.dtype)
        return Y

    return guarded


def _guard_backward(backward: Callable[..., Any], several: bool) -> Callable[..., Any]:
    """Wrap `backward`: require a forward pass before it, and a dY with the shape of Y."""

    @functools.wraps(backward)
    def guarded(self: Layer, dY: Any, *more: Any) -> Any:
        frame = self._frame
        if more:
            dY = dY, *more
        if frame.output is None:
            raise BackwardError(
                f"{self!r} has nothing cached: run a forward pass in training mode first "
                "(inference caches nothing)."
            )
        if type(dY) is not np.ndarray or (dY.shape, dY.dtype) != frame.output:
            dY = self._cast_gradient(dY, frame.output)
        frame.grads = {}
        call = current()
        if call.watch is None:
            dX = backward(self, *each(dY)) if several else backward(self, dY)
        else:
            dX = call.watch.run("backward", self, backward, dY, {})
        if call.ended is not None:
            outer: Any = type(self).backward
            if guarded in (outer, outer.__wrapped__):  # not in super().backward
                call.ended(self)
        return dX

    return guarded


class Layer(Seeded, Checked, Configurable, registered=False):
    """A differentiable function Y = f(X; parameters) with a hand-derived backward pass.

    The author of a layer writes `__init__` (settings only), `create(input_shape) -> output_shape`
    (creates the parameters; shapes leave out the batch axis), `forward(X) -> Y` and
    `backward(dY) -> dX`. Every layer then has

        layer.params    parameters by name
        layer.grads     gradients of the last backward pass by parameter name
        layer.state     values that are remembered but not learned, such as running statistics
        layer.cache     values that forward saved for backward

    `backward` returns exactly dL/dX and overwrites `grads`. It never divides by the batch size.
    `forward` never writes into X, and `backward` never writes into dY.
    """

    config_kind = "layer"
    inputs: Any = 1  # the number of arrays that forward takes; None: any number from 2 on
    outputs: Any = 1  # the number that it returns; several are a tuple
    takes_tokens: Any = False  # True: X holds integers, such as token ids, which stay integers
    _flops_per_output = 1  # for an elementwise layer; matrix layers override `flops`
    _declared: ClassVar[dict[str, Param]] = {}  # parameters and state of the class

    # Declarations. A class that overrides `forward` must declare all of them again, and a class
    # that overrides only `backward` must declare the first one again.
    independent_samples: Any = False  # whether sample i of Y depends only on sample i of X
    # What step t of Y (N, T, ...) depends on: "independent", step t of X only; "remembered", steps
    # up to t, which generation keeps in the call's memory; "joined", possibly all steps of X.
    time_steps: Any = "joined"
    output_shape: Shape | None = None  # the shape of one output; None until built
    gives: Any = ""  # "probabilities", "log-probabilities", "numbers", or "" if unknown
    max_steps: int | None = None  # the maximum number of steps, if there is one
    keeps_lock: Any = False  # whether most time goes into Python code, where only one thread runs
    _mask_remedy: ClassVar[str] = (  # what to do if `compute_mask` refuses
        'leave out `lengths`; in a layer of your own, declare time_steps = "independent" or write '
        "compute_mask"
    )
    surrogate: Any = False  # whether backward is, on purpose, not the derivative of forward
    refers_to: ClassVar[tuple[str, ...]] = ()  # attributes that refer to layers elsewhere

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        new = [kind for kind in cls.__mro__ if kind is cls or not issubclass(kind, Layer)]
        overridden = set()
        for name, guard in (("forward", _guard_forward), ("backward", _guard_backward)):
            source = next(kind for kind in cls.__mro__ if name in vars(kind))
            if source in new:  # the class itself, or a mixin that is not a layer
                several = (cls.inputs, cls.outputs) != (1, 1)
                setattr(cls, name, guard(vars(source)[name], several))
                overridden.add(name)
        if not cls.__module__.startswith("phitodeep."):
            if not callable(vars(cls).get("steps", Layer.steps)):
                raise ArgumentTypeError(
                    f"{cls.__name__} declares steps = {cls.steps!r}: steps() is the layer's "
                    "derivation. To declare how time steps depend on each other, write time_steps."
                )
            undeclared = ["independent_samples", "steps"] if overridden else []
            undeclared += ["time_steps", "gives", "compute_mask"] if "forward" in overridden else []
            for name in undeclared:
                if all(name not in vars(kind) for kind in new):
                    setattr(cls, name, getattr(Layer, name))
        declared = {name: p for name, p in vars(cls).items() if isinstance(p, Param)}
        cls._declared = {**cls._declared, **declared}

    def __init__(self) -> None:
        """Take no settings, as most activations do."""

    def _begin(self) -> None:
        super()._begin()
        if type(self).__hash__ is None:
            raise ArgumentTypeError(
                f"{type(self).__name__} compares layers by value, but each layer equals only "
                "itself: write @dataclass(eq=False)."
            )
        self.params: dict[str, Array] = {}
        self.state: dict[str, Array] = {}
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.input_shape: Shape | None = None
        self.output_shape = None
        self._creating = False  # True while `create` runs
        # True: this layer only computes shapes. The code of other authors may need real arrays.
        self._shapes_only = _SHAPES_ONLY.get() and type(self).__module__.startswith("phitodeep.")
        self._trainable = True
        self._generator: np.random.Generator | None = None
        self._seed: np.random.SeedSequence | None = None

    # --- what an author writes -------------------------------------------------------------

    def create(self, shape: Shape) -> Shape:
        """Create the parameters for samples of `shape`, and return the shape of one output."""
        return shape

    def forward(self, X: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must implement forward(X) -> Y.")

    def backward(self, dY: Array) -> Array | None:
        raise NotImplementedError(f"{type(self).__name__} must implement backward(dY) -> dX.")

    def steps(self) -> Derivation | None:
        """Return the layer's derivation as data, for the mode of the current call, or None.

        It holds the steps of both passes, from X to Y and from dY to dX and the gradients of all
        parameters, as `derivations/language/step.py` explains. The tools that show backpropagation
        read it. For a layer without it, they show only X, Y, dY, dX and gradients.

        By default, they are read from the source of `forward`, if `derive` can read it and the
        steps give the values of both passes; otherwise, the layer has none.
        """
        from phitodeep.derivations.derive.own import steps_of

        return steps_of(self, self.forward)

    def compute_mask(self, *masks: Any) -> Array | None:
        """Return the mask of Y (N, T'), given the mask of X (N, T), or None if Y has no steps.

        With several inputs, it gets the mask of each, None for one without; they must be equal.

        A mask is True for each step that is not padding. A layer with time_steps = "independent"
        passes it on. Any other layer must override this method and respect the call's mask in both
        passes; otherwise `lengths` are refused.
        """
        if self.time_steps != "independent":
            raise ArgumentError(
                f"{self!r} does not accept `lengths`: padding would change the other steps. "
                f"Remedy: {self._mask_remedy}."
            )
        for mask in masks[1:]:
            if not np.array_equal(mask, masks[0]):
                raise ArgumentError(
                    f"{self!r}: with `lengths`, all inputs must have the same steps."
                )
        return cast(Array | None, masks[0])

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return the matrices in W, an array of this parameter's size, as views (n, rows, columns).

        Muon updates each of them as a matrix. The default is one matrix. A lookup table, such as
        an embedding, has none.
        """
        W = W.reshape(-1, self.params[name].shape[-1])
        return [W[None]]

    @property
    def tied(self) -> dict[str, tuple[Layer, str]]:
        """Parameters of other layers that this one uses, as {name: (layer, name in that layer)}."""
        return {}

    def known_input(self) -> Shape | None:
        """Return the input shape, or None if the settings do not determine it."""
        return None

    def flops(self) -> int:
        """Return the number of floating-point operations of a forward pass, per sample."""
        return self._flops_per_output * math.prod(self.output_shape or ())

    # --- what an author uses ---------------------------------------------------------------

    def save_for_backward(self, **values: Any) -> None:
        """Keep values for `backward`; in inference and generation, keep nothing."""
        call = current()
        if call.caching and call.memory is None:  # as call.keeps
            self._frame.cache = values

    def save(self, *path: Any, **values: Any) -> Any:
        """Raise an OrderError: `Sequential.save` writes files, and a single layer cannot."""
        remedy = (
            f"to keep values for backward, call self.save_for_backward({', '.join(values)}=...)."
            if values
            else "only models are saved: write Sequential(layer).save(path)."
        )
        raise OrderError(f"{type(self).__name__}.save: {remedy}")

    def saved(self, *names: str) -> Any:
        """Return what `save_for_backward` kept: one value, or a tuple for several names."""
        cache = self._frame.cache
        try:
            if len(names) == 1:
                return cache[names[0]]
            return tuple([cache[name] for name in names])
        except KeyError as missing:
            raise BackwardError(
                f"{self!r}: backward asks for {missing}, which forward did not save: call "
                f"self.save_for_backward({missing.args[0]}=...) in forward."
            ) from None

    def grad_array(self, name: str) -> Array:
        """Return an uninitialised array for dL/dparameter, and register it in `grads`.

        In a training step it is a slice of the optimizer's vector of all gradients, so that nothing
        is copied. Otherwise it is a new array.
        """
        frame = self._frame
        dW = frame.grad_arrays.get(name) if current().reuse else None
        if dW is None:
            dW = self._new_grad_array(name)
        frame.grads[name] = dW
        return dW

    def needs_grad(self, *names: str) -> bool:
        """Return whether `backward` must write dL/dparameter of any of these parameters.

        It need not if a parameter is frozen and this is a training step, where nobody would read
        the gradient. The gradient that a `backward` writes nevertheless does no harm.
        """
        owners = [self.tied.get(name, (self, name))[0] for name in names]
        return current().needs_frozen or any(owner._trainable for owner in owners)

    def _new_grad_array(self, name: str) -> Array:
        """Return an array for dL/dparameter that is not part of the optimizer's vector."""
        owner, own_name = self, name
        if name not in self.params:
            owner, own_name = self.tied.get(name, (self, name))
        if own_name not in owner.params:
            known = ", ".join([*self.params, *self.tied]) or "none"
            raise ArgumentError(f"{self!r} has no parameter {name!r}: it has {known}.")
        output = self._frame.output
        dtype = self.dtype if output is None else output[-1] if self.outputs == 1 else output[0][1]
        return self.buffer(f"gradient of {name}", owner.params[own_name].shape, dtype)

    def grad_product(self, name: str, A: Array, B: Array) -> None:
        """Register A^T B as dL/dparameter, for A (n, rows) and B (n, columns).

        In a training step, the product for a tied parameter is not an array: the optimizer adds it
        to the owner's gradient, block by block, so A and B must stay as they are until then.
        """
        frame, call = self._frame, current()
        if name in frame.later and call.reuse and call.watch is None:
            frame.products[name] = A, B
            return
        frame.products.pop(name, None)
        np.matmul(A.T, B, out=self.grad_array(name))

    def check_steps(self, X: Array, k: int = 0) -> Array | None:
        """Return the call's mask (N, T) or None; X (N, T, ...) must match it and not be empty.

        X is input k, from 0, each of which has a mask if there are several.
        """
        if X.size == 0:
            raise ShapeError(f"{self!r} needs at least one sample and step, got shape {X.shape}.")
        mask: Any = current().mask
        if isinstance(mask, tuple):
            mask = mask[k]
        if mask is not None and (mask.dtype != bool or mask.shape != X.shape[:2]):
            raise ShapeError(
                f"{self!r} requires a boolean mask of shape {X.shape[:2]}, "
                f"got {mask.dtype} of shape {mask.shape}."
            )
        return cast(Array | None, mask)

    def _check_features(self, shape: Shape, D: int) -> None:
        """Refuse an array of this shape, of X or of a sample, unless its last axis has size D."""
        if shape[-1:] != (D,):
            raise ShapeError(f"{self!r} takes {D} features on the last axis, got shape {shape}.")

    # --- building --------------------------------------------------------------------------

    def build(self, input_shape: Shape, *, seed: Any = None, dtype: DType = None) -> Shape:
        """Create the parameters for samples of shape `input_shape` (without the batch axis).

        Building again is harmless: a new dtype casts the parameters, a new seed changes none of
        them, and a shape that does not fit them is refused. `dtype` defaults to the layer's current
        one, which is float32 at first.
        """
        nested = isinstance(input_shape, tuple) and tuple in map(type, input_shape)
        alone = self.inputs == 1 and not nested
        shapes = (input_shape,) if alone else self._each_input(input_shape)
        shapes = tuple([check_shape(shape, repr(self)) for shape in shapes])
        if not shapes[0] and self._declared and not self.takes_tokens:
            raise ShapeError(f"{self!r} needs samples with at least one axis, got shape ().")
        self.cast(self.dtype if dtype is None else dtype)
        if seed is not None:
            self._set_seed(seed)
        self._generator = (
            np.random.default_rng(self._seed_sequence) if not self._shapes_only else None
        )
        if not self.children() and any(isinstance(v, Layer) for _, v in self._attributes()):
            raise ArgumentTypeError(f"{self!r} contains layers: derive it from Container.")
        if len(shapes) > 1 and type(self).create is Layer.create:
            raise ArgumentTypeError(
                f"{self!r} takes several inputs: write create(self, *shapes), which returns the "
                "shape of one output."
            )
        self._creating = True
        try:
            output_shape = self.create(*shapes)
        finally:
            self._creating = False
        shape = one(shapes, self.inputs == 1)
        outs: Any = (output_shape,) if self.outputs == 1 else output_shape
        if outs is None or not all(isinstance(out, tuple) for out in outs):
            raise ArgumentTypeError(
                f"{self!r}: create must return the shape of each output, such as {shapes[0]}, got "
                f"{output_shape!r}."
            )
        if max(map(math.prod, (*shapes, *outs))) > LARGEST:
            raise ShapeError(
                f"{self!r} turns samples of shape {shape} into samples of shape {output_shape}: "
                "they are too large for any computer."
            )
        self.input_shape, self.output_shape = shape, output_shape
        return output_shape

    def _each_input(self, values: Any) -> tuple[Any, ...]:
        """Return what belongs to each input, or refuse another number of values."""
        found = tuple(values) if isinstance(values, list | tuple) else (values,)
        if len(found) != self.inputs if self.inputs else len(found) < 2:
            raise ArgumentTypeError(
                f"{self!r} takes {self.inputs or 'two or more'} input{'s' * (self.inputs != 1)}, "
                f"got {len(found)}."
            )
        return found

    def _ins(self) -> tuple[Shape, ...]:
        """Return the shape of each input, if they are known."""
        if self.input_shape is None:
            return ()
        return (self.input_shape,) if self.inputs == 1 else cast(Any, self.input_shape)

    def _outs(self) -> tuple[Shape, ...]:
        """Return the shape of each output, if they are known."""
        if self.output_shape is None:
            return ()
        return (self.output_shape,) if self.outputs == 1 else cast(Any, self.output_shape)

    def _make_parameters(self) -> None:
        """Build, or raise a NotBuiltError if the settings do not determine the input shape."""
        if self.output_shape is None and self._declared:
            self.build(self._known_or_refuse())

    def _measured(self, input_shape: Shape | None = None) -> Self:
        """Return a copy that was built without allocating any array, for shapes and counts."""
        shape = self._known_or_refuse() if input_shape is None else input_shape
        twin = self._replica()
        for _, layer in twin.walk():
            layer._shapes_only, layer.params, layer.state = True, {}, {}
        twin.build(shape)
        return twin

    def _known_or_refuse(self) -> Shape:
        known = self.known_input() if self.input_shape is None else self.input_shape
        if known is None:
            raise NotBuiltError(
                f"{self!r} does not know its input shape yet: call build(input_shape), "
                "or set the shape of the model's input with .input(...)."
            )
        return known

    def cast(self, dtype: DType) -> None:
        """Convert all parameters and state of this layer and those below it to `dtype`."""
        wanted = as_dtype(dtype)
        if wanted not in (np.float32, np.float64):
            raise ArgumentTypeError(f"dtype must be float32 or float64, got {dtype!r}.")
        for _, layer in self.walk():
            if layer.dtype != wanted:
                layer.dtype = wanted
                layer._frame = Frame()
                for store in (layer.params, layer.state):
                    store.update({name: a.astype(wanted) for name, a in store.items()})

    def _cast_input(self, X: Any) -> Any:
        """Return X, or each X, as an array of this layer's dtype; an unbuilt one keeps floats."""
        if self.inputs != 1:
            tokens = each(self.takes_tokens) if isinstance(self.takes_tokens, tuple) else ()
            return tuple(
                [self._cast_array(A, k < len(tokens) and tokens[k]) for k, A in enumerate(X)]
            )
        return self._cast_array(X, self.takes_tokens)

    def _cast_array(self, X: Any, tokens: bool) -> Array:
        if tokens:
            X = as_tokens(X, self)
        else:
            X = as_float(X, None if self.output_shape is None else self.dtype, self)
        if X.ndim == 0:
            raise ShapeError(f"{self!r} takes a batch of at least rank 1, got a single number.")
        return X

    def _cast_gradient(self, dY: Any, output: Any) -> Any:
        """Return dY, or each dY, as an array of this shape and dtype; refuse another shape."""
        if isinstance(output, list):
            if len(each(dY)) != len(output):
                raise ArgumentTypeError(
                    f"{self!r} returned {len(output)} arrays, got {len(each(dY))} gradients."
                )
            return tuple([self._cast_gradient(*pair) for pair in zip(dY, output, strict=True)])
        shape, dtype = output
        dY = as_float(dY, dtype, f"{self!r}: dY")
        if dY.shape != shape:
            raise ShapeError(f"{self!r} returned Y of shape {shape}, got dY of shape {dY.shape}.")
        return dY

    # --- the tree --------------------------------------------------------------------------

    def children(self) -> dict[str, Layer]:
        """Return the layers inside, by attribute and index, such as `layers.0`: see `Container`."""
        return {}

    def walk(self, path: str = "") -> Iterator[tuple[str, Layer]]:
        """Yield (path, layer) for this layer, whose path is "", and for all layers below it.

        A path is an index followed by attributes and indices, such as `3.layers.0`.
        """
        yield path, self
        for key, child in self.children().items():
            yield from child.walk(f"{path}.{key}" if path else key.removeprefix("layers."))

    def _replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        """Return a layer that shares the parameters but has its own frame, for use in a thread.

        `frames` maps layers to frames: this call fills it, and later replicas reuse them.
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
        """The layer that this one is a replica of, or the layer itself."""
        return cast(Layer, vars(self).get("_original", self))

    def copy(self) -> Self:
        """Return an independent copy with parameters and state, but without cache or gradients."""
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
        """Whether optimizers change the parameters; setting it also sets all layers below."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for _, layer in self.walk():
            layer._trainable = bool(value)

    def count_params(self) -> int:
        """Return the number of elements in all parameters; counting allocates none of them."""
        unbuilt = any(part._declared and part.output_shape is None for _, part in self.walk())
        built = self._measured() if unbuilt else self
        arrays = {id(a): a.size for _, layer in built.walk() for a in layer.params.values()}
        return sum(arrays.values())

    def gradients(self) -> dict[str, Array]:
        """Return copies of the last gradients of all parameters, by path.

        The gradient of a parameter with several uses, such as a tied weight, is their sum.
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
        """Return copies of all parameters and state, by path."""
        return {path: store[name].copy() for path, store, name in self._stored()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Write all parameters and state, by path; if anything does not fit, nothing changes."""
        slots = {path: (store, name) for path, store, name in self._stored()}
        who = f"{self!r}: the dict of weights by path, as get_weights() returns it,"
        check_entries(weights, slots, who)
        for path, (store, name) in slots.items():
            new = as_real(weights[path], f"{self!r}: {path}")
            if store[name].shape != new.shape:
                raise ShapeError(
                    f"{self!r}: {path} has shape {store[name].shape}, got {new.shape}."
                )
        for path, (store, name) in slots.items():
            store[name][...] = weights[path]

    def _stored(self) -> Iterator[tuple[str, dict[str, Array], str]]:
        """Yield (path, dict that holds the array, name) for every parameter and state."""
        for path, layer in self.walk():
            layer._make_parameters()
            for store in (layer.params, layer.state):
                for name in store:
                    yield f"{path}.{name}" if path else name, store, name

    def _learns(self) -> bool:
        """Whether any parameter of this layer or those below it is trainable."""
        own = self._trainable and bool(self.params)
        own = own or any(owner._trainable for owner, _ in self.tied.values())
        return own or any(child._learns() for child in self.children().values())

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) for each attribute, and for the items of lists, tuples and dicts.

        Attributes that only refer to layers elsewhere are left out.
        """
        for name, value in vars(self).items():
            if name in self.refers_to or name == "_original":
                continue
            if isinstance(value, list | tuple | dict):
                yield from _nested_items(name, value)
            else:
                yield name, value

    def _check_output(self, X: Any, Y: Any) -> None:
        """Refuse an output of forward that differs from what `create` returned."""
        Xs, Ys = each(X), each(Y)
        outs = self._outs() or (None,) * self.outputs
        if len(Ys) != len(outs) or not all(isinstance(A, np.ndarray) for A in Ys):
            wanted = "an array" if len(outs) == 1 else f"a tuple of {len(outs)} arrays"
            raise ArgumentTypeError(
                f"{self!r}: forward must return {wanted}, got {type(Y).__name__}."
            )
        shapes = tuple([A.shape[1:] for A in Xs])
        built = (shapes[0] if self.inputs == 1 else shapes) == self.input_shape
        for A, out in zip(Ys, outs, strict=True):
            wrong = ""
            if any(A.shape[:1] != X.shape[:1] and X.ndim > 1 for X in Xs):  # an axis of features
                wrong = "the first axis of both must be the batch."
            elif built and A.shape[1:] != out:
                wrong = f"create returned the output shape {out}."
            if wrong:  # only an error is worth the time of a repr
                given = " and ".join(str(X.shape) for X in Xs)
                raise ShapeError(
                    f"{self!r}: forward returned Y of shape {A.shape} for X of shape {given}, "
                    f"but {wrong}"
                )


class PerStep(Layer, registered=False):
    """Base class of layers that treat each sample, and each step in it, on its own."""

    independent_samples, time_steps = True, "independent"
