"""Matrices and gradients of samples against curvlinops and BackPACK, for one network in PyTorch.

They run where both are installed, in an environment of their own, since they bring torchvision.
"""

import importlib

import numpy as np
import pytest

from phitodeep import SequentialBuilder as B

curvlinops = pytest.importorskip("curvlinops")
backpack = pytest.importorskip("backpack")
extensions = pytest.importorskip("backpack.extensions")
torch = importlib.import_module("torch")  # which both need
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),  # of BackPACK
]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((9, 4))
TARGETS = {"softmax_cross_entropy": RNG.integers(0, 3, 9), "mse": RNG.standard_normal((9, 3))}


@pytest.fixture(params=TARGETS)
def both(request):
    """A model, its network and loss in PyTorch, and the targets."""
    model = B(4, seed=0).dtype("float64").dense(5).sigmoid().dense(3).loss(request.param).build()
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Sigmoid(), torch.nn.Linear(5, 3)
    ).double()
    with torch.no_grad():
        for place in (0, 2):
            net[place].weight.copy_(torch.from_numpy(model.layers[place].W.T))
            net[place].bias.copy_(torch.from_numpy(model.layers[place].b))
    cost = torch.nn.MSELoss() if request.param == "mse" else torch.nn.CrossEntropyLoss()
    return model, net, cost, TARGETS[request.param]


def in_our_order(flat):
    """Vectors (25 + 18, ...) of PyTorch's parameters, whose matrices are transposed."""
    places = np.arange(43)
    first, second = places[:20].reshape(5, 4).T, places[25:40].reshape(3, 5).T
    return flat[np.concatenate([first.ravel(), places[20:25], second.ravel(), places[40:]])]


def dense(A):
    return A @ np.eye(A.shape[0])


@pytest.mark.parametrize("kind", ["hessian", "ggn", "fisher"])
def test_matrices_are_those_of_curvlinops(both, kind):
    model, net, cost, y = both
    data = [(torch.from_numpy(X), torch.from_numpy(y))]
    theirs = {"hessian": "HessianLinearOperator"}.get(kind, "GGNLinearOperator")
    made = getattr(curvlinops, theirs)(net, cost, [*net.parameters()], data)
    wanted = made @ torch.eye(43, dtype=torch.float64)
    wanted = in_our_order(in_our_order(wanted.detach().numpy()).T)
    np.testing.assert_allclose(dense(getattr(model, kind)(X, y)), wanted, rtol=1e-6, atol=1e-9)


def test_the_fisher_matrix_is_the_mean_of_what_curvlinops_draws(both):
    model, net, cost, y = both
    data = [(torch.from_numpy(X), torch.from_numpy(y))]
    drawn = curvlinops.FisherMCLinearOperator(net, cost, [*net.parameters()], data, mc_samples=4000)
    found = drawn @ torch.eye(43, dtype=torch.float64)
    found = in_our_order(in_our_order(found.detach().numpy()).T)
    wanted = dense(model.fisher(X, y))
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)
    assert np.linalg.norm(found - dense(model.hessian(X, y))) > 0.1 * np.linalg.norm(wanted)


def test_diagonals_and_gradients_of_samples_are_those_of_backpack(both):
    model, net, cost, y = both
    net, cost = backpack.extend(net), backpack.extend(cost)
    with backpack.backpack(extensions.DiagGGNExact(), extensions.BatchGrad()):
        cost(net(torch.from_numpy(X)), torch.from_numpy(y)).backward()
    diagonal = torch.cat([p.diag_ggn_exact.flatten() for p in net.parameters()]).numpy()
    np.testing.assert_allclose(model.ggn(X, y).diagonal(), in_our_order(diagonal), rtol=1e-6)
    found = model.sample_gradients(X, y)
    for place in (0, 2):
        W, b = (p.grad_batch.numpy() for p in net[place].parameters())
        np.testing.assert_allclose(found[f"{place}.W"], W.swapaxes(1, 2), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found[f"{place}.b"], b, rtol=1e-6, atol=1e-12)
