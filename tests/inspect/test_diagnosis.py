"""model.diagnose and the callback Diagnose: each finding, its number, and what must not change."""

import json
import math
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from phitodeep.data import make_moons
from phitodeep.inspect import Diagnosis, Finding
from phitodeep.inspect.diagnosis.evidence import Course
from phitodeep.inspect.diagnosis.findings import LIMITS, examine
from phitodeep.inspect.diagnosis.symptoms import COURSE, SYMPTOMS
from phitodeep.layers import BatchNorm, Dense, Dropout, Lambda, ReLU, Tanh
from phitodeep.loss import MeanSquaredError
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.callbacks import Diagnose, LambdaCallback, ModelCheckpoint
from phitodeep.optimization.optimizers import LBFGS, SGD, Adam, AdamW
from phitodeep.optimization.schedules import CosineDecay
from tests.conftest import check_refused
from tests.inspect.shared import rows
from tests.rows import few
from tools import calibrate_diagnosis as tool
from tools.sick_models import KINDS, SICK

X, Y = make_moons(60, seed=3)
QUICK = {"overfit": 0, "verbose": 0}
SEED = 6  # none of the calibration
DOCS = Path(__file__).parent.parent.parent / "docs"


def net(*layers, optimizer=None, loss="softmax_cross_entropy"):
    return Sequential(*layers, optimizer=optimizer or SGD(0.1), loss_class=loss, seed=1)


def classifier(**options):
    return net(Dense(2, 16), ReLU(), Dense(16, 2), **options)


def finding(report, name):
    [found] = [f for f in report if f.name == name]
    return found


def diagnosed(model, name, X=X, y=Y, overfit=0):
    return finding(model.diagnose(X, y, overfit=overfit, verbose=0), name)


def report_of(case, overfit=0):
    """The report on a case: before training, after it, or by the callback."""
    model, watch = case.built(), Diagnose(verbose=0)
    if case.trained or case.watched:
        model, watch = tool.train(case, every=2)
    if case.watched:
        assert watch.report is not None
        return watch.report
    return model.diagnose(case.X, case.y, overfit=overfit, verbose=0)


@cache
def healthy(kind, watched, trained, overfit):
    case = KINDS[kind](SEED)
    case.watched, case.trained, case.epochs = watched, trained, 20
    return report_of(case, overfit)


def test_the_tables_and_the_thresholds_are_those_of_the_calibration():
    names = [symptom.name for symptom in (*SYMPTOMS, *COURSE)]
    assert set(names) == set(LIMITS) == set(SICK) == set(tool.START)
    assert len(names) == len(LIMITS) + 2  # updates show before training and in its course
    assert (DOCS / "_findings.md").read_text(encoding="utf-8") == tool.findings()
    assert tool.thresholds(STORED["rows"]) == {name: limit.value for name, limit in LIMITS.items()}
    assert (DOCS / "_diagnosis.md").read_text(encoding="utf-8") == tool.table(STORED)
    counted = [(row["finding"], row["case"], row["half"]) for row in STORED["rows"]]
    assert counted == [(f, n, half) for f, n, half, _ in tool.cases() for _ in tool.SEEDS]


@pytest.mark.parametrize("name", LIMITS)
def test_a_sick_model_has_the_finding_and_a_healthy_one_has_not(name):
    case_name, make = next(iter(SICK[name].items()))
    case, overfit = make(SEED), 500 if name == "cannot overfit" else 0
    found = finding(report_of(case, overfit), name)
    limit = LIMITS[name]
    assert limit.crossed(found.value)
    assert found.limit == limit.value
    assert found.evidence.endswith(f"(a finding {limit})") or "also at" in found.evidence
    assert found.cause.endswith(".")
    assert found.remedy.endswith(".")
    assert name not in healthy(case_name.split()[0], case.watched, case.trained, overfit).names


def test_the_first_array_that_is_not_finite():
    model = classifier()
    W = model.layers[2].W.copy()
    W[3, 1] = np.inf
    model.layers[2].W = W
    report = model.diagnose(X, Y, verbose=0)
    assert [f.name for f in report] == ["not finite"]
    assert (report[0].path, report[0].value) == ("2", 1)
    assert "W is the first array" in report[0].evidence
    assert report.skipped["twin units"] == "some values are not finite"

    bad = Lambda(lambda X: 1 * X, lambda dY, X, Y: dY * np.float32(np.nan))
    report = net(Dense(2, 4), bad, Dense(4, 2)).diagnose(X, Y, verbose=0)
    assert (report[0].path, report[0].value) == ("1", 60 * 4)
    assert report[0].evidence.startswith("dX is the first array")

    root = Lambda(np.sqrt, lambda dY, X, Y: dY / (2 * Y))
    report = net(root, Dense(2, 2)).diagnose(X, Y, verbose=0)
    assert (report[0].path, report[0].value) == ("0", (X < 0).sum())
    assert f"lies between {X.min():.3g} and {X.max():.3g}" in report[0].evidence


def test_the_scale_of_the_inputs_and_the_start_loss_are_measured():
    far = X * [1, 40] + [5, 0]
    report = classifier().diagnose(far, Y, **QUICK)
    off = finding(report, "inputs off centre")
    assert off.value == pytest.approx(far.mean(axis=0).max(), rel=1e-5)
    spread = finding(report, "inputs too spread")
    assert spread.value == pytest.approx(far[:, 1].std(), rel=1e-5)
    assert "feature 1" in spread.evidence
    narrow = finding(classifier().diagnose(X / 50, Y, **QUICK), "inputs too narrow")
    assert narrow.value == pytest.approx(math.sqrt(X.var(axis=0).mean()) / 50, rel=1e-4)
    normed = net(BatchNorm(), Dense(2, 2)).diagnose(far, Y, **QUICK)
    assert not {name for name in normed.names if name.startswith("inputs")}
    model = classifier()
    model.layers[2].W *= 30
    found = diagnosed(model, "start loss")
    loss = model.evaluate(X, Y)["loss"]
    assert found.value == pytest.approx(abs(loss / math.log(2) - 1), rel=1e-4)
    assert f"{loss:.4g}" in found.evidence
    high = 7 + X[:, :1]
    model = net(Dense(2, 1), loss="mse")
    found = diagnosed(model, "start loss", y=high)
    ratio = model.evaluate(X, high)["loss"] / high.var()
    assert found.value == pytest.approx(ratio - 1, rel=1e-4)
    model.train(X, high, epochs=1, verbose=0)
    skipped = model.diagnose(X, high, **QUICK).skipped
    assert skipped["start loss"] == "the model has been trained"


def test_what_is_left_of_the_loss():
    model = classifier()
    model.trainable = False
    rows = np.linspace(0, len(X) - 1, 20).astype(int)
    found = finding(model.diagnose(X, Y, overfit=50, verbose=0), "cannot overfit")
    left = model.evaluate(X[rows], Y[rows])["loss"] / math.log(2)
    assert found.value == pytest.approx(left, rel=1e-5)
    assert "after 50 steps on 20 samples" in found.evidence
    assert model.diagnose(X, Y, **QUICK).skipped["cannot overfit"] == "overfit=0"
    model = classifier(optimizer=Adam(lambda t: 0.03 if t < 520 else 0.0))
    model.trainable = False
    model.train(X, Y, epochs=520, verbose=0)  # the rate is 0 from now on, unless it starts over
    model.trainable = True
    assert "cannot overfit" not in model.diagnose(X, (X[:, 0] > 0.5).astype(int), verbose=0).names


def test_an_input_that_is_cut_off_or_unused():
    cut = Lambda(lambda X: 0 * X, lambda dY, X, Y: 0 * dY)
    short = {"overfit": 25, "verbose": 0}
    found = finding(net(Dense(2, 4), cut, Dense(4, 2)).diagnose(X, Y, **short), "input cut off")
    assert found.value == 0
    model = classifier()
    model.layers[2].W *= 0  # a last layer of zeros is no cut: it learns
    assert "input cut off" not in model.diagnose(X, Y, **short).names

    same_samples = np.ones_like(X)
    report = classifier().diagnose(same_samples, Y, **QUICK)
    assert report.skipped["input cut off"] == "all samples are the same"
    assert "input cut off" in classifier().diagnose(X[:1], Y[:1], **QUICK).skipped

    labels = np.random.default_rng(0).integers(0, 2, 60)
    model = classifier()
    model.train(X, labels, epochs=5, verbose=0)
    found = diagnosed(model, "input unused", y=labels)
    others = X[np.random.default_rng(0).permutation(60)]
    true, other = (model.evaluate(A, labels)["loss"] for A in (X, others))
    assert found.value == pytest.approx(1 - true / other, rel=1e-4)
    assert f"{true:.4g}" in found.evidence
    skipped = classifier().diagnose(X, labels, **QUICK).skipped
    assert skipped["input unused"] == "the model has not been trained"


def test_samples_that_mix_and_a_model_that_reads_ahead_name_the_layer():
    roll = Lambda(lambda X: np.roll(X, 1, 0), lambda dY, X, Y: np.roll(dY, -1, 0))
    found = diagnosed(net(Dense(2, 4), roll, Dense(4, 2)), "samples mix")
    assert (found.path, found.value) == ("1", 1.0)
    half = Lambda(lambda X: X + np.roll(X, 1, 0), lambda dY, X, Y: dY + np.roll(dY, -1, 0))
    found = diagnosed(net(half, Dense(2, 2)), "samples mix")
    assert found.value == pytest.approx(math.sqrt(0.5))
    exempt = net(Dense(2, 4), BatchNorm(), Dropout(0.5), Dense(4, 2))
    report = exempt.diagnose(X, Y, **QUICK)
    assert "samples mix" in report.checked
    assert "samples mix" not in report.names
    tokens = np.random.default_rng(0).integers(0, 5, (6, 7))
    now, after = tokens[:, :-1], tokens[:, 1:]

    def block(causal):
        builder = SequentialBuilder(6).embedding(5, 8).positional_embedding(6)
        builder = builder.multi_head_attention(2, causal=causal).dense(5)
        return builder.loss("softmax_cross_entropy").seed(0).build()

    assert finding(block(False).diagnose(now, after, **QUICK), "reads ahead").path == "2"
    report = block(True).diagnose(now, after, **QUICK)
    assert "reads ahead" in report.checked
    assert "reads ahead" not in report.names
    report = block(False).diagnose(now, now, **QUICK)
    assert report.skipped["reads ahead"] == "the targets are not the next tokens"


def gradients(model):
    """dW of each Dense, from the passes of a copy, by hand."""
    twin = model.copy()
    twin.backward(twin.loss.loss_gradient(twin.forward(X), Y))
    return [layer.grads["W"] for layer in twin.layers if "W" in layer.grads]


def length(arrays):
    return math.hypot(*map(np.linalg.norm, arrays))


def test_the_size_of_updates_and_of_penalties_is_compared_with_weights_and_gradients():
    model = classifier(optimizer=SGD(20.0))
    found = diagnosed(model, "updates too large")
    Ws = [model.layers[0].W, model.layers[2].W]
    pairs = zip(gradients(model), Ws, strict=True)
    ratios = [20 * np.linalg.norm(dW) / np.linalg.norm(W) for dW, W in pairs]
    assert found.value == pytest.approx(max(ratios), rel=1e-4)
    assert found.path == f"{2 * int(np.argmax(ratios))}.W"
    model = classifier(optimizer=SGD(1e-7))
    found = diagnosed(model, "updates too small")
    assert found.value < 1e-6
    assert "; also at" in found.evidence
    model = classifier(optimizer=SGD(CosineDecay(1e-7, 5)))
    report = model.diagnose(X, Y, **QUICK)
    assert "updates too small" in report.skipped
    report = classifier(optimizer=LBFGS()).diagnose(X, Y, **QUICK)
    assert "updates too large" in report.skipped
    model = classifier(optimizer=SGD(0.1, l2=3.0, l1=0.2))
    found = diagnosed(model, "penalty rules")
    Ws = [model.layers[0].W, model.layers[2].W]
    pull = length(3.0 * W + 0.2 * np.sign(W) for W in Ws)
    assert found.value == pytest.approx(pull / length(gradients(model)), rel=1e-4)
    model = classifier(optimizer=SGD(0.1, weight_decay=3.0))
    found = diagnosed(model, "penalty rules")
    Ws = [model.layers[0].W, model.layers[2].W]
    assert found.value == pytest.approx(3 * length(Ws) / length(gradients(model)), rel=1e-3)
    assert "penalty rules" in classifier().diagnose(X, Y, **QUICK).skipped


def test_units_that_are_dead_or_saturated_and_gradients_that_fade_or_grow():
    model = classifier()
    model.layers[0].b = np.where(np.arange(16) < 11, -100, 1)
    found = diagnosed(model, "dead units")
    assert (found.path, found.value) == ("1", 11 / 16)
    assert "11 of 16 units are 0 on all 60 samples" in found.evidence
    model = net(Dense(2, 8), Tanh(), Dense(8, 2))
    model.layers[0].W *= 10
    found = diagnosed(model, "saturated units")
    assert found.value == (np.abs(np.tanh(X @ model.layers[0].W)) > 0.97).mean()

    def deep(factor):
        model = net(*(Dense(2, 2) for _ in range(8)))
        for layer in model.layers:
            layer.W = factor * np.eye(2)
        return model

    found = diagnosed(deep(0.1), "vanishing gradients")
    assert found.value == pytest.approx(0.1**7, rel=1e-4)
    found = diagnosed(deep(10), "exploding gradients")
    assert found.value == pytest.approx(10**7, rel=1e-4)


def test_twins_are_counted_but_not_among_outputs():
    model = classifier()
    factors = 1 + np.maximum(np.arange(16) - 5, 0)
    model.layers[0].W = model.layers[0].W[:, :1] * factors
    model.layers[2].W = np.tile(model.layers[2].W[:1], (16, 1))
    found = diagnosed(model, "twin units")
    assert (found.path, found.value) == ("0.W", 6 / 16)
    model = net(Dense(2, 16), ReLU(), Dense(16, 2), loss="mse")
    model.layers[2].W = np.zeros((16, 2))
    assert "twin units" not in model.diagnose(X, X[:, [0, 0]], **QUICK).names
    model = classifier()
    model.layers[0].W = np.ones((2, 16))  # the next layer tells these units apart
    assert "twin units" not in model.diagnose(X, Y, **QUICK).names


def test_healthy_and_sick_reports_read_well(capsys):
    model = classifier(optimizer=Adam())
    for _ in range(2):  # fresh, and trained
        report = model.diagnose(X, Y, verbose=0)
        assert report.healthy
        assert not report
        assert list(report) == []
        assert str(report).startswith(f"healthy: {len(report.checked)} checks found nothing")
        assert "dead units" in str(report)
        assert repr(report) == str(report)
        assert set(report.checked) | set(report.skipped) == {s.name for s in SYMPTOMS}
        model.train(X, Y, epochs=40, verbose=0)
    assert capsys.readouterr().out == ""  # no progress either
    report = classifier(optimizer=SGD(20.0)).diagnose(90 + 30 * X, Y, verbose=0)
    text = str(report)
    counts = f"{len(report)} findings in {len(report.checked)} checks"
    assert text.startswith(f"{counts}\n\n1. inputs off")
    assert max(map(len, text.splitlines())) <= 90
    for found in report:
        assert found.name in text
        assert " ".join(found.remedy.split()) in " ".join(text.split())
    one = Finding("a", "<p>", "1 < 2", "", "", 1, 0)
    html = Diagnosis([one], ["a"], {})._repr_html_()
    assert "a at &lt;p&gt;" in html
    assert "1 &lt; 2" in html
    assert str(Diagnosis([], [], {})).startswith("nothing was checked")


REFUSED = """
classifier().diagnose(X, Y[:-1]) -> ShapeError: as many samples in X as in y
classifier().diagnose(X[:0], Y[:0]) -> ShapeError: at least one
classifier().diagnose(X, Y, overfit=-1) -> ArgumentError: overfit
classifier().diagnose(X, Y, sample_weight=1) -> ShapeError: sample_weight for each of them
classifier().diagnose(X, Y, lengths=1) -> ShapeError: lengths for each of them
classifier().diagnose(X, Y, lengths=np.ones(3)) -> ShapeError: for each of them
classifier().diagnose(X, Y, sample_weight=np.ones(61)) -> ShapeError: for each of them
Diagnose(every=1) -> ArgumentError: every
loaded(before=3) -> ArgumentTypeError: before
loaded(steps="3") -> ArgumentTypeError: course: steps must be an integer, got '3'
loaded(norms=[None]) -> ArgumentTypeError: course: norms: .0. must be a number, got None
loaded(ratios={"0.W": []}) -> ArgumentTypeError: course: ratios: 0.W must be a number
loaded(clips=1) -> ArgumentTypeError: course: clips must be a bool, got 1
"""


def loaded(**wrong):
    """Load the state of a callback with wrong values."""
    watch = Diagnose(verbose=0)
    classifier().train(X, Y, epochs=3, callbacks=[watch], verbose=0)
    state = watch.state_dict()
    json.dumps(state["course"])  # plain values
    Diagnose().load_state_dict(state)
    state |= {"before": wrong.pop("before", state["before"])}
    Diagnose().load_state_dict(state | {"course": state["course"] | wrong})


@rows(REFUSED)
def test_what_is_refused(call, error):
    check_refused(call, error, globals())


def busy(**options):
    layers = Dense(16), BatchNorm(), ReLU(), Dropout(0.3), Dense(2)
    optimizer = AdamW(CosineDecay(0.01, 50), ema=0.9, l2=1e-3)
    return Sequential(
        *layers, optimizer=optimizer, loss_class="softmax_cross_entropy", seed=4, **options
    )


@pytest.mark.parametrize("epochs", [0, 3])
def test_diagnose_changes_nothing(epochs):
    model, twin = busy(), busy()
    for m in (model, twin):
        if epochs:
            m.train(X, Y, epochs=epochs, batch_size=16, verbose=0)
    before = model.state_dict() if epochs else None
    model.diagnose(X, Y, overfit=50, verbose=0)
    if epochs:
        np.testing.assert_equal(before, model.state_dict())
    else:
        assert model.input_shape is None  # it was not built
    for m in (model, twin):
        m.train(X, Y, epochs=2, batch_size=16, verbose=0)
    np.testing.assert_equal(model.state_dict(), twin.state_dict())


def test_diagnose_takes_weights_lengths_and_other_losses():
    sentences = np.random.default_rng(0).standard_normal((30, 5, 3)).astype(np.float32)
    targets = sentences[..., :1]
    model = SequentialBuilder(5, 3).gru(4).dense(1).loss("huber").seed(0).build()
    lengths = 1 + np.arange(30) % 5
    options = {"lengths": lengths, "sample_weight": np.ones(30), "verbose": 0}
    report = model.diagnose(sentences, targets, **options)
    assert "not known for Huber" in report.skipped["start loss"]
    assert "not known for Huber" in report.skipped["cannot overfit"]
    model.train(sentences, targets, lengths=lengths, epochs=1, verbose=0)
    report = model.diagnose(sentences, targets, lengths=lengths, verbose=0)
    assert report.skipped["input unused"] == "the samples have different lengths"
    smooth = SequentialBuilder(2, seed=0).dense(2).loss("softmax_cross_entropy").build()
    smooth.loss.label_smoothing = 0.1
    assert "cannot reach 0" in smooth.diagnose(X, Y, verbose=0).skipped["cannot overfit"]


def test_the_callback_changes_no_bit_and_keeps_true_numbers():
    watch, norms, weights = Diagnose(every=4, verbose=0), [], []
    model, twin = busy(), busy()

    def look(model, step, loss):
        norms.append(float(np.linalg.norm(model.optimizer._packing.g.astype(float))))
        weights.append(model.layers[0].W.astype(float))

    options = {"epochs": 8, "batch_size": 8, "verbose": 0, "validation_split": 0.2}
    first = LambdaCallback(on_train_begin=lambda m: weights.append(m.layers[0].W.astype(float)))
    model.train(X, Y, callbacks=[watch, first, LambdaCallback(on_batch_end=look)], **options)
    history = twin.train(X, Y, **options)
    np.testing.assert_equal(model.state_dict(), twin.state_dict())

    course = watch.course
    assert course.steps == len(norms) == 48
    spikes = [norms[i] / np.median(norms[max(i - 100, 0) : i]) for i in range(20, 48)]
    assert course.spike == pytest.approx(max(spikes), rel=1e-4)
    assert course.at == 21 + int(np.argmax(spikes))
    ratios = [
        np.linalg.norm(weights[i] - weights[i - 1]) / np.linalg.norm(weights[i - 1])
        for i in [1, *range(4, 49, 4)]
    ]
    assert course.ratios["0.W"] == pytest.approx(max(ratios), rel=1e-5)
    assert set(course.ratios) == {"0.W", "4.W"}
    assert course.test == [test for _, test in history]
    assert course.train == [train for train, _ in history]


def test_the_callback_reports_at_the_end(capsys):
    for verbose in (0, 1):
        watch = Diagnose(verbose=verbose)
        assert watch.findings == ()
        model = classifier(optimizer=SGD(0.05, clip_norm=0.01))
        model.train(X, Y, epochs=30, callbacks=[watch], verbose=0)
        assert [f.name for f in watch.findings] == ["clipped too often"]
        assert watch.findings[0].value == 1
        assert "30 of 30 steps" in watch.findings[0].evidence
        out = capsys.readouterr().out
        assert out == (f"{watch.report}\n" if verbose else "")
    classifier(optimizer=Adam(3e-3)).train(X, Y, epochs=30, callbacks=[watch], verbose=0)
    assert watch.findings == ()  # each training starts over
    assert capsys.readouterr().out == ""  # a healthy training is silent
    assert watch.report is not None
    assert watch.report.healthy


def test_periods_are_found_but_neither_trend_nor_noise_and_a_rise_lasts_three_epochs():
    for values, rise in [((3, 1, 1.5, 1.6, 1.7), 0.5), ((3, 1, 1.5, 0.99, 1.7), 0)]:
        course = Course(test=list(values), train=[5, 4, 3, 2, 1])
        report = examine(COURSE, course)
        found = [f.value for f in report if f.name == "validation rising"]
        assert found == ([pytest.approx(rise)] if rise else [])
        rising = Course(test=list(values), train=[1, 2, 3, 4, 5])  # the whole training fails
        assert "validation rising" not in examine(COURSE, rising).names
    rng, n = np.random.default_rng(0), np.arange(30)
    noise = np.exp(0.02 * rng.standard_normal(30))
    for period in (3, 4, 6):
        wave = list(noise * (1 + 0.2 * (n % period == 0)))
        found = finding(examine(COURSE, Course(test=wave, train=wave)), "validation periodic")
        assert f"every {period} epochs" in found.evidence
    wave = [9, *(0.5 + 0.05 * (n % 3 == 0))]  # after a steep fall
    assert "validation periodic" in examine(COURSE, Course(test=wave, train=wave)).names
    for curve in (noise, np.exp(-n / 8), np.exp(-n / 8) * noise, 1 / (n + 1), np.ones(30)):
        course = Course(test=list(curve), train=list(curve))
        assert "validation periodic" not in examine(COURSE, course).names
    for epochs, most in few([(18, 30), (30, 11)], 1):
        # docs/diagnosis.md has these counts, of 1,000 trials.
        symptom = next(s for s in COURSE if s.name == "validation periodic")
        draws = (np.random.default_rng(k).standard_normal(epochs) for k in range(1000))
        noise = (Course(test=list(np.exp(0.1 * draw))) for draw in draws)
        assert sum(symptom.judge(course) is not None for course in noise) == most


class Crash(Exception):
    pass


def crash(model, step, loss):
    if step == 11:
        raise Crash


@pytest.mark.parametrize("every_steps", few([3, 1, 5], 1))
def test_a_resumed_training_ends_with_the_same_report(tmp_path, every_steps):
    path = tmp_path / "run.safetensors"
    options = {"epochs": 6, "batch_size": 16, "verbose": 0, "validation_split": 0.2}
    whole, broken = Diagnose(every=4, verbose=0), Diagnose(every=4, verbose=0)
    keeper = ModelCheckpoint(path, every_steps=every_steps)
    busy().train(X, Y, callbacks=[whole, ModelCheckpoint(tmp_path / "x", every_steps=9)], **options)
    callbacks = [broken, keeper, LambdaCallback(on_batch_end=crash)]
    with pytest.raises(Crash):
        busy().train(X, Y, callbacks=callbacks, **options)
    again = Diagnose(every=4, verbose=0)
    keeper = ModelCheckpoint(path, every_steps=every_steps)
    busy().train(X, Y, callbacks=[again, keeper], resume=path, **options)
    assert asdict(again.course) == asdict(whole.course)
    assert again.findings == whole.findings

    watch = Diagnose()
    watch.load_state_dict({**broken.state_dict(), "training": True, "before": {}})
    watch.on_train_begin(classifier())
    assert watch.before == {}  # the next step is not the first


def test_frozen_and_replaced_layers_negative_losses_and_threads_are_no_trouble():
    watch = Diagnose(every=2, verbose=0)

    def freeze(model, step, loss):
        model.layers[0].trainable = step % 2 == 0

    turn = LambdaCallback(on_batch_end=freeze)
    classifier().train(X, Y, epochs=10, callbacks=[watch, turn], verbose=0)
    assert set(watch.course.ratios) == {"0.W", "2.W"}
    classifier(optimizer=LBFGS()).train(X, Y, epochs=2, callbacks=[watch], verbose=0)
    assert watch.course.ratios == {}
    assert "no step was measured" in watch.report.skipped["updates too large"]
    model = Sequential(Dense(2, 1), loss_class=Shifted(), optimizer=SGD(0.1), seed=1)
    watch = Diagnose(verbose=0)
    model.train(X, Y[:, None], X, Y[:, None], epochs=20, verbose=0, callbacks=[watch])
    assert watch.report is not None
    for name in ("validation periodic", "validation rising"):
        assert watch.report.skipped[name] == "the test loss is not always positive"
    report = model.diagnose(X, Y[:, None])
    assert report.skipped["input unused"] == "the loss is not positive"
    big = np.random.default_rng(0).standard_normal((2048, 64)).astype(np.float32)
    labels = (big[:, 0] > 0).astype(int)
    courses = []
    for threads in (1, 2):
        watch = Diagnose(every=2, verbose=0)
        layers = Dense(64, 256), ReLU(), Dense(256, 256), ReLU(), Dense(256, 2)
        options = {"threads": threads, "callbacks": [watch], "verbose": 0}
        net(*layers).train(big, labels, epochs=3, batch_size=1024, **options)
        courses.append(asdict(watch.course))
    assert courses[0] == courses[1]


STORED = json.loads((DOCS / "diagnosis.json").read_text(encoding="utf-8"))


def test_the_calibration_chooses_the_best_threshold_and_measures_what_it_did():
    for start, healthy, sick, chosen in [
        (3, [1, 2], [9, 10], 3),  # the literature's value separates them
        (2.2, [1, 2], [8, 10], 4),  # but too closely
        (100, [1, 2], [8, 10], 4),  # or not at all
        (1.5, [1, 2], [1.8, 10], 4.5),  # one sick model is missed
    ]:
        assert tool.best(start, healthy, sick, above=True) == chosen
        flip = [[1 / v for v in values] for values in (healthy, sick)]
        assert tool.best(1 / start, *flip, above=False) == pytest.approx(1 / chosen, rel=0.05)
    for name in ["penalty rules", "clipped too often", ""]:
        finding, case, _, make = next(c for c in tool.cases() if c[0] == name)
        row = next(r for r in STORED["rows"] if (r["finding"], r["case"]) == (finding, case))
        found = tool.examined(make(tool.SEEDS[0]), healthy=not name)
        assert found.keys() == row["measured"].keys()
        for key in {"inputs off centre", "start loss", "penalty rules", "clipped too often"} & set(
            found
        ):
            assert found[key] == pytest.approx(row["measured"][key], rel=0.02), key


def skipped(model, X, y, **options):
    """What a diagnosis of a trained model did not look for; the other checks find nothing here."""
    model.train(X, y, epochs=1, verbose=0)
    report = model.diagnose(X, y, overfit=0, **options)
    assert not {"inputs too narrow", "input unused", "start loss"} & {*report.names}
    return report.skipped


def test_what_cannot_be_judged_is_not_checked():
    assert skipped(classifier(), X[:1], Y[:1])["inputs too narrow"] == "there is one row of inputs"
    assert "inputs too narrow" not in skipped(classifier(), X[:2], Y[:2])
    model = net(Dense(2, 4), Tanh(), Dense(4, 1), loss="mean_squared_error")
    assert skipped(model, X, np.ones((60, 1)))["input unused"] == "all targets are the same"
    report = classifier().diagnose(X, Y, sample_weight=np.zeros(60))
    assert report.names == ("updates too small",)  # not "100% off a guess"
    assert report.skipped["start loss"].startswith("nothing counts in the loss")
    assert "input unused" in skipped(classifier(), X, Y, sample_weight=np.zeros(60))
    model = classifier(optimizer=Adam(0.05))
    model.train(X, Y, epochs=300, verbose=0)
    model.optimizer.reset()
    report = model.diagnose(X, Y, overfit=0)
    assert "start loss" not in report.names
    assert report.skipped["start loss"].startswith("the weights are not new")


class Shifted(MeanSquaredError):
    """A loss that is negative."""

    def value(self, P, T, w, total):
        return super().value(P, T, w, total) - 100
