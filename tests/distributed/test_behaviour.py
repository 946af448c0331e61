"""What ranks do together, once, or not at all: in simulated jobs, which show faults in moments."""

import copy
import io
import re
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mpi4py")

from phitodeep import Network, Sequential, SequentialBuilder
from phitodeep import layers as nn
from phitodeep.distributed import DataParallel, comparison, exchange, group, job, rank, shard, size
from phitodeep.errors import ArgumentError, PhitodeepError, PhitodeepWarning
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, StopTraining
from phitodeep.optimization.optimizers import SGD, Adam, AdamW
from phitodeep.training.inputs import Data
from phitodeep.training.sources import Arrays
from tests.conftest import assert_same, numpy_kernels
from tests.distributed import simulated
from tests.distributed.programs.networks import NETWORKS, difference, error_of, mlp


@pytest.fixture
def ranks(monkeypatch):
    """Run a program on so many ranks: see `World.run`. Raise what it raised, if not `aborts`."""
    with warnings.catch_warnings(), numpy_kernels():
        run = simulated.start(monkeypatch)

        def ends(size, program, aborts=False):
            ended = run(size, program)
            errors = [one for one in ended if isinstance(one, BaseException)]
            for error in sorted(errors, key=lambda one: isinstance(one, simulated.Aborted)):
                if not aborts or isinstance(error, Exception):
                    raise error
            assert bool(errors) is aborts
            return ended

        yield ends


X, Y = mlp(np.random.default_rng(5))[1:3]


def network(optimizer=None, seed=1, **parallel):
    """A model of this rank, with options of DataParallel."""
    options = {"optimizer": optimizer or SGD(0.1, momentum=0.9), "seed": seed, "dtype": "float64"}
    model = mlp(np.random.default_rng(5), **options)[0]
    return DataParallel(model, **{"timeout": 5} | parallel)


def train(model, X=X, y=Y, **options):
    return model.train(X, y, **{"epochs": 1, "batch_size": 8, "verbose": 0} | options)


def on(method, function, every_rank=True):
    """A callback that calls this function."""
    callback = LambdaCallback(**{method: function})
    callback.every_rank = every_rank
    return callback


class Held(io.StringIO):
    """A file of which others see what was there when it was flushed."""

    seen = ""

    def flush(self):
        self.seen = self.getvalue()


def tied(rng, **options):
    """A use of weights before the layer that has them, and two heads."""
    tokens = nn.Embedding(7, 4)
    uses = [(nn.TiedDense(tokens), ["a"], ["kind"]), (tokens, ["b"], ["c"])]
    uses.append((nn.Dense(7), ["c"], ["right"]))
    losses = {"kind": SoftmaxCrossEntropy(ignore_index=0), "right": SoftmaxCrossEntropy()}
    model = Network(["a", "b"], uses, [*losses], loss_class=losses, **options)
    y = rng.integers(0, 7, (3, 20))
    return model, (rng.normal(size=(20, 4)), y[0]), (y[1], y[2]), {}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    ("name", "batch_size", "accumulate"),
    [("mlp", 4, 3), ("mlp", 1, 1), ("cnn", 4, 1), ("gpt", 4, 1), ("heads", 4, 2), ("tied", 4, 1)],
)
def test_ranks_give_the_weights_of_one_process(
    ranks, monkeypatch, name, batch_size, accumulate, sharded
):
    """Also if a batch has fewer samples than there are ranks."""
    monkeypatch.setattr(exchange, "BUCKET", 256 if name != "tied" else 1)
    monkeypatch.setitem(NETWORKS, "tied", tied)
    options = {"batch_size": batch_size, "accumulate": accumulate, "epochs": 1}

    def rule():
        return AdamW(0.01, eps=1e-6, clip_norm=0.3, ema=0.9, groups={"*.W": {"alpha": 0.02}})

    for found in ranks(
        3, lambda _: difference(name, rule, "float64", options, shard_optimizer=sharded)
    ):
        assert max(found.values()) < 1e-10, found


def changed(a, at):
    a = a.copy()
    a[at] = a[at] + (rank() == 1) * 0.5 if a.dtype.kind == "f" else (rank() == 1) + 1
    return a


DIFFERENT = {
    r"different seeds: \[1, 1, 0\]": lambda i: network(seed=int(i < 2)),
    r"DataParallel: rank 0 has {'timeout': 5}, rank 1 has {'timeout': 6} \(different: 1, 2\)": (
        lambda i: train(network(timeout=5 + i))
    ),
    r"DataParallel: rank 0 has {'shard_optimizer': False, 'overlap': True}, rank 2 has": (
        lambda i: train(network(shard_optimizer=i == 2, overlap=i != 2))
    ),
    r"of train: rank 0 has {'epochs': 1}, rank 1 has {'epochs': 2} \(different: 1, 2\)": (
        lambda i: train(network(), epochs=1 + i)
    ),
    "{'samples': 37}, rank 2 has {'samples': 36}": lambda i: train(
        network(), X[i == 2 :], Y[i == 2 :]
    ),
    "on the optimizer: rank 0 has SGD.1": lambda i: train(network(SGD(1 + i))),
    "elementwise = True": lambda i: train(
        network(type("Own", (SGD,), {"update": SGD.update})(0.1), shard_optimizer=True)
    ),
    "on X and y: first": lambda i: train(network(), changed(X, (0, 0))),
    "on X and y: last": lambda i: train(network(), changed(X, (36, 5))),
    "on X and y: target": lambda i: train(network(), y=changed(Y, 0)),
    "on X and y: weight": lambda i: train(network(), sample_weight=changed(np.ones(37), 0)),
    "on X_test and y_test": lambda i: train(network(), X_test=changed(X, (0, 0)), y_test=Y),
    "inside a training": lambda i: train(
        model := network(), callbacks=[on("on_epoch_end", lambda *_: train(model))]
    ),
}


@pytest.mark.parametrize("says", DIFFERENT)
def test_ranks_that_differ_are_refused(ranks, says):
    for error in ranks(3, lambda comm: error_of(lambda: DIFFERENT[says](comm.rank))):
        assert re.search(re.sub(": [a-z]+$", "", says), error), error


def test_16_rows_are_compared(monkeypatch):
    monkeypatch.setattr(comparison, "_digest", len)
    data = Data(X, Y, None, (37, 5))
    assert comparison._shape(Arrays(data))[3:] == [(37, 6), "float64", 768, (37,), "int64", 128]


def test_the_code_is_that_of_the_package_and_of_the_script(monkeypatch, tmp_path):
    code = comparison._code_of_phitodeep.__wrapped__
    file = tmp_path / "phitodeep" / "distributed" / "comparison.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(comparison, "__file__", str(file))
    found = [code()]
    for path in (tmp_path / "script.py", file.parents[1] / "new.py", file):
        path.write_text("1")
        found.append(code())
    assert found[0] == found[1]
    assert len({*found}) == 3
    assert re.fullmatch("[0-9a-f]{12}", found[0])
    for main, text in (({}, b""), ({"__file__": "<stdin>"}, b""), ({"__file__": file}, b"1")):
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**main))
        assert comparison._script() == text


@pytest.mark.parametrize("option", ["shard_optimizer", "overlap", "timeout", "model"])
def test_options_are_checked_on_one_rank_too(ranks, option):
    def program(comm):
        with pytest.raises(PhitodeepError, match=f"DataParallel (expects|{option})"):
            DataParallel("net") if option == "model" else network(**{option: -1})
        return network(timeout=0.5)._ranks.size

    assert ranks(1, program) == [1]


class Dataset(list):
    """Numbers of rows of the data, like a dataset of Hugging Face."""

    def with_format(self, kind):
        return self

    def shard(self, num_shards, index):
        return Dataset([*self][index::num_shards])

    def __getitem__(self, at):
        rows = np.array([*self])[at]
        return {"X": X[rows], "y": Y[rows]}


def test_ranks_may_have_data_and_a_communicator_of_their_own(ranks):
    def program(comm):
        model, data = network(), shard(Dataset(range(37)))
        assert (len(data.data), data.share) == (19 - comm.rank, (comm.rank, size()))
        train(model, data, None, X_test=data)
        one = simulated.Comm(simulated.World(1), 0)
        assert network(comm=one)._ranks.size == 1
        assert shard([], one).share == (0, 1)
        for name in ("with_format", "shard"):
            other = SimpleNamespace(**{name: None})
            assert shard(other).data is other
        return model.optimizer.t

    assert ranks(2, program) == [5, 5]


def test_own_parts_may_have_any_number_of_batches(ranks, tmp_path):
    """Parts of what one process has; rank 1 ends early, and training is resumed behind its end."""
    whole = [(X[i : i + 6], Y[i : i + 6]) for i in range(0, 36, 6)]

    def program(comm):
        mine = slice(6 * comm.rank // comm.size, 6 * (comm.rank + 1) // comm.size)
        parts = [(a[mine], b[mine]) for a, b in whole[:2]]
        parts += [(a[:3], b[:3]) for a, b in whole[2:] if comm.rank == 0]
        model, again = network(), network()
        options = {
            "callbacks": [ModelCheckpoint(tmp_path / "ck.safetensors", every_steps=4, keep=9)]
        }
        train(model, shard(iter(parts)), None, **options)
        train(again, shard(parts), None, resume=tmp_path / "ck-step4.safetensors", **options)
        assert_same(again.get_weights(), model.get_weights())
        return model.get_weights()

    alone = ranks(1, program)[0]
    for weights in ranks(2, program):
        assert_same(weights, alone, atol=1e-12)


@pytest.mark.parametrize("sharded", [False, True])
def test_checkpoints_resume_on_another_number_of_ranks(ranks, tmp_path, sharded):
    def program(comm, resume=tmp_path / "ck-step14.safetensors"):
        model = network(Adam(0.01), shard_optimizer=sharded)
        checkpoint = ModelCheckpoint(tmp_path / "ck.safetensors", every_steps=7, keep=99)
        history = train(model, epochs=3, batch_size=5, callbacks=[checkpoint], resume=resume)
        losses = {"losses": np.array(history)[:, 0]}
        return losses, model.get_weights(), model.optimizer.memory(), model.optimizer.t

    whole = ranks(2, lambda comm: program(comm, None))[0]
    for again in ranks(2, program):  # on the same number: the same bits
        assert_same(again[0], whole[0])
        assert_same(again[1], whole[1])
    (alone,) = ranks(1, program)
    assert whole[3] == alone[3] == 24
    for a, b in zip(alone[:3], whole[:3], strict=True):
        assert_same(a, b, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("sharded", [False, True])
def test_callbacks_run_on_rank_0_unless_they_say_every_rank(ranks, monkeypatch, sharded):
    monkeypatch.setattr(sys, "stdout", out := Held())

    def program(comm):
        calls, asked, model, other = [], {}, network(shard_optimizer=sharded), network()

        def stop(model, step, loss):
            calls.append("once")
            if step == 3:
                raise StopTraining("three are enough")

        def ask(model, epoch, logs):
            if sharded:
                asked["memory"] = error_of(model.optimizer.memory)
                asked["copy"] = error_of(model.copy)
                asked["pickle"] = error_of(lambda: copy.deepcopy(model))
            asked["train"] = error_of(lambda: train(other))
            new = simulated.Comm(comm.world, comm.rank, ("new",))
            asked["new"] = error_of(lambda: network(comm=new))
            asked["loss"] = error_of(lambda: model._ranks.add(1.0))
            asked["statistics"] = error_of(lambda: model._ranks.sum(np.ones(1)))
            model.backward(model.forward(X))
            asked["step"] = error_of(lambda: model.optimizer.step(model.layers))

        callbacks = [on("on_epoch_end", lambda _, epoch, logs: calls.append(epoch))]
        callbacks += [on("on_batch_end", stop, False), on("on_epoch_end", ask, False)]
        callbacks += [on("on_train_begin", lambda *_: asked.update(seen=out.seen), False)]
        train(model, epochs=5, callbacks=callbacks, verbose=1)
        own = model._ranks.job
        return calls, asked, model.optimizer.t, own.training, own.timeout

    first, second = ranks(2, program)
    assert first[0] == ["once", "once", "once", 1]
    assert second[:2] == ([1], {})
    assert first[1].pop("seen").startswith("2 ranks (0: PID ")
    assert first[2:] == second[2:] == (3, 1, 5)
    assert len(first[1]) == 5 + 3 * sharded
    for error in first[1].values():
        assert error.startswith("OrderError: a callback that rank 0 alone calls")
    assert out.getvalue().count("\n") == 3
    assert out.getvalue().endswith("\nthree are enough\n")


def test_all_ranks_stop_with_the_best_weights_and_with_averages(ranks):
    def program(comm):
        model, seen = network(SGD(2.0, ema=0.9), shard_optimizer=comm.size > 1), []

        def look(model, epoch, logs):
            with model.averaged():
                seen.append(model.evaluate(X, Y)["loss"])

        callbacks = [EarlyStopping(2), on("on_epoch_end", look)]
        options = {"X_test": X[20:], "y_test": Y[20:], "batch_size": 7, "callbacks": callbacks}
        history = train(model, X[:20], Y[:20], epochs=30, **options)
        alpha = model.find_alpha(X, Y, batch_size=5, steps=20).suggestion
        return len(history), model.get_weights(), [*seen, alpha]

    (alone,), both = ranks(1, program), ranks(2, program)
    assert 2 < alone[0] < 30
    for one in both:
        assert one[0] == alone[0]
        assert_same(one[1], alone[1], atol=1e-9)
        assert one[2] == pytest.approx(alone[2], abs=1e-9)


def test_rank_0_gives_what_it_has(ranks, monkeypatch):
    """Its seed, its weights in any memory order, and the optimizer's memory; others are quiet."""
    quiet = []
    monkeypatch.setattr(group, "hide_compilation", lambda: quiet.append(rank()))

    def program(comm):
        model = mlp(np.random.default_rng(5), dtype="float64", optimizer=SGD(0.1, momentum=0.9))[0]
        own = model._seed_sequence.entropy
        DataParallel(model)
        ignored = ("ignore", None, PhitodeepWarning, None, 0) in warnings.filters
        frozen = model.layers[0]
        frozen.trainable = False
        W = frozen.params["W"] = np.asfortranarray(frozen.W + comm.rank)
        train(model)
        model.optimizer._slots["v"] += comm.rank
        train(model)
        assert comm.rank or ((frozen.W == W).all() and model._seed_sequence.entropy == own)
        return model.get_weights(), model.optimizer.memory(), model._seed_sequence.entropy, ignored

    first, second = ranks(2, program)
    assert first[2] == second[2]
    assert_same(first[0], second[0])
    assert_same(first[1], second[1])
    assert (quiet, second[3]) == ([1], True)


def test_shards_keep_their_part_of_the_memory(ranks, capsys):
    def program(comm):
        kept, model = [], network(shard_optimizer=True)
        own = model._ranks.exchange

        def look(model, step, loss):
            model.optimizer.memory()  # of all ranks, in a copy
            vector, mine = model.optimizer._slots["v"], own.mine(model.optimizer._packing)
            others = np.delete(vector, np.arange(mine.start, mine.stop))
            kept.append(bool(vector[mine].any() and not others.any()))

        for _ in range(2):
            train(model, callbacks=[on("on_batch_end", look)])
        own.packing = SimpleNamespace(theta=np.zeros(5))
        assert own.edges(5) == [0, 1, 3, 5]
        assert own.length(np.full(5, 2.0)) == pytest.approx(20**0.5)
        assert own.length(np.full(5, 1e308)) == sys.float_info.max
        assert own.length(np.where(np.arange(5) < comm.rank, 1, np.inf)) == np.inf
        return kept

    assert ranks(3, program) == [[True] * 10] * 3
    assert not capsys.readouterr().out


@pytest.mark.parametrize("sharded", [False, True])
def test_errors_of_all_ranks_end_one_training(ranks, sharded):
    """Those that a callback raises, and numbers that are not finite, which one rank has."""

    def fail(*_):
        raise ArgumentError("on every rank")

    def program(comm):
        builder = SequentialBuilder(seed=1).dense(6, 1).distributed(timeout=30).alpha(1e-3)
        model, built, bad = network(shard_optimizer=sharded), builder.build(), np.array(X)
        bad[5] = 1.7e308
        warnings.simplefilter("always")  # as it is on rank 0
        errors = [error_of(lambda: train(model, callbacks=[on("on_epoch_end", fail)]))]
        memory = model.optimizer.memory() if sharded else None
        assert "belongs to another model" in error_of(lambda: network(model.optimizer))
        with np.errstate(all="ignore"):
            errors.append(error_of(lambda: train(model, bad, shuffle=False, anomaly="raise")))
        assert not error_of(lambda: train(model))
        history = train(built, np.ones((10, 6)), np.array([[1.0]] * 9 + [[3e19]]), batch_size=10)
        return errors, memory, len(history), built.optimizer.t

    with warnings.catch_warnings(record=True) as warned:
        for errors, memory, epochs, steps in ranks(2, program):
            assert errors[0] == "ArgumentError: on every rank"
            assert "sample 5" in errors[1]
            assert not memory
            assert (epochs, steps) == (0, 0)
    said = " ".join(str(w.message) for w in warned)
    assert "the loss is inf at step 1" in said
    assert ("the optimizer's memory was spread" in said) is sharded


def test_a_callback_may_take_steps_of_its_own(ranks, monkeypatch):
    """Before training and between its steps, each rank on its rows; also after one that failed."""
    monkeypatch.setattr(exchange, "BUCKET", 1)

    def fail(dY):
        raise ArgumentError("in the backward pass")

    def step(model, *_):
        own = slice(rank(), None, size())
        gradient = SoftmaxCrossEntropy().loss_gradient(model.forward(X[own]), Y[own] % 5, total=37)
        model.backward(gradient)
        model.optimizer.step(model.layers)

    def program(comm):
        layers = nn.Dense(6, 4), nn.Tanh(), nn.Dense(4, 5)
        options = {"loss_class": SoftmaxCrossEntropy(), "seed": 1, "dtype": "float64"}
        model = DataParallel(Sequential(*layers, **options))
        callbacks = [on("on_train_begin", step), on("on_batch_end", step)]
        model.layers[1].backward = fail
        assert "in the backward" in error_of(lambda: train(model, y=Y % 5))
        del model.layers[1].backward
        train(model, y=Y % 5, callbacks=callbacks, epochs=2)
        return model.get_weights()

    assert_same(ranks(2, program)[1], ranks(1, program)[0], atol=1e-12)


@pytest.mark.parametrize(
    ("bucket", "options", "expected"),
    [
        (640, {}, [(1, 0), (1, 1), (3, 1), (3, 4)]),
        (680, {}, [(0, 0), (0, 0), (2, 0), (2, 2)]),
        (680, {"overlap": False}, []),
        (680, {"shard_optimizer": True}, []),
        (1 << 20, {}, []),
    ],
)
def test_sums_start_during_the_backward_pass(ranks, monkeypatch, bucket, options, expected):
    """Of so many buckets; and how often it is asked until then whether they have ended."""
    monkeypatch.setattr(exchange, "BUCKET", bucket)
    ended, found = exchange.Summation.ended, []

    def noted(self, layer):
        ended(self, layer)
        if rank() == 0:
            found.append((self.started, self.comm.tests))

    monkeypatch.setattr(exchange.Summation, "ended", noted)
    ranks(2, lambda comm: train(network(**options), batch_size=37))
    assert found == expected


def test_an_epoch_ends_with_means_and_refuses_other_weights_and_steps(ranks):
    def program(comm):
        own, i = network()._ranks, comm.rank
        mean, both = np.full((2, 3), float(i)).T, np.array(float(i))
        parts = [SimpleNamespace(state={"n": np.array(i), "mean": mean})]
        parts.append(SimpleNamespace(state={"mean": both}, sync=True))
        packing = SimpleNamespace(theta=np.ones(3))
        optimizer = SimpleNamespace(_packing=packing, t=3, last_rate=0.1)
        model = SimpleNamespace(walk=lambda: [("", part) for part in parts], optimizer=optimizer)
        training, errors = SimpleNamespace(model=model), []
        for n, weight in ((3, 1), (3 + (i == 1), 1), (3, 1 + (i > 0))):
            optimizer.t, packing.theta[:] = n, weight
            errors.append(error_of(lambda: own.settle(training, 7)))
        own.training = SimpleNamespace(objective=SimpleNamespace(heads=[0]))
        errors.append(error_of(lambda: own.meet([], 1, None, 3 + i, False)))
        return errors, mean.tolist(), both, parts[0].state["n"]

    for i, (errors, *ends) in enumerate(ranks(3, program)):
        assert ends == [[[1, 1]] * 3, i, i]
        assert not errors[0]
        assert "steps of the epoch: [3, 4, 5]." in errors.pop()
        for error in errors[1:]:
            assert "after epoch 7, the weights or the rate of rank 1 differ" in error


def naps(own, comm):
    comm.world.sleep(500)


def other_thing(own, comm):
    own.job.wait(SimpleNamespace(Test=lambda: False), "something else")


def fails(own, comm):
    try:
        raise ZeroDivisionError("on fire")
    except ZeroDivisionError:
        own.failed()
    naps(own, comm)


def reports(own, comm):
    print("printed before")
    sys.excepthook(ValueError, ValueError("no"), None)


FAULTS = {  # what ranks 1 to 10 do -> what the job ends with, and how many seconds rank 0 waited
    naps: (r"rank 0 has waited 5 s \(a\)\. Missing: (rank \d+ \(b\),? ){8}and 2 more\. A", 8),
    other_thing: ("waited 5 s .* Missing: no rank; all of them wait, but not for the same", 5),
    lambda *_: None: (r"rank \d+ \(b\) has ended its program, while rank 0 waits .* \(a\)\.\n$", 3),
    fails: (
        r"rank \d+ \(b\) has left the training, by an error that its script caught, while rank 0 "
        r"waits \(a\): ZeroDivisionError: on fire\n$",
        3,
    ),
    reports: (r"printed before\nrank \d+ \(b\) failed:\nValueError: no\n$", 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_ends_when_a_rank_is_missing(ranks, monkeypatch, fault):
    clock, out, err = [], Held(), Held()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    def program(comm):
        own = network()._ranks
        assert job.Job.of(comm) is own.job
        own.job.timeout = 5
        own.job.begin()
        own.training = SimpleNamespace(objective=SimpleNamespace(heads=[0]))
        began = simulated.now()
        try:
            fault(own, comm) if comm.rank else own.meet([], 1, None, 2, False)
        finally:
            clock.append(simulated.now() - began)

    ranks(11, program, aborts=True)
    says, seconds = FAULTS[fault]
    says = says.replace("(b", r"(PID \d+ on here").replace("(a", "(step 3 of the epoch")
    assert re.search(says, out.seen + err.seen)
    assert seconds <= max(clock) < seconds + 0.7


def test_a_rank_that_has_left_may_have_sent_before(ranks):
    def program(comm):
        own = job.Job.of(comm)
        own.begin()
        if comm.rank == 1:
            own.leave()
            comm.world.sleep(2.5)
        return own.sum(np.ones(1)).item()

    assert ranks(2, program) == [2, 2]


def test_training_begins_again_when_all_ranks_have_failed(ranks, capsys):
    """Rank 0 waits for rank 1, which fails 4 seconds later, and then too late."""

    def program(comm):
        own = job.Job.of(comm)
        own.timeout = 5
        for delay in (4.2, 100):
            own.begin()
            comm.world.sleep(delay * comm.rank)
            own.fail(ValueError("no"))
            own.begin()
            print(f"training {own.training} after {simulated.now() - 100:.0f} s", file=sys.stderr)
            comm.world.sleep(3.5 * comm.rank)
            own.sum(np.ones(1))

    ranks(2, program, aborts=True)
    said = capsys.readouterr().err
    assert said.count("training 2 after 4 s") == 2
    assert "rank 0 has waited 5 s (the next training). Missing: rank 1 (PID" in said


def test_the_end_of_a_program_is_told(ranks, monkeypatch):
    def program(comm):
        job.Job.of(comm)
        return comm.world.letters

    letters = ranks(3, program)[0]
    told = sorted((to, source, tag) for (_, to), all in letters.items() for source, tag, _ in all)
    assert told == [(0, 1, job.LEFT), (0, 2, job.LEFT), (1, 0, job.LEFT), (2, 0, job.LEFT)]
    monkeypatch.setattr(simulated.MPI, "Is_finalized", lambda: True)
    assert not any(ranks(3, program)[0].values())
