"""The model of distributed steps and its simulation; nothing here measures or starts a process."""

from __future__ import annotations

import importlib
import json
import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def suite(monkeypatch):
    """The benchmark's files, which import each other by name."""
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    yield importlib
    for path in folder.rglob("*.py"):
        sys.modules.pop(".".join(path.relative_to(folder).with_suffix("").parts), None)
    sys.modules.pop("frameworks", None)


@pytest.fixture
def model(suite):
    return suite.import_module("scaling_model")


@pytest.fixture
def small(model):
    """Two layers of 1 and 3 FLOPs per sample, with 1,000 and 2,000 parameters, and their step."""
    layers = [model.Layer("first", 1, (900,), (100,)), model.Layer("last", 3, (2000,), ())]
    compute = model.Compute(overhead=0.5, rate=100.0)
    network = model.Network("a wire", latency=0.25, bandwidth=1000.0)
    return layers, compute, network


# --- calibration ---------------------------------------------------------------------------------


def test_two_steps_calibrate_the_compute(model):
    compute = model.Compute.calibrated((100.0, 200.0), (3.0, 5.0))
    assert (compute.overhead, compute.rate) == (1.0, 50.0)
    assert compute.seconds(400.0) == 9.0


def test_two_messages_calibrate_the_network(model):
    network = model.Network.calibrated("a wire", (1000, 5000), (3.0, 7.0))
    assert (network.latency, network.bandwidth) == (1.0, 1000.0)
    for size, seconds in ((1000, 3.0), (5000, 7.0)):
        assert model.exchange(size, 2, network) == seconds


def test_measurements_in_the_wrong_order_are_refused(model):
    for amounts, seconds in (((2.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (2.0, 1.0))):
        with pytest.raises(ValueError, match="idle machine"):
            model.Compute.calibrated(amounts, seconds)
    assert model.Compute.calibrated((1.0, 2.0), (1.0, 3.0)).overhead == 0  # never negative


# --- the exchange --------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 1000])
def test_a_ring_takes_the_time_of_its_formula(model, ranks):
    network = model.Network("a wire", 3e-6, 2e9)
    size = 1_000_000
    formula = 2 * (ranks - 1) / ranks * size / 2e9 + 2 * (ranks - 1) * 3e-6
    assert model.exchange(size, ranks, network) == pytest.approx(formula)


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_halving_sends_as_many_bytes_as_a_ring_in_fewer_rounds(model, ranks):
    network = model.Network("a wire", 3e-6, 2e9)
    formula = 2 * (ranks - 1) / ranks * 1e6 / 2e9 + 2 * math.log2(ranks) * 3e-6
    assert model.exchange(1e6, ranks, network, "halving") == pytest.approx(formula)


def test_ranks_meet_in_as_many_rounds_as_the_logarithm(model):
    network = model.Network("a wire", 2.0, 1.0)
    assert [model.meeting(r, network) for r in (1, 2, 3, 4, 5, 1000)] == [0, 2, 4, 4, 6, 20]


def test_ranks_above_a_power_of_two_take_two_rounds_more(model):
    rounds = model.halving(8.0, 5)
    assert rounds == [8, 4, 2, 2, 4, 8]


# --- buckets -------------------------------------------------------------------------------------


def test_buckets_hold_every_gradient_once_in_backward_order(model):
    sizes = [((10,), (1,)), ((5, 4), (2,)), ((7,), ())]
    layers = [model.Layer(str(i), 1, *own) for i, own in enumerate(sizes)]
    found = model.buckets(layers, least=40)  # 7 + 4, then 5 + 10, and 2 + 1 that are left
    assert [(b.size, b.last) for b in found] == [(44, 1), (60, 0), (12, 0)]
    for least in (1, 20, 60, 10**6):
        assert sum(b.size for b in model.buckets(layers, least)) == 4 * 29
    assert model.buckets([model.Layer("a", 1, (), ())]) == []


def test_a_bucket_is_ready_after_its_first_layer(model):
    layers = [model.Layer("a", 1, (5,), ()), model.Layer("b", 1, (10,), (10,))]
    found = model.buckets(layers, least=40)  # b's matrix, then a's with b's bias
    assert found == [model.Bucket(40, 1), model.Bucket(60, 0)]


# --- a step --------------------------------------------------------------------------------------


def test_one_rank_computes_and_sends_nothing(model, small):
    layers, compute, network = small
    step = model.simulate(layers, model.buckets(layers), compute, 600, network, 1)
    assert step.seconds == pytest.approx(compute.seconds(600))
    assert step.exchanged == step.computed


def test_two_ranks_and_one_bucket_by_hand(model, small):
    """Meet in 0.25 s, 6 s of passes, two rounds of 6,000 bytes: 2 (0.25 + 6) = 12.5 s, 0.5 s."""
    layers, compute, network = small
    pieces = [model.Bucket(12_000, 0)]
    step = model.simulate(layers, pieces, compute, 600, network, 2)
    assert step.computed == pytest.approx(6.25)
    assert step.exchanged == pytest.approx(18.75)
    assert step.seconds == pytest.approx(19.25)


def test_two_buckets_overlap_by_hand(model, small):
    """The last layer's backward ends at 0.25 + 2 + 3 s: its 8,000 bytes take 8.5 s, to 13.75 s.

    Then come the 4,000 bytes of the first layer, which take 4.5 s.
    """
    layers, compute, network = small
    pieces = model.buckets(layers, least=3700)
    assert [(b.size, b.last) for b in pieces] == [(8000, 1), (4000, 0)]
    step = model.simulate(layers, pieces, compute, 600, network, 2)
    assert step.exchanged == pytest.approx(18.25)
    after = model.simulate(layers, pieces, compute, 600, network, 2, overlap=False)
    assert after.exchanged == pytest.approx(6.25 + 13.0)


@pytest.mark.parametrize("algorithm", ["ring", "halving"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16])
def test_without_overlap_a_step_is_compute_plus_exchange(model, small, algorithm, ranks):
    layers, compute, network = small
    pieces = model.buckets(layers, least=1000)
    how = {"algorithm": algorithm}
    alone = sum(model.exchange(b.size, ranks, network, algorithm) for b in pieces)
    met = model.meeting(ranks, network)
    after = model.simulate(layers, pieces, compute, 600, network, ranks, overlap=False, **how)
    assert after.seconds == pytest.approx(met + compute.seconds(600) + alone)
    with_overlap = model.simulate(layers, pieces, compute, 600, network, ranks, **how)
    assert with_overlap.seconds <= after.seconds + 1e-12
    assert with_overlap.seconds >= max(compute.seconds(600), alone)


# --- many ranks ----------------------------------------------------------------------------------


def job(model, small, **changes):
    layers, compute, network = small
    settings = {"layers": layers, "pieces": model.buckets(layers), "compute": compute}
    settings |= {"flops": 600.0, "batch": 16, "network": network}
    return model.Job(**(settings | changes))


def test_slower_networks_and_more_bytes_never_shorten_a_step(model, small):
    layers, compute, _ = small
    for latency, bandwidth in ((0.0, 1e3), (1.0, 1e3), (1.0, 1e2)):
        network = model.Network("a wire", latency, bandwidth)
        steps = [job(model, small, network=network, scaling="weak").step(r) for r in (1, 2, 4, 8)]
        assert all(a.seconds <= b.seconds for a, b in pairwise(steps))
    seconds = [
        model.simulate(layers, [model.Bucket(n, 0)], compute, 60, small[2], 4).seconds
        for n in (100, 1000, 10_000)
    ]
    assert seconds == sorted(seconds)


def test_a_perfect_network_halves_what_can_be_split(model, small):
    """Without latency and with endless bandwidth, only the overhead is left of the batch."""
    perfect = model.Network("perfect", 0.0, math.inf)
    strong = job(model, small, network=perfect)
    for ranks in (1, 2, 4, 16):
        assert strong.step(ranks).seconds == pytest.approx(0.5 + 600 * 16 / ranks / 100)
    assert model.fastest(strong) == 16
    assert model.stops_paying(job(model, small, network=perfect, scaling="weak"), 300) == 300
    assert job(model, small, network=perfect, scaling="weak").efficiency(300) == pytest.approx(1)


def test_a_batch_cannot_be_split_over_more_ranks_than_samples(model, small):
    strong = job(model, small)
    assert [strong.samples(r) for r in (1, 2, 3, 16, 1000)] == [16, 8, 6, 1, 1]
    assert (strong.limit(1000), job(model, small, scaling="weak").limit(1000)) == (16, 1000)


@pytest.mark.parametrize("scaling", ["strong", "weak"])
@pytest.mark.parametrize("algorithm", ["ring", "halving"])
def test_where_it_stops_paying_the_efficiency_crosses_the_line(model, small, scaling, algorithm):
    found = job(model, small, scaling=scaling, algorithm=algorithm, overlap=False)
    last = model.stops_paying(found)
    assert found.efficiency(last) >= model.PAYS
    assert last == found.limit(1000) or found.efficiency(last + 1) < model.PAYS
    best = model.fastest(found)
    assert all(found.speedup(best) >= found.speedup(r) for r in model.counts(found.limit(1000)))


def test_counts_end_with_the_most(model):
    assert model.counts(1) == [1]
    assert model.counts(8) == [1, 2, 4, 8]
    assert model.counts(10) == [1, 2, 4, 8, 10]


# --- from measurements to the page ---------------------------------------------------------------


def seconds(**changes):
    """What scaling.py stores of a workload: 2 ms of overhead and 1 ms per sample of 4."""
    found = {"whole": 6e-3, "half": 4e-3, "eighth": 2e-3, "apart": 4.4e-3}
    found |= {"overlap": 5e-3, "after": 5e-3, "weak": 7e-3}
    found |= {"exchange, ours": 0.9e-3, "exchange, bare": 0.75e-3} | changes
    return {name: {"median": s, "least": s, "most": s} for name, s in found.items()}


def stored(**changes):
    """What scaling.py stores: a network of 1 ms per round and 1 MB/s, and one workload on it."""
    sizes = [4**i for i in range(3, 13)]
    own = {"batch": 8, "flops": 500.0, "seconds": seconds(**changes), "noisy": 1, "blocks": 56}
    own |= {"layers": [["0 Dense", 1.0, [40], [10]], ["1 Dense", 1.0, [100], [100]]]}
    times = {str(size): 2e-3 + size / 1e6 for size in sizes}
    return {
        "machine": "a computer",
        "load": 0.25,
        "network": {"seconds": times},
        "workloads": {"W1": own, "W4": own},
    }


@pytest.fixture
def report(suite):
    return suite.import_module("scaling_report")


def test_the_model_predicts_what_calibrated_it(report):
    fitted = report.model(found := stored())
    assert fitted["network"]["latency"] == pytest.approx(1e-3)
    assert fitted["network"]["bandwidth"] == pytest.approx(1e6)
    assert fitted["network"]["predicted"] == pytest.approx(found["network"]["seconds"])
    own = fitted["workloads"]["W1"]
    assert own["overhead"] == pytest.approx(2e-3)
    assert own["rate"] == pytest.approx(1e6)
    assert own["buckets"] == [[1000, 0]]
    # Half a batch takes 4 ms; one bucket takes two rounds of half its bytes.
    assert own["predicted"]["after"] == pytest.approx(4e-3 + 1e-3 + 2e-3 + 1e-3)
    assert own["predicted"]["weak"] == pytest.approx(6e-3 + 1e-3 + 2e-3 + 1e-3)
    assert own["predicted"]["eighth"] == pytest.approx(2e-3 + 0.5e-3)
    assert own["predicted"]["overlap"] <= own["predicted"]["after"]
    strong = own["simulated"][report.MEMORY]["strong ring"]
    assert strong["curve"]["1"] == 1
    assert strong["limit"] == 8


def test_tables_of_the_scaling(report):
    found = stored()
    found["model"] = report.model(found)
    text = report.tables(found)
    for line in (
        "| W1, batch 8 | 6.00 ms | 5.00 ms | 7.00 ms | 1.20 | 1.71 |",
        "| W4, batch 8 | 0.00 MB | 1 | 900 us | 750 us | 1.20 |",
        "| 4,096 (calibrates) | 6.10 ms | 6.10 ms | +0 % |",
        "| W1, batch 8 | 4.00 ms | 4.40 ms | 5.30 ms | 5.00 ms | 5.00 ms |",
    ):
        assert line in text.splitlines()
    assert "2.50 ms / 2.00 ms, +25 %" in text
    assert "Created by `make scaling` on: a computer." in text
    assert "in 2 of 112 blocks" in text


def test_a_picture_of_the_scaling(report, tmp_path):
    found = stored()
    found["model"] = report.model(found)
    report.draw(found, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("workload", ["W1", "W4", "W6"])
def test_the_layers_of_a_workload_hold_all_its_weights(suite, workload):
    scaling, workloads = (suite.import_module(m) for m in ("scaling", "workloads"))
    found = scaling.described(workload)
    counts = [n for *_, decayed, plain in found["layers"] for n in (*decayed, *plain)]
    assert sum(counts) == sum(a.size for a in workloads.weights(workload).values())
    assert found["batch"] == workloads.BATCH[workload]
    assert json.dumps(found)


def test_settings_pass_their_share_of_the_batch(suite):
    scaling = suite.import_module("scaling")
    batches = {s: scaling.batch_of(s, "W4") for job in scaling.JOBS.values() for s in job}
    assert batches.pop("half") == batches.pop("apart") == 8
    assert (batches.pop("eighth"), batches.pop("weak")) == (2, 32)
    assert set(batches.values()) == {16}


def test_the_stored_results_make_the_stored_tables(report):
    found = json.loads((ROOT / "docs" / "scaling.json").read_text())
    assert sorted(found["workloads"]) == [f"W{i}" for i in range(1, 7)]
    assert report.tables(found) == (ROOT / "docs" / "_scaling.md").read_text()


CUT = """
import json, sys
from frameworks.ours import Side
from phitodeep.distributed.exchange import BUCKET, buckets
model = Side(sys.argv[1], "").model
found = buckets(model.optimizer._pack(model.layers))
print(json.dumps([BUCKET, [(b.piece.stop - b.piece.start) * 4 for b in found]]))
"""


@pytest.mark.parametrize("workload", ["W1", "W3", "W4"])
def test_the_model_cuts_the_buckets_of_phitodeep(suite, model, workload):
    pytest.importorskip("mpi4py")
    answer = suite.import_module("processes").fresh(CUT, {}, (workload,))
    least, sizes = json.loads(answer)
    own = suite.import_module("scaling").described(workload)["layers"]
    assert least == model.BUCKET
    assert [b.size for b in model.buckets([model.Layer(*each) for each in own])] == sizes
