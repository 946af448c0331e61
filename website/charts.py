"""The charts of the performance and results pages, drawn from what the benchmarks stored.

A page asks for a chart with a line such as `<!-- chart: step -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from website.pages import ROOT
from website.playground.session.panel import svg

MARK = re.compile(r"^<!-- chart: (\w+) -->$", re.MULTILINE)
WHAT = {  # benchmarks/workloads.py describes the networks; a test compares
    "W1": "MLP 784-128-64-10",
    "W2": "MLP 784-256-128-10-10",
    "W3": "CNN of two convolutions",
    "W4": "GPT of four blocks",
    "W5": "LSTM of 128 units",
    "W6": "CNN of two convolutions with BatchNorm",
}
FAST, PLAIN = "phitodeep[fast]", "phitodeep"
WIDTH, ROW = 320, 22
LONGEST = 42  # letters that fit above a bar
Found = dict[str, Any]


def drawn(markdown: str) -> str:
    """A page with its charts."""
    return MARK.sub(lambda found: CHARTS[found[1]](), markdown)


def stored(name: str) -> Found:
    found: Found = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return found


# --- bars --------------------------------------------------------------------------------------


def bars(title: str, rows: Iterable[tuple[str, float, str]], goal: float | None = None) -> str:
    """Bars from 0, each with its label above it and its value at its end."""
    rows = list(rows)
    longest = max([value for _, value, _ in rows] + [goal or 0.0])
    scale = (WIDTH - 70) / longest
    height = len(rows) * (ROW + 14)
    shapes = []
    for i, (label, value, text) in enumerate(rows):
        top = i * (ROW + 14)
        name = label.split(", next to")[0].split(",")[0]
        kind = {FAST: " pd-bar-fast", PLAIN: " pd-bar-plain"}.get(name, "")
        kind += " pd-bar-busy" if "busy" in label else ""
        weight = ' font-weight="700"' if name in (FAST, PLAIN) else ""
        shapes.append(
            f'<text x="0" y="{top + 12}"{weight}>{escape(label)}</text>'
            f'<rect class="pd-bar{kind}" x="0" y="{top + 16}" width="{max(1, value * scale):.1f}" '
            f'height="{ROW - 10}" rx="2"/>'
            f'<text x="{max(value, goal or 0) * scale + 5:.1f}" y="{top + 27}">'
            f"{escape(text)}</text>"
        )
    if goal is not None:
        x = goal * scale
        shapes.append(f'<path class="pd-goal" d="M{x:.1f},0V{height}"/>')
    spoken = "; ".join(f"{label}: {text}" for label, _, text in rows)
    drawn = svg(WIDTH, height, f"{title}. {spoken}", *shapes)
    return (
        f'<figure class="pd-chart"><figcaption><strong>{escape(title)}</strong></figcaption>'
        f"{drawn}</figure>"
    )


def grid(charts: Iterable[str]) -> str:
    return f'<div class="pd-charts">{"".join(charts)}</div>'


def of(part: str) -> list[tuple[str, Found]]:
    """The stored results of a part, such as "step", by title, in the order of the networks."""
    found = stored("benchmarks.json")
    keys = sorted(
        (key for key in found if key.startswith(f"{part} W")),
        key=lambda key: (key.split()[1], int(key.split()[2])),
    )
    return [
        (f"{key.split()[1]}: {WHAT[key.split()[1]]}, batch {key.split()[2]}", found[key])
        for key in keys
    ]


def duration(seconds: float) -> str:
    if seconds < 1e-4:
        return f"{1e6 * seconds:.0f} \u00b5s"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def fastest(rows: Found) -> list[tuple[str, float]]:
    """Both of ours, and of each other library its fastest setting, from the fastest down."""
    best: dict[str, tuple[str, float]] = {}
    for label, row in rows.items():
        library = label.split(",")[0] if row["peer"] else label
        if library.startswith("NumPy"):
            continue
        if library not in best or row["seconds"] < best[library][1]:
            best[library] = label, row["seconds"]
    return sorted(best.values(), key=lambda entry: entry[1])


# --- charts ------------------------------------------------------------------------------------


def times(part: str) -> str:
    """The time of a part of the benchmark, one chart for each network."""
    return grid(
        bars(title, [(label, s, duration(s)) for label, s in fastest(result["rows"])])
        for title, result in of(part)
    )


def busy() -> str:
    """A step alone, and the same step next to a busy process."""
    charts = []
    for title, result in of("busy"):
        rows = []
        for label, row in result["rows"].items():
            if label.startswith("NumPy"):
                continue
            rows.append((f"{label}, idle", row["seconds"], duration(row["seconds"])))
            text = f"{duration(row['busy'])}, {row['slower']:.2g} times"
            rows.append((f"{label}, next to a busy process", row["busy"], text))
        charts.append(bars(title, rows))
    return grid(charts)


def cold() -> str:
    """From a cold start to 97 %."""
    rows = sorted(stored("benchmarks.json")["cold"].items(), key=lambda row: row[1]["seconds"])
    shown = [
        (label, row["seconds"], f"{row['seconds']:.2f} s, {row['score']:.1%}")
        for label, row in rows
    ]
    return grid([bars("Seconds from the start of the process to its end", shown)])


def threads() -> str:
    return grid(
        bars(title, [(label, r["seconds"], duration(r["seconds"])) for label, r in rows])
        for title, result in of("threads")
        if (rows := list(result["rows"].items()))
    )


def memory() -> str:
    found = stored("benchmarks.json")
    return grid(
        bars(f"{name}: {what}", [(label, mb, f"{mb:.0f} MB") for label, mb in rows])
        for name, what in WHAT.items()
        if (rows := sorted(found.get(f"memory {name}", {}).items(), key=lambda row: row[1]))
    )


def size() -> str:
    found = stored("benchmarks.json")
    charts = []
    for key, title, unit in (("import", "Time of the import", "s"), ("size", "Installed", "MB")):
        rows = sorted(found[key].items(), key=lambda row: row[1])
        charts.append(bars(title, [(name, value, f"{value:.3g} {unit}") for name, value in rows]))
    return grid(charts)


# --- the machine -------------------------------------------------------------------------------


def machine() -> str:
    """The processor of the measurements, and what runs on it, in one sentence."""
    found = stored("benchmarks.json")["machines"]
    own = [described for described, keys in found.items() if set(keys) - {"sklearn"}]
    shown = []
    for described in own:
        processor, system, python, numpy = described.split("; ")[:4]
        shown.append(f"**{processor}**, with {system}, {python} and {numpy.split(' with ')[0]}")
    return f"Everything on this page was measured on this processor: {'; and '.join(shown)}."


# --- results -----------------------------------------------------------------------------------


def share(wanted: str, got: str) -> float | None:
    """How much of what a goal allows a result uses up: below 1, the goal is met.

    Of a score that should reach a goal, that is its error; of a loss, the loss itself. None if the
    goal is not a bound on one number.
    """
    bound = re.search(r"([<>]=) ([\d.]+)( %)?", wanted)
    value = re.match(r"[\d.]+", got)
    if bound is None or value is None or "random splits" in wanted:
        return None
    goal, reached = float(bound[2]), float(value[0])
    if bound[1] == "<=":
        return reached / goal
    if bound[3]:
        return (100 - reached) / (100 - goal)
    return (1 - reached) / (1 - goal)


def results() -> str:
    """How close each result comes to what its goal allows."""
    rows = []
    for row in stored("results.json").values():
        used = share(row["wanted"], row["got"])
        if used is not None:
            clauses = re.split(r"(?=[;,] )", row["what"])  # the tables have all of them
            while len("".join(clauses)) > LONGEST and len(clauses) > 1:
                clauses.pop()
            rows.append(("".join(clauses), used, f"{used:.0%}"))
    return grid([bars("Share of the error or the loss that the goal allows", rows, goal=1.0)])


CHARTS: dict[str, Callable[[], str]] = {
    "machine": machine,
    "step": lambda: times("step"),
    "epoch": lambda: times("epoch"),
    "predict": lambda: times("predict"),
    "busy": busy,
    "cold": cold,
    "threads": threads,
    "memory": memory,
    "size": size,
    "results": results,
}
