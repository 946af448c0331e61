"""The tables of the benchmark's results, as sections that docs/performance.md includes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from workloads import WHAT, gemm_flops

Found = dict[str, Any]
TITLES = {"step": "A training step", "epoch": "An epoch, shuffled", "predict": "A prediction"}


def tables(found: Found) -> str:
    """All results as Markdown; each section stands between markers, by which pages include it."""
    sections: dict[str, Callable[[Found], list[str]]] = {
        "machine": machine,
        "idle": idle,
        "busy": busy,
        "threads": threads,
        "cold": cold,
        "memory": memory,
        "size": size,
        "error": error,
        "growth": growth,
        "sklearn": estimators,
    }
    parts = []
    for name, section in sections.items():
        asked = {"idle": "step epoch predict", "size": "import size"}.get(name, name)
        missing = f'Not measured yet: `make bench ONLY="{asked}"`.' if name != "machine" else ""
        text = "\n\n".join(section(found) or [missing])
        parts.append(f"<!-- --8<-- [start:{name}] -->\n{text}\n\n<!-- --8<-- [end:{name}] -->")
    return "\n\n".join(parts) + "\n"


def table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table whose first column is text and whose other columns are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_part(found: Found, part: str) -> dict[str, Any]:
    """The results of a part, by the rest of their keys, in the order of workload and batch."""
    keys = [key for key in found if key.split()[0] == part]
    keys.sort(key=lambda key: [int(w) if w.isdigit() else w for w in key.split()])
    return {key.partition(" ")[2]: found[key] for key in keys}


def duration(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms" if seconds >= 2e-3 else f"{1e6 * seconds:,.0f} us"


def name(label: str) -> str:
    """The label, bold if it is phitodeep."""
    return f"**{label}**" if label.startswith("phitodeep") else label


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def network(key: str) -> str:
    workload, batch = key.split()
    return f"{WHAT[workload]}, batch {batch}"


def blocks(result: dict[str, Any]) -> str:
    noise = f"; the machine was busy before {result['noisy']} blocks" if result["noisy"] else ""
    return f"(medians of {result['rounds']} blocks{noise})"


def by_time(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(result["rows"].items(), key=lambda row: row[1]["seconds"])


def machine(found: Found) -> list[str]:
    every = found.get("machines", {})  # the part `sklearn`, on another page, names its own
    machines = {m: own for m, keys in every.items() if (own := [k for k in keys if k != "sklearn"])}
    if len(machines) == 1:
        return [f"Created by `make bench` on: {next(iter(machines))}."]
    return [f"{', '.join(keys)}: created by `make bench` on: {m}." for m, keys in machines.items()]


def idle(found: Found) -> list[str]:
    parts = []
    for part, title in TITLES.items():
        for key, result in of_part(found, part).items():
            workload, batch = key.split()
            work = gemm_flops(workload, int(batch)) / 1e6
            size = f", {work:,.0f} MFLOP of matrix products" if part == "step" else ""
            rows = (
                (
                    name(label),
                    duration(r["seconds"]),
                    " to ".join(map(duration, r["quartiles"])),
                    ratio(r["ratio"]),
                )
                for label, r in by_time(result)
            )
            parts.append(f"**{title}: {network(key)}**{size} {blocks(result)}")
            parts.append(table(["", "median", "middle half", "ratio"], rows))
    return parts


def busy(found: Found) -> list[str]:
    parts = []
    for key, result in of_part(found, "busy").items():
        rows = (
            (
                name(label),
                duration(r["seconds"]),
                duration(r["busy"]),
                duration(r["worst"]),
                f"{r['slower']:,.1f}",
                ratio(None if label.startswith("NumPy") else r["ratio"]),
                ratio(None if label.startswith("NumPy") else r["busy ratio"]),
            )
            for label, r in sorted(result["rows"].items(), key=lambda row: row[1]["busy"])
        )
        head = ["", "idle", "busy", "worst", "times slower", "ratio, idle", "ratio, busy"]
        parts += [f"**A training step: {network(key)}** {blocks(result)}", table(head, rows)]
    if parts:
        parts.insert(0, "![Steps on an idle and on a busy machine](pictures/busy.png)")
    return parts


def threads(found: Found) -> list[str]:
    parts = []
    for key, result in of_part(found, "threads").items():
        rows: dict[str, dict[int, str]] = {}
        for label, r in result["rows"].items():
            framework, _, count = label.partition(", threads ")
            rows.setdefault(name(framework), {})[int(count)] = duration(r["seconds"])
        counts = sorted({count for row in rows.values() for count in row})
        lines = [[label, *(row.get(n, "") for n in counts)] for label, row in rows.items()]
        parts.append(f"**A training step: {network(key)}** {blocks(result)}")
        parts.append(table(["threads", *map(str, counts)], lines))
    return parts


def cold(found: Found) -> list[str]:
    if "cold" not in found:
        return []

    def score(r: dict[str, Any]) -> str:
        missed = f" (**{r['missed']} of {r['runs']} runs below 97 %**)" if r["missed"] else ""
        return f"{r['score']:.2%}{missed}"

    rows = sorted(found["cold"].items(), key=lambda row: row[1]["seconds"])
    best = min((r["seconds"] for _, r in rows if r["peer"]), default=None)
    lines = (
        (
            name(label),
            f"{r['seconds']:.2f}",
            score(r),
            ratio(None if best is None else best / r["seconds"]),
        )
        for label, r in rows
    )
    return [table(["", "seconds", "correct", "ratio"], lines)]


def memory(found: Found) -> list[str]:
    labels = ["phitodeep[fast]", "phitodeep", "PyTorch, fused Adam"]
    every = of_part(found, "memory")
    rows = (
        [name(label), *(f"{m[label]:.0f}" if label in m else "" for m in every.values())]
        for label in labels
    )
    return [table(["", *every], rows)] if every else []


def size(found: Found) -> list[str]:
    parts = []
    for key, title, unit, scale in (
        ("import", "Import time, without the start of Python", "ms", 1e3),
        ("size", "Installed size, with all dependencies", "MB", 1),
    ):
        if key in found:
            rows = ((label, f"{scale * v:,.0f}") for label, v in found[key].items())
            parts += [f"**{title}**", table(["", unit], rows)]
    return parts


def error(found: Found) -> list[str]:
    every = of_part(found, "error")
    labels = {label: None for errors in every.values() for label in errors}
    rows = (
        [
            name(label),
            *("{:.0e}, {:.0e}".format(*e[label]) if label in e else "" for e in every.values()),
        ]
        for label in labels
    )
    return [table(["loss, gradients", *every], rows)] if every else []


def growth(found: Found) -> list[str]:
    rows = (
        (
            label,
            f"{g['values'][0]}, {g['values'][-1]}",
            *(f"n^{exponent:.2f}" for exponent in g["exponent"]),
        )
        for label, g in found.get("growth", {}).items()
    )
    picture = "![How the time and memory of a step grow](pictures/growth.png)"
    head = ["in", "from, to", "time", "memory"]
    return [table(head, rows), picture] if "growth" in found else []


def estimators(found: Found) -> list[str]:
    machines = found.get("machines", {})
    parts = [
        f"Created by `make bench` on: {m}." for m, keys in machines.items() if "sklearn" in keys
    ]
    titles = {"classes": "Classification: accuracy", "numbers": "Regression: R^2"}
    for kind, title in titles.items():
        every: Found = found.get("sklearn", {}).get(kind, {})
        if not every:
            continue
        models = list(next(iter(every.values()))["rows"])
        rows = [
            [
                key.rpartition("/")[2],
                f"{result['samples']} x {result['features']}",
                *(f"{r['score']:.3f}, {r['seconds']:.2f} s" for r in result["rows"].values()),
            ]
            for key, result in every.items()
        ]
        ranks = [mean_rank(every, model) for model in models]
        rows.append(["**mean rank**", "", *(f"**{rank:.2f}**" for rank in ranks)])
        parts.append(f"**{title}, and seconds of `fit`**")
        parts.append(table(["", "size", *models], rows))
    return parts


def mean_rank(every: Found, model: str) -> float:
    """The mean place of a model among all models, by score; 1 is the best."""
    places = []
    for result in every.values():
        scores = [r["score"] for r in result["rows"].values()]
        own = result["rows"][model]["score"]
        better = sum(score > own for score in scores)
        places.append(better + (1 + scores.count(own)) / 2)
    return sum(places) / len(places)
