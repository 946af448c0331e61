"""What the playground loads: this library's wheel, the worker's Python, and a recorded run.

The recorded run is made by the same `Session` that runs in the browser, so that the page is
interactive before Pyodide has loaded, and the state it shows is the one that turns live.
"""

from __future__ import annotations

import io
import json
import lzma
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.data import load_mnist
from website.facts import read
from website.pages import ROOT, Page
from website.playground.session.formula import derived
from website.playground.session.session import Session

FOLDER = "assets/playground"
HERE = Path(__file__).parent
VERSION = "314.0.3"  # of Pyodide; package.json has the same one for the tests
CDN = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
SIZES = {"Python": 13.5, "NumPy": 2.9}  # MB of Pyodide's files, as they are stored
WITHOUT = (".xz", "phitodeep/testing/stored/")  # data that the playground does not read
STEPS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
OPEN = 24  # the step that the page shows first


def assets() -> list[Page]:
    """Everything under assets/playground/."""
    wheel, session = _wheel(), _session()
    config = {
        "pyodide": {"version": VERSION, "base": CDN},
        "wheel": wheel.path.rpartition("/")[2],
        "stages": [
            {"name": "Python", "MB": SIZES["Python"]},
            {"name": "NumPy", "MB": SIZES["NumPy"]},
            {
                "name": "phitodeep",
                "MB": round((len(wheel.content) + len(session.content)) / 1e6, 1),
            },
        ],
        "presets": presets(),
    }
    return [
        wheel,
        session,
        Page(f"{FOLDER}/config.json", json.dumps(config)),
        *_recorded(presets()["moons"]),
        Page(f"{FOLDER}/formulas.json", json.dumps(formulas())),
    ]


def formulas() -> dict[str, Any]:
    """The examples of the page of formulas, with what is derived from them."""
    return {
        name: row | {"result": derived(**row, name=name)} for name, row in read("formulas").items()
    }


def presets() -> dict[str, str]:
    """A program for each data set, by name."""
    return {path.stem: path.read_text("utf-8") for path in sorted(HERE.glob("programs/*.py"))}


def _wheel() -> Page:
    """This library's wheel without its archives of data, which are two thirds of it."""
    from hatchling.builders.wheel import WheelBuilder  # tests of the session do without it

    with tempfile.TemporaryDirectory() as folder:
        path = Path(next(WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"])))
        out = io.BytesIO()
        with (
            zipfile.ZipFile(path) as whole,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as kept,
        ):
            for item in whole.infolist():
                if not any(part in item.filename for part in WITHOUT):
                    kept.writestr(item, whole.read(item), zipfile.ZIP_DEFLATED)
        return Page(f"{FOLDER}/{path.name}", out.getvalue())


def _session() -> Page:
    """The worker's Python as a package `session`, with its small data sets."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        files = {f"session/{p.name}": p.read_bytes() for p in sorted(HERE.glob("session/*.py"))}
        files |= {"session/digits.bin": digits(), "session/names.txt": names()}
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0)), content)
    return Page(f"{FOLDER}/session.zip", out.getvalue())


def digits(count: int = 400) -> bytes:
    """Digits of 8 x 8 pixels in 16 shades: a byte for the class, and one for each pixel."""
    X, y, _, _ = load_mnist()
    small = X[:count, 2:26, 2:26].reshape(count, 8, 3, 8, 3).mean(axis=(2, 4))
    pixels = np.round(15 * small).astype(np.uint8).reshape(count, 64)
    return np.concatenate([y[:count, None].astype(np.uint8), pixels], axis=1).tobytes()


def names(count: int = 600) -> bytes:
    """Every so many names of the list that comes with phitodeep."""
    with lzma.open(ROOT / "phitodeep/data/names.xz", "rt", encoding="utf-8") as file:
        whole = [name.strip().lower() for name in file]
    plain = [name for name in whole if name.isascii() and name.isalpha()]
    return "\n".join(plain[:: len(plain) // count][:count]).encode()


def _recorded(code: str) -> list[Page]:
    """A run of a program: its frames, and the trace of each step that was kept."""
    session, frames, traces = Session(code), [], []
    for step in STEPS:
        session.advance("b", step - session.step)
        frames.append(session.frame())
        traces.append(Page(f"{FOLDER}/traces/{step}.json", session.trace()))
    about = session.about() | {"code": code, "steps": STEPS, "open": STEPS.index(OPEN)}
    data = np.concatenate(frames).astype("<f4").tobytes()
    return [
        Page(f"{FOLDER}/recorded.json", json.dumps(about)),
        Page(f"{FOLDER}/recorded.bin", data),
        *traces,
    ]
