"""Tables and pictures of the benchmark's results."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
from workloads import WHAT, gemm_flops


def duration(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms" if seconds >= 2e-3 else f"{1e6 * seconds:,.0f} us"


def tables(found: dict[str, Any]) -> str:
    """All results as Markdown tables."""
    parts = [
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}; "
        "created by `make bench`. Ratios compare with the fastest peer in the same run."
    ]
    for kind, title in (
        ("step", "A training step"),
        ("epoch", "An epoch, shuffled"),
        ("predict", "A prediction"),
    ):
        blocks = {key: value for key, value in found.items() if key.startswith(f"{kind} ")}
        for key, block in blocks.items():
            _, workload, batch = key.split()
            rows = sorted(block["rows"].items(), key=lambda row: row[1]["seconds"])
            noise = (
                f"; the machine was busy before {block['noisy']} blocks" if block["noisy"] else ""
            )
            work = gemm_flops(workload, int(batch)) / 1e6
            size = f", {work:,.0f} MFLOP of matrix products" if kind == "step" else ""
            head = f"**{title}: {WHAT[workload]}, batch {batch}**{size}"
            parts.append(
                f"{head} (medians of {block['rounds']} blocks{noise})\n\n"
                "| | median | middle half | ratio |\n|---|---:|---:|---:|\n"
                + "\n".join(
                    f"| {'**' * (not r['peer'])}{label}{'**' * (not r['peer'])} "
                    f"| {duration(r['seconds'])} "
                    f"| {duration(r['quartiles'][0])} to {duration(r['quartiles'][1])} "
                    f"| {r['ratio'] or 0:.2f} |"
                    for label, r in rows
                )
            )
    if "memory" in found:
        labels = ["phitodeep[fast]", "phitodeep", "PyTorch, fused Adam"]
        parts.append(
            "**Peak memory of a process that trains, MB**\n\n| | "
            + " | ".join(found["memory"])
            + " |\n|---|"
            + "---:|" * len(found["memory"])
            + "\n"
            + "\n".join(
                f"| {label} | "
                + " | ".join(f"{m.get(label, float('nan')):.0f}" for m in found["memory"].values())
                + " |"
                for label in labels
            )
        )
    for key, title, unit in (
        ("import", "Import time, without the start of Python", "ms"),
        ("size", "Installed size, with all dependencies", "MB"),
    ):
        if key in found:
            scale = 1e3 if unit == "ms" else 1
            parts.append(
                f"**{title}**\n\n| | {unit} |\n|---|---:|\n"
                + "\n".join(f"| {name} | {scale * v:,.0f} |" for name, v in found[key].items())
            )
    if "growth" in found:
        parts.append(
            "**How a training step grows** (exponents over the larger half of the sizes)\n\n"
            "| in | from, to | time | memory |\n|---|---|---:|---:|\n"
            + "\n".join(
                f"| {name} | {g['values'][0]}, {g['values'][-1]} "
                f"| n^{g['exponent'][0]:.2f} | n^{g['exponent'][1]:.2f} |"
                for name, g in found["growth"].items()
            )
        )
    return "\n\n".join(parts) + "\n"


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw the ratios of steps as bars and the growth as lines."""
    from matplotlib.figure import Figure

    steps = {key: value for key, value in found.items() if key.startswith("step ")}
    if steps:
        figure = Figure(figsize=(9, 4), layout="constrained")
        panel = figure.subplots()
        groups = {"phitodeep[fast]": [], "phitodeep": [], "PyTorch": [], "JAX": [], "Keras": []}
        for block in steps.values():
            for name, values in groups.items():
                ratios = [
                    r["ratio"]
                    for label, r in block["rows"].items()
                    if r["ratio"] and name == (label.split(",")[0] if r["peer"] else label)
                ]
                values.append(max(ratios, default=0.0))
        for i, (name, values) in enumerate(groups.items()):
            panel.bar(np.arange(len(steps)) + 0.17 * (i - 2), values, 0.16, label=name)
        ticks = [f"{key.split()[1]}\nbatch {key.split()[2]}" for key in steps]
        panel.set_xticks(range(len(steps)), ticks)
        panel.axhline(1, color="black", lw=0.8)
        panel.set(ylabel="speed, best peer = 1", title="a training step")
        panel.legend(ncols=5, fontsize=8)
        figure.savefig(folder / "benchmarks.png", dpi=120)
    if "growth" in found:
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for i, (panel, (key, unit)) in enumerate(
            zip(figure.subplots(1, 2), (("seconds", "s"), ("MB", "MB")), strict=True)
        ):
            for name, g in found["growth"].items():
                label = f"{name}: n^{g['exponent'][i]:.2f}"
                panel.loglog(g["values"], g[key], marker="o", ms=3, label=label)
            panel.set(xlabel="size", ylabel=unit, title=f"{key} of a step")
            panel.legend(fontsize=7)
        figure.savefig(folder / "growth.png", dpi=120)
