"""A U-Net finds shapes in noise: fine maps are kept by name and joined again on the way up.

python examples/unet_shapes.py [--picture unet.png]        # the picture needs phitodeep[plot]

Source: Ronneberger et al. 2015, "U-Net", arXiv:1505.04597, fig. 1.
"""

import argparse

import numpy as np

from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam

SIDE = 24


def shapes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images (n, SIDE, SIDE, 1) of a disc or a square, and where it is."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE]
    masks = np.empty((n, SIDE, SIDE, 1))
    for mask in masks:
        cy, cx, r = *rng.uniform(6, SIDE - 6, 2), rng.uniform(3, 6)
        dy, dx = np.abs(y - cy), np.abs(x - cx)
        mask[..., 0] = (dy**2 + dx**2 < r**2) if rng.random() < 0.5 else np.maximum(dy, dx) < r
    return masks * 0.8 + rng.normal(0, 0.4, masks.shape), masks


def twice(b: SequentialBuilder, channels: int) -> SequentialBuilder:
    """Two convolutions."""
    b = b.conv2d(channels, 3, padding="same").relu()
    return b.conv2d(channels, 3, padding="same").relu()


def unet() -> Network:
    return (
        SequentialBuilder(SIDE, SIDE, 1, seed=0)
        .then(twice, 8)
        .name("fine")
        .max_pool2d(2)
        .then(twice, 16)
        .name("middle")
        .max_pool2d(2)
        .then(twice, 32)
        .conv_transpose2d(16, 2, stride=2)
        .concat("middle")
        .then(twice, 16)
        .conv_transpose2d(8, 2, stride=2)
        .concat("fine")
        .then(twice, 8)
        .conv2d(1, 1)
        .loss("binary_cross_entropy_with_logits")
        .optimizer(Adam(0.003))
        .batch(32)
        .build()
    )


def overlap(P: np.ndarray, masks: np.ndarray) -> float:
    """The mean intersection over union."""
    found, true = P > 0, masks > 0.5
    both, any_ = ((f(found, true)).sum(axis=(1, 2, 3)) for f in (np.logical_and, np.logical_or))
    return float((both / any_).mean())


def main(epochs: int = 10, n: int = 1000, picture: str | None = None) -> float:
    X, masks = shapes(n, seed=0)
    X_test, masks_test = shapes(200, seed=1)
    model = unet()
    model.train(X, masks, epochs=epochs)
    P = model.predict(X_test)
    iou = overlap(P, masks_test)
    print(f"mean intersection over union {iou:.3f}")
    if picture is not None:
        draw(X_test, P, masks_test, picture)
    return iou


def draw(X: np.ndarray, P: np.ndarray, masks: np.ndarray, path: str) -> None:
    """Draw six images, what the network finds, and where the shapes are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    rows = zip(figure.subplots(3, 6), (X, P > 0, masks), ("image", "found", "true"), strict=True)
    for panels, images, title in rows:
        for panel, image in zip(panels, images[:6, ..., 0], strict=True):
            panel.imshow(image, cmap="gray")
            panel.set(xticks=[], yticks=[])
        panels[0].set_ylabel(title)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture")
    main(**vars(parser.parse_args()))
