"""A loss from its formula reads as a person's work, equals the shipped one, and is as useful."""

import importlib.util

import numpy as np
import pytest

import phitodeep
from phitodeep import SequentialBuilder, derive
from phitodeep import loss as losses
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Let, Sum
from phitodeep.derivations.losses import givens
from phitodeep.errors import ArgumentError, ArgumentTypeError, DerivationError, ShapeError
from phitodeep.testing import check_gradients, derived
from phitodeep.testing.examples import LOSSES, pair
from tests.derivations.test_contract import assert_close

PAIR = {"P": (4, 5), "T": (4, 5)}
LABELS = {"P": (4, 5), "T": "labels"}
SEQUENCES = {"P": (4, 3, 5), "T": (4, 3, 5)}


def huber(P, T, delta):
    e = P - T
    return np.where(np.abs(e) <= delta, e**2 / 2, delta * (np.abs(e) - delta / 2))


def focal(P, T, gamma):
    """Lin et al. 2017, arXiv:1708.02002, for the logits of K classes."""
    E = np.exp(P - P.max(axis=-1, keepdims=True))
    p = E / E.sum(axis=-1, keepdims=True)
    cost = -np.log(p) * (1 - p) ** gamma
    return (T * cost).sum(axis=-1)


def softmax(P, T):
    Z = P - P.max(axis=-1, keepdims=True)
    log_p = Z - np.log(np.exp(Z).sum(axis=-1, keepdims=True))
    return -(T * log_p).sum(axis=-1)


def cosine(P, T):
    P_hat = P / np.sqrt((P * P).sum(axis=-1, keepdims=True))
    T_hat = T / np.sqrt((T * T).sum(axis=-1, keepdims=True))
    return 1 - (P_hat * T_hat).sum(axis=-1)


FORMS = {  # the slope that each must have: form is a promise
    "L = (P - T) ** 2": (PAIR, "return 2 * (P - T)"),
    "L = ((P - T) ** 2).sum(axis=-1)": (PAIR, "PT = P - T\nreturn 2 * PT"),
    "e = P - T\nL = (e ** 2).sum(axis=-1) / 2": (PAIR, "e = P - T\nreturn e"),
    "rate = np.exp(P)\nL = rate - T * P": (PAIR, "rate = np.exp(P)\nreturn rate - T"),
    "L = softplus(P) - T * P": (PAIR, "return sigmoid(P) - T"),
    "L = 2 * P - T": (PAIR, "dP_one = 2\nreturn np.broadcast_to(dP_one, P.shape).astype(P.dtype)"),
    "L = P * T\nrest = 2 * L": (PAIR, "return T.copy()"),  # what follows L is not part of it
    "L = P * T": (PAIR, "return T.copy()"),  # not T itself, into which the caller would write
    "m = T[..., ::-1]\nL = P * m": (PAIR, "m = T[..., ::-1]\nreturn m.copy()"),
    huber: (
        {**PAIR, "delta": 1.0},
        """
        e = P - T
        return np.where(np.abs(e) <= self.delta, e, self.delta * np.sign(e))
        """,
    ),
    softmax: (
        LABELS,
        """
        max_P = P.max(axis=-1, keepdims=True)
        Z = P - max_P
        exp_Z = np.exp(Z)
        sum_Z = exp_Z.sum(axis=-1, keepdims=True)
        dlog_p = -T
        s = dlog_p.sum(axis=-1, keepdims=True)
        return dlog_p - exp_Z * s / sum_Z
        """,
    ),
    focal: (
        {**LABELS, "gamma": 2.0},
        """
        max_P = P.max(axis=-1, keepdims=True)
        u = P - max_P
        E = np.exp(u)
        sum_E = E.sum(axis=-1, keepdims=True)
        p = E / sum_E
        dp = T * (self.gamma * (1 - p) ** (self.gamma - 1) * np.log(p) - (1 - p) ** self.gamma / p)
        s = (dp * p).sum(axis=-1, keepdims=True)
        return p * (dp - s)
        """,
    ),
}


@pytest.mark.parametrize("formula", FORMS, ids=range(len(FORMS)))
def test_the_slope_reads_like_a_persons_work(formula):
    given, wanted = FORMS[formula]
    source = derive(formula, name="Found", **given).source
    body = source.partition("    def slope(self, P: Array, T: Array) -> Array:\n")[2]
    lines = [line.strip() for line in body.partition("\n\n")[0].splitlines()]
    wanted = [line.strip() for line in wanted.strip().splitlines()]
    assert lines == wanted


def test_the_file_of_a_loss():
    assert derive(poisson, name="Counts", **PAIR).source == POISSON


def poisson(P, T):
    rate = np.exp(P)
    return rate - T * P


POISSON = '''\
"""Counts: derived from its formula, and checked by `check_gradients`."""

from __future__ import annotations

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Derivation, Let
from phitodeep.derivations.losses import weighted
from phitodeep.loss.base import Elementwise


class Counts(Elementwise):
    """The weighted mean of L (N, ...), from P and T (N, ...).

    Forward:

        rate = exp(P)
        L = rate - T · P

    Backward, from the last step to the first:

        slope = rate - T
    """

    def each(self, P: Array, T: Array) -> Array:
        rate = np.exp(P)
        return rate - T * P

    def slope(self, P: Array, T: Array) -> Array:
        rate = np.exp(P)
        return rate - T

    def steps(self) -> Derivation:
        return weighted(
            [
                Let("rate", "np.exp(P)"),
                Let("each", "rate - T * P"),
            ],
            [
                Let("slope", "rate - T"),
            ],
            0,
        )
'''


# --- the shipped losses, from their formulas -----------------------------------------------------

LOG_COSH = "size = np.abs(P - T)\nL = size + softplus(-2 * size) - 0.6931471805599453"
SHIPPED = [
    (losses.MeanSquaredError(), "L = (P - T) ** 2", PAIR),
    (losses.MeanAbsoluteError(), "L = np.abs(P - T)", PAIR),
    (losses.Huber(0.7), huber, {**PAIR, "delta": 0.7}),
    (losses.LogCosh(), LOG_COSH, PAIR),
    (losses.PoissonNLL(), poisson, PAIR),
    (losses.PoissonNLL(log_input=False), "L = P - T * np.log(P)", PAIR),
    (losses.CosineSimilarityLoss(), cosine, PAIR),
    (losses.BinaryCrossEntropy(), "L = -T * np.log(P) - (1 - T) * np.log1p(-P)", PAIR),
    (losses.BinaryCrossEntropyWithLogits(), "L = softplus(P) - T * P", PAIR),
    (losses.Hinge(), "L = np.maximum(1 - T * P, 0)", PAIR),
    (losses.SquaredHinge(), "L = np.maximum(1 - T * P, 0) ** 2", PAIR),
    (losses.KLDivergence(), "L = (T * (np.log(T) - P)).sum(axis=-1)", PAIR),
    (losses.CategoricalCrossEntropy(), "L = -(T * np.log(P)).sum(axis=-1)", LABELS),
    (losses.SoftmaxCrossEntropy(), softmax, LABELS),
    (losses.NegativeLogLikelihood(), "L = -(T * P).sum(axis=-1)", LABELS),
]


@pytest.mark.parametrize(
    ("shipped", "formula", "given"), SHIPPED, ids=[repr(row[0]) for row in SHIPPED]
)
@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 5)])
def test_a_derived_loss_equals_the_shipped_one(shipped, formula, given, shape):
    if shape[2:] and isinstance(shipped, losses.KLDivergence):
        return  # it divides by samples, where others divide by rows
    found = derive(formula, **given).loss()
    P, y = pair(shipped, shape)
    weights = np.linspace(0, 2, len(P))
    each = np.random.default_rng(1).random(shipped.positions(shape))
    by_rows = isinstance(shipped, losses.KLDivergence)  # whose own terms are elements
    for w in (None, weights) if by_rows else (None, weights, each):
        same(found.loss_func(P, y, w), shipped.loss_func(P, y, w))
        same(found.loss_gradient(P, y, w), shipped.loss_gradient(P, y, w))
        same(found.loss_func(P, y, w, total=3.5), shipped.loss_func(P, y, w, total=3.5))
    T = shipped.targets(y, shape)
    for n in range(len(P)):  # the part of each sample
        own = [loss.weights_of(n, P, None) for loss in (found, shipped)]
        same(found.loss_func(P, y, own[0]), shipped.loss_func(P, y, own[1]))
    if hasattr(shipped, "each") and not by_rows:
        same(found.each(P, T), shipped.each(P, T))
    assert found.loss_gradient(np.float32(P), y).dtype == np.float32
    by_steps = passes(found, P, y, weights)
    same(by_steps["L"], shipped.loss_func(P, y, weights))
    same(by_steps["dP"], shipped.loss_gradient(P, y, weights))


def passes(loss, P, y, w):
    """The symbols of both passes of a loss, by its steps."""
    T = loss.targets(y, P.shape)
    scope = Scope(loss, "loss", **givens(loss, P, T, loss.weights(w, T, P.shape), None))
    run.run(run.forward(scope, "P"))
    run.run(run.backward(scope))
    return scope


def test_every_shipped_loss_is_there_that_compares_equal_shapes():
    missing = {type(loss) for loss, _ in LOSSES} - {type(loss) for loss, *_ in SHIPPED}
    assert missing == {losses.NegativeELBO}


def same(found, wanted):
    assert_close(np.asarray(found), np.asarray(wanted), "", 1e-12)


# --- a loss in use -------------------------------------------------------------------------------


def written(tmp_path, found):
    """The class of a file that was written, registered under its name."""
    spec = importlib.util.spec_from_file_location(
        found.name.lower(), found.write(tmp_path / f"{found.name}.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return phitodeep.register(f"{found.name} of {tmp_path.name}")(getattr(module, found.name))


def test_a_written_loss_trains_is_saved_and_can_be_followed(tmp_path):
    Focal = written(tmp_path, derive(focal, name="Focal", gamma=2.0, **LABELS))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    y = (X[:, 0] > 0) + 2 * (X[:, 1] > 0)
    builder = SequentialBuilder(4, seed=0).dense(8).tanh().dense(4).dtype("float64")
    model = builder.loss(Focal(gamma=1.5)).metrics("accuracy").alpha(0.05).epochs(60).build()
    history = model.train(X, y, verbose=0)
    assert history[-1][0] < history[0][0] / 3
    assert model.evaluate(X, y)["accuracy"] > 0.9
    model.save(tmp_path / "model.phd")
    again = phitodeep.load(tmp_path / "model.phd")
    assert repr(again.loss) == "Focal(1.5)"
    assert again.evaluate(X, y) == model.evaluate(X, y)
    t = model.trace(X[:3], y[:3])
    np.testing.assert_allclose(t["loss.L"].array, model.evaluate(X[:3], y[:3])["loss"], rtol=1e-12)
    cell = t["loss.backward.slope"]
    assert cell.why(1, 2).total == pytest.approx(cell.array[1, 2])
    assert "loss.p" in t
    debugger = model.debug(X[:3], y[:3])
    debugger.until("loss.backward.dp")
    assert debugger.p("dp").shape == (3, 4)
    t.save(tmp_path / "step.html")
    assert "gamma" in (tmp_path / "step.html").read_text(encoding="utf-8")


def test_steps_without_data_do_not_count():
    given = "L = ((P - T) ** 2).sum(axis=-1)"
    model = SequentialBuilder(6, 3, seed=0).dense(2).dtype("float64")
    model = model.loss(derive(given, P=(4, 5), T=(4, 5)).loss()).build()
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((4, 6, 3)), rng.standard_normal((4, 6, 2))
    t = model.trace(X, Y, lengths=[6, 2, 1, 3])
    dP = t["loss.dP"].array
    counted = np.arange(6) < np.array([6, 2, 1, 3])[:, None]
    np.testing.assert_allclose(dP, 2 * (t["Y"].array - Y) * counted[..., None] / 12, atol=1e-15)


def test_one_number_for_a_sample_of_any_shape():
    found = derive("L = ((P - T) ** 2).mean(axis=(-2, -1))", **SEQUENCES)
    loss = found.loss()
    rng = np.random.default_rng(0)
    P, T = rng.standard_normal((2, 7, 4, 3))
    w = rng.random(7)
    wanted = (((P - T) ** 2).mean(axis=(1, 2)) * w).sum() / w.sum()
    assert loss.loss_func(P, T, w) == pytest.approx(wanted)
    assert loss.positions(P.shape) == (7,)
    by_steps = passes(loss, P, T, w)
    same(by_steps["L"], wanted)
    same(by_steps["dP"], loss.loss_gradient(P, T, w))
    assert check_gradients(loss, P, T, sample_weight=w).worst < 1e-7
    more = rng.standard_normal((2, 7, 2, 4, 3))
    assert loss.positions(more[0].shape) == (7, 2)
    assert check_gradients(loss, *more).worst < 1e-7
    with pytest.raises(ShapeError, match=r"sample_weight must have shape \(7,\)"):
        loss.loss_func(P, T, rng.random((7, 4)))


def test_labels_and_rows():
    loss = derive(softmax, **LABELS).loss()
    P = np.random.default_rng(0).standard_normal((5, 3))
    y = np.array([0, 2, 1, 1, 0])
    wanted = losses.SoftmaxCrossEntropy().loss_func(P, y)
    for T in (y, y[:, None], np.eye(3)[y]):
        assert loss.loss_func(P, T) == pytest.approx(wanted)
    assert loss.classes(P.shape) == (0, 1, 2)
    with pytest.raises(ArgumentError, match="labels"):
        loss.loss_func(P, y + 1)
    with pytest.raises(ArgumentTypeError, match="labels must be integers"):
        loss.loss_func(P, y / 1)
    with pytest.raises(ShapeError, match=r"y of shape \(4,\)"):
        loss.loss_func(P, y[:4])


def test_a_derived_loss_from_steps_leaves_its_arguments_as_they_are():
    steps = [Let("e", "P - T"), Let("shown", "T"), Sum("L", "nd,nd->n", "e", "shown")]
    loss = derive(steps, **PAIR).loss()
    P, T = np.random.default_rng(0).standard_normal((2, 4, 5))
    before = T.copy()
    assert loss.loss_func(P, T) == pytest.approx(((P - T) * T).sum() / 4)
    np.testing.assert_allclose(
        loss.loss_gradient(P, T, np.arange(4.0)), T * np.arange(4)[:, None] / 6
    )
    np.testing.assert_array_equal(T, before)


WRONG = [  # formulas that are refused, and what the error says
    ("L = (P - T) ** 2", {"P": (4, 5)}, "neither X nor parameters"),
    ("L = (P - T) ** 2", {"T": (4, 5)}, "needs the shape of X"),
    ("L = (P - T) ** 2", {**PAIR, "X": (4, 5)}, "neither X nor parameters"),
    ("L = (P - T) ** 2", {"P": (4, 5), "T": (4, 1)}, "T of the same shape"),
    ("L = (P - T) ** 2", {"P": (4, 5), "T": "rows"}, "T is a shape"),
    ("L = (P - T) ** 2", {"P": (4, 4), "T": (4, 4)}, "P has shape .*a size of its own"),
    ("L = (P - T) ** 2", {"P": (4,), "T": (4,)}, "needs the shape of P, samples first"),
    ("L = W * (P - T) ** 2", {**PAIR, "W": (5,)}, "nor parameters"),
    ("L = (P - T) ** each", {**PAIR, "each": 2.0}, "'each' has another meaning"),
    ("L = (P - T) ** targets", {**PAIR, "targets": 2.0}, "'targets' has another meaning"),
    ("L = ((P - T) ** 2).mean()", PAIR, r"L has shape \(\) for P.*takes their mean"),
    ("L = (P - T).sum(axis=-1, keepdims=True)", PAIR, r"L has shape \(4, 1\)"),
    ("L = P[:, 0] * T[:, 0]", PAIR, r"L has shape \(4,\).*P\[..., :1\]"),
    ("L = (P * T).sum(axis=0)", PAIR, r"L has shape \(5,\)"),
    ("L = (P - T).sum(axis=1)", SEQUENCES, r"L has shape \(4, 5\)"),
    ("L = P[:, ::-1] * T", SEQUENCES, "does not pass check_gradients"),
    ("L = (P * P[:, :1]).sum(axis=-1)", SEQUENCES, "does not pass check_gradients"),
    ("L = np.einsum('ntd,nsd->nts', P, T).sum(axis=(1, 2))", SEQUENCES, "count the axes"),
    ("L = 2 * T", PAIR, "L does not depend on P"),
    ("Y = P * T", PAIR, "computes no L"),
    ("L = T * (P - P.mean(axis=0, keepdims=True))", PAIR, "depends on other samples"),
    ("L = w * (P - T) ** 2", PAIR, "w has no value here"),
    ("v = P - T\nL = v * v", PAIR, "v has another meaning here"),
    ("L = np.log(-P * P) * T", PAIR, "L is not finite"),
    ("L = np.sort(P) * T", PAIR, "no derivative is known for np.sort"),
    ("L = P * T\nL = L + 1", PAIR, "L has a value already"),
    ("L = T ** P", PAIR, ""),
]


@pytest.mark.parametrize(("formula", "given", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_no_loss_is_refused(formula, given, words):
    if not words:  # finite only for numbers from 0 to 1, and right
        assert "np.log(T)" in derive(formula, **given).source
        return
    with pytest.raises((ArgumentError, ArgumentTypeError, DerivationError), match=words):
        _ = derive(formula, **given).source


def test_a_loss_has_a_name_of_its_own_and_steps_that_compute_l():
    with pytest.raises(ArgumentError, match="Elementwise has another meaning in the file"):
        _ = derive("L = P * T", name="Elementwise", **PAIR).source
    with pytest.raises(ArgumentError, match="no step computes L"):
        derive([Let("Y", "P * T")], **PAIR)


@pytest.mark.parametrize("wrong", ["2 * (P - T)", "4 * P", "P - T"])
def test_a_wrong_slope_is_never_shown(monkeypatch, wrong):
    monkeypatch.setattr(derived, "reverse", lambda *_: [Let("dP", wrong)])
    found = derive("L = 2 * (P - T) ** 2", **PAIR)
    with pytest.raises(DerivationError, match="does not pass check_gradients: for P of shape"):
        _ = found.source
