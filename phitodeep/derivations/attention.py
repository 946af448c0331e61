"""Attention: a softmax over products of queries and keys, and a weighted average of the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import current
from phitodeep.derivations.dense import product, product_back
from phitodeep.derivations.embedding import angles, rotated
from phitodeep.derivations.language.step import (
    Arrange,
    Derivation,
    Given,
    Join,
    Let,
    Max,
    Size,
    Step,
    Sum,
)
from phitodeep.functional.rotary import Rope

# Letters: n sample, t position, h head, q position of a query, k position of a key, d feature.


class _Columns(NamedTuple):
    """Where the queries, keys or values of all heads are: columns of an array (N, `steps`, ...)."""

    of: str
    columns: str
    steps: str  # the number of its positions: T, or M for those of the memory


def multi_head_attention(layer: Any) -> Derivation:
    """QKV = X Wqkv + bqkv, the attention of each head, and Y = Z Wo + bo."""
    inner, back = _self_attention(layer, "QKV", "Z")
    first = "QKV", "X", "Wqkv", "bqkv" if layer.bias else None, "nt"
    last = "Y", "Z", "Wo", "bo" if layer.bias else None, "nt"
    return Derivation.of(
        *_sizes("X"),
        Size("D", "X", 2, "the number of features"),
        *product(*first),
        *inner,
        *product(*last),
        *product_back(*last),
        *back,
        *product_back(*first),
    )


def scaled_dot_product_attention(layer: Any) -> Derivation:
    """The attention of each head, for X that holds queries, keys and values."""
    inner, back = _self_attention(layer, "X", "Y")
    return Derivation.of(*_sizes("X"), *inner, *back)


def cross_attention(layer: Any) -> Derivation:
    """Q = X1 Wq + bq, KV = X2 Wkv + bkv, the attention of each head, and Y = Z Wo + bo."""
    heads = "kv_heads" if layer.kv_heads else "heads"
    parts = {
        "Q": _Columns("Q_columns", "", "T"),
        "K": _Columns("KV", f"[:, :, :{heads} * d]", "M"),
        "V": _Columns("KV", f"[:, :, {heads} * d:]", "M"),
    }
    inner, back = _attention(layer, "Z", parts, lambda s: s["Q_columns"].shape[2] // layer.heads)
    queries = "Q_columns", "X1", "Wq", "bq" if layer.bias else None, "nt"
    keys = "KV", "X2", "Wkv", "bkv" if layer.bias else None, "nt"
    last = "Y", "Z", "Wo", "bo" if layer.bias else None, "nt"
    return Derivation.of(
        *_sizes("X1"),
        Size("M", "X2", 1, "the number of positions of the memory"),
        *product(*queries),
        *product(*keys),
        *inner,
        *product(*last),
        *product_back(*last),
        *back,
        Join("dKV", "dK_columns", "dV_columns", words="side by side again"),
        *product_back(*queries),
        *product_back(*keys),
    )


def _sizes(X: str) -> list[Step]:
    return [Size("N", X, 0, "the number of samples"), Size("T", X, 1, "the number of positions")]


def _self_attention(layer: Any, QKV: str, Z: str) -> tuple[list[Step], list[Step]]:
    """The attention of each head from QKV to Z, and back."""
    heads = "kv_heads" if layer.kv_heads else "heads"
    number = layer.heads + 2 * (layer.kv_heads or layer.heads)
    parts = {
        "Q": _Columns(QKV, "[:, :, :heads * d]", "T"),
        "K": _Columns(QKV, f"[:, :, heads * d:heads * d + {heads} * d]", "T"),
        "V": _Columns(QKV, f"[:, :, heads * d + {heads} * d:]", "T"),
    }
    forward, back = _attention(layer, Z, parts, lambda s: s[QKV].shape[2] // number)
    columns = "dQ_columns", "dK_columns", "dV_columns"
    return forward, [*back, Join(f"d{QKV}", *columns, words="side by side again")]


def _attention(
    layer: Any, Z: str, parts: dict[str, _Columns], d: Callable[[Any], int]
) -> tuple[list[Step], list[Step]]:
    """For each head: S = Q K^T / sqrt(d), P = softmax(S), O = P V; to Z, and back."""
    drops = bool(layer.dropout) and current().training
    paths = [_operand(layer, name, part) for name, part in parts.items()]
    A = "A" if drops else "P"  # what the values are multiplied by
    m = Given("m", "0 for a dropped probability, otherwise 1 / (1 - dropout)", _factors(layer))
    forward = [
        Given("d", "the number of features of a head", d),
        *(_angles(layer) if layer.rope else []),
        *(step for path, _ in paths for step in path),
        *_softmax(layer),
        *([m, Let("A", "P * m", "the probabilities after dropout")] if drops else []),
        Sum("O", "nhqk,nhkd->nhqd", A, "V"),
        Arrange(Z, _COLUMNS.format("O", "T", "heads"), "O", "the heads side by side"),
    ]
    by_head = f"d{Z}.reshape(N, T, heads, d).transpose(0, 2, 1, 3)"
    backward = [
        Arrange("dO", by_head, f"d{Z}", f"d{Z} by head"),
        Sum("dV", "nhqk,nhqd->nhkd", A, "dO"),
        Sum(f"d{A}", "nhqd,nhkd->nhqk", "dO", "V"),
        *([Let("dP", "dA * m")] if drops else []),
        Sum("s", "nhqk,nhqk->nhq1", "dP", "P", words="dP, averaged with the weights P"),
        Let("dS", "P * (dP - s)", "a larger score takes from the other probabilities"),
        Let("dQK", "dS / np.sqrt(d)"),
        Sum("dQ", "nhqk,nhkd->nhqd", "dQK", "K"),
        Sum("dK", "nhqk,nhqd->nhkd", "dQK", "Q"),
        *(step for _, back in paths for step in back),
    ]
    return forward, backward


_COLUMNS = "{}.transpose(0, 2, 1, 3).reshape(N, {}, {} * d)"  # of the heads, side by side


def _softmax(layer: Any) -> list[Step]:
    """P = softmax(S) over the keys; with a mask, a query that may attend to none has P = 0."""
    masked = _mask_of_keys() is not None
    hides = masked or layer.causal
    scores = "np.where(visible, QK / np.sqrt(d), -np.inf)" if hides else "QK / np.sqrt(d)"
    visible = Given("visible", "which keys a query may attend to", _visible(layer))
    finite = "np.where(largest > -np.inf, largest, 0)"
    top = Let("top", finite, "a query without keys has no maximum")
    shifted = f"np.exp(S - {'top' if masked else 'largest'})"
    without = "0 for a query without keys"
    return [
        Sum("QK", "nhqd,nhkd->nhqk", "Q", "K"),
        *([visible] if hides else []),
        Let("S", scores),
        Max("largest", "nhqk->nhq1", "S"),
        *([top] if masked else []),
        Let("E", shifted, "the shift changes no probability"),
        Sum("total", "nhqk->nhq1", "E"),
        Let("P", "E / np.where(total > 0, total, 1)", without) if masked else Let("P", "E / total"),
    ]


def _visible(layer: Any) -> Any:
    def visible(symbols: Any) -> Any:
        mask, (T, M) = _mask_of_keys(), symbols["QK"].shape[2:]
        before = np.tri(T, M, dtype=bool) if layer.causal else np.ones((T, M), bool)
        return before[None, None] if mask is None else before & mask[:, None, None, :]

    return visible


def _mask_of_keys() -> Any:
    mask = current().mask
    return mask[1] if isinstance(mask, tuple) else mask


def _factors(layer: Any) -> Any:
    """The dropout factors (N, heads, T, S), drawn as the layer draws them."""

    def factors(symbols: Any) -> Any:
        P, k = symbols["P"], layer.kv_heads or layer.heads
        sizes = P.shape[2:]
        m = np.zeros((len(P), k, layer.heads // k, *sizes), P.dtype)
        key = layer._random_key()
        for i, (queries, keys) in enumerate(layer._blocks(*sizes, 0)):
            block = m[..., queries, keys]
            block[...] = layer._dropout_factors(block, key, i)
        return m.reshape(P.shape)

    return factors


def _angles(layer: Any) -> list[Step]:
    """cos and sin (T, d / 2) for the queries and keys of all positions, with w_i in words."""
    rope = layer.rotary
    w = f"{rope.base:g}^(-2i / d)" if type(rope) is Rope else f"as in {rope!r}"
    return angles(lambda s: rope.cos_and_sin(0, s["T"], s["d"], s["X"].dtype), w)


def _operand(layer: Any, name: str, part: _Columns) -> tuple[list[Step], list[Step]]:
    """The steps from columns to Q, K or V (N, heads, T, d), and from its gradient back to them.

    Before rope, Q is Q_heads. Before kv_heads are repeated, K is K_own.
    """
    heads = "kv_heads" if layer.kv_heads and name != "Q" else "heads"
    rope, shared = layer.rope and name != "V", heads != "heads" and layer.kv_heads != layer.heads
    own = f"{name}_own" if shared else name  # one for each of `heads`
    first = f"{name}_heads" if rope else own
    of, columns, T = part
    words = {"Q": "the queries, by head", "K": "the keys, by head", "V": "the values, by head"}
    split = f"{of}{columns}.reshape(N, {T}, {heads}, d).transpose(0, 2, 1, 3)"
    joined = _COLUMNS.format(f"d{first}", T, heads)
    forward: list[Step] = [Arrange(first, split, of, words[name])]
    back: list[Step] = [Arrange(f"d{name}_columns", joined, f"d{first}", "the heads side by side")]
    if rope:
        forward += rotated(first, own)
        back = [*rotated(f"d{own}", f"d{first}", "-"), *back]
    if shared:
        repeated = f"np.repeat({own}, heads // {heads}, axis=1)"
        grouped = f"d{name}.reshape(N, {heads}, heads // {heads}, {T}, d)"
        forward.append(
            Arrange(name, repeated, own, f"{own}, each head repeated for its group of queries")
        )
        back = [
            Arrange(f"d{name}_groups", grouped, f"d{name}", f"d{name} by group of query heads"),
            Sum(f"d{own}", "ngjtd->ngtd", f"d{name}_groups"),
            *back,
        ]
    return forward, back
