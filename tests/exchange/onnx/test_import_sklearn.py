"""Models that skl2onnx wrote come in right: they predict the probabilities of scikit-learn."""

import warnings

import numpy as np
import pytest

from phitodeep.errors import DataError
from phitodeep.io import from_onnx
from phitodeep.layers import BatchNorm, Dense, Sigmoid, Softmax

pytest.importorskip("onnx")
skl2onnx = pytest.importorskip("skl2onnx")

linear = pytest.importorskip("sklearn.linear_model")
neural = pytest.importorskip("sklearn.neural_network")
pipeline = pytest.importorskip("sklearn.pipeline")
scaling = pytest.importorskip("sklearn.preprocessing")

PRECISION = 2e-6
NAMES = ("Standard", "MinMax", "Robust", "MaxAbs")
SCALERS = [None, *(getattr(scaling, f"{name}Scaler") for name in NAMES)]


def imported(estimator, X, folder, **options):
    proto = skl2onnx.to_onnx(estimator, X[:1], options=options or None)
    (folder / "a.onnx").write_bytes(proto.SerializeToString())
    return from_onnx(folder / "a.onnx")


def table(seed, classes):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((60, 3)) * [1, 5, 0.2] + [0, 3, 1]).astype(np.float32)
    return X, rng.permutation(np.arange(60) % classes)


def fitted(estimator, scaler, X, y):
    model = estimator if scaler is None else pipeline.make_pipeline(scaler(), estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few epochs are enough here
        return model.fit(X, y)


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["mlp", "logistic"])
def test_classifiers(kind, classes, zipmap, tmp_path):
    for seed, scaler in enumerate(SCALERS):
        X, y = table(seed, classes)
        labels = np.array(["no", "yes", "maybe"])[y] if seed % 2 else y
        estimator = linear.LogisticRegression()
        if kind == "mlp":
            activation = ("relu", "tanh", "logistic", "identity", "relu")[seed]
            sizes = (5,) if seed % 2 else (4, 3)
            estimator = neural.MLPClassifier(
                sizes, activation=activation, max_iter=20, random_state=seed
            )
        model = fitted(estimator, scaler, X, labels)
        found = imported(model, X, tmp_path, zipmap=zipmap)
        assert np.abs(found.predict(X) - model.predict_proba(X)).max() <= PRECISION
        last = found.layers[-1]
        assert isinstance(last, Sigmoid if (kind, classes) == ("logistic", 2) else Softmax)


@pytest.mark.parametrize("kind", ["mlp", "linear", "ridge", "lasso"])
def test_regressors(kind, tmp_path):
    for seed, scaler in enumerate(SCALERS):
        X, _ = table(seed, 2)
        y = X @ [1.0, 0.1, -2.0] + 1
        estimators = {
            "mlp": neural.MLPRegressor(hidden_layer_sizes=(5,), max_iter=20, random_state=seed),
            "linear": linear.LinearRegression(),
            "ridge": linear.Ridge(),
            "lasso": linear.Lasso(0.01),
        }
        model = fitted(estimators[kind], scaler, X, y)
        found = imported(model, X, tmp_path).predict(X)
        wanted = model.predict(X)
        assert np.abs(found[:, 0] - wanted).max() <= PRECISION * max(1, np.abs(wanted).max())


def test_several_targets(tmp_path):
    X, _ = table(0, 2)
    model = linear.LinearRegression().fit(X, X[:, ::-1])
    np.testing.assert_allclose(imported(model, X, tmp_path).predict(X), model.predict(X), atol=1e-5)


def test_a_scaler_is_a_norm_that_does_not_learn(tmp_path):
    X, y = table(1, 2)
    X = X + np.float32(1000)  # where x scale - offset scale would lose digits
    model = fitted(linear.LogisticRegression(), scaling.StandardScaler, X, y)
    found = imported(model, X, tmp_path)
    norm, dense, _ = found.layers
    assert isinstance(norm, BatchNorm)
    assert not norm.trainable
    assert isinstance(dense, Dense)
    scaler = model[0]
    np.testing.assert_allclose(norm.state["running_mean"], scaler.mean_, rtol=1e-6)
    np.testing.assert_allclose(norm.params["gamma"], 1 / scaler.scale_, rtol=1e-6)
    assert np.abs(found.predict(X) - model.predict_proba(X)).max() <= 1e-5
    before = found.predict(X)
    norm.forward(X)  # training leaves it as it is
    np.testing.assert_array_equal(found.predict(X), before)


@pytest.mark.parametrize(("scaler", "named"), [(True, "Binarizer|Greater|Not"), (False, "batch")])
def test_what_is_not_covered_is_named(scaler, named, tmp_path):
    X, y = table(3, 2)
    if scaler:
        model = fitted(linear.LogisticRegression(), lambda: scaling.Binarizer(threshold=0.5), X, y)
    else:  # skl2onnx mixes several targets with samples
        regressor = neural.MLPRegressor(hidden_layer_sizes=(4,), max_iter=5)
        model = fitted(regressor, None, X, X[:, :2])
    with pytest.raises(DataError, match=named):
        imported(model, X, tmp_path)
