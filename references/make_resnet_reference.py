"""Create tests/reference/resnet.npz: a residual network's logits, loss and gradients in PyTorch.

    pip install torch==2.13.0
    python references/make_resnet_reference.py

The network is `resnet_small(32, 32, 3, blocks=1)`, written with PyTorch's functions and applied to
images of CIFAR's shape. Parameters are multiples of 1/64, so that they compress well. Of
a gradient with more than 1,000 elements, every seventh is kept. All values are float64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

OUT = Path(__file__).parent.parent / "tests" / "reference" / "resnet.npz"
KEPT, STEP = 1000, 7


def thinned(a: np.ndarray) -> np.ndarray:
    """All elements of a small array, every STEP-th of a large one."""
    return a if a.size <= KEPT else a.ravel()[::STEP]


class Network:
    """Draws parameters under phitodeep's paths and applies PyTorch's layers to them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.parameters: dict[str, np.ndarray] = {}
        self.used: dict[str, Tensor] = {}
        self.running: dict[str, Tensor] = {}

    def draw(self, path: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Tensor:
        drawn = np.round((mean + scale * self.rng.standard_normal(shape)) * 64) / 64
        self.parameters[path] = drawn
        self.used[path] = torch.tensor(drawn, requires_grad=True)
        return self.used[path]

    def conv(self, path: str, X: Tensor, filters: int, stride: int = 1) -> Tensor:
        channels = X.shape[1]
        W = self.draw(f"{path}.W", (3, 3, channels, filters), (2 / 9 / channels) ** 0.5)
        pads = (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1)  # "same" puts the odd zero after
        return F.conv2d(F.pad(X, pads), W.permute(3, 2, 0, 1), stride=stride)

    def norm(self, path: str, X: Tensor) -> Tensor:
        C = X.shape[1]
        gamma, beta = (
            self.draw(f"{path}.gamma", (C,), 0.3, 1.0),
            self.draw(f"{path}.beta", (C,), 0.3),
        )
        mean, var = torch.zeros(C, dtype=X.dtype), torch.ones(C, dtype=X.dtype)
        Y = F.batch_norm(X, mean, var, gamma, beta, training=True, momentum=0.1, eps=1e-5)
        self.running |= {f"{path}.running_mean": mean, f"{path}.running_var": var}
        return Y


def logits(net: Network, images: np.ndarray, classes: int) -> Tensor:
    """The network's output; numbers in paths are positions in phitodeep's chain."""
    X = torch.tensor(images).permute(0, 3, 1, 2)
    X, place = F.relu(net.norm("1", net.conv("0", X, 16))), 3
    for channels in (16, 32, 64):
        if channels > 16:
            X = F.relu(net.norm(f"{place + 1}", net.conv(f"{place}", X, channels, stride=2)))
            place += 3
        inner = F.relu(net.norm(f"{place}.layers.1", net.conv(f"{place}.layers.0", X, channels)))
        inner = net.norm(f"{place}.layers.4", net.conv(f"{place}.layers.3", inner, channels))
        X = F.relu(X + inner)
        place += 2
    W, b = (
        net.draw(f"{place + 1}.W", (64, classes), 0.2),
        net.draw(f"{place + 1}.b", (classes,), 0.2),
    )
    return X.mean(dim=(2, 3)) @ W + b


def main() -> None:
    rng = np.random.default_rng(1)
    images = np.round(rng.standard_normal((4, 32, 32, 3)) * 16) / 16
    labels = rng.integers(0, 10, 4)
    net = Network(seed=0)
    Y = logits(net, images, 10)
    loss = F.cross_entropy(Y, torch.tensor(labels))
    loss.backward()
    np.savez_compressed(
        OUT,
        **{"torch": torch.__version__, "batch/images": images, "batch/labels": labels},
        **{"batch/logits": Y.detach().numpy(), "batch/loss": loss.item()},
        **{f"parameter/{path}": a for path, a in net.parameters.items()},
        **{f"gradient/{path}": thinned(t.grad.numpy()) for path, t in net.used.items()},
        **{f"state/{path}": t.numpy() for path, t in net.running.items()},
    )
    print(f"{OUT.name}: {OUT.stat().st_size / 1e3:.0f} kB, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
