"""Train a 784-400-20 variational autoencoder on MNIST, and generate new digits.

python examples/vae_mnist.py --data FOLDER      # FOLDER holds the four IDX files: 60,000 digits
python examples/vae_mnist.py                    # the 10,000 digits that come with phitodeep
python examples/vae_mnist.py --picture vae.png  # also draws digits: needs phitodeep[plot]

The loss is the negative evidence lower bound of Kingma and Welling 2014, arXiv:1312.6114, in nats,
with one draw per digit. The maximum mean discrepancy compares samples with held-out digits.
"""

import argparse

import numpy as np

from phitodeep.core.call import calling, inference
from phitodeep.data import load_mnist
from phitodeep.functional import maximum_mean_discrepancy, sigmoid
from phitodeep.layers import Chain
from phitodeep.model import Sequential
from phitodeep.model.architectures import vae
from phitodeep.optimization.optimizers import Adam

LATENT, COMPARED = 20, 1000  # latent size, and the number of samples to compare


def bound(model: Sequential, X: np.ndarray) -> tuple[float, float]:
    """Both parts of the negative evidence lower bound, with latent values drawn as in training."""
    with calling(caching=False):
        reconstruction, divergence = model.loss.parts(model.forward(X), X)
    return float(reconstruction.mean()), float(divergence.mean())


def decode(model: Sequential, Z: np.ndarray) -> np.ndarray:
    """Decode latent values (N, 20) to images (N, 784)."""
    decoder = Chain(*model.layers[-1].layers[1:])  # without Reparameterize
    with inference():
        return sigmoid(decoder.forward(Z))


def draw(X: np.ndarray, again: np.ndarray, samples: np.ndarray, path: str) -> None:
    """Draw digits above their reconstructions, and samples."""
    from matplotlib.figure import Figure

    def tiles(images: np.ndarray) -> np.ndarray:
        return images.reshape(8, 8, 28, 28).swapaxes(1, 2).reshape(224, 224)

    pairs = np.stack([X[:32].reshape(4, 8, 784), again[:32].reshape(4, 8, 784)], axis=1)
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for panel, images, title in zip(
        figure.subplots(1, 2),
        (pairs, samples[:64]),
        ("digits, each above its reconstruction", "samples from the prior"),
        strict=True,
    ):
        panel.imshow(tiles(images), cmap="gray_r", vmin=0, vmax=1)
        panel.set(title=title, xticks=[], yticks=[])
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main(
    data: str | None = None, epochs: int = 10, picture: str | None = None
) -> tuple[float, dict[str, float]]:
    X, _, X_test, _ = load_mnist() if data is None else load_mnist("full", folder=data)
    X, X_test = X.reshape(-1, 784), X_test.reshape(-1, 784)
    model = (
        vae(784, 400, latent=LATENT)
        .optimizer(Adam(0.001))
        .batch(128)
        .epochs(epochs)
        .seed(0)
        .build()
    )
    model.summary()
    model.train(X, X)
    reconstruction, divergence = bound(model, X_test)
    print(f"test: reconstruction {reconstruction:.2f} + divergence {divergence:.2f} nats")

    rng = np.random.default_rng(0)
    samples = decode(model, rng.standard_normal((COMPARED, LATENT)))
    some, other = rng.permutation(X_test)[: 2 * COMPARED].reshape(2, -1, 784)
    compared = {
        "other digits": other,
        "samples": samples,
        "digits with shuffled pixels": rng.permuted(other, axis=1),
    }
    found = {name: maximum_mean_discrepancy(some[: len(A)], A) for name, A in compared.items()}
    print("squared maximum mean discrepancy of digits and")
    for name, squared in found.items():
        print(f"    {name:28} {squared:7.4f}")
    if picture is not None:
        again = decode(model, Chain(*model.layers[:-1]).forward(X_test[:32])[:, :LATENT])
        draw(X_test, again, samples, picture)
    print(f"test loss {reconstruction + divergence:.2f}")
    return reconstruction + divergence, found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the four IDX files of MNIST")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--picture")
    main(**vars(parser.parse_args()))
