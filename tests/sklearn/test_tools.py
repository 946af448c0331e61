"""The estimators inside scikit-learn's tools, joblib and pickle, and phitodeep's tools on them."""

import pickle
import subprocess
import sys
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("sklearn")

import joblib
from sklearn import model_selection
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import BaggingClassifier, StackingRegressor, VotingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import check_estimator
from threadpoolctl import threadpool_info

import phitodeep
from phitodeep import AdamW, SequentialBuilder
from phitodeep.core.threads import cores
from phitodeep.sklearn import PhitoClassifier, PhitoRegressor
from tests.conftest import numpy_kernels
from tests.rows import LONG, few

X, y = load_iris(return_X_y=True)
NAMES = np.array(["a", "b", "c"])
DIABETES = load_diabetes(return_X_y=True)
CANCER = load_breast_cancer(return_X_y=True)
NET = PhitoClassifier((20,), batch_size=16, random_state=0)
REGRESSOR = PhitoRegressor((20,), epochs=8, random_state=0)


def test_a_pipeline_passes_arguments_on():
    pipe = make_pipeline(StandardScaler(), clone(NET))
    pipe.fit(X, y, phitoclassifier__sample_weight=(y != 2).astype(float))
    assert set(pipe.predict(X)) == {0, 1}
    assert pipe.fit(X, y).score(X, y) > 0.95
    assert pipe.predict_proba(X).shape == (150, 3)
    assert not hasattr(pipe[-1], "feature_names_in_")
    named = clone(pipe).set_output(transform="pandas")
    frame = load_iris(as_frame=True).data
    np.testing.assert_array_equal(named.fit(frame, y).predict(frame), pipe.predict(X))
    assert named[-1].feature_names_in_.tolist() == frame.columns.tolist()


def test_cross_validation_and_searches():
    scores = model_selection.cross_val_score(NET, X, y, cv=2)
    assert len(scores) == 2
    assert scores.min() > 0.85
    probabilities = model_selection.cross_val_predict(NET, X, y, cv=2, method="predict_proba")
    assert (probabilities.argmax(axis=1) == y).mean() > 0.9
    assert model_selection.cross_val_score(REGRESSOR, *DIABETES, cv=2).mean() > 0.4
    assert make_pipeline(StandardScaler(), clone(NET)).fit(*CANCER).score(*CANCER) > 0.97
    least = {"roc_auc": 0.98, "neg_log_loss": -0.2, "f1": 0.95}
    found = model_selection.cross_validate(NET, *CANCER, scoring=[*least], cv=2)
    assert all(found[f"test_{scorer}"].mean() > value for scorer, value in least.items())
    builders = [SequentialBuilder().dense(8).gelu(), SequentialBuilder().dense(4).tanh()]
    search = model_selection.GridSearchCV(clone(NET), {"model": builders}, cv=3).fit(X, y)
    assert search.best_estimator_.model in builders  # a copy is equal
    assert search.best_score_ > 0.9
    sizes, _, scores = model_selection.learning_curve(
        NET, X, y, train_sizes=[15, 100], cv=3, shuffle=True, random_state=0
    )
    assert sizes.tolist() == [15, 100]
    assert scores.mean(axis=1)[1] > 0.9


def test_estimators_say_what_they_are():
    assert is_classifier(PhitoClassifier())
    assert is_regressor(PhitoRegressor())
    assert repr(PhitoClassifier((5,), dropout=0.5)) == "PhitoClassifier(dropout=0.5, hidden=(5,))"
    assert "class_weight" in PhitoClassifier().get_params()
    assert "class_weight" not in PhitoRegressor().get_params()
    pipe = make_pipeline(StandardScaler(), PhitoClassifier((5,), dropout=0.25, epochs=1))
    for state in ("Not fitted", "Fitted"):
        html = pipe._repr_html_()
        assert "PhitoClassifier" in html
        assert "0.25" in html
        assert f"<span>{state}</span>" in html
        pipe.fit(X, y)


def test_ensembles_and_calibration():
    parts = [("net", NET), ("linear", LogisticRegression(max_iter=1000))]
    assert VotingClassifier(parts, voting="soft").fit(X, y).score(X, y) > 0.95
    calibrated = CalibratedClassifierCV(NET, cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.95
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1)
    bagged = BaggingClassifier(NET, 3, random_state=0).fit(X, y)
    assert bagged.score(X, y) > 0.9
    labels = np.stack([y, (y + 1) % 3], axis=1)
    assert (MultiOutputClassifier(NET).fit(X, labels).predict(X) == labels).mean() > 0.95
    for regressor in (
        StackingRegressor([("net", REGRESSOR), ("ridge", Ridge())], cv=2),
        TransformedTargetRegressor(REGRESSOR, func=np.log, inverse_func=np.exp),
    ):
        assert regressor.fit(*DIABETES).score(*DIABETES) > 0.4


def test_files_and_pickles_predict_and_go_on_the_same(tmp_path):
    settings = {"warm_start": True, "early_stopping": True, "random_state": 0}
    est = PhitoClassifier((20,), epochs=5, **settings).fit(X, NAMES[y])
    joblib.dump(est, tmp_path / "est.joblib")
    copies = [pickle.loads(pickle.dumps(est, n)) for n in (2, pickle.HIGHEST_PROTOCOL)]
    copies.append(joblib.load(tmp_path / "est.joblib"))
    mapped = joblib.load(tmp_path / "est.joblib", mmap_mode="r")  # the arrays are read-only
    P = est.predict_proba(X)
    assert est.predict(X[:2]).tolist() == ["a", "a"]
    est.set_params(early_stopping=False).partial_fit(X, NAMES[y])
    for copy in (*copies, mapped):
        np.testing.assert_array_equal(copy.predict_proba(X), P)
        assert copy.predict(X[:2]).tolist() == ["a", "a"]
    for copy in copies:
        copy.set_params(early_stopping=False).partial_fit(X, NAMES[y])
        np.testing.assert_array_equal(copy.predict_proba(X), est.predict_proba(X))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_joblibs_back_ends_change_no_bit():
    with nullcontext() if LONG else numpy_kernels():
        check_back_ends()


def check_back_ends():
    optimizers = [None, AdamW(0.01, weight_decay=0.1)]
    nets = [PhitoClassifier(optimizer=o, random_state=0, epochs=2) for o in optimizers]
    alone = [clone(net).fit(X, y).predict_proba(X) for net in nets]
    for backend in few(["loky", "threading", "multiprocessing", "sequential"], 1):
        options = {"inner_max_num_threads": 1} if backend == "loky" else {}
        with joblib.parallel_config(backend, n_jobs=2, **options):
            found = joblib.Parallel()(joblib.delayed(net.fit)(X, y) for net in nets)
            if backend == "loky":
                assert joblib.Parallel()(joblib.delayed(cores)() for _ in nets) == [1, 1]
        for net, wanted in zip(found, alone, strict=True):
            np.testing.assert_array_equal(net.predict_proba(X), wanted, backend)


def test_nothing_of_the_process_changes():
    state = random_numbers()
    before = phitodeep.get_threads(), [lib["num_threads"] for lib in threadpool_info()]
    PhitoClassifier(epochs=1, threads=1).fit(X, y)
    PhitoClassifier(epochs=1, early_stopping=True).fit(X, y)  # without a seed
    assert before == (phitodeep.get_threads(), [lib["num_threads"] for lib in threadpool_info()])
    assert state == random_numbers()


def random_numbers():
    """The state of NumPy's global generator, which scikit-learn uses for random_state=None."""
    return check_random_state(None).get_state()[2], check_random_state(None).get_state()[1].tolist()


def test_the_network_is_a_model_for_every_tool(tmp_path, capsys):
    est = clone(NET).fit(X, y)
    est.model_.summary()
    assert "Dense(4, 20)" in capsys.readouterr().out
    trace = est.model_.trace(est.encode(X), y)
    assert trace.loss == pytest.approx(est.model_.evaluate(est.encode(X), y)["loss"], rel=1e-7)
    est.model_.save(tmp_path / "net.safetensors")
    again = phitodeep.load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again.predict(est.encode(X)), est.model_.predict(est.encode(X)))
    np.testing.assert_array_equal(again.predict(est.encode(X)).argmax(axis=1), est.predict(X))
    est, rows = clone(REGRESSOR).fit(*DIABETES), DIABETES[0]  # scales its targets
    Y = est.target_scaler_.inverse_transform(est.model_.predict(est.encode(rows)))
    np.testing.assert_allclose(Y.ravel(), est.predict(rows), rtol=1e-12)


def test_without_scikit_learn_the_extra_is_named():
    code = "import sys, phitodeep; sys.modules['sklearn'] = None; phitodeep.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    error = 'phitodeep.sklearn needs scikit-learn: pip install "phitodeep[sklearn]".'
    assert done.stderr.splitlines()[-1] == f"phitodeep.errors.MissingExtraError: {error}"
    assert phitodeep.sklearn.PhitoRegressor is PhitoRegressor


ESTIMATORS = [
    kind((16,), epochs=2, batch_size=16, learning_rate=0.1)
    for kind in (PhitoClassifier, PhitoRegressor)
]
SHUFFLED = "a sample with weight 2 and two equal samples are shuffled into different batches"
EXPECTED = {
    f"check_sample_weight_equivalence_on_{kind}_data": SHUFFLED for kind in ("dense", "sparse")
}
SKIPPED = {"check_array_api_input"}  # unless the environment sets SCIPY_ARRAY_API


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_the_checks_of_scikit_learn_pass(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            estimator, expected_failed_checks=EXPECTED, on_skip=None, on_fail="raise"
        )
    by_status = {}
    for result in results:
        by_status.setdefault(result["status"], set()).add(result["check_name"])
    assert by_status.pop("skipped", set()) <= SKIPPED
    assert by_status.keys() == {"passed", "xfail"}
    assert by_status["xfail"] == set(EXPECTED)
    assert len(by_status["passed"]) > 40
