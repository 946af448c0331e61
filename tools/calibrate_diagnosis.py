"""Calibrate the thresholds of `model.diagnose` on half of many models; report on the other half.

    python -m tools.calibrate_diagnosis            measure all models, and write the results
    python -m tools.calibrate_diagnosis --table    only make the table again, from stored numbers

The models are those of tools/sick_models.py, each with two seeds. Of each sickness, and of the
healthy models, every other one belongs to the calibration half, so that the models of the report
are others. What was measured is kept in docs/diagnosis.json, and docs/_diagnosis.md is the table;
docs/_findings.md lists the causes and remedies of all findings.
phitodeep/inspect/diagnosis/symptoms.toml must hold what `thresholds` chooses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.version import __version__
from phitodeep.errors import PhitodeepWarning
from phitodeep.inspect.diagnosis.evidence import Evidence
from phitodeep.inspect.diagnosis.findings import LIMITS, NotChecked, Symptom
from phitodeep.inspect.diagnosis.symptoms import COURSE, SYMPTOMS
from phitodeep.model.callbacks import Diagnose
from tools.sick_models import HEALTHY, SICK, Case

DOCS = Path(__file__).parent.parent / "docs"
SEEDS = 11, 23
MARGIN = 1.25  # the factor between a threshold and the nearest measured value
START = {  # the literature's values (see inspect/diagnosis/symptoms.py), or first guesses
    "not finite": 0,
    "inputs off centre": 3,
    "inputs too spread": 10,
    "inputs too narrow": 0.1,
    "start loss": 0.2,
    "cannot overfit": 0.05,
    "input cut off": 1e-6,
    "input unused": 0.05,
    "samples mix": 1e-6,
    "reads ahead": 1e-6,
    "updates too large": 1e-2,
    "updates too small": 1e-4,
    "dead units": 0.5,
    "saturated units": 0.2,
    "vanishing gradients": 1e-3,
    "exploding gradients": 1e3,
    "twin units": 0,
    "penalty rules": 1,
    "spikes": 10,
    "clipped too often": 0.5,
    "validation periodic": 0.5,
    "validation rising": 0.1,
}
Measured = dict[str, float]  # the most striking value of each symptom


def measure(symptoms: tuple[Symptom, ...], evidence: Any) -> Measured:
    """Return the most striking value of each symptom that applies."""
    found: Measured = {}
    for symptom in symptoms:
        try:
            values = [m.value for m in symptom.measure(evidence)]
        except NotChecked:
            continue
        if values:
            worst = max(values) if LIMITS[symptom.name].above else min(values)
            found[symptom.name] = float(np.clip(worst, 0, 1e30))
    return found


def train(case: Case, every: int = 5) -> tuple[Any, Diagnose]:
    """Train the case on the first three quarters of its data; return the model and its callback."""
    model, watch, n = case.built(), Diagnose(every=every, verbose=0), len(case.X) * 3 // 4
    X, y = case.X[:n], case.y[:n]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhitodeepWarning)
        model.train(
            *((X, y) if case.source is None else (case.source(X, y), None)),
            case.X[n:],
            case.y[n:],
            epochs=case.epochs,
            batch_size=case.batch if case.source is None else None,
            callbacks=[watch],
            verbose=0,
        )
    return model, watch


def together(*parts: Measured) -> Measured:
    """Return the most striking value of each symptom in several measurements."""
    found: Measured = {}
    for part in parts:
        for name, value in part.items():
            worst = max if LIMITS[name].above else min
            found[name] = worst(found.get(name, value), value)
    return found


def examined(case: Case, healthy: bool) -> Measured:
    """Measure a case as its sickness requires; a healthy one before, during and after training."""
    with np.errstate(all="ignore"):
        if not (healthy or case.trained or case.watched):
            return measure(SYMPTOMS, Evidence(case.built(), case.X, case.y))
        model, watch = train(case)
        course = measure(COURSE, watch.course)
        if case.watched:
            return course
        after = measure(SYMPTOMS, Evidence(model, case.X, case.y))
        if not healthy:
            return after
        before = measure(SYMPTOMS, Evidence(case.built(), case.X, case.y))
        return together(before, course, after)


def cases() -> list[tuple[str, str, str, Any]]:
    """(expected finding, or "", name, half, function of a seed) of all cases."""
    return [
        (finding, name, ("calibration", "report")[i % 2], make)
        for finding, group in {**SICK, "": HEALTHY}.items()
        for i, (name, make) in enumerate(group.items())
    ]


def run() -> dict[str, Any]:
    """Measure all cases."""
    rows, began = [], time.perf_counter()
    for finding, name, half, make in cases():
        for seed in SEEDS:
            start = time.perf_counter()
            found = examined(make(seed), healthy=not finding)
            found = {key: float(f"{value:.4g}") for key, value in found.items()}
            rows.append({"finding": finding, "case": name, "half": half, "measured": found})
            seconds = time.perf_counter() - start
            print(f"{finding or 'healthy':20} {name:20} {half:12} {seconds:5.1f} s", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    versions = {"phitodeep": __version__, "numpy": np.__version__}
    versions["python"] = platform.python_version()
    return {"date": time.strftime("%Y-%m-%d"), "versions": versions, "rows": rows}


def thresholds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the threshold of each symptom, from the rows of the calibration half."""
    rows = [row for row in rows if row["half"] == "calibration"]
    chosen = {}
    for name, limit in LIMITS.items():
        healthy, sick = (
            [r["measured"][name] for r in rows if r["finding"] == kind and name in r["measured"]]
            for kind in ("", name)
        )
        chosen[name] = best(START[name], healthy, sick, limit.above)
    return chosen


def best(start: float, healthy: list[float], sick: list[float], above: bool) -> float:
    """Return the threshold with the fewest mistakes, in parts of the healthy and of the sick.

    That is `start`, unless it makes more mistakes than another, or lies too close to a measured
    value. Otherwise it is in the middle, on a logarithmic scale, of the widest gap between measured
    values that makes the fewest mistakes.
    """

    def mistakes(limit: float) -> float:
        wrong = [sum((v > limit) == above for v in healthy) / len(healthy) if healthy else 0]
        wrong += [sum((v > limit) != above for v in sick) / len(sick) if sick else 0]
        return sum(wrong)

    ends = sorted({max(v, 1e-12) for v in (*healthy, *sick)})
    gaps = [(b / a, float(f"{math.sqrt(a * b):.1e}")) for a, b in itertools.pairwise(ends)]
    least = min((mistakes(m) for _, m in gaps), default=math.inf)
    close = any(start / MARGIN < v < start * MARGIN for v in ends)
    if mistakes(start) <= least and not close:
        return start
    return max((width, m) for width, m in gaps if mistakes(m) == least)[1]


def crossed(name: str, value: float, limits: dict[str, float]) -> bool:
    return LIMITS[name]._replace(value=limits[name]).crossed(value)


def table(results: dict[str, Any]) -> str:
    """Return docs/_diagnosis.md."""
    rows, limits = results["rows"], thresholds(results["rows"])
    other = [row for row in rows if row["half"] == "report"]
    healthy = [row for row in other if not row["finding"]]
    meanings = {s.name: s.meaning for s in (*SYMPTOMS, *COURSE)}
    lines, found, total = [], 0, 0
    for name, value in limits.items():
        sick = [row for row in other if row["finding"] == name]
        hits = sum(
            name in r["measured"] and crossed(name, r["measured"][name], limits) for r in sick
        )
        tested = [row for row in healthy if name in row["measured"]]
        wrong = sum(crossed(name, row["measured"][name], limits) for row in tested)
        found, total = found + hits, total + len(sick)
        meaning = meanings[name].replace("|", "\\|")
        side = "above" if LIMITS[name].above else "below"
        lines.append(
            f"| {name} | {meaning} | {side} {value:g} | {START[name]:g} "
            f"| {hits} of {len(sick)} | {wrong} of {len(tested)} |"
        )
    alarms = [
        row["case"]
        for row in healthy
        if any(crossed(name, value, limits) for name, value in row["measured"].items())
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    named = f" ({', '.join(dict.fromkeys(alarms))})" if alarms else ""
    return "\n".join(
        [
            f"Made by `python -m tools.calibrate_diagnosis` on {results['date']} with {versions}, "
            f"on {len(rows)} models: {sum(bool(row['finding']) for row in rows)} sick ones and "
            f"{sum(not row['finding'] for row in rows)} healthy ones. Thresholds come from half of "
            f"them; of the other half, {found} of {total} sick models got the finding that they "
            f"should, and {len(alarms)} of {len(healthy)} healthy models got any finding{named}.",
            "",
            "| finding | measured | threshold | literature or first guess | found | false alarms |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
            *lines,
            "",
        ]
    )


def findings() -> str:
    """Return docs/_findings.md."""
    rows = {
        s.name: f"| {s.name} | {s.cause} | {s.remedy} | {s.source} |" for s in (*SYMPTOMS, *COURSE)
    }
    head = ["| finding | usual cause | remedy | source |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows.values(), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="use the stored numbers")
    path = DOCS / "diagnosis.json"
    results = json.loads(path.read_text()) if parser.parse_args().table else run()
    path.write_text(
        json.dumps(results, indent=0).replace("\n", " ").replace('}}, {"f', '}},\n{"f') + "\n"
    )
    (DOCS / "_diagnosis.md").write_text(table(results))
    (DOCS / "_findings.md").write_text(findings())
    print(table(results))
    for name, value in thresholds(results["rows"]).items():
        if value != LIMITS[name].value:
            print(f"phitodeep/inspect/diagnosis/symptoms.toml: {name} must be {value:g}")


if __name__ == "__main__":
    main()
