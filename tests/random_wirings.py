"""Random networks of named values, and the same function written with another library.

`drawn(seed)` returns a network in float64 with random parameters, and inputs for it. It has one to
three inputs and several outputs; values are read twice, merged and ignored by nobody; layers are
shared; dropout draws the same masks in each pass of a step. `evaluated` computes the outputs with
functions of `xp`, such as torch, from the same parameters.
"""

from types import SimpleNamespace

import numpy as np

from phitodeep import layers as L

T, TOKENS = 4, 7
ONE_VALUE = {
    "vector": ("dense", "tanh", "norm", "dropout"),
    "sequence": ("dense", "tanh", "norm", "lstm", "last", "mean"),
    "tokens": ("embedding", "embedding"),
}
MERGES = [L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Concat, L.Dot]


def drawn(seed):
    """Return the network, its inputs in order, and a generator for more."""
    rng = np.random.default_rng(seed)
    takes, kinds, shapes = [], {}, {}
    for k in range(rng.integers(1, 4)):
        kind = rng.choice(["vector", "sequence", "tokens"])
        takes.append(f"in{k}")
        kinds[f"in{k}"] = kind
        shapes[f"in{k}"] = {"vector": (3,), "sequence": (T, 3), "tokens": (T,)}[kind]
    uses, owners = [], []
    for k in range(rng.integers(3, 11)):
        layer, reads, kind = _use(rng, uses, owners, kinds, shapes)
        name = f"v{k}"
        uses.append((layer, reads, [name]))
        outs = layer.build(shapes[reads[0]] if len(reads) == 1 else tuple(shapes[r] for r in reads))
        kinds[name], shapes[name] = kind, outs
    read = {name for _, reads, _ in uses for name in reads}
    for name in [name for name in takes if name not in read]:
        layer = L.Embedding(TOKENS, 2) if kinds[name] == "tokens" else L.Dense(2)
        uses.append((layer, [name], [f"of_{name}"]))
        read.add(name)
    given = [gives[0] for _, _, gives in uses]
    returns = [name for name in given if name not in read]
    returns += [name for name in given if name in read and rng.random() < 0.15]
    net = L.Wired(takes, uses, [str(name) for name in rng.permutation(returns)])
    net.build(_one([shapes[name] for name in takes]), seed=seed, dtype=np.float64)
    net.set_weights({n: rng.standard_normal(a.shape) for n, a in net.get_weights().items()})
    return net, tuple(inputs(rng, kinds[name], shapes[name]) for name in takes)


def inputs(rng, kind, shape, N=3):
    if kind == "tokens":
        return rng.integers(0, TOKENS, (N, *shape))
    return rng.standard_normal((N, *shape))


def _one(values):
    return values[0] if len(values) == 1 else tuple(values)


def _use(rng, uses, owners, kinds, shapes):
    """A layer that fits one of the values so far, or two of them, with what it reads and gives."""
    values = list(kinds)
    for _ in range(20):
        first = values[rng.integers(len(values))]
        kind, D = kinds[first], shapes[first][-1]
        alike = [v for v in values if kinds[v] == kind != "tokens" and shapes[v][-1] in (1, D)]
        if len(alike) > 1 and rng.random() < 0.4:
            merge = MERGES[rng.integers(len(MERGES))]()
            others = [v for v in alike if shapes[v][-1] == D or not isinstance(merge, L.Dot)]
            second = others[rng.integers(len(others))]
            return merge, [first, second], kind
        fits = [(layer, out) for layer, of, size, out in owners if (of, size) == (kind, D)]
        if fits and rng.random() < 0.4:
            layer, out = fits[rng.integers(len(fits))]
            return L.Shared(layer), [first], out
        name = rng.choice(ONE_VALUE[kind])
        units = int(rng.integers(1, 4))
        layer, out = {
            "dense": (L.Dense(units), kind),
            "tanh": (L.Tanh(), kind),
            "norm": (L.Chain(L.LayerNorm(), L.Sigmoid()), kind),
            "dropout": (L.Dropout(0.4), kind),
            "lstm": (L.LSTM(units), kind),
            "last": (L.LSTM(units, return_sequences=False), "vector"),
            "mean": (L.GlobalAvgPool(), "vector"),
            "embedding": (L.Embedding(TOKENS, units), "sequence"),
        }[name]
        owners.append((layer, kind, D, out))
        return layer, [first], out
    raise AssertionError("no layer fits")


def evaluated(net, Xs, params, xp):
    """The outputs of the network by functions of `xp`, with the masks that dropout drew.

    params    the parameters by path, as arrays of `xp`
    """
    paths = {id(layer): path for path, layer in net.walk()}
    values = dict(zip(net.takes, Xs, strict=True))
    for layer, reads, gives in net.uses:
        values[gives[0]] = _value(layer, [values[r] for r in reads], layer, paths, params, xp)
    return [values[name] for name in net.returns]


def _value(layer, A, place, paths, params, xp):
    """What a layer gives; `place` is where it runs, which for a shared one is another layer."""
    if isinstance(layer, L.Shared):
        return _value(layer.layer, A, layer, paths, params, xp)
    X = A[0]
    own = SimpleNamespace(**{name: params[f"{paths[id(layer)]}.{name}"] for name in layer.params})
    match type(layer).__name__:
        case "Dense":
            return X @ own.W + own.b
        case "Tanh":
            return xp.tanh(X)
        case "Sigmoid":
            return 1 / (1 + xp.exp(-X))
        case "LayerNorm":
            centred = X - X.mean(-1, keepdims=True)
            std = xp.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
            return centred / std * own.gamma + own.beta
        case "Chain":
            inside = place.children()
            for key, part in layer.children().items():
                X = _value(part, [X], inside[key], paths, params, xp)
            return X
        case "Dropout":
            mask = place.cache["mask"]
            return X if mask is None else X * xp.asarray(np.array(mask))
        case "Embedding":
            return own.W[X]
        case "GlobalAvgPool":
            return X.mean(1)
        case "LSTM":
            return _lstm(layer, X, own, xp)
        case "Concat":
            return xp.concatenate(A, -1)
        case "Dot":
            return (A[0] * A[1]).sum(-1)[..., None]
        case "Average":
            return (A[0] + A[1]) / 2
        case kind:
            run = {"Add": "add", "Subtract": "subtract", "Multiply": "multiply"}
            return getattr(xp, run.get(kind, "maximum"))(A[0], A[1])


def _lstm(layer, X, own, xp):
    H = layer.units
    h = c = 0 * X[:, 0, :1]
    states = []
    for t in range(X.shape[1]):
        a = X[:, t] @ own.Wx + own.b + (h @ own.Wh if t else 0)
        i, f, g, o = (a[:, k * H : (k + 1) * H] for k in range(4))
        i, f, o = (1 / (1 + xp.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * xp.tanh(g)
        h = o * xp.tanh(c)
        states.append(h)
    return xp.stack(states, 1) if layer.return_sequences else h
