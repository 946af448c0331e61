"""Build the sdist and the wheel in dist/, and check both.

The sdist must hold every file of the checkout that git does not ignore, except .ci, and build the
same wheel as the checkout, byte for byte. The wheel must hold the package and its licences, and
nothing else. Installed in a new virtual environment with only its own dependencies, it must be
able to train, and `phitodeep verify` must find nothing wrong.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LICENCES = ("LICENSE", "NOTICE", "phitodeep/data/LICENSES.md")
WANTED = {"phitodeep/data/mnist.xz", "phitodeep/py.typed", *LICENCES[2:]}
LARGEST = 3_300_000  # bytes; the data take 1.9 million, the stored numbers 0.4, the code 0.9
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


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path, *options: str) -> Path:
    """Build with the installed hatchling, and return the wheel."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder))
    run(*command, *options, str(ROOT))
    return next(folder.glob("*.whl"))


def checkout() -> set[str]:
    """Return the files that the sdist must hold."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = (name for name in run(*command, cwd=ROOT).split("\0") if (ROOT / name).is_file())
    return {name for name in names if not name.startswith(".ci/")}


def members(sdist: Path) -> set[str]:
    """Return the files of the sdist, without its folder and the metadata that the build adds."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    return names - {"PKG-INFO"}


def same(name: str, found: set[str], wanted: set[str]) -> None:
    """Exit with an error unless an archive has the wanted files."""
    if found != wanted:
        lacks, strange = sorted(wanted - found), sorted(found - wanted)
        sys.exit(f"{name} lacks {lacks}, and has {strange}, which it should not have")


def check_files(sdist: Path, wheel: Path) -> None:
    """Compare both archives with the checkout; a copy without git is taken as it is."""
    source = members(sdist)
    if (ROOT / ".git").exists():
        same(sdist.name, source, checkout())
    package = {name for name in source if name.startswith("phitodeep/")} | WANTED
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    metadata = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    metadata |= {f"{info}/licenses/{name}" for name in LICENCES}
    same(wheel.name, set(zipfile.ZipFile(wheel).namelist()), package | metadata)
    if (size := wheel.stat().st_size) > LARGEST:
        sys.exit(f"{wheel.name} has {size:,} bytes, at most {LARGEST:,} are allowed")


def check_installed(wheel: Path, folder: Path) -> None:
    """Install the wheel in a new environment, train, and verify."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", str(wheel))
    print(run(python, "-c", TRY, cwd=folder).strip())
    run(str(folder / "venv" / "bin" / "phitodeep"), "verify", cwd=folder)


def main() -> None:
    dist = ROOT / "dist"
    for old in dist.glob("phitodeep-*"):
        old.unlink()
    wheel = built(dist)  # the sdist, and from it the wheel
    sdist = next(dist.glob("*.tar.gz"))
    check_files(sdist, wheel)
    with tempfile.TemporaryDirectory() as name:
        direct = built(Path(name), "--wheel")
        if direct.read_bytes() != wheel.read_bytes():
            sys.exit(f"{sdist.name} builds another wheel than the checkout")
        check_installed(wheel, Path(name))


if __name__ == "__main__":
    main()
