"""What a newcomer is told: each message names what came, what was expected and what to write."""

import copy
import pickle
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from phitodeep import LBFGS, SGD, Dense, Layer, PhitodeepWarning, Sequential, SequentialBuilder
from phitodeep.core.types import same
from phitodeep.loss import CategoricalCrossEntropy, Loss, SoftmaxCrossEntropy
from phitodeep.model.callbacks import Callback
from tests.conftest import check_refused, refusals

IMAGES = np.zeros((5, 28, 28), np.float32)
LABELS = np.arange(5)


def model(*layers, **settings):
    return Sequential(*layers, seed=0, epochs=1, **settings)


class Forgets(Layer):
    def forward(self, X):
        return 2 * X

    def backward(self, dY):
        return dY * self.saved("X", "Y")[0]


class Sums(Layer):
    def forward(self, X):
        return X.sum(axis=-1)


class Mean(Layer):
    def forward(self, X):
        return X.mean(axis=0)


class Nothing(Layer):
    def forward(self, X):
        X + 1


class HasLossFunc(Loss):
    def loss_func(self, y_pred, y_true, *_):
        return float(np.mean((y_pred - y_true) ** 2))


def forgets():
    layer = Forgets()
    layer.backward(layer.forward(np.ones((2, 3))))


WRONG = refusals(r"""
SequentialBuilder(28, 28).dense(784, 10).build()
    ShapeError: layer 0 .*Dense\(784, 10\) takes 784 features.*\(28, 28\).*add
    \.flatten\(\) before it
model(Dense(784, 10)).predict(IMAGES) -> ShapeError: add \.flatten\(\) before it
model(Dense(783, 10)).predict(IMAGES) -> ShapeError: got shape \(28, 28\)\.$
model(Dense(28, 10), loss_class=SoftmaxCrossEntropy()).train(IMAGES, LABELS)
    ShapeError: y of shape \(5,\).*is \.flatten\(\) or a global pool missing
SequentialBuilder(28, 28).flatten().dense(3).build().predict(IMAGES[0])
    ShapeError: layer 1 .*X has the shape of one sample.*\(N, 28, 28\), such as X\[None\]
SequentialBuilder(3).dense(1).loss(MeanSquaredError).build()
    ArgumentTypeError: write MeanSquaredError\(\)
SequentialBuilder(3).dense(1).optimizer(Adam).build() -> ArgumentTypeError: write Adam\(\)
Dense(3, 1, phitodeep.layers.initialization.He) -> ArgumentTypeError: write He\(\)
SequentialBuilder(3).dense(1).metrics(metrics.R2) -> ArgumentTypeError: write R2\(\)
SequentialBuilder(3).dense(1).callbacks(phitodeep.model.callbacks.EarlyStopping).build()
    ArgumentTypeError: write EarlyStopping\(\)
model(Dense(3, 1)).fit(1, 2) -> AttributeError: model\.train\(X, y
model(Dense(3, 1)).compile() -> AttributeError: \.loss\(.*\.build\(\)
Adam().step(model(Dense(3, 1))) -> ArgumentTypeError: a list of layers, such as model\.layers
Adam().step([[Dense(3, 1)], [Tanh()]]) -> ArgumentTypeError: \[\*a\.layers, \*b\.layers\] of two
SequentialBuilder(3).fit() -> AttributeError: \.build\(\), .*train
SequentialBuilder(3).train() -> AttributeError: build the model first, as in \.build\(\)\.train
SequentialBuilder(3).conv_2d() -> AttributeError: mean \.conv2d\(\)
SequentialBuilder(3).xyzzy() -> AttributeError: \.add\(layer\)
SequentialBuilder(3).dense(4, activation="ReLU")
    ArgumentTypeError: an activation is a separate layer, as in \.dense\(\.\.\.\)\.relu\(\)
SequentialBuilder(3).dense(units=4)
    ArgumentTypeError: Dense takes input_size, output_size, initializer, bias, got units=
Dense(3).W -> NotBuiltError: input shape
forgets() -> BackwardError: Forgets\(\): backward asks for 'X'.*self\.save_for_backward\(X=\.\.\.\)
Dense(3, 1).save("m.npz") -> OrderError: Sequential\(layer\)\.save
ReLU().save(X=1) -> OrderError: self\.save_for_backward\(X=\.\.\.\)
SequentialBuilder(5, 3).add(Sums()).dense(3, 2).build().predict(np.ones((4, 5, 3)))
    ShapeError: layer 0 of Sequential: Sums\(\).*Y of shape \(4, 5\).*create returned.*\(5, 3\)
model(Mean(), Dense(3, 2)).predict(np.ones((4, 3)))
    ShapeError: layer 0 of Sequential: Mean\(\).*the first axis of both must be the batch
model(Nothing()).predict(np.ones((4, 3)))
    ArgumentTypeError: Nothing\(\): forward must return an array, got NoneType
model(Dense(28, 1)).train(IMAGES, LABELS)
    ShapeError: y of shape \(5,\)\. .*is \.flatten\(\) or a global pool missing
model(Dense(3, 1)).to("cuda") -> AttributeError: runs on the CPU
model(Dense(3, 1)).eval() -> AttributeError: no mode to set
model(Dense(3, 1)).zero_grad() -> AttributeError: overwrites gradients
SequentialBuilder(3).compile()
    AttributeError: 'compile': pass the loss, optimizer and metrics to the builder,
    as in \.optimizer
SequentialBuilder(3).forward() -> AttributeError: build the model first, as in \.build\(\)\.forward
SequentialBuilder(3).lr(1) -> AttributeError: write \.alpha\(rate\)
model(Dense(3, 1)).train(IMAGES, validation_data=())
    ArgumentTypeError: Sequential\.train takes no validation_data=: pass X_test and y_test\.
model(Dense(3, 1)).train(IMAGES, class_weights={})
    ArgumentTypeError: takes no class_weights=: did you mean class_weight=\?$
model(Dense(3, 1)).train(IMAGES, workers=2)
    ArgumentTypeError: takes no workers=: it takes X, y, X_test, .*, anomaly\.
Sequential(Dense(3, 1), loss="mse")
    ArgumentTypeError: Sequential takes no loss=: write loss_class=\.
model(Dense(3, 1)).evaluate(IMAGES, verbose=0)
    ArgumentTypeError: Sequential\.evaluate takes no verbose=: it takes X, y, batch_size
Adam(epsilon=1e-8) -> ArgumentTypeError: Adam takes no epsilon=: did you mean eps=\?
Adam(xyz=1) -> ArgumentTypeError: Adam takes no xyz=: it takes alpha, beta1,
Adam(lr=0.1) -> ArgumentTypeError: Adam takes no lr=: write alpha=\.
model(Dense(3, 1)).train((np.ones((5, 3)), LABELS))
    ArgumentTypeError: X was given without y: pass a pair as two arguments, X, y\.
model(Dense(3, 1)).train(np.ones((5, 3)), LABELS, (np.ones((5, 3)), LABELS))
    ArgumentTypeError: X_test was given without y_test: pass a pair as two arguments,
    X_test, y_test\.
model(Dense(3, 1)).train(np.ones((5, 3)), LABELS, shuffle="yes")
    ArgumentTypeError: shuffle must be True or False, got 'yes'
SequentialBuilder(3).metrics(["accuracy", "f1"])
    ArgumentTypeError: separate arguments, as in \.metrics\('accuracy', 'f1'\)
SequentialBuilder(3, 32, 32).conv2d(4, 3).max_pool2d(2).build()
    ShapeError: layer 1 .*\(N, height, width, C\): np\.moveaxis\(X, 1, -1\)
SequentialBuilder(28, 28).conv2d(4, 3).build()
    ShapeError: \(height, width, C\), got \(28, 28\): \.reshape\(28, 28, 1\)
SequentialBuilder(6, 6).max_pool2d(2).build() -> ShapeError: \.reshape\(6, 6, 1\)
model(Dense(3, 1)).predict(np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 4))
    ArgumentError: X has masked entries: fill them with X\.filled\(value\)
Dense(3, 1).grads["W"] -> BackwardError: no gradient 'W' yet
HasLossFunc().loss_gradient(np.ones((2, 1)), np.ones((2, 1)))
    NotImplementedError: HasLossFunc must implement value\(P, T, w, total\), which loss_func and
model(Dense(3, 1)).set_weights([np.ones((3, 1))])
    ArgumentTypeError: weights by path, as get_weights\(\) returns it, must be a dict, got list
model(Dense(3, 1)).set_weights({"0.W": np.ones((3, 1))})
    ArgumentError: returns it, lacks '0\.b'\.$
""")


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_a_mistake_is_told_what_to_write(call, error):
    check_refused(call, error, globals())


def test_what_is_right_is_not_refused():
    made = SequentialBuilder(20, 7).dense(3).build()  # a layer for any (..., 7)
    assert made.predict(np.zeros((20, 7))).shape == (20, 3)
    assert model(Dense(3, 1)).predict(np.ma.ones((2, 3))).shape == (2, 1)
    layer = Dense(3, 1)
    for thing in (layer, model(layer), SequentialBuilder(3)):
        assert not hasattr(thing, "xyzzy")
        assert getattr(thing, "fit", None) is None
        assert not hasattr(thing, "__array__")
        copy.deepcopy(thing)
        pickle.loads(pickle.dumps(thing))
    assert same(np.arange(3), np.arange(3))
    assert not same(np.arange(3), np.arange(4))
    assert not same(None, np.arange(3))


def test_warnings_point_at_the_line_of_the_user():
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


def test_a_method_that_training_never_calls_is_told_of():
    with pytest.warns(PhitodeepWarning, match=r"on_batch_begin is never called.*on_batch_end") as w:

        class Begins(Callback):
            def on_batch_begin(self, model, step): ...

    assert w[0].filename == __file__


def test_an_example_without_its_extra_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    script = Path(__file__).parents[1] / "examples" / "mnist_datasets.py"
    with pytest.raises(SystemExit, match=r'pip install "phitodeep\[data\]"'):
        runpy.run_path(str(script), run_name="__main__")
