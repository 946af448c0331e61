"""Train the network of examples/mnist.py in several processes, with the same result as in one.

    mpiexec -n 2 python examples/distributed_mnist.py [--epochs 3] [--shard]
    python examples/distributed_mnist.py

Needs `pip install "phitodeep[mpi]"`. Each process (rank) loads the digits and trains on its part of
every batch. What is printed is printed once, by rank 0.
"""

import argparse

from phitodeep.cli.digits import build
from phitodeep.data import load_mnist
from phitodeep.distributed import DataParallel, rank, size


def main(epochs: int = 3, shard: bool = False) -> float:
    """Train for `epochs`; return the test accuracy. `shard` divides Adam's memory by the ranks."""
    X_train, y_train, X_test, y_test = load_mnist()
    model = DataParallel(build(epochs), shard_optimizer=shard)  # the only line that is new
    model.train(X_train, y_train, X_test, y_test)
    accuracy = model.evaluate(X_test, y_test)["accuracy"]
    if rank() == 0:
        print(f"ranks: {size()}, test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--shard", action="store_true", help="divide the optimizer's memory")
    main(**vars(parser.parse_args()))
