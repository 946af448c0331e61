"""The network of an estimator: embeddings, hidden layers or the user's own layers, and outputs."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.checks import choose, class_hint
from phitodeep.core.types import Array, DType
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers import Chain, Dense, Embedding, Flatten, Layer, Parallel, Reshape, Select
from phitodeep.layers import activation as activation_layers
from phitodeep.layers.random import shapes_only
from phitodeep.layers.wiring import Wired
from phitodeep.loss import Loss
from phitodeep.model.architectures import mlp
from phitodeep.model.builder import SequentialBuilder, method_name
from phitodeep.model.sequential import Sequential
from phitodeep.sklearn.table import UNKNOWN

WIDEST = 16  # values per category
ACTIVATIONS = {  # layers that treat each number alone, by name, with the builder's method
    name: method_name(name)
    for name in activation_layers.__all__
    if getattr(activation_layers, name).time_steps == "independent"
}
OURS = {  # what a builder may set, but estimators decide themselves: the parameter to use instead
    "alpha": "learning_rate=",
    "batch_size": "batch_size=",
    "dtype": "dtype=",
    "epochs": "epochs=",
    "metrics": "scoring= of cross_val_score",
    "optimizer": "optimizer=",
    "seed": "random_state=",
}


def network(
    hidden: int | Sequence[int], activation: str, dropout: float,
    builder: SequentialBuilder | None, *, features: int, offsets: Array, outputs: int,
    loss: Loss, seed: int, dtype: DType,
) -> Sequential:  # fmt: skip
    """Return the untrained network for rows (n, features), tokens first: see `TableEncoder`.

    builder     replaces `hidden`, `activation` and `dropout`
    offsets     (C + 1,): where the tokens of each category column begin, and their number
    outputs     the number of values that it returns for each row
    loss        unless the builder has its own
    """
    first, width = embeddings(features, offsets)
    options: dict[str, Any] = {}
    if builder is None:
        if not isinstance(activation, str):
            raise ArgumentTypeError(
                f'activation must be a name, such as "relu", got {activation!r}.'
            )
        name = choose(activation, ACTIVATIONS, "activation")
        sizes = [hidden] if isinstance(hidden, int | np.integer) else hidden
        if isinstance(sizes, str) or not isinstance(sizes, Sequence | np.ndarray):
            raise ArgumentTypeError(
                f"hidden takes the sizes of the hidden layers, such as (64, 32), got {hidden!r}."
            )
        layers = mlp(width, *sizes, outputs, activation=name, dropout=dropout).layers
    else:
        layers, options = own_layers(builder, width, outputs)
    options = {"loss_class": loss, **options}
    model = Sequential(*first, *layers, **options, seed=seed, dtype=dtype)
    model.build((features,))
    model._check()
    return model


def embeddings(features: int, offsets: Array) -> tuple[list[Layer], int]:
    """Return the layer that replaces each token by a learnt vector, and the width of a row then.

    There is no such layer without tokens. All columns share one Embedding, since one lookup is
    faster than several. Its vectors have 1.6 k^0.56 values for k categories, at most WIDEST, where
    k belongs to the column with the most categories.
    Sources: Guo and Berkhahn 2016, "Entity embeddings of categorical variables", arXiv:1604.06737;
    the size is the rule of thumb of the fastai library.
    """
    C, vocabulary = len(offsets) - 1, int(offsets[-1])
    if not C:
        return [], features
    dim = min(WIDEST, round(1.6 * float(np.diff(offsets).max()) ** 0.56))
    tokens = Chain(Select(range(C), tokens=True), Embedding(vocabulary, dim), Flatten())
    if features == C:
        return [tokens], C * dim
    return [Parallel(tokens, Select(range(C, features)))], C * dim + features - C


def own_layers(
    builder: SequentialBuilder, width: int, outputs: int
) -> tuple[list[Layer], dict[str, Any]]:
    """Return copies of the builder's layers, for rows of `width` values, and its options.

    If the builder's input has several axes, each row is reshaped to it first. If the last layer is
    not a Dense with as many units as there are outputs, one is appended.
    """
    if not isinstance(builder, SequentialBuilder):
        raise ArgumentTypeError(
            f"model must be a SequentialBuilder that has not been built, got {builder!r}."
            f"{class_hint(builder)}"
        )
    given = {name: value for name, value in builder._options.items() if value is not None}
    for name in given:
        if name in OURS:
            raise ArgumentError(
                f"model sets {name}, which the estimator decides: leave it out of the builder and "
                f"use {OURS[name]} instead."
            )
    draft, given = copy.deepcopy((builder._draft, given))
    layers: list[Layer] = [layer for layer, _, _ in draft.uses]
    if builder.is_network:
        takes, uses, returns = draft.wired()
        if len(takes) > 1 or len(returns) > 1 or draft.heads:
            raise ArgumentError(
                "model has several inputs, or names its outputs, and a table is one input with one "
                "output, whose loss the estimator sets: leave .output(...) out."
            )
        layers = [Wired(takes, uses, returns)]
    shape = builder.input_shape
    if shape is not None and shape != (width,):
        if math.prod(shape) != width:
            raise ArgumentError(
                f"model takes samples of shape {shape}, but each row has {width} values "
                "after the categories are embedded: leave the input shape out of the builder, or "
                "make it fit."
            )
        layers.insert(0, Reshape(*shape))
    with shapes_only():
        shape = Chain(*copy.deepcopy(layers)).build((width,)) if layers else (width,)
    last = layers[-1] if layers else None
    last = last._last if isinstance(last, Wired) else last
    if shape == (outputs,) and getattr(last, "gives", "") in ("probabilities", "log-probabilities"):
        raise ArgumentError(
            f"model ends with {last!r}: leave it out, since the last layer returns logits or "
            "numbers, and predict_proba turns logits into probabilities."
        )
    if not (isinstance(last, Dense) and shape == (outputs,)):
        layers += [Flatten()] * (len(shape) > 1) + [Dense(outputs)]
    return layers, given


def average_unknown(model: Sequential, offsets: Array, counts: Array) -> None:
    """Give unknown categories the mean vector of their column's categories, by their frequency.

    counts    (vocabulary,): how often each token occurred in training
    """
    W = next(layer for _, layer in model.walk() if isinstance(layer, Embedding)).W
    for start, end in itertools.pairwise(offsets):
        W[start + UNKNOWN] = np.average(W[start:end], axis=0, weights=counts[start:end])
