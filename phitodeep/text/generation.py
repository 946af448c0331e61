"""Text generation: tokens sampled one by one from the model's scores for the next token."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import calling, inference
from phitodeep.core.checks import as_real, as_tokens, check_count, check_number
from phitodeep.core.types import Array, each, one
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import softmax
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.layers.wiring import Wired


class Generating(Container, registered=False):
    """A model that generates text: a base class of `Sequential` and `Network`."""

    def generate(
        self, prompt: Any, max_new_tokens: int, *, temperature: float = 1.0,
        top_k: int | None = None, top_p: float | None = None, seed: int | None = None,
        stop: int | Sequence[int] | None = None, cache: bool | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return tokens (N, T + max_new_tokens): the prompt (T,) or (N, T), and its continuation.

        The prompt may also be text if `model.tokenizer` is set: then the result is text.

        temperature    divides the scores: below 1 is more certain, above 1 more random, and 0
                       always picks the token with the highest score
        top_k, top_p   draw only from the k tokens with the highest scores, or from the smallest
                       set of tokens whose total probability reaches p
        seed           makes the draws reproducible
        stop           a token, or several, that end a sample; its row then repeats that token.
                       Generation ends when all samples have ended, so there may be fewer columns
        cache          True: attention and recurrent layers remember what they have read, so that
                       each token is read once. False: the whole window is read for every token.
                       The tokens are the same. The default is True, unless a layer such as a
                       convolution looks at all steps: then only False is correct
        given          of a network with several inputs, all but the text, by name: what depends on
                       them alone, such as the memory of an encoder, is computed once

        The model must return scores (N, T, vocabulary), where only the last step is used, or (N,
        vocabulary). Of a last layer that returns probabilities, such as Softmax, the logarithm is
        the score. If the text is longer than the model's maximum number of steps (`max_steps`, such
        as the size of a PositionalEmbedding), the window moves along the text.
        """
        ids = _tokens(self, prompt)
        drawn = self.stream(
            ids, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
            stop=stop, cache=cache, given=given,
        )  # fmt: skip
        columns = [np.reshape(tokens, (-1, 1)) for tokens in drawn]
        found = np.concatenate([np.atleast_2d(ids), *columns], axis=1)
        return _tokenizer(self).decode(found[0]) if isinstance(prompt, str) else found

    def stream(
        self, prompt: Any, max_new_tokens: int, *, temperature: float = 1.0,
        top_k: int | None = None, top_p: float | None = None, seed: int | None = None,
        stop: int | Sequence[int] | None = None, cache: bool | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Yield the new tokens of `generate`: an int for a prompt (T,) or text, (N,) for (N, T).

            for token in model.stream(tokenizer.encode("To be"), 200):
                print(tokenizer.decode(token), end="", flush=True)

        The options are the same as for `generate`, and the same seed gives the same tokens. The
        prompt is read immediately, and each token is computed when it is asked for. Between two
        tokens the model may be used for anything else. If it is trained, later tokens use the new
        weights, but what was read before is not read again.
        """
        ids = _tokens(self, prompt)
        body, *values = _decoder(self, np.atleast_2d(ids), given)
        if ids.ndim not in (1, 2) or ids.size == 0:
            raise ShapeError(
                f"prompt takes at least one token, (T,) or (N, T), got shape {ids.shape}."
            )
        count = check_count(max_new_tokens, "max_new_tokens", minimum=0)
        check_number(temperature, "temperature", minimum=0)
        if top_k is not None:
            check_count(top_k, "top_k")
        if top_p is not None:
            check_number(top_p, "top_p", above=0, below=1 + 1e-12)
        rng = np.random.default_rng(seed)
        stops = as_tokens(stop, "stop") if stop is not None and np.size(stop) else np.empty(0, int)
        reader = Reader(body, np.atleast_2d(ids), cache, values)
        if not count:
            return iter(())
        first = reader.scores()  # now, so that the layers' errors are raised at the call
        if stops.size and not (stops.min() >= 0 and stops.max() < first.shape[-1]):
            raise ArgumentError(f"stop takes tokens from 0 to {first.shape[-1] - 1}, got {stop!r}.")

        def tokens() -> Iterator[Any]:
            scores, finished = first, np.zeros(len(first), bool)
            chosen = np.zeros(len(first), int)
            for left in reversed(range(count)):
                drawn = sample(scores, temperature, top_k, top_p, rng)
                chosen = np.where(finished, chosen, drawn)
                if stops.size:
                    finished |= np.isin(chosen, stops)
                yield int(chosen[0]) if ids.ndim == 1 else chosen.copy()
                if finished.all() or not left:
                    return
                reader.append(chosen)
                scores = reader.scores()

        return tokens()


generate, stream = Generating.generate, Generating.stream  # as functions of a model


def _tokens(model: Container, prompt: Any) -> Array:
    """Return a prompt as tokens; text is encoded by the model's tokenizer."""
    ids = _tokenizer(model).encode(prompt) if isinstance(prompt, str) else prompt
    return as_tokens(ids, "prompt")


def _tokenizer(model: Container) -> Any:
    """Return the model's tokenizer, for a prompt that is text."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ArgumentError("the prompt is text, but model.tokenizer is not set: pass tokens.")
    return tokenizer


def _decoder(model: Container, ids: Array, given: Any) -> list[Any]:
    """The part of a model that reads the text, and what it reads in addition, computed once.

    Of a network with several inputs, all but the text are given.
    """
    if model.inputs == 1:
        if given:
            raise ArgumentError("given= is for networks with several inputs: leave it out.")
        return [model]
    assert isinstance(model, Wired)
    names = given if isinstance(given, Mapping) else {}
    unknown = [name for name in names if name not in model.takes]
    if unknown or len(names) != model.inputs - 1:
        raise ArgumentError(
            f"this network has the inputs {', '.join(model.takes)}: give all but the text that "
            "grows, by name, as in given={...}."
        )
    encoder, decoder = model.split_at(tuple([name for name in model.takes if name in names]))
    tokens = dict(zip(model.takes, each(model.takes_tokens), strict=True))
    arrays = [
        as_tokens(names[name], name) if tokens[name] else as_real(names[name], name)
        for name in encoder.takes
    ]
    for name, A in zip(encoder.takes, arrays, strict=True):
        if len(A) != len(ids):
            raise ShapeError(f"given[{name!r}] has {len(A)} samples, and the prompt {len(ids)}.")
    with inference(), calling(mask=None):
        return [decoder, *each(encoder.forward(*arrays))]


class Reader:
    """A model that reads a growing text: the state of a stream.

    window    (N, T): the end of the text, as much of it as the model accepts
    unread    the last columns of the window, which are not in the memory yet
    memory    what the layers remember of the other columns; without a cache it is not used, and
              the whole window is unread
    """

    def __init__(
        self, model: Container, ids: Array, cache: bool | None, values: Sequence[Array] = ()
    ) -> None:
        self.model, self.values = model, values
        self.cached = model.time_steps != "joined" if cache is None else bool(cache)
        if self.cached and model.time_steps == "joined":
            path, layer = next(
                (path, layer)
                for path, layer in model.walk()
                if layer.time_steps == "joined"
                and all(child.time_steps != "joined" for child in layer.children().values())
            )
            raise ArgumentError(
                f"cache=True, but layer {path}, {layer!r}, may depend on all steps and keeps "
                "nothing in the memory. Remedy: leave out cache, which reads the whole window for "
                'each token; use causal=True in attention; or declare "steps" in your own layer.'
            )
        self.max_steps = _max_steps(model)
        self.window = self.unread = ids[:, -self.max_steps :]
        self.memory: dict[Layer, Any] = {}
        T, built = self.window.shape[1], _shapes(model)[0]
        if model.time_steps == "joined" and built and (error := _length_error(model, T)):
            raise ShapeError(
                f"the model was built for samples of shape {built} and does not accept a prompt of "
                f"{T} tokens: {error} Remedy: use a longer prompt, such as one that begins with "
                "the start token several times."
            )

    def append(self, tokens: Array) -> None:
        """Append tokens (N,) to the text; the window moves if the text no longer fits in it."""
        text = np.concatenate([self.window, tokens[:, None]], axis=1)
        moved = text.shape[1] > self.max_steps
        self.window = text[:, -self.max_steps :]
        self.unread = self.window if moved or not self.cached else tokens[:, None]
        if moved:
            self.memory = {}  # all positions have changed

    def scores(self) -> Array:
        """Return the scores for the next token, (N, vocabulary): logits or log-probabilities."""
        with inference(), calling(mask=None, memory=self.memory if self.cached else None):
            scores = self.model.forward(self.unread, *self.values)
        if not isinstance(scores, np.ndarray):
            raise ArgumentError("generate needs a model with one output.")
        if scores.ndim not in (2, 3):
            raise ArgumentError(
                "generate needs scores (N, T, vocabulary) or (N, vocabulary) from the model, "
                f"got shape {scores.shape}."
            )
        scores = scores if scores.ndim == 2 else scores[:, -1]
        if self.model.gives == "probabilities":
            with np.errstate(divide="ignore", invalid="ignore"):  # `sample` refuses NaN
                scores = np.log(scores)
        return scores


def _max_steps(model: Container) -> int:
    """Return the maximum number of steps that the model accepts.

    It is the maximum that the layers declare. If the model was built for T steps and accepts no
    longer sequences, as with a Flatten before a Dense, it is T.
    """
    limit = sys.maxsize if model.max_steps is None else model.max_steps
    shape = _shapes(model)[0]
    if model.time_steps == "joined" and shape is not None:
        T = shape[0]
        if T < limit and _length_error(model, min(limit, 2 * T + 1)) is not None:
            return T
    return limit


def _shapes(model: Container) -> list[Any]:
    """The shape of the text, and of each value that the model reads in addition."""
    return [model.input_shape] if model.inputs == 1 else [*(model.input_shape or (None,))]


def _length_error(model: Container, T: int) -> Exception | None:
    """Return the error if the model does not accept sequences of T steps, else None."""
    try:
        model._measured(one([(T,), *_shapes(model)[1:]], model.inputs == 1))
    except ValueError as error:
        return error
    return None


def sample(
    scores: Array, temperature: float, top_k: int | None, top_p: float | None,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Draw tokens (N,) from scores (N, V); at temperature 0, take the one with the highest score.

    top_k    draw only from the k tokens with the highest scores
    top_p    draw only from the smallest set of tokens whose total probability reaches top_p
    Tokens with a score of -inf are never drawn; rows whose maximum is not finite are refused.
    Source of top_p: Holtzman et al. 2020, arXiv:1904.09751, sec. 3.1.
    """
    highest = scores.max(axis=-1, keepdims=True)
    unclear = np.flatnonzero(~np.isfinite(highest))
    if len(unclear):
        i = int(unclear[0])
        raise ArgumentError(
            f"no token can be drawn for sample {i}: its highest score is {highest[i, 0]}. "
            "Are the model's weights finite?"
        )
    if temperature == 0:
        return scores.argmax(axis=-1)
    with np.errstate(over="ignore"):  # far below the highest score, -inf is right
        scores = (scores - highest).astype(np.float64) / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        kth = np.partition(scores, -top_k, axis=-1)[:, -top_k, None]
        scores = np.where(scores < kth, -np.inf, scores)
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
