"""Create layers.npz, losses.npz and noise.npz: the values that PyTorch computes.

Run `python references/make_references.py` with torch installed. The stored files were created with
torch 2.13.0+cpu; each records that version and the seed. phitodeep/testing/references.py reads
them and needs no torch.

A case is named after the phitodeep call that it checks, with a remark after " | " if there are
several; its arrays are `case/X`, `case/params.W`, `case/dY`, `case/grads.W` and so on.
All values are float64. Parameters are random, since 1 and 0 would hide a missing factor.

The file is long because it is one table: all cases draw from one generator, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

SEED = 20240607
ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "phitodeep" / "testing" / "stored"
TESTS = ROOT / "tests" / "reference"  # what only the tests need
rng = np.random.default_rng(SEED)
Params = dict[str, Tensor]
Arrays = dict[str, np.ndarray]


def leaf(a: Any) -> Tensor:
    return torch.tensor(np.asarray(a, np.float64), requires_grad=True)


def array(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


# --- layers ------------------------------------------------------------------------------------

LARGE = [1e4, -1e4, 30.0, -30.0]  # no activation may overflow

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU()": F.relu,
    "LeakyReLU(0.2)": lambda X: F.leaky_relu(X, 0.2),
    "ELU()": F.elu,
    "ELU(1.7)": lambda X: F.elu(X, 1.7),
    "CELU()": F.celu,
    "CELU(0.5)": lambda X: F.celu(
        X, 0.5
    ),  # its kernel keeps 1 / alpha in float32, which is exact for 0.5
    "SELU()": F.selu,
    "GELU()": F.gelu,
    'GELU("tanh")': lambda X: F.gelu(X, approximate="tanh"),
    "SiLU()": F.silu,
    "Mish()": F.mish,
    "HardSigmoid()": lambda X: F.relu6(X + 3) / 6,  # F.hardsigmoid rounds 1 / 6 to float32
    "HardSwish()": F.hardswish,
    "HardTanh()": F.hardtanh,
    "Sigmoid()": torch.sigmoid,
    "Tanh()": torch.tanh,
    "Softplus()": lambda X: F.softplus(X, threshold=50),  # the default, 20, has an error of 2e-9
    "Softsign()": F.softsign,
    "Softmax()": lambda X: F.softmax(X, -1),
    "LogSoftmax()": lambda X: F.log_softmax(X, -1),
}


def dense(X: Tensor, p: Params, path: str = "") -> Tensor:
    return F.linear(X, p[f"{path}W"].T, p.get(f"{path}b"))


def chain(X: Tensor, p: Params) -> Tensor:
    H = F.gelu(F.layer_norm(dense(X, p, "0."), (5,), p["1.gamma"], p["1.beta"], 1e-5))
    return X + dense(H, p, "3.")


def branches(X: Tensor, p: Params) -> tuple[Tensor, Tensor]:
    return dense(X, p, "branches.0."), torch.tanh(dense(X, p, "branches.1.layers.0."))


BRANCHES = {"branches.0.W": (4, 3), "branches.0.b": (3,)}
BRANCHES |= {"branches.1.layers.0.W": (4, 3), "branches.1.layers.0.b": (3,)}
PARALLEL = "Parallel(Dense(4, 3), Chain(Dense(4, 3), Tanh())"

WITH_PARAMS: dict[str, tuple[Callable[[Tensor, Params], Tensor], dict[str, tuple[int, ...]]]] = {
    "Dense(4, 3)": (dense, {"W": (4, 3), "b": (3,)}),
    "Dense(4, 3, bias=False)": (dense, {"W": (4, 3)}),
    "PReLU()": (
        lambda X, p: F.prelu(X.movedim(-1, 1), p["alpha"]).movedim(1, -1),
        {"alpha": (4,)},
    ),
    "LayerNorm(0.01)": (
        lambda X, p: F.layer_norm(X, (4,), p["gamma"], p["beta"], 0.01),
        {"gamma": (4,), "beta": (4,)},
    ),
    "Residual(Dense(4, 5), LayerNorm(), GELU(), Dense(5, 4))": (
        chain,
        {"0.W": (4, 5), "0.b": (5,), "1.gamma": (5,), "1.beta": (5,), "3.W": (5, 4), "3.b": (4,)},
    ),
    f"{PARALLEL})": (lambda X, p: torch.cat(branches(X, p), -1), BRANCHES),
    f'{PARALLEL}, merge="add")': (lambda X, p: sum(branches(X, p)), BRANCHES),
    f'{PARALLEL}, merge="multiply")': (
        lambda X, p: branches(X, p)[0] * branches(X, p)[1],
        BRANCHES,
    ),
}


def layer_case(
    X: np.ndarray,
    function: Callable[[Tensor, Params], Tensor],
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Arrays:
    x, params = leaf(X), {n: leaf(rng.standard_normal(s)) for n, s in (shapes or {}).items()}
    Y = function(x, params)
    dY = rng.standard_normal(Y.shape)
    Y.backward(torch.tensor(dY))
    stored = {"X": X, "Y": array(Y), "dY": dY, "dX": array(x.grad)}
    for name, p in params.items():
        stored[f"params.{name}"], stored[f"grads.{name}"] = array(p), array(p.grad)
    return stored


def batch_norm_case(shape: tuple[int, ...]) -> Arrays:
    """Four training batches, then one pass with running statistics; features last."""
    norm = torch.nn.BatchNorm1d(shape[-1], eps=0.02, momentum=0.3, dtype=torch.float64)
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.tensor(rng.standard_normal(p.shape)))
    stored = {"params.gamma": array(norm.weight).copy(), "params.beta": array(norm.bias).copy()}
    X = rng.standard_normal((4, *shape)) * rng.uniform(0.5, 3, shape[-1]) + 1
    for prefix in ("", "eval_"):
        norm.train(not prefix)
        for batch in X if not prefix else X[-1:]:
            x = leaf(batch)
            Y = norm(x.movedim(-1, 1)).movedim(1, -1)
        dY = rng.standard_normal(shape)
        norm.zero_grad()
        Y.backward(torch.tensor(dY))
        stored |= {f"{prefix}Y": array(Y), f"{prefix}dY": dY, f"{prefix}dX": array(x.grad)}
        stored[f"{prefix}grads.gamma"] = array(norm.weight.grad).copy()
        stored[f"{prefix}grads.beta"] = array(norm.bias.grad).copy()
    return stored | {
        "X": X,
        "state.running_mean": array(norm.running_mean),
        "state.running_var": array(norm.running_var),
    }


def layer_cases() -> dict[str, Arrays]:
    cases = {}
    for rank, shape in ((2, (4, 4)), (3, (2, 3, 4))):
        for call, f in ACTIVATIONS.items():
            X = 2.5 * rng.standard_normal(shape)
            if rank == 2:
                X[-1] = LARGE
            cases[f"{call} | rank {rank}"] = layer_case(X, lambda X, p, f=f: f(X))
        for call, (f, shapes) in WITH_PARAMS.items():
            cases[f"{call} | rank {rank}"] = layer_case(rng.standard_normal(shape), f, shapes)
        cases[f"BatchNorm(0.3, 0.02) | rank {rank}"] = batch_norm_case(shape)
    X = rng.standard_normal((2, 3, 4))
    cases["Softmax(1)"] = layer_case(X, lambda X, p: F.softmax(X, 1))
    cases["LogSoftmax(-2)"] = layer_case(X, lambda X, p: F.log_softmax(X, -2))
    cases["Flatten()"] = layer_case(X, lambda X, p: X.flatten(1))
    cases["Reshape(2, -1)"] = layer_case(X, lambda X, p: X.reshape(2, 2, 6))
    return cases


def noise_cases() -> dict[str, Arrays]:
    """Layers that draw random values, with the standard normal values E drawn by PyTorch."""
    cases = {}
    for rank, shape in ((2, (4, 6)), (3, (2, 3, 4))):
        L = shape[-1] // 2

        def draw(X: Tensor, p: Params, L: int = L) -> Tensor:
            torch.manual_seed(SEED)
            return Normal(X[..., :L], torch.exp(X[..., L:] / 2)).rsample()

        zeros = torch.zeros(shape, dtype=torch.float64)  # mean 0 and log variance 0 give E itself
        case = layer_case(2 * rng.standard_normal(shape), draw)
        cases[f"Reparameterize() | rank {rank}"] = case | {"E": array(draw(zeros, {}))}
    return cases


# --- losses ------------------------------------------------------------------------------------


def mean(each: Tensor, w: Tensor | None) -> Tensor:
    """The weighted mean: sample weights (N,) multiply the terms and are summed in the divisor."""
    if w is None:
        return each.mean()
    w = w.reshape(-1, *[1] * (each.ndim - 1)).expand(each.shape)
    return (each * w).sum() / w.sum()


def log_cosh(P: Tensor, T: Tensor) -> Tensor:
    return torch.log(torch.cosh(P - T))


def hinge(P: Tensor, T: Tensor) -> Tensor:
    return torch.clamp(1 - P * T, min=0)


def kl(P: Tensor, T: Tensor) -> Tensor:
    return F.kl_div(P, T, reduction="none").flatten(1).sum(1)


def negative_elbo(P: Tensor, T: Tensor, beta: float = 1.0) -> Tensor:
    m, s, Z = P.split([1, 1, P.shape[-1] - 2], -1)
    far = kl_divergence(Normal(m, torch.exp(s / 2)), Normal(0.0, 1.0)).sum(-1)
    return F.binary_cross_entropy_with_logits(Z, T, reduction="none").sum(-1) + beta * far


ELEMENTWISE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "MeanSquaredError()": (lambda P, T: F.mse_loss(P, T, reduction="none"), "numbers"),
    "MeanAbsoluteError()": (lambda P, T: F.l1_loss(P, T, reduction="none"), "numbers"),
    "Huber(0.7)": (lambda P, T: F.huber_loss(P, T, reduction="none", delta=0.7), "numbers"),
    "LogCosh()": (log_cosh, "numbers"),
    "BinaryCrossEntropy()": (
        lambda P, T: F.binary_cross_entropy(P, T, reduction="none"),
        "probabilities",
    ),
    "BinaryCrossEntropyWithLogits()": (
        lambda P, T: F.binary_cross_entropy_with_logits(P, T, reduction="none"),
        "logits",
    ),
    "Hinge()": (hinge, "signs"),
    "SquaredHinge()": (lambda P, T: hinge(P, T) ** 2, "signs"),
    "PoissonNLL()": (lambda P, T: F.poisson_nll_loss(P, T, reduction="none"), "counts"),
    "PoissonNLL(log_input=False)": (
        lambda P, T: F.poisson_nll_loss(P, T, log_input=False, eps=0, reduction="none"),
        "rates",
    ),
    "KLDivergence()": (kl, "distributions"),
    "CosineSimilarityLoss()": (lambda P, T: 1 - F.cosine_similarity(P, T, dim=-1), "numbers"),
}


def softmax(X: np.ndarray) -> np.ndarray:
    return np.exp(X) / np.exp(X).sum(axis=-1, keepdims=True)


def predictions_and_targets(kind: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    P, T = 2 * rng.standard_normal((2, *shape))
    some = rng.random(shape)
    if kind == "probabilities":
        P, T = 1 / (1 + np.exp(-P)), np.where(some < 0.8, np.round(some), some)
    elif kind == "logits":
        T = np.where(some < 0.8, np.round(some), some)
        P.flat[:2] = 1e4, -1e4
    elif kind == "signs":
        T = np.sign(T)
    elif kind in ("counts", "rates"):
        T = np.floor(4 * some)
        P = P if kind == "counts" else np.abs(P) + 0.1
    elif kind == "distributions":
        P, T = np.log(softmax(P)), softmax(T)
        T[0] = np.eye(shape[-1])[0]  # 0 log 0 is 0
    return P, T


def loss_case(
    P: np.ndarray, y: np.ndarray, loss: Callable[[Tensor], Tensor], **more: Any
) -> Arrays:
    p = leaf(P)
    value = loss(p)
    value.backward()
    given = {"y_pred": P, "y_true": y} | {k: a for k, a in more.items() if a is not None}
    return given | {"value": array(value), "gradient": array(p.grad)}


def cross_entropy(
    log_p: Tensor, y: np.ndarray, w: np.ndarray | None, options: dict[str, Any]
) -> Tensor:
    """PyTorch's cross-entropy; log-probabilities equal their log_softmax. Classes come second."""
    options = dict(options)
    class_weight = options.pop("class_weight", None)
    options["weight"] = None if class_weight is None else torch.tensor(class_weight).double()
    options["ignore_index"] = options.get("ignore_index", -100)
    target = torch.tensor(y)
    if target.ndim == log_p.ndim:
        target = target.movedim(-1, 1)
    log_p = log_p.movedim(-1, 1)
    if w is None:
        return F.cross_entropy(log_p, target, **options)
    each = F.cross_entropy(log_p, target, reduction="none", **options)
    weights = torch.tensor(w).reshape(-1, *[1] * (each.ndim - 1)).expand(each.shape)
    total = weights * (target != options["ignore_index"])
    if class_weight is not None:
        total = total * options["weight"][target.clamp(min=0)]
    return (each * weights).sum() / total.sum()


def smoothed_nll(log_p: Tensor, y: np.ndarray, options: dict[str, Any]) -> Tensor:
    """The formula of cross-entropy, for log_p that is not necessarily normalised."""
    K = log_p.shape[-1]
    s, labels = options.get("label_smoothing", 0.0), torch.tensor(y)
    kept = (labels != options.get("ignore_index", -100)).double()
    labels = labels.clamp(min=0)
    weight = torch.tensor(options.get("class_weight", [1.0] * K)).double()
    q = ((1 - s) * F.one_hot(labels, K).double() + s / K) * weight
    return -(q * log_p).sum(-1).mul(kept).sum() / (weight[labels] * kept).sum()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.2},
    {"ignore_index": -1},
    {"class_weight": [0.5, 2.0, 1.0, 0.25]},
    {"label_smoothing": 0.1, "ignore_index": -1, "class_weight": [0.5, 2.0, 1.0, 0.25]},
]


def loss_cases() -> dict[str, Arrays]:
    cases = {}
    for rank, shape in ((2, (4, 3)), (3, (2, 3, 4))):
        for call, (each, kind) in ELEMENTWISE.items():
            P, T = predictions_and_targets(kind, shape)
            for w in (None, rng.uniform(0.1, 3, shape[0])):
                t, weights = torch.tensor(T), None if w is None else torch.tensor(w)
                cases[f"{call} | rank {rank}{', weighted' * (w is not None)}"] = loss_case(
                    P,
                    T,
                    lambda p, each=each, t=t, weights=weights: mean(each(p, t), weights),
                    sample_weight=w,
                )
    for rank, shape in ((2, (5, 4)), (3, (2, 3, 4))):
        Z, w = 2 * rng.standard_normal(shape), rng.uniform(0.1, 3, shape[0])
        y, soft = rng.integers(0, 4, shape[:-1]), softmax(rng.standard_normal(shape))
        for options in OPTIONS:
            shown = ", ".join(f"{k}={v}" for k, v in options.items())
            labels = y.copy()
            if "ignore_index" in options:
                labels[0] = -1
            for weights in (None, w):
                remark = f"rank {rank}{', weighted' * (weights is not None)}"
                cases[f"SoftmaxCrossEntropy({shown}) | {remark}"] = loss_case(
                    Z,
                    labels,
                    lambda z, y=labels, w=weights, o=options: cross_entropy(z, y, w, o),
                    sample_weight=weights,
                )
            P = softmax(rng.standard_normal(shape))
            cases[f"CategoricalCrossEntropy({shown}) | rank {rank}"] = loss_case(
                P, labels, lambda p, y=labels, o=options: smoothed_nll(torch.log(p), y, o)
            )
            if "label_smoothing" not in options:
                log_p = (
                    np.log(softmax(Z)) - 0.3
                )  # not normalised, which must not matter to the loss
                weight = options.get("class_weight")
                cases[f"NegativeLogLikelihood({shown}) | rank {rank}"] = loss_case(
                    log_p,
                    labels,
                    lambda p, y=labels, o=options, weight=weight: F.nll_loss(
                        p.movedim(-1, 1),
                        torch.tensor(y),
                        weight=None if weight is None else torch.tensor(weight).double(),
                        ignore_index=o.get("ignore_index", -100),
                    ),
                )
        rows = torch.tensor(soft)
        for s in (0.0, 0.2):
            call = "SoftmaxCrossEntropy()" if not s else f"SoftmaxCrossEntropy({s})"
            cases[f"{call} | rank {rank}, rows"] = loss_case(
                Z,
                soft,
                # PyTorch divides only by the batch size; ours is a mean over positions
                lambda z, s=s, t=rows: F.cross_entropy(
                    z.flatten(0, -2), t.flatten(0, -2), label_smoothing=s
                ),
            )
        Z = Z.copy()
        Z[0], Z[1] = 1e4, -1e4
        Z.reshape(-1, 4)[0, 1] = -1e4
        cases[f"SoftmaxCrossEntropy() | rank {rank}, large"] = loss_case(
            Z, y, lambda z, y=y: cross_entropy(z, y, None, {})
        )
    for rank, shape in ((2, (4, 5)), (3, (2, 3, 5))):
        for beta in (1.0, 2.5):
            P, T = 2 * rng.standard_normal(shape), rng.random((*shape[:-1], 3))
            T[0] = np.round(T[0])
            P[-1, ..., -1] = 1e4
            for w in (None, rng.uniform(0.1, 3, shape[0])):
                t, weights = torch.tensor(T), None if w is None else torch.tensor(w)
                options = f", beta={beta}" * (beta != 1)
                remark = f"rank {rank}{', weighted' * (w is not None)}"
                cases[f"NegativeELBO(1{options}) | {remark}"] = loss_case(
                    P,
                    T,
                    lambda p, t=t, w=weights, beta=beta: mean(negative_elbo(p, t, beta), w),
                    sample_weight=w,
                )
    return cases


# --- files -------------------------------------------------------------------------------------


def write(path: Path, cases: dict[str, Arrays]) -> None:
    arrays = {f"{case}/{key}": a for case, stored in cases.items() for key, a in stored.items()}
    for key, a in arrays.items():
        if not np.isfinite(a).all():
            raise FloatingPointError(f"{key} is not finite")
    np.savez_compressed(path, torch=np.array(torch.__version__), seed=np.array(SEED), **arrays)
    print(f"{path}: {len(cases)} cases, {len(arrays)} arrays, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    write(FOLDER / "layers.npz", layer_cases())
    write(FOLDER / "losses.npz", loss_cases())
    write(TESTS / "noise.npz", noise_cases())
