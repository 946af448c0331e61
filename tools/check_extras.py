"""Install each extra alone in a clean environment, and test that its feature works there.

First, phitodeep is installed without any extra: it must bring exactly its declared requirements,
train, predict and save a model, and each feature must fail with an error that names its extra.
The pages of the docs that need an extra run, too. Last, all extras are installed together, with the
libraries that tests compare phitodeep with: each feature must still work, and the tests that are
skipped elsewhere run. All this is about the installed wheel, not the checkout.

    python tools/check_extras.py             all extras
    python tools/check_extras.py plot fast   only these
    python tools/check_extras.py --together  none, then all in one environment
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
OURS = {"test", "bench", "docs", "browser", "dev"}  # for work on phitodeep itself
HEAVY = {"torch"}  # features that the extra "test" leaves out: their tests run here
PEERS = ("onnxruntime", "onnxscript", "pandas", "skl2onnx", "transformers")  # to compare with

SETUP = """
import numpy as np
import phitodeep
from phitodeep import Dense, Sequential
X = np.random.default_rng(0).standard_normal((60, 3)).astype("float32")
y = (X.sum(axis=1) > 0).astype("int64")
def model(*layers, **settings):
    layers = layers or (Dense(3, 4), Dense(4, 2))
    settings = {"loss_class": "softmax_cross_entropy", "seed": 0, **settings}
    return Sequential(*layers, **settings)
"""


FOLDERS = ["tests", "tools", "website", "course", "references", "docs", "examples", "benchmarks"]


class Feature(NamedTuple):
    """What an extra is for.

    needs    code that raises MissingExtraError without the extra
    works    more code, which runs after it with the extra
    page     of the docs, with blocks that need the extra
    """

    needs: str
    works: str = ""
    page: str = ""


FEATURES = {
    "data": Feature(
        """
try:
    import datasets
except ImportError:
    pass
else:  # a stand-in for the download
    from PIL import Image
    pictures = [Image.new("L", (28, 28), i) for i in range(8)]
    rows = datasets.Dataset.from_dict({"image": pictures, "label": [*range(8)]})
    datasets.load_dataset = lambda name, split: rows
images, labels, *_ = phitodeep.data.load_mnist("full")
""",
        """
assert images.shape == (8, 28, 28) and labels.tolist() == [*range(8)]
np.testing.assert_allclose(images[:, 0, 0], labels / 255, rtol=1e-6)
rows = datasets.Dataset.from_dict({"x": X, "y": y})
assert len(model().train(rows, columns=("x", "y"), epochs=2, batch_size=20, verbose=0)) == 2
""",
    ),
    "plot": Feature(
        """
from pathlib import Path
model().train(X, y, epochs=2, verbose=0).plot("history.png")
""",
        'assert Path("history.png").read_bytes().startswith(b"\\x89PNG")',
    ),
    "lbfgs": Feature(
        """
losses = model(optimizer="lbfgs").train(X, y, epochs=3, verbose=0)
""",
        "assert losses[-1][0] < losses[0][0]",
    ),
    "fast": Feature(
        """
phitodeep.kernels.use("numba")
""",
        """
net = model(phitodeep.Conv1D(3, 2), phitodeep.Flatten(), Dense(2))
net.train(X[:, :, None], y, epochs=2, verbose=0)
compiled = net.predict(X[:, :, None])
assert phitodeep.kernels.use("numpy") == "numpy"
np.testing.assert_allclose(net.predict(X[:, :, None]), compiled, rtol=1e-4, atol=1e-6)
""",
    ),
    "tensorboard": Feature(
        """
from pathlib import Path
from phitodeep.training.logs import TensorBoard
model().train(X, y, epochs=2, callbacks=[TensorBoard("runs", histograms=1)], verbose=0)
""",
        """
(file,) = Path("runs").iterdir()
assert b"loss/train" in file.read_bytes()
""",
    ),
    "torch": Feature(
        """
net = model()
net.build((3,))
module = phitodeep.io.to_torch(net)
""",
        """
import torch
found = module(torch.from_numpy(X)).detach().numpy()
np.testing.assert_allclose(found, net.predict(X), rtol=1e-5, atol=1e-6)
again = phitodeep.io.from_torch(module, (3,))
np.testing.assert_allclose(found, again.predict(X), rtol=1e-5, atol=1e-6)
""",
        "docs/pytorch.md",
    ),
    "onnx": Feature(
        """
net = model()
net.build((3,))
net.export_onnx("net.onnx")
""",
        """
import onnx
from onnx.reference import ReferenceEvaluator
(Y,) = ReferenceEvaluator(onnx.load("net.onnx")).run(None, {"X": X})
np.testing.assert_allclose(Y, net.predict(X), rtol=1e-5, atol=1e-6)
""",
        "docs/onnx.md",
    ),
    "sklearn": Feature(
        """
from phitodeep.sklearn import PhitoClassifier
""",
        """
est = PhitoClassifier(early_stopping=True, random_state=0).fit(X, y)
assert est.score(X, y) > 0.9 and est.predict_proba(X).shape == (60, 2)
""",
        "docs/sklearn.md",
    ),
    "mpi": Feature(
        "from phitodeep.distributed import DataParallel\nnet = DataParallel(model())",
        """
assert phitodeep.distributed.size() == 1
assert len(net.train(X, y, epochs=2, verbose=0)) == 2
""",
    ),
    "hub": Feature(
        """
from pathlib import Path
from phitodeep.text import HubTokenizer
words = '{"type": "WordLevel", "vocab": {"to": 0, "be": 1}, "unk_token": "to"}'
split = '{"type": "Whitespace"}'
tokenizer = HubTokenizer(f'{{"version": "1.0", "pre_tokenizer": {split}, "model": {words}}}')
""",
        """
from huggingface_hub import constants
from phitodeep.models import from_pretrained, llama
net = llama(2, 16, layers=1, heads=2, kv_heads=1, dim=8, hidden=8).seed(0).build()
net.tokenizer = tokenizer
net.save("net.safetensors")
again = phitodeep.load("net.safetensors")
assert again.generate("to be", 3, seed=1) == net.generate("to be", 3, seed=1)
constants.HF_HUB_OFFLINE = True
try:
    from_pretrained("no/model")
except phitodeep.errors.DataError as error:
    assert "cannot get no/model from the hub" in str(error)
else:
    raise AssertionError("a model without files was read")
""",
        "docs/huggingface.md",
    ),
}

BASE = (
    SETUP
    + """
net = model()
assert len(net.train(X, y, epochs=2, verbose=0)) == 2
net.save("net.safetensors")
again = phitodeep.load("net.safetensors")
assert (again.predict(X) == net.predict(X)).all()
"""
)
REFUSED = (
    SETUP
    + """
from phitodeep.errors import MissingExtraError
try:
    {code}
except MissingExtraError as error:
    assert "phitodeep[{extra}]" in str(error), error
else:
    raise AssertionError("it works without the extra")
"""
)
INSTALLED = """
import re
from importlib.metadata import distributions, requires
def names(requirements):
    found = [r for r in requirements or () if "extra ==" not in r]
    return {re.match(r"[\\w.-]+", r)[0].lower().replace("_", "-") for r in found}
print(*sorted(names(requires("phitodeep"))), sep=",")
print(*sorted(d.name.lower().replace("_", "-") for d in distributions()), sep=",")
reached, todo = set(), {"phitodeep"}
while todo:
    reached |= todo
    todo = set().union(*(names(requires(name)) for name in todo)) - reached
    todo &= {d.name.lower().replace("_", "-") for d in distributions()}
print(*sorted(reached), sep=",")
"""


class Failure(Exception):
    """A command that failed, with what it printed."""


def run(*command: str, cwd: Path | None = None, **variables: str) -> str:
    env = os.environ | variables
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"{' '.join(command[:6])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def refused(extra: str) -> str:
    """Return code that requires the feature's code to raise an error that names the extra."""
    code = FEATURES[extra].needs.strip().replace("\n", "\n    ")
    return REFUSED.replace("{code}", code).replace("{extra}", extra)


def works(extra: str) -> str:
    """Return code that requires the feature to work."""
    return SETUP + FEATURES[extra].needs + FEATURES[extra].works


def features() -> list[str]:
    """Return the extras of pyproject.toml that are features."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [extra for extra in project["optional-dependencies"] if extra not in OURS]


def problems(extras: Iterable[str]) -> list[str]:
    """Return what is wrong with the table of features."""
    extras = set(extras)
    return [
        *(f"the extra {extra} has no check" for extra in sorted(extras - FEATURES.keys())),
        *(f"{extra} is not an extra" for extra in sorted(FEATURES.keys() - extras)),
    ]


def pins() -> list[str]:
    """Return the versions that pyproject.toml fixes: on some machines, no other has a CPU build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [r for r in project["optional-dependencies"]["bench"] if "==" in r]


def wanted_by_tests() -> list[str]:
    """Return what the tests need, apart from features."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["test"]
    return [r for r in wanted if not r.startswith(("phitodeep[", "pytest-cov"))]


def skipped_by_make_test() -> list[str]:
    """Return the files with tests that need what the extra "test" leaves out."""
    missing = {*HEAVY, *PEERS} - {"pandas"}  # which datasets brings
    needs = re.compile(rf'importorskip\("({"|".join(missing)})"')
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [file for file in files if needs.search(file.read_text(encoding="utf-8"))]
    return [file.relative_to(ROOT).as_posix() for file in found]


def blocks_of(page: str) -> str:
    """Return the argument of pytest that runs the blocks of a page."""
    return f"tests/test_docs.py::test_blocks_run_and_print_what_the_page_shows[{page}]"


class Environment:
    """A clean virtual environment with phitodeep and perhaps extras, "one" or "one,two"."""

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self.folder = folder / (extra.replace(",", "-") or "base")
        venv.create(self.folder, symlinks=sys.platform != "win32")
        self.python = str(next(self.folder.glob("[bS]*/python*")))  # bin or Scripts
        constraint = folder / "constraints.txt"
        constraint.write_text("\n".join(pins()), encoding="utf-8")
        self.pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet")
        self.pip += ("--disable-pip-version-check", "--constraint", str(constraint))
        run(*self.pip, f"{wheel}[{extra}]" if extra else str(wheel))

    def run(self, code: str) -> str:
        """Run code in an empty folder, with warnings as errors."""
        with tempfile.TemporaryDirectory() as empty:
            return run(self.python, "-I", "-W", "error", "-c", code, cwd=Path(empty))

    def run_tests(self, tests: list[str], libraries: Iterable[str] = ()) -> None:
        """Install libraries, and run tests from a copy of the checkout without the package."""
        run(*self.pip, *wanted_by_tests(), *libraries)
        with tempfile.TemporaryDirectory() as empty:
            for name in FOLDERS:
                shutil.copytree(ROOT / name, Path(empty) / name)
            for name in ("pyproject.toml", "README.md"):
                shutil.copy(ROOT / name, empty)
            command = (self.python, "-m", "pytest", "-rs", "--numprocesses=2", *tests)
            # Compiling would take longer than the tests; others compare both forms of kernels.
            printed = run(*command, cwd=Path(empty), PHITODEEP_KERNELS="numpy")
        if "passed" not in printed or "could not import" in printed:
            raise Failure(f"tests were skipped:\n{printed}")

    def size(self) -> float:
        """Return its size in MB."""
        return sum(p.stat().st_size for p in self.folder.rglob("*") if not p.is_symlink()) / 1e6


def check_base(base: Environment, extras: list[str]) -> None:
    declared, installed, reached = (
        set(line.split(",")) for line in base.run(INSTALLED).splitlines()
    )
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {requirement.split(">")[0] for requirement in wanted["dependencies"]}
    if declared != names or not names <= installed or installed != reached:
        raise Failure(
            f"declared {sorted(names)}, required by the wheel {sorted(declared)}, "
            f"installed {sorted(installed)}"
        )
    base.run(BASE)
    for extra in extras:
        base.run(refused(extra))


def main(chosen: list[str]) -> int:
    extras = features()
    together = chosen == ["--together"]
    chosen = [] if together else chosen
    if wrong := problems(extras):
        print("\n".join(wrong))
        return 1
    if unknown := set(chosen) - set(extras):
        print(f"no such extra: {', '.join(sorted(unknown))}; there are {', '.join(extras)}")
        return 1
    extras = chosen or extras
    table = [("extra", "result", "seconds", "MB")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TMPDIR"] = name  # for pip, which leaves files if it is interrupted
        print("building the wheel ...", flush=True)
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "wheel", "--no-deps", "--wheel-dir", name, str(ROOT))
        (wheel,) = folder.glob("*.whl")
        alone = [] if together else extras
        rounds = ["", *alone, *([",".join(extras)] if len(extras) > 1 else [])]
        for i, extra in enumerate(rounds):
            print(f"[{i + 1}/{len(rounds)}] {extra or 'no extra'} ...", flush=True)
            began, result, megabytes = time.perf_counter(), "works", ""
            try:
                environment = Environment(folder, wheel, extra)
                megabytes = f"{environment.size():.0f}"
                if not extra:
                    check_base(environment, extras)
                elif extra in FEATURES:
                    environment.run(works(extra))
                    if page := FEATURES[extra].page:
                        first, _ = (ROOT / page).read_text(encoding="utf-8").split("\n", 1)
                        peers = [name for name in PEERS if name in first.split()]
                        environment.run_tests([blocks_of(page)], peers)
                else:
                    for one in extras:
                        environment.run(works(one))
                    environment.run_tests(skipped_by_make_test(), PEERS)
            except Failure as failure:
                print(failure)
                result = "fails"
            for old in folder.glob("*/pyvenv.cfg"):  # torch with CUDA fills a small disk
                shutil.rmtree(old.parent)
            seconds = f"{time.perf_counter() - began:.0f}"
            name = "(all)" if "," in extra else extra or "(none)"
            table.append((name, result, seconds, megabytes))
    print()
    for row in table:
        print("{:<14}{:<8}{:>8}{:>7}".format(*row))
    return int(any(row[1] == "fails" for row in table))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except Failure as failure:
        sys.exit(str(failure))
