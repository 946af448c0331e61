"""docs/design.md agrees with the code: tree, import paths, names. So does the page on 0.2.3."""

import importlib
import re
from pathlib import Path

import pytest

import phitodeep
from phitodeep import Adam, Dense, MeanSquaredError, Optimizer, Sequential, layers, loss
from phitodeep.layers.initialization import Initializer, InitType
from phitodeep.optimization.packing import Packing
from phitodeep.optimization.schedules import InverseTimeDecay
from phitodeep.training.history import History
from phitodeep.training.loop import Training
from tests.test_architecture import ROOMS
from tests.test_import import can_be_imported

ROOT = Path(__file__).parent.parent
PACKAGE = Path(phitodeep.__file__).parent
TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")

TABLE = TEXT.split("| room in ")[1].split("\n\n")[0]
PLACES = re.findall(r"^\| `([\w/.]+)` \|", TABLE, re.MULTILINE)
CODE = re.findall(r"`([^`\n]+)`", TEXT)
PATHS = sorted({c for c in CODE if re.fullmatch(r"(phitodeep|tests|docs|examples|\w+)/[\w/.]*", c)})
DOTTED = sorted({c for c in CODE if re.fullmatch(r"phitodeep(\.\w+)+", c)})
OWNERS = {
    "Layer": Dense(3, 2),
    "Loss": MeanSquaredError(),
    "Optimizer": Adam(),
    **dict.fromkeys(("Model", "Sequential"), Sequential(Dense(3, 2))),
    "SequentialBuilder": phitodeep.SequentialBuilder(),
    "Call": phitodeep.Call(),
    "History": History(),
    "Packing": Packing,
    "Training": Training,
    "Adam": Adam,
    **{name: getattr(layers, name) for name in layers.__all__ if name != "Layer"},
    **{name: getattr(loss, name) for name in loss.__all__ if name != "Loss"},
}
NAMES = sorted(set(re.findall(rf"`({'|'.join(OWNERS)})\.(\w+)", TEXT)))


def test_the_table_has_the_rooms_in_the_order_that_the_imports_are_held_to():
    assert len(PLACES) > 20
    assert len(PATHS) > 10
    assert len(DOTTED) > 15
    assert len(NAMES) > 35
    assert [path.removesuffix("/").removesuffix(".py") for path in PLACES] == ROOMS
    for path in PLACES:
        assert path.endswith("/") == (PACKAGE / path).is_dir()
        assert (PACKAGE / path).exists()


def test_files_that_the_page_names_exist():
    for path in PATHS:
        assert (ROOT / path).exists() or (PACKAGE / path).exists(), path


def test_import_paths_that_stay_can_be_imported():
    for path in DOTTED:
        assert can_be_imported(path), path


def test_methods_and_attributes_that_the_page_names_exist():
    for owner, name in NAMES:
        assert hasattr(OWNERS[owner], name), f"{owner}.{name}"


class Named(layers.Layer):
    """A layer as one writes it for 0.2.3."""

    def __init__(self):
        super().__init__("named")


class Unnamed(loss.Loss):
    """A loss as one writes it for 0.2.3."""

    def __init__(self):
        super().__init__("unnamed")


OLD = {  # what docs/coming-from/phitodeep-0.2.3.md says of names and classes of 0.2.3
    "optimizer_type": (lambda: OWNERS["Sequential"].optimizer_type, AttributeError),
    "Adam(a, b1, b2, eps)": (lambda: Adam(0.01, 0.9, 0.999, 1e-8), TypeError),
    "epsilon=": (lambda: Adam(epsilon=1e-8), TypeError),
    "alpha_activation=": (lambda: layers.ELU(alpha_activation=1.0), TypeError),
    "decay_rate=": (lambda: InverseTimeDecay(0.1, decay_rate=0.5), TypeError),
    "schedulers": (lambda: imported("optimization.schedulers"), ModuleNotFoundError),
    "train_loop": (lambda: imported("optimization.training").train_loop, AttributeError),
    "own layer": (Named, TypeError),
    "own loss": (Unnamed, TypeError),
    "own optimizer": (lambda: Optimizer("own"), TypeError),
    "own initializer": (lambda: Initializer("own", InitType.NORMAL), TypeError),
}


def imported(name):
    return importlib.import_module(f"phitodeep.{name}")


@pytest.mark.parametrize("name", OLD)
def test_old_names_raise_what_the_page_on_moving_says(name):
    use, error = OLD[name]
    with pytest.raises(error):
        use()
