"""Draw docs/pictures/step.svg: one training step of a small network, there and back.

    python tools/make_step_picture.py [file.svg]

The seed is one of those for which one sample has half of the ringed sum.
"""

import sys
from pathlib import Path

from phitodeep import Sequential, SequentialBuilder
from phitodeep.data import make_moons
from phitodeep.explorer.picture import picture

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "pictures" / "step.svg"


def network() -> Sequential:
    """A network with layers of 2, 4, 4 and 1 units."""
    return (
        SequentialBuilder(2, seed=52)
        .dense(4)
        .tanh()
        .dense(4)
        .tanh()
        .dense(1)
        .sigmoid()
        .loss("binary_cross_entropy")
        .optimizer("sgd")
        .alpha(0.5)
        .build()
    )


def main(target: Path) -> None:
    target.write_text(picture(network().trace(*make_moons(n=8, noise=0.1, seed=0))), "utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
