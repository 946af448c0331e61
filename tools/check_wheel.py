"""Build the sdist and the wheel, and test the wheel in a new virtual environment.

The wheel, which is built from the sdist, must contain the data, the licences, py.typed and every
file of the explorer, but no tests. Installed with only its own dependencies, it must be able to
train, and `phitodeep verify` must find nothing wrong.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WANTED = {"phitodeep/data/mnist.xz", "phitodeep/data/LICENSES.md", "phitodeep/py.typed"}
STORED = ("layers", "catalogue", "losses", "optimizers")
WANTED |= {f"phitodeep/testing/stored/{name}.npz" for name in STORED}
ASSETS = ROOT / "phitodeep" / "explorer" / "assets"
WANTED |= {path.relative_to(ROOT).as_posix() for path in ASSETS.rglob("*") if path.is_file()}
LARGEST = 3_300_000  # bytes; the data take 2.0 million, the stored numbers 0.5, the code 0.7
TRY = """
import numpy as np, phitodeep
from phitodeep.data import load_mnist
X, y, X_test, y_test = load_mnist()
model = phitodeep.SequentialBuilder(28, 28, seed=0).flatten().dense(10).softmax()
model = model.loss("categorical_crossentropy").optimizer("adam").batch(64).epochs(1).build()
history = model.train(X[:2000], y[:2000], X_test, y_test, metrics=["accuracy"], verbose=0)
assert history.metrics["test_accuracy"][-1] > 0.7, history.metrics
print(f"wheel {phitodeep.__version__} installs and trains")
"""


def run(*command: str, cwd: str | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    if done.stdout and command[1:2] == ("-c",):
        print(done.stdout.strip())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--outdir", folder, str(ROOT))
        wheel = next(Path(folder).glob("*.whl"))
        names = set(zipfile.ZipFile(wheel).namelist())
        if missing := WANTED - names:
            sys.exit(f"{wheel.name} lacks {sorted(missing)}")
        if not any(name.endswith("licenses/LICENSE") for name in names):
            sys.exit(f"{wheel.name} lacks the licence")
        if stray := [n for n in names if not n.startswith("phitodeep")]:
            sys.exit(f"{wheel.name} contains unexpected files: {stray}")
        size = wheel.stat().st_size
        if size > LARGEST:
            sys.exit(f"{wheel.name} has {size:,} bytes, at most {LARGEST:,} are allowed")
        home = Path(folder) / "venv"
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", str(wheel))
        run(python, "-c", TRY, cwd=folder)
        run(str(home / "bin" / "phitodeep"), "verify", cwd=folder)


if __name__ == "__main__":
    main()
