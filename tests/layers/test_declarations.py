"""What layers declare of samples, steps and masks is true: for each of the table, by perturbing."""

import re
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as nn
from phitodeep.errors import ArgumentError
from phitodeep.testing import examples
from phitodeep.testing.examples import passes
from tests.layers.test_masks import CHANGING, D, T, layer_of
from tests.rows import ALL, TOOLS, few, over

CHECKPOINT = nn.Chain(nn.Dense(3), nn.Tanh(), nn.Dense(2), checkpoint=True)
MORE = [
    (nn.Chain(nn.Dense(4), nn.Residual(nn.TransformerBlock(2, causal=True))), (2, 5, 3)),
    (nn.Residual(nn.BatchNorm(), nn.PReLU()), (3, 4, 2)),
    (nn.Parallel(nn.Dense(2), nn.Chain(nn.BatchNorm(), nn.Tanh()), CHECKPOINT), (3, 4, 2)),
]
MORE = [(layer.copy, shape, 0) for layer, shape in MORE]
TABLE = [*ALL, *MORE]
REFUSED = re.compile(  # under lengths; all other layers of the table accept them
    r"(?!TimeDistributed|Chain\(Reshape\(-1).*("
    r"2D\(|Flatten|GroupNorm|InstanceNorm|RandomCrop|RandomFlip|RandomShift|.*Concat\(0"
    r"|Reshape\(12|Permute\([23]|Softmax\((1|-2)|Pool1D\(.*(same|padding)|DynamicRope|LongRope)"
)


RANDOM = ("Dropout", "SpatialDropout", "GaussianNoise", "Reparameterize")
with_lengths = [row for row in TABLE if len(row[1]) > 2 - row[0]().takes_tokens]


def other(A, tokens=0):
    """Other numbers of the kind of A."""
    if tokens and A.dtype.kind == "i":
        return (A + 1) % tokens
    return 3 - 2 * A


@pytest.mark.parametrize("training", few([True, False], 1))
def test_samples_are_independent_where_a_layer_says_so(training):
    for make, shape, tokens in (*TOOLS, *MORE):
        shape = (max(2, shape[0]), *shape[1:])
        layer = examples.made(make, shape)
        if not layer.independent_samples:
            assert re.search("BatchNorm|Lambda", str([*layer.walk()]))
            continue
        X, dY = examples.data(layer, shape, tokens)
        before = passes(layer, X, dY, training=training)
        for j in {0, len(X) - 1}:
            X_j, dY_j, rest = X.copy(), dY.copy(), np.arange(len(X)) != j
            X_j[j], dY_j[j] = other(X[j], tokens), other(dY[j])
            after = passes(layer, X_j, dY_j, training=training)
            for name in {"Y", "dX"} & before.keys():
                message, kept = f"{name} of {layer!r}", before[name][rest]
                np.testing.assert_allclose(after[name][rest], kept, 1e-12, 1e-13, err_msg=message)


@pytest.mark.parametrize("training", few([True, False], 1))
def test_steps_depend_on_each_other_as_a_layer_says(training):
    for make, shape, tokens in with_lengths:
        layer = examples.made(make, shape)
        assert layer.time_steps in ("independent", "remembered", "joined")
        if layer.time_steps == "joined" or (training and not layer.independent_samples):
            continue
        X, dY = examples.data(layer, shape, tokens)
        before = passes(layer, X, dY, training=training)
        if before["Y"].shape[1:2] != X.shape[1:2]:
            assert layer.time_steps == "remembered", "a layer that ends the steps joins them"
            continue
        steps, alone = np.arange(X.shape[1]), layer.time_steps == "independent"
        for t in {0, X.shape[1] // 2}:
            X_t, dY_t = X.copy(), dY.copy()
            X_t[:, t], dY_t[:, t] = other(X[:, t], tokens), other(dY[:, t])
            changed = {"Y": (X_t, dY, steps != t if alone else steps < t)}
            changed["dX"] = (X, dY_t, steps != t if alone else steps > t)
            for name in changed.keys() & before.keys():
                X_c, dY_c, same = changed[name]
                after = passes(layer, X_c, dY_c, training=training)[name][:, same]
                message = f"{name} of {layer!r}"
                np.testing.assert_allclose(
                    after, before[name][:, same], 1e-12, 1e-13, err_msg=message
                )


def hiding(layer, X, dY, mask, hidden, training):
    """What passes under a mask give, whatever is at the steps that it hides; dY, and Y's mask."""
    after = layer.compute_mask(mask)
    dY = dY if after is None else np.where(after.reshape(*after.shape, *[1] * (dY.ndim - 2)), dY, 0)
    wanted = passes(layer, X, dY, training=training, mask=mask)
    noisy = X.copy()
    noisy[~mask] = hidden
    found = passes(layer, noisy, dY, training=training, mask=mask)
    kept = slice(None) if after is None else after
    for name, a in found.items():
        at = kept if name == "Y" else slice(None)
        np.testing.assert_allclose(a[at], wanted[name][at], rtol=1e-11, atol=1e-12, err_msg=name)
    assert "dX" not in found or not found["dX"][~mask].any()
    return wanted, dY, after


@pytest.mark.parametrize("training", few([True, False], 1))
def test_what_is_in_gaps_changes_nothing(training):
    for make, shape, tokens in with_lengths:
        layer = examples.made(make, shape)
        mask = np.random.default_rng(3).random(shape[:2]) < 0.5
        X, dY = examples.data(layer, shape, tokens)
        with suppress(ValueError):  # the layer takes lengths alone, or not even those: see below
            layer.compute_mask(mask)
            hiding(layer, X, dY, mask, other(X[~mask], tokens), training)


@pytest.mark.parametrize("training", few([True, False], 1))
@over([*with_lengths, *((partial(layer_of, call), (4, T, D), 0) for call in CHANGING)])
def test_padding_changes_nothing_or_lengths_are_refused(make, shape, tokens, training):
    """Each sample is as it would be alone, without padding."""
    shape = (max(3, shape[0]), *shape[1:])
    N, T = shape[:2]
    layer = examples.made(make, shape)
    lengths = T - np.arange(N) * max(1, (T - 1) // 2) % T
    mask = np.arange(T) < lengths[:, None]
    X, dY = examples.data(layer, shape, tokens)
    if REFUSED.match(repr(layer)):
        model = (
            Sequential(nn.Tanh(), nn.Chain(layer.copy()))
            if not tokens
            else Sequential(layer.copy())
        )
        for call in (layer.compute_mask, lambda m: model.forward(X, lengths=m)):
            with pytest.raises(ArgumentError, match=r"lengths.*(Remedy|only)") as caught:
                call(mask)
        assert "layer 0 of Chain, layer 1 of Sequential: " in str(caught.value)
        assert not model.layers[0].cache, "a layer ran before the refusal"
        return
    hidden = other(X[~mask], tokens) if tokens else 1e30
    whole, dY, after = hiding(layer, X, dY, mask, hidden, training)
    random = any(
        type(part).__name__ in RANDOM or getattr(part, "dropout", 0) for _, part in layer.walk()
    )
    if training and (random or not layer.independent_samples):
        return
    sums = {}
    for i, n in enumerate(lengths):
        steps = slice(None) if after is None else slice(after[i].sum())
        if after is not None and not after[i].any():  # shorter than a window
            continue
        rows = slice(i, i + 1)
        dY_i, Y = (a[rows] if after is None else a[rows, steps] for a in (dY, whole["Y"]))
        alone = passes(layer, X[rows, :n], dY_i, training=training)
        np.testing.assert_allclose(alone.pop("Y"), Y, rtol=1e-9, atol=1e-12)
        if "dX" in alone:
            dX = whole["dX"][rows, :n]
            np.testing.assert_allclose(alone.pop("dX"), dX, rtol=1e-9, atol=1e-12)
        for name, a in alone.items():
            sums[name] = sums.get(name, 0) + a
    for name, a in sums.items():
        np.testing.assert_allclose(a, whole[name], rtol=1e-9, atol=1e-10, err_msg=name)


def test_what_is_not_built_yet_declares_no_more_than_it_knows():
    for layer, steps in (
        (nn.Softmax(), "independent"),
        (nn.Softmax(axis=2), "independent"),
        (nn.Softmax(axis=-2), "joined"),
        (nn.LogSoftmax(axis=1), "joined"),
        (nn.Reshape(2, 3), "joined"),
        (nn.TransformerBlock(2), "joined"),
        (nn.TransformerBlock(2, causal=True), "remembered"),
    ):
        assert layer.time_steps == steps, layer
    softmax = nn.Softmax(axis=-2)
    softmax.build((4, 3, 2))
    assert softmax.time_steps == "independent"  # the axis is that of 3, the steps are 4
    for layer, shape, steps in (
        (nn.Reshape(-1, 2, 3), (4, 6), "independent"),
        (nn.Reshape(4, 6), (4, 2, 3), "independent"),
        (nn.Reshape(2, -1), (4, 6), "joined"),
        (nn.Reshape(6, 4), (4, 6), "joined"),
        (nn.Reshape(4, -1), (4, 6), "joined"),  # of 2 steps of 12, say, it would make 4
        (nn.Reshape(6, 1), (6,), "joined"),
        (nn.Permute(1, 3, 2), (4, 2, 3), "independent"),
        (nn.Permute(2, 1), (4, 4), "joined"),
    ):
        layer.build(shape)
        assert layer.time_steps == steps, layer
