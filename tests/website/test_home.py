"""The picture of the home page: its numbers are a real step's, and they belong together."""

import inspect
import json
import re
from html import unescape

import numpy as np
import pytest

from phitodeep.layers import Dense
from tools.make_step_picture import step
from website import home
from website.pages import ROOT

TRACE = step()
FIGURE = home.figure(TRACE)
DATA = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', FIGURE)[0])
SHOWN = {name: np.array(rows) for name, rows in DATA["arrays"].items()}
ENTRIES = [
    *((f"{name}{k}", f"{2 * k - 2}.{way}.{name}") for k in (1, 2, 3) for way, name in
      (*(("forward", name) for name in "XWY"), ("backward", "dW"), ("backward", "dY"))),
    *((f"dX{k}", f"{2 * k - 2}.backward.dX") for k in (2, 3)),
    *((f"step{k}", f"{2 * k - 2}.update.W") for k in (1, 2, 3)),
    ("P", "forward.Y"), ("dP", "loss.backward.dP"),
]  # fmt: skip


def test_the_numbers_are_the_traces_give_the_loss_and_follow_from_each_other():
    assert set(SHOWN) == {name for name, _ in ENTRIES} | {"T"}
    for name, entry in ENTRIES:
        np.testing.assert_allclose(SHOWN[name], TRACE[entry].array, rtol=1e-5, atol=1e-12)
    P, T = SHOWN["P"], SHOWN["T"]
    close(P, 1 / (1 + np.exp(-SHOWN["Y3"])))
    close(SHOWN["dY3"], (P - T) / len(T))
    loss = -np.mean(T * np.log(P) + (1 - T) * np.log(1 - P))
    assert f"<b>{loss:.3f}</b>" in FIGURE
    X = SHOWN["X1"]
    for k in (1, 2, 3):  # the biases move too
        dY = SHOWN[f"dY{k}"]
        X = np.tanh(X @ (SHOWN[f"W{k}"] + SHOWN[f"step{k}"]) - 0.5 * dY.sum(0))
    logits = np.arctanh(X)
    after = np.mean(np.log1p(np.exp(logits)) - T * logits)
    assert f"becomes <b>{after:.3f}</b>" in FIGURE
    assert after < loss
    for k in [1, 2, 3]:
        X, W, Y, dY, dW = (SHOWN[f"{name}{k}"] for name in ("X", "W", "Y", "dY", "dW"))
        close(Y, X @ W)  # b is 0 at the start
        close(dW, X.T @ dY)
        close(SHOWN[f"step{k}"], -0.5 * dW)
        if k > 1:
            dX = SHOWN[f"dX{k}"]
            close(X, np.tanh(SHOWN[f"Y{k - 1}"]))
            close(dX, dY @ W.T)
            close(SHOWN[f"dY{k - 1}"], dX * (1 - X**2))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def tile_of(name):
    return FIGURE.partition(f'data-name="{name}"')[2].partition("</div></div>")[0]


def test_the_cells_show_the_numbers():
    for name in sorted({name for name, _ in ENTRIES if "step" not in name}):
        array = SHOWN[name].ravel()
        cell = r'<(?:i|button[^>]*?) class="(\w)[^"]*" style="--v:(\d+)'
        signs, shades = zip(*re.findall(cell, tile_of(name)), strict=True)
        assert [*signs] == ["n" if value < 0 else "p" for value in array]
        shade = np.array(shades, int)
        assert shade[np.abs(array).argmax()] == 100
        assert (np.diff(shade[np.argsort(np.abs(array))]) >= 0).all()
    for k in (1, 2, 3):
        name, dW = home.pretty(f"dW{k}"), SHOWN[f"dW{k}"]
        named = re.findall(rf'aria-label="{name}\[(\d), (\d)\] is (\u2212?[\d.]+)"', FIGURE)
        assert len(named) == dW.size
        for i, j, shown in named:
            value = float(shown.replace("\u2212", "-"))
            assert value == pytest.approx(dW[int(i), int(j)], abs=5.1e-5)
        ways = re.findall(r'<i class="\w (\w+)"', tile_of(f"W{k}"))  # against their slopes
        assert ways == ["down" if slope > 0 else "up" for slope in dW.ravel()]


def test_the_code_is_the_librarys_and_the_page_is_short_and_small():
    shown = re.findall(r'<span(.*?) data-line="(\w*)">(.*?)\n</span>', FIGURE)
    source = inspect.getsource(Dense.product_back)
    for _, _, line in shown:
        assert unescape(line).strip() in source
    assert len(shown) >= len(source.strip().split("\n")) - 2  # without the docstring
    (line,) = (text for _, name, text in shown if name == "dW")
    assert 'grad_array("W")' in unescape(line)
    assert [name for lit, name, _ in shown if "step-lit" in lit] == ["dW"]
    assert 4500 < sum(stage["ms"] for stage in DATA["stages"]) < 6000
    marks = {int(at) for at in re.findall(r'data-at="(\d+)"', FIGURE)}
    assert marks == set(range(len(DATA["stages"]))) - {home.AT["update"]}
    assert home.drawn("text") == "text"
    assert "\n\n" not in FIGURE  # Markdown would end the HTML there
    assert home.drawn(f"a\n{home.MARK}\nb").startswith("a\n<figure")
    files = ("assets/css/home.css", "assets/js/home.js")
    own = sum((ROOT / "docs" / name).stat().st_size for name in files)
    assert own + len(FIGURE.encode()) < 60_000
