"""A step of training on a copy of a model, with all that its passes received and returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phitodeep.core.call import Call, Event, Watch, calling, current, watching, within
from phitodeep.core.types import Array
from phitodeep.errors import DivergenceError
from phitodeep.inspect.hooks import active
from phitodeep.layers.base import Layer
from phitodeep.loss import Loss
from phitodeep.training.inputs import Data, validate
from phitodeep.training.objective import Trainable


@dataclass
class Passes:
    """Both passes of one layer: what they received and returned, and the mode in which they ran."""

    layer: Layer
    call: Call
    X: Any  # one array, or of several inputs a tuple; likewise the others
    Y: Any
    dY: Any = None  # None: the layer's backward pass did not run
    dX: Any = None
    grads: dict[str, Array] = field(default_factory=dict)

    def array(self, name: str) -> Any:
        """The array of a symbol, such as Y, or X2 of a layer with several inputs."""
        kind = name.rstrip("0123456789")
        value = getattr(self, kind)
        return value if kind == name or value is None else value[int(name[len(kind) :]) - 1]


class Recorder:
    """A watcher that keeps the passes of every layer, by path.

    It also applies the watcher that was active before, such as the hooks of `Sequential.hooks`.
    Outside the training loop, passes return new arrays, so no copies are needed.
    """

    def __init__(self, outer: Watch | None = None) -> None:
        self.outer = outer
        self.passes: dict[str, Passes] = {}
        self.received: dict[tuple[str, str], Any] = {}  # by what ran, such as "loss", and path

    def __call__(self, event: Event) -> Array | None:
        replaced = None if self.outer is None else self.outer.watcher(event)
        array: Any = event.array if replaced is None else replaced
        given = self.received.get((event.what, event.path))
        if event.when == "before":
            self.received[event.what, event.path] = array
        elif event.what == "forward":
            self.passes[event.path] = Passes(event.source, current(), given, array)
        elif event.what == "backward":
            passes = self.passes[event.path]
            passes.dY, passes.dX, passes.grads = given, array, dict(event.source.grads)
        return replaced


@dataclass
class Recording:
    """A recorded step of training, and the copy of the model that took it.

    passes    of each layer, by path; those of the model itself are at ""
    data      the checked batch
    total     the divisor of the loss
    value     the loss
    """

    model: Trainable
    data: Data
    total: float
    call: Call
    passes: dict[str, Passes]
    P: Array
    dP: Array
    value: float
    watch: Watch | None = None  # the watcher that was active

    @property
    def loss(self) -> Loss:
        return self.model.loss

    def backward(self, dP: Array) -> dict[str, Passes]:
        """Run only the backward pass again, for another gradient of the predictions."""
        recorder = Recorder(self.watch)
        for path, passes in self.passes.items():
            recorder.passes[path] = Passes(passes.layer, passes.call, passes.X, passes.Y)
        with within(self.call), watching(recorder, root=self.model):
            self.model.backward(dP)
        return recorder.passes


def prepared(
    model: Trainable, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None
) -> tuple[Data, Trainable, Call]:
    """Return the checked batch, a copy of the model, and the mode of the model's next step.

    If the model is not built yet, it is built for X.
    """
    model._check()
    data = validate(model, model.loss, X, y, sample_weight, lengths)
    if model.input_shape is None:
        model.build(data.sample)
    data = data._pick(lambda A: A.copy())  # the caller may change the arrays later
    return data, model.copy(), Call(step=model.optimizer.t, mask=data.mask)


def record(model: Trainable, X: Any, y: Any, **options: Any) -> Recording:
    """Run forward, loss and backward once on a copy of the model, in training mode, as written.

    It draws the random numbers of the model's next step. Nothing in the model changes. `prepared`
    takes the options.
    """
    data, twin, call = prepared(model, X, y, **options)
    recorder = Recorder(active(model))
    total = twin.loss.divisor(data.T, data.w, data.outputs)
    with within(call), watching(recorder, root=twin, recomputed=True):
        P = twin.forward(data.X)
        value, dP = twin.loss._watched(P, data.T, data.w, None)
        twin.backward(dP)
    P = recorder.received["loss", ""]
    return Recording(twin, data, total, call, recorder.passes, P, dP, value, recorder.outer)


def updates_of(model: Trainable) -> tuple[dict[str, dict[str, Array]], str]:
    """What the optimizer would add to each parameter, by path, given the gradients of its layers.

    The second result says why there is nothing, if so. The parameters are restored, but not the
    optimizer's memory, so pass a copy of a model.
    """
    if model.optimizer.evaluates_often:
        return {}, "no update: L-BFGS measures the loss at several places before it moves"
    layers = [(path, layer) for path, layer in model.walk() if layer.params]
    before = {path: {n: a.copy() for n, a in layer.params.items()} for path, layer in layers}
    try:
        with calling(watch=None):
            model.optimizer.step(model.layers)
    except DivergenceError as error:
        return {}, f"no update: {error}"
    updates = {}
    for path, layer in layers:
        if layer.trainable:
            updates[path] = {n: layer.params[n] - a for n, a in before[path].items()}
        for name, a in before[path].items():
            layer.params[name][...] = a
    return updates, ""
