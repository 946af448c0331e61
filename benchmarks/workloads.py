"""The benchmark's six networks, their data and initial weights, the same for all frameworks.

W1  784-128-64-10, ReLU                         digits as rows
W2  784-256-128-10-10, ReLU                     digits as rows
W3  conv 32, pool, conv 64, pool, dense 128, 10 images 28 x 28, 3 x 3 kernels, "same"
W4  GPT of 4 blocks, 4 heads, 128 wide          65 characters, context 64, pre-norm, tanh GELU
W5  embedding 64, LSTM 128, dense               65 characters, 64 steps
W6  W3 with BatchNorm after each convolution    cannot be split over threads

A step is forward, softmax cross-entropy, backward and Adam (AdamW with decay 0.01 for W4), in
float32. Weights have readable names; matrices are (in, out), kernels (height, width, in, out).
"""

from __future__ import annotations

import itertools

import numpy as np

RATE, DECAY = 1e-3, 0.01
MLPS = {"W1": (784, 128, 64, 10), "W2": (784, 256, 128, 10, 10)}
CNNS = ("W3", "W6")
GPT = {"layers": 4, "heads": 4, "dim": 128, "context": 64, "vocab": 65}
LSTM = {"dim": 64, "units": 128, "context": 64, "vocab": 65}
BATCH = {"W1": 64, "W2": 32, "W3": 64, "W4": 16, "W5": 32, "W6": 64}
WHAT = {
    "W1": "MLP 784-128-64-10",
    "W2": "MLP 784-256-128-10-10",
    "W3": "CNN of two convolutions",
    "W4": "GPT of four blocks",
    "W5": "LSTM of 128 units",
    "W6": "CNN of two convolutions with BatchNorm",
}


def weights(name: str) -> dict[str, np.ndarray]:
    """Initial weights, in the order of the network."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}

    def normal(key: str, *shape: int, std: float) -> None:
        arrays[key] = std * rng.standard_normal(shape)

    def zeros(key: str, n: int) -> None:
        arrays[key] = np.zeros(n)

    def norm(key: str, n: int) -> None:
        arrays[f"{key}.gamma"], arrays[f"{key}.beta"] = np.ones(n), np.zeros(n)

    if name in MLPS:
        sizes = MLPS[name]
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            normal(f"W{i}", a, b, std=(2 / a) ** 0.5)
            zeros(f"b{i}", b)
    elif name in CNNS:
        for i, (a, b) in enumerate(((1, 32), (32, 64))):
            normal(f"K{i}", 3, 3, a, b, std=(2 / 9 / a) ** 0.5)
            zeros(f"k{i}", b)
            if name == "W6":
                norm(f"norm{i}", b)
        for i, (a, b) in enumerate(((3136, 128), (128, 10))):
            normal(f"W{i}", a, b, std=(2 / a) ** 0.5)
            zeros(f"b{i}", b)
    elif name == "W4":
        D, V = GPT["dim"], GPT["vocab"]
        normal("tokens", V, D, std=0.02)
        normal("places", GPT["context"], D, std=0.02)
        for i in range(GPT["layers"]):
            norm(f"{i}.norm1", D)
            normal(f"{i}.Wqkv", D, 3 * D, std=0.02)
            zeros(f"{i}.bqkv", 3 * D)
            normal(f"{i}.Wo", D, D, std=0.02)
            zeros(f"{i}.bo", D)
            norm(f"{i}.norm2", D)
            normal(f"{i}.W1", D, 4 * D, std=0.02)
            zeros(f"{i}.b1", 4 * D)
            normal(f"{i}.W2", 4 * D, D, std=0.02)
            zeros(f"{i}.b2", D)
        norm("norm", D)
        normal("head", D, V, std=0.02)
    else:
        D, H, V = LSTM["dim"], LSTM["units"], LSTM["vocab"]
        normal("tokens", V, D, std=1.0)
        normal("Wx", D, 4 * H, std=0.05)
        normal("Wh", H, 4 * H, std=0.05)
        zeros("b", 4 * H)
        normal("head", H, V, std=0.05)
        zeros("head.b", V)
    return {key: a.astype(np.float32) for key, a in arrays.items()}


def data(name: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """X and y: rows as sparse as digits, images (N, 28, 28, 1), or tokens and their successors."""
    rng = np.random.default_rng(1)
    if name in ("W4", "W5"):
        text = rng.integers(0, 65, (samples, 65))
        return text[:, :-1].copy(), text[:, 1:].copy()
    X = rng.random((samples, 784), dtype=np.float32)
    X *= rng.random((samples, 784), dtype=np.float32) < 0.2
    return X.reshape(-1, 28, 28, 1) if name in CNNS else X, rng.integers(0, 10, samples)


def gemm_flops(name: str, batch: int) -> int:
    """The FLOPs of a step's matrix products; the first layer computes no dX."""
    if name in MLPS:
        products = [a * b for a, b in itertools.pairwise(MLPS[name])]
        return 2 * batch * (3 * sum(products) - products[0])
    if name in CNNS:
        first, second, dense = 784 * 9 * 32, 196 * 288 * 64, 3136 * 128 + 1280
        return 2 * batch * (2 * first + 3 * (second + dense))
    if name == "W4":
        D, T = GPT["dim"], GPT["context"]
        block = 12 * D * D + 2 * T * D
        return 6 * batch * T * (GPT["layers"] * block + D * GPT["vocab"])
    D, H = LSTM["dim"], LSTM["units"]
    return 6 * batch * LSTM["context"] * (4 * H * (D + H) + H * LSTM["vocab"])
