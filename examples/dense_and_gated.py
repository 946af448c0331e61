"""Two ways to pass maps on, tried on digits: dense connections, and gates for channels.

python examples/dense_and_gated.py

A dense block gives each convolution all maps before it (Huang et al. 2017, arXiv:1608.06993,
eq. 2); squeeze-and-excitation scales each channel by a gate (Hu et al. 2018, arXiv:1709.01507,
eq. 2-4).
"""

import argparse

from phitodeep.data import load_mnist
from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam


def dense_block(b: SequentialBuilder, growth: int, layers: int) -> SequentialBuilder:
    """Each layer reads the maps of all layers before it."""
    for _ in range(layers):
        b.name("before").batch_norm().relu().conv2d(growth, 3, padding="same").concat("before")
    return b


def squeeze_excite(b: SequentialBuilder, channels: int) -> SequentialBuilder:
    """Scale each channel by a gate that sees the means of all."""
    b.name("maps").global_avg_pool().dense(channels // 2).relu().dense(channels).sigmoid()
    return b.reshape(1, 1, channels).multiply("maps")


def dense_net() -> SequentialBuilder:
    b = SequentialBuilder(28, 28, 1, seed=0).conv2d(8, 3, stride=2, padding="same")
    b = b.then(dense_block, growth=6, layers=3).avg_pool2d(2)
    return b.then(dense_block, growth=6, layers=3)


def gated_net() -> SequentialBuilder:
    b = SequentialBuilder(28, 28, 1, seed=0)
    b = b.conv2d(8, 3, stride=2, padding="same").relu().then(squeeze_excite, 8)
    return b.conv2d(16, 3, stride=2, padding="same").relu().then(squeeze_excite, 16)


def trained(b: SequentialBuilder, epochs: int, n: int) -> float:
    X, y, X_test, y_test = load_mnist()
    X, X_test = (images.reshape(-1, 28, 28, 1) for images in (X, X_test))
    b = b.batch_norm().relu().flatten().dense(10).loss("softmax_cross_entropy")
    model: Network = b.optimizer(Adam(0.003)).metrics("accuracy").batch(64).build()
    model.train(X[:n], y[:n], epochs=epochs)
    return float(model.evaluate(X_test, y_test)["accuracy"])


def main(epochs: int = 4, n: int = 8000) -> tuple[float, float]:
    found = trained(dense_net(), epochs, n), trained(gated_net(), epochs, n)
    print("accuracy with dense connections {:.3f}, with gates {:.3f}".format(*found))
    return found


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
