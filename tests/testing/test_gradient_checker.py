"""The gradient checker: what is right passes, and each known bug is refused and recognised."""

import copy

import numpy as np
import pytest

from phitodeep import functional as F
from phitodeep import layers as nn
from phitodeep import loss as losses
from phitodeep.core.call import calling
from phitodeep.errors import ArgumentTypeError, PhitodeepError
from phitodeep.layers import Layer, Param
from phitodeep.layers.activation import Elementwise
from phitodeep.model import Sequential
from phitodeep.testing import GradientError, check_gradients, numeric_gradient
from tests.conftest import check_refused, refusals
from tests.random_networks import Gate

N, D = 5, 3  # differ from each other and from 2, so that no factor has two explanations


@pytest.fixture
def X(rng):
    return rng.standard_normal((N, D))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 3)])
def test_numeric_gradient_is_the_derivative(shape, rng):
    X = np.array(rng.standard_normal(shape))
    kept = X.copy()
    G = numeric_gradient(lambda A: np.sum(np.exp(A) + A**3), X)
    assert G.shape == X.shape
    np.testing.assert_allclose(G, np.exp(X) + 3 * X**2, rtol=1e-10)
    np.testing.assert_array_equal(X, kept)


def test_numeric_gradient_of_powers():
    for power, X, options in [(4, [1.0, -2.0], {"step": 0.5}), (2, [1e8, 3e8], {})]:
        A = np.array(X)
        found = numeric_gradient(lambda A, p=power: (A**p).sum(), A, **options)
        np.testing.assert_allclose(found, power * A ** (power - 1), rtol=1e-11)


def test_numeric_gradient_restores_X_when_f_fails():
    X = np.ones(2)

    def fails(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        numeric_gradient(fails, X)
    np.testing.assert_array_equal(X, 1)


@pytest.mark.parametrize("X", [np.ones(2, np.float32), [1.0, 2.0], np.arange(3)])
def test_numeric_gradient_wants_float64(X):
    with pytest.raises(ArgumentTypeError, match="float64"):
        numeric_gradient(lambda A: A.sum(), X)


# --- what is right -------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_right_layers_pass_whatever_the_scale_of_X(scale, X):
    for layer in (nn.BatchNorm(), nn.LayerNorm(), nn.Softmax(), nn.GELU()):
        check_gradients(layer, scale * X)
    check_gradients(nn.BatchNorm(), X + 1000)  # the mean is far larger than the deviation


@pytest.mark.parametrize("weighted", [True, False])
def test_losses_are_checked_alone_and_behind_a_model(weighted, X, rng):
    w, loss = rng.uniform(0.5, 2, N) if weighted else None, losses.SoftmaxCrossEntropy(0.1)
    y, model = rng.integers(0, D, N), nn.Chain(nn.Dense(4), nn.Tanh(), nn.Dense(D))
    report = check_gradients(loss, X, y, sample_weight=w)
    assert [entry.name for entry in report.entries] == ["dX"]
    report = check_gradients(model, X, y, loss=loss, sample_weight=w)
    assert [entry.name for entry in report.entries] == ["dX", "0.W", "0.b", "2.W", "2.b"]


def test_a_model_brings_its_loss_and_frozen_parameters_may_be_left_out(X, rng):
    model = Sequential(nn.Dense(D, 4), nn.Tanh(), nn.Dense(4, 2))
    y = rng.standard_normal((N, 2))
    report = check_gradients(model, X, y)
    with_loss = check_gradients(nn.Chain(*model.layers), X, y, loss=losses.MeanSquaredError())
    assert [e.name for e in report.entries] == [e.name for e in with_loss.entries]
    assert len(check_gradients(model, X).entries) == 5  # against a random dY
    model.loss = WrongMeanSquaredError()
    with pytest.raises(GradientError, match="On its own, the loss is wrong too: WrongMeanSquared"):
        check_gradients(model, X, y)
    layer = Silent(4)
    with pytest.raises(GradientError, match="W is missing"):
        check_gradients(layer, X)
    layer.trainable = False
    assert [entry.name for entry in check_gradients(layer, X).entries] == ["dX"]
    model = nn.Chain(nn.BatchNorm(), nn.Dense(4))
    model.trainable = False  # a frozen BatchNorm uses its running statistics
    assert check_gradients(model, X).worst < 1e-7
    frozen = WithoutGamma()
    frozen.trainable = False
    with pytest.raises(GradientError, match="right once multiplied by gamma"):
        check_gradients(frozen, X)


def test_gradients_for_integers():
    for make, X, names in (
        (lambda: nn.Embedding(4, D), [[0, 2, 2], [1, 0, 3]], ["W"]),  # tokens have no gradient
        (lambda: nn.Dense(2, 3), [[0, 1], [2, 3], [4, 5]], ["dX", "W", "b"]),  # others are cast
    ):
        assert [entry.name for entry in check_gradients(make(), np.array(X)).entries] == names


def test_all_happens_on_a_copy(X):
    model = nn.Chain(nn.Dense(D, 4), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(4, 2))
    model.build((D,), seed=1)
    before = model.forward(X)
    model.backward(np.ones_like(before))
    frames = [copy.deepcopy(layer._frame) for _, layer in model.walk()]
    weights, kept = model.get_weights(), X.copy()
    check_gradients(model, X)
    np.testing.assert_array_equal(X, kept)
    for name, a in model.get_weights().items():
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, weights[name])
    for (_, layer), frame in zip(model.walk(), frames, strict=True):
        assert layer._frame.passes == frame.passes
        np.testing.assert_equal(layer.cache, frame.cache)
        np.testing.assert_equal(layer.grads, frame.grads)
    unbuilt = nn.Dense(4)
    check_gradients(unbuilt, X)
    assert unbuilt.output_shape is None
    assert not unbuilt.params

    class Counts(losses.MeanSquaredError):
        calls = 0

        def value(self, *args):
            self.calls += 1
            return super().value(*args)

    loss = Counts()
    check_gradients(loss, X, X + 1)
    check_gradients(nn.ReLU(), X, X + 1, loss=loss)
    assert loss.calls == 0


def test_order_in_memory_rounding_states_and_tiny_numbers_do_not_matter(X):
    layer = nn.Dense(4)
    layer.build((D,))
    layer.params["W"] = np.asfortranarray(layer.W)
    check_gradients(layer, np.asfortranarray(X))
    check_gradients(losses.MeanSquaredError(), np.asfortranarray(X), X + 1)
    layer = nn.Dense(4)
    layer.build((D,))
    layer.b = [1e8, 2e8, -1e8, 3e8]  # Y keeps few of the digits that X moves
    check_gradients(layer, X)

    class Cancels(nn.ReLU):
        def value(self, X):
            return 0 * X

        def slope(self, X, Y):
            return np.full_like(X, 0.1 + 0.2 - 0.3)

    check_gradients(Cancels(), X)
    assert check_gradients(Drifting(), X).worst < 1e-7
    # Where p is far less than any step, one more step is relative to p itself.
    P = np.array([[1e-9, 1 - 1e-9], [0.3, 0.7]])
    assert check_gradients(losses.CategoricalCrossEntropy(), P, [0, 1])["dX"].skipped == 0


def test_the_report_its_seed_and_probes_of_large_arrays(X, rng):
    report = check_gradients(nn.Chain(nn.Dense(4), nn.Residual(nn.Dense(4))), X)
    assert [entry.name for entry in report.entries] == ["dX", "0.W", "0.b", "1.layers.0.W",
                                                        "1.layers.0.b"]  # fmt: skip
    entry = report["1.layers.0.W"]
    assert (entry.shape, entry.probed, entry.skipped) == ((4, 4), 16, 0)
    assert 0 < entry.relative < 1e-7
    assert entry.absolute > 0
    assert report.worst == max(e.relative for e in report.entries)
    lines = str(report).splitlines()
    assert lines[0].startswith("Chain(Dense(3, 4), Residual(Dense(4, 4)))")
    assert lines[1].split() == ["shape", "probed", "skipped", "relative", "absolute"]
    assert lines[5].split()[:5] == ["1.layers.0.W", "(4,", "4)", "16", "0"]
    with pytest.raises(KeyError):
        report["W"]
    model = nn.Chain(nn.Dense(4), nn.Dropout(0.5), nn.Dense(2))
    assert check_gradients(model, X, seed=3) == check_gradients(model, X, seed=3)
    assert check_gradients(model, X, seed=3) != check_gradients(model, X, seed=4)
    X = rng.standard_normal((2, 40))
    assert check_gradients(nn.Dense(50), X, max_probes=10)["W"].probed == 11  # 10 and a direction
    assert check_gradients(nn.Dense(50), X, max_probes=None)["W"].probed == 2000
    with pytest.raises(GradientError, match=r"W along a random direction.* max_probes=None finds"):
        check_gradients(OneEntry(50), X, max_probes=10)
    with pytest.raises(GradientError, match=r"W\[7, 11\]: expected .* 1 of 2000 probed"):
        check_gradients(OneEntry(50), X, max_probes=None)


def test_kinks_are_skipped_and_counted_and_too_many_are_an_error(X):
    X[1, 1] = 0
    entry = check_gradients(nn.ReLU(), X)["dX"]
    assert (entry.probed, entry.skipped) == (15, 1)
    y = np.where(X > 0, 1, -1)
    X[:2] = y[:2]  # where the hinge bends
    assert check_gradients(losses.Hinge(), X, y)["dX"].skipped == 6
    assert check_gradients(losses.MeanAbsoluteError(), X, X)["dX"].skipped == 0
    X[0] = 1e-4, -1e-4, 1e-5
    assert check_gradients(nn.ReLU(), X)["dX"].skipped == 0

    class Bent(Elementwise):
        def value(self, X):
            return np.where(X > 0, X - 5 * X * X, 0)

        def slope(self, X, Y):
            return np.where(X >= 0, 1 - 10 * X, 0)

    X[1, 1] = 0
    assert check_gradients(Bent(), X)["dX"].skipped == 1
    X[:3] = 0
    with pytest.raises(GradientError, match=r"dX: 9 of 15 probes are at kinks.* move X off"):
        check_gradients(nn.ReLU(), X)


def test_at_a_kink_the_gradient_is_between_the_slopes_to_both_sides(X):
    class Jump(Elementwise):
        def value(self, X):
            return np.maximum(X, 0)

        def slope(self, X, Y):
            return np.where(X == 0, self.at_0, X > 0)

    layer = Jump()
    X[1, 1] = 0
    for layer.at_0 in (0, 0.5, 1):
        check_gradients(layer, X)
    for layer.at_0 in (-0.2, 1.2):
        with pytest.raises(GradientError, match=r"dX\[1, 1\]: .* 1 of 15"):
            check_gradients(layer, X)


# --- what is wrong: layers -----------------------------------------------------------------


def wrong(layer, change):
    """The layer class, whose backward then does `change(layer, dY, dX)`, which gives its dX."""

    class Wrong(layer):
        def backward(self, dY):
            return change(self, dY, super().backward(dY))

    return Wrong


def grad(name, change):
    """Change the gradient of one parameter."""

    def changed(layer, dY, dX):
        layer.grads[name] = change(layer.grads[name])
        return dX

    return changed


def without(name):
    def changed(layer, dY, dX):
        del layer.grads[name]
        return dX

    return changed


def short(layer, dY, dX):
    dX[-1] *= 0.9
    return dX


def with_another(layer, dY, dX):
    layer.grads["extra"] = np.zeros(3)
    return dX


def accumulated(layer, dY, dX):
    layer.sum = layer.grads["b"] = layer.grads["b"] + getattr(layer, "sum", 0)
    return dX


def decayed(layer, dY, dX):
    layer.W *= 0.9
    return dX


def unsummed(layer, dY, dX):
    layer.grads["b"] = dY
    return dX


def layer_norm(*kept):
    """LayerNorm's dX = r (g - mean(g) - x_hat mean(g x_hat)), g = gamma dy, less some terms."""

    def changed(layer, dY, _):
        X_hat, r = layer.saved("X_hat", "r")
        g = dY * (layer.gamma if "gamma" in kept else 1)
        dX = g - X_hat * np.mean(g * X_hat, axis=-1, keepdims=True)
        return r * (dX - g.mean(axis=-1, keepdims=True) * ("mean" in kept))

    return changed


def batch_norm(*kept):
    """BatchNorm's dX = gamma r (dy - mean(dy) - x_hat mean(dy x_hat)) less some terms."""

    def changed(layer, dY, _):
        X_hat, r = layer.saved("X_hat", "r")
        g = dY.copy()
        if "mean" in kept:
            g -= dY.mean(axis=0)
        if "variance" in kept:
            g -= X_hat * np.mean(dY * X_hat, axis=0)
        return r * g * (layer.gamma if "gamma" in kept else 1)

    return changed


WithoutGamma = wrong(nn.BatchNorm, lambda layer, dY, dX: dX / layer.gamma)


class Silent(nn.Dense):
    def backward(self, dY):
        dX = super().backward(dY)
        self.grads = {}
        return dX


class OneEntry(nn.Dense):
    def backward(self, dY):
        dX = super().backward(dY)
        self.grads["W"][7, 11] += 1
        return dX


class Drifting(nn.BatchNorm):
    """Its output depends on a state that each forward pass moves."""

    def forward(self, X):
        self.state["running_mean"] += 1
        self.save_for_backward(X=X)
        return X * self.state["running_mean"] * self.gamma + self.beta

    def backward(self, dY):
        running = self.state["running_mean"]
        self.grads = {"gamma": (dY * running * self.saved("X")).sum(axis=0), "beta": dY.sum(axis=0)}
        return dY * running * self.gamma


class WrongGELU(nn.GELU):
    """The derivative of the tanh form with x^3 for x^2."""

    def backward(self, dY):
        X, Phi = self.saved("X", "Phi")
        density = 1.6 * Phi * (1 - Phi) * (1 + 0.134 * X**3)
        return dY * (Phi + X * density)


def as_sigmoid(layer, dY, dX):
    P = layer.saved("Y")
    return dY * P * (1 - P)


WRONG = refusals(r"""
wrong(nn.Dense, grad("W", lambda dW: dW / N))(4)
    W\[\d, \d\]: expected \S+, got \S+; 12 of 12 probed entries are wrong. It is exactly 5 \(the
    batch size\) times too small: is the batch divided out twice
wrong(nn.Dense, grad("b", lambda db: db / N))(4)
    b\[\d\]: .* exactly 5 \(the batch size\) times too small.* a mean instead of a sum
wrong(nn.Dense, lambda layer, dY, dX: dX * N)(4)
    dX.* exactly 5 \(the batch size\) times too large: was a mean's division left out
wrong(nn.Dense, grad("W", lambda dW: 0.3 * dW))(4)
    W.* It is 0.3 times what it should be: is a constant factor wrong
wrong(nn.Dense, grad("b", np.negative))(4) -> b.* Its sign is wrong
wrong(nn.Dense, grad("b", np.zeros_like))(4) -> b.* It is 0 everywhere: was it never written
wrong(nn.Dense, grad("W", np.transpose))(D) -> W.* It is the right gradient transposed
wrong(nn.Dense, grad("W", np.transpose))(4)
    W has shape \(4, 3\), but should have \(3, 4\). Is it transposed
wrong(nn.Dense, unsummed)(4)
    b has shape \(5, 4\), but should have \(4,\). Was it not summed over the rows
wrong(nn.Dense, grad("b", lambda db: db[None]))(4) -> b has shape \(1, 4\), but should have \(4,\).
wrong(nn.Dense, lambda layer, dY, dX: dY @ layer.W)(D)
    dX.* All parameters are right: is a path from X to Y missing in dX
wrong(nn.Softmax, lambda layer, dY, dX: dY)()
    dX.* It is dY unchanged: was the Jacobian not applied
wrong(nn.Softmax, as_sigmoid)() -> dX.* should add up to 0 in every row, and they do not
wrong(nn.Tanh, lambda layer, dY, dX: 1 - layer.saved("Y") ** 2)()
    dX.* If dY doubles, backward does not
wrong(nn.Dense, grad("b", lambda db: np.full_like(db, db.sum())))(4)
    b.* Every entry is the sum of all the right ones
wrong(nn.Tanh, lambda layer, dY, dX: dX * (np.arange(len(dX)) < 2)[:, None])()
    dX.* Every wrong entry is 0: was that part never written
wrong(nn.Softmax, lambda layer, dY, dX: dY * layer.saved("Y"))()
    dX.* 15 of 15 probed entries are wrong
wrong(nn.Dropout, lambda layer, dY, dX: dY)(0.4)
    dX.* It is right except where it should be 0: was the mask not applied
wrong(nn.Dropout, lambda layer, dY, dX: dY / (1 - layer.rate))(0.4)
    dX.* It is right except where it should be 0: was the mask not applied
wrong(nn.ReLU, lambda layer, dY, dX: dY)() -> dX.* was the mask not applied
WithoutGamma() -> dX.* It is right once multiplied by gamma: was that factor left out
wrong(nn.BatchNorm, batch_norm("gamma", "variance"))()
    dX.* Its error is the same in every row: was a mean not subtracted
wrong(nn.BatchNorm, batch_norm("gamma", "mean"))() -> dX.* is a path from X to Y missing in dX
wrong(nn.BatchNorm, lambda layer, dY, dX: np.zeros_like(dY))() -> dX.* It is 0 everywhere
wrong(nn.LayerNorm, layer_norm("gamma"))()
    dX.* Its error is the same in every feature of the last axis
wrong(nn.LayerNorm, layer_norm("mean"))() -> dX.* is a path from X to Y missing in dX
WrongGELU("tanh") -> dX.* 1[45] of 15 probed entries are wrong
wrong(nn.Tanh, short)()
    dX.* Only entries with index 4 on axis 0 are wrong: is an edge treated differently
wrong(nn.ReLU, lambda layer, dY, dX: None)() -> dX is missing
wrong(nn.Dense, without("b"))(4) -> b is missing
wrong(nn.Dense, with_another)(4) -> extra is given, but nothing
wrong(nn.Dense, grad("b", lambda db: np.where(np.arange(4) == 2, np.nan, db)))(4)
    b contains nan or infinity, first at \[2\]
wrong(nn.Dense, grad("b", np.float32))(4) -> b is float32, but everything else is float64
wrong(nn.ReLU, lambda layer, dY, dX: np.multiply(dY, layer.cache["Y"] > 0, out=dY))()
    backward modifies dY
wrong(nn.Dense, decayed)(4) -> backward modifies W
wrong(nn.Dense, accumulated)(4) -> backward, called again, returns a different b
""")


@pytest.mark.parametrize(("layer", "message"), WRONG)
def test_a_wrong_layer_is_refused_and_recognised(layer, message, X):
    with pytest.raises(GradientError, match=message) as error:
        check_gradients(eval(layer, globals()), X)
    assert isinstance(error.value, PhitodeepError)
    assert "Wrong" in str(error.value)  # the name of the class


def test_a_single_number_as_parameter():
    class Scale(Layer):
        k = Param()

        def create(self, shape):
            self.k = 1.0
            return shape

        def forward(self, X):
            self.save_for_backward(X=X)
            return self.k * X

        def backward(self, dY):
            self.grads = {"k": self.off * np.sum(dY * self.saved("X"))}
            return dY * self.k

    layer, X = Scale(), np.random.default_rng(0).standard_normal((N, D))
    layer.off = 1
    assert check_gradients(layer, X)["k"].shape == ()
    layer.off = 1.3
    with pytest.raises(GradientError, match=r"k: expected \S+, got \S+; 1 of 1 probed"):
        check_gradients(layer, X)


def test_the_error_reports_what_is_wrong_and_no_more(X):
    for change in (lambda dW: dW / N, lambda dW: np.full_like(dW, np.nan)):
        with pytest.raises(GradientError) as error:
            check_gradients(wrong(nn.Dense, grad("W", change))(4), X)
        assert len(str(error.value).splitlines()) == 2

    def waves(A):
        return A * np.cos(np.arange(A.size)).reshape(A.shape)

    def change(layer, dY, dX):
        layer.grads["W"] = waves(layer.grads["W"])
        return waves(dX)

    for layer, given in (
        (wrong(nn.Dense, change)(4), X),
        (wrong(nn.Tanh, lambda layer, dY, dX: dX * (1 + 1e-6))(), X[:1]),
    ):
        with pytest.raises(GradientError) as error:
            check_gradients(layer, given)
        _, *lines = str(error.value).splitlines()
        assert all(line.endswith("entries are wrong.") for line in lines)

    def change(layer, dY, dX):
        layer.grads["b"] = layer.grads["b"] * [1, 1, 1.001, 1.5]
        return dX

    layer = wrong(nn.Dense, change)(D, 4)
    with pytest.raises(GradientError, match=r"b\[3\]: expected (\S+), got (\S+); 2 of 4") as error:
        check_gradients(layer, X)
    words = str(error.value).split()
    expected, got = (float(words[words.index(w) + 1].rstrip(",;")) for w in ("expected", "got"))
    assert got == pytest.approx(1.5 * expected)


@pytest.mark.parametrize("error", [1e-6, 1e-5, 1e-3])
def test_a_small_error_is_an_error(error, X):
    layer = wrong(nn.Tanh, lambda layer, dY, dX: dX * (1 + error))()
    with pytest.raises(GradientError):
        check_gradients(layer, X)
    check_gradients(layer, X, rtol=2 * error)
    check_gradients(layer, X, atol=10 * error)


def test_only_trivial_parameters_are_perturbed_and_the_mode_counts(X):
    check_gradients(WithoutGamma(), X, perturb=False)  # gamma is 1
    with pytest.raises(GradientError, match="gamma"):
        check_gradients(WithoutGamma(), X)

    class Seen(nn.Dense):
        def forward(self, X):
            seen.append(self.W.copy())
            return super().forward(X)

    seen = []
    layer = Seen(D, 4)
    layer.build((D,), seed=0, dtype=np.float64)
    check_gradients(layer, X)
    np.testing.assert_array_equal(seen[0], layer.W)
    unmasked = wrong(nn.Dropout, lambda layer, dY, dX: dY)(0.4)
    check_gradients(unmasked, X, training=False)
    with pytest.raises(GradientError):
        check_gradients(unmasked, X)


def test_a_loss_of_precision_and_forward_faults_are_told(X):
    class Rounds(nn.ReLU):
        def forward(self, X):
            return super().forward(X).astype(np.float32)

    class Writes(nn.ReLU):
        def forward(self, X):
            X *= 2
            return super().forward(X)

    class Draws(nn.Dropout):
        def forward(self, X):
            with calling(step=None):  # a mask of its own for each pass
                return super().forward(X)

    class Infinite(nn.ReLU):
        def forward(self, X):
            return np.full_like(super().forward(X), np.inf)

    for layer, message in (
        (Rounds(), "Y is float32, but X is float64"),
        (Writes(), "forward modifies X"),
        (Draws(0.5), "forward, called again at the same step, returns a different Y"),
        (Infinite(), "Y contains nan or infinity"),
    ):
        kept = X.copy()
        with pytest.raises(GradientError, match=message):
            check_gradients(layer, X)
        np.testing.assert_array_equal(X, kept)


# --- what is wrong: losses -----------------------------------------------------------------


def wrong_in(kind, gradient):
    """The loss class with this gradient of P and T."""
    methods = {"gradient": lambda self, P, T, w, total: gradient(P, T)}
    return type(f"Wrong{kind.__name__}", (kind,), methods)


# Its gradient divides by the batch, its value by all elements.
WrongMeanSquaredError = wrong_in(losses.MeanSquaredError, lambda P, T: 2 * (P - T) / len(P))
FusedBinary = wrong_in(losses.BinaryCrossEntropy, lambda P, T: (P - T) / P.size)
FusedCrossEntropy = wrong_in(
    losses.CategoricalCrossEntropy, lambda P, T: (P - F.one_hot(T, P.shape[-1], P.dtype)) / len(P)
)
Writing = wrong_in(losses.MeanSquaredError, lambda P, T: 2 * np.subtract(P, T, out=P) / P.size)


class SumBinaryCrossEntropy(losses.BinaryCrossEntropy):
    def gradient(self, P, T, w, total):
        return super().gradient(P, T, w, 1.0)


class SwappedHuber(losses.Huber):
    def slope(self, P, T):
        e = P - T
        return np.where(np.abs(e) > self.delta, e, self.delta * np.sign(e))


class Unweighted(losses.MeanSquaredError):
    def gradient(self, P, T, w, total):
        return super().gradient(P, T, None, None)


class Broadcast(losses.MeanSquaredError):
    def loss_gradient(self, P, y, sample_weight=None, total=None):
        return 2 * (P - y) / len(P)


WRONG_LOSSES = refusals(r"""
WrongMeanSquaredError(), P, T -> 3 \(the size of the last axis\) times too large
SumBinaryCrossEntropy(), P, T -> 15 \(the number of elements\) times too large
SwappedHuber(0.6), P, T -> 1[45] of 15 probed entries are wrong
FusedCrossEntropy(), P, T[:, 0] -> p - t, the gradient with respect to the logits
FusedBinary(), P, T -> p - t, the gradient with respect to the logits
Writing(), P, T -> loss_gradient modifies X
Unweighted(), P, T, sample_weight=w -> right once multiplied by sample_weight
Broadcast(), P[:, :1], P[:, 1] -> shape \(5, 5\).* Was \(n,\) broadcast against
""")


@pytest.mark.parametrize(("given", "message"), WRONG_LOSSES)
def test_a_wrong_loss_is_refused_and_recognised(given, message, X, rng):
    P, T, w = F.softmax(X), rng.integers(0, 2, (N, D)), rng.uniform(0.5, 2, N)
    with pytest.raises(GradientError, match=message):
        eval(f"check_gradients({given})", {**globals(), "P": P, "T": T, "w": w})
    check_gradients(Unweighted(), P, T)  # only with weights is it wrong


# --- what is wrong: containers -------------------------------------------------------------


def test_the_culprit_in_a_model_is_found(X):
    bad = wrong(nn.Dense, grad("W", lambda dW: dW / N))
    model = nn.Chain(nn.Dense(4), nn.Residual(nn.Tanh(), bad(4)), nn.Dense(2))
    with pytest.raises(GradientError) as error:
        check_gradients(model, X)
    first, second, *rest = str(error.value).splitlines()
    assert first.endswith("has wrong gradients.")
    assert second.startswith("  1.layers.1.W[")
    assert rest[0].startswith("  On its own, layer 1.layers.1 is wrong too: Wrong(4, 4) has wrong")
    assert "5 (the batch size) times too small" in rest[1]
    assert len(rest) == 2
    bad = wrong(nn.Tanh, lambda layer, dY, dX: np.where(np.abs(layer.cache["X"]) < 9, dY, dX))()
    with pytest.raises(GradientError) as error:
        check_gradients(nn.Chain(nn.Dense(4), bad, nn.Dense(2)), X)
    text = str(error.value)
    assert all(f"\n  {name}[" in text for name in ("dX", "0.W", "0.b"))
    assert "\n  2.W" not in text  # behind the culprit all is right
    assert text.count("On its own, layer") == 1
    assert "On its own, layer 1 is wrong too: Wrong()" in text

    class Forgets(nn.Residual):
        def backward(self, dY):
            return super().backward(dY) - dY

    with pytest.raises(GradientError, match="every layer inside is right: does Forgets join them"):
        check_gradients(Forgets(nn.Dense(D)), X)


def test_own_containers_give_paths_and_tied_parameters_count_once_per_use(X):
    names = [entry.name for entry in check_gradients(Gate(nn.Dense(4), nn.Dense(4)), X).entries]
    assert names == ["dX", *(f"inside.{part}.{n}" for part in ("value", "gate") for n in "Wb")]
    first, second = nn.Dense(D, D), nn.Dense(D, D)
    model = nn.Chain(first, nn.Tanh(), second)
    model.build((D,), dtype=np.float64)
    second.params["W"] = first.params["W"]
    check_gradients(model, X)
    assert second.W is first.W


ONES, HOLED = np.ones((N, D)), np.where(np.eye(N, D), np.nan, 1)
REFUSED = refusals(r"""
check_gradients(nn.Dense, ONES) -> ArgumentTypeError: takes a layer or a loss, got <class
check_gradients(nn.Dense(2), ONES, rtol=0) -> ArgumentError: rtol must be > 0
check_gradients(nn.Dense(2), ONES, atol=-1) -> ArgumentError: atol must be >= 0
check_gradients(nn.Dense(2), ONES, max_probes=0) -> ArgumentError: max_probes must be >= 1
check_gradients(nn.Dense(2), ONES, y=ONES) -> ArgumentError: with y needs a loss
check_gradients(nn.Dense(2), ONES, loss=losses.MeanSquaredError())
    ArgumentError: only with targets y
check_gradients(nn.Dense(2), ONES, sample_weight=ONES[0]) -> ArgumentError: only with targets y
check_gradients(losses.MeanSquaredError(), ONES) -> ArgumentError: needs targets
check_gradients(nn.ReLU(), HOLED) -> ArgumentError: X\[0, 0\] is nan
check_gradients(losses.MeanSquaredError(), HOLED, ONES) -> ArgumentError: X\[0, 0\] is nan
""")


@pytest.mark.parametrize(("call", "error"), REFUSED)
def test_what_is_refused(call, error):
    check_refused(call, error, globals())


def with_categories():
    """Numbers in columns 0 and 1, and a category in column 2."""
    category = nn.Chain(nn.Select([2], tokens=True), nn.Embedding(7, 3), nn.Flatten())
    return nn.Chain(nn.Parallel(nn.Select([0, 1]), category), nn.Dense(4))


@pytest.mark.parametrize("make", [with_categories, lambda: nn.Chain(with_categories().layers[0])])
def test_columns_of_categories_are_not_moved(make, rng):
    X = np.column_stack([rng.standard_normal((N, 2)), rng.integers(0, 7, N)])
    report = check_gradients(make(), X)
    assert "dX" not in {entry.name for entry in report.entries}
    assert any(entry.name.endswith("layers.1.W") for entry in report.entries)


@pytest.mark.parametrize("seed", [0, 3])
def test_dY_is_never_the_X_that_was_drawn_with_the_same_seed(seed):
    X = np.random.default_rng(seed).standard_normal((N, D))
    with pytest.raises(GradientError):
        check_gradients(nn.Lambda(np.copy, lambda dY, X, Y: X.copy()), X, seed=seed)
