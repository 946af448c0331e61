"""Random networks and the same functions of PyTorch have the same outputs and gradients."""

from contextlib import suppress

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from phitodeep.core.call import calling
from phitodeep.core.types import each
from phitodeep.errors import PhitodeepError
from tests.exchange.torch.functions import UNWRITTEN, Twin
from tests.exchange.torch.support import tensor
from tests.random_networks import Centred, drawn, one
from tests.rows import times

ACROSS = (Centred,)  # which look across the samples of a batch


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
    assert_gradients(net.layer, twin)


@pytest.mark.parametrize("seed", range(times(25)))
def test_padded_samples_have_the_outputs_and_gradients_that_each_has_alone(seed):
    net, masks, wanted = masked(seed)
    twin, rng = Twin(net.layer), np.random.default_rng(seed)
    with calling(training=False, mask=one(masks)):
        Ys = each(net.layer.forward(*each(net.X)))
        dYs = [rng.standard_normal(Y.shape) for Y in Ys]
        for dY, mask in zip(dYs, wanted, strict=True):
            if mask is not None:
                dY[~mask] = 0
        dXs = each(net.layer.backward(*dYs))
        for n, length in enumerate(masks[0].sum(1)):
            Xs = [tensor(X[n : n + 1, :length]) for X in each(net.X)]
            alone = each(twin(net.layer, *Xs))
            rows = [... if mask is None else mask[n] for mask in wanted]
            for Y, own, row in zip(alone, Ys, rows, strict=True):
                assert_close(Y.detach().numpy()[0], own[n][row])
            given = [torch.from_numpy(dY[n][row])[None] for dY, row in zip(dYs, rows, strict=True)]
            if any(Y.requires_grad for Y in alone):
                torch.autograd.backward(alone, given)
            for X, dX in zip(Xs, dXs, strict=True):
                if dX is not None:
                    assert_close(X.grad.numpy()[0], dX[n, :length])
                    assert not dX[n, length:].any()
    assert_gradients(net.layer, twin)


def masked(seed):
    """A random network of sequences, its masks, and those of its outputs."""
    for draw in range(100):
        number, kinds = 100 * seed + draw, ("sequences", "tokens")
        net = drawn(number, kinds=kinds, masked=True, without=(*UNWRITTEN, *ACROSS))
        N, T = each(net.X)[0].shape[:2]
        lengths = np.random.default_rng(number).integers(1, T + 1, (N, 1))
        masks = [np.arange(T) < lengths for _ in each(net.X)]
        with suppress(PhitodeepError, RuntimeError):  # no mask fits it, or its windows no sample
            Twin(net.layer)(net.layer, *[tensor(X[:1, : lengths.min()]) for X in each(net.X)])
            return net, masks, each(net.layer.compute_mask(*masks))
    raise AssertionError("no network takes a mask")


def assert_gradients(layer, twin):
    ours = layer.gradients()
    for path, part in layer.walk():
        for name, W in twin.own[part].items():
            own = ours.pop(f"{path}.{name}")
            assert_close(np.zeros(own.shape) if W.grad is None else W.grad.numpy(), own)
    assert not ours
