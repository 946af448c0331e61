"""Training in several processes on one machine or many, by MPI.

    model = phitodeep.distributed.DataParallel(model)

is all that is new in a script which `mpiexec -n 4 python train.py` runs. Requires the extra `mpi`.
See docs/distributed.md.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from phitodeep.core.checks import check_flag, check_number
from phitodeep.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from phitodeep.training.inputs import Share
from phitodeep.training.objective import Trainable
from phitodeep.training.sources import Shard

__all__ = ["DataParallel", "rank", "shard", "size"]

Model = TypeVar("Model", bound=Trainable)


def DataParallel(
    model: Model, *, shard_optimizer: bool = False, overlap: bool = True, timeout: float = 600.0,
    comm: Any = None,
) -> Model:  # fmt: skip
    """Let all processes (ranks) of the MPI job train this model together; return the model.

    Each rank runs the same script and calls `train` with the same arguments. `batch_size` is that
    of the global batch, of which each rank takes its part, so the weights are those of one process
    up to rounding. Rank 0's weights are given to all ranks when training begins. Callbacks run on
    rank 0 alone, unless their class says `every_rank = True`. Only rank 0 prints and writes files.

    shard_optimizer    True: each rank keeps and steps only its part of the optimizer's vectors;
                       not for Muon, LBFGS, and rules that do not say `elementwise = True`
    overlap            False: gradients are exchanged after the backward pass, not during it. A
                       container of your own that changes its layers' gradients after their
                       backward passes needs False
    timeout            seconds to wait for another rank, before the job is ended with an error that
                       names the ranks that are missing
    comm               an mpi4py communicator; by default that of all processes

    With one process, nothing changes. The error of one rank ends the whole job. Ranks that differ
    in code, settings, shapes of data or seeds are refused when training begins.
    """
    if not isinstance(model, Trainable):
        raise ArgumentTypeError(f"DataParallel expects a Sequential, got {model!r}.")
    check_flag(shard_optimizer, "DataParallel shard_optimizer")
    check_flag(overlap, "DataParallel overlap")
    check_number(timeout, "DataParallel timeout", above=0, below=math.inf)
    world = _world() if comm is None else comm
    if world.size == 1:
        return model
    from phitodeep.distributed.group import Group

    model._ranks = Group(model, world, shards=shard_optimizer, overlap=overlap, timeout=timeout)
    return model


def rank() -> int:
    """Return the number of this process in the MPI job, from 0."""
    return int(_world().rank)


def size() -> int:
    """Return the number of processes in the MPI job: 1 without mpiexec."""
    return int(_world().size)


def shard(data: Any, comm: Any = None) -> Any:
    """Mark data as this rank's own part: each batch that it yields is a part of the global batch.

    data    an iterable of batches, or a function that returns one, which differ from rank to rank;
            or a Hugging Face dataset, of which this rank takes `dataset.shard(size, rank)`. Then
            `batch_size` is still that of the global batch

    Arrays and np.memmap files need no shard(): of each batch, a rank reads its own rows alone. The
    ranks may have different numbers of batches; training goes on until none has any left.
    """
    world = _world() if comm is None else comm
    if hasattr(data, "with_format") and hasattr(data, "shard"):
        data = data.shard(num_shards=world.size, index=world.rank)
    elif hasattr(data, "__array__"):
        raise ArgumentError("shard() is for data that yield batches: ranks share arrays anyway.")
    return Shard(data, Share(world.rank, world.size))


def _world() -> Any:
    """Return the communicator of all processes."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: there is no MPI library
        raise MissingExtraError.of("mpi4py", "mpi", "training in several processes") from error
    return MPI.COMM_WORLD
