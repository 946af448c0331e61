"""What the tests of the exchange with PyTorch share: both passes of a layer and of its module."""

import numpy as np
import torch

from phitodeep import layers as L
from phitodeep.core.types import each, numbered, one
from phitodeep.exchange.torch.layouts import outer, to_ours, to_theirs
from phitodeep.exchange.torch.pairs import moves_of
from phitodeep.exchange.torch.write.writing import tensor_of, write

DRAWS = (L.Dropout, L.GaussianNoise, L.Reparameterize, L.RandomFlip, L.RandomCrop)


def draws(layer):
    """Whether a layer has random numbers in training."""
    parts = [part for _, part in layer.walk()]
    return any(isinstance(part, DRAWS) or getattr(part, "dropout", 0) for part in parts)


def tensor(A, layout=None):
    A = A if layout is None else to_theirs(A, layout)
    made = torch.from_numpy(np.array(A))
    return made.requires_grad_(True) if made.dtype.is_floating_point else made


def their_passes(layer, X, dY, training):
    """Y, dX and all gradients of the layer's module, by our paths, as ours."""
    written = write(layer)
    starts, ends = map(outer, layer._ins()), [outer(shape) for shape in layer._outs()]
    given = tuple(map(tensor, each(X), starts))
    Y = written.module.train(training).requires_grad_(True)(*given)
    Y = tuple(Y.values()) if isinstance(Y, dict) else each(Y)
    torch.autograd.backward(Y, [y.detach() for y in map(tensor, each(dY), ends)])
    Y = [to_ours(y.detach().numpy(), end) for y, end in zip(Y, ends, strict=True)]
    dX = [x.grad if x.grad is None else to_ours(x.grad.numpy(), outer(x.shape[1:])) for x in given]
    found = numbered("Y", one(Y, len(Y) == 1)) | numbered("dX", one(dX, len(dX) == 1))
    found = {name: a for name, a in found.items() if a is not None}
    for path, part in layer.walk():
        for name, (there, move) in moves_of(part).items() if path in written.places else ():
            place = written.places[path]
            if name in part.params:
                array = move.back(tensor_of(place.module, there).grad.numpy())
                if name == "W" and isinstance(place.takes, np.ndarray):
                    array = array[np.argsort(place.takes)]
                found[f"{path}.{name}".removeprefix(".")] = array
    return found


def quiet(module):
    for part in module.modules():
        if hasattr(part, "p"):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            part.dropout = 0.0
    return module


def randomised(module, seed):
    """The module in float64 with random parameters and running statistics."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for p in module.parameters():
        p.data.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    for name, b in module.named_buffers():
        if b.dtype.is_floating_point and "running" in name:
            b.copy_(0.5 + torch.rand(b.shape, generator=generator, dtype=b.dtype))
    return module
