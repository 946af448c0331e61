"""JAX on the CPU: loss, gradients and Adam in one compiled function with donated buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from workloads import DECAY, GPT, MLPS, RATE, weights

VARIANTS = {"jit": ("W1", "W2", "W3", "W4", "W5")}
B1, B2, EPS = 0.9, 0.999, 1e-8


def dense(p: Any, i: int, X: Any) -> Any:
    return X @ p[f"W{i}"] + p[f"b{i}"]


def convolutional(p: Any, X: Any) -> Any:
    for i in range(2):
        layout = ("NHWC", "HWIO", "NHWC")
        X = lax.conv_general_dilated(X, p[f"K{i}"], (1, 1), "SAME", dimension_numbers=layout)
        X = jax.nn.relu(X + p[f"k{i}"])
        X = lax.reduce_window(X, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return dense(p, 1, jax.nn.relu(dense(p, 0, X.reshape(len(X), -1))))


def transformer(p: Any, tokens: Any) -> Any:
    def norm(X: Any, key: str) -> Any:
        return jax.nn.standardize(X, epsilon=1e-5) * p[f"{key}.gamma"] + p[f"{key}.beta"]

    X = p["tokens"][tokens] + p["places"]
    N, T, D = X.shape
    for i in range(GPT["layers"]):
        QKV = norm(X, f"{i}.norm1") @ p[f"{i}.Wqkv"] + p[f"{i}.bqkv"]
        Q, K, V = QKV.reshape(N, T, 3, GPT["heads"], -1).transpose(2, 0, 1, 3, 4)
        Z = jax.nn.dot_product_attention(Q, K, V, is_causal=True).reshape(N, T, D)
        X = X + Z @ p[f"{i}.Wo"] + p[f"{i}.bo"]
        A = norm(X, f"{i}.norm2") @ p[f"{i}.W1"] + p[f"{i}.b1"]
        X = X + jax.nn.gelu(A, approximate=True) @ p[f"{i}.W2"] + p[f"{i}.b2"]
    return norm(X, "norm") @ p["head"]


def recurrent(p: Any, tokens: Any) -> Any:
    def step(state: Any, a: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(a + h @ p["Wh"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    A = p["tokens"][tokens].swapaxes(0, 1) @ p["Wx"] + p["b"]
    start = jnp.zeros((A.shape[1], len(p["Wh"])), A.dtype)
    _, H = lax.scan(step, (start, start), A)
    return H.swapaxes(0, 1) @ p["head"] + p["head.b"]


def perceptron(layers: int, p: Any, X: Any) -> Any:
    for i in range(layers - 1):
        X = jax.nn.relu(dense(p, i, X))
    return dense(p, layers - 1, X)


class Side:
    def __init__(self, workload: str, variant: str, dtype: str = "float32") -> None:
        if dtype == "float64":
            jax.config.update("jax_enable_x64", True)
        if workload in MLPS:
            scores = partial(perceptron, len(MLPS[workload]) - 1)
        else:
            scores = {"W3": convolutional, "W4": transformer, "W5": recurrent}[workload]
        decay = DECAY if workload == "W4" else 0.0

        def objective(p: Any, X: Any, y: Any) -> Any:
            P = jax.nn.log_softmax(scores(p, X))
            return -jnp.take_along_axis(P, y[..., None], axis=-1).mean()

        @partial(jax.jit, donate_argnums=0)
        def step(state: Any, X: Any, y: Any) -> Any:
            p, m, v, t = state
            g = jax.grad(objective)(p, X, y)
            t = t + 1
            m = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, m, g)
            v = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g * g, v, g)
            c1, c2 = 1 - B1**t, 1 - B2**t
            p = jax.tree.map(
                lambda p, m, v: p * (1 - RATE * decay) - RATE * m / c1 / (jnp.sqrt(v / c2) + EPS),
                p,
                m,
                v,
            )
            return p, m, v, t

        p = {key: jnp.asarray(a, dtype) for key, a in weights(workload).items()}
        zeros = [jax.tree.map(jnp.zeros_like, p) for _ in range(2)]
        self.state = (p, *zeros, jnp.float32(0))
        self.step, self.objective, self.scores = step, jax.jit(objective), jax.jit(scores)
        self.rng = np.random.default_rng(0)

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        return float(self.objective(self.state[0], X, y))

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        for start in range(0, len(X), batch):
            rows = slice(start, start + batch)
            self.state = self.step(self.state, X[rows], y[rows])
        jax.block_until_ready(self.state)

    def epoch(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        order = self.rng.permutation(len(X))
        for start in range(0, len(X), batch):
            rows = order[start : start + batch]
            self.state = self.step(self.state, X[rows], y[rows])
        jax.block_until_ready(self.state)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.scores(self.state[0], X))

    def gradients(self, X: np.ndarray, y: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        loss, found = jax.jit(jax.value_and_grad(self.objective))(self.state[0], X, y)
        return float(loss), {key: np.asarray(dW) for key, dW in found.items()}
