"""The playground's data sets: small, seeded, and as phitodeep's own functions return them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.data import make_moons as moons

HERE = Path(__file__).parent
LETTERS = ".abcdefghijklmnopqrstuvwxyz"
CONTEXT = 3  # letters that a model of names sees
given: dict[str, Any] = {}  # what the reader drew or pasted: X and y


def circles(n=200, noise=0.1, seed=0):
    """One class on a circle of radius 0.4, the other one around it."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    angle, r = rng.uniform(0, 2 * np.pi, n), np.where(y, 0.4, 1.0) + rng.normal(0, noise, n)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1).astype(np.float32), y


def spirals(n=200, noise=0.1, seed=0):
    """Two arms that wind around each other one and a quarter times."""
    rng = np.random.default_rng(seed)
    y, r = np.arange(n) % 2, np.linspace(0.1, 1, n)
    angle = 2.5 * np.pi * r + np.pi * y + rng.normal(0, noise, n)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1).astype(np.float32), y


def xor(n=200, noise=0.05, seed=0):
    """Class 1 where both coordinates have the same sign."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    return (X + rng.normal(0, noise, X.shape)).astype(np.float32), y


def sine(n=100, noise=0.1, seed=0):
    """A regression: y = sin(3 x) and noise, for x from -1 to 1."""
    rng = np.random.default_rng(seed)
    X = np.linspace(-1, 1, n)[:, None]
    y = np.sin(3 * X) + rng.normal(0, noise, X.shape)
    return X.astype(np.float32), y.astype(np.float32)


def digits(n=400):
    """Handwritten digits, 8 x 8 pixels from 0 to 1, and their classes."""
    raw = np.frombuffer((HERE / "digits.bin").read_bytes(), np.uint8).reshape(-1, 65)[:n]
    return raw[:, 1:].astype(np.float32) / 15, raw[:, 0].astype(int)


def names(n=2000):
    """Each letter of a name, and the three letters before it; "." begins and ends a name."""
    X, y = [], []
    for name in (HERE / "names.txt").read_text("utf-8").split():
        codes = [0] * CONTEXT + [LETTERS.index(letter) for letter in name + "."]
        for k in range(CONTEXT, len(codes)):
            X.append(codes[k - CONTEXT : k])
            y.append(codes[k])
    return np.array(X[:n]), np.array(y[:n])


def mine():
    """The points that you drew, or the table that you pasted."""
    if not given:
        raise ValueError("there are no points yet: draw some in the picture, or paste a table.")
    return given["X"], given["y"]


SETS = {f.__name__: f for f in (circles, spirals, xor, sine, digits, names, mine)}
SETS["moons"] = moons


def read_table(text: str) -> tuple[Any, Any]:
    """Read CSV: the last column is the target, all others are numbers; a head line is skipped.

    Targets that are whole numbers or words are classes; other numbers are a regression.
    """
    rows = [[cell.strip() for cell in _cells(line)] for line in text.splitlines() if line.strip()]
    if rows and not _numbers(rows[0][:-1]):
        rows = rows[1:]
    if len(rows) < 2 or len(rows[0]) < 2:
        raise ValueError("a table needs two rows, with a feature and a target in each.")
    for k, row in enumerate(rows, 1):
        if len(row) != len(rows[0]) or not _numbers(row[:-1]):
            raise ValueError(
                f"row {k} is {','.join(row)!r}, not {len(rows[0]) - 1} numbers and a target."
            )
    X, last = np.array([row[:-1] for row in rows], np.float32), [row[-1] for row in rows]
    if _numbers(last) and any(float(v) != int(float(v)) for v in last):
        return X, np.array(last, np.float32)[:, None]
    return X, np.unique(last, return_inverse=True)[1]


def _cells(line: str) -> list[str]:
    return line.replace(";", ",").replace("\t", ",").split(",")


def _numbers(cells: list[str]) -> bool:
    try:
        return all(np.isfinite(float(cell)) for cell in cells)
    except ValueError:
        return False
