"""Initial values: their variance, their bounds, orthogonality, and that a seed repeats them."""

import math

import numpy as np
import pytest

from phitodeep import Dense
from phitodeep import initialization as initial
from phitodeep.layers.initialization import Constant, He, InitType, LeCun, Orthogonal, Xavier

SHAPES = [(300, 200), (200, 300), (3, 3, 40, 60), (5, 60, 40)]
ALL = [make(kind) for make in (He, Xavier, LeCun) for kind in InitType]
ALL += [Orthogonal(), Orthogonal(1.5), Constant(0.3), Constant(-2)]
ALL += [initial.Normal(0.5), initial.Zeros()]


def test_table_covers_every_initializer_and_fans():
    public = {
        v
        for v in vars(initial).values()
        if isinstance(v, type) and issubclass(v, initial.Initializer)
    }
    assert {type(init) for init in ALL} == public - {initial.Initializer, initial.VarianceScaling}
    wanted = {(3, 4): (3, 4), (5, 3, 4): (15, 20), (2, 5, 3, 4): (30, 40), (4,): (1, 4)}
    assert {shape: initial.fans(shape) for shape in wanted} == wanted


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", InitType)
def test_variance_is_what_the_papers_ask(kind, shape, rng):
    area = math.prod(shape[:-2])
    fan_in, fan_out = area * shape[-2], area * shape[-1]
    wanted = {He: 2 / fan_in, Xavier: 2 / (fan_in + fan_out), LeCun: 1 / fan_in}
    for make, variance in wanted.items():
        W = make(kind).draw(shape, rng)
        assert W.shape == shape
        assert W.dtype == np.float64
        n = math.prod(shape)
        assert W.var() == pytest.approx(variance, rel=6 / math.sqrt(n / 2))
        assert abs(W.mean()) < 5 * math.sqrt(variance / n)
        extreme = np.abs(W).max() / math.sqrt(variance)
        if kind is InitType.UNIFORM:
            assert 0.99 * math.sqrt(3) < extreme <= math.sqrt(3)
        else:
            assert 3 < extreme < 7


@pytest.mark.parametrize("gain", [1.0, 1.5])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 3, 4), (3, 2, 20), (1, 1)])
def test_orthogonal_has_orthonormal_rows_or_columns(shape, gain, rng):
    Q = Orthogonal(gain).draw(shape, rng)
    assert Q.shape == shape
    Q = Q.reshape(-1, shape[-1])
    product = Q.T @ Q if len(Q) >= shape[-1] else Q @ Q.T
    np.testing.assert_allclose(product, gain**2 * np.eye(len(product)), atol=1e-12)


def test_orthogonal_is_uniform_over_signs_and_constants_are_constant(rng):
    """LAPACK alone gives R a negative diagonal more often than not: Q must not inherit that."""
    draws = np.array([Orthogonal().draw((3, 3), rng) for _ in range(2000)])
    assert np.abs(draws.mean(axis=0)).max() < 0.06  # 4.6 standard errors of 1 / sqrt(3 * 2000)
    np.testing.assert_array_equal(Constant(0.3).draw((2, 3), rng), np.full((2, 3), 0.3))
    np.testing.assert_array_equal(initial.Zeros().draw((2, 3), rng), np.zeros((2, 3)))
    assert Orthogonal() == Orthogonal(1.0)
    for make in (He, Xavier, LeCun):
        assert make() == make(InitType.NORMAL) != make(InitType.UNIFORM)
    with pytest.raises(NotImplementedError, match="Initializer must implement draw"):
        initial.Initializer().draw((2, 2), rng)
    with pytest.raises(NotImplementedError, match="VarianceScaling must implement variance"):
        initial.VarianceScaling().draw((2, 2), rng)


@pytest.mark.parametrize("init", ALL, ids=lambda init: type(init).__name__)
def test_a_seed_repeats_to_the_bit_and_repr_is_the_call(init):
    first, again, other = (init.draw((7, 5), np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).all()
    if not isinstance(init, Constant | initial.Zeros):
        assert not np.isclose(first, other).any()
    layer = Dense(7, 5, init)
    layer.build((7,), seed=3)
    wanted = init.draw((7, 5), np.random.default_rng(np.random.SeedSequence(3)))
    np.testing.assert_array_equal(layer.W, wanted.astype(np.float32))
    np.testing.assert_array_equal(layer.b, np.zeros(5))
    assert eval(repr(init), vars(initial)) == init
    assert [other for other in ALL if other == init] == [init]
    assert init != repr(init)
