"""Put the NumPy wheel that Pyodide loads into a folder, for the tests of the playground.

    python tools/fetch_numpy_wheel.py node_modules/pyodide .venv/pyodide

Pyodide's npm package has no packages of Python. The wheel of open-webui carries the one of NumPy;
it must have the hash that Pyodide's lock file names. The 106 MB are downloaded once: a folder that
has the right wheel is left as it is.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CARRIER = "open-webui==0.12.4"
INSIDE = "open_webui/frontend/pyodide/"


def fetch(pyodide: Path, folder: Path) -> Path:
    """Return the wheel's path in the folder; download it if it is not there."""
    numpy = json.loads((pyodide / "pyodide-lock.json").read_text("utf-8"))["packages"]["numpy"]
    wheel = folder / numpy["file_name"]
    if wheel.exists() and _hash(wheel.read_bytes()) == numpy["sha256"]:
        return wheel
    content = _downloaded(numpy["file_name"])
    if _hash(content) != numpy["sha256"]:
        raise SystemExit(f"{CARRIER} has another {wheel.name} than Pyodide's lock file names.")
    folder.mkdir(parents=True, exist_ok=True)
    wheel.write_bytes(content)
    return wheel


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _downloaded(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
        pip += ["--ignore-requires-python"]  # it is only unpacked: open-webui ends at Python 3.12
        subprocess.run([*pip, "--dest", folder, CARRIER], check=True)
        carrier = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(carrier) as archive:
            return archive.read(INSIDE + name)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]), Path(sys.argv[2])))
