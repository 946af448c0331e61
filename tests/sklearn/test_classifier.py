"""PhitoClassifier: classes, labels, probabilities, weights, and training call by call."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy.sparse import csr_matrix
from sklearn import datasets
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from phitodeep import SGD, AdamW, Sequential, SequentialBuilder
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepWarning
from phitodeep.layers import Dense, Reshape, Softmax
from phitodeep.optimization.schedules import Constant, CosineDecay
from phitodeep.sklearn import PhitoClassifier
from phitodeep.sklearn.estimator import DECAY, RATE

X, y = datasets.load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])
TWO_X, TWO_Y = datasets.make_classification(200, 6, n_informative=4, random_state=0)
MANY_X, MANY_Y = datasets.make_multilabel_classification(300, 8, n_classes=4, random_state=0)


def same(a, b, rows=X):
    return np.array_equal(a.decision_function(rows), b.decision_function(rows))


def fitted(rows=X, labels=y, w=None, **settings):
    """A classifier that has learnt these samples, with random_state=0 unless it is given."""
    est = PhitoClassifier(**{"random_state": 0, "batch_size": 16, **settings})
    return est.fit(rows, labels, sample_weight=w)


def test_it_learns_digits_as_well_as_it_should():
    data = train_test_split(*datasets.load_digits(return_X_y=True), random_state=0)
    est = PhitoClassifier(random_state=0).fit(data[0], data[2])
    assert est.score(data[1], data[3]) > 0.96
    assert (est.n_features_in_, est.n_outputs_) == (64, 10)
    assert isinstance(est.model_, Sequential)


def test_probabilities_and_logits_belong_together():
    est = fitted(epochs=5)
    Z, P = est.decision_function(X), est.predict_proba(X)
    assert Z.shape == P.shape == (150, 3)
    E = np.exp(Z)
    np.testing.assert_allclose(P, E / E.sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(est.predict_log_proba(X), np.log(P), rtol=1e-9)
    np.testing.assert_array_equal(est.predict(X), P.argmax(axis=1))
    P = fitted(X.astype(np.float32)).predict_proba(X)
    assert P.dtype == np.float64
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)  # of a float32 network too
    est = fitted(TWO_X, TWO_Y)
    z = est.decision_function(TWO_X)
    assert z.shape == (200,)  # one logit for two classes
    np.testing.assert_array_equal(est.predict(TWO_X), (z > 0).astype(int))
    np.testing.assert_allclose(est.predict_proba(TWO_X)[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-9)


def test_logarithms_of_tiny_probabilities_are_finite():
    rows = np.repeat([[-1.0], [1.0]], 20, axis=0)
    est = PhitoClassifier((), optimizer=SGD(1000.0), random_state=0, epochs=30)
    est.fit(rows, np.repeat([0, 1], 20))
    far = np.array([[-1000.0]])
    assert est.predict_proba(far)[0, 1] == 0
    assert -np.inf < est.predict_log_proba(far)[0, 1] < -1000


def test_several_labels_at_once():
    est = fitted(MANY_X, MANY_Y)
    P = est.predict_proba(MANY_X)
    assert P.shape == (300, 4)
    assert est.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(est.predict(MANY_X), P > 0.5)
    np.testing.assert_allclose(P, 1 / (1 + np.exp(-est.decision_function(MANY_X))), rtol=1e-9)
    np.testing.assert_allclose(est.predict_log_proba(MANY_X), np.log(P), rtol=1e-9, atol=1e-12)
    assert est.score(MANY_X, MANY_Y) == accuracy_score(MANY_Y, est.predict(MANY_X)) > 0.5
    assert same(est, fitted(MANY_X, csr_matrix(MANY_Y)), MANY_X)


def test_the_random_state_is_that_of_scikit_learn():
    first, second, other = (fitted(random_state=s, epochs=2) for s in (3, 3, 4))
    assert same(first, second)
    assert not same(first, other)
    assert not same(*(fitted(random_state=None, epochs=2) for _ in range(2)))
    shared = check_random_state(7)  # of NumPy's older interface: it goes on from call to call
    first, second = (fitted(random_state=shared, epochs=2) for _ in range(2))
    assert same(first, fitted(random_state=check_random_state(7), epochs=2))
    assert not same(first, second)


def test_samples_without_weight_do_not_count():
    w = (y != 2).astype(float)
    est = fitted(w=w)
    assert set(est.predict(X)) == {0, 1}
    with pytest.raises(ArgumentError, match="sample_weight is zero for every sample"):
        est.fit(X, y, sample_weight=0 * w)
    with pytest.raises(ValueError, match="Negative values"):
        est.fit(X, y, sample_weight=-w)


def test_class_weights_are_sample_weights_by_class():
    rows, labels = X[:60], y[:60]  # fifty of one class, ten of another
    for settings, given, w in (
        ({"class_weight": "balanced"}, None, (60 / (2 * 50), 60 / (2 * 10))),
        ({"class_weight": {0: 2.0, 1: 3.0}}, (0.5, 2.0), (1.0, 6.0)),
    ):
        given = None if given is None else np.where(labels == 0, *given)
        by_sample = fitted(rows, labels, np.where(labels == 0, *w), epochs=3)
        assert same(fitted(rows, labels, given, epochs=3, **settings), by_sample)
    named = fitted(rows, NAMES[labels], class_weight={"setosa": 1.0, "versicolor": 5.0}, epochs=3)
    assert same(named, fitted(rows, labels, np.where(labels == 0, 1.0, 5.0), epochs=3))


def test_a_part_need_not_have_the_classes_that_have_weights():
    by_class = PhitoClassifier(class_weight={0: 2.0, 2: 5.0}, random_state=0)
    by_sample = PhitoClassifier(random_state=0)
    for rows in (np.r_[0:100], np.r_[50:150], np.r_[50:100]):
        by_class.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
        w = np.array([2.0, 1.0, 5.0])[y[rows]]
        by_sample.partial_fit(X[rows], y[rows], sample_weight=w, classes=[0, 1, 2])
    assert same(by_class, by_sample)


def test_an_optimizer_is_copied_and_its_rate_decays():
    rule = SGD(0.1, momentum=0.9)
    used = fitted(optimizer=rule, batch_size=50, epochs=3).model_.optimizer
    assert used is not rule
    assert (rule.t, used.t, used.alpha) == (0, 9, CosineDecay(0.1, 9))
    by_name = fitted(optimizer="sgd", learning_rate=0.2, batch_size=None, epochs=3)
    assert by_name.model_.optimizer.alpha == CosineDecay(0.2, 3)
    usual = fitted(batch_size=50, epochs=3).model_.optimizer
    assert (usual.alpha, usual.weight_decay) == (CosineDecay(RATE, 9), DECAY)
    assert fitted(batch_size=2, epochs=1).model_.optimizer.weight_decay == DECAY * 24 / 75
    constant = fitted(learning_rate=Constant(0.01), epochs=1)
    assert constant.model_.optimizer.alpha == Constant(0.01)


def test_hidden_layers_are_those_that_were_asked_for():
    est = fitted(hidden=(8, 4), activation="leaky_relu", dropout=0.1, epochs=1)
    kinds = [type(layer).__name__ for layer in est.model_.layers]
    assert kinds == ["Dense", "LeakyReLU", "Dropout", "Dense", "LeakyReLU", "Dropout", "Dense"]
    assert [d.output_shape for d in est.model_.layers if isinstance(d, Dense)] == [(8,), (4,), (3,)]
    assert [type(layer) for layer in fitted(hidden=(), epochs=1).model_.layers] == [Dense]
    assert fitted(hidden=8, epochs=1).model_.layers[0].output_shape == (8,)


def test_own_layers_get_the_output_layer_that_they_lack():
    def layers(builder):
        return fitted(model=builder, epochs=1).model_.layers

    builder = SequentialBuilder().dense(5).gelu()
    assert len(layers(builder)) == len(layers(copy.deepcopy(builder).dense(3))) == 3
    assert len(layers(copy.deepcopy(builder).dense(4))) == 4
    assert len(layers(SequentialBuilder())) == 1
    for builder in (SequentialBuilder(2, 2, 1), SequentialBuilder(x=(2, 2, 1))):
        first, *_, flatten, last = layers(builder.conv2d(3, 2, padding="same"))
        assert isinstance(first, Reshape)
        assert (flatten.output_shape, last.output_shape) == ((12,), (3,))
    builder = SequentialBuilder().dense(5).name("h").dense(5).gelu().add("h")
    assert len(layers(builder)) == 2  # the network, and a Dense
    assert len(layers(copy.deepcopy(builder).dense(3))) == 1
    before = repr(builder)
    assert same(*(fitted(model=builder) for _ in range(2)))
    assert repr(builder) == before  # which is used twice


WRONG = [
    ({"model": SequentialBuilder().dense(3).softmax()}, r"ends with Softmax\(\): leave it out"),
    ({"model": SequentialBuilder().alpha(0.1)}, "model sets alpha.*use learning_rate= instead"),
    ({"model": SequentialBuilder(seed=0)}, "model sets seed.*use random_state= instead"),
    (
        {"model": SequentialBuilder(a=(4,)).dense(3).output("y")},
        r"one input with .* leave \.output",
    ),
    ({"model": SequentialBuilder(9).dense(5)}, r"shape \(9,\), but each row has 4 values"),
    ({"model": SequentialBuilder(x=(9,)).dense(5)}, r"shape \(9,\), but each row has 4 values"),
    ({"activation": "rellu"}, r"'rellu'\. Did you mean 'ReLU'.* Known: CELU, ELU, .*, Tanh\."),
    ({"activation": "softmax"}, "unknown activation 'softmax'"),
    ({"optimizer": "adamm"}, r"unknown optimizer 'adamm'"),
    ({"epochs": 0}, "epochs must be >= 1"),
    ({"validation_fraction": 1.0}, "validation_fraction must be > 0 and < 1"),
    ({"batch_size": 0}, "batch_size must be >= 1"),
    ({"hidden": (0,)}, "must be >= 1"),
    ({"categories": "colour"}, r"write \['colour'\] for a single column"),
    ({"n_iter_no_change": 0}, "n_iter_no_change must be >= 1"),
    ({"class_weight": {0: -1.0}}, r"class_weight\[0\] must be >= 0, got -1\.0"),
    ({"class_weight": {0: np.nan}}, r"class_weight\[0\] must be >= 0, got nan"),
    ({"class_weight": {0: 0, 1: 0, 2: 0}}, "class_weight gives every sample the weight 0"),
]
WRONG_TYPES = [
    ({"model": Sequential(Dense(4, 3))}, "a SequentialBuilder that has not been built"),
    ({"model": Softmax}, r"That is the class: write Softmax\(\)"),
    ({"optimizer": AdamW}, r"That is the class: write AdamW\(\)"),
    ({"activation": None}, 'activation must be a name, such as "relu", got None'),
    ({"hidden": 0.5}, r"sizes of the hidden layers, such as \(64, 32\), got 0\.5"),
    ({"early_stopping": 1}, "early_stopping must be True or False"),
    ({"scale": "yes"}, "scale must be True or False"),
    ({"class_weight": {0: "two"}}, r"class_weight\[0\] must be a number, got 'two'"),
    ({"class_weight": "balance"}, 'class_weight must be "balanced", None or a dict'),
    ({"class_weight": [1, 2, 3]}, r"a dict such as .*, got \[1, 2, 3\]"),
]


def test_wrong_settings_are_named():
    for error, rows in ((ArgumentError, WRONG), (ArgumentTypeError, WRONG_TYPES)):
        for settings, says in rows:
            with pytest.raises(error, match=says):
                PhitoClassifier(**settings).fit(X, y)
    with pytest.raises(ValueError, match=r"The classes, \[1, 2\], are not in class_weight"):
        PhitoClassifier(class_weight={0: 1.0, 7: 2.0}).fit(X, y)


def test_targets_that_do_not_fit_are_refused():
    for settings, target, says in (
        ({}, np.stack([y, y], axis=1), r"MultiOutputClassifier\(PhitoClassifier\(\)\)"),
        ({}, ["a"] * 150, r"only one class, 'a', .* at least 2\."),
        ({"class_weight": "balanced"}, MANY_Y[:150], "y is multilabel: pass sample_weight"),
    ):
        with pytest.raises(ArgumentError, match=says):
            PhitoClassifier(**settings).fit(X, target)
    with pytest.raises(ArgumentError, match="partial_fit sees a part: give the weights by class"):
        PhitoClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])


def test_the_dtype_is_that_of_x_unless_it_is_set():
    def dtype(rows, **settings):
        return str(fitted(rows, epochs=1, **settings).model_.dtype)

    assert dtype(X) == "float64"
    assert dtype(X.astype(np.float32)) == "float32"
    assert dtype(X, dtype="float32") == "float32"
    assert dtype(X.astype(int)) == "float64"


def test_early_stopping_keeps_the_weights_of_the_best_epoch():
    settings = {"validation_fraction": 0.3, "n_iter_no_change": 3, "random_state": 1}
    settings |= {"early_stopping": True, "learning_rate": Constant(0.05), "epochs": 200}
    est = fitted(TWO_X, TWO_Y, hidden=(50,), **settings)
    assert 4 <= est.n_iter_ < 200
    assert len(est.loss_curve_) == len(est.validation_scores_) == est.n_iter_
    best = est.n_iter_ - 3 - 1  # the epoch after which the loss did not improve three times
    assert est.best_validation_score_ == est.validation_scores_[best]
    assert est.best_loss_ > 0
    part, held, _, labels = split_of(est)
    np.testing.assert_array_equal(est.encoder_.scaler_.mean_, part.mean(axis=0))
    assert est.score(held, labels) == est.best_validation_score_
    assert est.model_.evaluate(est.encode(held), labels)["loss"] == pytest.approx(est.best_loss_)


def split_of(est):
    """The parts that `fit` used: its first random number is the seed of the split."""
    seed = int(est._rng().integers(1 << 31))
    options = {"test_size": est.validation_fraction, "random_state": seed}
    return train_test_split(TWO_X, TWO_Y, stratify=TWO_Y, **options)


def test_classes_that_cannot_be_held_out_are_explained():
    rare = np.where(np.arange(200) == 0, 2, TWO_Y)
    few = r"of 200 samples: .* only 1 member.*early_stopping=Fal"
    with pytest.raises(ArgumentError, match=few):
        PhitoClassifier(early_stopping=True).fit(TWO_X, rare)
    with pytest.raises(ArgumentError, match=r"0\.1 of 9 samples: .* number of classes = 3"):
        PhitoClassifier(early_stopping=True).fit(X[::17], y[::17])
    w = np.eye(200)[0]  # so that one of the two parts has no weight
    with pytest.raises(ArgumentError, match="training part or in the validation part have weight"):
        PhitoClassifier(early_stopping=True).fit(TWO_X, TWO_Y, sample_weight=w)


def test_without_early_stopping_all_epochs_run():
    est = fitted(epochs=7)
    assert est.n_iter_ == len(est.loss_curve_) == 7
    assert est.validation_scores_ is est.best_validation_score_ is None
    assert est.best_loss_ == min(est.loss_curve_)
    assert est.loss_curve_[-1] < est.loss_curve_[0]
    est = PhitoClassifier(early_stopping=True, warm_start=True, epochs=5, random_state=0)
    est.fit(TWO_X, TWO_Y).fit(TWO_X, TWO_Y)  # which looks at its own epochs
    assert len(est.validation_scores_) == len(est.loss_curve_) == 10
    _, held, _, labels = split_of(est)
    assert est.best_validation_score_ == est.score(held, labels)


def test_the_validation_part_is_weighted_too():
    est = fitted(TWO_X, TWO_Y, np.where(TWO_Y == 0, 1.0, 0.0), early_stopping=True, epochs=30)
    assert est.best_validation_score_ == 1  # of class 0 alone, which the network predicts
    est = fitted(TWO_X, TWO_Y, np.where(TWO_Y == 0, 1.0, 5.0), early_stopping=True, epochs=5)
    _, held, _, labels = split_of(est)
    settings = {"sample_weight": np.where(labels == 0, 1.0, 5.0)}
    loss = est.model_.evaluate(est.encode(held), labels, **settings)["loss"]
    assert est.best_loss_ == pytest.approx(loss)
    assert est.best_loss_ != pytest.approx(est.model_.evaluate(est.encode(held), labels)["loss"])


def test_a_warm_start_goes_on():
    est = fitted(epochs=3, warm_start=True)
    model, weights = est.model_, est.model_.get_weights()
    est.set_params(epochs=2).fit(X, y)
    assert est.model_ is model
    assert model.epoch == len(est.loss_curve_) == 5
    assert est.n_iter_ == 2
    assert est.loss_curve_[3] < est.loss_curve_[0]
    assert not np.array_equal(weights["0.W"], model.get_weights()["0.W"])
    with pytest.raises(ValueError, match="previously unseen labels"):
        est.fit(X, y + 1)
    est.set_params(warm_start=False).fit(X, y)
    assert est.model_ is not model
    assert len(est.loss_curve_) == 2


def test_partial_fit_learns_from_parts():
    est = PhitoClassifier(random_state=0, batch_size=16)
    rng = np.random.default_rng(0)
    for i in range(20):
        rows = rng.permutation(150)[:100]
        est.partial_fit(X[rows], NAMES[y[rows]], classes=NAMES if i == 0 else None)
    assert est.score(X, NAMES[y]) > 0.93
    assert est.n_iter_ == 1
    assert len(est.loss_curve_) == est.model_.epoch == 20
    assert est.model_.optimizer.t == 20 * 7  # the moments of earlier calls go on
    assert est.encoder_.scaler_.n_samples_seen_ == 2000


def test_a_part_need_not_have_all_classes():
    est = PhitoClassifier(random_state=0).partial_fit(X[:50], y[:50], classes=[0, 1, 2])
    assert est.predict_proba(X).shape == (150, 3)
    for wrong, labels, classes, says in (
        (est, y + 3, None, "previously unseen labels"),
        (est, y, [0, 1], "classes"),
        (PhitoClassifier(), y, None, "classes"),
        (PhitoClassifier(early_stopping=True), y, [0, 1, 2], "partial_fit trains for one epoch"),
    ):
        with pytest.raises(ValueError, match=says):
            wrong.partial_fit(X, labels, classes=classes)


def test_partial_fit_after_fit_learns_at_a_rate_above_zero():
    est = fitted(batch_size=50, epochs=2)
    assert est.model_.optimizer.rate == pytest.approx(0, abs=1e-12)
    before = est.model_.get_weights()["0.W"]
    est.partial_fit(X, y)
    assert est.model_.optimizer.rate == RATE
    assert not np.array_equal(before, est.model_.get_weights()["0.W"])
    est.set_params(optimizer=SGD(0.1, momentum=0.9)).partial_fit(X, y)  # begins with this part
    assert isinstance(est.model_.optimizer, SGD)
    assert (est.model_.optimizer.rate, est.model_.optimizer.t) == (0.1, 3)
    assert est.partial_fit(X, y).model_.optimizer.t == 6
    twin = pickle.loads(pickle.dumps(est))
    assert twin.partial_fit(X, y).model_.optimizer.t == 9


def test_a_first_part_that_fails_leaves_no_classes():
    for fail in (
        lambda est: est.partial_fit(np.full((150, 4), np.nan), y, classes=[0, 1, 2]),
        lambda est: est.set_params(dropout=2.0).fit(X, y),
    ):
        est = PhitoClassifier(random_state=0)
        with pytest.raises(ValueError, match=r"NaN|Dropout"):
            fail(est)
        est.set_params(dropout=0.0)
        with pytest.raises(ValueError, match="classes must be passed on the first call"):
            est.partial_fit(X[:100], y[:100])
        assert est.partial_fit(X[:100], y[:100], classes=[0, 1, 2, 3]).n_outputs_ == 4


def test_multilabel_targets_in_parts():
    est = PhitoClassifier(random_state=0, batch_size=16)
    for _ in range(12):
        est.partial_fit(MANY_X, MANY_Y)
    assert est.score(MANY_X, MANY_Y) > 0.5
    with pytest.raises(ArgumentError, match="multilabel in some calls and not in others"):
        est.partial_fit(MANY_X, MANY_Y[:, 0])
    est.set_params(warm_start=True)
    with pytest.raises(ArgumentError, match="y has 3 outputs, but the network has 4"):
        est.fit(MANY_X, MANY_Y[:, :3])
    assert est.classes_.tolist() == [0, 1, 2, 3]


def test_a_training_that_diverges_is_told_of():
    est = PhitoClassifier(early_stopping=True, optimizer=SGD(1e200), random_state=0)
    with pytest.warns(PhitodeepWarning, match="training stopped"):
        est.fit(X, y)
    assert est.n_iter_ == len(est.validation_scores_) <= 1


def test_an_estimator_whose_fit_failed_is_not_fitted():
    for settings, labels in (({}, 0 * y), ({"dropout": 2.0}, y)):
        for est in (PhitoClassifier(epochs=1), fitted(X[:, :2], epochs=1)):
            with pytest.raises(ArgumentError):
                est.set_params(**settings).fit(X, labels)
            for call in (est.predict, est.encode):
                with pytest.raises(NotFittedError):
                    call(X)
