"""What a newcomer is told: each message names what came, what was expected and what to write."""

from __future__ import annotations

import copy
import pickle
import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phitodeep.core.types import same
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackwardError,
    NotBuiltError,
    OrderError,
    PhitodeepWarning,
    ShapeError,
)
from phitodeep.layers import Dense, Layer, Param, ReLU
from phitodeep.layers.containers import Container
from phitodeep.layers.initialization import He
from phitodeep.loss import (
    CategoricalCrossEntropy,
    Loss,
    MeanSquaredError,
    SoftmaxCrossEntropy,
    metrics,
)
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.callbacks import Callback, EarlyStopping
from phitodeep.optimization.optimizers import LBFGS, SGD, Adam

IMAGES = np.zeros((5, 28, 28), np.float32)
LABELS = np.arange(5)


def model(*layers: Layer, **settings: Any) -> Sequential:
    return Sequential(*layers, seed=0, epochs=1, **settings)


class NoInit(Layer):
    def __init__(self) -> None:
        self.size = 3

    def forward(self, X: Any) -> Any:
        return X


class NoInitContainer(Container):
    def __init__(self) -> None:
        self.inside = Dense(3, 3)


class Forgets(Layer):
    def forward(self, X: Any) -> Any:
        return 2 * X

    def backward(self, dY: Any) -> Any:
        return dY * self.saved("X", "Y")[0]


class Sums(Layer):
    def forward(self, X: Any) -> Any:
        return X.sum(axis=-1)


class Mean(Layer):
    def forward(self, X: Any) -> Any:
        return X.mean(axis=0)


class Nothing(Layer):
    def forward(self, X: Any) -> Any:
        X + 1


class HasLossFunc(Loss):
    def loss_func(self, y_pred: Any, y_true: Any, *_: Any) -> float:
        return float(np.mean((y_pred - y_true) ** 2))


def forgets() -> None:
    layer = Forgets()
    layer.backward(layer.forward(np.ones((2, 3))))


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "flatten, when sizes are known": (
        lambda: SequentialBuilder(28, 28).dense(784, 10).build(),
        ShapeError,
        r"layer 0 .*Dense\(784, 10\) takes 784 features.*\(28, 28\).*add \.flatten\(\) before it",
    ),
    "flatten, at the data": (
        lambda: model(Dense(784, 10)).predict(IMAGES),
        ShapeError,
        r"add \.flatten\(\) before it",
    ),
    "no flatten where nothing would fit": (
        lambda: model(Dense(783, 10)).predict(IMAGES),
        ShapeError,
        r"got shape \(28, 28\)\.$",
    ),
    "flatten, at the labels": (
        lambda: model(Dense(28, 10), loss_class=SoftmaxCrossEntropy()).train(IMAGES, LABELS),
        ShapeError,
        r"y of shape \(5,\).*is \.flatten\(\) or a global pool missing",
    ),
    "batch axis": (
        lambda: SequentialBuilder(28, 28).flatten().dense(3).build().predict(IMAGES[0]),
        ShapeError,
        r"layer 1 .*X has the shape of one sample.*\(N, 28, 28\), such as X\[None\]",
    ),
    "loss class": (
        lambda: SequentialBuilder(3).dense(1).loss(MeanSquaredError).build(),
        ArgumentTypeError,
        r"write MeanSquaredError\(\)",
    ),
    "optimizer class": (
        lambda: SequentialBuilder(3).dense(1).optimizer(Adam).build(),
        ArgumentTypeError,
        r"write Adam\(\)",
    ),
    "initializer class": (
        lambda: Dense(3, 1, He),
        ArgumentTypeError,
        r"write He\(\)",
    ),
    "metric class": (
        lambda: SequentialBuilder(3).dense(1).metrics(metrics.R2),
        ArgumentTypeError,
        r"write R2\(\)",
    ),
    "callback class": (
        lambda: SequentialBuilder(3).dense(1).callbacks(EarlyStopping).build(),
        ArgumentTypeError,
        r"write EarlyStopping\(\)",
    ),
    "fit": (lambda: model(Dense(3, 1)).fit(1, 2), AttributeError, r"model\.train\(X, y"),
    "compile": (lambda: model(Dense(3, 1)).compile(), AttributeError, r"\.loss\(.*\.build\(\)"),
    "builder fit": (lambda: SequentialBuilder(3).fit(), AttributeError, r"\.build\(\), .*train"),
    "builder train": (
        lambda: SequentialBuilder(3).train(),
        AttributeError,
        r"build the model first, as in \.build\(\)\.train",
    ),
    "builder typo": (lambda: SequentialBuilder(3).conv_2d(), AttributeError, r"mean \.conv2d\(\)"),
    "builder unknown": (lambda: SequentialBuilder(3).xyzzy(), AttributeError, r"\.add\(layer\)"),
    "activation": (
        lambda: SequentialBuilder(3).dense(4, activation="ReLU"),
        ArgumentTypeError,
        r"an activation is a separate layer, as in \.dense\(\.\.\.\)\.relu\(\)",
    ),
    "unknown keyword": (
        lambda: SequentialBuilder(3).dense(units=4),
        ArgumentTypeError,
        r"Dense takes input_size, output_size, initializer, bias, got units=",
    ),
    "no super().__init__()": (
        lambda: model(NoInit()),
        NotBuiltError,
        r"NoInit has no .* must begin with super\(\)\.__init__\(\)",
    ),
    "no super().__init__(), at forward": (
        lambda: NoInit().forward(IMAGES),
        NotBuiltError,
        r"super\(\)\.__init__\(\)",
    ),
    "no super().__init__() in a container": (
        lambda: model(NoInitContainer()),
        NotBuiltError,
        r"super\(\)\.__init__\(\)",
    ),
    "parameter before it is known": (lambda: Dense(3).W, NotBuiltError, "input shape"),
    "forgotten save_for_backward": (
        forgets,
        BackwardError,
        r"Forgets\(\): backward asks for 'X'.*self\.save_for_backward\(X=\.\.\.\)",
    ),
    "save of a layer": (
        lambda: Dense(3, 1).save("m.npz"),
        OrderError,
        r"Sequential\(layer\)\.save",
    ),
    "save of old": (lambda: ReLU().save(X=1), OrderError, r"self\.save_for_backward\(X=\.\.\.\)"),
    "another shape than promised": (
        lambda: SequentialBuilder(5, 3).add(Sums()).dense(3, 2).build().predict(np.ones((4, 5, 3))),
        ShapeError,
        r"layer 0 of Sequential: Sums\(\).*Y of shape \(4, 5\).*create returned.*\(5, 3\)",
    ),
    "the batch lost": (
        lambda: model(Mean(), Dense(3, 2)).predict(np.ones((4, 3))),
        ShapeError,
        r"layer 0 of Sequential: Mean\(\).*the first axis of both must be the batch",
    ),
    "nothing returned": (
        lambda: model(Nothing()).predict(np.ones((4, 3))),
        ArgumentTypeError,
        r"Nothing\(\): forward must return an array, got NoneType",
    ),
    "flatten, at numbers": (
        lambda: model(Dense(28, 1)).train(IMAGES, LABELS),
        ShapeError,
        r"y of shape \(5,\)\. .*is \.flatten\(\) or a global pool missing",
    ),
    "a device": (lambda: model(Dense(3, 1)).to("cuda"), AttributeError, "runs on the CPU"),
    "a mode": (lambda: model(Dense(3, 1)).eval(), AttributeError, "no mode to set"),
    "zero_grad": (lambda: model(Dense(3, 1)).zero_grad(), AttributeError, "overwrites gradients"),
    "builder compile": (
        lambda: SequentialBuilder(3).compile(),
        AttributeError,
        r"'compile': pass the loss, optimizer and metrics to the builder, as in \.optimizer",
    ),
    "builder forward": (
        lambda: SequentialBuilder(3).forward(),
        AttributeError,
        r"build the model first, as in \.build\(\)\.forward",
    ),
    "builder lr": (lambda: SequentialBuilder(3).lr(1), AttributeError, r"write \.alpha\(rate\)"),
    "validation data": (
        lambda: model(Dense(3, 1)).train(IMAGES, validation_data=()),
        ArgumentTypeError,
        r"Sequential\.train takes no validation_data=: pass X_test and y_test\.",
    ),
    "near keyword of train": (
        lambda: model(Dense(3, 1)).train(IMAGES, class_weights={}),
        ArgumentTypeError,
        r"takes no class_weights=: did you mean class_weight=\?$",
    ),
    "unknown keyword of train": (
        lambda: model(Dense(3, 1)).train(IMAGES, workers=2),
        ArgumentTypeError,
        r"takes no workers=: it takes X, y, X_test, .*, anomaly\.",
    ),
    "loss of Sequential": (
        lambda: Sequential(Dense(3, 1), loss="mse"),
        ArgumentTypeError,
        r"Sequential takes no loss=: write loss_class=\.",
    ),
    "unknown keyword of evaluate": (
        lambda: model(Dense(3, 1)).evaluate(IMAGES, verbose=0),
        ArgumentTypeError,
        r"Sequential\.evaluate takes no verbose=: it takes X, y, batch_size",
    ),
    "rate by another name": (
        lambda: Adam(lr=0.1),
        ArgumentTypeError,
        r"Adam takes no lr=: write alpha=\.",
    ),
    "a pair in one": (
        lambda: model(Dense(3, 1)).train((np.ones((5, 3)), LABELS)),
        ArgumentTypeError,
        r"X was given without y: pass a pair as two arguments, X, y\.",
    ),
    "test data in one": (
        lambda: model(Dense(3, 1)).train(np.ones((5, 3)), LABELS, (np.ones((5, 3)), LABELS)),
        ArgumentTypeError,
        r"X_test was given without y_test: pass a pair as two arguments, X_test, y_test\.",
    ),
    "shuffle": (
        lambda: model(Dense(3, 1)).train(np.ones((5, 3)), LABELS, shuffle="yes"),
        ArgumentTypeError,
        r"shuffle must be True or False, got 'yes'",
    ),
    "a list of metrics": (
        lambda: SequentialBuilder(3).metrics(["accuracy", "f1"]),
        ArgumentTypeError,
        r"separate arguments, as in \.metrics\('accuracy', 'f1'\)",
    ),
    "channels first": (
        lambda: SequentialBuilder(3, 32, 32).conv2d(4, 3).max_pool2d(2).build(),
        ShapeError,
        r"layer 1 .*\(N, height, width, C\): np\.moveaxis\(X, 1, -1\)",
    ),
    "no channels": (
        lambda: SequentialBuilder(28, 28).conv2d(4, 3).build(),
        ShapeError,
        r"\(height, width, C\), got \(28, 28\): \.reshape\(28, 28, 1\)",
    ),
    "no channels for a pool": (
        lambda: SequentialBuilder(6, 6).max_pool2d(2).build(),
        ShapeError,
        r"\.reshape\(6, 6, 1\)",
    ),
    "masked entries": (
        lambda: model(Dense(3, 1)).predict(np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 4)),
        ArgumentError,
        r"X has masked entries: fill them with X\.filled\(value\)",
    ),
    "a gradient before backward": (
        lambda: Dense(3, 1).grads["W"],
        BackwardError,
        "no gradient 'W' yet",
    ),
    "a loss without value": (
        lambda: HasLossFunc().loss_gradient(np.ones((2, 1)), np.ones((2, 1))),
        NotImplementedError,
        r"HasLossFunc must implement value\(P, T, w, total\), which loss_func and",
    ),
    "weights in a list": (
        lambda: model(Dense(3, 1)).set_weights([np.ones((3, 1))]),
        ArgumentTypeError,
        r"weights by path, .* such as \{'0\.W': array\}, got a list",
    ),
    "weights missing": (
        lambda: model(Dense(3, 1)).set_weights({"0.W": np.ones((3, 1))}),
        ArgumentError,
        r"weights lack \['0\.b'\]\.$",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_what_to_write(case: str) -> None:
    call, kind, says = WRONG[case]
    with pytest.raises(kind, match=re.compile(says, re.DOTALL)):
        call()


def test_attributes_that_do_not_exist_stay_so() -> None:
    layer = Dense(3, 1)
    for thing in (layer, model(layer), SequentialBuilder(3)):
        assert not hasattr(thing, "xyzzy")
        assert getattr(thing, "fit", None) is None
        assert not hasattr(thing, "__array__")
        copy.deepcopy(thing)
        pickle.loads(pickle.dumps(thing))


def test_what_fits_is_not_taken_for_one_sample() -> None:
    made = SequentialBuilder(20, 7).dense(3).build()  # a layer for any (..., 7)
    assert made.predict(np.zeros((20, 7))).shape == (20, 3)


class Scale(Layer):
    """Declares its parameter after the fact that it needs it."""

    s = Param()

    def create(self, shape: Any) -> Any:
        self.s = np.ones(shape[-1])
        return shape

    def forward(self, X: Any) -> Any:
        return X * self.s


def test_warnings_point_at_the_line_of_the_user() -> None:
    X, y = np.full((4, 3), 1e30), np.zeros((4, 1))
    for optimizer in (SGD(1e30), LBFGS()):
        made = model(Dense(3, 1), optimizer=optimizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.train(X, y, verbose=0)
        (told,) = (w for w in caught if w.category is PhitodeepWarning)
        assert told.filename == __file__
        assert "training stopped: the loss is" in str(told.message)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SequentialBuilder(3).dense(3).softmax().loss(SoftmaxCrossEntropy()).build()
    assert [w.filename for w in caught] == [__file__]
    assert CategoricalCrossEntropy().wants == "probabilities"


def test_a_method_that_training_never_calls_is_told_of() -> None:
    with pytest.warns(PhitodeepWarning, match=r"on_batch_begin is never called.*on_batch_end") as w:

        class Begins(Callback):
            def on_batch_begin(self, model: Any, step: int) -> None: ...

    assert w[0].filename == __file__


def test_an_array_with_a_mask_that_hides_nothing_is_an_array() -> None:
    assert model(Dense(3, 1)).predict(np.ma.ones((2, 3))).shape == (2, 1)


def test_an_example_without_its_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    script = Path(__file__).parents[1] / "examples" / "mnist_datasets.py"
    with pytest.raises(SystemExit, match=r'pip install "phitodeep\[data\]"'):
        runpy.run_path(str(script), run_name="__main__")


def test_settings_that_are_arrays_are_compared_as_a_whole() -> None:
    assert same(np.arange(3), np.arange(3))
    assert not same(np.arange(3), np.arange(4))
    assert not same(None, np.arange(3))


def test_a_wrong_keyword_of_a_rule_names_the_rules_own() -> None:
    with pytest.raises(ArgumentTypeError, match=r"Adam takes no epsilon=: did you mean eps=\?"):
        Adam(epsilon=1e-8)
    with pytest.raises(ArgumentTypeError, match=r"Adam takes no xyz=: it takes alpha, beta1, "):
        Adam(xyz=1)
