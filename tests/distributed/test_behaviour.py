"""What several ranks do once, together, or not at all, in one job of programs/behaviour.py."""

import numpy as np
import pytest

import phitodeep
from phitodeep.model.callbacks import ModelCheckpoint
from phitodeep.optimization.optimizers import Adam
from tests.conftest import assert_same
from tests.distributed.jobs import job, passed
from tests.distributed.programs.networks import mlp
from tests.rows import few


@pytest.fixture(scope="module", params=few([3, 2], 1))
def ended(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return job(request.param, "behaviour.py", str(folder)), folder


@pytest.fixture
def results(ended):
    found = sorted(passed(ended[0]), key=lambda result: result["rank"])
    assert [result["rank"] for result in found] == list(range(found[0]["size"]))
    return found


def test_all_ranks_end_with_the_same(results):
    same = ("unseeded", "steps", "stopped", "best", "scores", "own", "statistics", "find_alpha")
    for name in (*same, "losses0", "losses1", "refused", "meddled"):
        assert all(result[name] == results[0][name] for result in results), name
    assert all(result["repeats"] and result["untouched"] for result in results)
    assert results[0]["losses0"] == pytest.approx(results[0]["losses1"], abs=1e-12)


def test_callbacks_run_on_rank_0_unless_they_say_every_rank(results):
    first, *others = results
    assert first["calls"] == ["once", "once", "once", "every 1"]
    assert all(result["calls"] == ["every 1"] for result in others)
    assert first["steps"] == 3


def test_it_prints_once(ended, results):
    lines = [line for line in ended[0].stdout.splitlines() if not line.startswith("{")]
    assert len(lines) == 3
    assert lines[0].startswith(f"{len(results)} ranks (0: PID ")
    assert lines[1].startswith("epoch 1/5  train loss ")
    assert lines[2] == "three are enough"
    assert [result["quiet"] for result in results] == [False, *[True] * (len(results) - 1)]


def test_a_loss_that_is_not_finite_on_one_rank_ends_all_before_the_step(results):
    for result in results:
        epochs, steps, warned = result["diverged"]
        assert (epochs, steps) == (0, 0)
        assert len(warned) == (result["rank"] == 0)
    assert "the loss is inf at step 1" in results[0]["diverged"][2][0]


def test_ranks_that_differ_are_refused(results):
    for name, says in (
        ("Muon", "elementwise = True"),
        ("seed", "models with different seeds: [0, 1"),
        ("settings", "rank 0 has {'epochs': 1}, rank 1 has {'epochs': 2}"),
        ("shapes", "{'samples': 30}, rank 1 has {'samples': 31}"),
        ("code", "do not agree on the code of the script"),
        ("no model", "expects a Sequential"),
        ("timeout", "DataParallel timeout must be > 0"),
        ("rates", "do not agree on the optimizer: rank 0 has SGD(1"),
    ):
        assert says in results[0]["refused"][name]


@pytest.mark.parametrize("sharded", ["0", "1"])
def test_checkpoints_resume_on_another_number_of_ranks(ended, results, sharded):
    assert all(result[f"resumed{sharded}"] for result in results)  # on the same number: same bits
    folder = ended[1]
    model, X, y, _ = mlp(np.random.default_rng(5), seed=1, dtype="float64", optimizer=Adam(0.01))
    again = ModelCheckpoint(folder / "alone.safetensors", every_steps=7)
    path = folder / f"ck{sharded}-step14.safetensors"
    history = model.train(X, y, epochs=3, batch_size=5, verbose=0, callbacks=[again], resume=path)
    (folder / "alone.safetensors").unlink()
    assert [loss for loss, _ in history] == pytest.approx(results[0][f"losses{sharded}"], abs=1e-11)
    end = phitodeep.load(folder / f"end{sharded}.safetensors")
    assert_same(end.get_weights(), model.get_weights(), rtol=1e-7, atol=1e-11)
    assert end.optimizer.t == model.optimizer.t == 24
    assert_same(end.optimizer.memory(), model.optimizer.memory(), rtol=1e-7, atol=1e-10)


CHECKS = {
    "stopped": lambda epochs: 2 < epochs < 30,  # early, on all ranks
    "meddled": lambda error: "every_rank = True" in error and "after epoch 2" in error,
    "own": lambda steps: steps == 12,  # of uneven parts
    "own parts of a whole": lambda difference: difference < 1e-9,
    "averages": lambda difference: difference < 1e-12,  # from those of one process
    "tiny": lambda difference: difference < 1e-12,  # fewer samples than ranks
    "nested": lambda error: "inside a training" in error,
    "caught": lambda error: error == "ArgumentError: on every rank",  # training may begin again
    "steps after": lambda steps: steps == 7,
    "anomaly": lambda errors: all("sample 5" in error for error in errors),
    "own parts": lambda steps: steps == 8,  # parts of ranks that end early
    "early": lambda early: early[0] == early[1] > 1,  # buckets sent during the backward pass
    "own memory": lambda kept: len(kept) == 7 and all(kept),  # a rank keeps only its part
}


@pytest.mark.parametrize("name", CHECKS)
def test_each_rank_reports_what_it_should(results, name):
    for result in results:
        assert CHECKS[name](result[name]), result[name]


def test_rank_0_alone_cannot_do_what_all_must_do(results):
    assert set(results[0]["asked"]) == {"memory", "copy", "train", "pickle"}
    for error in results[0]["asked"].values():
        assert error.startswith("OrderError: a callback that rank 0 alone calls")
