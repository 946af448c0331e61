"""Train a 784-128-64-10 network on the digits that come with phitodeep: `make demo`.

    python examples/mnist.py [--epochs 15] [--show 6]

The network, its training and the drawings are in phitodeep/cli/digits.py; `phitodeep demo` runs
them too.
"""

import argparse

from phitodeep.cli.digits import train_digits

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--show", type=int, default=6, help="how many mistakes to draw")
    train_digits(**vars(parser.parse_args()))
