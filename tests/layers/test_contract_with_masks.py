"""What layers of images, sequences and tokens promise of their arrays, with and without a mask."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling, inference
from phitodeep.core.checks import snake_case
from phitodeep.core.types import Array, Shape
from phitodeep.errors import BackwardError
from phitodeep.layers import Layer
from phitodeep.model import SequentialBuilder
from phitodeep.testing.examples import IMAGES, SEQUENCES, TOKENS, Make, data, made, passes
from tests.conftest import assert_same
from tests.rows import few

ALL = [*[(make, shape, 0) for make, shape in [*IMAGES, *SEQUENCES]], *TOKENS]
every = pytest.mark.parametrize(
    ("make", "shape", "tokens"), ALL, ids=[f"{make()} {shape}" for make, shape, _ in ALL]
)
NEW = {type(make()) for make, _, _ in ALL}
LOOKS_AT_MASK = (layers.RNN, layers.LSTM, layers.GRU, layers.Bidirectional)
LOOKS_AT_MASK += (layers.MultiHeadAttention, layers.TransformerBlock)
TAKES_LENGTHS = (layers.Conv1D, layers.ConvTranspose1D, layers.GlobalAvgPool, layers.GlobalMaxPool)


def arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, dict | list | tuple):
        for v in value.values() if isinstance(value, dict) else value:
            yield from arrays(v)
    elif isinstance(value, np.ndarray):
        yield value


def masks(layer: Layer, shape: Shape) -> list[Array | None]:
    """None, and for layers that look at it a mask with holes, or of lengths, and of nothing."""
    if isinstance(layer, TAKES_LENGTHS) and len(shape) == 3:
        return [None, np.arange(shape[1]) < np.arange(shape[0])[:, None] * 2]
    if not isinstance(layer, LOOKS_AT_MASK):
        return [None]
    mask = np.random.default_rng(3).random(shape[:2]) < 0.6
    mask[0] = False
    return [None, mask]


def test_table_covers_every_layer_of_images_sequences_and_tokens() -> None:
    public = {v for n in layers.__all__ if isinstance(v := getattr(layers, n), type)}
    others = {"Dropout", "GaussianNoise", "Reshape", "LayerNorm", "Layer", "Parallel"}  # elsewhere
    others |= {"Dense", "Flatten"} | set(vars(layers.activation))
    missing = {c.__name__ for c in public - NEW if issubclass(c, Layer)}
    assert missing <= others


@pytest.mark.parametrize("kind", sorted(NEW, key=lambda kind: kind.__name__))
def test_builder_has_a_method_of_the_same_signature(kind: type[Layer]) -> None:
    name = {"Lambda": "lambda_"}.get(kind.__name__, snake_case(kind.__name__))
    method = getattr(SequentialBuilder, name)
    wanted = list(inspect.signature(kind).parameters.values())
    assert list(inspect.signature(method).parameters.values())[1:] == wanted
    make, shape, _ = next(row for row in ALL if type(row[0]()) is kind)
    model = SequentialBuilder(*shape[1:]).add(make()).build()
    assert model.output_shape == made(make, shape).output_shape


@pytest.mark.parametrize("dtype", few([np.float32, np.float64], 1))
@every
def test_dtype_never_changes(make: Make, shape: Shape, tokens: int, dtype: type) -> None:
    layer = made(make, shape, dtype)
    X, dY = data(layer, shape, tokens)
    for mask in masks(layer, shape):
        for training in (True, False):
            found = passes(layer, X, dY, training=training, mask=mask)
            kept = [
                a
                for _, part in layer.walk()
                for a in arrays([part.params, part.state, part.cache, part.grads])
            ]
            floats = {a.dtype for a in (*found.values(), *kept) if a.dtype.kind == "f"}
            assert floats == {np.dtype(dtype)}
            assert found["Y"].shape == dY.shape


@every
def test_inference_keeps_nothing(make: Make, shape: Shape, tokens: int) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    for mask in masks(layer, shape):
        with inference(), calling(mask=mask):
            Y = layer.forward(X)
            np.testing.assert_array_equal(layer.forward(X), Y)
        for _, part in layer.walk():
            assert not part.cache
            assert not part._frame.buffers
        with pytest.raises(BackwardError):
            layer.backward(dY)
        with calling(training=False, mask=mask):
            np.testing.assert_array_equal(layer.copy().forward(X), Y)


@every
def test_reused_buffers_change_nothing(make: Make, shape: Shape, tokens: int) -> None:
    fresh = made(make, shape)
    reusing = fresh.copy()
    X, dY = data(fresh, (6, *shape[1:]), tokens)
    batches = [slice(4), slice(3), slice(2, 6), slice(6), slice(5, 6), slice(1, 5)]
    for mask in masks(fresh, (6, *shape[1:])):
        for step, rows in enumerate(batches):
            part = {"step": step, "mask": None if mask is None else mask[rows]}
            wanted = passes(fresh, X[rows], dY[rows], **part)
            with calling(**part, reuse=True):
                Y = reusing.forward(X[rows])
                with inference(), calling(mask=None):
                    reusing.forward(X)
                dX = reusing.backward(dY[rows])
            found = {"Y": Y} if dX is None else {"Y": Y, "dX": dX}
            for path, layer in reusing.walk():
                found |= {f"{path}.{n}" if path else n: a for n, a in layer.grads.items()}
            assert_same(found, wanted, rtol=1e-12, atol=1e-14)


@every
def test_bare_results_are_fresh(make: Make, shape: Shape, tokens: int) -> None:
    if isinstance(make(), layers.Permute | layers.Flatten):
        return
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    for training in (True, False):
        with calling(training=training):
            Y = layer.forward(X)
            dX = layer.backward(dY)
            kept = [a.copy() for a in (Y, dX) if a is not None]
            assert not np.shares_memory(Y, X)
            assert dX is None or not np.shares_memory(dX, dY)
            layer.forward(X if tokens else X + 1)
            layer.backward(dY + 1)
        for a, copy in zip([a for a in (Y, dX) if a is not None], kept, strict=True):
            np.testing.assert_array_equal(a, copy)


@every
def test_gradients_of_parameters_do_not_need_dX(make: Make, shape: Shape, tokens: int) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    whole = passes(layer, X, dY)
    with calling(step=0, needs_dX=False):
        layer.forward(X)
        layer.backward(dY)
    for path, part in layer.walk():
        for name, a in part.grads.items():
            wanted = whole[f"{path}.{name}" if path else name]
            np.testing.assert_allclose(a, wanted, rtol=1e-12, atol=1e-14)
