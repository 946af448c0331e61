"""Random networks and the same functions of PyTorch have the same outputs and gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from phitodeep.core.call import calling
from phitodeep.core.types import each
from tests.exchange.torch.functions import UNWRITTEN, Twin
from tests.exchange.torch.support import tensor
from tests.random_networks import drawn
from tests.rows import times


def assert_close(found, wanted):
    size = max(1.0, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * size)


@pytest.mark.parametrize("seed", range(times(25)))
def test_outputs_and_all_gradients(seed):
    net, training = drawn(seed, without=UNWRITTEN), seed % 4 > 0
    twin, Xs = Twin(net.layer), [tensor(X) for X in each(net.X)]
    with calling(step=0, training=training):
        Ys = each(twin(net.layer, *Xs))
        ours = each(net.layer.forward(*each(net.X)))
        for Y, own in zip(Ys, ours, strict=True):
            assert_close(Y.detach().numpy(), own)
        dYs = each(net.dY(net.layer.forward(*each(net.X))))
        dXs = each(net.layer.backward(*dYs))
    if any(Y.requires_grad for Y in Ys):
        torch.autograd.backward(Ys, [torch.from_numpy(dY) for dY in dYs])
    for X, dX in zip(Xs, dXs, strict=True):
        if dX is not None:
            assert_close(X.grad.numpy(), dX)
    ours = net.layer.gradients()
    for path, part in net.layer.walk():
        for name, W in twin.own[part].items():
            own = ours.pop(f"{path}.{name}")
            assert_close(np.zeros(own.shape) if W.grad is None else W.grad.numpy(), own)
    assert not ours
