"""The ends of the number range: very large numbers, infinities, NaN, no samples, and no spread."""

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.call import calling, inference
from phitodeep.errors import ShapeError
from phitodeep.functional import log_softmax, softmax
from phitodeep.kernels import KERNELS
from phitodeep.layers import BatchNorm, LayerNorm, attention
from phitodeep.testing.examples import made, passes
from tests.rows import KINDS, LONG, TOOLS, few

pytestmark = pytest.mark.usefixtures("kernel_set")
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
LARGE = {np.float32: (1e20, 1e30, 1e37), np.float64: (1e160, 1e300)}


@dtypes
@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_of_all_that_floats_can_be(axis, dtype):
    top, inf = np.finfo(dtype).max, np.inf
    X = np.array([[top, -top, 0], [-top, -top, -inf], [-inf, -inf, -inf], [-inf, 3, -inf]], dtype)
    wanted = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0, 0], [0, 1, 0]], dtype)
    X, wanted = (A[:, None] if axis == -1 else A[..., None] for A in (X, wanted))
    layer = nn.Softmax(axis)
    np.testing.assert_array_equal(layer.forward(X), wanted)
    dX = layer.backward(np.ones_like(X))
    assert np.isfinite(dX).all()
    assert not dX[2].any()
    np.testing.assert_array_equal(log_softmax(X[:1], axis).ravel(), [0, -inf, -top])


@dtypes
def test_causal_softmax_sees_no_later_score_whatever_it_is(dtype):
    low, top, inf = -1e35, np.finfo(dtype).max, np.inf
    S = np.array(
        [
            [low, top, inf, np.nan],  # sees the first only, and so on
            [-top, -top, 0, 0],
            [-inf, -inf, -inf, inf],
            [np.nan, 1, 1, 1],
        ],
        dtype,
    )
    wanted = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0], [np.nan] * 4]
    P = S[None].copy()
    KERNELS["causal_softmax"](P, 0)
    np.testing.assert_array_equal(P[0], wanted)
    X = np.array([[1, np.nan, 2], [np.inf, 0, 0], [3, 3, -np.inf]], dtype)
    Y = softmax(X)  # NaN stays in its row
    assert np.isnan(Y[:2]).all(1).any()
    np.testing.assert_array_equal(Y[2], [0.5, 0.5, 0])
    P = S[None, 1:3].copy()  # the last two of three queries
    KERNELS["causal_softmax"](P[..., :3], 1)
    np.testing.assert_array_equal(P[0, :, :3], np.array(wanted)[1:3, :3])


@pytest.mark.parametrize("scores", [2**18, 2])
@pytest.mark.parametrize("causal", [True, False])
@dtypes
def test_very_low_scores_hide_nothing(dtype, causal, scores, monkeypatch):
    """All scores are -1e34 and less, in float32 near its end."""
    monkeypatch.setattr(attention, "SCORES", scores)
    layer = nn.MultiHeadAttention(1, causal=causal, bias=False)
    layer.build((4, 2), seed=0, dtype=dtype)
    layer.Wqkv = np.concatenate([1e17 * np.eye(2), -1e17 * np.eye(2), np.eye(2)], axis=1)
    X = np.random.default_rng(0).uniform(1, 2, (2, 4, 2)).astype(dtype)
    dY = np.zeros_like(X)
    dY[:, :2] = 1
    other = X.copy()
    other[:, 2:] *= 1.5  # what the first two steps must not see
    mask = None if causal else np.arange(4) < np.array([[2], [2]])
    found, changed = (passes(layer, A, dY, mask=mask) for A in (X, other))
    np.testing.assert_array_equal(found["Y"][:, :2], changed["Y"][:, :2])
    np.testing.assert_array_equal(found["dX"][:, :2], changed["dX"][:, :2])
    assert not found["dX"][:, 2:].any()


NORMS = [
    (nn.LayerNorm, (3, 4, 7)),
    (nn.RMSNorm, (3, 4, 7)),
    (lambda eps=1e-5: nn.GroupNorm(2, eps), (3, 5, 4)),
    (nn.InstanceNorm, (3, 5, 4)),
    (lambda eps=1e-5: nn.BatchNorm(eps=eps), (6, 4)),
]
norms = pytest.mark.parametrize(("make", "shape"), NORMS, ids=[repr(m()) for m, _ in NORMS])


@pytest.mark.parametrize(
    ("dtype", "scale"), [(dtype, s) for dtype, scales in LARGE.items() for s in scales]
)
@norms
def test_norms_do_not_depend_on_the_scale(make, shape, dtype, scale):
    layer, exact = made(make, shape, dtype), made(lambda: make(eps=1e-300), shape)
    exact.set_weights({k: v.astype(np.float64) for k, v in layer.get_weights().items()})
    rng = np.random.default_rng(0)
    X, dY = rng.standard_normal((2, *shape)).astype(dtype)
    wanted, found = passes(exact, X.astype(float), dY.astype(float)), passes(layer, scale * X, dY)
    precision = {"rtol": 2e-3, "atol": 2e-5} if dtype == np.float32 else {"rtol": 1e-9}
    for name, a in found.items():
        a = a.astype(np.float64) * (scale if name == "dX" else 1)
        np.testing.assert_allclose(a, wanted[name], err_msg=name, **precision)


@pytest.mark.parametrize("part", ["max", "half"])
@dtypes
@norms
def test_norms_of_the_greatest_numbers(make, shape, dtype, part):
    """Constant, and of both signs: what has no spread becomes 0 (or 1, where nothing is centred),
    and its gradient is finite."""
    layer = make()
    layer.build(shape[1:], dtype=dtype)
    top = np.finfo(dtype).max / (1 if part == "max" else 2)
    rng = np.random.default_rng(0)
    for X in (np.full(shape, top), top * rng.choice([-1, 1], shape)):
        found = passes(layer, X.astype(dtype), rng.standard_normal(shape).astype(dtype))
        assert all(np.isfinite(a).all() for a in found.values())
        assert abs(found["Y"]).max() < 4


@dtypes
def test_batch_norm_remembers_only_what_its_dtype_holds(dtype):
    layer, rng = nn.BatchNorm(), np.random.default_rng(0)
    layer.build((3,), dtype=dtype)
    scale = np.array([1, LARGE[dtype][0], LARGE[dtype][-1]], dtype)
    for _ in range(5):
        X = scale * rng.standard_normal((8, 3)).astype(dtype)
        layer.forward(X)
    assert all(np.isfinite(a).all() for a in layer.state.values())
    assert layer.running_var[0] < 3
    assert (layer.running_var[1:] > 0.1 * np.finfo(dtype).max / 2).all()
    with inference():
        Y = layer.forward(X)
    assert np.isfinite(Y).all()
    plain = nn.BatchNorm()
    plain.build((1,), dtype=dtype)
    plain.forward(np.full((4, 1), np.finfo(dtype).max, dtype))
    np.testing.assert_allclose(plain.running_mean, 0.1 * np.finfo(dtype).max, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("vocabulary", [5, 600])
@dtypes
def test_an_embedding_adds_to_its_tokens_only(dtype, vocabulary, bad):
    rng = np.random.default_rng(0)
    tokens, rows = np.array([3, 1, 3, 0, 4]), rng.standard_normal((5, 2)).astype(dtype)
    rows[2, 1] = bad
    dW = np.empty((vocabulary, 2), dtype)
    KERNELS["sum_by_token"](tokens, rows, dW)
    wanted = np.zeros_like(dW)
    np.add.at(wanted, tokens, rows)
    np.testing.assert_allclose(dW, wanted, rtol=1e-6)


def rows(kernel_set):
    """All rows with compiled kernels; with NumPy's, one for each kind of layer."""
    return TOOLS if LONG or kernel_set == "numba" else KINDS


@pytest.mark.parametrize("dtype", few([np.float32, np.float64], 1))
@pytest.mark.parametrize("large", [False, True])
def test_a_sample_does_not_reach_the_others(large, dtype, kernel_set):
    for make, shape, tokens in rows(kernel_set):
        if tokens:
            continue
        layer, rng = made(make, shape, dtype), np.random.default_rng(0)
        if any(isinstance(part, nn.BatchNorm) for _, part in layer.walk()):
            layer.trainable = False  # else a batch is not its samples
        X = rng.standard_normal((3, *shape[1:])).astype(dtype)
        dY = rng.standard_normal((3, *(layer.output_shape or ()))).astype(dtype)
        wanted = passes(layer, X, dY)
        X[1] *= LARGE[dtype][-2] if large else np.nan
        with np.errstate(all="ignore"):
            found = passes(layer, X, dY)
        for name in ("Y", "dX"):
            message = f"{name} of {layer!r}"
            np.testing.assert_array_equal(found[name][::2], wanted[name][::2], message)


@pytest.mark.parametrize("training", [True, False])
def test_no_samples_give_nothing_or_are_refused_by_name(training, kernel_set):
    for make, shape, tokens in rows(kernel_set):
        layer = made(make, shape)
        X = np.empty((0, *shape[1:]), int if tokens else np.float64)
        with calling(training=training):
            try:
                Y = layer.forward(X)
            except ShapeError:
                named = "|".join(type(part).__name__ for _, part in layer.walk())
                with pytest.raises(ShapeError, match=rf"({named})\(.* needs at least one"):
                    layer.forward(X)
                continue
            assert Y.shape == (0, *(layer.output_shape or ())), layer
            dX = layer.backward(np.empty_like(Y))
        assert (dX is None) == bool(tokens), layer
        assert dX is None or dX.shape == X.shape, layer
        for _, part in layer.walk():
            for name, a in part.grads.items():
                owner, own = part.tied.get(name, (part, name))
                assert a.shape == owner.params[own].shape, layer
                assert not a.any(), layer
            assert all(np.isfinite(a).all() for a in part.state.values()), layer


def built(layer, d, dtype=np.float64):
    layer.build((d,), dtype=dtype)
    layer.gamma, layer.beta = np.random.default_rng(5).standard_normal((2, d))
    return layer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [LayerNorm, BatchNorm])
def test_a_large_mean_costs_no_precision(make, dtype, rng):
    """mean(x^2) - mean(x)^2 would: it is mean((x - mu)^2)."""
    layer = built(make(), 16, dtype)
    X = rng.integers(-8, 8, (32, 16)).astype(dtype) / 8
    shifted = (X + 4096).astype(dtype)  # exact in float32
    np.testing.assert_allclose(layer.forward(shifted), layer.forward(X), rtol=1e-3, atol=1e-3)


def test_a_constant_one_feature_and_one_row_have_no_variance():
    X = np.full((3, 4), 7.0)
    for make in (LayerNorm, BatchNorm):
        layer = built(make(), 4)
        np.testing.assert_array_equal(layer.forward(X), np.tile(layer.beta, (3, 1)))
        assert np.isfinite(layer.backward(X)).all()
    layer = built(LayerNorm(), 1)
    np.testing.assert_array_equal(layer.forward(np.array([[3.0], [5.0]])), [layer.beta] * 2)
    np.testing.assert_array_equal(layer.backward(np.ones((2, 1))), np.zeros((2, 1)))
    norm = built(BatchNorm(), 3)
    np.testing.assert_array_equal(norm.forward(np.array([[1.0, 2, 3]])), [norm.beta])
    np.testing.assert_array_equal(norm.backward(np.ones((1, 3))), np.zeros((1, 3)))
    np.testing.assert_array_equal(norm.running_mean, np.zeros(3))
    np.testing.assert_array_equal(norm.running_var, np.ones(3))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.3, 1.0])
def test_running_statistics_are_no_parameters(momentum, rng):
    layer = built(BatchNorm(momentum), 3)
    mean, var = np.zeros(3), np.ones(3)
    for n in (5, 2, 9):
        X = 3 + 2 * rng.standard_normal((n, 3))
        mean = (1 - momentum) * mean + momentum * X.mean(0)
        var = (1 - momentum) * var + momentum * X.var(0, ddof=1)
        layer.forward(X)
        np.testing.assert_allclose(layer.running_mean, mean)
        np.testing.assert_allclose(layer.running_var, var)
    layer = BatchNorm()
    layer.build((3,))
    assert layer.params.keys() == {"gamma", "beta"}
    assert layer.state.keys() == {"running_mean", "running_var"}
    assert layer.count_params() == 6
    np.testing.assert_array_equal(layer.gamma, np.ones(3))
    np.testing.assert_array_equal(layer.beta, np.zeros(3))
    layer.running_mean = [1, 2, 3]
    np.testing.assert_array_equal(layer.state["running_mean"], [1, 2, 3])
