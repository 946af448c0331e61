"""Sequential: layers one after another, with a loss, an optimizer and a training loop."""

from __future__ import annotations

from typing import Any

from phitodeep.core.call import calling
from phitodeep.core.checks import as_mask, without_padding
from phitodeep.core.types import Array, PathLike
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain
from phitodeep.model.model import Model
from phitodeep.training.shortcuts import check_pair

FEWEST, LONGEST = 4, 300  # layers, and characters of them: above both, `repr` leaves some out


class Sequential(Model, Chain):
    """Layers one after another, with a loss, an optimizer and a training loop.

    The methods that look into a model, such as `summary` and `trace`, come from `Inspectable`, and
    those for fine-tuning by LoRA, such as `add_lora`, from `Adaptable`.

    alpha        the learning rate: a number, or a schedule (a function of the step); by default
                 the optimizer's own
    optimizer    an Optimizer or its name; Adam() by default
    batch_size   samples per step; by default all of them
    epochs       epochs per call of `train`
    loss_class   a Loss or its name; MeanSquaredError() by default
    metrics      names or functions, reported along with the loss
    seed         makes weights, shuffles and dropout masks reproducible bit for bit
    dtype        "float32" (the default) or "float64"

    A layer whose settings determine its sizes, such as `Dense(784, 128)`, is built immediately, and
    sizes that do not fit are refused. The other layers are built when the input shape is known: by
    `build`, or by the first call of `train`.
    """

    def __repr__(self) -> str:
        shown = [*map(repr, self.layers)]
        if len(shown) > FEWEST and sum(map(len, shown)) > LONGEST:
            shown[2:-1] = [f"... {len(shown) - 3} more ..."]
        return f"{type(self).__name__}({', '.join(shown)})"

    def add(self, layer: Layer) -> None:
        """Append a layer; if it does not fit, it is refused and the model is left unchanged."""
        before = self.layers
        self.layers = self._held([*before, layer])
        try:
            self._set_seed(self._seed_sequence)
            self.cast(self.dtype)
            if self.input_shape is None:
                self._build_known()
            else:
                self.build(self.input_shape)
        except Exception:
            self.layers = before
            raise

    def forward(self, X: Array, *, lengths: Any = None) -> Array:
        """Return Y (N, ...) for X (N, ...), and cache what `backward` needs.

        lengths    for sequences X (N, T, ...): the number of steps of each sample, (N,) integers,
                   or a boolean mask (N, T). The other steps are padding: they are set to 0 and have
                   no effect
        """
        if lengths is None:
            return self._through(X)
        mask = as_mask(lengths, X.shape, tokens=self.takes_tokens)
        with calling(mask=mask):
            return self._through(without_padding(X, mask))

    def _check(self) -> None:
        """Refuse a loss that does not match the last layer; warn if softmax is applied twice."""
        pair = self._last, self.loss
        if pair != self._checked:
            check_pair(*pair)
            self._checked = pair


def load(path: PathLike) -> Any:
    """Return the model in a file that `Sequential.save` or `ModelCheckpoint` wrote.

    See `Sequential.load`.
    """
    return Model.load(path)
