"""Create optimizers.npz: the trajectories of PyTorch's optimizers.

Run `python references/make_optimizer_references.py` with torch installed. The stored file was
created with torch 2.13.0+cpu and records that version and the seed. Its readers need no torch.

A case is named after the phitodeep call that it checks. `start/PATH` is a parameter's initial value
and `gradients/PATH` its gradient at each step, the same for all cases; `CASE/PATH` is the parameter
after each step. Everything is float64 and random, since zeros would hide a missing term.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

SEED = 20240611
STEPS = 12
FILE = Path(__file__).parent.parent / "phitodeep" / "testing" / "stored" / "optimizers.npz"
SHAPES = {  # the parameters of Dense(4, 3), LayerNorm() and Dense(3, 2)
    "0.W": (4, 3),
    "0.b": (3,),
    "1.gamma": (3,),
    "1.beta": (3,),
    "2.W": (3, 2),
    "2.b": (2,),
}
Arrays = dict[str, np.ndarray]
Groups = list[dict[str, object]]  # weight matrices, then biases and norms
Make = Callable[[Groups], optim.Optimizer]
Named = dict[str, Tensor]  # the parameters, by path


def decayed(amount: float) -> Callable[[Groups], Groups]:
    """Add weight decay to the group of matrices only."""
    return lambda g: [{**g[0], "weight_decay": amount}, {**g[1], "weight_decay": 0.0}]


def adam(g: Groups, lr: float = 0.05, **options: object) -> optim.Optimizer:
    return optim.Adam(g, lr=lr, betas=(0.8, 0.95), eps=1e-3, **options)


CASES: dict[str, Make] = {
    "SGD(0.1)": lambda g: optim.SGD(g, lr=0.1),
    "SGD(0.1, momentum=0.9)": lambda g: optim.SGD(g, lr=0.1, momentum=0.9),
    "SGD(0.1, momentum=0.7, nesterov=True)": lambda g: optim.SGD(
        g, lr=0.1, momentum=0.7, nesterov=True
    ),
    "SGD(0.1, momentum=0.7, l2=0.3)": lambda g: optim.SGD(decayed(0.3)(g), lr=0.1, momentum=0.7),
    "Adam()": lambda g: optim.Adam(g, lr=0.01),
    "Adam(0.05, beta1=0.8, beta2=0.95, eps=1e-3)": adam,
    "Adam(0.05, beta1=0.8, beta2=0.95, eps=1e-3, l2=0.3)": lambda g: adam(decayed(0.3)(g)),
    "Adam(0.05, beta1=0.0, beta2=0.5, eps=1e-8)": lambda g: optim.Adam(
        g, lr=0.05, betas=(0.0, 0.5)
    ),
    "AdamW()": lambda g: optim.AdamW(decayed(0.01)(g), lr=0.01),
    "AdamW(0.05, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.7)": lambda g: optim.AdamW(
        decayed(0.7)(g), lr=0.05, betas=(0.8, 0.95), eps=1e-3
    ),
    "Nadam()": lambda g: optim.NAdam(g, lr=0.002),
    "Nadam(0.05, beta1=0.8, beta2=0.95, eps=1e-3, psi=0.02)": lambda g: optim.NAdam(
        g, lr=0.05, betas=(0.8, 0.95), eps=1e-3, momentum_decay=0.02
    ),
    "RMSProp()": lambda g: optim.RMSprop(g, lr=0.01, alpha=0.9),
    "RMSProp(0.05, rho=0.7, eps=1e-3)": lambda g: optim.RMSprop(g, lr=0.05, alpha=0.7, eps=1e-3),
    "RMSProp(0.05, rho=0.7, eps=1e-3, momentum=0.8)": lambda g: optim.RMSprop(
        g, lr=0.05, alpha=0.7, eps=1e-3, momentum=0.8
    ),
    "Adagrad()": lambda g: optim.Adagrad(g, lr=0.01),
    "Adagrad(0.5, eps=1e-2)": lambda g: optim.Adagrad(g, lr=0.5, eps=1e-2),
    "Adadelta()": lambda g: optim.Adadelta(g, lr=1.0),
    "Adadelta(0.5, rho=0.7, eps=1e-3)": lambda g: optim.Adadelta(g, lr=0.5, rho=0.7, eps=1e-3),
}


def clip_norm(parameters: list[Tensor], longest: float) -> None:
    """clip_grad_norm_ without the 1e-6 that it adds to the norm before dividing."""
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    clip_grad_norm_(parameters, float(longest * (norm + 1e-6) / norm))


CLIPPED: dict[str, tuple[Make, Callable[[list[Tensor]], object]]] = {
    "SGD(0.1, clip_norm=1.5)": (CASES["SGD(0.1)"], lambda ps: clip_norm(ps, 1.5)),
    "SGD(0.1, clip_norm=5.2)": (CASES["SGD(0.1)"], lambda ps: clip_norm(ps, 5.2)),  # some steps
    "SGD(0.1, clip_value=0.4)": (CASES["SGD(0.1)"], lambda ps: clip_grad_value_(ps, 0.4)),
    "SGD(0.1, momentum=0.9, clip_value=0.4, clip_norm=1.0)": (
        CASES["SGD(0.1, momentum=0.9)"],
        lambda ps: (clip_grad_value_(ps, 0.4), clip_norm(ps, 1.0)),
    ),
    "SGD(0.1, momentum=0.7, l2=0.3, clip_norm=1.0)": (
        CASES["SGD(0.1, momentum=0.7, l2=0.3)"],
        lambda ps: clip_norm(ps, 1.0),
    ),
}


def adamw(ps: Named, settings: dict[str, tuple[float, float]]) -> optim.Optimizer:
    """AdamW where each parameter uses the rate and decay of the first matching prefix."""
    groups = [
        {"params": [t], "lr": lr, "weight_decay": decay}
        for path, t in ps.items()
        for lr, decay in [next(pair for key, pair in settings.items() if path.startswith(key))]
    ]
    return optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-3)


def muon(ps: Named, muon: dict[str, object], adamw: dict[str, object]) -> list[optim.Optimizer]:
    """Muon for the hidden matrix, as (out, in) like in PyTorch; AdamW for the rest."""
    decay = muon.get("weight_decay", 0.0)
    last = {"params": [ps["2.W"]], "weight_decay": decay}
    vectors = [t for path, t in ps.items() if not path.endswith("W")]
    others = [last, {"params": vectors, "weight_decay": 0.0}]
    hidden = ps["0.W"].detach().T.requires_grad_()
    rules = [
        optim.Muon([hidden], **{"weight_decay": 0.0, **muon}),
        optim.AdamW(others, **adamw),
    ]
    rules[0].register_step_pre_hook(lambda *_: setattr(hidden, "grad", ps["0.W"].grad.T))
    return rules


NAMED: dict[str, Callable[[Named], list[optim.Optimizer]]] = {
    "Adam(0.05, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.7, groups={'0.W': "
    "{'alpha': 0.2}, '0.*': {'weight_decay': 0.4}, '*.gamma': {'alpha': 0.01, "
    "'weight_decay': 0.0}, '1.*': {}})": lambda ps: [
        adamw(
            ps,
            {
                "0.W": (0.2, 0.7),
                "0.b": (0.05, 0.4),
                "1.gamma": (0.01, 0.0),
                "1.beta": (0.05, 0.0),
                "2.W": (0.05, 0.7),
                "2.b": (0.05, 0.0),
            },
        )
    ],
    "Muon()": lambda ps: muon(ps, {"lr": 0.02}, {"lr": 0.0003}),
    "Muon(0.1, momentum=0.7, nesterov=False, ns_steps=3, adjust_lr_fn='match_rms_adamw', "
    "adam_ratio=0.5, weight_decay=0.3, beta1=0.8, beta2=0.95, eps=1e-3)": lambda ps: muon(
        ps,
        {
            "lr": 0.1,
            "momentum": 0.7,
            "nesterov": False,
            "ns_steps": 3,
            "adjust_lr_fn": "match_rms_adamw",
            "weight_decay": 0.3,
        },
        {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3},
    ),
}


def parted(make: Make) -> Callable[[Named], list[optim.Optimizer]]:
    """An optimizer with two groups: weight matrices, then biases and norms."""
    return lambda ps: [
        make(
            [
                {"params": [t for path, t in ps.items() if path.endswith("W")]},
                {"params": [t for path, t in ps.items() if not path.endswith("W")]},
            ]
        )
    ]


def trajectory(
    make: Callable[[Named], list[optim.Optimizer]],
    start: Arrays,
    gradients: Arrays,
    clip: Callable[[list[Tensor]], object] | None,
) -> Arrays:
    """The parameters after each step, by path."""
    tensors = {path: torch.tensor(a, requires_grad=True) for path, a in start.items()}
    optimizers = make(tensors)
    taken: dict[str, list[np.ndarray]] = {path: [] for path in tensors}
    for step in range(STEPS):
        for path, t in tensors.items():
            t.grad = torch.tensor(gradients[path][step])
        if clip is not None:
            clip(list(tensors.values()))
        with patch.object(Tensor, "bfloat16", Tensor.clone):  # Muon multiplies in float64
            for optimizer in optimizers:
                optimizer.step()
        for path, t in tensors.items():
            taken[path].append(t.detach().numpy().copy())
    return {path: np.array(a) for path, a in taken.items()}


def lion(start: Arrays, gradients: Arrays, lr: float, b1: float, b2: float, wd: float) -> Arrays:
    """Program 1 of Chen et al. 2023, line by line; PyTorch has no Lion."""
    taken: dict[str, list[np.ndarray]] = {path: [] for path in start}
    for path, theta in start.items():
        m, decay = np.zeros_like(theta), wd if path.endswith("W") else 0.0
        for g in gradients[path]:
            update = np.sign(b1 * m + (1 - b1) * g)
            m = b2 * m + (1 - b2) * g
            theta = theta - lr * (update + decay * theta)
            taken[path].append(theta)
    return {path: np.array(a) for path, a in taken.items()}


def main() -> None:
    rng = np.random.default_rng(SEED)
    start = {path: rng.standard_normal(shape) for path, shape in SHAPES.items()}
    gradients = {path: rng.standard_normal((STEPS, *shape)) for path, shape in SHAPES.items()}
    cases = {"start": start, "gradients": gradients}
    for name, make in CASES.items():
        cases[name] = trajectory(parted(make), start, gradients, None)
    for name, (make, clip) in CLIPPED.items():
        cases[name] = trajectory(parted(make), start, gradients, clip)
    for name, named in NAMED.items():
        cases[name] = trajectory(named, start, gradients, None)
    cases["Lion()"] = lion(start, gradients, 1e-4, 0.9, 0.99, 0.0)
    cases["Lion(0.02, beta1=0.7, beta2=0.8, weight_decay=0.5)"] = lion(
        start, gradients, 0.02, 0.7, 0.8, 0.5
    )
    arrays = {f"{case}/{path}": a for case, each in cases.items() for path, a in each.items()}
    arrays |= {"torch": np.array(torch.__version__), "seed": np.array(SEED)}
    np.savez_compressed(FILE, **arrays)
    print(f"{len(cases) - 2} cases, {FILE.stat().st_size} bytes: {FILE}")


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main()
