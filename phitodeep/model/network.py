"""Network: layers that read and give named values, with losses, an optimizer and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from phitodeep.core.call import calling
from phitodeep.core.types import DType, each
from phitodeep.errors import ArgumentError, ShapeError, locate
from phitodeep.layers.wiring import Wired
from phitodeep.loss.heads import Heads, by_name
from phitodeep.model.model import Model
from phitodeep.training.inputs import in_order
from phitodeep.training.shortcuts import check_pair


class Network(Model, Wired):
    """Layers between named values, from one input or several to one output or several.

        net = Network(
            ["image", "words"],
            [
                (Flatten(), ["image"], ["pixels"]),
                (Dense(64), ["pixels"], ["seen"]),
                (Embedding(1000, 32), ["words"], ["vectors"]),
                (LSTM(64, return_sequences=False), ["vectors"], ["read"]),
                (Concat(), ["seen", "read"], ["both"]),
                (Dense(10), ["both"], ["digit"]),
                (Dense(4), ["both"], ["box"]),
            ],
            ["digit", "box"],
            loss_class={"digit": "softmax_cross_entropy", "box": "huber"},
            loss_weights={"box": 0.5},
        )
        net.build({"image": (28, 28, 1), "words": (40,)})
        net.train({"image": X, "words": W}, {"digit": y, "box": b}, epochs=5)

    takes, uses, returns    see `Wired`: the inputs, the layers, and the outputs
    loss_class              a loss by output; an output without one is predicted only
    loss_weights            the factor of each loss in the sum; 1 by default
    metrics                 lists of metrics by output

    All other settings, and all methods, are those of `Sequential`. Inputs and targets are dicts by
    name, or tuples in the order of declaration; of a single one, an array is enough.
    """

    refers_to = (*Model.refers_to, *Wired.refers_to)
    _default_loss: ClassVar[Any] = {}
    kept_as: ClassVar = {**Model.kept_as, "loss_class": "_own_loss"}

    def __init__(
        self,
        takes: Sequence[str],
        uses: Sequence[Any],
        returns: Sequence[str],
        *,
        loss_weights: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        self._returned = tuple(returns)
        self.loss_weights = by_name(loss_weights, self._returned, "loss_weights")
        if self.loss_weights and len(self._returned) == 1:
            raise ArgumentError("a network with one output has one loss: leave out loss_weights.")
        super().__init__(takes, uses, returns, **options)

    def __repr__(self) -> str:
        ends = " -> ".join(", ".join(names) for names in (self.takes, self.returns))
        return f"{type(self).__name__}({ends}: {len(self.layers)} layers)"

    def forward(self, *Xs: Any, lengths: Any = None) -> Any:
        """Return the outputs for X_i (N, ...), and cache what `backward` needs.

        lengths    by input, as in `Sequential.forward`
        """
        if len({len(X) for X in Xs}) > 1:
            counts = ", ".join(f"{len(X)} of {n}" for n, X in zip(self.takes, Xs, strict=True))
            raise ShapeError(f"{self!r} needs as many samples of each input, got {counts}.")
        if lengths is None:
            return self._through(*Xs)
        X, mask = self._inputs(Xs if self.inputs > 1 else Xs[0], lengths)
        with calling(mask=mask):
            return self._through(*each(X))

    def setloss(self, loss_class: Any) -> None:
        """Set the loss of each output, by name; a network with one output also takes one loss."""
        names = self._returned
        alone = len(names) == 1 and not isinstance(loss_class, Mapping)
        given = by_name({names[0]: loss_class} if alone else loss_class, names, "losses")
        if len(names) == 1:
            super().setloss(given.get(names[0], "mse"))
            return
        losses = {}
        for name, loss in given.items():
            try:
                super().setloss(loss)
            except Exception as error:
                locate(error, f"the output {name!r}")
                raise
            losses[name] = self.loss
        self.loss = Heads(losses, self.loss_weights, names)

    @property
    def _own_loss(self) -> Any:
        """The loss, or the losses by output."""
        return self.loss.losses if isinstance(self.loss, Heads) else self.loss

    def _check(self) -> None:
        """Refuse losses that do not match the layers before them."""
        ends = {name: layer for layer, _, gives in self.uses for name in gives}
        losses = self.loss.losses if isinstance(self.loss, Heads) else {self.returns[0]: self.loss}
        for name, loss in losses.items():
            check_pair(ends.get(name), loss)

    def _check_trained(self) -> None:
        reached = {*(self.loss.losses if isinstance(self.loss, Heads) else self.returns)}
        if not reached:
            raise ArgumentError(
                f"no output of this network has a loss: give one to {', '.join(self.returns)}, as "
                "in loss_class={...} or .output(..., loss=...)."
            )
        ends = self._outputs_by_layer()
        for k, layer in enumerate(self.layers):
            if self.outputs > 1 and reached.isdisjoint(ends[layer]) and layer._learns():
                raise ArgumentError(
                    f"{self._place(k)}, {layer!r}, is not trained: no loss depends on what it "
                    "gives. Give its output a loss, or freeze it (trainable = False)."
                )

    def _as_metrics(self, metrics: Any) -> Any:
        if not isinstance(self.loss, Heads):
            given = metrics.get(self.returns[0], ()) if isinstance(metrics, Mapping) else metrics
            return super()._as_metrics(given)
        given = by_name(metrics, self._returned, "metrics")
        return {name: super(Network, self)._as_metrics(own) for name, own in given.items()}

    def _build_known(self) -> None:
        """Sizes are known when the inputs' shapes are."""

    def build(self, input_shape: Any, *, seed: Any = None, dtype: DType = None) -> Any:
        """Build for samples of these shapes: a dict by name, or a tuple in order."""
        shapes = in_order(input_shape, self.takes, "input_shape")
        return super().build(shapes[0] if self.inputs == 1 else shapes, seed=seed, dtype=dtype)

    def _in_order(self, X: Any, y: Any) -> tuple[Any, Any]:
        Xs, ys = in_order(X, self.takes, "X"), in_order(y, self.returns, "y")
        return Xs if self.inputs > 1 else Xs[0], ys if self.outputs > 1 else ys[0]
