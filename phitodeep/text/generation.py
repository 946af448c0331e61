"""Writing on: one token after another, from a model that gives scores for the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phitodeep.checks import as_tokens, check_count, check_number
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import softmax
from phitodeep.layers.base import Layer
from phitodeep.layers.call import calling, inference
from phitodeep.layers.containers import Chain
from phitodeep.types import Array


def generate(model: Chain, prompt: Any, max_new_tokens: int, **options: Any) -> Array:
    """See `Sequential.generate`."""
    chosen = list(stream(model, prompt, max_new_tokens, **options))
    columns = [np.reshape(tokens, (-1, 1)) for tokens in chosen]
    return np.concatenate([np.atleast_2d(as_tokens(prompt, "prompt")), *columns], axis=1)


def stream(
    model: Chain,
    prompt: Any,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: int | Sequence[int] | None = None,
    cache: bool | None = None,
) -> Iterator[Any]:
    """See `Sequential.stream`."""
    ids = as_tokens(prompt, "prompt")
    if ids.ndim not in (1, 2) or ids.size == 0:
        raise ShapeError(f"prompt takes tokens (T,) or (N, T), at least one, got {ids.shape}.")
    new = check_count(max_new_tokens, "max_new_tokens", least=0)
    check_number(temperature, "temperature", least=0)
    if top_k is not None:
        check_count(top_k, "top_k")
    if top_p is not None:
        check_number(top_p, "top_p", above=0, below=1 + 1e-12)
    rng = np.random.default_rng(seed)
    stops = as_tokens(stop, "stop") if stop is not None and np.size(stop) else np.empty(0, int)
    reader = Reader(model, np.atleast_2d(ids), cache)
    if not new:
        return iter(())
    first = reader.scores()  # at the call, so that what the layers refuse is refused there
    if stops.size and not (stops.min() >= 0 and stops.max() < first.shape[-1]):
        raise ArgumentError(f"stop takes tokens from 0 to {first.shape[-1] - 1}, got {stop!r}.")

    def tokens() -> Iterator[Any]:
        scores, finished = first, np.zeros(len(first), bool)
        chosen = np.zeros(len(first), int)
        for left in reversed(range(new)):
            drawn = sample(scores, temperature, top_k, top_p, rng)
            chosen = np.where(finished, chosen, drawn)
            if stops.size:
                finished |= np.isin(chosen, stops)
            yield int(chosen[0]) if ids.ndim == 1 else chosen.copy()
            if finished.all() or not left:
                return
            reader.take(chosen)
            scores = reader.scores()

    return tokens()


class Reader:
    """A model that reads a text as it grows: the state of a stream.

    ids       (N, T): the window on the text, as much of it as the model takes
    unread    the last columns of ids, which the memory has not seen
    memory    what the layers keep of the others; without it, the whole window is always unread
    """

    def __init__(self, model: Chain, ids: Array, cache: bool | None) -> None:
        self.model = model
        self.cached = model.steps != "joined" if cache is None else bool(cache)
        if self.cached and model.steps == "joined":
            path, layer = _first_joined(model)
            raise ArgumentError(
                f"cache=True, but layer {path}, {layer!r}, may look along all steps and keeps "
                "nothing in the memory. Remedy: leave out cache, and the whole window is read for "
                'each token; attention takes causal=True; a layer of your own declares "steps".'
            )
        self.most = _most_steps(model)
        self.ids = self.unread = ids[:, -self.most :]
        self.memory: dict[Layer, Any] = {}
        if model.steps == "joined":
            _check_prompt(model, self.ids.shape[1])

    def take(self, tokens: Array) -> None:
        """Append tokens (N,) to the text; where it outgrows the window, that moves on."""
        text = np.concatenate([self.ids, tokens[:, None]], axis=1)
        moved = text.shape[1] > self.most
        self.ids = text[:, -self.most :]
        self.unread = self.ids if moved or not self.cached else tokens[:, None]
        if moved:
            self.memory = {}  # all places have changed

    def scores(self) -> Array:
        """The scores of the next token, (N, vocabulary)."""
        with inference(), calling(mask=None, memory=self.memory if self.cached else None):
            scores = self.model.forward(self.unread)
        if scores.ndim not in (2, 3):
            raise ArgumentError(
                "generate needs scores (N, T, vocabulary) or (N, vocabulary) from the model, "
                f"got {scores.shape}."
            )
        return scores if scores.ndim == 2 else scores[:, -1]


def _first_joined(layer: Layer, path: str = "") -> tuple[str, Layer]:
    """The first layer that looks along all steps, and its path, such as `3.layers.0`."""
    for key, child in layer.children().items():
        if child.steps == "joined":
            return _first_joined(child, f"{path}.{key}" if path else key.removeprefix("layers."))
    return path, layer


def _most_steps(model: Chain) -> int:
    """The most steps that the model takes: what layers declare, or the T that it was built for
    where it takes no longer ones, as a Flatten before a Dense does not."""
    most = sys.maxsize if model.max_steps is None else model.max_steps
    if model.steps == "joined" and model.input_shape is not None:
        T = model.input_shape[0]
        if T < most and _misfit(model, min(most, 2 * T + 1)) is not None:
            return T
    return most


def _misfit(model: Chain, T: int) -> Exception | None:
    """Why the model does not take sequences of T steps, or None where it does."""
    try:
        model._measured((T,))
    except ValueError as error:
        return error
    return None


def _check_prompt(model: Chain, T: int) -> None:
    """Refuse a prompt of a length that the layers do not take."""
    misfit = None if model.input_shape is None else _misfit(model, T)
    if misfit is not None:
        raise ShapeError(
            f"the model was built for samples of shape {model.input_shape} and does not take a "
            f"prompt of {T} tokens: {misfit} Remedy: a longer prompt, such as one that begins with "
            "several of the token that begins a text."
        )


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
    Scores of -inf are never drawn; rows without a finite greatest score are refused.
    Source of top_p: Holtzman et al. 2020, arXiv:1904.09751, sec. 3.1.
    """
    greatest = scores.max(axis=-1, keepdims=True)
    unclear = np.flatnonzero(~np.isfinite(greatest))
    if len(unclear):
        i = int(unclear[0])
        raise ArgumentError(
            f"no token can be drawn for sample {i}: its greatest score is {greatest[i, 0]}. "
            "Are the model's weights finite?"
        )
    if temperature == 0:
        return scores.argmax(axis=-1)
    with np.errstate(over="ignore"):  # far below the greatest score: -inf is right
        scores = (scores - greatest).astype(np.float64) / temperature
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
