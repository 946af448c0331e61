"""PDE: residuals, their exact gradients, what it refuses, and how it trains."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import phitodeep
from phitodeep import LBFGS, PDE, Adam, Chain, Dense, Network, Sequential, Tanh, derive, errors
from phitodeep import layers as L
from phitodeep.core.call import calling, inference
from phitodeep.derivations.language.step import Derivation, Let, Size, Sum
from phitodeep.testing import check_gradients

SINE = derive("Y = np.sin(3 * X)", X=(4, 5), name="Sine")


def mlp(activation=None, D=2, M=1):
    return Sequential(Dense(D, 7), activation or Tanh(), Dense(7, 5), Tanh(), Dense(5, M), seed=0)


def built(layer, D=2, dtype=np.float64):
    """The layer with random biases, which begin at 0."""
    layer.build((D,), seed=1, dtype=dtype)
    rng = np.random.default_rng(2)
    for _, part in layer.walk():
        for name in {"b"} & {*part.params}:
            part.b = rng.standard_normal(part.params[name].shape)
    return layer


def points(n, D=2, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (n, D))


def network(layer, **options):
    """A network whose outputs are u and the residual."""
    made = Network(
        ["point"], [(layer, ["point"], ["u", "residual"])], ["u", "residual"],
        loss_class={"u": "mse", "residual": "mse"}, seed=0, dtype="float64", **options,
    )  # fmt: skip
    made.build({"point": (2,)})
    return made


# --- values and gradients ----------------------------------------------------------------------


def test_derivatives_are_slopes_of_what_the_network_predicts():
    texts = ["u_t", "u_x", "u_tt", "u_tx", "u_xt", "u_xx", "v_tx", "np.exp(-x) * u + nu * t"]
    net = mlp(M=2)
    layer = built(PDE(texts, net, inputs="t x", outputs="u v", nu=-0.5))
    X, h = points(6), 1e-4
    T, S = np.array([h, 0]), np.array([0, h])
    U, *R = layer.forward(X)
    u, v = (lambda X, c=c: net.predict(X)[:, [c]] for c in (0, 1))
    np.testing.assert_allclose(U, net.predict(X), rtol=1e-14)

    def mixed(f):
        return (f(X + T + S) - f(X + T - S) - f(X - T + S) + f(X - T - S)) / (4 * h * h)

    slopes = [(u(X + d) - u(X - d)) / (2 * h) for d in (T, S)]
    bends = [(u(X + d) - 2 * u(X) + u(X - d)) / (h * h) for d in (T, S)]
    own = np.exp(-X[:, 1:]) * u(X) - 0.5 * X[:, :1]
    wanted = [*slopes, bends[0], mixed(u), mixed(u), bends[1], mixed(v), own]
    for text, found, numeric in zip(texts, R, wanted, strict=True):
        np.testing.assert_allclose(found, numeric, atol=2e-6, err_msg=text)
    np.testing.assert_array_equal(R[3], R[4])


PART = Chain(Dense(4), L.CELU(0.7))
PATHS = [("a", "b"), ("b", "c"), ("d", "e")]
USES = [([Dense(4), L.Sigmoid(), Dense(1)][k], [x], [y]) for k, (x, y) in enumerate(PATHS)]
USES.insert(2, (L.Subtract(), ["c", "b"], ["d"]))
NETWORKS = [  # and an equation for each
    (mlp(D=1), "u_xx + u ** 2", "x"),
    (mlp(D=1), "u_x - u", "x"),
    (mlp(D=3), "u_t - k * (u_xx + u_yy) + u_xy * u_t", "t x y"),
    (mlp(), "u ** 2 - np.sin(x)", "t x"),
    (mlp(L.ELU(1.7)), "u_t * np.tanh(t) + u * np.sign(u_x)", "t x"),
    (mlp(), "u_time + u_spacetime - k / (1 + u_time ** 2)", "time space"),
    (
        Chain(Dense(2, 4), L.Residual(Dense(4), L.GELU(), Dense(4)), L.SiLU(), Dense(1)),
        "u_tx + u_xx",
        "t x",
    ),
    (
        Chain(
            L.SkipConcat(Dense(3), L.Softplus()),
            L.Parallel(Dense(2), Chain(L.LowRank(3, 2), SINE.layer())),
            L.Parallel(Dense(1), Chain(L.Mish(), Dense(1)), merge="add"),
        ),
        "u_tt - u_xx",
        "t x",
    ),
    (L.Wired(["a"], USES, ["e"]), "u_xx * u_t - u", "t x"),
    (Chain(Dense(2, 4), PART, L.Shared(PART), Dense(1)), "u_t + u_xx", "t x"),
]


@pytest.mark.parametrize(("net", "text", "inputs"), NETWORKS, ids=[row[1] for row in NETWORKS])
def test_gradients_are_central_differences(net, text, inputs):
    D = len(inputs.split())
    layer = built(PDE(text, net.copy(), inputs=inputs, **{"k": 0.3} if "k " in text else {}), D)
    check_gradients(layer, points(5, D))


def test_gradients_of_a_system_are_central_differences():
    equations = ["u * u_x + v * u_y + p_x - (u_xx + u_yy) / Re", "u_x + v_y", "v_xy + p * x"]
    check_gradients(built(PDE(equations, mlp(M=3), inputs="x y", outputs="u v p", Re=7)), points(4))


def test_the_gradient_of_second_derivatives_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    X, dR = points(30), points(30, 1, seed=3)
    for layer, theirs in (
        (Tanh(), torch.tanh),
        (L.GELU(), torch.nn.functional.gelu),
        (L.SiLU(), torch.nn.functional.silu),
        (SINE.layer(), lambda z: torch.sin(3 * z)),
    ):
        pde = built(
            PDE("u_xx + u ** 2 + u_tx", Chain(Dense(2, 32), layer, Dense(32, 1)), inputs="t x")
        )
        U, R = pde.forward(X)
        dX = pde.backward(0 * U, dR)
        own = [pde.layer.layers[k].params[name] for k in (0, 2) for name in "Wb"]
        weights = [torch.tensor(A, requires_grad=True) for A in own]
        x = torch.tensor(X, requires_grad=True)
        W, b, V, c = weights
        u = theirs(x @ W + b) @ V + c
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (dux,) = torch.autograd.grad(du[:, 1].sum(), x, create_graph=True)
        r = dux[:, 1:] + u**2 + dux[:, :1]
        found = [R, dX, *(pde.layer.layers[k].grads[name] for k in (0, 2) for name in "Wb")]
        wanted = [r, *torch.autograd.grad((r * torch.tensor(dR)).sum(), [x, *weights])]
        for ours, other in zip(found, wanted, strict=True):
            other = other.detach().numpy()
            np.testing.assert_allclose(ours, other, rtol=1e-12, atol=1e-12 * abs(other).max())


def test_a_bias_receives_nothing_from_derivatives():
    layer = built(PDE("u_xx + u_t", mlp(), inputs="t x"))
    U, R = layer.forward(points(9))
    layer.backward(0 * U, np.ones_like(R))
    net = layer.layer
    np.testing.assert_allclose(net.layers[-1].grads["b"], 0, atol=1e-13)
    assert abs(net.layers[-1].grads["W"]).max() > 0.01


def test_dtype_is_kept_and_predictions_cache_nothing():
    layer = built(
        PDE("u_t - np.sqrt(2.0) * u_xx", mlp(L.GELU("tanh")), inputs="t x"), dtype="float32"
    )
    X = points(8).astype(np.float32)
    with inference():
        predicted = layer.forward(X)
        assert not layer.cache
    for A, B in zip(predicted, layer.forward(X), strict=True):
        assert A.dtype == np.float32
        np.testing.assert_array_equal(A, B)
    assert layer.backward(*predicted).dtype == np.float32
    for _, part in layer.walk():
        assert all(dW.dtype == np.float32 for dW in part.grads.values())
    with calling(needs_dX=False):
        assert layer.backward(*predicted) is None


def test_a_layer_that_is_cast_computes_in_the_new_dtype():
    layer = built(PDE("u_t - u_xx", mlp(), inputs="t x"), dtype="float32")
    layer.forward(points(5))
    layer.cast("float64")
    X = points(5)
    for found, wanted in zip(layer.forward(X), layer.copy().forward(X), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, wanted)


def test_watchers_see_the_equation_as_one_layer():
    seen = []
    model = network(PDE("u_x", mlp(), inputs="t x"))
    with phitodeep.watching(lambda event: seen.append((event.what, event.path))):
        model.train(points(5), {"u": np.zeros(5), "residual": np.zeros(5)}, epochs=1, verbose=0)
    assert {path for what, path in seen if what in ("forward", "backward")} == {"", "0"}
    assert model.layers[0].flops() == 2 * model.layers[0].layer.flops()


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("u_xxx", "'u_xxx' reads 'u_xxx'; known are t, u, u_t, u_tt, u_tx, u_x, u_xt, u_xx, x, nu"),
        ("v + u", "reads 'v'"),
        ("__import__('os').system('true')", "reads '__import__'"),
        ("u.__class__", "not arithmetic"),
        ("np.load(x)", "no derivative is known for np.load"),
        ("(lambda: u)()", "no derivative is known"),
        ("u if t else x", "write choices as np.where"),
        ("u.mean()", "several points at once"),
        ("u[::-1]", "several points at once"),
        ("u @ u", "several points at once"),
        ("u_t = u", "holds ="),
        ("u\nnu = 2", "holds ="),
        ("u +", "cannot read this as Python"),
        ("2 ** 10 ** 10", "write the number"),
        ("", "cannot read"),
        ("u + " * 300 + "x", "too deep"),
        (f"({'u + ' * 100}u) * ({'u + ' * 100}u) * ({'u + ' * 100}u)", "at most 1000 characters"),
    ],
)  # fmt: skip
def test_only_arithmetic_of_known_names_is_an_equation(text, reason):
    with pytest.raises(errors.DerivationError, match=reason):
        PDE(text, Dense(2, 1), inputs="t x", nu=0.1)


def test_names_and_shapes_that_do_not_fit_are_refused():
    for wrong in ({"inputs": ["t", "x"]}, {"inputs": "t, x"}, {"inputs": "t x", "outputs": None}):
        with pytest.raises(errors.ArgumentError, match=r"puts are a text such as .t x., got"):
            PDE("u_t", Dense(2, 1), **wrong)
    same = {"t": 1.0}, {"u_x": 1.0}, {"outputs": "x"}, {"inputs": "x x"}, {"inputs": "x xx"}
    for wrong in same:
        with pytest.raises(errors.ArgumentError, match="must have different names"):
            PDE("u", Dense(2, 1), **{"inputs": "t x"} | wrong)
    with pytest.raises(errors.ArgumentError, match="too many second derivatives"):
        PDE("u", Dense(2, 1), inputs=" ".join(f"x{k}" for k in range(400)))
    with pytest.raises(errors.ArgumentTypeError, match="PDE nu must be a number, got 'a'"):
        PDE("u", Dense(2, 1), inputs="t x", nu="a")
    with pytest.raises(errors.ArgumentTypeError, match="PDE equations must be a list, got 3"):
        PDE(3, Dense(2, 1), inputs="t x")
    with pytest.raises(errors.ArgumentError, match="PDE needs an equation"):
        PDE([], Dense(2, 1), inputs="t x")
    for inputs, outputs in (("t x y", "u"), ("t x", "u v")):
        with pytest.raises(errors.ShapeError, match=r"layer turns samples of shape \(2,\)"):
            PDE("u", Dense(2, 1), inputs=inputs, outputs=outputs).build((2,))


KINKED = [L.ReLU(), L.LeakyReLU(), L.LeakyReLU(0.999), L.ELU(1.1), L.SELU(), L.HardTanh()]


@pytest.mark.parametrize("layer", [*KINKED, L.HardSwish(), L.HardSigmoid()], ids=repr)
def test_kinks_are_refused_where_a_second_derivative_is_read(layer):
    for text in ("u_t - u_xx", "u_tx"):
        with pytest.raises(errors.ArgumentError, match=r"kinks.*use a smooth function") as found:
            PDE(text, mlp(layer.copy()), inputs="t x").build((2,))
        assert repr(layer) in str(found.value)
    check_gradients(built(PDE("u_t + u * u_x", mlp(layer.copy()), inputs="t x")), points(5))


SMOOTH = [L.ELU(), L.CELU(), L.Softsign(), L.Sigmoid(), L.GELU("tanh"), SINE.layer(), L.Mish()]


@pytest.mark.parametrize("layer", SMOOTH, ids=repr)
def test_functions_without_kinks_are_not(layer):
    check_gradients(built(PDE("u_t - u_xx", mlp(layer), inputs="t x")), points(5))


UNKNOWN = [
    *(L.Dropout(0.1), L.GaussianNoise(0.1), L.LayerNorm(), L.BatchNorm(), L.PReLU(), L.Softmax()),
    L.Lambda(np.sin, lambda dY, X, Y: dY * np.cos(X), independent_samples=True),
    L.Parallel(Dense(7), Dense(7), merge="multiply"),
]


@pytest.mark.parametrize("layer", UNKNOWN, ids=lambda layer: type(layer).__name__)
def test_layers_whose_derivatives_are_not_known_are_refused(layer):
    with pytest.raises(errors.ArgumentError, match="PDE knows no derivatives of") as found:
        PDE("u_x", mlp(layer), inputs="t x").build((2,))
    assert repr(layer) in str(found.value)


class Centred(L.Layer):
    """X minus the mean of the batch, which is affine, but not for each sample."""

    def steps(self):
        total, n = Sum("total", "nd->d", "X"), Size("N", "X", 0, "the number of samples")
        return Derivation.of(total, n, Let("Y", "X - total / N"), Let("dX", "dY"))


def test_an_affine_layer_of_ones_own_must_declare_that_it_keeps_samples_apart():
    with pytest.raises(errors.ArgumentError, match="declares independent_samples = True"):
        PDE("u_x", mlp(Centred()), inputs="t x").build((2,))


@pytest.mark.parametrize("merge", [L.Multiply(), L.Maximum()], ids=repr)
def test_merges_that_are_not_affine_are_refused(merge):
    uses = [(Dense(1), ["a"], ["b"]), (Dense(1), ["a"], ["c"]), (merge, ["b", "c"], ["d"])]
    with pytest.raises(errors.ArgumentError, match=f"no derivatives of {type(merge).__name__}"):
        PDE("u_x", L.Wired(["a"], uses, ["d"]), inputs="t x").build((2,))


# --- files, copies and training ----------------------------------------------------------------

HEAT = "u_t - k * u_xx"


def heat():
    """Points, targets and weights: the equation inside, values on three edges, as one batch."""
    X, s = points(200) * [0.5, 1] + [0.5, 0], np.linspace(0, 1, 21)
    edge = np.stack([np.r_[0 * s, s, s], np.r_[2 * s - 1, 0 * s - 1, 0 * s + 1]], axis=1)
    X, inside = np.concatenate([X, edge]), np.repeat([1.0, 0.0], [200, 63])
    exact = np.exp(-0.1 * np.pi**2 * X[:, :1]) * np.sin(np.pi * X[:, 1:])
    y = {"u": exact * (1 - inside[:, None]), "residual": np.zeros((263, 1))}
    return X, y, {"u": 1 - inside, "residual": inside}, exact


def test_lbfgs_solves_the_heat_equation_and_files_keep_it(tmp_path):
    X, y, w, exact = heat()
    net = Sequential(Dense(2, 12), Tanh(), Dense(12, 12), Tanh(), Dense(12, 1), seed=0)
    model = network(PDE(HEAT, net, inputs="t x", k=0.1), optimizer=LBFGS(max_iter=250))
    history = model.train(X, y, sample_weight=w, epochs=1, verbose=0)
    assert {*history.metrics} == {"train_u_loss", "train_residual_loss"}
    assert np.linalg.norm(net.predict(X) - exact) < 0.02 * np.linalg.norm(exact)
    found = model.predict(X)
    model.save(tmp_path / "heat.safetensors")
    code = f"""
import sys, numpy as np, phitodeep
model = phitodeep.load(r"{tmp_path / "heat.safetensors"}")
np.savez(r"{tmp_path / "again.npz"}", **model.predict(np.array({X[:5].tolist()})))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with np.load(tmp_path / "again.npz") as again:
        for name in found:
            np.testing.assert_allclose(again[name], found[name][:5], rtol=1e-12, atol=1e-14)
    for twin in (model.copy(), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(twin.predict(X)["residual"], found["residual"])


def test_a_config_is_read_back_and_a_hostile_one_is_refused():
    layer = PDE(["u_t - k * u_xx", "v_x"], mlp(M=2), inputs="t x", outputs="u v", k=0.1)
    config = layer.get_config()
    PDE("1 / (u - u_x)", Dense(2, 1), inputs="t x")  # a division by 0 in no point that is given
    again = PDE.from_config(config)
    assert again.get_config() == config
    assert repr(again) == repr(layer) == "PDE('u_t - 0.1 * u_xx', '1 * v_x')"
    for wrong in ({"equations": ["open('x')"]}, {"equations": None}, {"layer": 3}, {"k": 1}):
        with pytest.raises(errors.PhitodeepError):
            PDE.from_config(config | wrong)


def test_steps_of_ones_own_and_other_optimizers_descend():
    X, y, w, _ = heat()
    model = network(PDE(HEAT, mlp(), inputs="t x", k=0.1), optimizer=Adam(0.01))
    history = model.train(X, y, sample_weight=w, epochs=60, batch_size=100, verbose=0)
    assert history[-1][0] < history[0][0] / 2
    layer, adam = built(PDE(HEAT, mlp(), inputs="t x", k=0.1)), Adam(0.01)
    losses = []
    for _ in range(40):
        U, R = layer.forward(X)
        e, r = w["u"][:, None] * (U - y["u"]), w["residual"][:, None] * R
        losses.append(float((e**2).mean() + (r**2).mean()))
        layer.backward(2 * e / len(X), 2 * r / len(X))
        adam.step([layer])
    assert losses[-1] < losses[0] / 2


def test_threads_change_nothing_and_changed_layers_count():
    X, y, w, _ = heat()
    many = np.concatenate([X] * 16)
    big = {name: np.concatenate([A] * 16) for name, A in y.items()}
    found = []
    for threads in (1, 2):
        wide = Sequential(Dense(2, 64), Tanh(), Dense(64, 64), Tanh(), Dense(64, 1), seed=0)
        model = network(PDE(HEAT, wide, inputs="t x", k=0.1), optimizer=Adam(0.01))
        model.train(many, big, epochs=2, threads=threads, verbose=0)
        found.append(model.predict(X)["residual"])
    np.testing.assert_array_equal(*found)
    pde = model.layers[0]
    wide.layers[1] = L.Sigmoid()
    wide.build((2,))
    other = PDE(HEAT, Chain(*wide.layers), inputs="t x", k=0.1)
    np.testing.assert_array_equal(pde.forward(X)[1], other.forward(X)[1])
    model.add_lora("*.W", rank=1)
    model.train(X, y, sample_weight=w, epochs=2, verbose=0)
    check_gradients(pde, X[:5], max_probes=20)


def test_who_makes_no_pde_does_not_load_what_derives():
    code = """import sys, phitodeep
phitodeep.Sequential
print([name for name in sys.modules if ".derive" in name])"""
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"
    assert phitodeep.PDE is PDE
