"""Classify three spirals with two hidden tanh layers: 100 % on training points, 99 % on new ones.

python examples/spirals.py [--picture spirals.png]        # the picture needs phitodeep[plot]
"""

import argparse

import numpy as np

from phitodeep.data import make_spirals
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential
from phitodeep.model.architectures import mlp
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import CosineDecay

CLASSES, BATCH = 3, 30


def draw(model: Sequential, X: np.ndarray, y: np.ndarray, path: str) -> None:
    """Draw the points, and the predicted class over the plane, paler where it is less certain."""
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    colours = np.array([to_rgb(name) for name in ("tab:blue", "tab:orange", "tab:green")])
    side = np.linspace(-1.25, 1.25, 400)
    plane = np.stack(np.meshgrid(side, side), axis=-1)
    scores = model.predict(plane.reshape(-1, 2))
    P = np.exp(scores - scores.max(axis=-1, keepdims=True))
    P = (P / P.sum(axis=-1, keepdims=True)).reshape(*plane.shape[:2], CLASSES)
    edges = (-1.25, 1.25, -1.25, 1.25)

    figure = Figure(figsize=(5, 5), layout="constrained")
    panel = figure.subplots()
    panel.imshow(1 - 0.45 * (1 - P @ colours), extent=edges, origin="lower")
    panel.contour(side, side, P.argmax(axis=-1), levels=[0.5, 1.5], colors="black", linewidths=0.8)
    panel.scatter(*X.T, c=colours[y], edgecolors="black", linewidths=0.6, s=22)
    panel.set(title="three spirals and the predicted classes", xlim=edges[:2], ylim=edges[2:])
    figure.savefig(path, dpi=120)


def main(epochs: int = 100, picture: str | None = None) -> float:
    X, y = make_spirals(n=300, classes=CLASSES, seed=0)
    X_new, y_new = make_spirals(n=3000, classes=CLASSES, seed=1)
    model = (
        mlp(2, 64, 64, CLASSES, activation="tanh")
        .loss(SoftmaxCrossEntropy())
        .optimizer(Adam())
        .alpha(CosineDecay(0.01, epochs * len(X) // BATCH))
        .metrics("accuracy")
        .batch(BATCH)
        .epochs(epochs)
        .seed(0)
        .build()
    )
    print(f"{model.count_params()} parameters")
    model.train(X, y)
    accuracy = model.evaluate(X_new, y_new)["accuracy"]
    print(
        f"accuracy {model.evaluate(X, y)['accuracy']:.4f} on training points, {accuracy:.4f} on new"
    )
    if picture is not None:
        draw(model, X, y, picture)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--picture")
    main(**vars(parser.parse_args()))
