"""Every kernel computes the same in NumPy and compiled."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phitodeep
from phitodeep import kernels
from phitodeep.kernels import KERNELS, TWINS

for module in pkgutil.walk_packages(phitodeep.__path__, "phitodeep."):
    if "compiled" not in module.name:
        importlib.import_module(module.name)
Arguments = Callable[[np.random.Generator, Any], list[Any]]
N, D = 7, 11


def normal(*shape: int) -> Callable[..., Any]:
    return lambda rng, t: rng.standard_normal(shape).astype(t)


def peaked(*shape: int) -> Callable[..., Any]:
    """Scores whose exponentials overflow, unless the greatest of the row is taken off."""
    return lambda rng, t: (rng.standard_normal(shape) + 1000 * np.eye(*shape[-2:])).astype(t)


def positive(*shape: int) -> Callable[..., Any]:
    return lambda rng, t: rng.uniform(0.1, 2, shape).astype(t)


def cut(*shape: int) -> Callable[..., Any]:
    """What a ReLU gives."""
    return lambda rng, t: np.maximum(rng.standard_normal(shape), 0).astype(t)


def share(*shape: int) -> Callable[..., Any]:
    return lambda rng, t: rng.uniform(0.05, 0.95, shape).astype(t)


def rows(n: int, k: int) -> Callable[..., Any]:
    return lambda rng, t: rng.dirichlet(np.ones(k), n).astype(t)


def empty(*shape: int) -> Callable[..., Any]:
    return lambda rng, t: np.full(shape, np.nan, t)


def integers(high: int, *shape: int) -> Callable[..., Any]:
    return lambda rng, t: rng.integers(0, high, shape)


def bytes_(*shape: int) -> Callable[..., Any]:
    return lambda rng, t: rng.integers(0, 6, shape).astype(np.uint8)


P = 301  # parameters
CALLS: dict[str, list[list[Any]]] = {
    "adam": [[normal(P), normal(P), normal(P), positive(P), empty(P), 0.9, 0.99, 0.01, 0.03]],
    "sgd": [
        [normal(P), normal(P), None, empty(P), 0.0, False, 0.01],
        [normal(P), normal(P), normal(P), empty(P), 0.9, False, 0.01],
        [normal(P), normal(P), normal(P), empty(P), 0.9, True, 0.01],
    ],
    "nadam": [
        [normal(P), normal(P), normal(P), positive(P), empty(P), empty(P), 0.9, 0.99, 0.02, 0.01,
         0.1, 0.03]
    ],
    "rmsprop": [
        [normal(P), normal(P), positive(P), None, empty(P), 0.9, 0.0, 0.01, 0.03],
        [normal(P), normal(P), positive(P), normal(P), empty(P), 0.9, 0.8, 0.01, 0.03],
    ],
    "adagrad": [[normal(P), normal(P), positive(P), empty(P), 0.01, 0.03]],
    "adadelta": [
        [normal(P), normal(P), positive(P), positive(P), empty(P), empty(P), 0.9, 0.5, 0.03]
    ],
    "lion": [[normal(P), normal(P), normal(P), empty(P), empty(P), 0.9, 0.99, 0.01]],
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
        [normal(N, D), normal(D), normal(D), 0.01, empty(N, D), empty(N, 1), empty(N, D)]
    ],
    "layer_norm_back": [
        [normal(N, D), normal(N, D), positive(N, 1), normal(D), empty(N, D), empty(D), empty(D),
         empty(N, D)]
    ],
    "lstm_step": [
        [normal(N, 4 * D), normal(N, 4 * D), normal(N, D), empty(N, D), empty(N, D)]
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
    ],
    "max_pool_back": [
        [normal(2, 2, 4, 3), bytes_(2, 2, 4, 3), empty(2, 6, 5, 3), empty(2, 2, 4, 3),
         (3, 2), (2, 1)],
        [normal(2, 3, 2, 3), bytes_(2, 3, 2, 3), empty(2, 6, 5, 3), empty(2, 3, 2, 3),
         (2, 2), (2, 2)],
        [normal(2, 3, 2, 3), bytes_(2, 3, 2, 3), empty(2, 6, 4, 3), empty(2, 3, 2, 3),
         (2, 2), (2, 2)],
    ],
    "sum_by_token": [
        [integers(5, N), normal(N, D), empty(5, D)],
        [integers(600, N), normal(N, D), empty(600, D)],
    ],
}  # fmt: skip
SCRATCH = {
    "adam": (4,),
    "sgd": (3,),
    "nadam": (4, 5),
    "rmsprop": (4,),
    "adagrad": (3,),
    "adadelta": (4, 5),
    "lion": (3, 4),
    "max_pool_back": (3,),
    "layer_norm_back": (7,),
    "lstm_step": (1,),
    "gru_step": (1,),
}
CASES = [(name, i) for name, calls in CALLS.items() for i in range(len(calls))]


@pytest.fixture(autouse=True)
def _restored() -> Any:
    before = kernels.chosen()
    yield
    kernels.use(before)


def test_every_kernel_is_called_here_and_has_a_twin() -> None:
    pytest.importorskip("numba")
    kernels.use("numba")
    assert KERNELS.keys() == CALLS.keys() == TWINS.keys()


def test_every_twin_has_a_docstring_and_the_arguments_of_its_kernel() -> None:
    pytest.importorskip("numba")
    kernels.use("numba")
    for name, function in TWINS.items():
        assert function.__doc__, name
        plain = KERNELS[name].plain
        counts = [len(inspect.signature(f).parameters) for f in (function, plain)]
        assert counts[0] == counts[1], name


def test_no_file_defines_a_kernel_twice() -> None:
    """Such a second definition would look like a reload, which replaces the first."""
    for path in Path(phitodeep.__file__).parent.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        names = [
            node.name
            for node in body
            if isinstance(node, ast.FunctionDef)
            and {"kernel", "twin"} & {ast.unparse(d) for d in node.decorator_list}
        ]
        assert len(names) == len(set(names)), path


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "case"), CASES)
def test_both_forms_give_the_same(name: str, case: int, dtype: Any, rng: Any) -> None:
    pytest.importorskip("numba")
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
    for plain, twin in zip(*found.values(), strict=True):
        if plain is None:
            assert twin is None
        else:
            assert type(plain) is type(twin)
            np.testing.assert_allclose(twin, plain, **precision)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 0.0, 2.0]])
def test_both_cross_entropies_take_infinite_sure_and_equal_logits(weights: Any, dtype: Any) -> None:
    """A label at -inf costs infinitely much, and nothing where it weighs nothing."""
    pytest.importorskip("numba")
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "exact", "high"), [("exp", np.exp, 88.6), ("tanh", np.tanh, 12), ("erf", None, 7)]
)
def test_scalar_functions_are_exact_to_rounding(
    name: str, exact: Any, high: float, dtype: Any
) -> None:
    pytest.importorskip("numba")
    import numba

    from phitodeep.kernels.compiled import scalar
    from phitodeep.kernels.compiled.jit import OPTIONS

    function = getattr(scalar, name)

    @numba.njit(**OPTIONS)
    def each(X: Any, Y: Any) -> None:
        for i in range(X.size):
            Y[i] = function(X[i])

    low = -87 if name == "exp" else -high
    X = np.concatenate([np.linspace(low, high, 20_001), np.linspace(-1, 1, 2001)]).astype(dtype)
    Y = np.empty_like(X)
    each(X, Y)
    wide = X.astype(np.float64)
    wanted = np.vectorize(math.erf)(wide) if exact is None else exact(wide)
    np.testing.assert_allclose(Y, wanted, rtol=4 * np.finfo(dtype).eps)
    ends = np.array([-1e30, -200, 200, 1e30, np.nan], dtype)
    each(ends, Y[:5])
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.vectorize(math.erf)(ends) if exact is None else exact(ends)
    np.testing.assert_array_equal(Y[:5], wanted.astype(dtype) if dtype == np.float32 else wanted)
