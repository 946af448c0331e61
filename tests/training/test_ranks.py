"""What training asks of ranks, answered by one process for two that hold the same data."""

import itertools

import numpy as np
import pytest

from phitodeep import LBFGS, Network, Sequential
from phitodeep import layers as L
from phitodeep.errors import AnomalyError, DivergenceError, PhitodeepWarning
from phitodeep.layers.initialization import Zeros
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.optimization.gradient_sync import GradientSync
from phitodeep.training.inputs import Data, Share
from phitodeep.training.ranks import Ranks, Work, merge_sums
from phitodeep.training.run import Totals
from tests.conftest import assert_weights, press

rng = np.random.default_rng(3)
N = 24
X = rng.standard_normal((N, 4))
LABELS = rng.integers(0, 3, N)
Y = X @ rng.standard_normal((4, 2))


class Doubled(GradientSync):
    def __init__(self, calls):
        self.calls = calls

    def finish(self, packing, held):
        super().finish(packing, held)
        packing.g *= 2
        self.calls.append("gradients")


class Twins(Ranks):
    """The second of two ranks; what the first one adds is what this one adds."""

    rank, size = 1, 2
    reason = None  # why the first one stops

    def __init__(self, *, waits=False):  # True: this one's data end before those of the first one
        self.calls, self.done, self.summing, self.waits = [], [], self, waits
        for name in ("failed", "settle", "end"):
            setattr(self, name, lambda *given, name=name: self.calls.append(name))

    def __deepcopy__(self, memo):
        return self

    def begin(self, training):
        training.model.optimizer._sync = Doubled(self.calls)
        self.calls.append("begin")

    def meet(self, batches, accumulate, divisor, step, pressed):
        work = super().meet(batches, accumulate, divisor, step, pressed)
        if work is None:
            return None
        more = [*batches, *[batches[0]._replace(counts=False)] * self.waits]
        total, samples = 2 * sum(map(divisor, more)), 2 * work.samples
        return Work(more, [*work.firsts, *[samples] * self.waits], samples, total, work.pressed)

    def backward_begins(self, optimizer, layers):
        self.calls.append("backward")
        return self.done.append

    def call(self, callback, method, *args):
        if callback.every_rank:
            super().call(callback, method, *args)

    def sum(self, a):
        return np.multiply(a, 2, out=a)

    def add(self, value):
        return 2 * value

    def agree(self, reason):
        self.calls.append(reason)
        return self.reason or reason

    def merged(self, totals, metrics):
        both = Totals(2 * totals.loss, 2 * totals.samples)
        for _ in range(2):
            merge_sums(both.sums, totals.sums, metrics)
        return both


def classifier(*inner, **given):
    layers = L.Dense(4, 6), *inner, L.Tanh(), L.Dense(6, 3), L.Softmax()
    options = {"loss_class": "categorical_cross_entropy", "metrics": ["accuracy"], "seed": 0}
    options |= {"optimizer": "sgd", "alpha": 0.1, "dtype": "float64", "batch_size": 10, "epochs": 2}
    return Sequential(*layers, **{**options, **given})


def normed(**given):
    return classifier(L.BatchNorm(sync=True), **given)


def searching(**given):
    pytest.importorskip("scipy")
    return classifier(**{**given, "optimizer": LBFGS(), "batch_size": None})


def network(**given):
    uses = [(L.Dense(4, 6), ["x"], ["h"])]
    uses += [(L.Dense(6, 3), ["h"], ["a"]), (L.Dense(6, 2), ["h"], ["b"])]
    losses = {"a": "softmax_cross_entropy", "b": "mse"}
    options = {"metrics": {"a": "accuracy"}, "seed": 0, "dtype": "float64", "batch_size": 10}
    return Network(["x"], uses, ["a", "b"], loss_class=losses, **{**options, "epochs": 2, **given})


def both(A, size=10):
    """Each batch, and the same one after it."""
    if isinstance(A, dict):
        return {name: both(part, size) for name, part in A.items()}
    return np.concatenate([A[i : i + size] for i in range(0, N, size) for _ in range(2)])


@pytest.mark.parametrize(
    ("waits", "make", "y", "options"),
    [
        (False, normed, LABELS, {}),
        (False, normed, LABELS, {"accumulate": 2}),
        (True, normed, LABELS, {}),
        (False, searching, LABELS, {}),
        (True, network, {"a": LABELS, "b": Y}, {"accumulate": 2}),
    ],
    ids=["one loss", "accumulated", "placeholders", "several evaluations", "two losses"],
)
def test_two_ranks_with_the_same_data_are_one_with_both(waits, make, y, options, capsys):
    models, found = [make(batch_size=20), make()], []
    ranks = models[1]._ranks = Twins(waits=waits)
    before = models[0].evaluate(both(X), both(y))["loss"]
    for model, data in zip(models, [(both(X), both(y)), (X, y)], strict=True):
        losses = []
        note = LambdaCallback(on_batch_end=lambda model, step, loss, into=losses: into.append(loss))
        note.every_rank = True
        history = model.train(*data, *data, shuffle=False, callbacks=[note], **options)
        found.append([history, losses, *history.metrics.values()])
        assert (capsys.readouterr().out == "") == (model is models[1])  # rank 0 shows the progress
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9)
    assert_weights(*models, rtol=1e-9)
    marks = [call for call in ranks.calls if call in ("begin", "settle", "end")]
    assert marks == ["begin", "settle", "settle", "end"]
    assert make is not searching or losses[0] == pytest.approx(before)
    if make is normed:  # layers that are done in the last batch of each step
        assert len(ranks.done) == len(losses) * 5 == ranks.calls.count("backward") * 5
        assert [type(layer) for layer in ranks.done[:4]] == [L.Dense, L.Tanh, L.BatchNorm, L.Dense]


def test_ranks_end_together(keyboard):
    """By Ctrl-C on one of them, which all know at the next step; by another's reason; by errors."""
    for moment, steps in (({}, 5), ({"accumulate": 2}, 3)):
        model, callback = classifier(), press(2 if moment else 4)
        model._ranks, callback.every_rank = Twins(), True
        history = model.train(X, LABELS, verbose=0, callbacks=[callback], **moment)
        assert (model.optimizer.t, history.interrupted) == (steps, True)
    assert len(model.find_alpha(X, LABELS, steps=10).rates) == 10  # each rank notes them
    model._ranks.reason = "enough"
    assert model.train(X, LABELS, verbose=0, callbacks=[callback]) == []
    with pytest.raises(ZeroDivisionError):
        model.train(X, LABELS, verbose=0, metrics=[lambda P, T: 1 // 0])
    assert model._ranks.calls[-2:] == ["failed", "end"]


def test_divergence_ends_training_on_all_ranks():
    """A loss that is not finite, and then a finite one whose gradient is not."""
    model = Sequential(L.Dense(4, 2, Zeros()), dtype="float64")
    options = {"epochs": 1, "batch_size": 10, "accumulate": 2, "verbose": 0}
    for size, says in ((1e200, "the loss is inf"), (1e150, "the gradient of")):
        ranks = model._ranks = Twins()
        with pytest.warns(PhitodeepWarning, match=f"training stopped: {says}"):
            assert model.train(1e200 * X, np.full((N, 2), size), **options) == []
        assert model.optimizer.t == 0
        assert ranks.calls == ["begin", "backward", "gradients", "end"]  # whatever the loss is


def test_all_ranks_say_what_one_of_them_has_found(monkeypatch):
    model, options = Sequential(L.Dense(4, 2), seed=0), {"verbose": 0, "anomaly": "raise"}
    ranks = model._ranks = Twins()
    with pytest.raises(AnomalyError) as error:
        model.train(1e30 * X, Y, **options)
    assert str(error.value) in ranks.calls
    assert str(error.value.__cause__).startswith("the loss is inf")
    monkeypatch.setattr(Sequential, "_find_anomaly", lambda *given: given[-1])  # not on this rank
    for ranks.reason, says in ((None, "^the loss is inf"), ("there", "^another rank .*: there$")):
        ranks.calls.clear()
        with pytest.raises(DivergenceError, match=says):
            model.train(1e30 * X, Y, **options)
        assert None in ranks.calls


def test_shares_are_disjoint_and_even():
    for n, size, start in itertools.product(range(1, 9), range(1, 5), (0, 3)):
        shares = [Share(rank, size) for rank in range(size)]
        found = [share.rows(start, start + n) for share in shares]
        places = [[*range(rows.start, rows.stop)] for rows, counts in found if counts]
        assert [*itertools.chain(*places)] == [*range(start, start + n)]
        assert {*map(len, places)} <= {n // size, -(-n // size)} - {0}
        assert all(rows == slice(start, start + 1) for rows, counts in found if not counts)
        assert [share.count(n) for share in shares] == [r.stop - r.start for r, _ in found]
        data = Data(np.arange(start, start + n), np.arange(n), None, (n,))
        parts = [data.of(share) for share in shares]
        assert [[*part.X] for part in parts if part.counts] == places
        assert all(part.n == len(part.T) == part.outputs[0] for part in parts)
