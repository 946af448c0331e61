"""PhitoRegressor: one output or several, in any unit."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.datasets import make_regression
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

from phitodeep import SequentialBuilder
from phitodeep.errors import ArgumentError
from phitodeep.loss import Huber, MeanSquaredError
from phitodeep.sklearn import PhitoRegressor

X, y = make_regression(300, 6, n_informative=4, noise=5.0, random_state=0)
TWO = np.stack([y, 1000 - 3 * X[:, 0]], axis=1)


def regressor(**settings):
    return PhitoRegressor((50,), **{"batch_size": 25, "random_state": 0, **settings})


def test_one_output_or_several():
    est = regressor().fit(X, y)
    P = est.predict(X)
    assert (P.shape, P.dtype) == ((300,), np.float64)
    assert est.score(X, y) == r2_score(y, P) > 0.95
    assert isinstance(est.model_.loss, MeanSquaredError)
    est = regressor().fit(X, TWO)
    P = est.predict(X)
    assert P.shape == (300, 2)
    assert est.n_outputs_ == 2
    assert (r2_score(TWO, P, multioutput="raw_values") > 0.9).all()


def test_the_unit_of_y_changes_nothing_but_the_unit():
    metres = regressor(epochs=3).fit(X, y)
    scaled = regressor(epochs=3).fit(X, 1024 * y + 2.0**30)
    np.testing.assert_allclose(scaled.predict(X), 1024 * metres.predict(X) + 2.0**30, rtol=1e-9)
    np.testing.assert_allclose(scaled.loss_curve_, metres.loss_curve_, rtol=1e-6)
    assert metres.loss_curve_[0] < 2  # of targets with standard deviation 1


def test_float32_integers_and_a_constant():
    exact = regressor().fit(X, y)
    small = regressor().fit(X.astype(np.float32), y.astype(np.float32))
    assert small.model_.dtype == np.float32
    assert small.predict(X).dtype == np.float64
    np.testing.assert_allclose(small.predict(X), exact.predict(X), atol=0.05 * y.std())
    whole = regressor().fit(X, np.round(y).astype(int))
    assert whole.score(X, y) > 0.95
    est = regressor().fit(X, np.full(300, 7.0))
    np.testing.assert_allclose(est.predict(X), 7, atol=0.2)


def test_weights_count_in_the_loss_and_in_the_scaling():
    w = np.r_[np.ones(150), np.zeros(150)]
    shifted = np.r_[y[:150], np.full(150, 1e9)]
    est = regressor().fit(X, shifted, sample_weight=w)
    assert r2_score(y[:150], est.predict(X[:150])) > 0.9
    assert est.target_scaler_.mean_ == pytest.approx(y[:150].mean())
    assert est.encoder_.scaler_.mean_ == pytest.approx(X[:150].mean(axis=0))


def test_weighted_constants_give_no_warning():
    rng = np.random.default_rng(0)
    for constant in (0.1, 7.0, 123.456):
        for _ in range(3):
            w, c = rng.uniform(size=20), np.full(20, constant)
            est = regressor(epochs=1).fit(c[:, None], c, sample_weight=w)
            assert est.encoder_.scaler_.scale_ == est.target_scaler_.scale_ == 1


def test_early_stopping_scores_the_validation_part_with_its_weights():
    w = np.random.default_rng(0).uniform(0, 5, 300)
    est = regressor(early_stopping=True, n_iter_no_change=2, epochs=30).fit(X, y, sample_weight=w)
    assert len(est.validation_scores_) == est.n_iter_ <= 30
    assert est.best_validation_score_ in est.validation_scores_
    assert 0.8 < est.best_validation_score_ < 1
    assert regressor(early_stopping=True, epochs=1).fit(X, y).target_scaler_.n_samples_seen_ == 270
    seed = int(est._rng().integers(1 << 31))
    _, held, _, targets, _, weights = train_test_split(X, y, w, test_size=0.1, random_state=seed)
    assert est.best_validation_score_ == est.score(held, targets, weights)
    assert est.best_validation_score_ != est.score(held, targets)


def test_the_loss_of_a_builder_is_used():
    builder = SequentialBuilder().dense(20).tanh().loss(Huber(0.5))
    est = PhitoRegressor(model=builder, batch_size=25, random_state=0).fit(X, y)
    assert isinstance(est.model_.loss, Huber)
    assert est.score(X, y) > 0.8


def test_parts_update_the_scaling_of_both_sides():
    est = regressor()
    for _ in range(15):
        for rows in np.array_split(np.arange(300), 3):
            est.partial_fit(X[rows], y[rows])
    assert est.score(X, y) > 0.9
    assert est.target_scaler_.mean_ == pytest.approx(y.mean())
    assert est.encoder_.scaler_.var_ == pytest.approx(X.var(axis=0))


def test_a_warm_start_goes_on_with_the_same_outputs():
    est = PhitoRegressor(epochs=3, warm_start=True, random_state=0).fit(X, y)
    first, mean = est.loss_curve_[0], est.target_scaler_.mean_.copy()
    est.fit(X, y + 1)
    assert est.loss_curve_[3] < first
    assert est.target_scaler_.mean_ == mean  # the scaling stays that of the first call
    for fit, hint in ((est.fit, ": to build"), (est.partial_fit, "")):
        with pytest.raises(ArgumentError, match=f"y has 2 outputs, but the network has 1{hint}"):
            fit(X, TWO)
    assert est.predict(X).shape == (300,)


def test_a_single_sample_is_too_few_to_validate_on():
    with pytest.raises(ArgumentError, match=r"validation_fraction=0\.1 of 10 samples leaves one"):
        PhitoRegressor(early_stopping=True).fit(X[:10], y[:10])
