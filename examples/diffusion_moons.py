"""Train a denoising diffusion model, which turns noise into two moons in 100 small steps.

python examples/diffusion_moons.py [--picture diffusion.png]     # needs phitodeep[plot]

A point x_0 gradually becomes noise, x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) e, where a_t falls from 1
to almost 0 as t grows to 100. A small network learns to predict e from (x_t, t). Sampling starts
from pure noise, and each step removes some of the predicted noise. At the end, a two-sample test
asks whether the samples and held-out points could come from the same distribution.
Sources: Ho, Jain and Abbeel 2020, arXiv:2006.11239, algorithms 1 and 2; Gretton et al. 2012,
"A kernel two-sample test", JMLR 13.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import numpy as np

from phitodeep.data import make_moons
from phitodeep.functional import maximum_mean_discrepancy
from phitodeep.model import Sequential
from phitodeep.model.architectures import mlp
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import CosineDecay

STEPS, BATCH = 100, 256
BETA = np.linspace(1e-3, 0.2, STEPS)  # ten times Ho's, for a tenth of the steps
A = np.cumprod(1 - BETA)  # the remaining share of x_0's variance
BANDWIDTH = 0.3  # of the kernel in the test: small enough to resolve the gap between the moons
WAVES = np.pi * 2.0 ** np.arange(3)


def inputs(X: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return (N, 8): x_t with sines and cosines of t, which are easier to learn from than t."""
    angles = t[:, None] / STEPS * WAVES
    return np.concatenate([X, np.sin(angles), np.cos(angles)], axis=1)


def batches(X: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield 100 batches of new draws: noisy inputs, and the noise to predict."""
    for _ in range(100):
        t, E = rng.integers(0, STEPS, BATCH), rng.standard_normal((BATCH, 2))
        a = A[t, None]
        yield inputs(np.sqrt(a) * rng.choice(X, BATCH) + np.sqrt(1 - a) * E, t), E


def sample(model: Sequential, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return n points for each step of sampling, from noise to result: STEPS + 1 arrays (n, 2)."""
    path = [rng.standard_normal((n, 2))]
    for t in reversed(range(STEPS)):
        E = model.predict(inputs(path[-1], np.full(n, t)))
        mean = (path[-1] - BETA[t] / np.sqrt(1 - A[t]) * E) / np.sqrt(1 - BETA[t])
        path.append(mean + np.sqrt(BETA[t]) * rng.standard_normal((n, 2)) * (t > 0))
    return path


def discrepancy(X: np.ndarray, Y: np.ndarray) -> float:
    return maximum_mean_discrepancy(X, Y, BANDWIDTH)


def threshold(X: np.ndarray, Y: np.ndarray, rng: np.random.Generator, times: int = 200) -> float:
    """Return a discrepancy: 19 of 20 random splits of all the points stay below it."""
    both = np.concatenate([X, Y])
    splits = (np.split(rng.permutation(both), [len(X)]) for _ in range(times))
    return float(np.quantile([discrepancy(*split) for split in splits], 0.95))


def draw(path: list[np.ndarray], held_out: np.ndarray, file: str) -> None:
    """Draw the points as noise turns into moons, next to held-out points."""
    from matplotlib.figure import Figure

    steps = [0, 75, 90, 95, 100]
    shown = [(f"{i} steps", path[i * STEPS // 100]) for i in steps] + [("held out", held_out)]
    figure = Figure(figsize=(2.2 * len(shown), 2.4), layout="constrained")
    panels = figure.subplots(1, len(shown), sharex=True, sharey=True)
    for panel, (title, X) in zip(panels, shown, strict=True):
        panel.scatter(*X.T, s=3, alpha=0.6, color="C1" if title == "held out" else "C0")
        panel.set(title=title, aspect="equal", xticks=[], yticks=[], xlim=(-3, 3), ylim=(-3, 3))
    figure.savefig(file, dpi=120, bbox_inches="tight")


def main(epochs: int = 60, points: int = 1000, picture: str | None = None) -> dict[str, float]:
    rng = np.random.default_rng(0)
    X = make_moons(4000, 0.08, seed=1)[0]
    centre, spread = X.mean(axis=0), X.std(axis=0)
    X = (X - centre) / spread
    model = (
        mlp(2 + 2 * len(WAVES), 128, 128, 128, 2, activation="silu")
        .optimizer(Adam(CosineDecay(0.01, 100 * epochs)))
        .epochs(epochs)
        .seed(0)
        .build()
    )
    print(f"{model.count_params()} parameters")
    history = model.train(partial(batches, X, rng), verbose=0)
    print(f"loss {history[0][0]:.4f} -> {history[-1][0]:.4f} in {sum(history.seconds):.0f} s")

    path = sample(model, points, rng)
    held_out, other = ((make_moons(points, 0.08, seed)[0] - centre) / spread for seed in (2, 3))
    found = {
        "held-out points and noise": discrepancy(held_out, path[0]),
        "held-out points and samples": discrepancy(held_out, path[-1]),
        "held-out points and others": discrepancy(held_out, other),
        "19 of 20 random splits, at most": threshold(held_out, path[-1], rng),
    }
    print("squared maximum mean discrepancy of")
    for name, squared in found.items():
        print(f"    {name:32} {squared:9.6f}")
    if picture is not None:
        draw(path, held_out, picture)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture")
    parser.add_argument("--epochs", type=int, default=60)
    main(**vars(parser.parse_args()))
