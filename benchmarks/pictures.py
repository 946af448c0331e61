"""The pictures of the benchmark's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from report import of_part

STYLES = {  # of the frameworks in the picture of the busy machine
    "phitodeep[fast]": "#0b5fa5",
    "phitodeep": "#63b3ed",
    "PyTorch, as shipped": "#d62728",
    "PyTorch, one thread": "#f2a541",
    "JAX": "#7f7f7f",
}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw what was measured."""
    for part, picture in (("step", steps), ("busy", busy), ("growth", growth)):
        if results := of_part(found, part):
            figure = picture(results)
            figure.savefig(folder / f"{NAMES[part]}.png", dpi=120)


NAMES = {"step": "benchmarks", "busy": "busy", "growth": "growth"}


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def ticks(results: dict[str, Any]) -> list[str]:
    return [key.replace(" ", "\nbatch ") for key in results]


def steps(results: dict[str, Any]) -> Any:
    """The speed of each framework's best setting, as bars."""
    figure = _figure(9, 4)
    panel = figure.subplots()
    groups: dict[str, list[float]] = {
        name: [] for name in ("phitodeep[fast]", "phitodeep", "PyTorch", "JAX", "Keras")
    }
    for result in results.values():
        for name, values in groups.items():
            ratios = [
                r["ratio"]
                for label, r in result["rows"].items()
                if r["ratio"] and name == (label.split(",")[0] if r["peer"] else label)
            ]
            values.append(max(ratios, default=0.0))
    for i, (name, values) in enumerate(groups.items()):
        panel.bar(np.arange(len(results)) + 0.17 * (i - 2), values, 0.16, label=name)
    panel.set_xticks(range(len(results)), ticks(results))
    panel.axhline(1, color="black", lw=0.8)
    panel.set(ylabel="speed, best peer = 1", title="a training step on an idle machine")
    panel.legend(ncols=5, fontsize=8)
    return figure


def busy(results: dict[str, Any]) -> Any:
    """Seconds per step: from a ring, idle, to a dot, next to a busy process, to its worst block."""
    figure = _figure(12, 5.5)
    panel = figure.subplots()
    for i, (name, color) in enumerate(STYLES.items()):
        for x, result in enumerate(results.values()):
            if (row := result["rows"].get(name)) is None:
                continue
            place = x + 0.17 * (i - 2)
            idle, usual, worst = (1e3 * row[key] for key in ("seconds", "busy", "worst"))
            panel.plot([place] * 2, [idle, worst], color=color, lw=1, marker="_", ms=5)
            panel.plot([place] * 2, [idle, usual], color=color, lw=4, alpha=0.45)
            panel.plot(place, idle, "o", mfc="white", mec=color, mew=1.6, ms=6)
            panel.plot(place, usual, "o", color=color, ms=6)
            style = {"ha": "center", "fontsize": 7, "color": color, "weight": "bold"}
            if row["slower"] >= 2:
                top, text = (place, max(usual, worst)), f"x{row['slower']:.2g}"
                panel.annotate(text, top, (0, 5), textcoords="offset points", **style)
        panel.plot([], [], "o-", color=color, lw=4, label=name)
    panel.set_yscale("log")
    panel.margins(y=0.08)
    panel.set_xticks(range(len(results)), ticks(results))
    for x in range(1, len(results)):
        panel.axvline(x - 0.5, color="#dddddd", lw=0.8)
    panel.grid(axis="y", color="#eeeeee")
    panel.set_axisbelow(True)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g} ms")
    panel.set_ylabel("a training step (log scale, lower is faster)")
    title = "ring: alone; dot: next to one busy process (x: times slower); dash: its worst block"
    panel.set_title(title, fontsize=11)
    figure.legend(loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure


def growth(results: dict[str, Any]) -> Any:
    """Seconds and MB of a step by size."""
    figure = _figure(9, 3.6)
    for i, (panel, (key, unit)) in enumerate(
        zip(figure.subplots(1, 2), (("seconds", "s"), ("MB", "MB")), strict=True)
    ):
        for name, g in results[""].items():
            label = f"{name}: n^{g['exponent'][i]:.2f}"
            panel.loglog(g["values"], g[key], marker="o", ms=3, label=label)
        panel.set(xlabel="size", ylabel=unit, title=f"{key} of a step")
        panel.legend(fontsize=7)
    return figure
