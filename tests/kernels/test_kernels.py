"""Every kernel computes the same in NumPy and compiled."""

import copy
import importlib
import inspect
import math
import pkgutil
import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import phitodeep
from phitodeep import kernels
from phitodeep.kernels import KERNELS, TWINS
from tests.rows import long

numba = pytest.importorskip("numba")
OPTIONS, jit = attrgetter("OPTIONS", "jit")(
    importlib.import_module("phitodeep.kernels.compiled.jit")
)
erf, exp, tanh = attrgetter("erf", "exp", "tanh")(
    importlib.import_module("phitodeep.kernels.compiled.scalar")
)

for module in pkgutil.walk_packages(phitodeep.__path__, "phitodeep."):
    if not {"compiled", "exchange", "sklearn"} & {*module.name.split(".")}:  # the last two: extras
        importlib.import_module(module.name)
pytestmark = pytest.mark.usefixtures("same_kernels")
N, D = 7, 11


NUMBERS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    # scores whose exponentials overflow, unless the greatest of the row is taken off
    "peaked": lambda rng, shape: rng.standard_normal(shape) + 1000 * np.eye(*shape[-2:]),
    "positive": lambda rng, shape: rng.uniform(0.1, 2, shape),
    "cut": lambda rng, shape: np.maximum(rng.standard_normal(shape), 0),  # as by a ReLU
    "share": lambda rng, shape: rng.uniform(0.05, 0.95, shape),
    "rows": lambda rng, shape: rng.dirichlet(np.ones(shape[1]), shape[0]),
    "empty": lambda rng, shape: np.full(shape, np.nan),
}


def drawn(kind):
    """A function of a shape, whose value draws such numbers, given a generator and a dtype."""
    return lambda *shape: lambda rng, t: NUMBERS[kind](rng, shape).astype(t)


normal, peaked, positive, cut, share, rows, empty = map(drawn, NUMBERS)


def integers(high, *shape):
    return lambda rng, t: rng.integers(0, high, shape)


def bytes_(*shape):
    return lambda rng, t: rng.integers(0, 6, shape).astype(np.uint8)


P = 301  # parameters
SIZES = [(N, D), (1, 1), (1, 13), (33, 1), (65, 130)]
CALLS = {
    "adam": [
        [normal(P), normal(P), normal(P), positive(P), empty(n), 0.9, 0.99, 0.01, 0.03]
        for n in (P, 8)  # the second time in blocks
    ],
    "bias_relu": [[normal(n, d), normal(d)] for n, d in SIZES],
    "sgd": [
        [normal(P), normal(P), None, empty(P), 0.0, False, 0.01],
        [normal(P), normal(P), normal(P), empty(P), 0.9, False, 0.01],
        [normal(P), normal(P), normal(P), empty(P), 0.9, True, 0.01],
    ],
    "nadam": [
        [normal(P), normal(P), normal(P), positive(P), empty(P), empty(P), 0.9, 0.99, 0.02, 0.01,
         0.03]
    ],
    "rmsprop": [
        [normal(P), normal(P), positive(P), None, empty(P), 0.9, 0.0, 0.01, 0.03],
        [normal(P), normal(P), positive(P), normal(P), empty(P), 0.9, 0.8, 0.01, 0.03],
    ],
    "adagrad": [[normal(P), normal(P), positive(P), empty(P), 0.01, 0.03]],
    "adadelta": [
        [normal(P), normal(P), positive(P), positive(P), empty(P), empty(P), 0.9, 0.5, 0.03]
    ],
    "lion": [
        [normal(P), normal(P), normal(P), empty(P), empty(P), 0.9, 0.99, 0.01],
        [normal(P), cut(P), cut(P), empty(P), empty(P), 0.9, 0.99, 0.01],  # 0 where both are
    ],
    "relu": [[normal(P), empty(P)]],
    "relu_back": [[normal(P), cut(P), empty(P)]],
    "gelu": [[normal(P), empty(P), empty(P)]],
    "gelu_back": [[normal(P), normal(P), share(P), empty(P)]],
    "gelu_tanh": [[normal(P), empty(P), empty(P)]],
    "gelu_tanh_back": [[normal(P), normal(P), share(P), empty(P)]],
    "softmax_rows": [
        [normal(N, D), empty(N, D)],
        [normal(N, 1), empty(N, 1)],
        [peaked(D, D), empty(D, D)],
    ],
    "softmax_rows_back": [[normal(N, D), rows(N, D)]],
    "causal_softmax": [[normal(3, N, N), 0], [normal(3, 4, N), 3], [peaked(3, N, N), 0]],
    "cross_entropy_of_labels": [
        [normal(N, D), empty(N, D), integers(D, N), None, 0.25],
        [normal(N, D), empty(N, D), integers(D, N), positive(N), 0.125],
        [peaked(D, D), empty(D, D), integers(D, D), None, 0.25],
    ],
    "layer_norm": [
        [normal(N, D), normal(D), normal(D), 0.01, empty(N, D), empty(N, 1), empty(N, D)],
        [share(N, D), normal(D), normal(D), 0.5, empty(N, D), empty(N, 1), empty(N, D)],
    ],
    "layer_norm_back": [
        [normal(N, D), normal(N, D), positive(N, 1), normal(D), empty(N, D), empty(D), empty(D),
         empty(N, D)]
    ],
    "column_squares": [
        [normal(n, D), normal(D), empty(D), empty(n, D)] for n in (1, N, 300)  # in blocks
    ],
    "normalise_columns": [
        [normal(N, D), normal(D), positive(D), normal(D), normal(D), empty(N, D), empty(N, D)]
    ],
    "column_gradients": [
        [normal(n, D), normal(n, D), empty(D), empty(D), empty(n, D)] for n in (1, N, 300)
    ],
    "normalise_columns_back": [
        [normal(N, D), normal(N, D), normal(D), normal(D), normal(D), empty(N, D)]
    ],
    "rnn_step": [[normal(N, D), empty(N, D)]],
    "rnn_back": [[normal(N, D), normal(N, D), empty(N, D)]],
    "lstm_step": [
        [normal(N, 4 * D), normal(N, D), empty(N, D), empty(N, D)]
    ],
    "lstm_back": [
        [normal(N, D), normal(N, D), share(N, 4 * D), normal(N, D), normal(N, D),
         empty(N, 4 * D)]
    ],
    "gru_step": [
        [normal(N, 3 * D), normal(N, 3 * D), normal(N, D), empty(N, D), empty(N, D)]
    ],
    "gru_back": [
        [normal(N, D), share(N, 3 * D), normal(N, D), normal(N, D), empty(N, 3 * D),
         empty(N, 3 * D)]
    ],
    "max_pool": [
        [normal(2, 6, 5, 3), empty(2, 3, 2, 3), bytes_(2, 3, 2, 3), (2, 2), (2, 2)],
        [normal(2, 6, 5, 3), empty(2, 2, 4, 3), bytes_(2, 2, 4, 3), (3, 2), (2, 1)],
        [normal(1, 2, 3, 1), empty(1, 1, 1, 1), bytes_(1, 1, 1, 1), (2, 2), (2, 2)],
    ],
    "max_pool_back": [
        [normal(2, 2, 4, 3), bytes_(2, 2, 4, 3), empty(2, 6, 5, 3), empty(2, 2, 4, 3),
         (3, 2), (2, 1)],
        [normal(2, 3, 2, 3), bytes_(2, 3, 2, 3), empty(2, 6, 5, 3), empty(2, 3, 2, 3),
         (2, 2), (2, 2)],
        [normal(2, 3, 2, 3), bytes_(2, 3, 2, 3), empty(2, 6, 4, 3), empty(2, 3, 2, 3),
         (2, 2), (2, 2)],
        [normal(2, 1, 1, 3), bytes_(2, 1, 1, 3), empty(2, 3, 3, 3), empty(2, 1, 1, 3),
         (3, 3), (1, 1)],  # one window that has all of X
        [normal(2, 1, 1, 3), bytes_(2, 1, 1, 3), empty(2, 3, 3, 3), empty(2, 1, 1, 3),
         (2, 3), (2, 3)],
    ],
    "product": [
        [normal(N, D), normal(D, 5), empty(N, 5)],
        [normal(30, 400), normal(400, 130), empty(30, 130)],
    ],
    "sum_by_token": [
        [integers(5, N), normal(N, D), empty(5, D)],
        [integers(600, N), normal(N, D), empty(600, D)],
    ],
}  # fmt: skip
SCRATCH = {  # arguments that only the NumPy forms use
    "adam": (4,), "sgd": (3,), "nadam": (4, 5), "rmsprop": (4,), "adagrad": (3,),
    "adadelta": (4, 5), "lion": (3, 4), "max_pool_back": (3,), "layer_norm_back": (7,),
    "gru_step": (1,), "column_squares": (3,), "column_gradients": (4,),
}  # fmt: skip
SUMS = {"product": 300}  # their size: some cancel
CASES = [(name, i) for name, calls in CALLS.items() for i in range(len(calls))]


def test_every_kernel_is_called_here_and_has_one_twin_with_its_arguments():
    kernels.use("numba")
    assert KERNELS.keys() == CALLS.keys() == TWINS.keys()
    for name, function in TWINS.items():
        assert function.__doc__, name
        plain = KERNELS[name].plain
        counts = [len(inspect.signature(f).parameters) for f in (function, plain)]
        assert counts[0] == counts[1], name
    defined = re.compile(r"^@(?:kernel|twin)\n(?:@.*\n)*def (\w+)", re.MULTILINE)
    count = 0
    for path in Path(phitodeep.__file__).parent.rglob("*.py"):
        names = defined.findall(path.read_text(encoding="utf-8"))
        assert len(names) == len(set(names)), path
        count += len(names)
    assert count == len(KERNELS) + len(TWINS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "case"), CASES)
def test_both_forms_give_the_same(name, case, dtype, rng):
    given = [a(rng, dtype) if callable(a) else a for a in CALLS[name][case]]
    found = {}
    for which in ("numpy", "numba"):
        assert kernels.use(which) == which
        arguments = copy.deepcopy(given)
        result = KERNELS[name](*arguments)
        arrays = [
            a
            for i, a in enumerate(arguments)
            if isinstance(a, np.ndarray) and i not in SCRATCH.get(name, ())
        ]
        for a in arrays:
            assert a.dtype in (dtype, np.int64, np.uint8)
            assert np.isfinite(a).all()
        found[which] = [result, *arrays]
    precision = (
        {"rtol": 1e-12, "atol": 1e-13} if dtype == np.float64 else {"rtol": 3e-6, "atol": 2e-6}
    )
    if KERNELS[name].plain.__module__ == "phitodeep.optimization.rules":
        precision = {"rtol": 0, "atol": 0}
    for plain, twin in zip(*found.values(), strict=True):
        if name in SUMS and plain is not None:
            precision["atol"] = SUMS[name] * np.finfo(dtype).eps
        if plain is None:
            assert twin is None
        else:
            assert type(plain) is type(twin)
            np.testing.assert_allclose(twin, plain, **precision)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 0.0, 2.0]])
def test_both_cross_entropies_take_infinite_sure_and_equal_logits(weights, dtype):
    """A label at -inf costs infinitely much, and nothing where it weighs nothing."""
    low = -math.inf
    Z = np.array([[30, 0, 1], [2, low, 2], [low, 0, 1], [0, 1, low]], dtype)
    w = None if weights is None else np.array(weights, dtype)
    for labels, finite in (([0, 2, 0, 1], weights), ([0, 0, 1, 0], True)):
        found = []
        for which in ("numpy", "numba"):
            kernels.use(which)
            dZ = np.empty_like(Z)
            value = KERNELS["cross_entropy_of_labels"](Z, dZ, np.array(labels), w, 0.25)
            assert math.isfinite(value) == bool(finite)
            assert np.isfinite(dZ).all()
            np.testing.assert_allclose(dZ.sum(axis=1), 0, atol=1e-6)
            assert dZ[0, 0] == pytest.approx(-0.25 * (math.exp(-30) + math.exp(-29)))
            found.append((value, dZ))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=3e-6)
    for which in ("numpy", "numba"):  # a sure row keeps its digits
        kernels.use(which)
        value = KERNELS["cross_entropy_of_labels"](Z[:1], dZ[:1], np.array([0]), None, 1.0)
        assert value == pytest.approx(math.exp(-30) + math.exp(-29), rel=1e-6, abs=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_softmaxes_give_0_for_a_row_of_scores_that_are_all_masked(dtype):
    X, Y = np.full((2, 3), -np.inf, dtype), np.empty((2, 3), dtype)
    X[1, 1] = 5
    for which in ("numpy", "numba"):
        kernels.use(which)
        KERNELS["softmax_rows"](X, Y)
        np.testing.assert_array_equal(Y, [[0, 0, 0], [0, 1, 0]])


def norms(which, X, eps, gamma, beta):
    """x_hat, r and y of layer_norm."""
    kernels.use(which)
    X_hat, r, Y = np.empty_like(X), np.empty_like(X[:, :1]), np.empty_like(X)
    KERNELS["layer_norm"](X, gamma, beta, eps, X_hat, r, Y)
    return [X_hat, r, Y]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("large_eps", [False, True])
def test_both_layer_norms_take_squares_that_overflow(dtype, large_eps, rng):
    """Beside rows that are as usual, one of them of zeros, and without such."""
    most = float(np.finfo(dtype).max)
    X = rng.standard_normal((6, D))
    X[0] *= 3 * most**0.5
    X[2] = -abs(X[2]) * 3 * most**0.5
    X[3] = most * (0.5 + 0.1 * X[3])  # whose sum overflows, too
    X[5] = 0
    gamma, beta = rng.standard_normal((2, D)).astype(dtype)
    for rows in (X, X[[0, 2, 3]]):
        given = rows.astype(dtype), most / 10 if large_eps else 0.01, gamma, beta
        both = norms("numpy", *given), norms("numba", *given)
        precision = 1e-5 if dtype == np.float32 else 1e-12
        for plain, twin, atol in zip(*both, (precision, 0, precision), strict=True):
            np.testing.assert_allclose(twin, plain, rtol=precision, atol=atol)


SCALAR = {"exp": (np.exp, -87, 88.6, 2.5), "tanh": (np.tanh, -12, 12, 4)}
SCALAR["erf"] = (np.vectorize(math.erf), -7, 7, 4)


def scalar(X):
    """The three functions of one number, compiled, of each number of an array."""
    each(X, Y := np.empty((3, X.size), X.dtype))
    return Y


@jit
def each(X, Y):
    for i in range(X.size):
        Y[0, i], Y[1, i], Y[2, i] = exp(X[i]), tanh(X[i]), erf(X[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scalar_functions_are_exact_to_rounding(dtype):
    for row, (name, (exact, low, high, most)) in enumerate(SCALAR.items()):
        X = np.concatenate([np.linspace(low, high, 20_001), np.linspace(-1, 1, 2001)])
        X = X.astype(dtype)
        Y = scalar(X)[row]
        precision = most * np.finfo(dtype).eps
        np.testing.assert_allclose(Y, exact(X.astype(np.float64)), precision, err_msg=name)
        assert name == "exp" or abs(Y).max() <= 1
        ends = np.array([-1e30, -200, 200, 1e30, np.nan], dtype)
        with np.errstate(over="ignore", under="ignore"):
            wanted = exact(ends)
        np.testing.assert_array_equal(scalar(ends)[row], wanted.astype(dtype), err_msg=name)
    if dtype == np.float32:  # exp below its normal numbers and above; 1 - 2e-7 is not 1 yet
        np.testing.assert_array_equal(scalar(np.array([-88, 89], dtype))[0], [0, math.inf])
        tanh = scalar(np.array([8.05, 9.5, -8.05, -9.5], dtype))[1]
        wanted = math.tanh(8.05)
        np.testing.assert_allclose(tanh, [wanted, 1, -wanted, -1], rtol=np.finfo(dtype).eps)


def test_the_code_of_scalar_functions_is_exact_before_it_is_compiled():
    for function in (exp, tanh, erf):
        exact, low, high, most = SCALAR[function.__name__]
        X = np.concatenate([np.linspace(low, high, 500), np.linspace(-1, 1, 200)]).astype("f")
        found = [function.__wrapped__(x) for x in X]
        np.testing.assert_allclose(found, exact(X.astype(float)), most * np.finfo("f").eps)
    ends = [exp.__wrapped__(x) for x in np.float32([-1e30, -88, 89])]
    ends += [tanh.__wrapped__(x) for x in np.float32([-1e30, -9.5, 9.5, 1e30, np.nan])]
    np.testing.assert_array_equal(ends, [0, 0, np.inf, -1, -1, 1, 1, np.nan])
    near = [tanh.__wrapped__(x) for x in np.float32([-8.9, -8.05, 8.05, 8.9])]
    np.testing.assert_allclose(near, np.tanh([-8.9, -8.05, 8.05, 8.9]), 2 * np.finfo("f").eps)


@long  # every kernel is compiled once more
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("softmax_rows", "AA"),
        ("causal_softmax", "Si"),
        ("_layer_norm", "AVVfAAA"),
        ("layer_norm_back", "AAAVAVVA"),
        ("tiles_of_images", "XiT"),
        ("tiles_of_images_back", "TiX"),
        ("images_of_tiles", "TVX"),
        ("images_of_tiles_back", "XT"),
    ],
)
def test_float32_is_not_computed_in_float64(name, arguments):
    """As a quotient with an integer would be, unnoticed, at half the speed."""
    from phitodeep.kernels.compiled import layers, softmax, winograd

    home = next(m for m in (layers, softmax, winograd) if hasattr(m, name))
    f, i = numba.float32, numba.int64
    types = {"f": f, "i": i, "V": f[::1], "A": f[:, ::1], "S": f[:, :, ::1]}
    types |= {"X": f[:, :, :, ::1], "T": f[:, :, :, :, :, ::1]}
    made = numba.njit(**OPTIONS)(getattr(home, name).py_func)
    made.compile(tuple(types[a] for a in arguments))
    assert "fpext" not in "".join(made.inspect_llvm().values())


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2), (1, 2), (2, 1), (2, 3)])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (1, 2), (2, 1), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_max_pools_let_the_last_nan_win(kernel, stride, dtype, rng):
    """As in PyTorch. Of equal maxima, the first one wins."""
    X = rng.integers(0, 4, (3, 7, 8, 5)).astype(dtype)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[rng.random(X.shape) < 0.1] = -np.inf
    height, width = ((n - k) // s + 1 for n, k, s in zip((7, 8), kernel, stride, strict=True))
    dY = rng.integers(1, 9, (3, height, width, 5)).astype(dtype)
    dY[0, 0, 0], dY[1, -1, -1] = np.nan, np.inf  # which only the winners receive
    wanted = np.empty_like(dY), np.empty(dY.shape, np.uint8), np.zeros_like(X)
    for n, i, j, c in np.ndindex(dY.shape):
        top, left = i * stride[0], j * stride[1]
        x = X[n, top : top + kernel[0], left : left + kernel[1], c].ravel()
        nans = np.flatnonzero(np.isnan(x))
        k = nans[-1] if nans.size else x.argmax()
        wanted[0][n, i, j, c], wanted[1][n, i, j, c] = x[k], k
        wanted[2][n, top + k // kernel[1], left + k % kernel[1], c] += dY[n, i, j, c]
    for which in ("numpy", "numba"):
        kernels.use(which)
        found = [np.empty_like(a) for a in wanted]
        KERNELS["max_pool"](X, *found[:2], kernel, stride)
        KERNELS["max_pool_back"](dY, found[1], found[2], np.empty_like(dY), kernel, stride)
        for one, two in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_gelus_reach_their_limits(name, dtype):
    X = np.array([-np.inf, -1e30, -40, 40, 1e30, np.inf], dtype)
    for which in ("numpy", "numba"):
        kernels.use(which)
        Phi, Y, dX = np.empty((3, X.size), dtype)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            KERNELS[name](X, Phi, Y)
            KERNELS[f"{name}_back"](np.ones_like(X), X, Phi, dX)
        np.testing.assert_array_equal(Y, np.where(X > 0, X, 0))
        np.testing.assert_array_equal(dX, X > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_layer_norms_centre_before_they_square(dtype):
    k = np.array([[5, -5, 3, -3]], dtype)  # added to 2^p, the squares are rounded away
    for which in ("numpy", "numba"):
        X = 2.0 ** (np.finfo(dtype).nmant - 1) + k
        X_hat, r, _ = norms(which, X.astype(dtype), 0.01, *np.ones((2, 4), dtype))
        np.testing.assert_allclose(X_hat, k / 17.01**0.5, rtol=1e-6)
        np.testing.assert_allclose(r, 1 / 17.01**0.5, rtol=1e-6)


@pytest.mark.parametrize("which", ["numpy", "numba"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_bias_relus_treat_nan_and_infinity_alike(which, dtype):
    Y, b = np.array([[np.nan, np.inf, -np.inf, 1]], dtype), np.array([1, 1, 1, -1], dtype)
    kernels.use(which)
    KERNELS["bias_relu"](Y, b)
    np.testing.assert_array_equal(Y, np.array([[np.nan, np.inf, 0, 0]], dtype))
