"""Callbacks: when they are called, what they may do, and that no file and no row is lost."""

import copy
import math

import numpy as np
import pytest

from phitodeep import BatchNorm, Dense, Sequential
from phitodeep.errors import ArgumentError, PhitodeepError
from phitodeep.model.callbacks import (
    EarlyStopping,
    LambdaCallback,
    StopTraining,
)
from tests.conftest import assert_weights

rng = np.random.default_rng(0)
X = rng.standard_normal((12, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def net(**given):
    options = {"optimizer": "sgd", "alpha": 0.05, "seed": 0, "batch_size": 5, "epochs": 2}
    return Sequential(Dense(3, 4), BatchNorm(), Dense(4, 1), **{**options, **given})


MOMENTS = {"on_train_begin": "train begins", "on_train_end": "train ends", "on_batch_end": "batch"}
MOMENTS |= {"on_epoch_begin": "epoch begins", "on_epoch_end": "epoch ends"}


class Diary(LambdaCallback):
    """Notes every call."""

    def __init__(self, name="", notes=None):
        self.notes = [] if notes is None else notes

        def noting(what):
            return lambda model, *args: self.notes.append((name + what, *map(copy.copy, args)))

        super().__init__(**{moment: noting(what) for moment, what in MOMENTS.items()})

    def order(self):
        return [" ".join(map(str, note[:2])) if note[0] != "batch" else "b" for note in self.notes]


def test_the_order_of_calls():
    diary, model = Diary(), net()
    history = model.train(X, Y, X, Y, callbacks=[diary], metrics=["mae"], verbose=0)
    assert diary.order() == [
        "train begins",
        *("epoch begins 1", "b", "b", "b", "epoch ends 1"),
        *("epoch begins 2", "b", "b", "b", "epoch ends 2"),
        "train ends",
    ]
    assert [note[1] for note in diary.notes if note[0] == "batch"] == [1, 2, 3, 4, 5, 6]
    logs = [note[2] for note in diary.notes if note[0] == "epoch ends"]
    assert [list(log) for log in logs] == [["train_loss", "train_mae", "test_loss", "test_mae"]] * 2
    assert [(log["train_loss"], log["test_loss"]) for log in logs] == history
    assert [log["test_mae"] for log in logs] == history.metrics["test_mae"]
    losses = [note[2] for note in diary.notes if note[0] == "batch"]
    for i, log in enumerate(logs):
        mean = np.average(losses[3 * i : 3 * i + 3], weights=[5, 5, 2])
        assert log["train_loss"] == pytest.approx(mean, rel=1e-12)
    diary.notes.clear()
    model.train(X, Y, epochs=1, callbacks=[diary], verbose=0)
    parts = ["train begins", "epoch begins 3", *"bbb", "epoch ends 3", "train ends"]
    assert diary.order() == parts


def test_lambda_callbacks_and_callbacks_of_the_model_which_come_first():
    seen = []
    callback = LambdaCallback(
        on_batch_end=lambda model, step, loss: seen.append(step),
        on_train_end=lambda model: seen.append("end"),
    )
    net(epochs=1).train(X, Y, callbacks=[callback], verbose=0)
    assert seen == [1, 2, 3, "end"]
    with pytest.raises(ArgumentError, match=r"on_epoch_end.*got 'on_epoch'"):
        LambdaCallback(on_epoch=print)
    notes = []
    model = net(callbacks=[Diary("own ", notes)], batch_size=None, epochs=1)
    model.train(X, Y, callbacks=[Diary("call ", notes)], verbose=0)
    parts = ["train begins", "epoch begins", "batch", "epoch ends", "train ends"]
    whose = ["own", "call"]
    assert [note[0] for note in notes] == [f"{who} {part}" for part in parts for who in whose]


STOPS = {
    "on_train_begin": (0, 0),
    "on_epoch_begin": (0, 0),
    "on_batch_end": (1, 1),
    "on_epoch_end": (1, 3),
    "on_train_end": (2, 6),
}


@pytest.mark.parametrize("method", STOPS)
def test_any_callback_may_end_training(method):
    def end(error):
        def raising(*_):
            raise error

        return LambdaCallback(**{method: raising})

    diary, model = Diary(), net()
    history = model.train(X, Y, callbacks=[end(StopTraining()), diary], verbose=0)
    epochs, steps = STOPS[method]
    assert len(history) == model.epoch == epochs
    assert model.optimizer.t == steps
    assert diary.notes[-1] == ("train ends",)
    diary, model = Diary(), net()
    callbacks = [diary, end(ZeroDivisionError("mine"))]  # a broken one
    with pytest.raises(ZeroDivisionError, match="mine"):
        model.train(X, Y, callbacks=callbacks, verbose=0)
    assert diary.notes[-1] == ("train ends",)
    assert len(model.train(X, Y, verbose=0)) == 2  # and the model goes on


@pytest.mark.parametrize(("method", "batches"), [("on_epoch_end", "bbb"), ("on_batch_end", "b")])
def test_all_callbacks_get_the_moment_at_which_one_ends_training(method, batches):
    def stop(*_):
        raise StopTraining

    diary = Diary()
    net().train(X, Y, callbacks=[LambdaCallback(**{method: stop}), diary], verbose=0)
    assert diary.order() == [
        *("train begins", "epoch begins 1", *batches, "epoch ends 1", "train ends")
    ]


def fed(callback, values, key="test_loss"):
    """After how many epochs it stops, fed with these values."""
    model = net()
    callback.on_train_begin(model)
    for epoch, value in enumerate(values, 1):
        try:
            callback.on_epoch_end(model, epoch, {"train_loss": 0.0, key: value})
        except StopTraining:
            return epoch
    return 0


def test_when_early_stopping_stops():
    for options, values, stops, best in (
        ({"patience": 2}, [3, 2, 2, 2], 4, 2),
        ({"patience": 2}, [3, 2, 2.5, 1.9, 2, 2], 6, 4),
        ({"patience": 1}, [3, 2, 1, 1], 4, 3),
        ({"patience": 3}, [3, 3, 3, 2.9], 0, 4),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.5, 2.1], 3, 1),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.4, 2.3, 1.8], 0, 4),
        ({"patience": 2}, [math.nan, math.nan, 1], 2, 0),
        ({"patience": 2}, [math.nan, 1, math.nan, math.nan], 4, 2),
        ({"patience": 2, "mode": "max"}, [1, 2, 1.5, 1.5], 4, 2),
        ({"patience": 2, "monitor": "test_accuracy"}, [0.5, 0.6, 0.6, 0.55], 4, 2),
        ({"patience": 2, "monitor": "test_accuracy", "mode": "min"}, [0.5, 0.6, 0.6], 3, 1),
        ({"patience": 1, "monitor": "test_mae"}, [0.5, 0.4, 0.6], 3, 2),
    ):
        callback = EarlyStopping(**options)
        stopped = fed(callback, values, options.get("monitor") or "test_loss")
        assert (stopped, callback.best_epoch) == (stops, best), (options, values)


def test_it_watches_the_training_loss_without_test_data_and_refuses_what_is_not_there():
    callback = EarlyStopping(patience=1)
    callback.on_train_begin(net())
    callback.on_epoch_end(net(), 1, {"train_loss": 3.0})
    assert callback.best == 3.0
    with pytest.raises(
        ArgumentError, match=r"monitors 'test_f1', but the logs have only train_loss"
    ):
        net().train(X, Y, callbacks=[EarlyStopping(monitor="test_f1")], verbose=0)


@pytest.mark.parametrize(
    ("restore", "patience", "epochs"), [(True, 3, 40), (False, 3, 40), (True, 100, 8)]
)
def test_early_stopping_gives_back_the_best_weights_and_state(restore, patience, epochs):
    """Also if the epochs run out; the next training starts over."""
    kept = {}
    keep = LambdaCallback(on_epoch_end=lambda m, e, logs: kept.__setitem__(e, m.get_weights()))
    stop = EarlyStopping(patience, restore_best=restore)
    model = net(alpha=0.3, optimizer="adam" if patience == 3 else "sgd")
    history = model.train(X, Y, -X, Y, epochs=epochs, callbacks=[keep, stop], verbose=0)
    tests = [test for _, test in history]
    best = int(np.argmin(tests)) + 1
    assert best < len(history) == min(best + patience, epochs) <= epochs
    assert (stop.best_epoch, stop.best) == (best, tests[best - 1])
    assert_weights(model, kept[best if restore else len(history)])
    assert any((kept[best][path] != a).any() for path, a in kept[len(history)].items())
    assert model.evaluate(-X, Y)["loss"] == pytest.approx(tests[best - 1 if restore else -1])
    stop.patience = 1
    again = model.train(X, Y, -X, -Y, epochs=3, callbacks=[stop], verbose=0)
    assert stop.best_epoch > len(history)  # the losses of the first training are forgotten
    assert stop.best == min(test for _, test in again)


def test_bad_settings_are_refused():
    for name, value in (
        *(("patience", 0), ("patience", 1.5), ("mode", "up")),
        *(("min_delta", -1), ("min_delta", math.nan)),
    ):
        with pytest.raises(PhitodeepError, match=f"EarlyStopping {name}"):
            EarlyStopping(**{name: value})
