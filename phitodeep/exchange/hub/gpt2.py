"""The GPT-2 family: learnt positions, LayerNorm before each part, and weights in our layout.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners", sec. 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from phitodeep import layers as L
from phitodeep.core.types import Shape
from phitodeep.exchange.hub.family import Plan, Settings, Source, activation, head, head_source

NOT_PARAMETERS = r"h\.\d+\.attn\.(bias|masked_bias)"  # the causal mask of old checkpoints


def plan(config: Settings) -> Plan:
    """Return the plan of a config whose model_type is gpt2."""
    config.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    config.require(add_cross_attention=False)
    vocab_size, T = config.count("vocab_size", 50257), config.count("n_positions", 1024)
    D, blocks = config.count("n_embd", 768), config.count("n_layer", 12, minimum=0)
    heads, hidden = config.count("n_head", 12), config.count("n_inner", 4 * D)
    eps = config.number("layer_norm_epsilon", 1e-5)
    embedded, inside, after = (config.rate(f"{at}_pdrop", 0.1) for at in ("embd", "attn", "resid"))
    kind = activation(config, "activation_function", "gelu_new", L.FeedForward.ACTIVATIONS)
    tied = config.flag("tie_word_embeddings", True)
    start = 3 if embedded else 2  # the index of the first block

    def dropout(rate: float) -> list[L.Layer]:
        return [L.Dropout(rate)] if rate else []

    def block(checkpoint: bool) -> L.Layer:
        attention = L.MultiHeadAttention(heads, causal=True, dropout=inside)
        return L.Chain(
            L.Residual(L.LayerNorm(eps), attention, *dropout(after)),
            L.Residual(L.LayerNorm(eps), L.FeedForward(hidden, kind), *dropout(after)),
            checkpoint=checkpoint,
        )

    def layers(checkpoint: bool) -> Iterator[L.Layer]:
        embedding = L.Embedding(vocab_size, D)
        yield from (embedding, L.PositionalEmbedding(T), *dropout(embedded))
        yield from (block(checkpoint) for _ in range(blocks))
        yield from (L.LayerNorm(eps), head(embedding, tied))

    def sources() -> dict[str, Source]:
        found = {
            "0.W": Source({"transformer.wte.weight": (vocab_size, D)}),
            "1.W": Source({"transformer.wpe.weight": (T, D)}),
        }
        for i in range(blocks):
            path, name = f"{start + i}.layers", f"transformer.h.{i}"
            inner = f"{path}.1.layers.1.layers"  # of the FeedForward
            found |= _norm(f"{path}.0.layers.0", f"{name}.ln_1", D)
            found |= _product(f"{path}.0.layers.1", "qkv", f"{name}.attn.c_attn", (D, 3 * D))
            found |= _product(f"{path}.0.layers.1", "o", f"{name}.attn.c_proj", (D, D))
            found |= _norm(f"{path}.1.layers.0", f"{name}.ln_2", D)
            found |= _product(f"{inner}.0", "", f"{name}.mlp.c_fc", (D, hidden))
            found |= _product(f"{inner}.2", "", f"{name}.mlp.c_proj", (hidden, D))
        found |= _norm(f"{start + blocks}", "transformer.ln_f", D)
        return found | head_source(start + blocks + 1, D, vocab_size, tied)

    return Plan(blocks, T, "transformer.", NOT_PARAMETERS, sources, layers)


def _norm(path: str, name: str, D: int) -> dict[str, Source]:
    """Return the sources of a LayerNorm's parameters."""
    scale, shift = Source({f"{name}.weight": (D,)}), Source({f"{name}.bias": (D,)})
    return {f"{path}.gamma": scale, f"{path}.beta": shift}


def _product(path: str, which: str, name: str, shape: Shape) -> dict[str, Source]:
    """Return the sources of W and b, whose names end in `which`."""
    W, b = Source({f"{name}.weight": shape}), Source({f"{name}.bias": shape[1:]})
    return {f"{path}.W{which}": W, f"{path}.b{which}": b}
