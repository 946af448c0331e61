"""Writing on: one token after another, from a model that gives scores for the next."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.checks import as_tokens, check_count, check_number
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import softmax
from phitodeep.layers.base import calling, inference
from phitodeep.layers.containers import Chain
from phitodeep.layers.embedding import PositionalEmbedding
from phitodeep.types import Array


def generate(
    model: Chain,
    prompt: Any,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    cache: bool = True,
) -> Array:
    """See `Sequential.generate`."""
    ids = as_tokens(prompt, "prompt")
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.size == 0:
        raise ShapeError(f"prompt takes tokens (T,) or (N, T), at least one, got {ids.shape}.")
    new = check_count(max_new_tokens, "max_new_tokens", least=0)
    check_number(temperature, "temperature", least=0)
    if top_k is not None:
        check_count(top_k, "top_k")
    if top_p is not None:
        check_number(top_p, "top_p", above=0, below=1 + 1e-12)
    places = [p.max_len for _, p in model.walk() if isinstance(p, PositionalEmbedding)]
    context = min(places, default=ids.shape[1] + new)
    rng = np.random.default_rng(seed)
    memory: dict[Any, Any] = {}
    unread = ids[:, -context:]  # tokens that the memory has not seen
    with inference():
        for _ in range(new):
            if memory and ids.shape[1] > context:
                memory, unread = {}, ids[:, -context:]  # places moved: the window is read again
            with calling(memory=memory if cache else None):
                scores = model.forward(unread)
            if scores.ndim != 3:
                raise ArgumentError(
                    f"generate needs scores (N, T, vocabulary) from the model, got {scores.shape}."
                )
            chosen = sample(scores[:, -1], temperature, top_k, top_p, rng)
            ids = np.concatenate([ids, chosen[:, None]], axis=1)
            unread = chosen[:, None] if cache else ids[:, -context:]
    return ids


def sample(
    scores: Array,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    rng: np.random.Generator,
) -> Array:
    """(N,) tokens drawn from scores (N, V); temperature 0 takes the greatest.

    top_k    only the k greatest scores count
    top_p    only the most probable tokens count, as few as together have this probability
    Source of top_p: Holtzman et al. 2020, arXiv:1904.09751, sec. 3.1.
    """
    if temperature == 0:
        return scores.argmax(axis=-1)
    scores = scores.astype(np.float64) / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = np.partition(scores, -top_k, axis=-1)[:, -top_k, None]
        scores = np.where(scores < least, -np.inf, scores)
    P = softmax(scores)
    if top_p is not None:
        order = np.argsort(-P, axis=-1)
        ranked = np.take_along_axis(P, order, axis=-1)
        before = np.cumsum(ranked, axis=-1) - ranked
        np.put_along_axis(P, order, np.where(before < top_p, ranked, 0), axis=-1)
        P /= P.sum(axis=-1, keepdims=True)
    edges = np.cumsum(P, axis=-1)
    drawn = rng.random((len(P), 1)) * edges[:, -1:]
    return (edges <= drawn).sum(axis=-1)
