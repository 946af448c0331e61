"""Derivations at inputs, masks, modes and settings that the table lacks, and layers without any."""

import numpy as np
import pytest

from phitodeep import Sequential, SequentialBuilder, layers
from phitodeep import loss as losses
from phitodeep.core.call import calling
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.notation import LATEX, PLAIN
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.run import passes as by_passes
from phitodeep.derivations.language.step import Carry, Join, Let, Sum
from phitodeep.derivations.language.terms import why
from phitodeep.derivations.losses import givens
from phitodeep.errors import ArgumentError
from phitodeep.layers import attention
from phitodeep.testing.examples import ELEMENTWISE, data, made, pair, passes
from tests.conftest import assert_same
from tests.derivations.test_contract import (
    assert_close,
    by_steps,
    check_terms,
    check_written,
    loss_scope,
    same_passes,
    scopes,
)
from tests.loss.test_loss import EXAMPLES as LOSSES
from tests.random_networks import Gate, Scale
from tests.rows import over

EDGES = [0, 5e-324, 1e-310, 1, 3, 20, 41, 710, 1e4, 1e30, 1e200]  # where fast passes differ
EDGES += [np.nextafter(1, 0), np.nextafter(3, 0), np.nextafter(3, 4)]
NORMS = {layers.BatchNorm, layers.LayerNorm, layers.Dropout, layers.GaussianNoise, layers.Flatten}
UNBOUNDED = [make for make in ELEMENTWISE if type(make()) not in NORMS]


@pytest.mark.parametrize("make", UNBOUNDED, ids=[repr(make()) for make in UNBOUNDED])
def test_steps_of_activations_equal_the_fast_pass_at_edges(make):
    X = np.array([*EDGES, *np.negative(EDGES)])[:, None]
    layer = made(make, X.shape)
    fast, slow = passes(layer, X, np.ones_like(X)), by_steps(layer, X, np.ones_like(X))
    for name, wanted in fast.items():  # relative to each element: one of them is 1e200
        found = slow[name if name in ("Y", "dX") else f"d{name}"]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("shape", "kept", "training", "trainable"),
    [
        ((3, 4, 2), 0.5, True, True),
        ((2, 3, 2, 3), 0.5, True, True),
        ((2, 3, 2, 3), 0.5, True, False),
        ((3, 4, 2), 0.5, False, True),
        ((3, 4, 2), 0.0, True, True),
        ((2, 3, 2, 3), 0.0, False, True),
        ((3, 4, 2), 1.0, True, True),
        ((1, 1, 2), 1.0, True, True),
        ((1, 1, 2), 0.0, True, True),
    ],
)
def test_batch_norm_with_a_mask(shape, kept, training, trainable):
    layer = made(layers.BatchNorm, shape)
    layer.trainable = trainable
    X, dY = (A.copy() for A in data(layer, shape))
    mask = np.random.default_rng(3).random(shape[:2]) < kept
    X[~mask] = dY[~mask] = np.nan  # padding is never read
    call = {"training": training, "mask": mask}
    scope = same_passes(layer, X, dY, **call)
    check_written(scope, {*layer.params, *layer.state, "X", "dY"}, repr(layer))
    check_terms(by_steps(layer, np.nan_to_num(X), np.nan_to_num(dY), **call))


@pytest.mark.parametrize("axis", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("kind", [layers.Softmax, layers.LogSoftmax])
def test_softmax_along_any_axis(kind, axis):
    layer, rng = kind(axis), np.random.default_rng(1)
    X, dY = 100 * rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 4, 5))
    if axis % 2:
        layer.build(X.shape[1:], dtype=np.float64)
    same_passes(layer, X, dY)
    check_terms(by_steps(layer, X, dY))


# --- random layers -----------------------------------------------------------------------------

RANDOM = [
    (lambda: layers.Dropout(0.4), (3, 5)),
    (lambda: layers.SpatialDropout(0.5), (2, 3, 3, 4)),
    (lambda: layers.GaussianNoise(0.3), (3, 5)),
    (layers.Reparameterize, (3, 6)),
    (lambda: layers.RandomFlip(vertical=True), (4, 3, 2, 2)),
    (lambda: layers.RandomCrop((2, 5), padding=(0, 2)), (4, 5, 4, 1)),
    (lambda: layers.RandomShift((4, 7)), (5, 3, 4, 1)),
]
each_draw = pytest.mark.parametrize(("make", "shape"), RANDOM, ids=[repr(m()) for m, _ in RANDOM])


@over([*(((make, (4, 5), 0)) for make in ELEMENTWISE), *((*row, 0) for row in RANDOM)])
def test_float32_stays_float32(make, shape, tokens):
    layer = made(make, shape, np.float32)
    scope = by_steps(layer, *data(layer, shape, tokens))
    for name in (*scope.values, *scope._series):
        value = scope[name]
        assert np.asarray(value).dtype != np.float64 or type(value) is float, name


@pytest.mark.parametrize(("scope_dtype", "step", "first"), [(None, 0, 0), (np.float64, 3, 40)])
@each_draw
def test_the_draws_are_those_of_the_pass(make, shape, scope_dtype, step, first):
    layer = made(make, shape)
    X, dY = data(layer, shape)
    with calling(step=step, first=first, reuse=True):
        Y, dX = layer.forward(X).copy(), layer.backward(dY)
        found = by_passes(layer, X, dY, dtype=scope_dtype)
    np.testing.assert_allclose(found["Y"], Y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["dX"], dX, rtol=0, atol=1e-12)


@each_draw
def test_steps_leave_a_pending_backward_pass_alone(make, shape):
    layer = made(make, shape)
    X, dY = data(layer, shape)
    with calling(step=0, reuse=True):
        layer.forward(X)
        wanted = np.array(layer.backward(dY))
        layer.forward(X)
        with calling(step=1):
            by_passes(layer, X, dY)
        np.testing.assert_array_equal(layer.backward(dY), wanted)


@pytest.mark.parametrize("make", ["gate", "recurrent"])
def test_a_layer_at_a_second_place_has_the_settings_and_the_state_of_the_first(make):
    gate = Gate(layers.Dense(2), layers.Chain(layers.BatchNorm(0.7), layers.Dense(2)))
    layer = gate if make == "gate" else layers.Bidirectional(layers.GRU(2), "add")
    chain = layers.Chain(layer, layers.Tanh(), layers.Shared(layer))
    chain.build((4, 2), dtype="float64", seed=0)
    X, dY = np.random.default_rng(0).standard_normal((2, 3, 4, 2))
    same_passes(chain, X, dY, step=0)  # the steps record nothing


def test_log_variances_beyond_the_limit_have_no_gradient():
    layer = made(layers.Reparameterize, (2, 6))
    X = np.array([[1.0, 2, 3, 88, 88.5, -np.inf], [0.5, 0, 1, 1000, 0, -800]])
    dY = np.ones((2, 3))
    with calling(step=0):
        Y, dX = layer.forward(X).copy(), layer.backward(dY)
        found = by_passes(layer, X, dY)
    np.testing.assert_allclose(found["Y"], Y, rtol=1e-12)
    np.testing.assert_allclose(found["dX"], dX, rtol=1e-12)
    assert found["dS"][0, 1] == found["dS"][1, 0] == 0


# --- windows -----------------------------------------------------------------------------------

POOLS = [
    (lambda: layers.MaxPool2D(3, 1, 1), (2, 5, 4, 2)),
    (lambda: layers.MaxPool2D((2, 3), 2, "same"), (2, 5, 4, 2)),
    (lambda: layers.MaxPool1D(3, 2), (2, 9, 2)),
    (layers.GlobalMaxPool, (2, 3, 4, 2)),
    (layers.GlobalMaxPool, (2, 9, 2)),
]


@pytest.mark.parametrize(("make", "shape"), POOLS)
def test_one_of_equal_cells_wins_and_only_winners_receive_inf_or_nan(make, shape):
    layer = made(make, shape)
    X, dY = data(layer, shape)
    for other in (np.nan, 1):
        same_passes(layer, np.where(X < 0, other, np.sign(X)), dY)
    for bad in (np.inf, np.nan):
        changed = dY.copy()
        changed.flat[0] = bad
        same_passes(layer, X, changed)


def test_frozen_norms_masked_pools_layouts_of_sums_and_dtypes_of_scopes():
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((6, 3)), rng.standard_normal((3, 4))
    for code in ("ni,ij->nj", "ni,ij->jn"):
        assert Sum("Y", code, "X", "W").value({"X": X, "W": W}).flags.c_contiguous
    layer = made(layers.ReLU, (2, 3))
    X = np.ones((2, 3), np.float32)
    with calling(step=0):
        assert by_passes(layer, X, X)["slope"].dtype == np.float32
        assert by_passes(layer, X, X, dtype=np.float64)["Y"].dtype == np.float64
    layer = made(layers.BatchNorm, (4, 3))
    layer.trainable = False
    same_passes(layer, *data(layer, (4, 3)))
    layer = made(lambda: layers.Upsample2D((3, 2)), (2, 3, 4, 2))
    same_passes(layer, *data(layer, (2, 3, 4, 2)))
    for make in (layers.GlobalMaxPool, layers.GlobalAvgPool):
        layer = made(make, (3, 4, 2, 2))
        X, dY = data(layer, (3, 4, 2, 2))
        same_passes(layer, X, dY, mask=np.arange(4) < np.array([[4], [2], [0]]))


# --- losses: terms that do not count, ignored labels, float32 ----------------------------------

INF = np.inf
LOGITS = [[-INF, 1.0, 2.0], [0.5, -INF, -INF], [0.0, 1.0, 1.0]]
LOG_P = [[-INF, 0.0, -INF], [0.0, -INF, -INF], [-INF, -0.5, -0.9]]
P = np.exp(LOG_P)
ROWS = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
SIDE = [[1.0, 0.3, -INF], [1.0, -0.4, INF], [0.2, 0.1, -INF]]  # m, s and z


@pytest.mark.parametrize(("w", "total"), [(None, 2.0), ([1.0, 0.0, 2.0], None), (None, 0.0)])
@pytest.mark.parametrize(
    ("loss", "P", "T"),
    [
        (losses.SoftmaxCrossEntropy(), LOGITS, ROWS),
        (losses.SoftmaxCrossEntropy(), LOGITS, [1, 0, 2]),
        (losses.CategoricalCrossEntropy(), P, ROWS),
        (losses.NegativeLogLikelihood(), LOG_P, ROWS),
        (losses.KLDivergence(), LOG_P, ROWS),
        (losses.BinaryCrossEntropy(), P, ROWS),
        (losses.BinaryCrossEntropyWithLogits(), LOG_P, ROWS),
        (losses.PoissonNLL(log_input=False), P, ROWS),
        (losses.CosineSimilarityLoss(), [[0, 0, 0], [1e200, 2e200, 0], [1e-300, 0, 0]], ROWS),
        (losses.NegativeELBO(1), SIDE, ROWS[:, :1]),
    ],
    ids=repr,
)
def test_terms_that_cost_nothing_may_be_infinite(loss, P, T, w, total):
    compare(loss, P, T, w, total)


@pytest.mark.parametrize("total", [None, 2.0])
@pytest.mark.parametrize(
    ("loss", "P", "T"),
    [
        (losses.SoftmaxCrossEntropy(), LOGITS, [1, 2, 2]),
        (losses.SoftmaxCrossEntropy(ignore_index=2), LOGITS[1::-1] + LOGITS[2:], [0, 2, 1]),
        (losses.NegativeLogLikelihood(), LOG_P, [1, 2, 2]),
        (losses.KLDivergence(), LOG_P, ROWS[[0, 2, 2]]),
        (losses.MeanAbsoluteError(), [[1.0], [INF], [0.5]], [[1.0], [0.0], [2.0]]),
        (losses.MeanSquaredError(), [[1.0], [INF], [0.5]], [[1.0], [0.0], [2.0]]),
    ],
    ids=repr,
)
def test_an_infinite_loss_of_weight_0_does_not_count(loss, P, T, total):
    scope = compare(loss, P, T, [1.0, 0.0, 2.0], total)
    assert np.isinf(scope["each"]).any()
    assert np.isfinite(scope["L"])
    assert not scope["dP"][1].any()


def test_nothing_counts_if_total_is_0():
    scope = compare(losses.SoftmaxCrossEntropy(), LOGITS, [0, 1, 2], None, 0.0)
    assert np.isinf(scope["each"]).any()
    assert scope["L"] == 0
    assert not scope["dP"].any()


@pytest.mark.parametrize("w", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize(
    "loss",
    [
        losses.SoftmaxCrossEntropy(ignore_index=-1),
        losses.CategoricalCrossEntropy(0.2, -1, [0.5, 2.0, 1.0]),
        losses.NegativeLogLikelihood(-1, {2: 3.0}),
    ],
    ids=repr,
)
def test_ignored_labels(loss, w):
    given, _ = pair(loss, (3, 2, 3))
    found = compare(loss, given, [[0, -1], [-1, -1], [2, 1]], w, None)
    assert not found["dP"][1].any()
    assert not found["v"][1].any()
    assert found["L"] > 0
    assert compare(loss, given, np.full((3, 2), -1), w, None)["L"] == 0


def compare(loss, P, T, w, total):
    P = np.array(P, np.float64)
    T = loss.targets(np.array(T), P.shape)
    checked = loss.weights(w, T, P.shape)
    scope = loss_scope(loss, P, T, checked, total)
    assert_close(scope["L"], loss.value(P, T, checked, total), "L")
    assert_close(scope["dP"], loss.gradient(P, T, checked, total), "dP")
    return scope


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_losses_stay_float32(loss):
    P, y = pair(loss, (3, 4))
    P = P.astype(np.float32)
    scope = loss_scope(loss, P, loss.targets(y, P.shape), None, None)
    for step in scope.derivation.every():
        assert np.asarray(scope[step.symbol]).dtype != np.float64, step


# --- what `why` says, and how formulas are written ---------------------------------------------


def built(layer, shape):
    layer.build(shape[1:], seed=0, dtype="float64")
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    return layer, X, rng.standard_normal(layer.forward(X).shape)


def test_how_choices_layers_inside_and_joined_arrays_are_explained():
    step = Let("y", "scale * np.where(x > 0, x, alpha * (x + np.where(x < -1, 2, z)))")
    symbols = {"x": np.array([3.0, -2.0]), "z": np.zeros(2), "alpha": 0.5, "scale": 10.0}
    symbols["y"] = step.value(symbols)
    first, second = why(step, symbols, 0), why(step, symbols, 1)
    assert first.total == 30
    assert str(first) == ("y[0] = 30  (since x > 0)\n  +30  = scale · x, with scale 10, x 3")
    assert second.total == 0
    assert second.words.endswith("(since not x > 0)  (since x < -1, with x -2)")
    assert sorted(term.value for term in second) == [-10, 10]
    steps = layers.Residual(layers.Dense(2, 2)).steps()
    assert steps.forward[0].formula == "F = layers.0.forward(X)"
    assert steps.backward[0].formula == "dF = layers.0.backward(dY)"
    A, B, C = np.arange(6.0).reshape(2, 3), np.zeros((2, 0)), 10 + np.arange(4.0).reshape(2, 2)
    step, symbols = Join("J", "A", "B", "C"), {"A": A, "B": B, "C": C}
    symbols["J"] = step.value(symbols)
    np.testing.assert_array_equal(symbols["J"], np.hstack([A, B, C]))
    assert why(step, symbols, 1, 2)[0].factors == {"A[1, 2]": 5}
    assert why(step, symbols, 1, 3)[0].factors == {"C[1, 0]": 12}
    assert why(step, symbols, -1, -1)[0].factors == {"C[1, 1]": 13}


@pytest.mark.parametrize("cell", [(1, 0, 2), (1, 3, 2), (0, 4, 1)])
@pytest.mark.parametrize("layer", [layers.RNN(3), layers.LSTM(3), layers.GRU(3)], ids=repr)
def test_a_carried_number_comes_from_the_round_before(layer, cell):
    layer, X, dY = built(layer, (2, 5, 2))
    scope = by_steps(layer, X, dY)
    carries = [s for s in scope.derivation.every() if isinstance(s, Carry)]
    assert len(carries) >= 2
    n, t, j = cell
    for step in carries:
        back = step in scope.derivation.backward or step.symbol.endswith("later")
        (term,) = why(step, scope.at(t), n, j)
        before = t + 1 if back else t - 1
        if 0 <= before < 5:
            assert term.at == {"t": before}
            assert term.factors == {f"{step.of}[{n}, {j}]": scope[step.of][n, before, j]}
        else:
            assert term.at == {}
            assert list(term.factors) == [f"{step.start}[{n}, {j}]"]
        assert term.value == scope[step.symbol][cell]


TYPESET = {"a <= b": r"a \le b", "a >= b": r"a \ge b", "a != b": r"a \ne b"}
TYPESET["np.where(a < b, np.sqrt(c), np.abs(d) / 2)"] = (
    r"\begin{cases} \sqrt{c} & a < b \\ \frac{\lvert d \rvert}{2} & \text{otherwise} \end{cases}"
)


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("Y * (1 - Y)", "Y · (1 - Y)"),
        ("-2 * T * lack", "-2 · T · lack"),
        ("a - -b * c", "a - (-b · c)"),
        ("a * -b", "a · (-b)"),
        ("(-a) ** 2", "(-a)²"),
        ("-a ** 2 / 2", "-a² / 2"),
        ("-(a + b) * c", "-(a + b) · c"),
        ("np.logaddexp(0, X)", "log(1 + exp(X))"),
        ("X * Phi", "X · Φ"),
        ("x ** 3 / y ** k", "x³ / y^k"),
    ],
)
def test_signs_and_factors(code, written):
    assert PLAIN.expression(code) == written
    assert {code: LATEX.expression(code) for code in TYPESET} == TYPESET


def test_a_derivation_is_listed_with_its_loops_and_words():
    layer, X, _ = built(layers.RNN(3), (2, 5, 2))
    layer.forward(X)
    lines = str(layer.steps()).splitlines()
    assert lines[0] == "forward"
    assert lines[2:4] == ["  for t from 0 to T - 1:", "    x_t = step t of X"]
    assert (
        "    dh_later = the previous dh_prev, at first dh_end  (what arrives from step t + 1)"
        in lines
    )
    assert lines[-1] == "  dX_ntd = Σ_g da_t,ntg Wx_dg"
    assert len(lines) == 2 + len([*layer.steps().every()])


HOLES = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)


def check_same(make, shape, tokens=0, **call):
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    return check_arrays(layer, X, dY, **call)


def check_arrays(layer, X, dY, **call):
    """Both passes and all terms, in this mode."""
    scope = same_passes(layer, X, dY, **call)
    for inner in scopes(scope):
        check_terms(inner)
    return scope


@pytest.mark.parametrize("kind", [layers.RNN, layers.LSTM, layers.GRU])
def test_gates_may_be_saturated(kind):
    layer = made(lambda: kind(3), (3, 5, 2))
    X, dY = data(layer, (3, 5, 2))
    check_arrays(layer, 1e4 * X, dY)  # exp overflows


def test_scores_may_be_large():
    for causal in (True, False):
        layer = made(lambda c=causal: layers.MultiHeadAttention(2, causal=c), (3, 5, 4))
        X, dY = data(layer, (3, 5, 4))
        check_arrays(layer, 1e3 * X, dY)


@pytest.mark.parametrize("causal", [True, False])
def test_dropout_of_probabilities_in_blocks(causal, monkeypatch):
    monkeypatch.setattr(attention, "SCORES", 10)

    def make():
        return layers.MultiHeadAttention(4, causal=causal, kv_heads=2, dropout=0.4)

    scope = check_same(make, (3, 5, 8), mask=HOLES, first=4)
    assert "A" in scope
    assert "A" not in check_same(make, (3, 5, 8), training=False)


def test_each_step_of_time_distributed_is_a_sample():
    def inner():
        return layers.TimeDistributed(layers.MultiHeadAttention(2, dropout=0.5))

    check_same(inner, (2, 3, 4, 6), first=5)
    check_same(lambda: layers.TimeDistributed(inner()), (2, 2, 3, 4, 2), first=3)
    check_same(lambda: layers.TimeDistributed(layers.Dense(2)), (3, 5, 4), mask=HOLES)
    check_same(lambda: layers.TimeDistributed(layers.LSTM(2)), (3, 5, 4, 2), mask=HOLES)


def test_tokens_have_no_gradient():
    embedding = layers.Embedding
    makes = [
        lambda: layers.TimeDistributed(embedding(5, 2)),
        lambda: layers.Parallel(embedding(5, 2), layers.Chain(embedding(5, 3), layers.Tanh())),
        lambda: layers.Parallel(embedding(5, 2), embedding(5, 2), merge="add"),
        lambda: layers.Parallel(embedding(5, 2), embedding(5, 2), merge="multiply"),
        lambda: Sequential(Sequential(embedding(5, 4)), layers.LSTM(3)),
    ]
    for make in makes:
        assert check_same(make, (3, 4), tokens=5).find("dX") is None


def test_empty_containers_and_the_paths_of_layers_inside():
    for make in (layers.Chain, layers.Residual, layers.SkipConcat, Sequential):
        check_same(make, (2, 3))
    layer = made(lambda: layers.Chain(layers.Parallel(layers.Chain(layers.Dense(2)))), (2, 3))
    X, dY = data(layer, (2, 3))
    assert [s.path for s in scopes(by_steps(layer, X, dY))] == [path for path, _ in layer.walk()]
    layer = made(lambda: layers.Parallel(layers.Embedding(5, 2)), (2, 3))
    X, dY = data(layer, (2, 3), 5)
    seen = []
    with calling(step=0):
        scope = Scope(layer, X=X)
        stepwise.run(stepwise.forward(scope))
        stepwise.run(stepwise.backward(scope, dY), lambda at, value: seen.append(at.key) or value)
    assert "backward.dX" not in seen


RNG = np.random.default_rng(0)
X, DY = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 2))


def model_of(*layers):
    model = Sequential(*layers, dtype="float64", seed=1)
    model.build((3,))
    return model


def gate(*before):
    return Gate(layers.Chain(*before, layers.Dense(2)), layers.Dense(2))


def test_steps_record_no_state_and_both_passes_drop_the_same():
    """Outside training too, where each forward pass draws anew."""
    model = model_of(gate(layers.BatchNorm()))
    state = model.layers[0].inside["value"].layers[0].state["running_mean"]
    before = state.copy()
    fast = passes(model, X, DY)
    assert (state != before).all()
    state[...] = before
    with calling(step=0):
        slow = stepwise.passes(model, X, DY)
    np.testing.assert_array_equal(state, before)
    for path, gradient in stepwise.gradients(slow).items():
        np.testing.assert_array_equal(gradient, fast[path], err_msg=path)
    np.testing.assert_array_equal(state, before)
    model = model_of(
        Gate(layers.Dropout(0.5), layers.Lambda(np.ones_like, lambda dY, X, Y: 0 * dY))
    )
    scope = stepwise.passes(model, np.ones((5, 3)), np.ones((5, 3)))
    assert {*scope["Y"].flat} == {0, 2}
    np.testing.assert_array_equal(scope["dX"], scope["Y"])


def test_gradients_of_layers_inside_belong_to_the_scope():
    model = model_of(gate(layers.BatchNorm()), layers.Dense(1))
    with calling(step=0):
        scope = stepwise.passes(model, X, DY[:, :1])
        wanted = stepwise.gradients(scope)
        stepwise.passes(model, X + 1, 2 * DY[:, :1])
        found = stepwise.gradients(scope)
    assert "0.inside.value.layers.0.gamma" in wanted
    assert_same(found, wanted)


# --- the debugger ------------------------------------------------------------------------------


def test_the_debugger_knows_the_updates_of_layers_inside_and_changes_no_step():
    """The gradient of a parameter is read from the pass that ran for these arrays."""
    model = model_of(layers.Dense(3), gate(), layers.Tanh())
    db = model.debug(X, DY)
    db.cont()
    assert not any(row.dW or row.update for row in db.diff().rows)
    updates, trace = db._updates(), model.trace(X, DY)
    for path in ("0", "1.inside.gate"):
        np.testing.assert_allclose(updates[path]["W"], trace[f"{path}.update.W"].array, atol=1e-12)
    db.edit("2.dX", 0.0)
    db.cont()
    assert not db._updates()["1.inside.gate"]["W"].any()
    model = model_of(layers.Dense(3), Scale(), layers.Dense(2))
    db = model.debug(X, DY)
    db.until("2.backward.dX")
    db.edit("2.dX", 0.0)
    db.until("1.backward.dX")
    db.diff()
    db.step(2)
    assert not db.p("1.dgain").any()
    assert str(db.diff().rows[1].dW) == "1.0"


@pytest.mark.parametrize("key", ["1.inside.gate", "1.inside.gate.forward.Y"])
def test_the_debugger_does_not_stop_inside(key):
    db = model_of(layers.Dense(3), gate()).debug(X, DY)
    assert not any("inside" in place for place in db.places())
    for stop in (db.set_break, db.until):
        with pytest.raises(ArgumentError, match="a layer around it has no steps"):
            stop(key)
    assert db.count == 0


def test_losses_of_several_outputs_read_what_was_edited_and_receive_no_gradient(rng):
    b = SequentialBuilder(x=(3,)).dense(2).name("h").dense(2).output("a", loss="mse")
    loss = b.at("h").dense(2).output("b", loss="mae").build().loss
    P, T = (tuple(rng.standard_normal((2, 4, 2))) for _ in range(2))
    scope, seen = Scope(loss, **givens(loss, P, T, (None, None), None)), []

    def edit(position, value):
        seen.append(position.key)
        return value + 1 if position.key == "forward.P1" else value

    stepwise.run(stepwise.forward(scope, "P"), edit)
    stepwise.run(stepwise.backward(scope), edit)
    parts = zip(loss.children().values(), (P[0] + 1, P[1]), T, strict=True)
    whole = sum(part.value(P_k, T_k, None, 8) for part, P_k, T_k in parts)
    assert scope["L"] == pytest.approx(whole, rel=1e-12)
    assert not any("dY" in key for key in seen)
