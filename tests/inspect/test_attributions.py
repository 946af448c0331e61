"""Attributions agree with differences of the score, and leave the model alone."""

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.core.call import inference, watching
from phitodeep.layers.images import resize
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model import architectures as models
from phitodeep.model.network import Network
from phitodeep.testing import numeric_gradient
from tests.conftest import assert_weights, check_refused, model_for
from tests.inspect.shared import rows
from tests.random_networks import randomize

METHODS = ("gradient", "gradient_x_input", "integrated")


def mlp(dtype="float32"):
    """A model whose prediction mode differs from its training mode, with its own statistics."""
    builder = SequentialBuilder(5, seed=1).dtype(dtype).dense(8).batch_norm().tanh().dropout(0.5)
    model = builder.dense(3).build()
    rng = np.random.default_rng(0)
    X, y = 2 * rng.standard_normal((20, 5)) + 1, rng.standard_normal((20, 3))
    model.train(X, y, epochs=3, verbose=0)
    return model


def cnn(dtype="float32"):
    builder = SequentialBuilder(7, 6, 2, seed=1).dtype(dtype)
    return builder.conv2d(4, 3).tanh().avg_pool2d(2).flatten().dense(3).build()


def lstm(dtype="float32"):
    builder = SequentialBuilder(4, 3, seed=1).dtype(dtype)
    return builder.lstm(5, return_sequences=False).dense(3).build()


def sequence(dtype="float32"):
    builder = SequentialBuilder(4, 6, seed=1).dtype(dtype).dense(6)
    model = builder.transformer_block(2, causal=True).dense(3).build()
    return randomize(model, np.random.default_rng(2), 0.5)


def gpt(dtype="float64", **options):
    builder = models.gpt(11, 6, layers=1, heads=2, dim=8, dropout=0.3, **options)
    return randomize(builder.seed(1).dtype(dtype).build(), np.random.default_rng(2), 0.5)


each = pytest.mark.parametrize("make", [mlp, cnn, lstm, sequence])


def samples(model, n=4):
    shape = model.input_shape or model.known_input() or ()
    X = np.random.default_rng(3).standard_normal((n, *shape))
    return X.astype(model.dtype)


def scores(P, target, step=-1):
    """The outputs of the targets; of a sequence, those of one step."""
    P = P if P.ndim == 2 else P[:, step]
    return P[np.arange(len(P)), target]


def slopes(f, X):
    """The slope of each sample's f (N,) in all its inputs, by differences."""
    found = np.empty_like(X)
    for place in np.ndindex(X.shape[1:]):
        step = np.zeros(X.shape[1:])
        step[place] = 1e-5
        found[(slice(None), *place)] = (f(X + step) - f(X - step)) / 2e-5
    return found


def highest(model, X):
    P = model.predict(X)
    return (P if P.ndim == 2 else P[:, -1]).argmax(-1)


@each
@pytest.mark.parametrize("target", [None, 1, [2, 0, 1, 1]])
def test_the_gradient_is_the_slope_of_the_score(make, target):
    model = make(dtype="float64")
    X = samples(model)
    chosen = highest(model, X) if target is None else target
    assert target is not None or len(set(chosen)) > 1
    expected = slopes(lambda X: scores(model.predict(X), chosen), X)
    found = model.attributions(X, target=target)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    times = model.attributions(X, "gradient_x_input", target=target)
    np.testing.assert_array_equal(times, found * X)


def test_another_step_is_explained_and_linear_models_exactly():
    model = sequence(dtype="float64")
    X = samples(model)
    for step in (0, 2, -2):
        expected = slopes(lambda X, step=step: scores(model.predict(X), 2, step), X)
        found = model.attributions(X, target=2, step=step)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
        assert (found[:, (step + 1) % 4 :] == 0).all()  # the attention is causal
    model = Sequential(L.Dense(4, 3), seed=0, dtype="float64")
    X, W = samples(model), model.layers[0].W[:, 1]
    np.testing.assert_array_equal(model.attributions(X, target=1), np.tile(W, (4, 1)))
    np.testing.assert_array_equal(model.attributions(X, "gradient_x_input", target=1), X * W)
    for steps in (1, 2, 7):
        found = model.attributions(X, "integrated", target=1, baseline=0.5, steps=steps)
        np.testing.assert_allclose(found, (X - 0.5) * W, rtol=1e-13)
    model = SequentialBuilder(4, 3, seed=1).dtype("float64").softmax(axis=1).build()
    X = samples(model)
    expected = slopes(lambda X: scores(model.predict(X), 2), X)
    np.testing.assert_allclose(model.attributions(X, target=2), expected, atol=1e-9)
    by_number = SequentialBuilder(4, 3, seed=1).dtype("float64").softmax(axis=2).build()
    assert set(by_number.attributions(X, target=2)[:, -1, 2]) == {1.0}

    class Squared(Sequential):
        def forward(self, X, **options):
            return super().forward(X, **options) ** 2

        def backward(self, dY):
            return super().backward(2 * np.sqrt(self.seen) * dY)

    model = Squared(L.Dense(3, 2), L.Softmax(), seed=0, dtype="float64")
    X = samples(model)
    Squared.seen = model.predict(X)
    expected = slopes(lambda X: scores(model.predict(X), 1), X)
    np.testing.assert_allclose(model.attributions(X, target=1), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("last", ["softmax", "log_softmax", "sigmoid"])
@pytest.mark.parametrize("method", METHODS)
def test_the_score_is_the_logit(last, method):
    plain = SequentialBuilder(5, seed=1).dense(8).tanh().dense(3).build()
    model = getattr(SequentialBuilder(5, seed=1).dense(8).tanh().dense(3), last)().build()
    inside = L.Chain(*(k.copy() for k in model.layers[1:]))
    nested = Sequential(plain.layers[0].copy(), inside, seed=1)
    for each in (plain.layers[2], model.layers[2], nested.layers[1].layers[1]):
        each.W *= 1000  # probabilities are 0 and 1, and have no slope
    X = samples(plain)
    expected = plain.attributions(X, method)
    assert (expected != 0).any()
    np.testing.assert_array_equal(model.attributions(X, method), expected)
    np.testing.assert_array_equal(nested.attributions(X, method), expected)


@each
@pytest.mark.parametrize("baseline", [None, "sample", "all"])
def test_integrated_gradients_add_up_to_the_difference(make, baseline):
    model = make(dtype="float64")
    X = samples(model)
    b = {"sample": X[2] + 1, "all": X[::-1] - 1}.get(baseline, baseline)
    start = np.broadcast_to(0.0 if b is None else b, X.shape)
    k = highest(model, X)
    expected = scores(model.predict(X), k) - scores(model.predict(start), k)
    found = model.attributions(X, "integrated", baseline=b)
    assert found.shape == X.shape
    np.testing.assert_allclose(found.reshape(4, -1).sum(1), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_more_steps_make_up_for_kinks(dtype):
    builder = SequentialBuilder(6, seed=0).dtype(dtype).dense(64).relu().dense(64).relu()
    model = builder.dense(3).build()
    X, b = samples(model, 50), np.linspace(-1, 1, 6)
    k = highest(model, X)
    expected = scores(model.predict(X), k) - scores(model.predict(0 * X + b), k)
    errors = [
        np.abs(model.attributions(X, "integrated", baseline=b, steps=n).sum(1) - expected).max()
        for n in (5, 50, 500)
    ]
    assert errors[1] < 0.1 * np.abs(expected).mean()
    assert errors[2] < 0.01 * np.abs(expected).mean()
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


TOKENS = np.array([[3, 1, 4, 0, 5, 9], [2, 6, 10, 7, 8, 3]])  # no token twice in a sample


def test_tokens_are_explained_by_their_vectors_inside_a_checkpoint_and_if_distributed():
    model = gpt(tied=False)
    found = model.attributions(TOKENS, target=2)
    assert found.shape == (2, 6, 8)
    W, row = model.layers[0].params["W"], TOKENS[1]

    def score(given):
        W[row] = given
        return float(model.predict(row[None])[0, -1, 2])

    slope = numeric_gradient(score, W[row])
    np.testing.assert_allclose(found[1], slope, rtol=1e-6, atol=1e-8)
    word = L.Chain(L.Embedding(9, 4), L.Flatten(), L.Dense(12, 5), L.Tanh())
    model = SequentialBuilder(2, 3, seed=0).dtype("float64").time_distributed(word)
    built = model.lstm(4, return_sequences=False).dense(3).build()
    X = np.arange(12).reshape(2, 2, 3) % 9
    P0 = scores(built.predict(X), 1)
    W = built.layers[0].layer.layers[0].W
    found = built.attributions(X, "integrated", target=1)
    W[...] = 0
    assert found.shape == X.shape
    expected = P0 - scores(built.predict(X), 1)
    np.testing.assert_allclose(found.sum((1, 2)), expected, rtol=1e-9, atol=1e-10)
    for method in METHODS:
        layers = [L.Embedding(7, 4), L.Dense(4, 6), L.Tanh(), L.Dense(6, 3)]
        plain = model_for((5,), *layers, seed=0, dtype="float64")
        inside = L.Chain(*(k.copy() for k in plain.layers), checkpoint=True)
        model = model_for((5,), inside, dtype="float64")
        X = np.arange(10).reshape(2, 5) % 7
        expected = plain.attributions(X, method, target=1)
        assert expected.any()
        np.testing.assert_array_equal(model.attributions(X, method, target=1), expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("baseline", [None, "vector", "all"])
def test_each_token_gets_one_number(tied, baseline):
    model = gpt(tied=tied)
    vectors = model.layers[0].params["W"][TOKENS]
    b = {"vector": vectors[0, 0], "all": vectors[::-1]}.get(baseline, 0)

    def after(vectors):
        with inference():
            for layer in model.copy().layers[1:]:
                vectors = layer.forward(vectors)
        return scores(vectors, 4)

    gradient = model.attributions(TOKENS, target=4)
    times = model.attributions(TOKENS, "gradient_x_input", target=4)
    np.testing.assert_allclose(times, (gradient * vectors).sum(-1), rtol=1e-12)
    options = {"target": 4, "steps": 300} | ({} if baseline is None else {"baseline": b})
    found = model.attributions(TOKENS, "integrated", **options)
    assert found.shape == TOKENS.shape
    expected = after(vectors) - after(np.broadcast_to(b, vectors.shape).copy())
    np.testing.assert_allclose(found.sum(1), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("make", "step"), [(lstm, -1), (sequence, -2), (sequence, 1), (gpt, -2)])
def test_padding_is_as_if_it_were_not_there(make, method, step):
    model = make(dtype="float64")
    X = TOKENS if make is gpt else samples(model, 3)
    lengths = np.array([3, X.shape[1], 2])[: len(X)]
    found = model.attributions(X, method, target=1, step=step, lengths=lengths)
    for n, x, a in zip(lengths, X, found, strict=True):
        alone = model.attributions(x[None, :n], method, target=1, step=step)[0]
        np.testing.assert_allclose(a[:n], alone, rtol=1e-9, atol=1e-12)
        assert not a[n:].any()


def by_hand(model, X, k, end):
    """Grad-CAM of the output of layer `end` - 1: slopes by differences, pixels one by one."""

    def run(layers, A):
        with inference():
            for layer in layers:
                A = layer.forward(A)
        return A

    A = run(model.layers[:end], X)
    dA = slopes(lambda A: run(model.layers[end:], A)[:, k], A)
    maps = np.zeros((len(X), *X.shape[1:3]))
    for n in range(len(X)):
        small = sum(dA[n, ..., c].mean() * A[n, ..., c] for c in range(A.shape[-1]))
        maps[n] = bilinear(np.maximum(small, 0), X.shape[1:3])
    return maps


def bilinear(image, shape):
    found = np.zeros(shape)
    for place in np.ndindex(*shape):
        corners = []
        for i, old, new in zip(place, image.shape, shape, strict=True):
            at = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
            low = int(at)
            corners.append([(low, 1 - at + low), (min(low + 1, old - 1), at - low)])
        found[place] = sum(u * v * image[i, j] for i, u in corners[0] for j, v in corners[1])
    return found


@pytest.mark.parametrize(("layer", "end"), [(None, 3), ("2", 3), ("1", 2), ("0", 1)])
def test_grad_cam_by_hand(layer, end):
    model = cnn(dtype="float64")
    X = samples(model, 6)
    found = model.attributions(X, "grad_cam", target=1, layer=layer)
    assert found.shape == (6, 7, 6)
    assert (found > 0).any()
    assert (found == 0).any()
    np.testing.assert_allclose(found, by_hand(model, X, 1, end), rtol=1e-6, atol=1e-8)


def test_grad_cam_takes_the_whole_block():
    layers = [L.Conv2D(3, 3, padding="same"), L.Residual(L.Conv2D(3, 3, padding="same"), L.ReLU())]
    tail = L.Conv2D(4, (7, 6)), L.Flatten(), L.Dense(4, 2)  # its one pixel says nothing
    model = model_for((7, 6, 2), *layers, *tail, seed=0, dtype="float64")
    X = samples(model)
    found = model.attributions(X, "grad_cam", target=0)
    np.testing.assert_array_equal(found, model.attributions(X, "grad_cam", target=0, layer="1"))
    inner = model.attributions(X, "grad_cam", target=0, layer="1.layers.0")
    assert not np.allclose(found, inner)
    np.testing.assert_allclose(found, by_hand(model, X, 0, 2), rtol=1e-6, atol=1e-8)


def test_maps_have_the_size_of_the_image_and_are_resized_to_any(rng):
    for shape, reshaped in [((42,), True), ((7, 6), True), ((7, 6, 1), False)]:
        builder = SequentialBuilder(*shape, seed=0)
        builder = builder.reshape(7, 6, 1) if reshaped else builder
        model = builder.conv2d(4, 3).relu().max_pool2d(2).flatten().dense(3).build()
        assert model.attributions(samples(model), "grad_cam").shape == (4, 7, 6)
    for factor in [2, 3, (4, 1)]:
        X = rng.standard_normal((2, 5, 4, 3))
        Y = L.Upsample2D(factor, "bilinear").forward(X)
        np.testing.assert_array_equal(resize(X, *Y.shape[1:3]), Y)
    for old in (1, 2, 3, 7, 16, 29):
        for new in (*range(1, 12), 31, 59):
            Y = resize(np.ones((1, old, 1, 1)), new, 1)
            np.testing.assert_allclose(Y, np.ones((1, new, 1, 1)), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_is_the_models(dtype):
    model, tokens = cnn(dtype=dtype), gpt(dtype)
    for given, method in zip(("f4", "f8", "i8", "i8"), (*METHODS, "grad_cam"), strict=True):
        found = model.attributions((3 * samples(model)).astype(given), method)
        assert found.dtype == dtype, method
        assert np.isfinite(found).all()
    for method in METHODS:
        assert tokens.attributions(TOKENS, method).dtype == dtype


@pytest.mark.parametrize("method", [*METHODS, "grad_cam"])
def test_a_pending_backward_pass_is_not_disturbed(method):
    def step(between):
        builder = SequentialBuilder(7, 6, 2, seed=1).conv2d(4, 3).batch_norm().relu().dropout(0.5)
        model = builder.flatten().dense(3).softmax().build()
        X, outputs = samples(model), []
        for _ in range(2):  # dropout draws a new mask in each pass
            Y = model.forward(X)
            before = model.get_weights()
            between(model, X)
            assert_weights(model, before)
            dX = model.backward(np.cos(Y))
            assert dX is not None
            grads = [g for _, layer in model.walk() for g in dict(layer.grads).values()]
            outputs += [Y, dX, *(g.copy() for g in grads), *model.get_weights().values()]
        return outputs

    expected = step(lambda model, X: None)
    found = step(lambda model, X: model.attributions(X[:3] + 1, method))
    assert len(found) == len(expected) > 10
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_given_is_not_written_and_an_active_watcher_is_applied(monkeypatch):
    model = mlp()
    X = samples(model)
    baseline = X + 1
    for array in (X, baseline):
        array.setflags(write=False)
    for method in METHODS:
        options = {"baseline": baseline} if method == "integrated" else {}
        found = model.attributions(X, method, **options)
        assert found.flags.writeable
        assert not np.shares_memory(found, X)
    model = cnn(dtype="float64")
    X, seen = samples(model), set()

    def halve(event):
        seen.add(event[:3])
        double = event[:3] in {("forward", "after", "1"), ("backward", "after", "")}
        return 2 * event.array if double and event.array is not None else None

    expected = 4 * model.attributions(X, target=0)
    cam = 2 * model.attributions(X, "grad_cam", target=0, layer="1")
    with watching(halve):
        found = model.attributions(X, target=0)
        doubled = model.attributions(X, "grad_cam", target=0, layer="1")
    assert {("forward", "before", ""), ("backward", "before", "4")} <= seen
    np.testing.assert_allclose(2 * found, expected, rtol=1e-12)
    np.testing.assert_allclose(doubled, cam, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [mlp, gpt])
def test_batches_are_bounded_and_change_nothing(make, method, monkeypatch):
    model = make(dtype="float64")
    X = np.tile(TOKENS, (4, 1))[:7] if make is gpt else samples(model, 7)
    options = {"target": [0, 1, 2, 0, 1, 2, 0]}
    if make is gpt:
        options["lengths"] = [4, 1, 3, 2, 4, 2, 3]
    if method == "integrated":
        options |= {"steps": 20, "baseline": 0.1 if make is gpt else samples(model, 8)[:0:-1]}
    expected = model.attributions(X, method, **options)
    sizes = []
    monkeypatch.setattr(model, "samples_at_once", lambda: 3)
    with watching(
        lambda event: sizes.append(len(event.array)) if event.array is not None else None
    ):
        found = model.attributions(X, method, **options)
    assert max(sizes) == 3
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("what", ["forward", "backward"])
def test_a_watcher_in_training_may_ask_for_attributions(what):
    model = sequence("float64")
    X = samples(model)
    expected = model.attributions(X, target=1)
    found = []

    def explain(event):
        if event.what == what and event.path == "0" and not found:
            found.append(model.attributions(X, target=1))

    with watching(explain):  # this pass needs no dX, and has a mask
        model.train(X, np.zeros((4, 4, 3)), lengths=[4, 2, 1, 3], epochs=1, verbose=0)
    np.testing.assert_array_equal(found[0], expected)


class Cut(L.Layer):
    def forward(self, X):
        return X.copy()

    def backward(self, dY):
        return None


def unreached():
    return model_for((3,), Cut(), L.Dense(3, 2))


def table():
    tokens = L.Chain(L.Select([2], tokens=True), L.Embedding(7, 3), L.Flatten())
    return SequentialBuilder(3, seed=0).parallel(L.Select([0, 1]), tokens).dense(2).build()


def two_embeddings():
    return model_for((4,), L.Parallel(L.Embedding(7, 3), L.Embedding(7, 2)), L.Dense(5, 2))


def images():
    return SequentialBuilder(4, 4, 1).relu().build()


def several_images():
    builder = SequentialBuilder(2, 4, 4, 1).time_distributed(L.Conv2D(2, 3)).flatten()
    return builder.dense(2).build()


def ask(make, *args, **options):
    model = make()
    X = np.zeros((2, 4), int) if model.takes_tokens else samples(model)
    return model.attributions(X, *args, **options)


def siamese():
    """A network of two images, a text and a flag on which only one of its two outputs depends."""
    tower = L.Conv2D(3, 3)
    uses = [
        (tower, ["one"], ["left"]), (L.Shared(tower), ["two"], ["right"]),
        (L.Subtract(), ["left", "right"], ["apart"]), (L.Flatten(), ["apart"], ["flat"]),
        (L.Embedding(7, 4), ["words"], ["vectors"]), (L.RNN(4), ["vectors"], ["read"]),
        (L.Flatten(), ["read"], ["text"]), (L.Concat(), ["flat", "text"], ["both"]),
        (L.Dense(3), ["both"], ["seen"]), (L.Softmax(), ["seen"], ["kind"]),
        (L.Concat(), ["seen", "flag"], ["all"]), (L.Dense(2), ["all"], ["box"]),
    ]  # fmt: skip
    model = Network(["one", "two", "words", "flag"], uses, ["kind", "box"], dtype="float64", seed=0)
    model.build({"one": (5, 4, 1), "two": (5, 4, 1), "words": (3,), "flag": (2,)})
    return model


@pytest.mark.parametrize(("output", "target"), [("kind", 2), ("box", 0)])
def test_several_inputs_are_explained_together(output, target):
    model, rng = siamese(), np.random.default_rng(3)
    X = dict(zip(model.takes, (rng.standard_normal((4, *s)) for s in model._ins()), strict=True))
    X["words"] = rng.integers(0, 7, (4, 3))
    options = {"output": output, "target": target}

    def score(**new):  # of the class, before the softmax
        P = model.run_with_cache({**X, **new})[1]["seen" if output == "kind" else "box"]
        return P[:, target]

    slope, words = model.attributions(X, **options), model.layers[4]
    assert slope["words"].shape == (4, 3, 4)
    for name in ("one", "two", "flag"):
        expected = slopes(lambda A, name=name: score(**{name: A}), X[name])
        np.testing.assert_allclose(slope[name], expected, rtol=1e-6, atol=1e-9)
    times = model.attributions(X, "gradient_x_input", **options)
    vectors = words.W[X["words"]]
    np.testing.assert_allclose(times["words"], (vectors * slope["words"]).sum(-1), rtol=1e-12)
    bases = {"one": 0.5, "flag": X["flag"][1], "words": vectors[0, 0]}
    found = model.attributions(X, "integrated", baseline=bases, **options)
    before, start = score(), {"one": 0 * X["one"] + 0.5, "two": 0 * X["two"]}
    words.W[...] = vectors[0, 0]
    after = score(**start, flag=0 * X["flag"] + X["flag"][1])
    total = sum(found[name].reshape(4, -1).sum(1) for name in X)
    np.testing.assert_allclose(total, before - after, rtol=1e-8, atol=1e-10)
    assert model.attributions(X, "grad_cam", **options).shape == (4, 5, 4)


WRONG = r"""
ask(mlp, 'gradcam') -> ArgumentError: method must be "gradient", .*"grad_cam", got
ask(mlp, steps=3) -> ArgumentError: steps= is an option of method="integrated"
ask(mlp, 'grad_cam', baseline=0) -> ArgumentError: baseline= is .*leave
ask(cnn, layer='1') -> ArgumentError: layer= is an option of method="grad
ask(mlp, index=3) -> ArgumentTypeError: takes no index=: write target=
Sequential(L.Conv2D(2, 3)).attributions(np.ones((1, 4, 4, 1))) -> NotBuiltError: call build
ask(mlp, target=3) -> ArgumentError: from 0 to 2, .* 3 outputs, got 3
ask(mlp, target=[0, 1, -1, 2]) -> ArgumentError: from 0 to 2, .*got -1
ask(mlp, target=1.0) -> ArgumentTypeError: an integer or 4 integers.*float64
ask(mlp, target=[1, 2]) -> ArgumentTypeError: 4 integers.*shape \(2,\)
ask(sequence, step=4) -> ArgumentError: step must be <= 3, got 4
ask(sequence, step=0.5) -> ArgumentTypeError: step must be an integer
ask(mlp, step=1) -> ArgumentError: step=1 needs outputs .*returns \(N, 3\)
ask(sequence, step=2, lengths=[4, 3, 2, 4]) -> ArgumentError: sample 2 has no step 2: it has 2 steps
ask(sequence, step=-3, lengths=[4, 3, 2, 4]) -> ArgumentError: sample 2 has no step -3: it has 2
ask(sequence, lengths=[4, 0, 2, 4]) -> ArgumentError: sample 1 has no step -1: it has 0
ask(images) -> ShapeError: \(N, K\) or \(N, T, K\), .* \(4, 4, 1\): end it with Flatten
ask(mlp, 'integrated', steps=0) -> ArgumentError: steps must be >= 1, got 0
ask(mlp, 'integrated', steps=1001) -> ArgumentError: steps must be <= 1000, got 1001
ask(mlp, 'integrated', baseline=np.ones(4)) -> ShapeError: \(5,\), .* X, \(4, 5\), got .*\(4,\)
ask(gpt, 'integrated', baseline=np.ones(4)) -> ShapeError: .* the vectors of the tokens, \(2, 4, 8\)
ask(mlp, 'integrated', baseline=np.full(5, np.nan)) -> ArgumentError: baseline\[0\] is nan
ask(mlp, 'grad_cam') -> ArgumentError: needs a layer that .*Conv2D
ask(cnn, 'grad_cam', layer='conv1') -> ArgumentError: C\), which are 0, 1, 2, got 'conv1'
ask(cnn, 'grad_cam', layer='4') -> ArgumentError: must be .*images.*got '4'
ask(cnn, 'grad_cam', layer=1) -> ArgumentError: must be .*images.*got 1
ask(several_images, 'grad_cam') -> ShapeError: '0.layer' returns 8 images for 4 samples
ask(table) -> ArgumentError: tokens have no gradient, .* 0.branches.1.layers.1 turn
ask(two_embeddings) -> ArgumentError: 0.branches.0, 0.branches.1 turn
mlp().attributions(np.ones((2, 4))) -> ShapeError: takes 5 features
siamese().attributions({}, output='kind') -> ArgumentError: 'one', 'two', 'words', 'flag'
siamese().attributions({}) -> ArgumentError: output must be "kind" or "box", got None
mlp().attributions(np.ones((2, 5)), output='Z') -> ArgumentError: output must be "Y", got 'Z'
unreached().attributions(np.ones((2, 3))) -> BackwardError: does not reach its input
Sequential(L.Dense(3, 2)).attention_maps(np.ones((1, 3))) -> ArgumentError: needs a MultiHead
"""


@rows(WRONG)
def test_errors_say_what_to_do(call, error):
    check_refused(call, error, globals())


def test_attention_maps_and_the_integral_along_a_path_by_hand():
    model = models.gpt(11, 5, layers=2, heads=2, dim=8).seed(3).dtype("float64").build()
    X = np.random.default_rng(0).integers(0, 11, (3, 5))
    maps = model.attention_maps(X)
    attention = {p: part for p, part in model.walk() if isinstance(part, L.MultiHeadAttention)}
    assert maps.keys() == attention.keys()
    assert len(maps) == 2
    _, cache = model.run_with_cache(X)
    for path, P in maps.items():
        part = attention[path]
        Q, K, _ = np.split(cache[f"{path}.X"] @ part.Wqkv + part.bqkv, 3, axis=-1)
        Q, K = (A.reshape(3, 5, 2, 4).swapaxes(1, 2) for A in (Q, K))
        S = np.where(np.tri(5, dtype=bool), Q @ K.swapaxes(-1, -2) / 2, -np.inf)
        E = np.exp(S - S.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(P, E / E.sum(axis=-1, keepdims=True), atol=1e-12)
    short = model.attention_maps(X, lengths=[5, 2, 4])
    assert all(not P[1, :, :, 2:].any() for P in short.values())
    model = mlp(dtype="float64")
    X, n = samples(model), 400
    middles = (np.arange(n) + 0.5) / n
    slopes = sum(model.attributions(a * X, target=1) for a in middles) / n
    found = model.attributions(X, "integrated", target=1)
    np.testing.assert_allclose(found, slopes * X, atol=1e-5)
