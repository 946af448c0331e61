"""The model of distributed steps and its simulation; nothing here measures or starts a process."""

import json
import math
from types import SimpleNamespace

import pytest


@pytest.fixture
def model(suite):
    return suite.import_module("scaling_model")


@pytest.fixture
def small(model):
    """Two layers of 1 and 3 FLOPs per sample, with 1,000 and 2,000 parameters, and their step."""
    layers = [model.Layer("first", 1, (900,), (100,)), model.Layer("last", 3, (2000,), ())]
    compute, network = model.Compute(0.5, 100.0), model.Network("a wire", 0.25, 1000.0)

    def step(pieces, flops=600, ranks=2, network=network, **how):
        return model.simulate(layers, pieces, compute, flops, network, ranks, **how)

    def job(**changes):
        settings = {"flops": 600.0, "batch": 16, "network": network, **changes}
        return model.Job(layers, model.buckets(layers), compute, **settings)

    return SimpleNamespace(layers=layers, compute=compute, network=network, step=step, job=job)


def test_compute_network_and_buckets(model):
    compute = model.Compute.calibrated((100.0, 200.0), (3.0, 5.0))
    assert (compute.overhead, compute.rate, compute.seconds(400.0)) == (1.0, 50.0, 9.0)
    network = model.Network.calibrated("a wire", (1000, 5000), (3.0, 7.0))
    assert (network.latency, network.bandwidth) == (1.0, 1000.0)
    assert [model.exchange(size, 2, network) for size in (1000, 5000)] == [3.0, 7.0]
    for amounts, seconds in (((2.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (2.0, 1.0))):
        with pytest.raises(ValueError, match="idle machine"):
            model.Compute.calibrated(amounts, seconds)
    assert model.Compute.calibrated((1.0, 2.0), (1.0, 3.0)).overhead == 0  # never negative
    sizes = [((10,), (1,)), ((5, 4), (2,)), ((7,), ())]
    layers = [model.Layer(str(i), 1, *own) for i, own in enumerate(sizes)]
    found = model.buckets(layers, least=40)  # 7 + 4, then 5 + 10, and 2 + 1 that are left
    assert [(b.size, b.last) for b in found] == [(44, 1), (60, 0), (12, 0)]
    for least in (1, 20, 60, 10**6):
        assert sum(b.size for b in model.buckets(layers, least)) == 4 * 29
    assert model.buckets([model.Layer("a", 1, (), ())]) == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_an_exchange_takes_the_time_of_its_formula(model, ranks):
    network, size = model.Network("a wire", 3e-6, 2e9), 1_000_000
    sent = 2 * (ranks - 1) / ranks * size / 2e9
    ring = sent + 2 * (ranks - 1) * 3e-6
    assert model.exchange(size, ranks, network) == pytest.approx(ring)
    if ranks == 3:  # what is above a power of two sends all first, and receives the sum last
        assert model.halving(8.0, 5) == [8, 4, 2, 2, 4, 8]
    else:
        halving = sent + 2 * math.log2(ranks) * 3e-6
        assert model.exchange(size, ranks, network, "halving") == pytest.approx(halving)
    assert model.meeting(ranks, network) == pytest.approx(3e-6 * math.ceil(math.log2(ranks)))


def test_steps_of_two_ranks_by_hand(model, small):
    """Meet in 0.25 s, 6 s of passes, two rounds of 6,000 bytes: 2 (0.25 + 6) = 12.5 s, 0.5 s.

    With two buckets, the last layer's backward ends at 0.25 + 2 + 3 s: its 8,000 bytes take 8.5 s,
    to 13.75 s. Then come the 4,000 bytes of the first layer, which take 4.5 s.
    """
    step = small.step([model.Bucket(12_000, 0)])
    assert (step.computed, step.exchanged, step.seconds) == pytest.approx((6.25, 18.75, 19.25))
    pieces = model.buckets(small.layers, least=3700)
    assert [(b.size, b.last) for b in pieces] == [(8000, 1), (4000, 0)]
    assert small.step(pieces).exchanged == pytest.approx(18.25)
    assert small.step(pieces, overlap=False).exchanged == pytest.approx(6.25 + 13.0)
    alone = small.step(pieces, ranks=1)
    assert alone.seconds == pytest.approx(small.compute.seconds(600))
    assert alone.exchanged == alone.computed


def test_a_perfect_network_halves_what_can_be_split(model, small):
    """Without latency and with endless bandwidth, only the overhead is left of the batch."""
    perfect = model.Network("perfect", 0.0, math.inf)
    strong, weak = (small.job(network=perfect, scaling=kind) for kind in ("strong", "weak"))
    for ranks in (1, 2, 4, 16):
        assert strong.step(ranks).seconds == pytest.approx(0.5 + 600 * 16 / ranks / 100)
    assert model.fastest(strong) == 16
    assert model.stops_paying(weak, 300) == 300
    assert weak.efficiency(300) == pytest.approx(1)
    assert [strong.samples(r) for r in (1, 2, 3, 16, 1000)] == [16, 8, 6, 1, 1]
    assert (strong.limit(1000), weak.limit(1000)) == (16, 1000)
    assert [model.counts(most) for most in (1, 8, 10)] == [[1], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_where_it_stops_paying_the_efficiency_crosses_the_line(model, small, scaling):
    found = small.job(scaling=scaling, overlap=False)
    last = model.stops_paying(found)
    assert found.efficiency(last) >= model.PAYS
    assert last == found.limit(1000) or found.efficiency(last + 1) < model.PAYS
    best = model.fastest(found)
    assert all(found.speedup(best) >= found.speedup(r) for r in model.counts(found.limit(1000)))


def test_settings_pass_their_share_of_the_batch(suite):
    scaling = suite.import_module("scaling")
    batches = {s: scaling.batch_of(s, "W4") for job in scaling.JOBS.values() for s in job}
    assert batches.pop("half") == batches.pop("apart") == 8
    assert (batches.pop("eighth"), batches.pop("weak")) == (2, 32)
    assert set(batches.values()) == {16}


CUT = """
import json, sys
from frameworks.ours import Side
from phitodeep.distributed.exchange import BUCKET, buckets
models = [Side(workload, "").model for workload in sys.argv[1:]]
found = [buckets(model.optimizer._pack(model.layers)) for model in models]
print(json.dumps([BUCKET, [[(b.piece.stop - b.piece.start) * 4 for b in each] for each in found]]))
"""


def test_the_model_knows_the_layers_and_buckets_of_phitodeep(suite, model):
    pytest.importorskip("mpi4py")
    scaling, workloads = (suite.import_module(m) for m in ("scaling", "workloads"))
    names = ("W1", "W4", "W6")
    least, sizes = json.loads(suite.import_module("processes").fresh(CUT, {}, names))
    assert least == model.BUCKET
    for workload, cut in zip(names, sizes, strict=True):
        found = json.loads(json.dumps(scaling.described(workload)))
        counts = [n for *_, decayed, plain in found["layers"] for n in (*decayed, *plain)]
        assert sum(counts) == sum(a.size for a in workloads.weights(workload).values())
        assert found["batch"] == workloads.BATCH[workload]
        pieces = model.buckets([model.Layer(*each) for each in found["layers"]])
        assert [b.size for b in pieces] == cut
