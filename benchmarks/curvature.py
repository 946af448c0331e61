"""Times products with the Hessian in gradients, here and in PyTorch, on one thread.

    OPENBLAS_NUM_THREADS=1 python benchmarks/curvature.py

The networks, their weights and their batches are those of the other benchmarks (`workloads.py`), in
float32. "first" is `model.hvp`, or a product of PyTorch, both passes included. "next" is a further
product of `model.hessian(X, y)` or `model.ggn(X, y)` with one batch. PyTorch runs attention and the
LSTM in the forms that can be differentiated twice.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from frameworks import ours, pytorch
from torch.nn.attention import SDPBackend, sdpa_kernel
from workloads import BATCH, WHAT, data

from phitodeep.core.call import calling

SECONDS = 6.0  # per network


def medians(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each; they alternate."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(next(iter(took.values()))) < 3:
        for name, run in runs.items():
            start = time.thread_time()
            run()
            took[name].append(1e3 * (time.thread_time() - start))
    return {name: statistics.median(times) for name, times in took.items()}


def ours_of(model: Any, X: np.ndarray, y: np.ndarray, V: dict[str, np.ndarray]) -> Any:
    T = model.loss.targets(y, (*y.shape, model.output_shape[-1]))

    def gradient() -> None:
        with calling(step=0, needs_dX=False):
            P = model.forward(X)
            model.backward(model.loss.value_and_gradient(P, T)[1])

    H, G = model.hessian(X, y), model.ggn(X, y)
    v = np.concatenate([V[path].ravel() for path in H.paths])
    return {
        "gradient": gradient,
        "first": lambda: model.hvp(X, y, V),
        "next": lambda: H @ v,
        "next, GGN": lambda: G @ v,
    }


def theirs_of(side: Any, X: torch.Tensor, y: torch.Tensor, V: list[torch.Tensor]) -> Any:
    params = dict(side.model.named_parameters())

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        P = torch.func.functional_call(side.model, weights, (X,))
        return torch.nn.functional.cross_entropy(P.flatten(0, -2), y.flatten())

    def gradient() -> Any:
        return torch.autograd.grad(side._objective(X, y), [*params.values()])

    def twice() -> Any:
        leaves = [*params.values()]
        first = torch.autograd.grad(side._objective(X, y), leaves, create_graph=True)
        return torch.autograd.grad(first, leaves, V)

    def forward_over_reverse() -> Any:
        own = {name: p.detach() for name, p in params.items()}
        moved = dict(zip(params, V, strict=True))
        return torch.func.jvp(torch.func.grad(loss), (own,), (moved,))

    return {
        "PyTorch gradient": gradient,
        "PyTorch double backward": twice,
        "torch.func": forward_over_reverse,
    }


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for name in sys.argv[1:] or ("W1", "W3", "W4", "W5"):
        X, y = data(name, BATCH[name])
        model = ours.Side(name, "fast").model
        side = pytorch.Side(name, "eager", threads=1)
        images = torch.from_numpy(X)
        given = images.permute(0, 3, 1, 2).contiguous() if X.ndim == 4 else images
        V = [torch.randn_like(p) for p in side.model.parameters()]
        ours_V = {
            p: rng.standard_normal(W.shape, np.float32) for p, W in model.get_weights().items()
        }
        runs = ours_of(model, X, y, ours_V)
        with torch.backends.mkldnn.flags(enabled=name != "W5"):
            found = medians(runs | theirs_of(side, given, torch.from_numpy(y), V))
        print(f"{WHAT[name]}, batch {BATCH[name]}")
        for run, ms in found.items():
            base = "PyTorch gradient" if "orch" in run else "gradient"
            print(f"    {run:24s} {ms:8.2f} ms {ms / found[base]:6.1f} gradients")


if __name__ == "__main__":
    with sdpa_kernel(SDPBackend.MATH):
        main()
