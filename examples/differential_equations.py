"""Solve three differential equations with a network: heat, Burgers and Poisson, to within 1 %.

python examples/differential_equations.py [--picture solutions.png]

A network u(t, x) should satisfy an equation inside a region, and have given values on its edge.
`PDE` makes the residual of the equation an output of the network, next to u, and both are trained
like any other outputs. L-BFGS and the reference for Poisson need SciPy, and the picture needs
phitodeep[plot].
"""

import argparse
import time
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from phitodeep import LBFGS, PDE, Dense, Network, Sequential, Tanh

SIZE = 101  # points along each axis of the grid on which networks are compared
HEAT, VISCOSITY = 0.05, 0.02


class Problem(NamedTuple):
    """An equation for the columns of points, and its solution on a grid over the region.

    The text of the equation has the value `right` inside; u is known where `known` is True.
    """

    equation: str
    inputs: str
    constants: dict[str, float]
    right: float
    known: np.ndarray  # (SIZE, SIZE)
    grid: np.ndarray  # (SIZE, SIZE, 2)
    solution: np.ndarray  # (SIZE, SIZE)


def region(start: float) -> np.ndarray:
    """Return a grid, (SIZE, SIZE, 2), from `start` to 1 by -1 to 1."""
    axes = np.linspace(start, 1, SIZE), np.linspace(-1, 1, SIZE)
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


def edges(*, end: bool) -> np.ndarray:
    """Return where the edge of a grid is, with or without its last row."""
    found = np.zeros((SIZE, SIZE), bool)
    found[0] = found[:, 0] = found[:, -1] = True
    found[-1] |= end
    return found


def heat() -> Problem:
    """u_t = k u_xx, from two sine waves: each decays by exp(-k (n pi)^2 t)."""
    grid = region(0)
    t, x = grid[..., 0], grid[..., 1]
    u = sum(
        a * np.exp(-HEAT * (n * np.pi) ** 2 * t) * np.sin(n * np.pi * x)
        for n, a in ((1, 1), (3, 0.5))
    )
    return Problem("u_t - k * u_xx", "t x", {"k": HEAT}, 0, edges(end=False), grid, u)


def burgers() -> Problem:
    """u_t + u u_x = nu u_xx from -sin(pi x): a wave that steepens until viscosity holds it.

    The solution is the integral of Cole and Hopf, by Gauss-Hermite quadrature. Source: Basdevant et
    al. 1986, "Spectral and finite difference solutions of the Burgers equation", Comput. Fluids 14.
    """
    grid = region(0)
    t, x = grid[..., :1], grid[..., 1:]
    z, w = np.polynomial.hermite.hermgauss(100)
    y = x - np.sqrt(4 * VISCOSITY * t) * z
    weights = w * np.exp((1 - np.cos(np.pi * y)) / (2 * np.pi * VISCOSITY))
    u = -(np.sin(np.pi * y) * weights).sum(-1) / weights.sum(-1)
    constants = {"nu": VISCOSITY}
    return Problem("u_t + u * u_x - nu * u_xx", "t x", constants, 0, edges(end=False), grid, u)


def poisson() -> Problem:
    """u_xx + u_yy = -1 in a square, with 0 on its edge: by finite differences, with SciPy."""
    n, h = SIZE - 2, 2 / (SIZE - 1)
    line = sparse.diags([1.0, -2.0, 1.0], [-1, 0, 1], shape=(n, n)) / h**2
    laplace = sparse.kronsum(line, line, format="csc")
    u = np.zeros((SIZE, SIZE))
    u[1:-1, 1:-1] = spsolve(laplace, -np.ones(n * n)).reshape(n, n)
    return Problem("u_xx + u_yy", "x y", {}, -1, edges(end=True), region(-1), u)


def solve(problem: Problem, points: int, iterations: int) -> np.ndarray:
    """Return the solution of a network on the grid; it knows the solution on the edge only."""
    net = Sequential(
        Dense(2, 24), Tanh(), Dense(24, 24), Tanh(), Dense(24, 24), Tanh(), Dense(24, 1), seed=0
    )
    layer = PDE(problem.equation, net, inputs=problem.inputs, **problem.constants)
    model = Network(
        ["point"],
        [(layer, ["point"], ["u", "residual"])],
        ["u", "residual"],
        loss_class={"u": "mse", "residual": "mse"},
        loss_weights={"u": 20},
        optimizer=LBFGS(max_iter=iterations, history_size=50, tolerance_change=1e-12),
        dtype="float64",
    )
    rng = np.random.default_rng(0)
    inside = rng.uniform(problem.grid[0, 0], problem.grid[-1, -1], (points, 2))
    X = np.concatenate([inside, problem.grid[problem.known]])
    u = np.concatenate([np.zeros(points), problem.solution[problem.known]])
    is_edge = np.arange(len(X)) >= points
    model.build({"point": (2,)})
    model.train(
        X,
        {"u": u, "residual": np.full(len(X), problem.right)},
        sample_weight={"u": is_edge.astype(float), "residual": (~is_edge).astype(float)},
        epochs=1,
        verbose=0,
    )
    return net.predict(problem.grid.reshape(-1, 2)).reshape(SIZE, SIZE)


def draw(found: dict[str, tuple[Problem, np.ndarray]], path: str) -> None:
    """Draw each solution, the reference, and their difference."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 3, squeeze=False)
    for row, (name, (problem, u)) in zip(panels, found.items(), strict=True):
        across, up = problem.inputs.split()
        (left, low), (right, high) = problem.grid[0, 0], problem.grid[-1, -1]
        most, error = abs(problem.solution).max(), u - problem.solution
        shown = [
            (f"{name}, by the network", u, most, "RdBu_r"),
            ("reference", problem.solution, most, "RdBu_r"),
            ("difference", error, abs(error).max(), "PiYG"),
        ]
        for panel, (title, values, limit, colours) in zip(row, shown, strict=True):
            picture = panel.imshow(
                values.T, origin="lower", extent=(left, right, low, high), aspect="auto",
                cmap=colours, vmin=-limit, vmax=limit,
            )  # fmt: skip
            panel.set(title=title, xlabel=across, ylabel=up)
            figure.colorbar(picture)
    figure.savefig(path, dpi=120)


def main(points: int = 1000, iterations: int = 800, picture: str | None = None) -> dict[str, float]:
    found, errors = {}, {}
    for problem in (heat(), burgers(), poisson()):
        name = {"k": "heat", "nu": "Burgers"}.get("".join(problem.constants), "Poisson")
        began = time.perf_counter()
        u = solve(problem, points, iterations)
        seconds = time.perf_counter() - began
        error = u - problem.solution
        errors[name] = float(np.linalg.norm(error) / np.linalg.norm(problem.solution))
        found[name] = problem, u
        print(f"{name:8} {100 * errors[name]:.2f} % from the reference, in {seconds:.0f} s")
    if picture is not None:
        draw(found, picture)
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture")
    main(**vars(parser.parse_args()))
