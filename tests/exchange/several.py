"""Networks with several inputs, outputs and uses of a layer, which all exports must accept."""

import numpy as np

from phitodeep import inference
from phitodeep import layers as L
from phitodeep.core.types import each
from phitodeep.model import SequentialBuilder
from phitodeep.model import architectures as models
from phitodeep.model.network import Network
from tests.random_networks import OWN, Scale, drawn, one, randomize


def gated(builder, channels):
    """Multiply feature maps by a number for each of them, between 0 and 1."""
    builder.name("maps").global_avg_pool().dense(2).relu().dense(channels).sigmoid()
    return builder.reshape(1, 1, channels).multiply("maps")


def two_heads():
    """Images and tokens to two outputs, one of which another layer reads."""
    builder = SequentialBuilder(image=(5, 4, 1), words=(6,), seed=1)
    builder.at("image").conv2d(4, 3).relu().flatten().dense(5).name("seen")
    builder.at("words").embedding(20, 8).lstm(3, return_sequences=False)
    builder.concat("seen").dense(4).relu().name("both")
    builder.dense(3).output("digit", loss="softmax_cross_entropy")
    return builder.concat("both").dense(2).output("box", loss="huber", weight=0.5)


def unet():
    """One input, which comes to stand next to what was made of it; gates, and a deeper level."""
    builder = SequentialBuilder(4, 6, 2, seed=2).conv2d(4, 3, padding="same").then(gated, 4)
    builder.batch_norm().relu().name("fine").max_pool2d(2).conv2d(3, 3, padding="same").dropout(0.5)
    return builder.conv_transpose2d(3, 2, stride=2).concat("fine").conv2d(2, 1).loss("mse")


def twins():
    """A tower of layers at two places, which merge by the features."""
    layers = (L.ELU(), L.Conv2D(3, 3), L.BatchNorm(), L.Flatten(), L.Dense(4))
    tower = L.Chain(*layers, L.Residual(L.Dense(4)))
    builder = SequentialBuilder(a=(5, 4, 2), b=(5, 4, 2), seed=3).at("a").add(tower).name("left")
    return builder.at("b").shared(tower).dot("left").loss("mse")


def ends():
    """Outputs that no layer follows: dropout's input, and one that is computed early."""
    builder = SequentialBuilder(a=(4,), b=(4,), seed=4).at("a").dense(4).output("early")
    return builder.dropout(0.5).maximum("b", "a").average("b").output("late")


def states():
    """Recurrent layers that hand on their states, to layers at two places; nobody reads u."""
    cell = L.GRU(2, return_sequences=False, return_state=True, initial_state=True)
    uses = [
        (L.LSTM(2, return_state=True), ["a"], ["u", "h", "c"]),
        (L.Dense(3), ["h"], ["h3"]),
        (L.Dense(3), ["c"], ["c3"]),
        (L.LSTM(3, initial_state=True), ["b", "h3", "c3"], ["v"]),
        (cell, ["b", "h"], ["w", "g"]),
        (L.Shared(cell), ["b", "g"], ["x", "k"]),
        (L.Chain(L.Dense(3), L.GradientReversal(0.5)), ["x"], ["z"]),
    ]
    return wired(["a", "b"], uses, ["v", "w", "k", "z"], (4, 3), (5, 3))


def attending():
    """Attention to another sequence, with shared keys, products of steps; an input is an output."""
    cross, product = L.CrossAttention(2, head_dim=3), L.Bilinear(4)
    uses = [
        (cross, ["a", "b"], ["u"]),
        (L.Shared(cross), ["u", "b"], ["v"]),
        (L.CrossAttention(4, kv_heads=2, bias=False), ["v", "v"], ["w"]),
        (product, ["u", "w"], ["p"]),
        (L.TimeDistributed(L.Shared(product)), ["v", "p"], ["q"]),
        (L.TimeDistributed(L.Bilinear(1, bias=False)), ["q", "p"], ["s"]),
    ]
    return wired(["a", "b"], uses, ["q", "s", "b"], (4, 4), (5, 3))


def wired(takes, uses, returns, *shapes):
    model = Network(takes, uses, returns, loss_class=dict.fromkeys(returns, "mse"))
    model.build(one(shapes))
    return model


NETWORKS = (two_heads, unet, twins, ends, states, attending)
MODELS = {  # ready-made ones, with the shape of X, and the number of tokens
    "mlp": (lambda: models.mlp(5, 8, 8, 3, dropout=0.2).softmax(), (4, 5), 0),
    "lenet": (lambda: models.lenet(12, 12, 1).batch_norm(), (3, 12, 12, 1), 0),
    "resnet": (lambda: models.resnet_small(8, 8, 3, blocks=3), (2, 8, 8, 3), 0),
    "lstm": (lambda: models.char_lstm(11, dim=4, units=5, layers=2), (3, 6), 11),
    "gpt": (lambda: models.gpt(13, 8, layers=3, heads=2, dim=8, dropout=0.1), (3, 8), 13),
    "untied": (lambda: models.gpt(13, 8, layers=1, heads=2, dim=8, tied=False), (3, 8), 13),
    "vae": (lambda: models.vae(6, 5, latent=2), (3, 6), 0),
}


def built(make, dtype="float64"):
    """The network with random weights and state, and an array for each input by name."""
    model, rng = make(), np.random.default_rng(0)
    model = model if isinstance(model, Network) else model.dtype(dtype).build()
    model.cast(dtype)
    randomize(model, rng, 0.5)
    shapes = zip(model.takes, model._ins(), np.ravel(model.takes_tokens), strict=True)
    return model, {
        name: rng.integers(0, 20, (7, *shape)) if tokens else rng.standard_normal((7, *shape))
        for name, shape, tokens in shapes
    }


def exportable(seed, samples, without=(), states=True, **options):
    """A random network of layers that other formats can hold; they must be told about Scale."""
    own = [kind for kind in OWN if kind is not Scale]
    net = drawn(seed, samples=samples, without=(*own, *without), **options)
    if states or not any(getattr(part, "return_state", False) for _, part in net.layer.walk()):
        return net
    return exportable(seed + 1000, samples, without, states, **options)


def predicted(model, X):
    found = model.predict(X if model.inputs > 1 else X[model.takes[0]])
    return found if model.outputs > 1 else {model.returns[0]: found}


def results(model, X):
    """The outputs in order, whatever their names."""
    with inference():
        return dict(enumerate(each(model.forward(*X.values()))))
