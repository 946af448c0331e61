"""Tables: standardised numbers, category columns through an embedding, and sparse matrices."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pandas")

import pandas as pd
from scipy.sparse import csr_matrix, random_array
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers import Dense, Embedding, Parallel
from phitodeep.sklearn import PhitoClassifier, PhitoRegressor
from phitodeep.sklearn.batches import automatic_size
from phitodeep.sklearn.table import TableEncoder
from tests.sklearn.test_regressor import regressor

RNG = np.random.default_rng(0)
N = 400
COLOUR = RNG.choice(["red", "green", "blue", "grey"], N, p=[0.4, 0.3, 0.2, 0.1])
SIZE = RNG.choice([10, 20, 30], N)
LENGTH = RNG.normal(100, 5, N)
EFFECT = {"red": 4.0, "green": -2.0, "blue": 0.0, "grey": 1.0}
VALUE = np.vectorize(EFFECT.get)(COLOUR) + (SIZE == 20) + 0.1 * (LENGTH - 100)
FRAME = pd.DataFrame({"length": LENGTH, "colour": COLOUR, "size": SIZE})


def embedding(est):
    return next(layer for _, layer in est.model_.walk() if isinstance(layer, Embedding))


def test_numbers_are_standardised_and_categories_numbered():
    encoder = TableEncoder(["colour", "size"]).fit(FRAME)
    Z = encoder.transform(FRAME)
    assert encoder.offsets_.tolist() == [0, 6, 11]  # missing, unknown, and 4 or 3 categories
    order = ["blue", "green", "grey", "red"]
    np.testing.assert_array_equal(Z[:, 0], [2 + order.index(c) for c in COLOUR])
    np.testing.assert_array_equal(Z[:, 1], 6 + 2 + SIZE // 10 - 1)
    np.testing.assert_allclose(Z[:, 2], (LENGTH - LENGTH.mean()) / LENGTH.std())
    plain = TableEncoder(["colour"], scale=False).fit(FRAME).transform(FRAME)
    np.testing.assert_array_equal(plain[:, 1:], np.stack([LENGTH, SIZE], axis=1))


def test_missing_and_unknown_categories_have_tokens_of_their_own():
    seen = pd.DataFrame({"a": ["x", None, "y"], "b": ["u", "u", "v"]})
    new = pd.DataFrame({"a": [None, "z", "y"], "b": [None, "w", "v"]})
    Z = TableEncoder(["a", "b"]).fit(seen).transform(new)
    assert Z.T.tolist() == [[0, 1, 3], [6, 6, 8]]  # missing values that fit did not see are unknown
    frame = FRAME.astype({"colour": "string", "size": "Int64"})
    frame.loc[SIZE == 10, "colour"] = frame.loc[COLOUR == "red", "size"] = pd.NA
    est = regressor(categories=["colour", "size"], epochs=1).fit(frame, VALUE)
    tokens = est.encoder_.transform(frame)[:, :2]
    np.testing.assert_array_equal(tokens[:, 0] == 0, SIZE == 10)
    np.testing.assert_array_equal(tokens[:, 1] == est.encoder_.offsets_[1], COLOUR == "red")


@pytest.mark.parametrize("known", [("x", "y"), (1, 2), (True, False)])
def test_all_kinds_of_missing_values_are_one(known):
    a, b = known
    kinds = [None, float("nan"), pd.NA]
    for seen in kinds:
        column = np.array([a, b, seen, a], object)
        encoder = TableEncoder(["c"]).fit(pd.DataFrame({"c": column}))
        assert encoder.offsets_.tolist() == [0, 5]
        new = pd.DataFrame({"c": np.array([*kinds, a], object)})
        assert encoder.transform(new)[:3, 0].tolist() == [0, 0, 0]
    array = np.array([[a], [None], [float("nan")], [b]], object)
    Z = TableEncoder([0]).fit(array).transform(array)
    assert Z[1:3, 0].tolist() == [0, 0]
    assert min(Z[0, 0], Z[3, 0]) == 2


def test_categories_are_named_numbered_or_found():
    def fitted(frame, categories):
        return regressor(categories=categories, epochs=1).fit(frame, VALUE)

    reference = fitted(FRAME, ["colour"]).predict(FRAME)
    for categories, columns in (
        ("auto", [1]),
        (("colour",), [1]),
        (np.array(["colour"]), [1]),
        (np.array([1]), [1]),
        (pd.Index(["colour"]), [1]),
        (["colour", "size"], [1, 2]),
        ([1, 2], [1, 2]),
        (None, []),
    ):
        frame = FRAME if columns else FRAME.drop(columns="colour")
        est = fitted(frame, categories)
        assert len(est.encoder_.offsets_) - 1 == len(columns)
        assert est.n_features_in_ == frame.shape[1]
        assert est.feature_names_in_.tolist() == frame.columns.tolist()
        if columns == [1]:
            np.testing.assert_array_equal(est.predict(frame), reference)
    for kind in (object, "category", "string"):
        for names in (FRAME.columns, [7, 2, 0]):  # which are names here, not indices
            frame = FRAME.astype({"colour": kind}).set_axis(names, axis="columns")
            est = fitted(frame, "auto")
            assert est.encoder_.columns == [1]
            np.testing.assert_array_equal(est.predict(frame), reference)
    objects = FRAME.to_numpy(object)
    np.testing.assert_array_equal(fitted(objects, [1]).predict(objects), reference)
    rows = objects[:, :2].tolist()
    array = fitted(objects[:, :2], [1]).predict(objects[:, :2])
    np.testing.assert_array_equal(fitted(rows, [1]).predict(rows), array)


def test_categories_are_learnt():
    est = regressor(categories=["colour", "size"]).fit(FRAME, VALUE)
    assert est.score(FRAME, VALUE) > 0.95
    one = FRAME.iloc[[0] * 4].assign(colour=list(EFFECT), length=100.0, size=10)
    np.testing.assert_allclose(est.predict(one), list(EFFECT.values()), atol=0.8)
    assert isinstance(est.model_.layers[0], Parallel)
    assert embedding(est).W.shape == (6 + 5, 4)  # 4 = 1.6 * 6^0.56, rounded
    codes = FRAME.assign(colour=pd.factorize(FRAME["colour"])[0]).to_numpy(float)
    assert regressor(categories=[1]).fit(codes, VALUE).score(codes, VALUE) > 0.9
    names, frame = np.where(SIZE > 15, "b", "a"), FRAME[["colour"]].assign(s=SIZE.astype(str))
    alone = PhitoClassifier((20,), random_state=0).fit(frame, names)
    assert alone.score(frame, names) == 1
    assert not isinstance(alone.model_.layers[0], Parallel)


COLUMN = FRAME[["length"]]
REFUSED = [
    (COLOUR, [0], "Expected 2D array, got 1D array"),
    (COLOUR[:, None, None], [0], "Found array with dim 3"),
    (pd.Series(LENGTH), "auto", "Expected a 2-dimensional container but got .*Series"),
    (FRAME, 1, r"got 1: write \[1\] for a single column"),
    (FRAME.to_numpy(object), ["colour"], "only supported for dataframes"),
    (FRAME.assign(length=np.nan), "auto", "Input X contains NaN"),
    (COLUMN.assign(length=np.nan), "auto", "Input X contains NaN"),
    (FRAME.sort_values("colour"), None, "could not convert string to float: 'bl"),
    (csr_matrix(COLUMN), [0], "Sparse data was passed for X, but dense data is required"),
]


@pytest.mark.parametrize(("table", "categories", "message"), REFUSED)
def test_tables_that_do_not_fit_are_refused(table, categories, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        PhitoRegressor(categories=categories).fit(table, VALUE)
    assert isinstance(caught.value, ArgumentTypeError) == (categories == 1)


def test_an_unknown_category_counts_as_the_average_one():
    est = regressor(epochs=2).fit(FRAME, VALUE)
    W, share = embedding(est).W, [np.mean(COLOUR == c) for c in sorted(EFFECT)]
    np.testing.assert_allclose(W[1], share @ W[2:6], rtol=1e-6)
    new = FRAME.assign(colour="violet")
    assert np.isfinite(est.predict(new)).all()
    est.partial_fit(FRAME[:1], VALUE[:1])  # whose category alone would be no average
    counted = np.r_[COLOUR, COLOUR[:1]]
    share = [np.mean(counted == c) for c in sorted(EFFECT)]
    np.testing.assert_allclose(embedding(est).W[1], share @ embedding(est).W[2:6], rtol=1e-6)


def test_categories_in_parts_and_with_early_stopping():
    assert regressor(early_stopping=True).fit(FRAME, VALUE).best_validation_score_ > 0.8
    parts = regressor()
    for _ in range(10):
        parts.partial_fit(FRAME, VALUE)
    assert parts.score(FRAME, VALUE) > 0.9


def test_other_tables_than_in_fit_are_refused():
    est = PhitoRegressor(epochs=1).fit(FRAME, VALUE)
    for frame in (FRAME.rename(columns={"colour": "tint"}), FRAME[["length", "colour"]]):
        with pytest.raises(ValueError, match="feature names should match"):
            est.predict(frame)
    array = PhitoRegressor(categories=[1], epochs=1).fit(FRAME.to_numpy(object), VALUE)
    with pytest.raises(ValueError, match="X has 2 features, but PhitoRegressor is expecting 3"):
        array.predict(FRAME.to_numpy(object)[:, :2])
    for target, message in (
        (VALUE[:-1], "inconsistent numbers of samples"),
        (np.where(SIZE == 10, np.nan, VALUE), "y contains NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            est.fit(FRAME, target)


def test_columns_behind_a_column_transformer():
    steps = [("numbers", StandardScaler(), ["length"]), ("codes", OrdinalEncoder(), ["colour"])]
    pipe = make_pipeline(ColumnTransformer(steps), regressor(categories=[1]))
    assert pipe.fit(FRAME, VALUE).score(FRAME, VALUE) > 0.9
    named = make_pipeline(ColumnTransformer(steps), regressor(categories=["codes__colour"]))
    named.set_output(transform="pandas").fit(FRAME, VALUE)
    assert named[-1].feature_names_in_.tolist() == ["numbers__length", "codes__colour"]
    np.testing.assert_array_equal(named.predict(FRAME), pipe.predict(FRAME))


def test_sparse_rows_give_what_dense_rows_give():
    dense = random_array((200, 30), density=0.2, random_state=0).toarray()
    y, settings = dense @ np.arange(30), {"batch_size": None, "epochs": 5, "random_state": 0}
    for est, target in ((PhitoRegressor, y), (PhitoClassifier, y > y.mean())):
        expected = est(scale=False, **settings).fit(dense, target).predict(dense)
        found = est(**settings).fit(csr_matrix(dense), target)
        np.testing.assert_allclose(found.predict(csr_matrix(dense)), expected, rtol=1e-9)
        np.testing.assert_allclose(found.predict(dense), expected, rtol=1e-9)
    scaled = PhitoRegressor(**settings).fit(dense, y)  # also predicts from sparse rows
    np.testing.assert_array_equal(scaled.predict(csr_matrix(dense)), scaled.predict(dense))


@pytest.mark.parametrize("size", [16, 64, None])
def test_sparse_and_dense_rows_are_shuffled_alike(size):
    dense = random_array((60, 10), density=0.3, random_state=0).toarray()
    w, found = np.linspace(0, 1, 60), []
    for X in (dense, csr_matrix(dense)):
        rng = np.random.RandomState(0)
        settings = {"batch_size": size, "scale": False, "dropout": 0.3, "random_state": rng}
        est = PhitoClassifier((8,), early_stopping=True, epochs=3, **settings)
        est.fit(X, dense[:, 0] > 0, w).set_params(early_stopping=False)
        for _ in range(2):
            est.partial_fit(X, dense[:, 0] > 0, w)
        weights = np.concatenate([a.ravel() for a in est.model_.get_weights().values()])
        found.append([weights, est.loss_curve_, est.best_loss_, rng.random_sample()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_numbers_too_large_to_be_standardised_are_named():
    X, w = np.random.default_rng(0).normal(size=(8, 3)), np.ones(8)
    part = {"X": X, "y": X[:, 0], "sample_weight": w}
    est = PhitoRegressor((4,), random_state=0).partial_fit(**part)
    before = est.predict(X)
    for large in part:
        with pytest.raises(ArgumentError, match=r"column \d of (the numbers in X|y) cannot be s"):
            est.partial_fit(**{**part, large: 1e200 * part[large]})
    np.testing.assert_array_equal(est.predict(X), before)


def test_text_is_classified_from_its_words():
    words = {"sea": ["wave", "salt", "ship", "gull"], "wood": ["oak", "moss", "deer", "bark"]}
    rng = np.random.default_rng(0)
    topics = rng.choice(list(words), 120)
    texts = [" ".join(rng.choice(words[t], 3)) + " and the" for t in topics]
    pipe = make_pipeline(TfidfVectorizer(), PhitoClassifier(early_stopping=True, random_state=0))
    assert pipe.fit(texts[:100], topics[:100]).score(texts[100:], topics[100:]) == 1
    assert pipe[-1].best_validation_score_ == 1
    pipe = make_pipeline(OneHotEncoder(), regressor())  # of sparse rows too
    assert pipe.fit(FRAME[["colour"]], VALUE).score(FRAME[["colour"]], VALUE) > 0.8


def test_the_size_of_batches_grows_with_the_table():
    sizes = [automatic_size(n) for n in (1, 100, 1000, 2000, 5000, 10**6)]
    assert sizes == [4, 4, 32, 64, 256, 256]
    est = PhitoRegressor(random_state=0, epochs=1).fit(FRAME[["length"]], VALUE)
    assert est.model_.optimizer.t == -(-N // 16)
    assert any(isinstance(layer, Dense) for layer in est.model_.layers)
