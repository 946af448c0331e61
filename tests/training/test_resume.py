"""Training that was cut off at any step goes on as if nothing had happened, to the bit."""

import copy
import functools
import json
import pkgutil
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_equal

from phitodeep import Sequential, SequentialBuilder
from phitodeep import layers as nn
from phitodeep.errors import DataError, PhitodeepError, PhitodeepWarning
from phitodeep.io.model_file import open_model
from phitodeep.io.tensors import write_tensors
from phitodeep.loss.metrics import MAE
from phitodeep.model.callbacks import (
    Callback,
    EarlyStopping,
    JSONLogger,
    LambdaCallback,
    ModelCheckpoint,
    StopTraining,
)
from phitodeep.optimization import optimizers as optim
from phitodeep.optimization.schedules import CosineDecay, ReduceOnPlateau
from phitodeep.training.run import TrainingRun, difference, paired
from tests.conftest import in_parts, noted, press
from tests.core.test_state import OPTIONS, X, Y, net
from tests.rows import LONG, few

rng = np.random.default_rng(7)
LABELS = X[:, :3].argmax(axis=1)
SENTENCES = rng.standard_normal((24, 5, 3)).astype(np.float32)
LENGTHS = rng.integers(1, 6, 24)
WEIGHTS = rng.uniform(0.1, 2, 24)
EPOCHS = 3
STRIDE = 1 if LONG else 2  # steps between the checkpoints from which training is resumed


def classifier(**options):
    layers = nn.Dense(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Dense(6, 3), nn.Softmax()
    loss = "categorical_cross_entropy"
    options = {"seed": 3, "batch_size": 5, "metrics": ["accuracy", "f1"], **options}
    return Sequential(*layers, loss_class=loss, **options)


def reader(**given):
    return Sequential(nn.GRU(4, return_sequences=False), nn.Dense(2), seed=3, batch_size=5, **given)


def frozen():
    model = net()
    model.layers[0].trainable = False
    model.layers[3].trainable = False
    return model


class Turning(Callback):
    """Changes the rate, the decay and what is frozen while training runs."""

    def on_epoch_end(self, model, epoch, logs):
        model.layers[0].trainable = epoch % 2 == 0

    def on_batch_end(self, model, step, loss):
        model.alpha = 0.05 / step if step % 3 else CosineDecay(0.02, 20)
        model.optimizer.weight_decay = 0.01 * step


class Noise(Callback):
    """Counts, draws, and changes the weights by what it remembers."""

    def __init__(self):
        self.count, self.sum = 0, np.zeros(2, np.float32)
        self.draws = np.random.default_rng(5)

    def on_batch_end(self, model, step, loss):
        self.count += 1
        self.sum += np.float32(self.draws.standard_normal(2) * loss)
        model.layers[-1].b = model.layers[-1].b + 0.1 * self.sum / self.count

    def state_dict(self):
        inner = self.draws.bit_generator.state
        return {"count": self.count, "sum": self.sum.copy(), "draws": inner}

    def load_state_dict(self, state):
        self.count, self.sum = state["count"], state["sum"].copy()
        self.draws.bit_generator.state = state["draws"]


class Once(Callback):
    """Ends training in the middle of an epoch or after one."""

    def __init__(self, step=None, epoch=None):
        self.step, self.epoch = step, epoch

    def on_batch_end(self, model, step, loss):
        if step == self.step:
            raise StopTraining("enough")

    def on_epoch_end(self, model, epoch, logs):
        if epoch == self.epoch:
            raise StopTraining("enough epochs")


class Case(NamedTuple):
    """How to make a model, its callbacks and its data; and the options of `train`."""

    model: Callable[[], Sequential] = net
    callbacks: Callable[[], list[Callback]] = list
    options: Mapping[str, Any] = {}
    data: Callable[[], tuple[Any, ...]] = lambda: (X, Y)
    parts: int = 1
    epochs: int = EPOCHS
    needs: str = ""  # a library


def run(case, folder, model, resume=None, epochs=EPOCHS, every_step=False, stride=1):
    """Train with checkpoints; return everything that must come out the same."""
    callbacks, keeper = case.callbacks(), []
    if folder is not None:
        every = (1, stride) if resume is None or every_step else (10**6, 10**6)
        keeper = [ModelCheckpoint(folder / "ck.safetensors", *every, keep=10**6)]
    with in_parts(case.parts):
        options = {"epochs": epochs, "verbose": 0, "resume": resume, **case.options}
        history = model.train(*case.data(), callbacks=[*callbacks, *keeper], **options)
    return outcome(model, history, callbacks)


@functools.cache
def uninterrupted():
    """What training without an interruption comes to."""
    return run(Case(), None, net())


def outcome(model, history, callbacks):
    found = {
        "weights": model.get_weights(),
        "state": model.state_dict(),
        "pairs": np.array(history),
        "metrics": {name: np.array(values) for name, values in history.metrics.items()},
        "rates": history.rates,
        "callbacks": [callback.state_dict() for callback in callbacks],
        "alpha": repr(model.alpha),
    }
    assert len(history.seconds) == len(history)
    if model.optimizer.ema is not None:
        with model.averaged():
            found["averages"] = model.get_weights()
    return found


def places(folder):
    return sorted(path for path in folder.iterdir() if path.stem != "ck")


def goes_on_from_everywhere(case, tmp_path, closely):
    first, again = tmp_path / "first", tmp_path / "again"
    whole = run(case, first, case.model(), epochs=case.epochs, stride=STRIDE)
    if case.epochs > EPOCHS:  # early stopping
        assert 2 <= len(whole["pairs"]) < case.epochs
    if closely:  # checkpoints change nothing
        assert_equal(run(case, None, case.model(), epochs=case.epochs), whole)
    files = places(first)
    for path in few(files, 2) if closely else [files[len(files) // 2]]:
        other = case.model()
        other._set_seed(99)  # everything comes from the file
        for layer in other.layers:
            for name in layer.params:
                layer.params[name][...] = 0.5
        assert_equal(run(case, again, other, path, case.epochs), whole)
        shutil.rmtree(again, ignore_errors=True)
    return files


def on_disk(a):
    with tempfile.TemporaryFile() as stream:
        file = np.memmap(stream, a.dtype, "w+", shape=a.shape)
    file[...] = a
    return file


def dataset(streaming):
    import datasets

    found = datasets.Dataset.from_dict({"x": X, "y": Y})
    return found.to_iterable_dataset() if streaming else found


def built():
    builder = SequentialBuilder(4, seed=3).dense(8).tanh().dropout(0.3).dense(2).alpha(0.02)
    return builder.callbacks(Noise()).batch(5).build()


def pairs():
    return [(X[i : i + 5], Y[i : i + 5]) for i in range(0, 24, 5)]


def hot(**options):
    return net(optim.Adam(0.3), **options)


def labelled(data, **options):
    return Case(classifier, options=options, data=lambda: data)


KINDS = ("adam", "averages", "plateau after a warm-up")  # others: test_state
CASES = {
    **{name: Case(lambda make=OPTIONS[name]: net(make())) for name in KINDS},
    "groups in float64": Case(lambda: net(OPTIONS["groups"](), dtype="float64")),
    "accumulation": Case(options={"accumulate": 2}),  # 5 batches: 2, 2, 1
    "accumulation of more than all": Case(options={"accumulate": 9}),
    "parts of accumulated batches": Case(parts=3, options={"threads": 2, "accumulate": 2}),
    "a validation split": Case(options={"validation_split": 0.3}),
    "no shuffle and no shortcuts": Case(options={"shuffle": False, "shortcuts": False}),
    "all samples at once": Case(lambda: net(batch_size=None)),
    "sample and class weights": labelled(
        (X, LABELS), sample_weight=WEIGHTS, class_weight={0: 1.0, 1: 3.0}
    ),
    "balanced classes and test data": labelled(
        (X, LABELS, X, LABELS), class_weight="balanced", threads=2
    )._replace(parts=2),
    "lengths": Case(
        reader,
        options={"lengths": LENGTHS, "lengths_test": LENGTHS},
        data=lambda: (SENTENCES, Y, SENTENCES, Y),
    ),
    "frozen layers": Case(frozen),
    "a callback that changes rates": Case(callbacks=lambda: [Turning()]),
    "two callbacks of one class": Case(
        callbacks=lambda: [Noise(), LambdaCallback(), EarlyStopping(9), Noise()]
    ),
    "early stopping": Case(
        hot, lambda: [EarlyStopping(1, restore_best=True, min_delta=0.2)], epochs=12
    ),
    "early stopping without restoring": Case(
        hot, lambda: [EarlyStopping(2, restore_best=False, min_delta=0.4)], epochs=12
    ),
    "the model's own callbacks": Case(
        lambda: hot(callbacks=[Noise(), EarlyStopping(1, min_delta=0.2)]),
        lambda: [Noise()],
        epochs=12,
    ),
    "a list of batches": Case(data=lambda: (pairs(),), options={"accumulate": 2}),
    "a function of a generator": Case(data=lambda: (lambda: iter(pairs()), None, pairs)),
    "columns": Case(
        data=lambda: ([{"b": y, "a": x, "c": 0} for x, y in pairs()],),
        options={"columns": ("a", "b")},
    ),
    "LBFGS": Case(lambda: net(optim.LBFGS(max_iter=3, ema=0.5)), needs="scipy"),
    "files of arrays": Case(
        data=lambda: (on_disk(X), on_disk(Y)), options={"accumulate": 2, "validation_split": 0.25}
    ),
    "a generator that is read once": Case(data=lambda: (iter(pairs()),), epochs=1),
    **{
        f"a dataset, {streaming=}": Case(
            data=lambda streaming=streaming: (dataset(streaming),),
            options={"columns": ("x", "y")},
            epochs=2,
            needs="datasets",
        )
        for streaming in ((False, True) if LONG else ())  # importing datasets takes seconds
    },
    "the builder": Case(built),
    "triples": Case(data=lambda: ([(x, y, np.full(len(x), 0.3)) for x, y in pairs()],)),
}


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_from_every_step(name, tmp_path):
    if CASES[name].needs:
        pytest.importorskip(CASES[name].needs)
    files = goes_on_from_everywhere(CASES[name], tmp_path, name in few(CASES, 6))
    steps = [path for path in files if "step" in path.stem]
    assert 0 < len(steps) < len(files)


def test_the_checkpoint_is_one_of_the_models_own_callbacks(tmp_path):
    def make():
        return net(callbacks=[ModelCheckpoint(tmp_path / "ck.safetensors", every_steps=1, keep=99)])

    whole, options = make(), {"epochs": 3, "verbose": 0}
    history = whole.train(X, Y, **options)
    files = places(tmp_path)
    assert len(files) == 18
    shutil.copytree(tmp_path, tmp_path / "kept")
    for path in few(files, 2):
        other = make()
        assert other.train(X, Y, resume=tmp_path / "kept" / path.name, **options) == history
        assert_equal(other.get_weights(), whole.get_weights())
        assert_equal(other.optimizer.state_dict(), whole.optimizer.state_dict())


def test_a_second_call_of_train_is_resumed_with_its_own_epochs(tmp_path):
    def first(model):
        model.train(X, Y, epochs=2, verbose=0)
        return model

    case = Case(lambda: first(net()))
    whole = run(case, tmp_path / "a", case.model())
    assert len(whole["pairs"]) == EPOCHS
    assert whole["state"]["epoch"] == 2 + EPOCHS
    files = places(tmp_path / "a")
    assert {path.stem for path in files} == {
        *(f"ck-epoch{n}" for n in (3, 4, 5)),
        *(f"ck-step{n}" for n in range(11, 26)),
    }
    for path in few(files, 2):
        for model in (net(), first(net())):  # a new process, or the same one
            assert_equal(run(case, tmp_path / "b", model, path), whole)


def test_a_run_is_resumed_twice_and_then_with_more_epochs(tmp_path):
    case = Case(callbacks=lambda: [Noise(), Turning(), EarlyStopping(99)])
    a, b = tmp_path / "a", tmp_path / "b"
    whole = run(case, a, net(), epochs=4)
    run(case, b, net(), a / "ck-step4.safetensors", 2, every_step=True)
    assert not (b / "ck-step4.safetensors").exists()
    for name in ("ck-step7", "ck-epoch2", "ck"):
        path = b / f"{name}.safetensors"
        assert_equal(run(case, tmp_path / name, net(), path, epochs=4), whole)


def test_resume_of_a_finished_or_stopped_run_trains_nothing_more(tmp_path, capsys):
    case = Case(callbacks=lambda: [Noise()])
    whole = run(case, tmp_path, net())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert_equal(run(case, tmp_path, net(), tmp_path / "ck.safetensors"), whole)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for name, *callbacks in (("a", Once(epoch=2), Once()), ("b", Once(step=7), Once(step=7))):
        first, second = (Case(callbacks=lambda c=c: [c]) for c in callbacks)
        whole = run(first, tmp_path / name, net(), epochs=4)
        assert len(whole["pairs"]) == 2
        path = tmp_path / name / "ck.safetensors"
        assert_equal(run(second, tmp_path / name, net(), path, epochs=4), whole)
    path = tmp_path / "own" / "ck.safetensors"
    for epochs, says in (
        (1, "epoch 1/1"),
        (1, "epoch 1 is done: pass a larger epochs= to"),
        (2, "epoch 2/2"),
    ):
        resume = path if path.exists() else None
        net().train(X, Y, epochs=epochs, callbacks=[ModelCheckpoint(path)], resume=resume)
        assert capsys.readouterr().out.splitlines()[-1].startswith(says)


def test_a_model_without_a_seed_and_the_same_model_go_on(tmp_path):
    case = Case(lambda: net(seed=None))
    whole = run(case, tmp_path, case.model())
    assert_equal(run(case, tmp_path / "b", case.model(), tmp_path / "ck-step8.safetensors"), whole)
    case = Case(lambda: net(optim.Adam(ReduceOnPlateau(0.3, patience=1), ema=0.5)))
    model = case.model()
    whole = run(case, tmp_path / "same", model)
    for path in few(places(tmp_path / "same"), 2):
        assert_equal(run(case, tmp_path / "again", model, path), whole)
    assert run(case, None, model)["state"]["epoch"] == 2 * EPOCHS  # another call of train


class InPlace(MAE):
    """A metric that adds up its sums in one array."""

    def merge(self, one, other):
        one += other
        return one


def test_the_state_at_a_pause_is_a_copy():
    kept = []

    def take(model, run):
        state, rest = run.state_dict(), run.state_dict(weights=False)
        assert state["model"].keys() - rest["model"].keys() == {"weights"}
        kept.append((state, copy.deepcopy(state)))

    callbacks = [LambdaCallback(on_pause=take), Noise()]
    net().train(X, Y, epochs=2, metrics=[InPlace()], verbose=0, callbacks=callbacks)
    assert len(kept) == 13
    for state, same in kept:
        assert_equal(state, same)


def test_a_rank_that_writes_nothing_starts_without_sums(monkeypatch):
    """Rank 0 has the sums of all ranks."""
    states, rate = [], CosineDecay(0.1, 100)
    note = LambdaCallback(on_pause=lambda _, run: states.append(run.state_dict()))
    net(alpha=rate).train(X, Y, epochs=1, metrics=["mae"], verbose=0, callbacks=[note])
    settings, (first, state, *_) = states[0]["settings"], states
    for writes, samples in ((True, state["place"]["samples"]), (False, 0)):
        monkeypatch.setattr(TrainingRun, "writes", writes)
        resumed = TrainingRun(net(alpha=copy.deepcopy(rate)), [], settings)
        own = resumed.model.optimizer.alpha
        resumed.load_state_dict(first)  # before the first step
        resumed.load_state_dict(state)
        assert resumed.totals.samples == samples
        assert resumed.model.optimizer.alpha is own
        if writes:
            assert resumed.totals.sums["mae"] is not state["place"]["sums"]["mae"]


def test_each_state_finds_its_own_callback():
    parts = [Noise(), EarlyStopping(2), EarlyStopping(3)]
    states = [{"class": "EarlyStopping", "state": {"n": n}} for n in (1, 2)]
    assert paired(parts, states, "who") == [(parts[1], {"n": 1}), (parts[2], {"n": 2})]
    with pytest.raises(PhitodeepError, match="state of a callback 'EarlyStopping'"):
        paired(parts[:2], states, "who")


def test_where_two_configs_differ_first():
    for a, b, path in (
        *(({"a": 1}, {"b": 1}, ""), ({"a": 1}, [1], ""), ([1], {"a": 1}, ""), ([1], [1, 2], "")),
        *(([1], 1, ""), (1, [1], ""), ({"a": 1}, 1, ""), (1, {"a": 1}, ""), (1, True, "")),
        *((1, 1.0, ""), ({"a": [0, {"b": 1}]}, {"a": [0, {"b": 2}]}, ".a.1.b")),
    ):
        assert difference(a, b, "m").startswith(f"m{path} = ")
        assert difference(a, copy.deepcopy(a), "m") == ""
    for words, size in (("a " * 50, 59), ("bb" + " a" * 50, 60)):
        shown = difference(words, "c", "m").removeprefix("m = ").partition(", and")[0]
        assert len(shown) == size
        assert shown.endswith(" ...")


def test_seconds_count_on(tmp_path, monkeypatch):
    now = iter(range(10**6, 10**9, 10))
    monkeypatch.setattr("phitodeep.training.run.time.perf_counter", lambda: float(next(now)))
    run(Case(), tmp_path, net())
    for name, in_the_middle in (("step8", True), ("epoch2", False)):
        with open_model(tmp_path / f"ck-{name}.safetensors") as file:
            state = file.state()
        assert (10**5 > state["place"]["seconds"] > 0) is in_the_middle


def taken_apart(path):
    """The arrays of a checkpoint, its texts, and its state as text."""
    with open_model(path) as file:
        arrays = {name: file.tensors.read(name) for name in file.tensors.entries}
        return arrays, dict(file.tensors.metadata), json.dumps(file.texts["state"])


def test_a_continued_epoch_keeps_its_clock_and_does_not_begin_again(checkpoints, tmp_path):
    """Five steps per epoch: step 7 is the second one of the second epoch."""
    arrays, texts, state = taken_apart(checkpoints / "plain/ck-step7.safetensors")
    state = json.loads(state)
    state["place"]["seconds"] = 1000.0
    late, begun = tmp_path / "late.safetensors", []
    write_tensors(late, arrays, {**texts, "state": json.dumps(state)})
    note = LambdaCallback(on_epoch_begin=lambda model, epoch: begun.append(epoch))
    options = {"epochs": EPOCHS, "verbose": 0, "callbacks": [note, ModelCheckpoint(tmp_path / "x")]}
    history = net().train(X, Y, resume=late, **options)
    assert begun == [3]
    assert 1100 > history.seconds[1] > 1000 > history.seconds[2]


@pytest.mark.parametrize("at", [*few(range(1, 16), 3), "epoch_end", "epoch_begin", "pause"])
def test_ctrl_c_is_resumed(keyboard, at, tmp_path):
    """It may come at any step; the checkpoint has no other reason to be written.

    If it comes between steps, after the checkpoint's turn, training ends after the next step.
    """
    pressed, path = [], tmp_path / "ck.safetensors"

    def between(model, *args):
        if (model.epoch or getattr(args[0], "step", 0) == 2) and not pressed:
            pressed.append(signal.raise_signal(signal.SIGINT))

    keeper = ModelCheckpoint(path, every=None, every_steps=10**6)
    pressing = press(at) if isinstance(at, int) else LambdaCallback(**{f"on_{at}": between})
    options = {"epochs": 3, "verbose": 0}
    assert net().train(X, Y, callbacks=[keeper, pressing], **options).interrupted
    place = {"epoch_end": "epoch1", "epoch_begin": "step6", "pause": "step3"}.get(at, f"step{at}")
    assert {p.name for p in tmp_path.iterdir()} == {path.name, f"ck-{place}.safetensors"}
    other = net()
    callbacks = [keeper, LambdaCallback()]
    history = other.train(X, Y, callbacks=callbacks, resume=path, **options)
    assert not history.interrupted
    assert_equal(outcome(other, history, []), uninterrupted())


BEFORE_STEPS = (
    "run.TrainingRun.keep_settings",
    "logs.JSONLogger.begin",
    "logs.outline",
    "logs.os.fsync",
)


@pytest.mark.parametrize("name", [f"phitodeep.training.{place}" for place in BEFORE_STEPS])
def test_ctrl_c_before_the_first_step_ends_training_after_it(keyboard, name, monkeypatch, tmp_path):
    original, pressed = pkgutil.resolve_name(name), []

    def press(*args):
        if not pressed:
            pressed.append(signal.raise_signal(signal.SIGINT))
        return original(*args)

    def callbacks():
        return [JSONLogger(tmp_path / "log.jsonl"), ModelCheckpoint(path)]

    monkeypatch.setattr(name, press)
    path, model, other = tmp_path / "ck.safetensors", net(), net()
    history = model.train(X, Y, epochs=3, callbacks=callbacks(), verbose=0)
    assert pressed
    assert history.interrupted
    assert (len(history), model.optimizer.t) == (1, 1)
    history = other.train(X, Y, epochs=3, callbacks=callbacks(), verbose=0, resume=path)
    assert_equal(outcome(other, history, []), uninterrupted())


def other_layers():
    model = net()
    return Sequential(*model.layers[:2], nn.ReLU(), *model.layers[3:], seed=3, metrics=["mae"])


def other_rate():
    model = net()
    model.layers[3].layers[3].rate = 0.7
    return model


def wider():
    return Sequential(*net().layers[:5], nn.Dense(8, 9), nn.Dense(9, 2), batch_size=5, seed=1)


def with_options(**options):
    return Case(options=options)


REFUSED = {
    "batch_size = 5, and this call has 6: ": with_options(batch_size=6),
    "batch_size = 5, and this call has None": Case(lambda: net(batch_size=None)),
    "samples = 24, and this call has 23": Case(data=lambda: (X[1:], Y[1:])),
    "samples = 24, and this call has None": Case(data=lambda: (pairs(),)),
    "test_samples = None, and this call has 3": Case(data=lambda: (X, Y, X[:3], Y[:3])),
    "accumulate = 1, and this call has 2": with_options(accumulate=2),
    "shuffle = True, and this call has False": with_options(shuffle=False),
    "shortcuts = True, and this call": with_options(shortcuts=False),
    r"metrics = \['mae'\], and this call has \[\]": with_options(metrics=[]),
    r"file lacks 6\.W, 6\.b; differs in 5\.W \(float32 \(8, 2\) instead of float32 \(8, 9\)\)": (
        Case(wider)
    ),
    "file differs in 0.W .float32 .4, 8. instead of float64": Case(lambda: net(dtype="f8")),
    "layers.2.layer = Tanh, and this model has ReLU: resume with the same": (Case(other_layers)),
    "layers.3.config.layers.3.config.rate = 0.3, and this model has 0.7": Case(other_rate),
    "loss_class.loss = MeanSquaredError, and this model has Huber": (
        Case(lambda: net(loss_class="huber"))
    ),
    r"the optimizer Adam, and this model has SGD\(\)": Case(lambda: net("sgd")),
    "the optimizer Adam, and this model has AdamW": Case(lambda: net("adamw")),
    "the state of a callback 'Noise', but the callbacks of this training are ModelCheckpoint": (
        Case(callbacks=list)
    ),
    "but the callbacks of this training are EarlyStopping, ModelCheckpoint": (
        Case(callbacks=lambda: [EarlyStopping(2)])
    ),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of each step, with a callback that has a state, and with ones that have none."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, kind in (("noise", Noise), ("turning", Turning), ("plain", Callback)):
        run(Case(callbacks=lambda kind=kind: [kind()]), folder / name, net())
    return folder


WHEN = [(message, ("step7", "epoch2")[i % 2]) for i, message in enumerate(REFUSED)]
WHEN += [(message, "step7" if when == "epoch2" else "epoch2") for message, when in WHEN] * LONG


@pytest.mark.parametrize(("message", "when"), WHEN)
def test_what_does_not_fit_is_refused_and_changes_nothing(message, when, checkpoints, tmp_path):
    case = REFUSED[message]
    if case.callbacks is list and "callback" not in message:
        case = case._replace(callbacks=lambda: [Noise()])
    model, straight = case.model(), case.model()
    options = {"epochs": 1, "verbose": 0, **case.options}
    model.train(*case.data(), **options)
    straight.train(*case.data(), **options)
    before = model.state_dict(), model.get_config()
    callbacks = [*case.callbacks(), ModelCheckpoint(tmp_path / "new" / "ck.safetensors")]
    states = [callback.state_dict() for callback in callbacks]
    path = checkpoints / f"noise/ck-{when}.safetensors"
    with pytest.raises(PhitodeepError, match=message):
        model.train(*case.data(), callbacks=callbacks, resume=path, **options)
    assert_equal([model.state_dict(), model.get_config()], list(before))
    assert_equal([callback.state_dict() for callback in callbacks], states)
    assert not (tmp_path / "new").exists()
    model.train(*case.data(), **options)
    straight.train(*case.data(), **options)
    assert_equal(model.state_dict(), straight.state_dict())


def test_a_file_that_is_no_checkpoint(tmp_path):
    model, path = net(), tmp_path / "a.safetensors"

    def refused(message):
        before = model.state_dict()
        with pytest.raises(DataError, match=message):
            model.train(X, Y, epochs=2, verbose=0, resume=path)
        assert_equal(model.state_dict(), before)

    refused("there is no such file")
    path.mkdir()
    refused("it is a folder")
    path.rmdir()
    path.write_bytes(b"hello, this is text")
    refused("not a safetensors file")
    model.save_weights(path)
    refused("no description of a model")
    for optimizer in (False, True):
        model.save(path, optimizer=optimizer)
        refused(r"a\.safetensors is not a checkpoint: resume= takes a file that ModelCheckpoint")


def test_what_a_callback_changed_stays_changed_unless_the_script_says_otherwise(tmp_path):
    def turn(model, epoch, logs):
        model.optimizer.alpha, model.optimizer.clip_norm = 0.5**epoch, 2.0

    case = Case(callbacks=lambda: [LambdaCallback(on_epoch_end=turn)])
    whole = run(case, tmp_path, net(optim.Adam(0.01)), epochs=4)
    assert whole["rates"] == [0.01, 0.5, 0.25, 0.125]
    path = tmp_path / "ck-epoch2.safetensors"
    quiet = Case()
    assert run(quiet, tmp_path, net(optim.Adam(0.01)), path, 4)["rates"] == [0.01, 0.5, 0.25, 0.25]
    with pytest.warns(PhitodeepWarning, match=r"alpha = 0\.01 .* goes on with alpha = 0\.3"):
        found = run(quiet, tmp_path, net(optim.Adam(0.3)), path, 4)
    assert found["rates"] == [0.01, 0.5, 0.3, 0.3]
    model = net(optim.Adam(0.01, weight_decay=0.5))
    with pytest.warns(PhitodeepWarning, match=r"weight_decay = 0\.0 .* with weight_decay = 0\.5"):
        found = run(quiet, tmp_path, model, path, 4)
    assert found["rates"] == [0.01, 0.5, 0.25, 0.25]
    assert model.optimizer.clip_norm == 2.0
    assert model.optimizer.weight_decay == 0.5


SPOILED = [
    ("place", None, "is not a checkpoint"),
    ("place/first", 0, "first must be >= 1"),
    ("place/step", -1, "step must be >= 0"),
    ("place/step", "1", "step must be an integer"),
    ("place/samples", 1.5, "samples must be an integer"),
    ("place/samples", 0, "steps were taken, but on no samples"),
    ("place/seconds", -1.0, "seconds must be >= 0"),
    ("place/loss", "x", "loss must be a number, got 'x'"),
    ("place/stopped", 3, "stopped must be text or None, got 3"),
    ("place/sums", [1], "sums must be a dict"),
    ("place/sums", {"mae": "x"}, "mae takes real numbers"),
    ("place/sums", {}, "sums lacks 'mae'"),
    ("settings", {}, "settings lacks"),
    ("settings", 3, "settings must be a dict"),
    ("history/losses", [[1.0]], "losses must be pairs"),
    ("history/losses", 3, "losses must be a list"),
    ("history/rates", ["x"], r"rates: \[0\] must be a number"),
    ("history/metrics", [], r"metrics must be a dict, got \[\]"),
    ("callbacks", [{"class": "ModelCheckpoint"}], r"callbacks\[0\] lacks 'state'"),
    ("callbacks/0/state/written", ["a", 3], r"written: \[1\] must be text, got 3"),
    ("callbacks/0/state/name", 7, "name must be text, got 7"),
    ("optimizer", {}, "optimizer lacks 'class', 'start', 'now'"),
    ("optimizer/class", "SGD", "the optimizer SGD, and this model has Adam"),
    ("optimizer/now", {}, "settings of Adam lacks"),
    ("optimizer/now/alpha", -1.0, "alpha must be >= 0"),
    ("optimizer/now/beta1", "x", "Adam beta1"),
    ("optimizer/now/clip_norm", "x", "Adam clip_norm"),
    ("optimizer/now/groups", 3, "Adam groups"),
    ("optimizer/now/l2", [1], "Adam l2"),
    ("model", 3, "its state has no state of the model"),
    ("model/epoch", -1, "epoch must be >= 0"),
    ("model/optimizer/t", -1, "t must be >= 0"),
]


def test_a_spoiled_checkpoint_is_refused_and_changes_nothing(checkpoints, tmp_path):
    arrays, texts, text = taken_apart(checkpoints / "turning/ck-step7.safetensors")
    model, spoiled = net(), tmp_path / "spoiled.safetensors"
    model.train(X, Y, epochs=1, verbose=0)
    before = model.state_dict(), model.get_config()
    for path, value, message in SPOILED:
        state = inner = json.loads(text)
        *keys, last = path.split("/")
        for key in keys:
            inner = inner[int(key)] if key.isdigit() else inner[key]
        inner[last] = value
        if value is None:
            del inner[last]
            inner["plaice"] = 3
        write_tensors(spoiled, arrays, {**texts, "state": json.dumps(state)})
        with noted(f"{path} = {value}"), pytest.raises(PhitodeepError, match=message):
            run(Case(), tmp_path / "b", model, spoiled)
        assert_equal([model.state_dict(), model.get_config()], list(before))
    assert not (tmp_path / "b").exists()
