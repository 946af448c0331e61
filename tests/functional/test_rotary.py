"""The frequencies of rotary encodings, against their definitions and the transformers library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.functional.rotary import (
    DynamicRope,
    LinearRope,
    Llama3Rope,
    LongRope,
    Rope,
    YarnRope,
    check_rope,
)
from phitodeep.layers import MultiHeadAttention

ROPES = [
    Rope(500.0),
    LinearRope(3.0),
    DynamicRope(2.0, 16),
    Llama3Rope(max_positions=64),
    YarnRope(4.0, 32),
    LongRope([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0], 16, 1.5),
]
each = pytest.mark.parametrize("rope", ROPES, ids=lambda rope: type(rope).__name__)


@each
def test_the_angle_at_a_position_does_not_depend_on_where_a_call_begins(rope: Rope) -> None:
    """Unless the frequencies depend on the length, as in generation."""
    cos, sin = rope.cos_and_sin(0, 12, 8, np.dtype(np.float64))
    assert cos.shape == sin.shape == (12, 4)
    part = rope.cos_and_sin(5, 7, 8, np.dtype(np.float64))
    np.testing.assert_array_equal([cos[5:], sin[5:]], part)
    np.testing.assert_allclose(cos**2 + sin**2, rope.amplitude**2, rtol=1e-12)


@each
def test_equality_configs_and_what_depends_on_the_length(rope: Rope) -> None:
    short, long = rope.frequencies(8, 8), rope.frequencies(8, 80)
    assert np.array_equal(short, long) is not rope.by_length
    again = type(rope).from_config(rope.get_config())
    assert again == rope
    assert hash(again) == hash(rope)
    assert all(again != other for other in ROPES if other is not rope)


def test_llama3_keeps_fast_pairs_and_dynamic_short_sequences() -> None:
    rope, w = Llama3Rope(8.0, 1.0, 4.0, 64, 10000.0), Rope().frequencies(32, 1)
    turns, found = 64 * w / (2 * math.pi), rope.frequencies(32, 1)
    np.testing.assert_array_equal(found[turns > 4], w[turns > 4])
    np.testing.assert_allclose(found[turns < 1], w[turns < 1] / 8, rtol=1e-12)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((found > w / 8) & (found < w))[between].all()
    same = YarnRope(4.0, 32, 1.0, 1.0, truncate=False)  # no pair between fast and slow
    assert np.isfinite(same.frequencies(8, 1)).all()
    rope = DynamicRope(4.0, 16)
    np.testing.assert_allclose(Rope().frequencies(8, 1), [1, 0.1, 0.01, 0.001], rtol=1e-12)
    np.testing.assert_array_equal(rope.frequencies(8, 16), Rope().frequencies(8, 16))
    assert (rope.frequencies(8, 17) < Rope().frequencies(8, 17))[1:].all()


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="base must be > 1"):
        Rope(1.0)
    with pytest.raises(ArgumentError, match="more than 2 features"):
        DynamicRope(2.0, 4).frequencies(2, 8)
    with pytest.raises(ArgumentError, match="has 2 factors, but heads of 8 features have 4"):
        LongRope([1, 2], [1, 2], 8).frequencies(8, 1)
    with pytest.raises(ArgumentError, match="high must be > 4"):
        Llama3Rope(low=4.0, high=4.0)
    with pytest.raises(ArgumentTypeError, match=r"got 'yes'"):
        check_rope("yes", "x")
    with pytest.raises(ArgumentTypeError, match=r"write Rope\(\)"):
        MultiHeadAttention(2, rope=Rope)


def draw(rng: Any, kind: str, d: int) -> tuple[dict[str, Any], Any]:
    """Return random parameters as transformers takes them, and the same angles as ours."""
    base, factor = float(rng.uniform(2, 1e6)), float(rng.uniform(1, 40))
    first = int(rng.integers(2, 20000))
    own = {"rope_type": kind, "rope_theta": base, "factor": factor}
    if kind == "linear":
        return own, LinearRope(factor, base)
    if kind == "dynamic":
        return own, DynamicRope(factor, first, base)
    own["original_max_position_embeddings"] = first
    if kind == "llama3":
        low = float(rng.uniform(0.1, 4))
        high = low + float(rng.uniform(0.1, 8))
        own |= {"low_freq_factor": low, "high_freq_factor": high}
        return own, Llama3Rope(factor, low, high, first, base)
    if kind == "yarn":
        slow = float(rng.uniform(0.1, 3))
        fast, truncate = slow + float(rng.uniform(0, 40)), bool(rng.integers(2))
        own |= {"beta_fast": fast, "beta_slow": slow, "truncate": truncate}
        return own, YarnRope(factor, first, fast, slow, None, truncate, base)
    short, long = (rng.uniform(0.5, 60, d // 2).tolist() for _ in range(2))
    own |= {"short_factor": short, "long_factor": long, "attention_factor": 1.3}
    return own, LongRope(short, long, first, 1.3, base)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn", "longrope"])
def test_frequencies_of_transformers(kind: str) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    rng = np.random.default_rng(len(kind))
    for _ in range(100):
        d, T = 2 * int(rng.integers(2, 80)), int(rng.integers(1, 40000))
        own, rope = draw(rng, kind, d)
        longest = getattr(rope, "max_positions", 2048)
        config = transformers.LlamaConfig(
            head_dim=d, rope_parameters=own, max_position_embeddings=longest
        )
        wanted, amplitude = functions[kind](config, "cpu", seq_len=T)
        # their powers are float32; a factor at a boundary may round to its other side
        found = rope.frequencies(d, T)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, err_msg=repr((rope, d, T)))
        assert rope.amplitude == pytest.approx(amplitude)
