"""Models that people build, as small functions that return a builder: add to it, then `build()`."""

from __future__ import annotations

from phitodeep.initialization import He, Initializer, Normal, Xavier
from phitodeep.layers import (
    BatchNorm,
    Chain,
    Conv2D,
    Embedding,
    PositionalEmbedding,
    ReLU,
    Reparameterize,
    TiedDense,
)
from phitodeep.loss import NegativeELBO
from phitodeep.model import SequentialBuilder


def mlp(
    *sizes: int, activation: str = "relu", dropout: float = 0.0, initializer: Initializer = He()
) -> SequentialBuilder:
    """Dense layers of these sizes, the first being the input's, with an activation between."""
    builder = SequentialBuilder(sizes[0])
    for i, size in enumerate(sizes[1:], 1):
        builder = builder.dense(size, initializer=initializer)
        if i < len(sizes) - 1:
            builder = getattr(builder, activation)()
            builder = builder.dropout(dropout) if dropout else builder
    return builder


def lenet(*shape: int, classes: int = 10) -> SequentialBuilder:
    """Two convolutions with pools, then dense layers, for images (height, width, C).

    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", fig. 2,
    with ReLU and max-pooling.
    """
    return (
        SequentialBuilder(*shape)
        .conv2d(6, 5, padding=2)
        .relu()
        .max_pool2d(2)
        .conv2d(16, 5)
        .relu()
        .max_pool2d(2)
        .flatten()
        .dense(120)
        .relu()
        .dense(84)
        .relu()
        .dense(classes)
    )


def resnet_small(*shape: int, classes: int = 10, blocks: int = 3) -> SequentialBuilder:
    """A residual network with 16, 32 and 64 channels, `blocks` of each, for images.

    Source: He et al. 2016, arXiv:1512.03385, sec. 4.2 (the CIFAR-10 networks of 6 n + 2 layers);
    where channels grow, a strided convolution stands between the blocks.
    """
    builder = SequentialBuilder(*shape).conv2d(16, 3, padding="same", bias=False)
    builder = builder.batch_norm().relu()
    for channels in (16, 32, 64):
        if channels > 16:
            builder = builder.conv2d(channels, 3, stride=2, padding="same", bias=False)
            builder = builder.batch_norm().relu()
        for _ in range(blocks):
            builder = builder.residual(*_convolved(channels), ReLU(), *_convolved(channels)).relu()
    return builder.global_avg_pool().dense(classes)


def _convolved(channels: int) -> tuple[Conv2D, BatchNorm]:
    return Conv2D(channels, 3, padding="same", bias=False), BatchNorm()


def char_lstm(
    vocab_size: int, *, dim: int = 64, units: int = 128, layers: int = 1
) -> SequentialBuilder:
    """Embedding, LSTMs, and scores of the next token at each step, for tokens (T,)."""
    builder = SequentialBuilder().embedding(vocab_size, dim)
    for _ in range(layers):
        builder = builder.lstm(units)
    return builder.dense(vocab_size)


def gpt(
    vocab_size: int,
    context: int,
    *,
    layers: int = 4,
    heads: int = 4,
    dim: int = 128,
    activation: str = "gelu",
    dropout: float = 0.0,
    tied: bool = True,
) -> SequentialBuilder:
    """A decoder of pre-norm transformer blocks: scores of the next token at each place.

    `activation` is that of the feed-forward nets; GPT-2's own is "gelu_tanh".
    Source: Radford et al. 2019, "Language models are unsupervised multitask learners", sec. 2.3.
    """
    embedding = Embedding(vocab_size, dim, initializer=Normal(0.02))
    builder = SequentialBuilder(context).add(embedding).add(PositionalEmbedding(context))
    builder = builder.dropout(dropout) if dropout else builder
    for _ in range(layers):
        builder = builder.transformer_block(
            heads, causal=True, activation=activation, dropout=dropout
        )
    builder = builder.layer_norm()
    if tied:
        return builder.add(TiedDense(embedding))
    return builder.dense(vocab_size, initializer=Normal(0.02), bias=False)


def autoencoder(*sizes: int, activation: str = "relu") -> SequentialBuilder:
    """Dense layers down to the last size and up again: an encoder chain, then a decoder chain."""
    down = [layer for builder in [mlp(*sizes, activation=activation)] for layer in builder.layers]
    up = mlp(*reversed(sizes), activation=activation).layers
    return SequentialBuilder(sizes[0]).add(Chain(*down)).add(Chain(*up))


def vae(*sizes: int, latent: int, activation: str = "relu") -> SequentialBuilder:
    """A variational autoencoder with its loss: dense layers down to `latent` numbers, and up again.

    `vae(784, 400, latent=20)` learns with `train(X, X)`, X being (N, 784) from 0 to 1. Its output
    holds 20 means, 20 log variances and 784 logits side by side, which is all that the loss,
    `NegativeELBO(20)`, needs. The last layer is SkipConcat(Reparameterize(), *decoder), so

        decoder = Chain(*model.layers[-1].layers[1:])
        with inference():
            X = sigmoid(decoder.forward(Z))     # Z (N, 20), standard normal: new samples

    Weights begin as Xavier's, which on MNIST ended lower than He's: see docs/catalogue.md.
    Source: Kingma and Welling 2014, arXiv:1312.6114, sec. 3.
    """
    decoder = mlp(latent, *reversed(sizes), activation=activation, initializer=Xavier()).layers
    builder = mlp(*sizes, 2 * latent, activation=activation, initializer=Xavier())
    return builder.skip_concat(Reparameterize(), *decoder).loss(NegativeELBO(latent))
