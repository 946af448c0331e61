"""The Llama family: rotary positions, RMSNorm, grouped queries and a gated network.

Sources: Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Llama Team 2024,
arXiv:2407.21783. Mistral's models are the same where they have no sliding window: Jiang et al.
2023, arXiv:2310.06825.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phitodeep import layers as L
from phitodeep.core.types import Shape
from phitodeep.errors import DataError
from phitodeep.exchange.hub.family import Plan, Settings, Source, activation, head, head_source
from phitodeep.exchange.hub.rope import read_rope

NOT_PARAMETERS = r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # follows from the config


def plan(config: Settings) -> Plan:
    """Return the plan of a config whose model_type is llama."""
    return _plan(config, hidden=11008, kv_heads=None, steps=2048)


def mistral(config: Settings) -> Plan:
    """Return the plan of a config whose model_type is mistral."""
    if "sliding_window" not in config.values:
        raise DataError(
            f"{config.where} lacks 'sliding_window', which then is 4096: not supported; only null "
            "is."
        )
    config.require(sliding_window=None)
    return _plan(config, hidden=14336, kv_heads=8, steps=131072)


def _plan(config: Settings, *, hidden: int, kv_heads: int | None, steps: int) -> Plan:
    """Return a plan, given what the defaults of the two model types differ in."""
    vocab_size, D = config.count("vocab_size", 32000), config.count("hidden_size", 4096)
    blocks = config.count("num_hidden_layers", 32, minimum=0)
    steps = config.count("max_position_embeddings", steps)
    heads = config.count("num_attention_heads", 32)
    d = config.count("head_dim", max(D // heads, 1))
    if config.values.get("num_key_value_heads", kv_heads) is not None:
        kv_heads = config.count("num_key_value_heads", kv_heads)
    k = kv_heads or heads
    hidden, eps = config.count("intermediate_size", hidden), config.number("rms_norm_eps", 1e-6)
    bias, network_bias = (config.flag(f"{of}_bias", False) for of in ("attention", "mlp"))
    dropout, tied = config.rate("attention_dropout", 0.0), config.flag("tie_word_embeddings", False)
    kind = activation(config, "hidden_act", "silu", ("silu", "gelu", "gelu_tanh"))
    rope = read_rope(config, d, steps)

    def network() -> L.Layer:
        if kind == "silu":
            return L.SwiGLU(hidden, bias=network_bias)
        approximate = "tanh" if kind == "gelu_tanh" else "none"
        return L.GEGLU(hidden, approximate=approximate, bias=network_bias)

    def block(checkpoint: bool) -> L.Layer:
        attention = L.MultiHeadAttention(
            heads, causal=True, kv_heads=k, rope=rope, dropout=dropout, bias=bias, head_dim=d
        )
        return L.Chain(
            L.Residual(L.RMSNorm(eps), attention),
            L.Residual(L.RMSNorm(eps), network()),
            checkpoint=checkpoint,
        )

    def layers(checkpoint: bool) -> Iterator[L.Layer]:
        embedding = L.Embedding(vocab_size, D)
        yield embedding
        yield from (block(checkpoint) for _ in range(blocks))
        yield from (L.RMSNorm(eps), head(embedding, tied))

    def sources() -> dict[str, Source]:
        found = {"0.W": Source({"model.embed_tokens.weight": (vocab_size, D)})}
        for i in range(blocks):
            path, name = f"{1 + i}.layers", f"model.layers.{i}"
            inner = f"{path}.1.layers.1.layers"  # of the network
            out = {"q_proj": heads * d, "k_proj": k * d, "v_proj": k * d}
            attention = {f"{name}.self_attn.{part}": (n, D) for part, n in out.items()}
            last = {f"{name}.self_attn.o_proj": (D, heads * d)}
            found[f"{path}.0.layers.0.gamma"] = Source({f"{name}.input_layernorm.weight": (D,)})
            found |= _product(f"{path}.0.layers.1", "qkv", attention, bias)
            found |= _product(f"{path}.0.layers.1", "o", last, bias)
            norm = Source({f"{name}.post_attention_layernorm.weight": (D,)})
            found[f"{path}.1.layers.0.gamma"] = norm
            for place, part, shape in (
                ("0.branches.0.layers.0", "gate_proj", (hidden, D)),
                ("0.branches.1", "up_proj", (hidden, D)),
                ("1", "down_proj", (D, hidden)),
            ):
                product = {f"{name}.mlp.{part}": shape}
                found |= _product(f"{inner}.{place}", "", product, network_bias)
        found[f"{1 + blocks}.gamma"] = Source({"model.norm.weight": (D,)})
        return found | head_source(2 + blocks, D, vocab_size, tied)

    return Plan(blocks, steps, "model.", NOT_PARAMETERS, sources, layers)


def _product(path: str, which: str, parts: Mapping[str, Shape], bias: bool) -> dict[str, Source]:
    """Return the sources of W and b, whose names end in `which`, for the parts side by side."""
    W = Source({f"{name}.weight": shape for name, shape in parts.items()}, True)
    b = Source({f"{name}.bias": shape[:1] for name, shape in parts.items()})
    return {f"{path}.W{which}": W} | ({f"{path}.b{which}": b} if bias else {})
