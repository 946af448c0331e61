"""A model of a training step on several processes, and its simulation.

The model has two halves, and two measurements calibrate each of them:

    compute   seconds = overhead + FLOPs / rate     a whole and half a batch on one process
    network   seconds = latency + bytes / bandwidth  a small and a large Allreduce on two processes

The overhead is all that does not depend on the batch: calls of Python and the optimizer's step. The
forward pass takes a third of the FLOPs and the backward pass the rest, divided over the layers in
proportion to their own FLOPs.

Before each step the ranks exchange a few bytes, as they must agree that there is one. Gradients are
summed in buckets, pieces of the flat gradient vector. As the backward pass goes on, buckets become
ready; the network carries one bucket at a time in rounds, and the optimizer's step follows the last
bucket. Two algorithms have their rounds here:

    ring      2 (R - 1) rounds of bytes / R        Patarasuk and Yuan 2009
    halving   2 log2 R rounds of bytes / 2, / 4 ...  Thakur, Rabenseifner and Gropp 2005, for MPICH

All ranks compute and send equally fast; no rank waits for a slow one. So one rank stands for all.

Nothing here imports MPI, and nothing measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BUCKET = 3 << 19  # bytes; a test compares it with phitodeep.distributed
SMALL, LARGE = 1 << 12, 1 << 20  # bytes of the messages that calibrate the network
ITEM = 4  # bytes of a float32
FORWARD = 1 / 3  # of a step's FLOPs: backward computes two products for each of forward
PAYS = 0.5  # a rank more pays while the efficiency is at least this


@dataclass(frozen=True)
class Layer:
    """A layer: its FLOPs of a forward pass per sample, and the sizes of its parameters."""

    name: str
    flops: float
    decayed: tuple[int, ...]  # elements of each parameter with weight decay: matrices
    plain: tuple[int, ...]  # elements of each other parameter: biases, norms


@dataclass(frozen=True)
class Compute:
    """The compute of one process: seconds = overhead + FLOPs / rate."""

    overhead: float  # seconds per step
    rate: float  # FLOP per second

    @classmethod
    def calibrated(cls, flops: tuple[float, float], seconds: tuple[float, float]) -> Compute:
        """Fit both numbers to two measured steps; the larger step must take longer."""
        rate = _slope(flops, seconds)
        return cls(max(0.0, seconds[0] - flops[0] / rate), rate)

    def seconds(self, flops: float) -> float:
        return self.overhead + flops / self.rate


@dataclass(frozen=True)
class Network:
    """A network between equal ranks: seconds of a message = latency + bytes / bandwidth."""

    name: str
    latency: float  # seconds per round
    bandwidth: float  # bytes per second, of each rank in each direction

    @classmethod
    def calibrated(
        cls, name: str, sizes: tuple[float, float], seconds: tuple[float, float]
    ) -> Network:
        """Fit both numbers to two measured Allreduces of two ranks, which take two rounds each."""
        bandwidth = _slope(sizes, seconds)
        return cls(name, max(0.0, seconds[0] - sizes[0] / bandwidth) / 2, bandwidth)

    def message(self, size: float) -> float:
        """Return the seconds of one message of `size` bytes."""
        return self.latency + size / self.bandwidth


ASSUMED = (
    Network("10 Gbit/s Ethernet", 30e-6, 1.25e9),
    Network("100 Gbit/s InfiniBand", 2e-6, 12.5e9),
)


def _slope(amounts: tuple[float, float], seconds: tuple[float, float]) -> float:
    """Return the amount per second between two measurements."""
    amount, took = amounts[1] - amounts[0], seconds[1] - seconds[0]
    if amount <= 0 or took <= 0:
        raise ValueError(
            f"the second measurement must be larger and take longer than the first: "
            f"{amounts} took {seconds} seconds. Measure again on an idle machine."
        )
    return amount / took


# --- the exchange ------------------------------------------------------------------------------


def ring(size: float, ranks: int) -> list[float]:
    """Return what a rank sends in each round: reduce-scatter, then allgather, of 1/R each."""
    return [size / ranks] * (2 * (ranks - 1))


def halving(size: float, ranks: int) -> list[float]:
    """Return what a rank sends in each round of recursive halving and doubling.

    If the number of ranks is no power of two, the ranks above the largest one send everything to a
    partner first, and receive the sum last.
    """
    power = ranks.bit_length() - 1
    down = [size / 2 ** (i + 1) for i in range(power)]
    extra = [size] if ranks != 1 << power else []
    return [*extra, *down, *reversed(down), *extra]


ALGORITHMS: dict[str, Callable[[float, int], list[float]]] = {"ring": ring, "halving": halving}


def exchange(size: float, ranks: int, network: Network, algorithm: str = "ring") -> float:
    """Return the seconds of an Allreduce of `size` bytes, with nothing else on the network."""
    return sum(map(network.message, ALGORITHMS[algorithm](size, ranks)))


def meeting(ranks: int, network: Network) -> float:
    """Return the seconds in which all ranks exchange a few bytes, as they do before each step."""
    return network.latency * (ranks - 1).bit_length()


# --- buckets -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """A piece of the flat gradient vector, which is ready after the backward pass of a layer."""

    size: int  # bytes
    last: int  # the place of its first layer, whose backward pass comes last


def buckets(layers: Sequence[Layer], least: int = BUCKET) -> list[Bucket]:
    """Cut the gradients into pieces of at least `least` bytes, between two parameters.

    The flat vector holds the parameters with weight decay, then the others, both in the order of
    the backward pass. What is left at its end is a piece of its own.
    """
    places = list(enumerate(layers))[::-1]
    sizes = [(n * ITEM, i) for i, layer in places for n in reversed(layer.decayed)]
    sizes += [(n * ITEM, i) for i, layer in places for n in reversed(layer.plain)]
    found: list[Bucket] = []
    size, last = 0, len(layers)
    for own, place in sizes:
        size, last = size + own, min(last, place)
        if size >= least:
            found.append(Bucket(size, last))
            size, last = 0, len(layers)
    if size:
        found.append(Bucket(size, last))
    return sorted(found, key=lambda bucket: -bucket.last)


# --- one step ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What `simulate` found, in seconds since the step began."""

    seconds: float  # the whole step
    computed: float  # when the last backward pass ended
    exchanged: float  # when the last bucket was summed; `computed` if there is none


def simulate(
    layers: Sequence[Layer],
    pieces: Sequence[Bucket],
    compute: Compute,
    flops: float,
    network: Network,
    ranks: int,
    *,
    algorithm: str = "ring",
    overlap: bool = True,
) -> Step:
    """Simulate a step of `ranks` ranks; `flops` is what each of them computes.

    Without `overlap`, buckets wait until the whole backward pass has ended.
    """
    seconds, total = flops / compute.rate, sum(layer.flops for layer in layers)
    time, ends = meeting(ranks, network) + seconds * FORWARD, {}
    for place, layer in reversed([*enumerate(layers)]):
        share = layer.flops / total if total else 1 / len(layers)
        ends[place] = time = time + seconds * (1 - FORWARD) * share
    computed, free = time, 0.0  # free: when the network has carried all buckets so far
    for piece in pieces:
        ready = ends[piece.last] if overlap else computed
        free = max(free, ready) + exchange(piece.size, ranks, network, algorithm)
    exchanged = max(computed, free)
    return Step(exchanged + compute.overhead, computed, exchanged)


# --- many ranks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A workload on one network: what changes with the number of ranks is left open.

    scaling     "strong": the ranks split a batch, each at least one sample, those above it idle
                "weak": each rank has a whole batch
    """

    layers: Sequence[Layer]
    pieces: Sequence[Bucket]
    compute: Compute
    flops: float  # of a step, per sample
    batch: int
    network: Network
    scaling: str = "strong"
    algorithm: str = "ring"
    overlap: bool = True

    def samples(self, ranks: int) -> int:
        """Return the samples of the rank that has the most."""
        return self.batch if self.scaling == "weak" else -(-self.batch // ranks)

    def step(self, ranks: int) -> Step:
        flops = self.flops * self.samples(ranks)
        how = {"algorithm": self.algorithm, "overlap": self.overlap}
        arguments = (self.layers, self.pieces, self.compute, flops, self.network, ranks)
        return simulate(*arguments, **how)

    def speedup(self, ranks: int) -> float:
        """Return the samples per second, divided by those of one rank."""
        grown = ranks if self.scaling == "weak" else 1
        return grown * self.step(1).seconds / self.step(ranks).seconds

    def efficiency(self, ranks: int) -> float:
        return self.speedup(ranks) / ranks

    def limit(self, most: int) -> int:
        """Return the largest number of ranks that all have samples, up to `most`."""
        return most if self.scaling == "weak" else min(most, self.batch)


def counts(most: int) -> list[int]:
    """Return 1, 2, 4 ... up to `most`, and `most` itself."""
    return sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | {most})


def stops_paying(job: Job, most: int = 1000, pays: float = PAYS) -> int:
    """Return the largest number of ranks, up to `most`, whose efficiency is at least `pays`.

    It is sought among the powers of two, then by bisection above the last of them that pays.
    """
    low, high = 1, job.limit(most) + 1
    for ranks in counts(job.limit(most)):
        if job.efficiency(ranks) < pays:
            high = ranks
            break
        low = ranks
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if job.efficiency(middle) >= pays else (low, middle)
    return low


def fastest(job: Job, most: int = 1000) -> int:
    """Return the number of ranks, among `counts`, with the most samples per second."""
    return max(counts(job.limit(most)), key=job.speedup)
