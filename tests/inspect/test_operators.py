"""The Hessian, Gauss-Newton and Fisher matrices against products, differences and definitions."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator, cg, eigsh

from phitodeep import SequentialBuilder as B
from phitodeep.errors import ArgumentError, MissingExtraError
from phitodeep.inspect.curvature import Point, directions
from phitodeep.inspect.recording import prepared, record
from phitodeep.loss import CategoricalCrossEntropy, SoftmaxCrossEntropy
from tests.inspect.test_curvature import MODELS, built

RNG = np.random.default_rng(1)


def net(last=3, loss="softmax_cross_entropy", dtype="float64", end=None):
    builder = B(4, seed=0).dtype(dtype).dense(5).tanh().dense(last)
    return (builder if end is None else getattr(builder, end)()).loss(loss).build()


X, Y = RNG.standard_normal((7, 4)), RNG.integers(0, 3, 7)
REAL = RNG.standard_normal((7, 2))


def dense(A):
    return A @ np.eye(A.shape[0])


def flat(found, paths):
    return np.concatenate([found[path].ravel() for path in paths])


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_is_symmetric_and_the_hessian_is_that_of_hvp(name):
    model, X, y, V = built(name)
    for kind in ("hessian", "ggn"):
        A = getattr(model, kind)(X, y)
        u, v = RNG.standard_normal((2, A.shape[0]))
        Au, Av = A @ u, A @ v
        assert abs(u @ Av - v @ Au) <= 1e-12 * np.linalg.norm(Av) * np.linalg.norm(u)
        np.testing.assert_array_equal(A @ v, Av)  # products leave no trace
        np.testing.assert_allclose(A.T @ v, Av)
        np.testing.assert_allclose(A @ (u + 1j * v), Au + 1j * Av)
        if kind == "ggn":
            assert v @ Av >= 0
        else:
            assert set(A.paths) == set(V)
            np.testing.assert_allclose(A @ flat(V, A.paths), flat(model.hvp(X, y, V), A.paths))


def jacobian(model, X, A):
    """Of all predictions by all parameters, (N K, D), from its products."""
    columns = []
    weights = model.get_weights()
    for path in A.paths:
        for k in range(weights[path].size):
            V = np.zeros(weights[path].size)
            V[k] = 1
            columns.append(model.jvp(X, {path: V.reshape(weights[path].shape)})[1].ravel())
    return np.stack(columns, axis=1)


def test_products_with_the_jacobian_and_its_transpose_are_dual():
    model = net()
    J, u = jacobian(model, X, model.ggn(X, Y)), RNG.standard_normal(7 * 3)
    recording = record(model, X, Y)
    passes = recording.backward(u.reshape(7, 3))
    grads = {f"{p}.{n}": dW for p, found in passes.items() for n, dW in found.grads.items()}
    np.testing.assert_allclose(u @ J, flat(grads, model.ggn(X, Y).paths), rtol=1e-12, atol=1e-12)


def test_the_gauss_newton_matrix_is_what_its_definition_says():
    model = net(2, "mse")
    G = model.ggn(X, REAL)
    J = jacobian(model, X, G)
    np.testing.assert_allclose(dense(G), 2 / REAL.size * J.T @ J, rtol=1e-10, atol=1e-13)
    model = net()
    G = model.ggn(X, Y)
    J = jacobian(model, X, G).reshape(7, 3, -1)
    Z = model.predict(X)
    p = np.exp(Z) / np.exp(Z).sum(-1, keepdims=True)
    H = p[:, :, None] * (np.eye(3) - p[:, None, :])
    wanted = np.einsum("nki,nkl,nlj->ij", J, H, J) / 7
    np.testing.assert_allclose(dense(G), wanted, rtol=1e-10, atol=1e-13)
    assert np.linalg.eigvalsh(dense(G)).min() >= -1e-14
    assert np.linalg.eigvalsh(dense(model.hessian(X, Y))).min() < -1e-3  # so that it differs


def outer_products(model, X, labels, probabilities, paths):
    """The mean over samples and labels of g g^T."""
    total = 0.0
    for label, p in zip(labels, probabilities, strict=True):
        found = model.sample_gradients(X, label)
        g = np.stack([flat({q: found[q][n] for q in paths}, paths) for n in range(len(X))])
        g *= len(X)  # the gradient of a sample's own loss
        total = total + np.einsum("n,ni,nj->ij", p, g, g)
    return total / len(X)


@pytest.mark.parametrize(
    ("loss", "end"), [("softmax_cross_entropy", None), (CategoricalCrossEntropy(), "softmax")]
)
def test_the_fisher_matrix_is_the_mean_over_labels_of_the_model(loss, end):
    model = net(loss=loss, end=end)
    P = model.predict(X)
    P = P if end else np.exp(P) / np.exp(P).sum(-1, keepdims=True)
    F = model.fisher(X, Y)
    labels = [np.full(7, k) for k in range(3)]
    wanted = outer_products(model, X, labels, P.T, F.paths)
    np.testing.assert_allclose(dense(F), wanted, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(dense(model.fisher(X, (Y + 1) % 3)), wanted, rtol=1e-9, atol=1e-13)
    if end:  # by probabilities, the Gauss-Newton matrix depends on the labels
        assert np.abs(dense(model.ggn(X, Y)) - wanted).max() > 1e-3


@pytest.mark.parametrize(
    ("loss", "end"),
    [("binary_cross_entropy", "sigmoid"), ("binary_cross_entropy_with_logits", None)],
)
def test_the_fisher_matrix_of_two_classes(loss, end):
    model = net(1, loss, end=end)
    P = model.predict(X)[:, 0]
    p = P if end else 1 / (1 + np.exp(-P))
    F = model.fisher(X, Y > 1)
    wanted = outer_products(model, X, [np.zeros(7), np.ones(7)], [1 - p, p], F.paths)
    np.testing.assert_allclose(dense(F), wanted, rtol=1e-9, atol=1e-13)


def test_the_fisher_matrix_of_counts():
    logs = net(1, "poisson_nll")
    J = jacobian(logs, X, logs.ggn(X, Y))
    rate = np.exp(logs.predict(X)[:, 0])
    wanted = np.einsum("ni,n,nj->ij", J, rate, J) / 7  # the variance of a count is its mean
    np.testing.assert_allclose(dense(logs.fisher(X, Y)), wanted, rtol=1e-10, atol=1e-13)


def test_outputs_add_up_in_the_fisher_matrix():
    model, X, y, _ = built("heads")
    F, G = model.fisher(X, y), model.ggn(X, y)
    v = RNG.standard_normal(F.shape[0])
    np.testing.assert_allclose(F @ v, G @ v, rtol=1e-12)


@pytest.mark.parametrize("kind", ["hessian", "ggn", "fisher"])
def test_batches_add_up_to_the_whole(kind):
    model, w = net(), RNG.random(7)
    whole = getattr(model, kind)(X, Y, sample_weight=w)
    parts = getattr(model, kind)(X, Y, sample_weight=w, batch_size=3)
    np.testing.assert_allclose(dense(parts), dense(whole), rtol=1e-11, atol=1e-14)


def test_one_point_serves_both_matrices():
    model, X, y, V = built("dense")
    data, twin, call = prepared(model, X, y)
    point, W = Point(twin, data, call), directions(twin, V)
    for _ in range(2):
        for kind in ("hessian", "ggn"):
            found, A = getattr(point, kind)(W), getattr(model, kind)(X, y)
            np.testing.assert_array_equal(flat(found, A.paths), A @ flat(V, A.paths))


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_threads_share_a_matrix(kind):
    A = getattr(net(), kind)(X, Y)
    vectors = RNG.standard_normal((8, A.shape[0]))
    wanted = [A @ v for v in vectors]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(A.matvec, [*vectors] * 20)]
    np.testing.assert_array_equal(found, wanted * 20)


def test_batches_keep_the_draws_of_dropout_and_the_padding():
    model = B(4, 4, seed=0).dtype("float64").gru(3).dropout(0.5).dense(2).loss("mse").build()
    X, y = RNG.standard_normal((5, 4, 4)), RNG.standard_normal((5, 4, 2))
    whole, parts = (model.hessian(X, y, lengths=[4, 1, 2, 3, 4], batch_size=n) for n in (None, 2))
    v = RNG.standard_normal(whole.shape[0])
    np.testing.assert_allclose(parts @ v, whole @ v, rtol=1e-10, atol=1e-13)


def test_a_pattern_selects_parameters():
    model = net()
    whole, part = model.hessian(X, Y), model.hessian(X, Y, params="2.*")
    assert part.paths == ["2.W", "2.b"]
    rows = slice(-part.shape[0], None)
    np.testing.assert_allclose(dense(part), dense(whole)[rows, rows], rtol=1e-11, atol=1e-14)
    with pytest.raises(ArgumentError, match=r"hessian: '7.*' matches no parameter"):
        model.hessian(X, Y, params="7.*")


def test_diagonal_trace_and_eigenvalues():
    model = net()
    A = model.hessian(X, Y)
    H = dense(A)
    np.testing.assert_allclose(A.diagonal(), np.diag(H), rtol=1e-11, atol=1e-14)
    estimate = A.diagonal(4000, seed=3)
    assert np.abs(estimate - np.diag(H)).max() < 0.1 * np.abs(H).max()
    trace, error = A.trace(400, seed=2)
    assert abs(trace - np.trace(H)) < 4 * error
    off = H - np.diag(np.diag(H))
    assert error == pytest.approx(
        np.sqrt(2 * (off**2).sum() / 400), rel=0.2
    )  # Hutchinson's variance
    assert A.trace(400, seed=2) == (trace, error) != A.trace(400, seed=3)
    values, vectors = A.largest(3, vectors=True)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(H)[::-1][:3], rtol=1e-9)
    np.testing.assert_allclose(H @ vectors, values * vectors, atol=1e-8)
    np.testing.assert_array_equal(A.largest(3), values)
    lowest = eigsh(A, 1, which="SA", return_eigenvectors=False)
    np.testing.assert_allclose(lowest, np.linalg.eigvalsh(H)[0], rtol=1e-8)
    with pytest.raises(ArgumentError, match="trace samples"):
        A.trace(1)


def test_the_standard_error_of_two_samples():
    A = net(2).hessian(X, Y % 2, params="2.b")  # [[p, q], [q, p]], so z^T A z is 2 p + 2 q or - 2 q
    q = dense(A)[0, 1]
    found = {round(A.trace(2, seed=seed)[1] / abs(q), 9) for seed in range(9)}
    assert found == {0, 2}


def test_the_largest_eigenvalue_is_not_that_of_the_largest_size(monkeypatch):
    A = net().hessian(X, Y)
    lowest = np.linalg.eigvalsh(dense(A))[0]
    product = A._matvec
    monkeypatch.setattr(A, "_matvec", lambda v: -product(v))
    np.testing.assert_allclose(A.largest(), [-lowest], rtol=1e-9)


def test_scipy_solves_with_it():
    model = net(2, "mse")
    G = model.ggn(X, REAL)
    g = RNG.standard_normal(G.shape[0])
    x, failed = cg(G + 0.1 * aslinearoperator(np.eye(len(g))), g, rtol=1e-10)
    assert not failed
    np.testing.assert_allclose(G @ x + 0.1 * x, g, atol=1e-8)


def test_the_dtype_is_that_of_the_model_and_the_model_stays():
    model = net(dtype="float32")
    weights = model.get_weights()
    A = model.hessian(X, Y)
    assert A.dtype == np.float32 == (A @ np.ones(A.shape[0])).dtype
    wide = model.copy()
    wide.cast("float64")
    np.testing.assert_allclose(dense(A), dense(wide.hessian(X, Y)), rtol=1e-3, atol=1e-6)
    for path, W in model.get_weights().items():
        np.testing.assert_array_equal(W, weights[path])


@pytest.mark.parametrize(
    "loss", ["mae", CategoricalCrossEntropy(0.1), CategoricalCrossEntropy(ignore_index=2)]
)
def test_the_fisher_matrix_needs_probabilities(loss):
    model = net(2, loss) if loss == "mae" else net(3, loss, end="softmax")
    with pytest.raises(ArgumentError, match="fisher needs a loss that is minus the log of a prob"):
        model.fisher(X, REAL if loss == "mae" else Y)
    model = net(3, SoftmaxCrossEntropy(0.1, ignore_index=2))
    np.testing.assert_allclose(dense(model.fisher(X, Y)), dense(model.ggn(X, Y)))


def test_bad_input(monkeypatch):
    model = net()
    with pytest.raises(ArgumentError, match="ggn batch_size"):
        model.ggn(X, Y, batch_size=0)
    monkeypatch.setitem(sys.modules, "phitodeep.inspect.operators", None)
    with pytest.raises(
        MissingExtraError, match=r"fisher needs scipy: pip install .phitodeep\[lbfgs\]"
    ):
        model.fisher(X, Y)
