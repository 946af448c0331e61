"""The estimators inside scikit-learn's tools, joblib and pickle, and phitodeep's tools on them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

import joblib
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import BaggingClassifier, StackingRegressor, VotingClassifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, learning_curve
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_info

import phitodeep
from phitodeep import AdamW, SequentialBuilder
from phitodeep.core.threads import cores
from phitodeep.sklearn import PhitoClassifier, PhitoRegressor

X, y = load_iris(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)


NET, REGRESSOR = PhitoClassifier(random_state=0), PhitoRegressor(random_state=0)


def fitted(**settings: Any) -> PhitoClassifier:
    return PhitoClassifier(random_state=0, **settings).fit(X, y)


# --- scikit-learn's tools ---------------------------------------------------------------------


def test_a_pipeline_passes_arguments_on() -> None:
    pipe = make_pipeline(StandardScaler(), clone(NET))
    pipe.fit(X, y, phitoclassifier__sample_weight=(y != 2).astype(float))
    assert set(pipe.predict(X)) == {0, 1}
    assert pipe.fit(X, y).score(X, y) > 0.95
    assert pipe.predict_proba(X).shape == (150, 3)


def test_a_pipeline_with_set_output_passes_names_on() -> None:
    frame, target = load_breast_cancer(return_X_y=True, as_frame=True)
    pipe, plain = (make_pipeline(StandardScaler(), clone(NET)) for _ in range(2))
    pipe.set_output(transform="pandas").fit(frame, target)
    assert pipe[-1].feature_names_in_.tolist() == frame.columns.tolist()
    plain.fit(frame, target)
    np.testing.assert_array_equal(pipe.predict(frame), plain.predict(frame))
    assert not hasattr(plain[-1], "feature_names_in_")
    assert pipe.score(frame, target) > 0.97


def test_columns_are_prepared_by_a_column_transformer() -> None:
    frame = load_iris(as_frame=True).frame
    frame["colour"] = np.where(y == 0, "blue", "violet")
    columns = make_column_transformer(
        (StandardScaler(), ["sepal length (cm)"]), (OneHotEncoder(), ["colour"])
    )
    pipe = make_pipeline(columns, clone(NET)).fit(frame, y == 0)
    assert pipe.score(frame, y == 0) == 1
    assert pipe[-1].n_features_in_ == 3


def test_a_grid_is_searched_in_two_processes() -> None:
    grid = {"hidden": [(20,), (40, 20)], "optimizer": [None, AdamW(0.01, weight_decay=0.1)]}
    search = GridSearchCV(NET, grid, cv=3, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.93
    assert len(search.cv_results_["params"]) == 4
    assert "best_estimator_" in vars(search)
    alone = GridSearchCV(NET, grid, cv=3).fit(X, y)
    scores = [found.cv_results_["mean_test_score"] for found in (search, alone)]
    np.testing.assert_array_equal(*scores)
    builders = [SequentialBuilder().dense(8).gelu(), SequentialBuilder().dense(4).tanh()]
    search = GridSearchCV(NET, {"model": builders}, cv=3).fit(X, y)
    assert search.best_params_["model"] in builders
    assert search.best_score_ > 0.9


def test_cross_validation() -> None:
    scores = cross_val_score(NET, X, y, cv=5)
    assert len(scores) == 5
    assert scores.min() > 0.85
    np.testing.assert_array_equal(scores, cross_val_score(NET, X, y, cv=5, n_jobs=2))
    probabilities = cross_val_predict(NET, X, y, cv=3, method="predict_proba")
    assert (probabilities.argmax(axis=1) == y).mean() > 0.9
    assert cross_val_score(REGRESSOR, *DIABETES, cv=5).mean() > 0.4


def test_scorers_find_what_they_need() -> None:
    data = load_breast_cancer(return_X_y=True)
    for scoring, least in (("roc_auc", 0.98), ("neg_log_loss", -0.2), ("f1", 0.95)):
        assert cross_val_score(NET, *data, scoring=scoring).mean() > least


def test_a_clone_has_the_settings_and_nothing_else() -> None:
    builder = SequentialBuilder().dense(8).relu()
    est = fitted(model=builder, epochs=3, optimizer=AdamW(0.02))
    copy = clone(est)
    assert not hasattr(copy, "model_")
    assert copy.get_params().keys() == est.get_params().keys()
    assert copy.model == builder
    assert copy.model is not builder
    np.testing.assert_array_equal(copy.fit(X, y).predict_proba(X), est.predict_proba(X))


def test_estimators_say_what_they_are() -> None:
    assert is_classifier(PhitoClassifier())
    assert is_regressor(PhitoRegressor())
    assert repr(PhitoClassifier((5,), dropout=0.5)) == "PhitoClassifier(dropout=0.5, hidden=(5,))"
    assert "class_weight" in PhitoClassifier().get_params()
    assert "class_weight" not in PhitoRegressor().get_params()


def test_html_shows_the_parameters() -> None:
    pipe = make_pipeline(StandardScaler(), PhitoClassifier((5,), dropout=0.25))
    before, after = pipe._repr_html_(), pipe.fit(X, y)._repr_html_()
    for html in (before, after):
        assert "PhitoClassifier" in html
        assert "0.25" in html
    assert "<span>Not fitted</span>" in before
    assert "<span>Fitted</span>" in after


def test_ensembles_and_calibration() -> None:
    parts = [("net", NET), ("linear", LogisticRegression(max_iter=1000))]
    assert VotingClassifier(parts, voting="soft").fit(X, y).score(X, y) > 0.95
    calibrated = CalibratedClassifierCV(NET, cv=3).fit(X, y)
    assert calibrated.score(X, y) > 0.95
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1)
    bagged = BaggingClassifier(PhitoClassifier(epochs=10), 3, random_state=0).fit(X, y)
    assert bagged.score(X, y) > 0.9
    labels = np.stack([y, (y + 1) % 3], axis=1)
    assert (MultiOutputClassifier(NET).fit(X, labels).predict(X) == labels).mean() > 0.95
    for regressor in (
        StackingRegressor([("net", REGRESSOR), ("ridge", Ridge())], cv=3),
        TransformedTargetRegressor(REGRESSOR, func=np.log, inverse_func=np.exp),
    ):
        assert regressor.fit(*DIABETES).score(*DIABETES) > 0.4


def test_permutation_importance_finds_the_feature_that_counts() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 3))
    est = PhitoRegressor(random_state=0).fit(rows, 5 * rows[:, 1])
    found = permutation_importance(est, rows, 5 * rows[:, 1], n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 1
    assert found.importances_mean[1] > 1 > 10 * abs(found.importances_mean[[0, 2]]).max()


def test_learning_curves_rise() -> None:
    options = {"train_sizes": [15, 100], "shuffle": True, "random_state": 0}
    sizes, _, scores = learning_curve(NET, X, y, **options)
    assert sizes.tolist() == [15, 100]
    assert scores.mean(axis=1)[1] > 0.9


# --- joblib and pickle ------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_predicts_and_goes_on_the_same(protocol: int) -> None:
    est = PhitoClassifier(random_state=0, warm_start=True, early_stopping=True).fit(X, NAMES[y])
    copy = pickle.loads(pickle.dumps(est, protocol))
    np.testing.assert_array_equal(copy.predict_proba(X), est.predict_proba(X))
    assert copy.predict(X[:2]).tolist() == ["a", "a"]
    for each in (est, copy):
        each.set_params(early_stopping=False).partial_fit(X, NAMES[y])
    np.testing.assert_array_equal(copy.predict_proba(X), est.predict_proba(X))


NAMES = np.array(["a", "b", "c"])


def test_joblib_writes_and_reads_a_file(tmp_path: Path) -> None:
    est = fitted()
    joblib.dump(est, tmp_path / "est.joblib")
    for mode in (None, "r"):  # "r": the arrays are read-only, in the file
        again = joblib.load(tmp_path / "est.joblib", mmap_mode=mode)
        np.testing.assert_array_equal(again.predict_proba(X), est.predict_proba(X))


def fit_and_predict(seed: int) -> Any:
    est = PhitoClassifier(random_state=seed, epochs=5).fit(X, y)
    return est.predict_proba(X)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing", "sequential"])
def test_joblibs_back_ends_change_no_bit(backend: str) -> None:
    with joblib.parallel_config(backend, n_jobs=2):
        found = joblib.Parallel()(joblib.delayed(fit_and_predict)(seed) for seed in range(3))
    for seed, P in enumerate(found):
        np.testing.assert_array_equal(P, fit_and_predict(seed))


def test_nothing_of_the_process_changes() -> None:
    state = random_numbers()
    before = phitodeep.get_threads(), [lib["num_threads"] for lib in threadpool_info()]
    fitted(threads=1)
    PhitoClassifier(epochs=1, early_stopping=True).fit(X, y)  # without a seed
    assert before == (phitodeep.get_threads(), [lib["num_threads"] for lib in threadpool_info()])
    assert state == random_numbers()


def random_numbers() -> Any:
    """The state of NumPy's global generator, which scikit-learn uses for random_state=None."""
    return check_random_state(None).get_state()[2], check_random_state(None).get_state()[1].tolist()


def threads_inside(_: int) -> int:
    return cores()


def test_a_worker_uses_its_share_of_the_cores() -> None:
    with joblib.parallel_config("loky", n_jobs=2, inner_max_num_threads=1):
        found = joblib.Parallel()(joblib.delayed(threads_inside)(i) for i in range(2))
    assert found == [1, 1]


# --- phitodeep's tools ------------------------------------------------------------------------


def test_the_network_is_a_model_for_every_tool(tmp_path: Path, capsys: Any) -> None:
    est = fitted()
    est.model_.summary()
    assert "Dense(4, 100)" in capsys.readouterr().out
    trace = est.model_.trace(est.encode(X), y)
    np.testing.assert_allclose(
        np.asarray(trace.loss), est.model_.evaluate(est.encode(X), y)["loss"]
    )
    est.model_.save(tmp_path / "net.safetensors")
    again = phitodeep.load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again.predict(est.encode(X)), est.model_.predict(est.encode(X)))
    np.testing.assert_array_equal(again.predict(est.encode(X)).argmax(axis=1), est.predict(X))
    est, rows = PhitoRegressor(random_state=0).fit(*DIABETES), DIABETES[0]  # scales its targets
    Y = est.target_scaler_.inverse_transform(est.model_.predict(est.encode(rows)))
    np.testing.assert_allclose(Y.ravel(), est.predict(rows), rtol=1e-12)


# --- imports ----------------------------------------------------------------------------------


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_scikit_learn_is_imported_with_the_first_estimator() -> None:
    code = "import sys, phitodeep.sklearn as s; print('sklearn' in sys.modules, dir(s))"
    assert run(code).startswith("False ")
    assert "PhitoClassifier" in run(code)
    assert "PhitoRegressor" in run("from phitodeep.sklearn import *; print(PhitoRegressor())")


def test_a_missing_library_is_named_with_its_extra() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None; from phitodeep.sklearn import PhitoClassifier"
    )
    said = run(code)
    assert "MissingExtraError: phitodeep.sklearn.PhitoClassifier needs scikit-learn" in said
    assert 'pip install "phitodeep[sklearn]"' in said
    with pytest.raises(AttributeError, match=r"'phitodeep.sklearn' has no attribute 'Phito'"):
        _ = phitodeep.sklearn.Phito
