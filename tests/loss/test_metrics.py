"""Metrics against counts by hand, plain loops, and themselves over parts of the data."""

import functools
import inspect
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phitodeep import SequentialBuilder, metrics
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.loss.metrics import METRICS, R2, Custom, Metric, TopKAccuracy
from tests.conftest import check_refused, refusals
from tests.rows import times

accuracy, top_k_accuracy, precision, recall, f1, confusion_matrix, mae, r2 = METRICS.values()
OF_CLASSES = (accuracy, precision, recall, f1, TopKAccuracy(2))
SCORES = np.array(
    [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1], [0.3, 0.4, 0.3]]
)
LABELS = np.array([0, 1, 1, 0, 2])  # predicted: 0 1 2 0 1


def test_all_names_are_here():
    names = "accuracy top_k_accuracy precision recall f1 confusion_matrix mae r2"
    assert " ".join(METRICS) == names
    public = {c for _, c in inspect.getmembers(metrics, inspect.isclass) if issubclass(c, Metric)}
    kinds = {c for c in public if c.__name__[0] != "_"} - {Metric, Custom}
    assert kinds == {type(metric) for metric in METRICS.values()}
    assert [repr(TopKAccuracy(3)), repr(metrics.MAE())] == ["TopKAccuracy(3)", "MAE()"]
    for name, metric in METRICS.items():
        assert metric is getattr(metrics, name)
        assert metric.name == name
        kind = float if metric.scalar else np.ndarray
        assert type(metric(np.full((2, 6), 0.5), np.zeros((2, 6)))) is kind
    P, T = SCORES.copy(), LABELS.copy()
    P.flags.writeable = T.flags.writeable = False
    for metric in OF_CLASSES:
        metric(P, T)
    for metric in (mae, r2):
        metric(P, P)


def test_values_by_hand(rng):
    assert accuracy(SCORES, LABELS) == 3 / 5
    # class 0: 2 hits of 2 guesses, 2 there; class 1: 1 of 2, 2 there; class 2: 0 of 1, 1 there
    assert precision(SCORES, LABELS) == pytest.approx((2 / 2 + 1 / 2 + 0 / 1) / 3)
    assert recall(SCORES, LABELS) == pytest.approx((2 / 2 + 1 / 2 + 0 / 1) / 3)
    assert f1(SCORES, LABELS) == pytest.approx((4 / 4 + 2 / 4 + 0 / 2) / 3)
    assert TopKAccuracy(1)(SCORES, LABELS) == 3 / 5
    # the last row ties its classes 0 and 2 in second place: 0 comes first
    assert TopKAccuracy(2)(SCORES, LABELS) == 4 / 5
    assert TopKAccuracy(3)(SCORES, LABELS) == 1
    assert top_k_accuracy(SCORES, LABELS) == 1  # 5 of 3 classes: all
    P, T = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 6.0])
    assert mae(P, T) == 1.0
    assert r2(P, T) == pytest.approx(1 - 5 / (46 - 100 / 3))
    assert r2(P[:, None], T) == r2(P, T) == R2("uniform_average")(P[:, None], T)
    p, y = np.array([0.9, 0.8, 0.3, 0.6, 0.1, 0.5]), np.array([1, 0, 1, 1, 0, 0])
    # guesses 1 1 0 1 0 0: hits 2, guessed 3, there 3
    for P, T in (
        (p, y),
        (p[:, None], y),
        (p[:, None], y[:, None]),
        (p, 2 * y - 1),
        (np.stack([1 - p, p + 1e-9 * (p > 0.5)], axis=1), y),
    ):
        assert accuracy(P, T) == 4 / 6
        assert precision(P, T) == pytest.approx(2 / 3)
        assert recall(P, T) == pytest.approx(2 / 3)
        assert f1(P, T) == pytest.approx(2 / 3)
    logits = np.array([2.0, -0.3, -1.0, 0.1, -3.0, -0.2])
    assert accuracy(logits, y) == 4 / 6  # above 0.5: 1 0 0 0 0 0
    assert metrics.Accuracy(threshold=0.0)(logits, y) == 5 / 6  # above 0: 1 0 0 1 0 0
    assert precision(logits, y) == 1
    assert recall(logits, y) == pytest.approx(1 / 3)
    assert f1(logits, y) == pytest.approx(2 / 4)
    assert metrics.Precision(0.0)(logits, y) == 1
    assert metrics.Recall(0.0)(logits, y) == pytest.approx(2 / 3)
    assert metrics.F1(0.0)(logits, y) == pytest.approx(4 / 5)
    T = rng.standard_normal(400)
    P = T + 0.3 * rng.standard_normal(400)
    expected = 1 - np.square(P - T).sum() / np.square(T - T.mean()).sum()
    for mean, size in itertools.product((0, 1e3, 1e6, 1.7e9), (400, 1, 7, 100)):
        assert in_parts(r2, P + mean, T + mean, size) == pytest.approx(expected, rel=1e-3)


def test_the_forms_of_labels_agree_and_negative_ones_do_not_count():
    more = np.concatenate([SCORES, np.eye(3)]), np.array([*LABELS, -1, -100, -1])
    for metric in OF_CLASSES:
        value = metric(SCORES, LABELS)
        assert metric(SCORES, LABELS[:, None]) == value
        assert metric(SCORES, np.eye(3)[LABELS]) == value
        assert metric(SCORES.tolist(), LABELS.tolist()) == value
        assert metric(SCORES.reshape(1, 5, 3), LABELS.reshape(1, 5)) == value
        assert metric(*more) == value
        nothing = metric(SCORES, np.full(5, -1))  # without a warning
        assert math.isnan(nothing) or nothing == 0


def test_scores_that_are_nan_are_never_right_and_labels_may_be_smooth():
    P = SCORES.copy()
    P[0], P[3, 1], P[4, 0] = np.nan, np.nan, np.nan  # of rows 0, 1, 3 that were right
    assert accuracy(P, LABELS) == 1 / 5
    assert TopKAccuracy(1)(P, LABELS) == 1 / 5
    assert TopKAccuracy(3)(P, LABELS) == top_k_accuracy(P, LABELS) == 2 / 5
    # class 1: 1 hit of 1 guess, 2 there; class 2: 0 of 1, 1 there; class 0: no guess, 2 there
    assert precision(P, LABELS) == pytest.approx(1 / 3)
    assert recall(P, LABELS) == pytest.approx((0 + 1 / 2 + 0) / 3)
    assert metrics.ConfusionMatrix()(P, LABELS).tolist() == [[0, 0, 0], [0, 1, 1], [0, 0, 0]]
    p, y = np.array([np.nan, np.nan, 0.9, 0.1]), np.array([0, 1, 1, 0])
    assert accuracy(p, y) == accuracy(p[:, None], y) == 2 / 4
    assert (precision(p, y), recall(p, y)) == (1, 1 / 2)
    assert TopKAccuracy(1)(np.full((3, 4), np.nan), np.zeros(3, int)) == 0
    p, y = np.array([0.9, 0.2, 0.7, 0.4]), np.array([1, 0, 0, 0])
    for smooth in (0.05 + 0.9 * y, 2 * y - 1, 0.8 * (2 * y - 1), y.astype(bool), y.astype("u1")):
        assert accuracy(p, smooth) == accuracy(p[:, None], smooth) == 3 / 4
        assert precision(p, smooth) == 1 / 2
        assert recall(p, smooth) == 1
    labels = np.stack([0.05 + 0.9 * y, 0.95 - 0.9 * y], axis=1)
    assert metrics.Accuracy(multilabel=True)(np.stack([p, 1 - p], axis=1), labels) == 3 / 4


def test_empty_batches_change_nothing_and_functions_are_weighted_by_their_sizes():
    P, T = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [3.0], [6.0]])
    for metric in (r2, R2("uniform_average"), mae, Custom(lambda p, t: float(np.mean(p - t)))):
        nothing = metric.sums(P[:0], T[:0])
        assert math.isnan(metric.result(nothing))
        assert math.isnan(metric.result(metric.merge(nothing, nothing)))
        for parts in ((nothing, metric.sums(P, T)), (metric.sums(P, T), nothing)):
            assert metric.result(metric.merge(*parts)) == metric(P, T)
    for metric in (accuracy, TopKAccuracy(2), precision, recall, f1, metrics.ConfusionMatrix()):
        nothing = metric.sums(SCORES[:0], LABELS[:0])
        np.testing.assert_equal(
            metric.result(metric.merge(nothing, metric.sums(SCORES, LABELS))),
            metric(SCORES, LABELS),
        )
    assert math.isnan(accuracy(SCORES[:0], LABELS[:0]))

    def largest(P, T):
        return float(P.max())

    metric = Custom(largest)
    assert metric.name == "largest"
    assert metric(np.array([1.0, 4.0]), np.zeros(2)) == 4
    assert in_parts(metric, np.array([1.0, 4.0, 1.0]), np.zeros(3), 2) == (4 * 2 + 1 * 1) / 3


@given(st.floats(-1e12, 1e12), st.integers(1, 300), st.integers(1, 100))
@settings(max_examples=times(20))
@example(5.906467076297888, 133, 28)
@example(12079.026965152847, 28, 7)
@example(-43.93124137517439, 521, 1339)
def test_constant_targets_have_no_deviation_in_any_number(c, n, size):
    T = np.full(n, c)
    assert r2(T, T) == in_parts(r2, T, T, size) == 1
    assert r2(T + 1 + abs(c), T) == in_parts(r2, T + 1 + abs(c), T, size) == 0


def test_the_confusion_matrix_by_hand_and_of_a_model(rng):
    matrix = metrics.ConfusionMatrix()(SCORES, LABELS)  # predicted: 0 1 2 0 1
    assert matrix.tolist() == [[2, 0, 0], [0, 1, 1], [0, 1, 0]]
    assert matrix.dtype == np.int64
    p, y = np.array([0.9, 0.8, 0.3, 0.6, 0.1]), np.array([1, 0, 1, 1, 0])
    for labels in (y, 2 * y - 1, 0.05 + 0.9 * y):
        assert metrics.ConfusionMatrix()(p, labels).tolist() == [[1, 1], [1, 2]]
    assert metrics.ConfusionMatrix(0.7)(p, y).tolist() == [[1, 1], [2, 1]]
    both = np.stack([p, p], axis=1), np.stack([y, y], axis=1)
    assert metrics.ConfusionMatrix(multilabel=True)(*both).tolist() == [[2, 2], [2, 4]]
    ignored = np.where(LABELS == 1, -1, LABELS)
    assert metrics.ConfusionMatrix()(SCORES, ignored).tolist() == [[2, 0, 0], [0, 0, 0], [0, 1, 0]]
    X, y = rng.standard_normal((40, 4)), rng.integers(0, 3, 40)
    model = SequentialBuilder(4, seed=0).dense(3).loss("softmax_cross_entropy").build()
    wanted = confusion_matrix(model.predict(X), y)
    for size in (None, 7):
        found = model.evaluate(X, y, batch_size=size, metrics=["confusion_matrix", "accuracy"])
        np.testing.assert_array_equal(found["confusion_matrix"], wanted)
        assert found["accuracy"] == np.trace(wanted) / 40
    with pytest.raises(ArgumentError, match=r"Matrix\(\) is not a single number.*evaluate"):
        model.train(X, y, metrics=["confusion_matrix"], epochs=1, verbose=0)
    assert model.optimizer.t == 0
    binary = SequentialBuilder(4, seed=0).dense(1).loss("hinge").build()
    found = binary.evaluate(X, 2 * (y > 0) - 1, metrics=[metrics.ConfusionMatrix(0.0)])
    assert found["confusion_matrix"].sum(axis=1).tolist() == [sum(y == 0), sum(y > 0)]


def by_loops(P, T):
    """The metrics of K classes, by loops."""
    n, K = P.shape
    guess = [max(range(K), key=lambda k, i=i: (P[i, k], -k)) for i in range(n)]
    scores = {"precision": [], "recall": [], "f1": []}
    for k in range(K):
        hits = sum(g == t == k for g, t in zip(guess, T, strict=True))
        guessed, there = guess.count(k), list(T).count(k)
        if guessed or there:
            scores["precision"].append(hits / guessed if guessed else 0)
            scores["recall"].append(hits / there if there else 0)
            scores["f1"].append(2 * hits / (guessed + there))
    ranked = [sorted(range(K), key=lambda k, i=i: (-P[i, k], k)) for i in range(n)]
    return {
        "accuracy": sum(g == t for g, t in zip(guess, T, strict=True)) / n,
        "top_2_accuracy": sum(t in r[:2] for r, t in zip(ranked, T, strict=True)) / n,
        **{name: sum(values) / len(values) for name, values in scores.items()},
    }


@st.composite
def classified(draw):
    n, K = draw(st.integers(1, 30)), draw(st.integers(3, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    P = rng.integers(0, draw(st.sampled_from([2, 4, 1000])), (n, K)).astype(float)  # with ties
    return P, rng.integers(0, K, n), draw(st.integers(1, n))


def in_parts(metric, P, T, size):
    starts = range(0, len(P), size)
    parts = [metric.sums(P[i : i + size], T[i : i + size]) for i in starts]
    return metric.result(functools.reduce(metric.merge, parts))


@given(classified())
@settings(max_examples=times(40))
def test_classification_equals_loops_and_parts_equal_the_whole(case):
    P, T, size = case
    expected = by_loops(P, T)
    for metric in OF_CLASSES:
        assert metric(P, T) == pytest.approx(expected[metric.name], abs=1e-12), metric
        assert in_parts(metric, P, T, size) == metric(P, T), metric


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(1, 40), st.integers(1, 3))
@settings(max_examples=times(30))
def test_regression_equals_its_formula_in_parts_too(seed, n, size, D):
    rng = np.random.default_rng(seed)
    T = rng.standard_normal((n, D)) * 10 + rng.uniform(-50, 50, D)
    P = T + rng.standard_normal((n, D))
    expected = {
        "mae": sum(abs(p - t) for p, t in zip(P.flat, T.flat, strict=True)) / T.size,
        "r2": 1 - np.sum((P - T) ** 2) / np.sum((T - T.mean()) ** 2),
        "r2_uniform_average": np.mean(1 - np.mean((P - T) ** 2, axis=0) / T.var(axis=0)),
    }
    for metric in (mae, r2, R2("uniform_average")):
        assert metric(P, T) == pytest.approx(expected[metric.name], rel=1e-9, abs=1e-9)
        assert metric(P[:, None], T[:, None]) == metric(P, T)
        assert in_parts(metric, P, T, size) == pytest.approx(metric(P, T), rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=times(30))
def test_binary_equals_counts(pairs):
    P, T = np.array([p for p, _ in pairs]), np.array([int(t) for _, t in pairs])
    hits = sum(p > 0.5 and t for p, t in pairs)
    guessed, there = sum(p > 0.5 for p, _ in pairs), int(T.sum())
    right = sum((p > 0.5) == t for p, t in pairs)
    assert accuracy(P, T) == right / len(pairs)
    assert precision(P, T) == (hits / guessed if guessed else 0)
    assert recall(P, T) == (hits / there if there else 0)
    assert f1(P, T) == pytest.approx(2 * hits / (guessed + there) if guessed + there else 0)


class Unfinished(Metric):
    """A metric whose author forgot `sums`."""


def test_names_functions_and_metrics_become_metrics_and_what_does_not_fit_is_refused():
    def own(P, T):
        return 0.0

    top = TopKAccuracy(2)
    made = metrics.as_metrics(["Accuracy", "top-k accuracy", own, top, mae, "f1"], threshold=0.25)
    names = ["accuracy", "top_k_accuracy", "own", "top_2_accuracy", "mae", "f1"]
    assert [m.name for m in made] == names
    assert made[3] is top
    assert made[0].threshold == made[5].threshold == 0.25
    assert accuracy.threshold == 0.5
    misfits = {m: [((4, 3), (5,)), ((4, 3), (4, 2)), ((4,), (5,))] for m in OF_CLASSES[:-1]}
    misfits |= {top_k_accuracy: [((4, 3), (5,)), ((4, 3), (4, 2)), ((4, 1), (4,))]}
    misfits |= {m: [((4,), (4, 1)), ((4, 2), (4,))] for m in (mae, r2)}
    for metric, shapes in misfits.items():
        for P, T in shapes:
            with pytest.raises(ShapeError, match=re.escape(str(P))):
                metric(np.zeros(P), np.zeros(T, int))
    says = "y contains class 7, but the predictions have scores for 3"
    for metric in (accuracy, top_k_accuracy, f1, confusion_matrix):
        with pytest.raises(ArgumentError, match=says):
            metric(np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 7]))


REFUSED = """
as_metrics([3], 0.5) -> ArgumentTypeError: a metric is a name or a function
as_metrics([None], 0.5) -> ArgumentTypeError: a metric is a name or a function
as_metrics([[METRICS["mae"]]], 0.5)
    ArgumentTypeError: a metric is a name or a function.*separate arguments
as_metrics(["acuracy"], 0.5) -> ArgumentError: unknown metric 'acuracy'\\. Did you mean 'accuracy'
TopKAccuracy(0) -> ArgumentError: TopKAccuracy k
TopKAccuracy(2.5) -> ArgumentTypeError: TopKAccuracy k
TopKAccuracy(True) -> ArgumentTypeError: TopKAccuracy k
Unfinished()(np.ones(3), np.ones(3)) -> NotImplementedError: Unfinished must implement sums
"""


@pytest.mark.parametrize(("call", "error"), refusals(REFUSED))
def test_what_is_refused(call, error):
    check_refused(call, error, vars(metrics) | globals())
