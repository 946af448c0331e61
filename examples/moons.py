"""Classify two moons with a tanh network of 337 parameters: 100 % after 100 epochs.

python examples/moons.py [--picture moons.png]        # the picture needs phitodeep[plot]
"""

import argparse

import numpy as np

from phitodeep.data import make_moons
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.optimizers import Adam


def draw(model: Sequential, X: np.ndarray, y: np.ndarray, path: str) -> None:
    """Draw the points and the predicted probability over the plane."""
    from matplotlib.figure import Figure

    low, high = X.min(axis=0) - 0.3, X.max(axis=0) + 0.3
    a, b = np.meshgrid(*(np.linspace(lo, hi, 200) for lo, hi in zip(low, high, strict=True)))
    P = model.predict(np.stack([a.ravel(), b.ravel()], axis=1)).reshape(a.shape)
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    shades = panel.contourf(a, b, P, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.7)
    panel.contour(a, b, P, levels=[0.5], colors="black")
    panel.scatter(*X.T, c=y, cmap="RdBu_r", edgecolors="black", s=25)
    panel.set(title="P(class 1)", aspect="equal")
    figure.colorbar(shades)
    figure.savefig(path, dpi=120)


def main(epochs: int = 100, picture: str | None = None) -> float:
    X, y = make_moons(n=100, noise=0.1, seed=0)
    model = (
        SequentialBuilder(2, seed=0)
        .dense(16)
        .tanh()
        .dense(16)
        .tanh()
        .dense(1)
        .sigmoid()
        .loss("binary_cross_entropy")
        .optimizer(Adam(0.02))
        .metrics("accuracy")
        .batch(10)
        .epochs(epochs)
        .build()
    )
    print(f"{model.count_params()} parameters")
    history = model.train(X, y)
    accuracy = model.evaluate(X, y)["accuracy"]
    print(f"loss {history[0][0]:.4f} -> {history[-1][0]:.4f}")
    print(f"accuracy {accuracy:.2f}")
    if picture is not None:
        draw(model, X, y, picture)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture")
    main(**vars(parser.parse_args()))
