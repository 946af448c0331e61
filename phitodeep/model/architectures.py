"""Common models: functions that return a builder, which you may extend before `build()`.

`from_pretrained` returns a trained model from a file instead.
"""

from __future__ import annotations

from phitodeep import layers as L
from phitodeep.core.types import PathLike
from phitodeep.exchange.hub.pretrained import read_pretrained
from phitodeep.functional.rotary import Rope
from phitodeep.layers.initialization import He, Initializer, Normal, Xavier
from phitodeep.loss import NegativeELBO
from phitodeep.model import Sequential, SequentialBuilder


def mlp(
    *sizes: int, activation: str = "relu", dropout: float = 0.0, initializer: Initializer = He()
) -> SequentialBuilder:
    """Dense layers with activations between them; the first of `sizes` is the input size."""
    builder = SequentialBuilder(sizes[0])
    for i, size in enumerate(sizes[1:], 1):
        builder = builder.dense(size, initializer=initializer)
        if i < len(sizes) - 1:
            builder = getattr(builder, activation)()
            builder = builder.dropout(dropout) if dropout else builder
    return builder


def lenet(*shape: int, classes: int = 10) -> SequentialBuilder:
    """Two convolutions with pooling, then dense layers, for images (height, width, C).

    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", fig. 2,
    with ReLU and max-pooling.
    """
    builder = SequentialBuilder(*shape).conv2d(6, 5, padding=2).relu().max_pool2d(2)
    builder = builder.conv2d(16, 5).relu().max_pool2d(2)
    return builder.flatten().dense(120).relu().dense(84).relu().dense(classes)


def resnet_small(*shape: int, classes: int = 10, blocks: int = 3) -> SequentialBuilder:
    """A residual network for images: three stages of `blocks` blocks, with 16, 32 and 64 channels.

    Source: He et al. 2016, arXiv:1512.03385, sec. 4.2 (the CIFAR-10 networks of 6 n + 2 layers).
    A strided convolution between two stages increases the number of channels.
    """
    builder = SequentialBuilder(*shape).conv2d(16, 3, padding="same", bias=False)
    builder = builder.batch_norm().relu()
    for channels in (16, 32, 64):
        if channels > 16:
            builder = builder.conv2d(channels, 3, stride=2, padding="same", bias=False)
            builder = builder.batch_norm().relu()
        for _ in range(blocks):
            first, second = _convolved(channels), _convolved(channels)
            builder = builder.residual(*first, L.ReLU(), *second).relu()
    return builder.global_avg_pool().dense(classes)


def _convolved(channels: int) -> tuple[L.Conv2D, L.BatchNorm]:
    return L.Conv2D(channels, 3, padding="same", bias=False), L.BatchNorm()


def char_lstm(
    vocab_size: int, *, dim: int = 64, units: int = 128, layers: int = 1
) -> SequentialBuilder:
    """An embedding, LSTMs, and scores for the next token at each step, for tokens (T,)."""
    builder = SequentialBuilder().embedding(vocab_size, dim)
    for _ in range(layers):
        builder = builder.lstm(units)
    return builder.dense(vocab_size)


def gpt(
    vocab_size: int, context: int, *, layers: int = 4, heads: int = 4, dim: int = 128,
    activation: str = "gelu", dropout: float = 0.0, tied: bool = True,
) -> SequentialBuilder:  # fmt: skip
    """A decoder of pre-norm transformer blocks, with scores for the next token at each position.

    `activation` is used in the feed-forward layers; GPT-2 uses "gelu_tanh".
    Source: Radford et al. 2019, "Language models are unsupervised multitask learners", sec. 2.3.
    """
    embedding = L.Embedding(vocab_size, dim, initializer=Normal(0.02))
    builder = SequentialBuilder(context).add(embedding).add(L.PositionalEmbedding(context))
    builder = builder.dropout(dropout) if dropout else builder
    for _ in range(layers):
        builder = builder.transformer_block(
            heads, causal=True, activation=activation, dropout=dropout
        )
    return builder.layer_norm().add(_scores(embedding, tied))


def _scores(embedding: L.Embedding, tied: bool) -> L.Layer:
    """Return the last layer of a language model: scores for the next token."""
    if tied:
        return L.TiedDense(embedding)
    return L.Dense(embedding.vocab_size, initializer=Normal(0.02), bias=False)


def llama(
    vocab_size: int, context: int, *, layers: int = 4, heads: int = 4, kv_heads: int | None = None,
    dim: int = 128, hidden: int | None = None, rope: bool | Rope = True, dropout: float = 0.0,
    tied: bool = True,
) -> SequentialBuilder:  # fmt: skip
    """A decoder as in Llama: rotary positions, RMSNorm, grouped queries, and SwiGLU networks.

    hidden    units of each network; by default 8/3 of `dim`, rounded up to a multiple of 8, which
              gives it as many parameters as GPT's network of 4 `dim` units has

    Sources: Touvron et al. 2023, arXiv:2302.13971, sec. 2.2; kv_heads: arXiv:2307.09288, sec. 2.2.
    """
    hidden = -(-dim // 3) * 8 if hidden is None else hidden
    embedding = L.Embedding(vocab_size, dim, initializer=Normal(0.02))
    builder = SequentialBuilder(context).add(embedding)
    for _ in range(layers):
        attention = L.MultiHeadAttention(
            heads, causal=True, kv_heads=kv_heads, rope=rope, dropout=dropout, bias=False
        )
        builder = builder.add(
            L.Chain(L.Residual(L.RMSNorm(), attention), L.Residual(L.RMSNorm(), L.SwiGLU(hidden)))
        )
    return builder.rms_norm().add(_scores(embedding, tied))


def autoencoder(*sizes: int, activation: str = "relu") -> SequentialBuilder:
    """An encoder of dense layers down to the last size, then a decoder back to the first."""
    encoder = mlp(*sizes, activation=activation).layers
    decoder = mlp(*reversed(sizes), activation=activation).layers
    return SequentialBuilder(sizes[0]).add(L.Chain(*encoder)).add(L.Chain(*decoder))


def vae(*sizes: int, latent: int, activation: str = "relu") -> SequentialBuilder:
    """A variational autoencoder with its loss: dense layers down to `latent` values and back up.

    `vae(784, 400, latent=20)` is trained with `train(X, X)`, where X (N, 784) is between 0 and 1.
    Its output holds 20 means, 20 log variances and 784 logits side by side, as the loss,
    `NegativeELBO(20)`, expects. The last layer is SkipConcat(Reparameterize(), *decoder), so new
    samples come from

        decoder = Chain(*model.layers[-1].layers[1:])
        with inference():
            X = sigmoid(decoder.forward(Z))     # Z (N, 20), standard normal

    Initial weights are Xavier's, which reached a lower loss on MNIST than He's: see
    docs/catalogue.md.
    Source: Kingma and Welling 2014, arXiv:1312.6114, sec. 3.
    """
    decoder = mlp(latent, *reversed(sizes), activation=activation, initializer=Xavier()).layers
    builder = mlp(*sizes, 2 * latent, activation=activation, initializer=Xavier())
    return builder.skip_concat(L.Reparameterize(), *decoder).loss(NegativeELBO(latent))


def from_pretrained(
    folder_or_name: PathLike, *, revision: str | None = None,
    checkpoint: bool = False, seed: int | None = None,
) -> Sequential:  # fmt: skip
    """Return a language model of the GPT-2 or the Llama family, in the format of Hugging Face.

    `from_pretrained("openai-community/gpt2")` downloads this model from the hub, unless there is a
    folder with this path: then it reads the folder, offline. A folder has config.json,
    model.safetensors (or several files and their index) and perhaps tokenizer.json, which becomes
    `model.tokenizer`. Downloads are kept by huggingface_hub and happen only once.

    revision      a branch, tag or commit on the hub; by default the newest
    checkpoint    True: training keeps only the input of each block, and computes the rest again in
                  the backward pass, for less memory and more time
    seed          makes dropout reproducible

    The model takes tokens (N, T) and returns scores (N, T, vocabulary) for the next token; its loss
    is softmax cross-entropy. Its parameters are float32. Those that the files hold in the same form
    are used where they are in the file, and are read when they are needed; training copies them.
    So the files must not be changed while the model exists. See docs/huggingface.md for the memory,
    and for what is not covered.

    A folder that is damaged, or that describes something else, is refused with a DataError or an
    ArgumentError before memory is allocated for the weights. Nothing in it is ever run.
    """
    model: Sequential = read_pretrained(
        folder_or_name, Sequential, revision=revision, checkpoint=checkpoint, seed=seed
    )
    return model
