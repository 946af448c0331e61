"""Generation: with a memory, a sequence in several calls gives what the whole gives in one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling, inference
from phitodeep.layers import Layer, dot_product
from phitodeep.testing.examples import made

RECURRENT = [f"{kind}({a})" for kind in ("RNN", "LSTM", "GRU")
             for a in ("3", "3, return_sequences=False")]  # fmt: skip
PLACES = ("PositionalEmbedding(6)", "SinusoidalEncoding()", "RotaryEmbedding(20.0)")
ATTENTION = (
    "MultiHeadAttention(2, causal=True)",
    "MultiHeadAttention(4, causal=True, kv_heads=2, rope=True, dropout=0.5)",
    "TransformerBlock(2, causal=True, rope=True)",
    "TransformerBlock(2, causal=True, norm='rms', pre_norm=False)",
)
STEPS = [(1, 1, 1, 1, 1), (3, 1, 1), (2, 3), (5,)]
GAPS = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 1]], bool)


@pytest.mark.parametrize("call", [*RECURRENT, *PLACES, *ATTENTION])
def test_steps_of_generation_equal_the_whole(call: str, rng: Any, monkeypatch: Any) -> None:
    layer = made(lambda: eval(call, dict(vars(layers))), (2, 5, 8))
    scores = (2**18, 1, 10, 19)[: 4 if call in ATTENTION else 1]  # queries at once: all, 1, 2, 3
    masks = (None, GAPS) if call in RECURRENT else (None,)
    for steps, block, mask in itertools.product(STEPS, scores, masks):
        monkeypatch.setattr(dot_product, "SCORES", block)
        X = rng.standard_normal((2, 5, 8))
        with inference(), calling(mask=mask):
            wanted = layer.forward(X)
        memory: dict[Layer, Any] = {}
        parts, t = [], 0
        for n in steps:
            now = None if mask is None else mask[:, t : t + n]
            with inference(), calling(memory=memory, mask=now):
                parts.append(layer.forward(X[:, t : t + n]))
            t += n
        found = parts[-1] if wanted.ndim == 2 else np.concatenate(parts, axis=1)
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
        if call in RECURRENT:
            assert set(memory) == {layer}
    with inference():  # outside, from the first step again
        np.testing.assert_array_equal(layer.forward(X), layer.copy().forward(X))


def test_layers_that_look_ahead_cannot_generate() -> None:
    both = made(lambda: layers.Bidirectional(layers.LSTM(3)), (1, 4, 2))
    with pytest.raises(ValueError, match=r"Bidirectional.*cannot generate"), calling(memory={}):
        both.forward(np.ones((2, 4, 2)))
