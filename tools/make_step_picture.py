"""Draw docs/pictures/step.svg and step_still.svg: one training step, there and back.

    python tools/make_step_picture.py [folder]

The seed is one of those for which one sample has half of the ringed sum.
"""

import sys
from pathlib import Path

from phitodeep import Sequential, SequentialBuilder
from phitodeep.data import make_moons
from phitodeep.inspect.explorer.picture import picture
from phitodeep.inspect.trace import Trace

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"


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


def step() -> Trace:
    """A step on eight points."""
    return network().trace(*make_moons(n=8, noise=0.1, seed=0))


def main(folder: Path) -> None:
    trace = step()
    for name, moving in (("step.svg", True), ("step_still.svg", False)):
        (folder / name).write_text(picture(trace, moving=moving), "utf-8")
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
