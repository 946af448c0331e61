"""Stateless mathematics against direct formulas, at special values, and in what it refuses."""

import itertools
import math
import tracemalloc
from decimal import Decimal, localcontext

import numpy as np
import pytest

from phitodeep import MultiHeadAttention, rotary
from phitodeep import functional as F
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.kernels import constants
from phitodeep.testing import numeric_gradient

INF, NAN = np.inf, np.nan
ELEMENTWISE = {
    F.sigmoid: lambda x: 1 / (1 + math.exp(-x)),
    F.softplus: lambda x: math.log1p(math.exp(x)),
    F.log_sigmoid: lambda x: -math.log1p(math.exp(-x)),
    F.gaussian: lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    F.erf: math.erf,
    F.relu: lambda x: max(x, 0.0),
    F.leaky_relu: lambda x: x if x > 0 else 0.01 * x,
    F.elu: lambda x: x if x > 0 else math.expm1(x),
    F.gelu: lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    F.silu: lambda x: x / (1 + math.exp(-x)),
    F.mish: lambda x: x * math.tanh(math.log1p(math.exp(x))),
    F.softsign: lambda x: x / (1 + abs(x)),
    F.tanh: math.tanh,
}
SLOPES = [
    (F.relu, F.relu_slope, {}),
    (F.leaky_relu, F.leaky_relu_slope, {"alpha": 0.2}),
    (F.elu, F.elu_slope, {"alpha": 1.5}),
    (F.gelu, F.gelu_slope, {}),
    (F.gelu, F.gelu_slope, {"approximate": "tanh"}),
    (F.silu, F.silu_slope, {}),
    (F.mish, F.mish_slope, {}),
    (F.sigmoid, F.sigmoid_slope, {}),
    (F.softplus, F.softplus_slope, {}),
    (F.softsign, F.softsign_slope, {}),
    (F.tanh, F.tanh_slope, {}),
]
each = pytest.mark.parametrize("f", ELEMENTWISE, ids=lambda f: f.__name__)


@each
def test_elementwise_functions_by_their_formulas_for_any_rank(f):
    X = np.linspace(-30, 30, 601).reshape(1, -1)
    wanted = np.vectorize(ELEMENTWISE[f])(X)
    tail = 1e-13 if f is F.gelu else 0  # exact to the rounding error of x, not of its tiny result
    np.testing.assert_allclose(f(X), wanted, rtol=1e-13, atol=max(tail, 1e-300))
    single = f(X.astype(np.float32))
    assert single.dtype == np.float32
    assert single.shape == X.shape
    np.testing.assert_allclose(single, wanted, rtol=3e-6, atol=max(1e7 * tail, 1e-18))
    X = np.linspace(-2, 2, 12).reshape(2, 2, 3)
    given = X.copy()
    Y = f(X)
    assert not np.shares_memory(X, Y)
    np.testing.assert_array_equal(X, given)
    np.testing.assert_array_equal(f(X[1, 0]), Y[1, 0])
    np.testing.assert_array_equal(f(X[:0]), Y[:0])
    for x in (np.array(0.5), 0.5):
        assert f(x) == pytest.approx(ELEMENTWISE[f](0.5))
    np.testing.assert_allclose(f(np.array([1, 2])), [ELEMENTWISE[f](1), ELEMENTWISE[f](2)])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint64", "float16", ">f4"])
def test_other_numbers_are_computed_in_float64(dtype):
    """int8 has no 128, uint8 has no -1, and NumPy computes tanh of int8 in float16."""
    X = np.array([0, 1, 2, 127, -128, -3] if np.dtype(dtype).kind in "if" else [0, 1, 2, 255])
    X = X.astype(dtype)
    slopes = [slope for _, slope, _ in SLOPES]
    for f in (*ELEMENTWISE, *slopes, F.exp_minus_line):
        Y = f(X)
        assert Y.dtype == np.float64, f.__name__
        np.testing.assert_array_equal(Y, f(X.astype(np.float64)), f.__name__)


def test_out_may_be_the_input():
    X = np.linspace(-2, 2, 7)
    for f in (F.sigmoid, F.softmax):
        out = np.empty((1, 7))
        assert f(X[None], out=out) is out
        np.testing.assert_array_equal(out, f(X[None]))
    for f in (F.leaky_relu, F.leaky_relu_slope, F.tanh, F.tanh_slope, F.sigmoid, F.sigmoid_slope):
        Z = X.copy()
        assert f(Z, out=Z) is Z
        np.testing.assert_array_equal(Z, f(X), f.__name__)
    for f, slope in ((F.tanh, F.tanh_slope), (F.sigmoid, F.sigmoid_slope)):
        Y = f(X)
        np.testing.assert_array_equal(slope(X, Y, out=Y), slope(X))
        reversed_Y = f(X)[::-1]  # shares memory with Y[::-1], and is another object
        np.testing.assert_array_equal(slope(X, reversed_Y, out=reversed_Y[:]), slope(X)[::-1])


@pytest.mark.parametrize(
    ("f", "slope", "options"), SLOPES, ids=lambda v: getattr(v, "__name__", None)
)
def test_slopes_by_central_differences(f, slope, options):
    X = np.linspace(-4.05, 4.05, 82).reshape(2, 41).T  # not contiguous, and no kink at 0
    h = 1e-5
    wanted = (f(X + h, **options) - f(X - h, **options)) / (2 * h)
    np.testing.assert_allclose(slope(X, **options), wanted, rtol=1e-7, atol=1e-9)
    single = slope(X.astype(np.float32), **options)
    assert (single.dtype, single.shape) == (np.float32, X.shape)
    np.testing.assert_allclose(single, wanted, rtol=1e-5, atol=1e-6)
    assert slope(1, **options) == pytest.approx(slope(np.array([1.0]), **options)[0])
    assert slope(X[:0], **options).shape == (0, 2)


def test_every_activation_has_a_slope_which_takes_the_value_if_it_is_known():
    functions = {name for name in dir(F) if f"{name}_slope" in dir(F)}
    assert functions == {f.__name__ for f, _, _ in SLOPES}
    assert all(name.removesuffix("_slope") in functions for name in dir(F) if "_slope" in name)
    X = np.linspace(-2, 2, 5)
    for name in ("tanh", "sigmoid", "silu"):
        f, slope = getattr(F, name), getattr(F, f"{name}_slope")
        np.testing.assert_array_equal(slope(X, f(X)), slope(X))
    np.testing.assert_array_equal(F.elu_slope(X, 0.5, F.elu(X, 0.5)), F.elu_slope(X, 0.5))
    for f in (F.leaky_relu, F.leaky_relu_slope, F.elu, F.elu_slope):  # alpha is NumPy's float64
        assert f(X.astype(np.float32), np.float64(0.5)).dtype == np.float32
    other = "erf"
    with pytest.raises(ArgumentError, match="gelu approximate"):
        F.gelu(np.ones(2), other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementwise_functions_far_out(dtype):
    for f, wanted in {
        F.sigmoid: [0, 0, 0.5, 1, 1, NAN],
        F.softplus: [0, 0, math.log(2), 1e4, INF, NAN],
        F.log_sigmoid: [-INF, -1e4, -math.log(2), 0, 0, NAN],
        F.gaussian: [0, 0, 1 / math.sqrt(2 * math.pi), 0, 0, NAN],
        F.erf: [-1, -1, 0, 1, 1, NAN],
    }.items():
        with np.errstate(all="raise", under="ignore"):
            Y = f(np.array([-INF, -1e4, 0, 1e4, INF, NAN], dtype))
        np.testing.assert_allclose(Y, wanted, rtol=1e-6, err_msg=f.__name__)


def test_erf_is_within_1e_14_of_math_erf():
    grid = np.concatenate([np.linspace(-7, 7, 200_001), 1 + np.linspace(-1e-3, 1e-3, 2001)])
    wanted = np.array([math.erf(x) for x in grid])
    assert np.abs(F.erf(grid) - wanted).max() < 1e-14
    assert np.abs(F.erf(grid.astype(np.float32)) - wanted).max() < 3e-7
    assert F.erf(grid).min() == -1
    assert F.erf(grid).max() == 1
    X = np.logspace(-300, -1, 1000)
    wanted = np.array([math.erf(x) for x in X])
    np.testing.assert_allclose(F.erf(X), wanted, rtol=1e-14)
    np.testing.assert_array_equal(F.erf(-X), -F.erf(X))
    assert F.erf(np.array([5e-324]))[0] == 5e-324
    signs = np.copysign(1, F.erf(np.array([0.0, -0.0, 1e-30, -1e-30, 9, -9])))
    np.testing.assert_array_equal(signs, [1, -1, 1, -1, 1, -1])
    assert F.erf(np.array([0.0]))[0] == 0
    assert F.erf(np.array([1, 2])) == pytest.approx([math.erf(1), math.erf(2)], rel=1e-14)
    with np.errstate(all="raise", under="ignore"):
        assert F.gaussian(np.array([1e200, -1e308])).tolist() == [0, 0]
        assert F.gaussian(np.array([1e20], np.float32)) == 0


def test_softmax_family_by_direct_formulas_and_finite_far_out(rng):
    for axis in (-1, 0, 1, 2, -2):
        X = 3 * rng.standard_normal((2, 3, 4))
        total = np.exp(X).sum(axis=axis, keepdims=True)
        np.testing.assert_allclose(F.softmax(X, axis), np.exp(X) / total, rtol=1e-13)
        np.testing.assert_allclose(F.log_softmax(X, axis), X - np.log(total), atol=1e-13)
        np.testing.assert_allclose(F.logsumexp(X, axis, keepdims=True), np.log(total), rtol=1e-13)
        np.testing.assert_allclose(F.logsumexp(X, axis), np.log(total).squeeze(axis), rtol=1e-13)
        for f in (F.softmax, F.log_softmax, F.logsumexp):
            assert f(X.astype(np.float32), axis).dtype == np.float32
    for dtype in (np.float32, np.float64):
        X = np.array([[1e4, -1e4, 0], [-1e4, -1e4, -1e4]], dtype)
        with np.errstate(all="raise", under="ignore"):
            np.testing.assert_allclose(F.softmax(X), [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)
            np.testing.assert_allclose(F.log_softmax(X)[0], [0, -2e4, -1e4])
            np.testing.assert_allclose(F.logsumexp(X), [1e4, -1e4 + math.log(3)], rtol=1e-6)
            np.testing.assert_allclose(F.softmax(np.array([[0, -INF, 0]], dtype)), [[0.5, 0, 0.5]])
            np.testing.assert_array_equal(F.log_softmax(np.array([[0, -INF]], dtype)), [[0, -INF]])
    X = np.array([[-INF, -INF], [-INF, 2], [INF, 2], [INF, -INF], [NAN, 2]])
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_array_equal(F.logsumexp(X), [-INF, 2, INF, INF, NAN])
        np.testing.assert_array_equal(F.logsumexp(X[:1], axis=0), [-INF, -INF])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sum_rows_is_the_sum_over_all_axes_but_the_last(dtype):
    rng = np.random.default_rng(0)
    empty = [(0, 5), (3, 0, 5), (3, 0), (2, 3, 0)]
    for shape in ((5,), (4, 5), (2, 3, 5), (2, 2, 2, 1), *empty):
        X = rng.standard_normal(shape).astype(dtype)
        wanted = X.sum(axis=tuple(range(X.ndim - 1)))
        Y, out = F.sum_rows(X), np.empty(shape[-1], dtype)
        assert Y.dtype == dtype
        assert F.sum_rows(X, out=out) is out
        for found in (Y, out):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        if X.ndim == 3:
            np.testing.assert_allclose(F.sum_rows(X.swapaxes(0, 1)), wanted, rtol=1e-5, atol=1e-6)
    X = np.arange(2 * (constants.KEPT + 3), dtype=dtype).reshape(-1, 2) % 7  # more than are kept
    np.testing.assert_array_equal(F.sum_rows(X), X.sum(axis=0))
    np.testing.assert_array_equal(F.sum_rows(X, out=np.empty(2, dtype)), X.sum(axis=0))


@pytest.mark.parametrize(("make", "value"), [(F.ones, 1), (F.zeros, 0)])
def test_constants_of_many_lengths_take_the_memory_of_one(make, value):
    constants._shared.cache_clear()
    make.cache_clear()
    lengths = [3, *range(200_000, 200_150), *range(constants.KEPT - 2, constants.KEPT + 99)]
    tracemalloc.start()
    try:
        kept = [make(n, np.dtype(np.float32)) for n in lengths]
        assert tracemalloc.get_traced_memory()[0] < 4 * constants.KEPT + 100_000
    finally:
        tracemalloc.stop()
    for a, n in zip(kept, lengths, strict=True):
        assert a.shape == (n,)
        assert a.min() == a.max() == value
        assert not a.flags.writeable


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_minus_line_has_its_digits(dtype):
    sizes = np.geomspace(1e-18, 80, 200)
    X = np.concatenate([-sizes, [0], sizes]).astype(dtype)
    with localcontext() as context:
        context.prec = 80
        wanted = [float(Decimal(float(x)).exp() - 1 - Decimal(float(x))) for x in X]
    np.testing.assert_allclose(F.exp_minus_line(X), wanted, rtol=30 * np.finfo(dtype).eps)
    assert F.exp_minus_line(X).dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gap", [3, 20, 80])
def test_log_softmax_has_the_digits_of_a_sure_class(gap, dtype):
    X = np.array([[gap, 0, -1], [0, gap, gap]], dtype)
    r = math.exp(-gap) + math.exp(-gap - 1)
    for axis, A in ((-1, X), (1, X), (0, X.T), (-1, X[:, None])):
        found = np.moveaxis(F.log_softmax(A, axis=axis), axis, -1).reshape(2, 3)
        assert found[0, 0] == pytest.approx(-math.log1p(r), rel=1e-6)
        assert found[1, 1] == pytest.approx(-math.log(2 + math.exp(-gap)))
        assert found.dtype == dtype


BAD_LABELS = [
    ([0.0, 1.0], ArgumentTypeError, r"integers, got dtype float64.*astype\(int\)"),
    ([True, False], ArgumentTypeError, "bool"),
    (["0"], ArgumentTypeError, "integers"),
    ([None], ArgumentTypeError, "integers"),
    ([0, 3], ArgumentError, r"0 to 2 for 3 classes, got 3 at y\[1\]"),
    ([[0, 1], [-1, 2]], ArgumentError, r"got -1 at y\[1, 0\]"),
    (np.array([2**63 + 1], np.uint64), ArgumentError, "got 9223372036854775809"),
]


def test_one_hot_and_labels_that_are_ignored_or_bad():
    np.testing.assert_array_equal(F.one_hot([2, 0], 3), [[0, 0, 1], [1, 0, 0]])
    assert F.one_hot([2, 0], 3).dtype == np.float32
    assert F.one_hot(np.array([[1]], np.uint8), 4, np.float64).dtype == np.float64
    labels = np.random.default_rng(0).integers(0, 4, (2, 3, 5))
    np.testing.assert_array_equal(F.one_hot(labels, 4), np.eye(4)[labels])
    np.testing.assert_array_equal(F.one_hot(1, 3), [0, 1, 0])
    assert F.one_hot(np.zeros(0, int), 3).shape == (0, 3)
    found = F.check_labels(np.array([0, -1, 2], np.int8), 3, ignore_index=-1)
    np.testing.assert_array_equal(found, [0, -1, 2])
    assert found.dtype == np.int64
    with pytest.raises(ArgumentError, match=r"got -2 at y\[1\]"):
        F.check_labels([-1, -2], 3, ignore_index=-1)
    for bad, error, says in BAD_LABELS:
        for function in (F.one_hot, F.check_labels):
            with pytest.raises(error, match=says):
                function(bad, 3)


def rows_of(targets, classes):
    return targets if targets.dtype.kind == "f" else np.eye(classes)[targets]


@pytest.mark.parametrize("form", ["labels", "rows", "heavy rows"])
@pytest.mark.parametrize(
    ("shape", "weighted", "total"),
    [((5, 4), False, None), ((2, 3, 4), True, 2.5), ((2, 3, 4), True, None), ((1, 2), False, 2.5)],
)
def test_cross_entropy_by_its_formula(shape, form, weighted, total):
    rng = np.random.default_rng(5)
    Z, K = 2 * rng.standard_normal(shape), shape[-1]
    T = rng.integers(0, K, shape[:-1]) if form == "labels" else rng.random(shape)
    if form == "rows":
        T /= T.sum(-1, keepdims=True)
    w = rng.uniform(0, 2, shape[:-1]) if weighted else None
    each = np.ones(shape[:-1]) if w is None else w
    q = rows_of(T, K) * each[..., None]
    divisor = q.sum() if total is None else total
    wanted = -(q * F.log_softmax(Z)).sum() / divisor
    gradient = (F.softmax(Z) * q.sum(-1, keepdims=True) - q) / divisor
    assert F.target_weight(T, w) == pytest.approx(q.sum())
    assert F.cross_entropy(Z, T, w, total) == pytest.approx(wanted)
    assert F.nll(F.log_softmax(Z), T, w, total) == pytest.approx(wanted)
    out = np.empty(shape)
    both = F.cross_entropy_and_gradient(Z, T, w, total)
    assert both[0] == pytest.approx(wanted)
    assert F.cross_entropy_and_gradient(Z, T, w, total, out=out)[1] is out
    other_layout = F.cross_entropy_and_gradient(np.asfortranarray(Z), T, w, total)
    assert other_layout[0] == pytest.approx(wanted)
    for found in (both[1], out, other_layout[1], F.cross_entropy_gradient(Z, T, w, total)):
        np.testing.assert_allclose(found, gradient, rtol=1e-12, atol=1e-15)
    numeric = numeric_gradient(lambda A: F.cross_entropy(A, T, w, total), Z)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-7, atol=1e-9)
    value, single = F.cross_entropy_and_gradient(Z.astype(np.float32), T, w, total)
    assert single.dtype == np.float32
    assert value == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(single, gradient, rtol=1e-4, atol=1e-6)


def test_cross_entropy_of_labels_makes_no_rows_of_them():
    """A large vocabulary costs the gradient's memory, and no more arrays of its size."""
    Z, y = np.zeros((300, 1000)), np.arange(300)
    F.cross_entropy_and_gradient(Z, y)  # compiles
    tracemalloc.start()
    try:
        F.cross_entropy_and_gradient(Z, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * Z.nbytes


def test_targets_and_weights_of_other_kinds():
    Z, y = np.random.default_rng(5).standard_normal((5, 4)), np.array([0, 1, 1, 3, 2])
    value, gradient = F.cross_entropy_and_gradient(Z, y)
    hot = np.eye(4, dtype=int)[y]  # rows of integers are rows
    assert F.cross_entropy(Z, hot) == F.cross_entropy(Z, y.tolist()) == pytest.approx(value)
    found = F.cross_entropy_and_gradient(Z, hot)
    assert found[0] == pytest.approx(value)
    np.testing.assert_allclose(found[1], gradient)
    rows, labels, w = np.stack([Z, Z]), np.stack([y, y]), np.array([[1.0], [2.0]])
    wanted = F.cross_entropy(rows, labels, np.repeat(w, 5, axis=1))
    assert F.cross_entropy(rows, labels, w) == pytest.approx(wanted)
    assert F.cross_entropy_and_gradient(Z[:0], y[:0])[0] == 0
    nothing, none = F.cross_entropy_and_gradient(Z, y, np.zeros(5))
    assert nothing == F.cross_entropy(Z, y, np.zeros(5)) == 0
    assert not none.any()
    Z[1:3] = np.array([[np.nan], [np.inf]])  # rows of weight 0 may hold anything
    for targets in (y, hot):
        value, gradient = F.cross_entropy_and_gradient(Z, targets, np.array([1, 0, 0, 1, 1]))
        assert math.isfinite(value)
        assert not gradient[1:3].any()
    large = np.array([2**24, 1, 1], np.float32)  # float32 cannot hold their sum
    assert F.target_weight(np.array([0, 1, 0]), large) == 2**24 + 2
    assert F.target_weight(large[None], None) == 2**24 + 2
    Z = np.array([[1e4, -1e4, 0], [-1e4, 0, 1e4]])
    for dtype in (np.float32, np.float64):
        with np.errstate(all="raise", under="ignore"):
            value, gradient = F.cross_entropy_and_gradient(Z.astype(dtype), np.array([1, 2]))
        assert value == pytest.approx(1e4)
        np.testing.assert_allclose(gradient, [[0.5, -0.5, 0], [0, 0, 0]])
    for shape in ((2,), (3, 1), (1, 3), (3, 3), (3, 4, 1), ()):
        for function in (F.cross_entropy, F.cross_entropy_gradient):
            with pytest.raises(ShapeError, match=r"of shape \(3,\) or rows of shape \(3, 4\)"):
                function(np.zeros((3, 4)), np.zeros(shape, int))


def test_discrepancy_by_its_definition_exact_far_from_0_and_refused():
    rng = np.random.default_rng(6)
    X, Y = rng.standard_normal((5, 2, 3)) + 100, rng.standard_normal((7, 2, 3)) + 101
    distance = [math.dist(a.ravel(), b.ravel()) for a, b in itertools.combinations([*X, *Y], 2)]
    for bandwidth, s in ((None, float(np.median(distance))), (0.7, 0.7)):

        def mean(pairs, s=s):
            return float(np.mean([np.exp(-(((a - b) ** 2).sum()) / 2 / s**2) for a, b in pairs]))

        wanted = mean(itertools.permutations(X, 2)) + mean(itertools.permutations(Y, 2))
        wanted -= 2 * mean(itertools.product(X, Y))
        assert F.maximum_mean_discrepancy(X, Y, bandwidth) == pytest.approx(wanted, rel=1e-9)
        assert F.maximum_mean_discrepancy(Y, X, bandwidth) == pytest.approx(wanted, rel=1e-9)
    X, Y = np.random.default_rng(6).standard_normal((2, 40, 7))
    wanted = F.maximum_mean_discrepancy(X, Y)
    assert F.maximum_mean_discrepancy(X + 2.0**24, Y + 2.0**24) == pytest.approx(wanted, rel=1e-6)
    twice = F.maximum_mean_discrepancy(np.repeat(X, 3, 0), np.repeat(Y, 3, 0))
    assert math.isfinite(twice)  # no distance is the root of a negative number
    X, Y = X.astype(np.float32), Y.astype(np.float32) + 1
    X.flags.writeable = Y.flags.writeable = False
    found = F.maximum_mean_discrepancy(X, Y)
    assert type(found) is float
    assert found == F.maximum_mean_discrepancy(X.astype(float), Y.astype(float))
    refused = [
        ((3, 2), (3, 3), None, ShapeError, r"got shapes \(3, 2\) and \(3, 3\)"),
        ((1, 2), (3, 2), None, ShapeError, "at least two samples each"),
        ((3, 2), (1, 2), None, ShapeError, "at least two samples each"),
        ((3, 2), (3, 2), None, ArgumentError, "got 0.0: by default it is the median"),
        ((3, 2), (3, 2), -1.0, ArgumentError, "bandwidth > 0, got -1"),
        ((3, 2), (3, 2), math.nan, ArgumentError, "got nan"),
    ]
    for one, other, bandwidth, error, says in refused:
        with pytest.raises(error, match=says):
            F.maximum_mean_discrepancy(np.ones(one), np.ones(other), bandwidth)


ROPES = [
    rotary.Rope(500.0),
    rotary.LinearRope(3.0),
    rotary.DynamicRope(2.0, 16),
    rotary.Llama3Rope(max_positions=64),
    rotary.YarnRope(4.0, 32),
    rotary.LongRope([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0], 16, 1.5),
]
each = pytest.mark.parametrize("rope", ROPES, ids=lambda rope: type(rope).__name__)


@each
def test_angles_do_not_depend_on_where_a_call_begins_and_configs_tell_all(rope):
    """Unless the frequencies depend on the length, as in generation."""
    cos, sin = rope.cos_and_sin(0, 12, 8, np.dtype(np.float64))
    assert cos.shape == sin.shape == (12, 4)
    part = rope.cos_and_sin(5, 7, 8, np.dtype(np.float64))
    np.testing.assert_array_equal([cos[5:], sin[5:]], part)
    np.testing.assert_allclose(cos**2 + sin**2, rope.amplitude**2, rtol=1e-12)
    short, long = rope.frequencies(8, 8), rope.frequencies(8, 80)
    assert np.array_equal(short, long) is not rope.by_length
    again = type(rope).from_config(rope.get_config())
    assert again == rope
    assert hash(again) == hash(rope)
    assert all(again != other for other in ROPES if other is not rope)


def test_llama3_keeps_fast_pairs_dynamic_short_sequences_and_bad_ropes_are_refused():
    rope, w = rotary.Llama3Rope(8.0, 1.0, 4.0, 64, 10000.0), rotary.Rope().frequencies(32, 1)
    turns, found = 64 * w / (2 * math.pi), rope.frequencies(32, 1)
    np.testing.assert_array_equal(found[turns > 4], w[turns > 4])
    np.testing.assert_allclose(found[turns < 1], w[turns < 1] / 8, rtol=1e-12)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    share = (turns - 1) / 3  # of w that is kept, between 1 and 4 turns
    np.testing.assert_allclose(found[between], (share * w + (1 - share) * w / 8)[between])
    first, last = (32 * math.log(64 / (2 * math.pi * n)) / (2 * math.log(1e4)) for n in (8, 1))
    for truncate, i, j in ((False, first, last), (True, math.floor(first), math.ceil(last))):
        share = np.clip((np.arange(16) - i) / (j - i), 0, 1)  # that is divided
        found = rotary.YarnRope(4.0, 64, 8.0, 1.0, truncate=truncate).frequencies(32, 1)
        np.testing.assert_allclose(found, share * w / 4 + (1 - share) * w, rtol=1e-12)
    same = rotary.YarnRope(4.0, 32, 1.0, 1.0, truncate=False)  # no pair between fast and slow
    assert np.isfinite(same.frequencies(8, 1)).all()
    rope = rotary.DynamicRope(4.0, 16)
    np.testing.assert_allclose(rotary.Rope().frequencies(8, 1), [1, 0.1, 0.01, 0.001], rtol=1e-12)
    np.testing.assert_array_equal(rope.frequencies(8, 16), rotary.Rope().frequencies(8, 16))
    assert (rope.frequencies(8, 17) < rotary.Rope().frequencies(8, 17))[1:].all()
    with pytest.raises(ArgumentError, match="base must be > 1"):
        rotary.Rope(1.0)
    with pytest.raises(ArgumentError, match="more than 2 features"):
        rotary.DynamicRope(2.0, 4).frequencies(2, 8)
    with pytest.raises(ArgumentError, match="has 2 factors, but heads of 8 features have 4"):
        rotary.LongRope([1, 2], [1, 2], 8).frequencies(8, 1)
    with pytest.raises(ArgumentError, match="high must be > 4"):
        rotary.Llama3Rope(low=4.0, high=4.0)
    with pytest.raises(ArgumentTypeError, match=r"got 'yes'"):
        rotary.check_rope("yes", "x")
    with pytest.raises(ArgumentTypeError, match=r"write Rope\(\)"):
        MultiHeadAttention(2, rope=rotary.Rope)
