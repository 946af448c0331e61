"""A GAN draws two moons: two models and two optimizers, each with its own backward pass.

python examples/gan_moons.py [--picture gan.png]        # the picture needs phitodeep[plot]

The critic learns to tell real points from drawn ones. The generator gets its gradient through the
critic: dX of the critic is dP of the generator. The last weights go round in circles, so the points
are drawn with an average of the weights (`ema`).
"""

import argparse

import numpy as np

from phitodeep.data import make_moons
from phitodeep.loss import BinaryCrossEntropyWithLogits
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.optimizers import Adam

WIDTHS = (0.1, 0.3, 1.0)  # of the kernels that compare two samples


def network(inputs: int, outputs: int, seed: int) -> Sequential:
    builder = SequentialBuilder(inputs, seed=seed)
    return builder.dense(64).leaky_relu(0.2).dense(64).leaky_relu(0.2).dense(outputs).build()


def mmd(A: np.ndarray, B: np.ndarray) -> float:
    """The maximum mean discrepancy of two samples (Gretton et al. 2012, eq. 5)."""

    def kernel(A: np.ndarray, B: np.ndarray) -> float:
        squares = ((A[:, None] - B) ** 2).sum(axis=-1)
        return float(np.mean([np.exp(-squares / (2 * width**2)) for width in WIDTHS]))

    return float(np.sqrt(kernel(A, A) + kernel(B, B) - 2 * kernel(A, B)))


def main(steps: int = 4000, batch: int = 128, picture: str | None = None) -> tuple[float, float]:
    X, _ = make_moons(n=4000, noise=0.05, seed=0)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rng = np.random.default_rng(0)
    generator, critic, loss = network(4, 2, 0), network(2, 1, 1), BinaryCrossEntropyWithLogits()
    optimizer, critic_optimizer = Adam(0.0005, beta1=0.5, ema=0.998), Adam(0.001, beta1=0.5)
    real, false = np.ones((batch, 1)), np.zeros((batch, 1))
    for _ in range(steps):
        drawn = generator.forward(rng.standard_normal((batch, 4)))
        points = np.concatenate([X[rng.integers(0, len(X), batch)], drawn])
        P = critic.forward(points)
        critic.backward(loss.loss_gradient(P, np.concatenate([0.9 * real, false])))
        critic_optimizer.step(critic.layers)
        dX = critic.backward(loss.loss_gradient(critic.forward(drawn), real))
        generator.backward(dX)
        optimizer.step(generator.layers)
    with optimizer.averaged(generator.layers):
        found = generator.predict(rng.standard_normal((1000, 4)))
    apart, usual = mmd(X[:1000], found), mmd(X[:1000], X[1000:2000])
    print(f"drawn points are {apart:.3f} from the data, and two samples of the data {usual:.3f}")
    if picture is not None:
        draw(X[:1000], found, picture)
    return apart, usual


def draw(X: np.ndarray, found: np.ndarray, path: str) -> None:
    """Draw the data and the points that the generator has drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for panel, points, title in zip(
        figure.subplots(1, 2), (X, found), ("data", "drawn"), strict=True
    ):
        panel.scatter(*points.T, s=4)
        panel.set(title=title, aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture")
    main(**vars(parser.parse_args()))
