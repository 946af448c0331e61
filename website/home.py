"""The picture of the home page: one training step of the network of docs/pictures/step.svg.

The page asks for it with the line `<!-- home: step -->`. All its numbers are from a trace that the
build makes; docs/assets/js/home.js lets the step play, and shows where a cell of dW came from.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np

from phitodeep.inspect.explorer.ringed_cell import ring
from phitodeep.inspect.explorer.source import method_with
from phitodeep.inspect.trace import Trace
from phitodeep.layers import Dense
from tools.make_step_picture import step

Arrays = dict[str, np.ndarray[Any, Any]]
MARK = "<!-- home: step -->"
LAYERS = (1, 2, 3)
# The stages of the wave: what appears, in which of the phases, for how many milliseconds.
STAGES = [
    *((name, 0, 210) for name in ("X1", "Y1", "X2", "Y2", "X3", "Y3", "P")),
    ("loss", 1, 650),
    *((name, 2, 200) for name in ("dP", "dY3", "dW3", "dX3", "dY2", "dW2", "dX2", "dY1", "dW1")),
    ("update", 3, 500),
    ("after", 3, 1100),
]
AT = {name: k for k, (name, _, _) in enumerate(STAGES)}
COLUMN = {"X1": 1, "Y1": 3, "X2": 5, "Y2": 7, "X3": 9, "Y3": 11, "P": 13, "T": 14}
SUBSCRIPT = str.maketrans("123", "\u2081\u2082\u2083")
BENDS = ("", "tanh", "tanh", "sigmoid")  # what comes after each layer
FALLBACK = (
    '<noscript><picture><source media="(prefers-reduced-motion: reduce)" '
    'srcset="pictures/step_still.svg"><img src="pictures/step.svg" width="1100" height="875" '
    'alt="One training step of a 2-4-4-1 network: activations from left to right, gradients back, '
    'and the terms of one cell of dW"></picture></noscript>'
)


def drawn(markdown: str) -> str:
    """A page with the picture."""
    return markdown.replace(MARK, figure(step())) if MARK in markdown else markdown


def arrays(trace: Trace) -> Arrays:
    """The step by the names of the picture: X1 is what the first Dense receives, Y1 its result."""
    found = {}
    for k in LAYERS:
        path = 2 * (k - 1)  # between the Dense layers are the activations
        for name in ("X", "Y", "W"):
            found[f"{name}{k}"] = trace[f"{path}.forward.{name}"].array
        for name in ("dY", "dW", "dX"):
            found[f"{name}{k}"] = trace[f"{path}.backward.{name}"].array
        found[f"step{k}"] = trace[f"{path}.update.W"].array
    del found["dX1"]  # nothing is before the first layer
    found["P"], found["dP"] = trace["5.forward.Y"].array, trace["5.backward.dY"].array
    found["T"] = trace._recording.data.T
    return found


def figure(trace: Trace) -> str:
    """The picture as HTML without empty lines, for a Markdown page."""
    parts = arrays(trace)
    ringed = ring(trace)
    assert ringed is not None
    assert trace.loss_after is not None
    data = {
        "arrays": {name: rounded(array) for name, array in parts.items()},
        "stages": [{"name": name, "phase": phase, "ms": ms} for name, phase, ms in STAGES],
        "ring": [int(ringed.path) // 2 + 1, *ringed.cell],
    }
    before, after = f"{trace.loss:.3f}", f"{trace.loss_after:.3f}"
    rate = trace.model.optimizer.alpha
    return "".join(
        [
            '<figure class="pd-home step-moved" aria-labelledby="pd-home-name">',
            '<div class="step-player"><div class="step-head"><p id="pd-home-name"><strong>One step '
            "of training, there and back, on eight points.</strong> Point at a cell of a dW, or "
            "tap it.</p>"
            '<button type="button" class="step-play" hidden>Pause</button></div>',
            phases(before, after, rate),
            '<div class="step-lanes">',
            *(layer(k, parts) for k in LAYERS),
            loss(parts, before, after, trace.loss_after / trace.loss),
            "</div>",
            '<div class="step-why"><p class="step-said"></p>',
            f'<table class="step-terms"></table>{line()}</div>',
            source(),
            f'</div><script type="application/json">{json.dumps(data)}</script>',
            FALLBACK,
            "</figure>",
        ]
    )


def rounded(array: np.ndarray[Any, Any]) -> list[Any]:
    return [[float(f"{value:.6g}") for value in row] for row in array.tolist()]


def phases(before: str, after: str, rate: float) -> str:
    told = {
        "Forward": "Each row of X\u2081 is a point, one sample. Every layer turns its X into "
        "Y\u00a0=\u00a0X\u00a0W\u00a0+\u00a0b, and tanh bends Y into the next X.",
        "Loss": f"One number, {before}, says how far the predictions P are from the right "
        "answers T.",
        "Backward": "Every layer receives dY, the slopes of the loss with respect to its Y. It "
        "writes down dW and passes on dX.",
        "Update": f"Each weight in W moves against its slope, by {rate} times dW. The loss falls "
        f"to {after}.",
    }
    items = "".join(
        f"<li{' class=step-current' if name == 'Update' else ''}>"
        f"<strong>{name}.</strong> {text}</li>"
        for name, text in told.items()
    )
    return f'<ol class="step-phases">{items}</ol>'


def layer(k: int, parts: Arrays) -> str:
    """What belongs to one Dense layer, and the activation after it."""
    column = COLUMN[f"X{k}"]
    shown = [tile(f"X{k}", parts, "up"), arrow("\u2192", column + 1, f"Y{k}", "up")]
    shown.append(tile(f"Y{k}", parts, "up"))
    after = f"X{k + 1}" if k < 3 else "P"
    shown.append(arrow("\u2192", column + 3, after, "up"))
    shown.append(
        f'<div class="step-mid" style="--column:{column + 1}"><div class="step-pair">'
        f"{tile(f'W{k}', parts, 'weights')}{tile(f'dW{k}', parts, 'live')}</div>"
        f"<p>{pretty(f'Y{k} = X{k} W{k} + b{k}')}<br>{pretty(f'dW{k} = X{k}')}\u1d40 "
        f"{pretty(f'dY{k}')}</p></div>"
    )
    shown.append(
        f'<p class="step-bend" style="--column:{column + 3}">'
        f"{pretty(after)} = {BENDS[k]} {pretty(f'Y{k}')}<br>"
        f"{pretty(f'dY{k} = d{after}')} {BENDS[k]}\u2032</p>"
    )
    shown.append(arrow("\u2190", column + 3, f"dY{k}", "down"))
    shown.append(tile(f"dY{k}", parts, "down"))
    if k > 1:
        shown += [arrow("\u2190", column + 1, f"dX{k}", "down"), tile(f"dX{k}", parts, "down")]
    return f'<div class="step-layer" data-layer="{k}">{"".join(shown)}</div>'


def loss(parts: Arrays, before: str, after: str, left: float) -> str:
    return (
        f'<div class="step-layer">{tile("P", parts, "up")}{tile("T", parts, "up")}'
        f'<div class="step-loss" data-at="{AT["loss"]}"><span>loss</span><b>{before}</b>'
        f'<span class="step-after" data-at="{AT["after"]}">becomes <b>{after}</b></span>'
        f'<i class="step-meter" style="--left:{left:.3f}"></i></div>'
        f"{tile('dP', parts, 'down')}</div>"
    )


def tile(name: str, parts: Arrays, kind: str) -> str:
    """An array as coloured cells, which are buttons if it is live."""
    array = parts[name]
    at = {"T": AT["X1"]}.get(name, AT.get(name, AT.get(f"Y{name[1:]}", 0)))
    column = COLUMN.get(name.removeprefix("d"), 0)
    cells = "".join(cell(name, index, parts, kind) for index in np.ndindex(array.shape))
    role = ""
    if kind == "live":
        role = f' step-live-cells" role="group" aria-label="Cells of {pretty(name)}'
    return (
        f'<div class="step-tile step-{kind}" data-name="{name}" data-at="{at}" '
        f'style="--column:{column};--columns:{array.shape[1]}"><span>{pretty(name)}</span>'
        f'<div class="step-cells{role}">{cells}</div></div>'
    )


def cell(name: str, index: tuple[int, ...], parts: Arrays, kind: str) -> str:
    value = float(parts[name][index])
    shade = round(8 + 92 * (abs(value) / float(np.abs(parts[name]).max())) ** 0.7)
    sign = "n" if value < 0 else "p" if value > 0 else "z"
    if kind == "weights":
        step = float(parts[f"step{name[1:]}"][index])
        share = abs(step) / float(np.abs(parts[f"step{name[1:]}"]).max())
        way = "up" if step > 0 else "down"
        return f'<i class="{sign} {way}" style="--v:{shade};--step:{share:.2f}"></i>'
    if kind != "live":
        return f'<i class="{sign}" style="--v:{shade}"></i>'
    place = ", ".join(map(str, index))
    label = escape(f"{pretty(name)}[{place}] is {value:.4f}".replace("-", "\u2212"))
    first = 0 if index == (0, 0) else -1
    return (
        f'<button type="button" class="{sign}" style="--v:{shade}" tabindex="{first}" '
        f'aria-label="{label}"></button>'
    )


def arrow(shape: str, column: int, name: str, row: str) -> str:
    return (
        f'<span class="step-arrow step-{row}" style="--column:{column}" data-at="{AT[name]}" '
        f'aria-hidden="true">{shape}</span>'
    )


def source() -> str:
    """The method of Dense that computes dW; the lines of dW and dX have names."""
    title, lines, lit = method_with(Dense, "dW")
    dX = next(k for k, line in enumerate(lines) if line.strip().startswith("dX = "))
    names = {lit: "dW", dX: "dX"}
    shown = "".join(
        f'<span{" class=step-lit" if k == lit else ""} data-line="{names.get(k, "")}">'
        f"{escape(line)}\n</span>"
        for k, line in enumerate(lines)
    )
    return (
        f'<div class="step-source"><p><a href="layers/dense/"><code>{title}</code></a>, which '
        f"<code>Dense.backward</code> calls</p><pre><code>{shown}</code></pre></div>"
    )


def line() -> str:
    """The line that computes dW."""
    _, lines, lit = method_with(Dense, "dW")
    assert lit is not None
    return f'<p class="step-line">by <code>{escape(lines[lit].strip())}</code></p>'


def pretty(name: str) -> str:
    """X\u2081 for X1."""
    return name.translate(SUBSCRIPT)
