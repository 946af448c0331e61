"""Derivations of losses where terms do not count: infinite losses, ignored labels, float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import loss as losses
from phitodeep.loss import Loss
from tests.derivations.test_contract import assert_close, loss_scope
from tests.loss.test_loss import EXAMPLES, pair

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
def test_terms_that_cost_nothing_may_be_infinite(
    loss: Loss, P: Any, T: Any, w: Any, total: float | None
) -> None:
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
def test_an_infinite_loss_of_weight_0_does_not_count(
    loss: Loss, P: Any, T: Any, total: float | None
) -> None:
    scope = compare(loss, P, T, [1.0, 0.0, 2.0], total)
    assert np.isinf(scope["each"]).any()
    assert np.isfinite(scope["L"])
    assert not scope["dP"][1].any()


def test_nothing_counts_if_total_is_0() -> None:
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
def test_ignored_labels(loss: Loss, w: Any) -> None:
    given, _ = pair(loss, (3, 2, 3))
    found = compare(loss, given, [[0, -1], [-1, -1], [2, 1]], w, None)
    assert not found["dP"][1].any()
    assert not found["v"][1].any()
    assert found["L"] > 0
    assert compare(loss, given, np.full((3, 2), -1), w, None)["L"] == 0


def compare(loss: Loss, P: Any, T: Any, w: Any, total: float | None) -> Any:
    P = np.array(P, np.float64)
    T = loss.targets(np.array(T), P.shape)
    checked = loss.weights(w, T, P.shape)
    scope = loss_scope(loss, P, T, checked, total)
    assert_close(scope["L"], loss.value(P, T, checked, total), "L")
    assert_close(scope["dP"], loss.gradient(P, T, checked, total), "dP")
    return scope


@pytest.mark.parametrize("loss", EXAMPLES, ids=repr)
def test_float32_stays_float32(loss: Loss) -> None:
    P, y = pair(loss, (3, 4))
    P = P.astype(np.float32)
    scope = loss_scope(loss, P, loss.targets(y, P.shape), None, None)
    for step in scope.derivation.every():
        assert np.asarray(scope[step.symbol]).dtype != np.float64, step
