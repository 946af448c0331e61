"""Where the catalogue once fell short."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest

from phitodeep.errors import PhitodeepError
from phitodeep.layers import (
    GRU,
    Bidirectional,
    Chain,
    Conv1D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    GlobalMaxPool,
    GroupNorm,
    Lambda,
    MultiHeadAttention,
    Parallel,
    Permute,
    PositionalEmbedding,
    SkipConcat,
    Softmax,
    SpatialDropout,
    TiedDense,
    TimeDistributed,
    TransformerBlock,
)
from phitodeep.layers.call import calling
from phitodeep.loss import CategoricalCrossEntropy, SoftmaxCrossEntropy
from phitodeep.model import Sequential
from phitodeep.testing import check_gradients
from tests.layers.catalogue_examples import made, passes


def test_a_skips_softmax_is_not_fused_with_the_loss() -> None:
    """Chain._last looks into SkipConcat, whose output is more than its last layer's."""
    loss = CategoricalCrossEntropy()
    model = Sequential(Dense(4, 3), SkipConcat(Softmax()), loss_class=loss, seed=0)
    assert model._last is model.layers[1]
    X, y = np.ones((5, 4)), np.array([3, 4, 5, 3, 4])  # classes whose scores are the softmax's
    value = loss.loss_func(model.predict(X), y)
    assert model.evaluate(X, y)["loss"] == pytest.approx(value)


@pytest.mark.parametrize(
    ("dims", "shape"), [((1, 2), (2, 3, 4)), ((2, 1), (2, 1, 4)), ((2, 1), (2, 4, 1))]
)
def test_permute_gives_a_fresh_array(dims: Any, shape: Any, rng: Any) -> None:
    X, layer = rng.standard_normal(shape), Permute(*dims)
    Y = layer.forward(X)
    assert not np.shares_memory(Y, X)
    assert not np.shares_memory(layer.backward(Y), Y)


def test_spatial_dropout_works_on_rank_1() -> None:
    assert SpatialDropout(0.5).forward(np.ones(4)).shape == (4,)


def test_a_refused_build_changes_nothing(rng: Any) -> None:
    layer, X = made(lambda: DepthwiseConv2D(3), (1, 5, 5, 3)), rng.standard_normal((1, 5, 5, 3))
    Y = layer.forward(X)
    with pytest.raises(PhitodeepError):
        layer.build((5, 5, 4))
    np.testing.assert_array_equal(layer.forward(X), Y)


@pytest.mark.parametrize("make", [lambda: TransformerBlock(2)])
def test_a_layer_frozen_before_it_is_built_stays_frozen(make: Any) -> None:
    layer = make()
    layer.trainable = False
    layer.build((3, 4))
    assert not any(part.trainable for _, part in layer.walk())


def test_time_distributed_drops_in_a_part_what_it_would_in_the_whole(rng: Any) -> None:
    X = rng.standard_normal((6, 3, 4))
    layer = made(lambda: TimeDistributed(Dropout(0.4)), X.shape)
    whole = passes(layer, X, X)["Y"]
    np.testing.assert_array_equal(passes(layer, X[2:], X[2:], first=2)["Y"], whole[2:])


def test_time_distributed_does_not_hand_its_mask_down(rng: Any) -> None:
    X = rng.standard_normal((2, 3, 4, 2))
    layer = made(lambda: TimeDistributed(GRU(2)), X.shape)
    with calling(mask=np.ones((2, 3), bool)):
        layer.forward(X)


def test_time_distributed_tokens() -> None:
    layer = TimeDistributed(Embedding(5, 2))
    layer.build((3, 4))
    assert layer.forward(np.ones((2, 3, 4), int)).shape == (2, 3, 4, 2)


def test_branches_of_tokens_have_no_gradient(rng: Any) -> None:
    layer = made(lambda: Parallel(Embedding(5, 2), Embedding(5, 3)), (2, 3))
    layer.forward(np.ones((2, 3), int))
    assert layer.backward(np.ones((2, 3, 5))) is None


def test_lambda_is_built_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Lambda(np.log, lambda dY, X, Y: dY / X).build((3,))


def test_lambda_keeps_the_dtype() -> None:
    layer = made(
        lambda: Lambda(lambda X: X * np.float64(2), lambda dY, X, Y: 2 * dY), (2, 3), np.float32
    )
    assert layer.forward(np.ones((2, 3), np.float32)).dtype == np.float32


MAKES: dict[str, Any] = {
    "attention": lambda: MultiHeadAttention(2),
    "gru": lambda: GRU(2),
    "both ways": lambda: Bidirectional(GRU(2)),
    "strided": lambda: Chain(Conv1D(2, 2, stride=2), GRU(2)),
}
WRONG = {
    "short": np.ones((2, 2), bool),
    "long": np.ones((2, 9), bool),
    "numbers": np.ones((2, 4)),
    "one sample": np.ones((1, 4), bool),
    "rank 3": np.ones((2, 4, 1), bool),
}


@pytest.mark.parametrize("mask", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_mask_that_does_not_fit_is_refused_by_name(make: Any, mask: Any, rng: Any) -> None:
    layer = made(make, (2, 4, 4))
    with pytest.raises(PhitodeepError), calling(mask=mask):
        layer.forward(rng.standard_normal((2, 4, 4)))


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 3, 4)], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiHeadAttention(2),
        lambda: GRU(2),
        lambda: GroupNorm(2),
        GlobalMaxPool,
    ],
)
def test_nothing_is_refused_or_gives_nothing(make: Any, shape: Any) -> None:
    layer = made(make, (2, 3, 4))
    with contextlib.suppress(PhitodeepError):
        assert len(layer.forward(np.ones(shape))) == shape[0]


def test_backward_in_another_part_of_the_batch_has_the_forwards_mask(rng: Any) -> None:
    """`first` is of the pass that drew; backward may run outside of it."""
    layer = made(lambda: MultiHeadAttention(2, dropout=0.5), (2, 3, 4))
    X, dY = rng.standard_normal((2, 2, 3, 4))
    with calling(step=0, first=4):
        layer.forward(X)
        wanted = layer.backward(dY)
    np.testing.assert_array_equal(layer.backward(dY), wanted)


def test_a_refused_step_of_generation_changes_nothing(rng: Any) -> None:
    layer = made(lambda: PositionalEmbedding(3), (1, 2, 4))
    memory: dict[Any, Any] = {}
    with calling(memory=memory):
        layer.forward(np.ones((1, 2, 4)))
        kept = dict(memory)
        with pytest.raises(PhitodeepError):
            layer.forward(np.ones((1, 2, 4)))
    assert memory == kept


def test_a_head_tied_to_an_embedding_outside_the_model_is_refused() -> None:
    model = Sequential(Dense(4, 4), TiedDense(Embedding(5, 4)), loss_class=SoftmaxCrossEntropy())
    with pytest.raises(PhitodeepError):
        model.train(np.ones((3, 4)), np.zeros(3, int), epochs=1, verbose=0)


def test_check_gradients_knows_tied_weights(rng: Any) -> None:
    embedding = Embedding(5, 4)
    model = Sequential(embedding, TiedDense(embedding), loss_class=SoftmaxCrossEntropy(), seed=0)
    check_gradients(model, rng.integers(0, 5, (4, 3)), rng.integers(0, 5, (4, 3)))


def test_repr_leaves_out_a_default_ratio() -> None:
    assert repr(TransformerBlock(2)) == "TransformerBlock(2)"
