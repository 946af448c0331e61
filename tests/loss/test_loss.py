"""Every loss: PyTorch's numbers, the derivative, weights and totals, labels, refusals, extremes."""

import inspect
import pickle

import numpy as np
import pytest

from phitodeep import Loss, SoftmaxCrossEntropy, check_gradients
from phitodeep import loss as L
from phitodeep.core.call import calling
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, ShapeError
from phitodeep.functional import log_softmax, one_hot, softmax
from phitodeep.layers import Chain, Dense, Tanh
from phitodeep.loss.categorical import _CrossEntropy
from phitodeep.testing.examples import LOSSES, WEIGHTS, pair
from phitodeep.testing.references import compare, loss_cases
from tests.conftest import assert_same
from tests.rows import LONG, PROBES, few

CASES = loss_cases()
EXAMPLES = [loss for loss, _ in LOSSES]
CLASSES = [loss for loss, targets in LOSSES if targets == "labels"]
OTHERS = [loss for loss, targets in LOSSES if targets in ("labels", "pixels")]
ELEMENTWISE = [loss for loss in EXAMPLES if loss.positions((5, 4)) == (5, 4)]
every = pytest.mark.parametrize("loss", EXAMPLES, ids=repr)
each_class = pytest.mark.parametrize("loss", CLASSES, ids=repr)
elementwise = pytest.mark.parametrize("loss", ELEMENTWISE, ids=repr)
# what one guard of a base class answers for all: a loss for each kind of targets, or all
GUARDED = EXAMPLES if LONG else [*{targets: loss for loss, targets in LOSSES}.values()]
guarded = pytest.mark.parametrize("loss", GUARDED, ids=repr)
guarded_classes = pytest.mark.parametrize("loss", few(CLASSES[1:], 3), ids=repr)


def both(loss, *args, **kwargs):
    return loss.loss_func(*args, **kwargs), loss.loss_gradient(*args, **kwargs)


def assert_both(found, wanted, rtol=1e-12):
    assert found[0] == pytest.approx(wanted[0], rel=rtol, abs=rtol)
    np.testing.assert_allclose(found[1], wanted[1], rtol=rtol, atol=rtol)


def test_table_covers_exactly_the_public_losses():
    public = {c for _, c in inspect.getmembers(L, inspect.isclass) if issubclass(c, Loss)}
    assert {type(loss) for loss in EXAMPLES} == public - {Loss, L.Elementwise}
    assert {case.partition("(")[0] for case in CASES} == {type(loss).__name__ for loss in EXAMPLES}


# --- values and derivatives --------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_loss_equals_pytorch(case):
    for dtype in ("float64", "float32"):
        assert compare("loss", case, dtype)[1] == []


@every
def test_gradient_is_the_derivative_of_the_value(loss):
    for shape in ((5, 4), (2, 3, 4), (1, 4)):
        P, y = pair(loss, shape)
        check_gradients(loss, P, y, max_probes=PROBES)
        w = np.linspace(0.2, 2, shape[0])
        check_gradients(loss, P, y, sample_weight=w, max_probes=PROBES)
        if isinstance(loss, _CrossEntropy):
            check_gradients(loss, P, softmax(2 * P), max_probes=PROBES)


@every
def test_arrays_keep_dtype_and_values_and_copies_are_alike(loss):
    P, y = pair(loss, (5, 4))
    w = np.linspace(0.5, 1, 5)
    given = P.copy(), y.copy(), w.copy()
    first = loss.loss_gradient(P, y, w)
    kept = first.copy()
    loss.loss_gradient(P + 0.01, y, w)
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, P)
    assert_same({"P": P, "y": y, "w": w}, dict(zip("Pyw", given, strict=True)))
    single = loss.loss_gradient(P.astype(np.float32), y, np.linspace(0.5, 1, 5))
    assert (single.dtype, single.shape) == (np.float32, P.shape)
    assert loss.loss_gradient(P, y, np.ones(5, np.float32)).dtype == np.float64
    assert type(loss.loss_func(P.astype(np.float32), y)) is float
    for twin in (pickle.loads(pickle.dumps(loss)), eval(repr(loss), vars(L) | vars(np))):
        assert type(twin) is type(loss)
        assert repr(twin) == repr(loss)
        assert_both(both(twin, P, y), both(loss, P, y))
    for seed, n in ((1, 5), (2, 5), (3, 3), (4, 5)):
        P, y = pair(loss, (n, 4), seed)
        T, w = loss.targets(y, P.shape), loss.weights(np.linspace(0.5, 1, n), y, P.shape)
        with calling(reuse=True):
            value, gradient = loss.value_and_gradient(P, T, w, None)
            assert_both((value, gradient), both(loss, P, y, np.linspace(0.5, 1, n)))


# --- weights and totals ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 4), (4, 3, 4)])
@every
def test_a_weight_counts_as_often_as_repeating_the_sample(loss, shape):
    P, y = pair(loss, shape)
    times = np.arange(shape[0]) % 3  # 0 leaves out
    value, gradient = both(loss, P, y, times)
    long_value, long_gradient = both(loss, np.repeat(P, times, 0), np.repeat(y, times, 0))
    assert value == pytest.approx(long_value)
    at = np.repeat(np.arange(shape[0]), times)
    for i in range(shape[0]):
        np.testing.assert_allclose(gradient[i], long_gradient[at == i].sum(0), atol=1e-15)


@every
def test_weights_of_positions_and_no_weight_at_all(loss):
    P, y = pair(loss, (2, 3, 4))
    per_sample = np.array([0.5, 2.0])
    positions = loss.positions(P.shape)
    spread = np.broadcast_to(per_sample.reshape(2, *[1] * (len(positions) - 1)), positions)
    assert_both(both(loss, P, y, spread), both(loss, P, y, per_sample))
    one = np.zeros(positions)
    one[1, 2] = 4.0
    value, gradient = both(loss, P, y, one)
    assert value == pytest.approx(loss.loss_func(P[1:, 2:], y[1:, 2:]))
    assert not gradient[0].any()
    assert not gradient[1, :2].any()
    P, y = pair(loss, (3, 4))
    assert_both(both(loss, P, y, np.zeros(3)), (0.0, np.zeros((3, 4))))
    assert_both(both(loss, P, y, total=0), (0.0, np.zeros((3, 4))))


@pytest.mark.parametrize("weighted", [False, True])
@every
def test_parts_with_the_total_add_up_to_the_whole(loss, weighted):
    P, y = pair(loss, (7, 3, 4))
    w = np.linspace(0.1, 2, 7) if weighted else None
    total = loss.divisor(loss.targets(y, P.shape), loss.weights(w, y, P.shape), P.shape)
    parts = [
        both(loss, P[s], y[s], None if w is None else w[s], total=total)
        for s in (slice(0, 5), slice(5, 7))
    ]
    together = parts[0][0] + parts[1][0], np.concatenate([parts[0][1], parts[1][1]])
    assert_both(together, both(loss, P, y, w))
    half = both(loss, P, y, w, total=2 * total)
    assert_both((2 * half[0], 2 * half[1]), both(loss, P, y, w))


# --- regression by hand ------------------------------------------------------------------------


@elementwise
def test_a_vector_of_targets_fits_one_output_only_and_nothing_is_broadcast(loss):
    P, y = pair(loss, (6, 1))
    assert_both(both(loss, P, y[:, 0]), both(loss, P, y))
    assert_both(both(loss, P, y[:, 0].tolist()), both(loss, P, y))
    assert loss.loss_gradient(P, y[:, 0]).shape == (6, 1)
    for bad in (y.T, y[None], y[:5], y[:5, 0], y[0], y[:1]):
        with pytest.raises(ShapeError, match=r"predictions of shape \(6, 1\)"):
            loss.loss_func(P, bad)
    with pytest.raises(ShapeError, match=r"y_val of the same shape or \(n,\), got y_val of shape"):
        loss.targets(y[:5], (6, 1), "y_val")
    for bad in (y, np.hstack([y, y])):
        with pytest.raises(ShapeError, match=r"predictions of shape \(6,\)"):
            loss.loss_gradient(P[:, 0], bad)
    P, y = pair(loss, (6, 4))
    for shape in ((6,), (6, 1), (1, 4), (4,), (5, 4), (6, 3), (6, 4, 1), (1,), ()):
        bad = np.resize(y, shape)
        with pytest.raises(ShapeError, match=type(loss).__name__):
            loss.loss_func(P, bad)
        with pytest.raises(ShapeError):
            loss.loss_gradient(P, bad)


# --- labels ------------------------------------------------------------------------------------


@each_class
def test_label_forms_mean_the_same_and_rows_are_mixtures(loss):
    """The loss is linear in the rows: over all one-hot rows, weighed by their probability."""
    P, y = pair(loss, (6, 4))
    if loss.ignore_index is not None:
        y[y == 2] = 1  # one-hot rows cannot be ignored
    wanted = both(loss, P, y)
    hot = one_hot(y, 4)
    for form in (y.tolist(), y[:, None], y.astype(np.uint8), hot, hot.astype(int), hot > 0):
        assert_both(both(loss, P, form), wanted, rtol=1e-6)
    assert_both(both(loss, P, hot.astype(float)), wanted)
    P, _ = pair(loss, (1, 4))
    q = np.array([[0.1, 0.2, 0.3, 0.4]])
    mixed = sum(p * loss.loss_func(P, np.eye(4)[[k]], total=1) for k, p in enumerate(q[0]))
    assert loss.loss_func(P, q, total=1) == pytest.approx(mixed)


@pytest.mark.parametrize("ignored", [-1, -100, 2, 7])
@pytest.mark.parametrize(
    "make", [L.CategoricalCrossEntropy, SoftmaxCrossEntropy, L.NegativeLogLikelihood]
)
def test_ignored_labels_count_for_nothing(make, ignored):
    loss = make(ignore_index=ignored, class_weight=WEIGHTS)
    P, y = pair(loss, (6, 4))
    y = np.where(y == 2, 1, y)
    y[[1, 4]] = ignored
    kept = y != ignored
    value, gradient = both(loss, P, y, np.arange(1, 7))
    short = both(make(class_weight=WEIGHTS), P[kept], y[kept], np.arange(1, 7)[kept])
    assert_both((value, gradient[kept]), short)
    assert not gradient[~kept].any()
    P, _ = pair(loss, (2, 3, 4))
    for class_weight in (None, WEIGHTS):
        loss = make(ignore_index=ignored, class_weight=class_weight)
        assert_both(both(loss, P, np.full((2, 3), ignored)), (0.0, np.zeros(P.shape)))


def test_class_weights_have_two_forms_and_rows_may_miss_one_by_a_thousandth():
    """Those in order are kept as plain numbers; what is wrong is refused when it is used."""
    P, y = pair(SoftmaxCrossEntropy(), (6, 4))
    wanted = both(SoftmaxCrossEntropy(class_weight=[1, 3, 1, 0]), P, y)
    named = [{1: 3, 3: 0}, {"1": 3.0, "3": 0.0}, {0: 1, 1: 3, 2: 1, 3: 0}]
    for form in (*named, (1, 3, 1, 0), np.array([1, 3, 1, 0])):
        assert_both(both(SoftmaxCrossEntropy(class_weight=form), P, y), wanted)
    assert wanted[0] == pytest.approx(
        both(SoftmaxCrossEntropy(), P, y, np.array([1, 3, 1, 0])[y])[0]
    )
    for weights in ([1, 2.5], (1, 2.5), np.array([1, 2.5])):
        loss = SoftmaxCrossEntropy(class_weight=weights)
        assert loss.class_weight == (1.0, 2.5)
        assert all(type(weight) is float for weight in loss.class_weight)
        assert repr(loss) == "SoftmaxCrossEntropy(class_weight=(1.0, 2.5))"
    assert SoftmaxCrossEntropy(class_weight={1: 2}).class_weight == {1: 2}
    for bad, says in (
        (["a", "b"], "class_weight takes real numbers"),
        ([[1], [1, 2]], "class_weight takes an array"),
        ("balanced", "an option of train"),
    ):
        loss = SoftmaxCrossEntropy(class_weight=bad)
        with pytest.raises(PhitodeepError, match=says):
            loss.loss_func(np.zeros((1, 2)), [0])
    for off in (-9e-4, 9e-4):
        SoftmaxCrossEntropy().loss_func(np.zeros((1, 2)), [[0.5, 0.5 + off]])
    for off in (-2e-3, 2e-3):
        with pytest.raises(ArgumentError, match="summing to 1"):
            SoftmaxCrossEntropy().loss_func(np.zeros((1, 2)), [[0.5, 0.5 + off]])


# --- refusals ----------------------------------------------------------------------------------


BAD_LABELS = [
    ([0, 1], ShapeError, r"predictions of shape \(3, 4\).*got y of shape \(2,\)"),
    ([[0, 1, 2]], ShapeError, r"\(1, 3\)"),
    ([[[0], [1], [2]]], ShapeError, r"\(1, 3, 1\)"),
    (np.zeros((3, 3), int), ShapeError, r"\(3, 3\)"),
    (np.zeros((3, 5), int), ShapeError, r"\(3, 5\)"),
    (1, ShapeError, r"\(\)"),
    ([], ShapeError, r"\(0,\)"),
    ([0.0, 1.0, 2.0], ArgumentTypeError, r"integers.*float64.*astype\(int\)"),
    ([[0.5], [0.5], [0.5]], ArgumentTypeError, "integers"),
    ([True, False, True], ArgumentTypeError, "integers.*bool"),
    ([0, 1, 4], ArgumentError, r"0 to 3 for 4 classes, got 4 at y\[2\]"),
    ([0, -1, 3], ArgumentError, r"got -1 at y\[1\]"),
    ([[0], [9], [3]], ArgumentError, r"got 9 at y\[1, 0\]"),
    ([0.0, np.nan, 1.0], ArgumentError, r"y\[1\] is nan"),
    ([[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, 0, np.inf, 0]], ArgumentError, r"y\[2, 2\] is inf"),
    (2 * np.eye(3, 4), ArgumentError, "summing to 1"),
    (np.zeros((3, 4)), ArgumentError, "summing to 1"),
    ([[2, -1, 0, 0]] * 3, ArgumentError, ">= 0"),
    (["a", "b", "c"], ArgumentTypeError, "real numbers"),
    ([1j, 0, 0], ArgumentTypeError, "complex"),
    ([None, 0, 1], ArgumentTypeError, "real numbers"),
    ([[0], [1, 2], [0]], ShapeError, "unequal length"),
]
BAD_TARGETS = [
    ([[np.nan, 1], [1, 1]], ArgumentError, r"y\[0, 0\] is nan"),
    ([[1, 1], [1, -np.inf]], ArgumentError, r"y\[1, 1\] is -inf"),
    ([["a", "b"], ["c", "d"]], ArgumentTypeError, "real numbers.*<U1"),
    ([[1j, 1], [1, 1]], ArgumentTypeError, "complex"),
    ([[None, 1], [1, 1]], ArgumentTypeError, "real numbers"),
    ([[1], [1, 1]], ShapeError, "unequal length"),
]
OF_ANOTHER_KIND = [
    (L.Hinge(), [[0.0], [1.0]], r"Hinge.*-1 and \+1.*2 \* y - 1"),
    (L.SquaredHinge(), [[0], [1]], r"SquaredHinge.*-1 and \+1"),
    (L.Hinge(), [[0.5], [1.0]], r"-1 and \+1"),
    (L.BinaryCrossEntropy(), [[-1], [1]], "from 0 to 1.*from -1 to 1"),
    (L.BinaryCrossEntropyWithLogits(), [[0], [2]], "from 0 to 1.*to 2"),
    (L.PoissonNLL(), [[-1], [2]], "counts y >= 0.*-1"),
    (L.KLDivergence(), [[-0.5], [1.5]], "probabilities y >= 0.*-0.5"),
]
BAD_PREDICTIONS = [
    (np.array([["a"]]), ArgumentTypeError),
    (np.array([[1j]]), ArgumentTypeError),
    (np.array([[None]]), ArgumentTypeError),
    ([[1.0], [1.0, 2.0]], ShapeError),
    (np.zeros((0, 4)), ShapeError),
    (np.zeros((4, 0)), ShapeError),
]
BAD_WEIGHTS = [
    ([1.0, -1.0, 1.0], ArgumentError, ">= 0.*-1"),
    ([1.0, np.nan, 1.0], ArgumentError, r"sample_weight\[1\] is nan"),
    ([1.0, np.inf, 1.0], ArgumentError, r"sample_weight\[1\] is inf"),
    ([1.0, 1.0], ShapeError, r"\(3,\).*got \(2,\)"),
    ([[1.0], [1.0], [1.0]], ShapeError, r"got \(3, 1\)"),
    ([[1.0, 1.0, 1.0]], ShapeError, r"got \(1, 3\)"),
    (2.0, ShapeError, r"got \(\)"),
    (["a", "b", "c"], ArgumentTypeError, "sample_weight takes real numbers"),
    ([1j, 1, 1], ArgumentTypeError, "complex"),
]
BAD_SETTINGS = {
    "Huber(0)": "Huber delta must be > 0, got 0",
    "Huber(-1.0)": "Huber delta",
    "Huber('1')": "Huber delta must be a number",
    "SoftmaxCrossEntropy(1.0)": "label_smoothing must be >= 0 and < 1, got 1",
    "CategoricalCrossEntropy(-0.1)": "label_smoothing",
    "SoftmaxCrossEntropy(ignore_index=0.5)": "ignore_index must be an integer",
    "NegativeELBO(0)": "NegativeELBO latent must be >= 1, got 0",
    "NegativeELBO(2.0)": "NegativeELBO latent must be an integer",
    "NegativeELBO(beta=-1)": "NegativeELBO beta must be >= 0, got -1",
}
BAD_CLASS_WEIGHTS = [
    *([1.0, 2.0], [1, -1, 1, 1], [1, np.nan, 1, 1], [1, np.inf, 1, 1], np.ones((2, 2)), {4: 1}, 2.0)
]
BAD_WIDTHS = [
    ((3, 6), (3, 2), r"NegativeELBO\(3\) takes.*6 \+ D.*got shape \(3, 6\)\. Does lat"),
    ((3, 5), (3, 5), r"3 means, as many log variances, and D logits"),
    ((8,), (2,), r"got shape \(8,\)"),
    ((3, 8), (3, 8), r"predictions of shape \(3, 2\).*got y of shape \(3, 8\)"),
    ((3, 8), (3,), r"got y of shape \(3,\)"),
    ((3, 8), (2, 2), r"got y of shape \(2, 2\)"),
    ((2, 3, 8), (2, 2), r"predictions of shape \(2, 3, 2\)"),
]


@guarded_classes
def test_bad_labels_and_predictions_without_classes_are_refused(loss):
    P = np.full((3, 4), 0.25)
    for y, error, says in BAD_LABELS:
        one = type(loss)() if says.startswith("got -1") else loss
        for function in (one.loss_func, one.loss_gradient):
            with pytest.raises(error, match=says):
                function(P, y)
        with pytest.raises(error, match="y_val"):
            one.targets(y, P.shape, "y_val")
    P = np.full((2, 3, 4), 0.25)
    for shape in ((2,), (2, 1), (3,), (1, 3), (6,), (2, 3, 1), (2, 4), (2, 3, 3)):
        with pytest.raises(ShapeError, match=r"predictions of shape \(2, 3, 4\)"):
            loss.loss_func(P, np.zeros(shape, int))
    for shape in ((), (3,), (3, 1), (3, 2, 1)):
        with pytest.raises(ShapeError, match=r"K >= 2 classes.*BinaryCrossEntropy"):
            loss.loss_func(np.full(shape, 0.5), np.zeros(shape, int))


@pytest.mark.parametrize("loss", [v for v in GUARDED if v not in OTHERS], ids=repr)
def test_bad_targets_are_refused(loss):
    kinds = [(other, y, ArgumentError, says) for other, y, says in OF_ANOTHER_KIND]
    for one, y, error, says in (*((loss, *row) for row in BAD_TARGETS), *kinds):
        P = np.full((2, 2 if one is loss else 1), 0.5)
        for function in (one.loss_func, one.loss_gradient):
            with pytest.raises(error, match=says):
                function(P, y)
        with pytest.raises(error, match="y_val"):
            one.targets(y, P.shape, "y_val")


@guarded
def test_bad_predictions_weights_and_totals_are_refused(loss):
    for P, error in BAD_PREDICTIONS:
        with pytest.raises(error, match=type(loss).__name__):
            loss.loss_func(P, np.zeros(np.shape(P) if isinstance(P, np.ndarray) else (2, 1)))
    P, y = pair(loss, (3, 4))
    for w, error, says in BAD_WEIGHTS:
        for function in (loss.loss_func, loss.loss_gradient):
            with pytest.raises(error, match=says):
                function(P, y, w)
    for bad in (-1, np.nan, np.inf, "1", True):
        with pytest.raises(PhitodeepError, match="total must be"):
            loss.loss_func(P, y, total=bad)


def test_bad_settings_are_refused():
    for call, says in BAD_SETTINGS.items():
        with pytest.raises(PhitodeepError, match=says):
            eval(call, dict(vars(L)))
    for class_weight in BAD_CLASS_WEIGHTS:
        loss = SoftmaxCrossEntropy(class_weight=class_weight)
        with pytest.raises(ArgumentError, match="class_weight"):
            loss.loss_func(np.zeros((2, 4)), [0, 1])
        with pytest.raises(ArgumentError, match="class_weight"):  # before any training
            loss.targets([0, 1], (2, 4))
    for P, y, says in BAD_WIDTHS:
        with pytest.raises(ShapeError, match=says):
            L.NegativeELBO(3).loss_func(np.zeros(P), np.zeros(y))
    for bad, says in ((-0.1, "from -0.1"), (255.0, "to 255"), (np.nan, "nan")):
        with pytest.raises(ArgumentError, match=says):
            L.NegativeELBO(1).loss_func(np.zeros((1, 4)), [[1.0, bad]])
        with pytest.raises(ArgumentError, match=says):
            L.NegativeELBO(1).targets([[bad]], (1, 3), "y_val")


# --- extremes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every
def test_extreme_predictions_stay_finite(loss, dtype):
    """Probabilities of exactly 0 and 1, logits and numbers of +-1e4; exp(1e4) is no number."""
    _, y = pair(loss, (8, 4))
    extremes = np.random.default_rng(0).choice([-1.0, 1.0], (8, 4))
    extremes[0], extremes[1] = 1, -1
    if loss.wants == "probabilities" or repr(loss) == "PoissonNLL(False)":
        extremes = (extremes + 1) / 2
    elif type(loss) in (L.PoissonNLL, L.NegativeELBO):  # which take the exponential of a P
        extremes = np.minimum(1e4 * extremes, 50)
    else:
        extremes *= 1e4
    for P in (extremes, 0 * extremes):
        with np.errstate(all="raise", under="ignore"):
            value, gradient = both(loss, P.astype(dtype), y)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logarithms_are_held_at_the_least_normal_number(dtype):
    tiny = np.finfo(dtype).tiny
    P = np.array([[0.0, 1.0]], dtype)
    for loss, y in ((L.CategoricalCrossEntropy(), [0]), (L.BinaryCrossEntropy(), [[1, 1]])):
        value, gradient = both(loss, P, y, total=1)
        assert value == pytest.approx(-np.log(tiny), rel=1e-6)
        assert gradient[0, 0] == 0  # flat there
        assert both(loss, 1 - P, 1 - np.array(y), total=1)[0] == pytest.approx(value)
        value, gradient = both(loss, np.array([[tiny, 1.0]], dtype), y, total=1)
        assert value == pytest.approx(-np.log(tiny), rel=1e-6)
        assert gradient[0, 0] == pytest.approx(-1 / tiny, rel=1e-6)  # never shifted by an epsilon


MINUS = -np.inf
MASKED = np.array([[1.0, 0.0, MINUS], [0.0, MINUS, 2.0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("class_weight", [None, [1.0, 2.0, 3.0], {1: 0.5}])
@pytest.mark.parametrize("y", [[1, 0], [[0, 1, 0], [1, 0, 0]], [[0.4, 0.6, 0], [0.3, 0, 0.7]]])
def test_a_logit_of_minus_infinity_is_a_class_that_is_not_there(y, class_weight, dtype):
    """The loss is that for a logit so low that its exponential is 0."""
    loss = SoftmaxCrossEntropy(class_weight=class_weight)
    wanted = both(loss, np.maximum(MASKED, -1000).astype(dtype), y)
    for P in (MASKED.astype(dtype), MASKED[:, None].astype(dtype)):
        T = loss.targets(np.reshape(y, (*P.shape[:-1], *np.shape(y)[1:])), P.shape)
        with np.errstate(all="raise", under="ignore"):
            value, gradient = loss.value_and_gradient(P, T)
            assert loss.loss_func(P, T) == pytest.approx(value, rel=1e-6)
        assert_both((value, gradient.reshape(2, 3)), wanted, rtol=1e-6)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (SoftmaxCrossEntropy(), [2, 0]),
        (SoftmaxCrossEntropy(class_weight=[1.0, 2.0, 3.0]), [2, 0]),
        (SoftmaxCrossEntropy(0.1), [1, 0]),
        (SoftmaxCrossEntropy(), [[0.5, 0.3, 0.2], [1, 0, 0]]),
    ],
)
def test_a_target_at_minus_infinity_costs_infinitely_much(loss, y):
    """The gradient is still p - t, which says where to go."""
    value, gradient = loss.value_and_gradient(MASKED, loss.targets(y, MASKED.shape))
    assert value == loss.loss_func(MASKED, y) == np.inf
    low = both(loss, np.maximum(MASKED, -1000), y)[1]
    np.testing.assert_allclose(gradient, low, rtol=1e-12)


@pytest.mark.parametrize("class_weight", [None, [1.0, 2.0, 3.0], [0.0, 1.0, 1.0]])
def test_what_weighs_nothing_costs_nothing_at_minus_infinity(class_weight):
    P, loss = np.array([[MINUS, 0.0, 1.0], [0.5, 0.0, 1.0]]), SoftmaxCrossEntropy
    wanted = both(loss(class_weight=class_weight), P[1:], [1])
    for found in (
        both(loss(ignore_index=-1, class_weight=class_weight), P, [-1, 1]),
        both(loss(ignore_index=0, class_weight=class_weight), P, [0, 1]),
        both(loss(class_weight=class_weight), P, [0, 1], [0.0, 1.0]),
    ):
        assert found[0] == pytest.approx(wanted[0])
        np.testing.assert_allclose(found[1], [[0, 0, 0], wanted[1][0]], atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, MINUS])
@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (SoftmaxCrossEntropy(), [0, 1]),
        (SoftmaxCrossEntropy(0.1, class_weight=[1.0, 2.0]), [0, 1]),
        (L.CategoricalCrossEntropy(), [[1.0, 0.0], [0.3, 0.7]]),
        (L.NegativeLogLikelihood(), [0, 1]),
        (L.MeanSquaredError(), [[1.0, 2.0], [3.0, 4.0]]),
        (L.Huber(), [[1.0, 2.0], [3.0, 4.0]]),
        (L.LogCosh(), [[1.0, 2.0], [3.0, 4.0]]),
        (L.BinaryCrossEntropyWithLogits(), [[1.0, 0.0], [0.0, 1.0]]),
        (L.PoissonNLL(), [[1.0, 0.0], [0.0, 1.0]]),
        (L.KLDivergence(), [[1.0, 0.0], [0.3, 0.7]]),
        (L.CosineSimilarityLoss(), [[1.0, 2.0], [3.0, 4.0]]),
        (L.SquaredHinge(), [[1.0, -1.0], [-1.0, 1.0]]),
    ],
)
def test_a_row_of_weight_0_costs_nothing_whatever_it_predicts(loss, y, bad, dtype):
    P = np.array([[0.3, 0.6], [0.2, 0.4]], dtype)
    wanted = both(loss, P, y, [0.0, 2.0])
    P[0] = bad
    with np.errstate(all="ignore"):
        value, gradient = both(loss, P, y, [0.0, 2.0])
    assert_both((value, gradient), wanted, rtol=1e-6)
    assert gradient.dtype == dtype
    assert not gradient[0].any()


def test_infinite_logits_cost_nothing_where_the_target_agrees():
    loss, P = L.BinaryCrossEntropyWithLogits(), np.array([[MINUS, np.inf, 0.0]])
    with np.errstate(all="raise", under="ignore"):
        value, gradient = both(loss, P, [[0, 1, 1]])
    assert value == pytest.approx(np.log(2) / 3)
    np.testing.assert_allclose(gradient, [[0, 0, -0.5 / 3]])
    assert loss.loss_func(P, [[1, 1, 1]]) == loss.loss_func(P, [[0.1, 1, 1]]) == np.inf
    np.testing.assert_allclose(loss.loss_gradient(P, [[1, 0, 1]], total=1), [[-1, 1, -0.5]])
    log_p = np.array([[0.0, MINUS]])
    assert L.KLDivergence().loss_func(log_p, [[1.0, 0.0]]) == 0
    assert L.KLDivergence().loss_func(log_p, [[0.5, 0.5]]) == np.inf
    log_p = np.array([[0.0, -np.inf]])
    for loss in (L.NegativeLogLikelihood(), L.NegativeLogLikelihood(class_weight=[1.0, 1.0])):
        assert loss.loss_func(log_p, [0]) == 0
        assert loss.loss_func(log_p, [[1.0, 0.0]]) == 0


# --- digits ------------------------------------------------------------------------------------

SIZES = np.geomspace(1e-18, 80, 300)
WIDE = np.concatenate([-SIZES[::-1], [0], SIZES])
SHARES = np.concatenate([SIZES[SIZES < 0.5], 1 - np.geomspace(0.5, 6e-8, 50)])


def crossed(P, T):
    """Each P with each T, in numbers that float32 holds, as (n, 1)."""
    both = np.meshgrid(np.asarray(P, np.float32), np.asarray(T, np.float32))
    return both[0].reshape(-1, 1), both[1].reshape(-1, 1)


PROBABLE = [0.0, 1.0, 0.05, 0.95, 1 - 1e-6, 1e-6]
GRIDS = [
    *[(loss, WIDE, [0.0, 0.3, -2.0]) for loss in EXAMPLES[:5]],
    (L.LogCosh(), [-1e30, -1e4, 1e4, 1e30], [0.0]),
    (L.BinaryCrossEntropy(), SHARES, PROBABLE),
    (L.BinaryCrossEntropyWithLogits(), WIDE, PROBABLE),
    *[(loss, WIDE, [-1.0, 1.0]) for loss in (L.Hinge(), L.SquaredHinge())],
    (L.PoissonNLL(), WIDE, [0.0]),
    (L.PoissonNLL(False), SIZES, [0.0]),
]


@pytest.mark.parametrize(("loss", "P", "T"), GRIDS, ids=lambda v: repr(v)[:40])
def test_each_loss_has_the_digits_of_its_precision(loss, P, T):
    """float32 gives what float64 gives for the same numbers, however small the loss is."""
    P, T = crossed(P, T)
    with np.errstate(under="ignore"):
        found, wanted = loss.each(P, T), loss.each(P.astype(float), T.astype(float))
    assert found.dtype == np.float32
    assert (found >= 0).all() or isinstance(loss, L.PoissonNLL)
    held = np.abs(wanted) > 1e-37
    np.testing.assert_allclose(found[held], wanted[held], rtol=3e-6)
    if loss.wants != "probabilities":  # whose slopes divide by 1 - p
        slope, wanted = loss.slope(P, T), loss.slope(P.astype(float), T.astype(float))
        hard = np.isin(T, [0, 1, -1, -2])  # a soft target cancels where it is p
        np.testing.assert_allclose(slope[hard], wanted[hard], rtol=3e-6, atol=1e-37)
        np.testing.assert_allclose(slope, wanted, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [L.PoissonNLL(), L.PoissonNLL(False), L.KLDivergence()], ids=repr)
def test_differences_have_the_digits_of_their_terms(loss):
    """Where a loss is a difference whose zero is no minimum, its error is that of its terms."""
    P, T = crossed(SIZES if repr(loss) == "PoissonNLL(False)" else WIDE, [0.3, 1, 4])
    wide = loss.each(P.astype(float), T.astype(float))
    log_size = np.abs(np.log(P if repr(loss) == "PoissonNLL(False)" else T))
    terms = T * (np.abs(P) + log_size) + np.exp(P if loss.wants == "numbers" else 0)
    assert (np.abs(loss.each(P, T) - wide) <= 3e-7 * (terms + np.abs(wide))).all()


@pytest.mark.parametrize("gap", [1.0, 15.0, 20.0, 60.0])
@pytest.mark.parametrize("form", ["labels", "one-hot", "weights", "log-probabilities"])
def test_cross_entropy_has_the_digits_of_a_sure_prediction(form, gap):
    P = np.array([[0.0, gap, 0.5 - gap]], np.float32)
    y = np.eye(3)[[1]] if form == "one-hot" else [1]
    loss = SoftmaxCrossEntropy(class_weight=[2.0, 2.0, 2.0] if form == "weights" else None)
    exact = np.exp([-gap, 0.5 - 2 * gap])
    r = exact.sum()
    wanted = np.array([exact[0], -r, exact[1]]) / (1 + r)
    assert loss.loss_func(P, y) == pytest.approx(np.log1p(r), rel=1e-6)
    if form == "log-probabilities":
        loss, P = L.NegativeLogLikelihood(), log_softmax(P)
        assert loss.loss_func(P, y) == pytest.approx(np.log1p(r), rel=1e-6)
        return
    value, gradient = loss.value_and_gradient(P, loss.targets(y, P.shape))
    assert value == pytest.approx(np.log1p(r), rel=1e-6)
    np.testing.assert_allclose(gradient, [wanted], rtol=2e-6, atol=1e-37)


def test_cosine_has_the_digits_of_small_angles():
    angles = np.geomspace(1e-3, np.pi, 60)
    for p in (1e-30, 1.0, 1e30):
        P = (p * np.stack([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)
        T = np.tile(np.array([3.0, 0.0], np.float32), (60, 1))
        for t in (1e-35, 1.0, 1e35):
            loss = L.CosineSimilarityLoss()
            found = loss.each(P, T * np.float32(t))
            wide = P.astype(float) / np.linalg.norm(P.astype(float), axis=1, keepdims=True)
            np.testing.assert_allclose(found, 2 * np.sin(np.arctan2(*wide.T[::-1]) / 2) ** 2, 3e-4)
            slope = loss.slope(P, T * np.float32(t))
            np.testing.assert_allclose(
                slope * p, np.stack([-(wide[:, 1] ** 2), np.prod(wide, 1)], axis=1), 2e-3, 1e-6
            )
    P, _ = pair(L.CosineSimilarityLoss(), (20, 7))
    for scale in (1, 3, 0.1):
        assert 0 <= L.CosineSimilarityLoss().loss_func(P.astype("f4"), scale * P) < 1e-13
    with np.errstate(invalid="ignore"):
        assert np.isnan(L.CosineSimilarityLoss().loss_func([[np.nan, 1.0]], [[1.0, 1.0]]))


def test_negative_elbo_has_its_digits():
    m, s = crossed(WIDE, WIDE[::5])
    P = np.hstack([m, s, m])
    T = (m > 0).astype(np.float32)
    for part, wanted in zip(
        L.NegativeELBO(1).parts(P, T), L.NegativeELBO(1).parts(P.astype(float), T), strict=True
    ):
        held = wanted > 1e-37
        assert (part >= 0).all()
        np.testing.assert_allclose(part[held], wanted[held], rtol=5e-6)


def test_slopes_at_the_kinks_and_cosines_of_nothing():
    T = np.array([[1.0, -1.0]])
    for loss in (L.Hinge(), L.SquaredHinge()):
        assert_both(both(loss, T, T), (0.0, np.zeros((1, 2))))
    assert_both(both(L.Huber(2.0), T + 2, T), (2.0, np.ones((1, 2))))
    (P, y), loss = pair(L.CosineSimilarityLoss(), (3, 4)), L.CosineSimilarityLoss()
    assert_both(both(loss, 0 * P, y), (1.0, np.zeros((3, 4))))
    assert_both(both(loss, P, 0 * y), (1.0, np.zeros((3, 4))))
    assert loss.loss_func(P, -P) == pytest.approx(2)


def test_parts_of_the_negative_elbo_and_samples_without_steps():
    rng = np.random.default_rng(5)
    m, s, Z, X = *rng.standard_normal((3, 6, 3)), rng.random((6, 3))
    reconstruction, divergence = L.NegativeELBO(3, beta=0.3).parts(np.hstack([m, s, Z]), X)
    assert reconstruction.shape == divergence.shape == (6,)
    pixels = L.BinaryCrossEntropyWithLogits().loss_func(Z, X, total=1)
    assert reconstruction.sum() == pytest.approx(pixels)
    assert divergence.sum() == pytest.approx(0.5 * (m**2 + np.exp(s) - s - 1).sum())
    P, y = pair(L.KLDivergence(), (2, 3, 4))
    w = np.zeros((2, 3, 4))
    w[0, :2] = 1
    assert L.KLDivergence().loss_func(P, y, w) == pytest.approx(
        L.KLDivergence().loss_func(P[:1, :2], y[:1, :2])
    )


def test_what_losses_declare_of_classes_thresholds_and_sums():
    logits = {L.BinaryCrossEntropyWithLogits, L.Hinge, L.SquaredHinge, L.NegativeELBO}
    for loss in EXAMPLES:
        assert loss.threshold == (0.0 if type(loss) in logits else 0.5)
    meant = {"shares": (0, 1), "signs": (-1, 1), "labels": (0, 1, 2, 3)}
    for loss, targets in LOSSES:
        wanted = meant.get(targets)
        assert loss.classes((5, 4)) == loss.classes((5, 3, 4)) == wanted
    for y, dtype in (([[1]], np.float32), (np.ones((1, 1), np.float16), np.float32)):
        assert L.MeanSquaredError().targets(y, (1, 1)).dtype == dtype
    assert L.MeanSquaredError().targets([[1.0]], (1, 1)).dtype == np.float64
    assert SoftmaxCrossEntropy().targets(np.eye(2, dtype=int), (2, 2)).dtype == np.float32
    assert SoftmaxCrossEntropy().targets(np.array([1], np.int8), (1, 2)).dtype == np.int64
    w = np.array([2**24, 1, 1], np.float32)  # float32 cannot hold their sum
    for loss in EXAMPLES:
        P, y = pair(loss, (3, 4))
        if isinstance(loss, _CrossEntropy):
            loss, y = SoftmaxCrossEntropy(), np.array([0, 1, 2])
        count = 4 if loss in ELEMENTWISE and type(loss) is not L.KLDivergence else 1
        total = loss.divisor(loss.targets(y, P.shape), loss.weights(w, y, P.shape), P.shape)
        assert total == count * (2**24 + 2)


def test_a_loss_is_written_by_its_author():
    one = np.ones((1, 1))
    for loss, name in ((Loss(), "value"), (Loss(), "gradient"), (L.Elementwise(), "each")):
        with pytest.raises(
            NotImplementedError, match=f"{type(loss).__name__} must implement {name}"
        ):
            loss.loss_func(one, one) if name != "gradient" else loss.gradient(one, one, None, None)
    with pytest.raises(NotImplementedError, match="Elementwise must implement slope"):
        L.Elementwise().gradient(one, one, None, None)


def test_a_loss_may_run_layers_inside_a_training_step(rng):
    features = Chain(Dense(4), Tanh())
    features.build((3,), seed=0, dtype=np.float64)

    class Alike(Loss):
        """Half the squared distance between the features of P and of T."""

        def value(self, P, T, w, total):
            return ((features.forward(P) - features.forward(T)) ** 2).sum() / (2 * total)

        def gradient(self, P, T, w, total):
            wanted = features.forward(T)
            return features.backward((features.forward(P) - wanted) / total)

    P, T = rng.standard_normal((2, 5, 3))
    with calling(needs_dX=False, reuse=True):  # as in a step whose first layer learns alone
        L, dP = Alike().value_and_gradient(P, T, total=5)
    slope = (Alike().value(P + 1e-6 * dP, T, None, 5) - Alike().value(P, T, None, 5)) / 1e-6
    assert L == Alike().value(P, T, None, 5) > 0
    np.testing.assert_allclose(slope, (dP**2).sum(), rtol=1e-4)


def test_a_prediction_that_is_nan_shows_and_gradients_come_alone(rng):
    for loss in EXAMPLES:
        P, y = pair(loss, (3, 4))
        P[1] = np.nan
        with np.errstate(invalid="ignore"):
            assert np.isnan(loss.loss_func(P, y)), loss
    loss, P, T = SoftmaxCrossEntropy(0.1), rng.standard_normal((4, 3)), np.array([0, 2, 1, 1])
    np.testing.assert_array_equal(loss.gradient(P, T, None, None), loss.loss_gradient(P, T))
