"""PyTorch on the CPU: eager, with its fused Adam, channels last, and compiled."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import CNNS, DECAY, GPT, LSTM, MLPS, RATE, weights

ALL = ("W1", "W2", "W3", "W4", "W5", "W6")
VARIANTS = {
    "eager": ALL,
    "fused Adam": ALL,
    "channels last, fused Adam": ("W3", "W6"),
    "compiled, fused Adam": ALL,
    "DataLoader, fused Adam": ("W1", "W3"),
}


class Convolutional(nn.Module):
    def __init__(self, normalized: bool) -> None:
        super().__init__()
        convs = []
        for a, b in ((1, 32), (32, 64)):
            conv = nn.Conv2d(a, b, 3, padding=1)
            convs.append(nn.Sequential(conv, nn.BatchNorm2d(b)) if normalized else conv)
        self.convs = nn.ModuleList(convs)
        self.denses = nn.ModuleList(nn.Linear(a, b) for a, b in ((3136, 128), (128, 10)))

    def forward(self, X: Tensor) -> Tensor:
        for conv in self.convs:
            X = F.max_pool2d(F.relu(conv(X)), 2)
        first, second = self.denses
        return second(F.relu(first(X.flatten(1))))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        D = GPT["dim"]
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.wide, self.narrow = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, X: Tensor) -> Tensor:
        N, T, D = X.shape
        split = self.qkv(self.norm1(X)).view(N, T, 3, GPT["heads"], -1).permute(2, 0, 3, 1, 4)
        Z = F.scaled_dot_product_attention(*split, is_causal=True)
        X = X + self.out(Z.transpose(1, 2).reshape(N, T, D))
        return X + self.narrow(F.gelu(self.wide(self.norm2(X)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        D, V = GPT["dim"], GPT["vocab"]
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(GPT["context"], D)
        self.blocks = nn.ModuleList(Block() for _ in range(GPT["layers"]))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, X: Tensor) -> Tensor:
        X = self.tokens(X) + self.places.weight
        for block in self.blocks:
            X = block(X)
        return self.head(self.norm(X))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(LSTM["vocab"], LSTM["dim"])
        self.lstm = nn.LSTM(LSTM["dim"], LSTM["units"], batch_first=True)
        self.head = nn.Linear(LSTM["units"], LSTM["vocab"])

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(X))[0])


def network(workload: str) -> nn.Module:
    if workload in MLPS:
        sizes = list(itertools.pairwise(MLPS[workload]))
        layers = [layer for a, b in sizes for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])
    if workload in CNNS:
        return Convolutional(normalized=workload == "W6")
    return {"W4": Transformer, "W5": Recurrent}[workload]()


def fill(model: nn.Module, workload: str) -> None:
    """Copy the weights of `workloads` into the model."""
    arrays = weights(workload)
    if workload in CNNS:  # PyTorch flattens the channels first
        arrays["W0"] = arrays["W0"].reshape(7, 7, 64, 128).transpose(2, 0, 1, 3).reshape(3136, 128)
    if workload == "W5":  # b twice: PyTorch has two biases; the initial ones are 0
        order = ["tokens", "Wx", "Wh", "b", "b", "head", "head.b"]
    elif workload == "W4":
        block = ["norm1.gamma", "norm1.beta", "norm2.gamma", "norm2.beta"]
        block += ["Wqkv", "bqkv", "Wo", "bo", "W1", "b1", "W2", "b2"]
        blocks = [f"{i}.{key}" for i in range(GPT["layers"]) for key in block]
        order = ["tokens", "places", *blocks, "norm.gamma", "norm.beta", "head"]
    else:
        order = list(arrays)
    tables = {"tokens", "places"}
    with torch.no_grad():
        for key, parameter in zip(order, model.parameters(), strict=True):
            a = arrays[key]
            turned = a.transpose(3, 2, 0, 1) if a.ndim == 4 else a if key in tables else a.T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(turned)))


class Side:
    def __init__(
        self, workload: str, variant: str, threads: int | None = None, dtype: str = "float32"
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.images, self.variant = workload in CNNS, variant
        self.model = network(workload)
        fill(self.model, workload)
        self.model = self.model.to(getattr(torch, dtype))
        if "channels last" in variant:
            self.model = self.model.to(memory_format=torch.channels_last)
        rule = torch.optim.AdamW if workload == "W4" else torch.optim.Adam
        decay = {"weight_decay": DECAY} if workload == "W4" else {}
        fused = {"fused": True} if "fused" in variant else {}
        self.optimizer = rule(self.model.parameters(), lr=RATE, **decay, **fused)
        compiled = "compiled" in variant
        self.objective = torch.compile(self._objective) if compiled else self._objective
        self.scores = torch.compile(self.model) if compiled else self.model
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def _objective(self, X: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(X).flatten(0, -2), y.flatten())

    def tensors(self, X: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        """The arrays as tensors in the layout that suits the variant; converted only once."""
        key = X.ctypes.data, len(X)
        if key not in self.held:
            T = torch.from_numpy(X)
            if self.images:
                T = T.permute(0, 3, 1, 2)
                last = "channels last" in self.variant
                T = T.contiguous(
                    memory_format=torch.channels_last if last else torch.contiguous_format
                )
            self.held[key] = T, torch.from_numpy(y)
        return self.held[key]

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        tensors = self.tensors(X, y)
        self.model.eval()
        with torch.inference_mode():
            loss = self._objective(*tensors).item()
        self.model.train()
        return loss

    def steps(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.model.train()
        for X, y in batches:
            self.optimizer.zero_grad()
            loss = self.objective(X, y)
            loss.backward()
            self.optimizer.step()

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        X_t, y_t = self.tensors(X, y)
        self.steps(zip(X_t.split(batch), y_t.split(batch), strict=True))

    def epoch(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        X_t, y_t = self.tensors(X, y)
        if "DataLoader" in self.variant:
            self.steps(DataLoader(TensorDataset(X_t, y_t), batch_size=batch, shuffle=True))
        else:
            self.steps((X_t[rows], y_t[rows]) for rows in torch.randperm(len(X_t)).split(batch))

    def predict(self, X: np.ndarray) -> np.ndarray:
        T, _ = self.tensors(X, X)
        if self.model.training:
            self.model.eval()
        with torch.inference_mode():
            return self.scores(T).numpy()

    def gradients(self, X: np.ndarray, y: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        loss = self._objective(*self.tensors(X, y))
        loss.backward()
        named = self.model.named_parameters()
        return loss.item(), {name: p.grad.numpy() for name, p in named if p.grad is not None}
