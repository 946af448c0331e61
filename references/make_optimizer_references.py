"""Compute with PyTorch the trajectories that optimizers.npz stores.

    python references/make_optimizer_references.py                 compare with what is stored
    python references/make_optimizer_references.py "SGD(0.2)"      add a case

Run it with torch installed. The stored file was created with torch 2.13.0+cpu and records that
version and the seed. Its readers need no torch.

A case is named after the phitodeep call that it checks. `start/PATH` is a parameter's initial value
and `gradients/PATH` its gradient at each step, the same for all cases; `CASE/PATH` is the parameter
after each step. Everything is float64 and random, since zeros would hide a missing term.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from phitodeep.optimization import optimizers
from phitodeep.testing.references import (
    FOLDER,
    construct,
    optimizer_cases,
    trajectories,
)

FILE = FOLDER / "optimizers.npz"
Arrays = dict[str, np.ndarray]
Groups = list[dict[str, Any]]  # one for each parameter, by path
GROUPED = {  # rate and weight decay that the only case with groups= gives each parameter
    "0.W": (0.2, 0.7),
    "0.b": (0.05, 0.4),
    "1.gamma": (0.01, 0.0),
    "1.beta": (0.05, 0.0),
    "2.W": (0.05, 0.7),
    "2.b": (0.05, 0.0),
}


def adam(o: Any, groups: Groups) -> list[optim.Optimizer]:
    rule = optim.AdamW if o.weight_decay else optim.Adam
    return [rule(groups, o.alpha, (o.beta1, o.beta2), o.eps)]


def muon(o: Any, groups: Groups) -> list[optim.Optimizer]:
    """Muon for the hidden matrix, as (out, in) like in PyTorch; AdamW for the rest."""
    own, *others = groups
    (W,) = own["params"]
    hidden = W.detach().T.requires_grad_()
    names = ("momentum", "nesterov", "ns_steps", "adjust_lr_fn", "weight_decay")
    first = optim.Muon([hidden], o.alpha, **{name: getattr(o, name) for name in names})
    first.register_step_pre_hook(lambda *_: setattr(hidden, "grad", W.grad.T))
    return [first, optim.AdamW(others, o.alpha * o.adam_ratio, (o.beta1, o.beta2), o.eps)]


THEIRS: dict[type, Callable[[Any, Groups], list[optim.Optimizer]]] = {
    optimizers.SGD: lambda o, g: [optim.SGD(g, o.alpha, o.momentum, nesterov=o.nesterov)],
    optimizers.Adam: adam,
    optimizers.AdamW: adam,
    optimizers.Nadam: lambda o, g: [
        optim.NAdam(g, o.alpha, (o.beta1, o.beta2), o.eps, momentum_decay=o.psi)
    ],
    optimizers.RMSProp: lambda o, g: [optim.RMSprop(g, o.alpha, o.rho, o.eps, momentum=o.momentum)],
    optimizers.Adagrad: lambda o, g: [optim.Adagrad(g, o.alpha, eps=o.eps)],
    optimizers.Adadelta: lambda o, g: [optim.Adadelta(g, o.alpha, o.rho, o.eps)],
    optimizers.Muon: muon,
}


def clip(o: Any, parameters: list[Tensor]) -> None:
    if o.clip_value is not None:
        clip_grad_value_(parameters, o.clip_value)
    if o.clip_norm is not None:  # without the 1e-6 that PyTorch adds to the norm before dividing
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        clip_grad_norm_(parameters, float(o.clip_norm * (norm + 1e-6) / norm))


def trajectory(case: str) -> Arrays:
    """Return the parameters after each step, by path."""
    o, gradients = construct(case, optimizers), trajectories()["gradients"]
    if isinstance(o, optimizers.Lion):
        return {path: lion(o, path, theta) for path, theta in trajectories()["start"].items()}
    tensors = {path: torch.tensor(a) for path, a in trajectories()["start"].items()}
    groups: Groups = []
    for path, t in tensors.items():
        decay = (o.l2 or o.weight_decay) if path.endswith("W") else 0.0
        lr, decay = GROUPED[path] if o.groups else (o.alpha, decay)
        own = {} if isinstance(o, optimizers.Muon) else {"lr": lr}
        groups.append({"params": [t], "weight_decay": decay, **own})
    rules = THEIRS[type(o)](o, groups)
    taken: dict[str, list[np.ndarray]] = {path: [] for path in tensors}
    for step in range(len(gradients["0.W"])):
        for path, t in tensors.items():
            t.grad = torch.tensor(gradients[path][step])
        clip(o, list(tensors.values()))
        with patch.object(Tensor, "bfloat16", Tensor.clone):  # Muon multiplies in float64
            for rule in rules:
                rule.step()
        for path, t in tensors.items():
            taken[path].append(t.numpy().copy())
    return {path: np.array(a) for path, a in taken.items()}


def lion(o: Any, path: str, theta: np.ndarray) -> np.ndarray:
    """Program 1 of Chen et al. 2023, line by line; PyTorch has no Lion."""
    taken, m = [], np.zeros_like(theta)
    decay = o.weight_decay if path.endswith("W") else 0.0
    for g in trajectories()["gradients"][path]:
        update = np.sign(o.beta1 * m + (1 - o.beta1) * g)
        m = o.beta2 * m + (1 - o.beta2) * g
        theta = theta - o.alpha * (update + decay * theta)
        taken.append(theta)
    return np.array(taken)


def main(new: list[str]) -> None:
    worst = (0.0, "")
    for case, stored in optimizer_cases().items():
        for path, a in trajectory(case).items():
            far = np.abs(a - stored[path]) / np.maximum(1, np.abs(stored[path]))
            worst = max(worst, (float(far.max()), f"{path} of {case}"))
    print(f"{FILE.name}: {worst[0]:.1e} at most, {worst[1]}")
    if new:
        with np.load(FILE) as file:
            arrays = dict(file)
        arrays |= {f"{case}/{path}": a for case in new for path, a in trajectory(case).items()}
        np.savez(FILE, **arrays)  # compressed in the wheel
        print(f"{FILE.name} has {FILE.stat().st_size} bytes")
    sys.exit(worst[0] > 1e-12)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main(sys.argv[1:])
