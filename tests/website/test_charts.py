"""The charts of the performance and results pages: they show what the JSON files hold."""

import importlib
import re

import pytest

from website import charts
from website.pages import ROOT

PAGES = ("performance", "results")


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_charts_networks_and_the_processor_are_on_the_pages(monkeypatch):
    asked = [name for each in PAGES for name in charts.MARK.findall(page(each))]
    assert sorted(asked) == sorted(charts.CHARTS)
    for name in PAGES:
        assert "<!-- chart" not in charts.drawn(page(name))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert charts.WHAT == importlib.import_module("workloads").WHAT
    assert all(f"| {name} |" in page("performance") for name in charts.WHAT)
    assert re.search(r"on this processor: \*\*\S.*, \d+ of \d+ cores\*\*", charts.machine())
    assert "NumPy" in charts.machine()


@pytest.mark.parametrize("part", ["step", "epoch", "predict", "busy", "threads"])
def test_every_measured_network_has_a_chart(part):
    measured = [key for key in charts.stored("benchmarks.json") if key.startswith(f"{part} W")]
    html = charts.CHARTS[part]()
    assert html.count("<figure") == len(measured) > 0
    for key in measured:
        _, network, batch = key.split()
        assert f"<strong>{network}: {charts.WHAT[network]}, batch {batch}</strong>" in html


def test_bars_are_as_long_as_the_fastest_times():
    result = charts.stored("benchmarks.json")["step W1 64"]
    html = next(c for c in charts.times("step").split("<figure") if "W1" in c and "batch 64" in c)
    widths = [float(w) for w in re.findall(r'<rect[^>]* width="([\d.]+)"', html)]
    seconds = [s for _, s in charts.fastest(result["rows"])]
    assert len(widths) == len(seconds) == 7
    for width, second in zip(widths, seconds, strict=True):
        assert width / widths[-1] == pytest.approx(second / seconds[-1], abs=0.01)
    ours = result["rows"]["phitodeep[fast]"]["seconds"]
    assert charts.duration(ours) in html
    rows = {
        "phitodeep[fast]": {"seconds": 2.0, "peer": False},
        "phitodeep": {"seconds": 3.0, "peer": False},
        "PyTorch, eager": {"seconds": 5.0, "peer": True},
        "PyTorch, compiled": {"seconds": 1.0, "peer": True},
        "NumPy, matrix products only": {"seconds": 0.5, "peer": False},
    }
    assert charts.fastest(rows) == [
        ("PyTorch, compiled", 1.0), ("phitodeep[fast]", 2.0), ("phitodeep", 3.0)
    ]  # fmt: skip
    html = charts.busy()
    row = charts.stored("benchmarks.json")["busy W3 64"]["rows"]["phitodeep"]
    assert "phitodeep, idle</text>" in html
    assert f"{charts.duration(row['busy'])}, {row['slower']:.2g} times" in html
    assert "pd-bar-plain pd-bar-busy" in html


def test_share_of_what_a_goal_allows():
    for wanted, got, used in (
        (">= 0.97", "0.9766", 0.78),
        (">= 99.2 %", "99.27%", 0.9125),
        ("<= 1.91", "1.7875", 0.93586),
        (">= 0.9786 within 20 epochs", "0.9799 after epoch 5", 0.93925),
        ("median >= 0.94", "0.947 (of 0.935)", 0.88333),
        ("100 %", "100%", None),
        ("1, 1.8", "1, 1.8", None),
        ("<= 19 of 20 random splits", "-0.000106 of 0.000985", None),
    ):
        assert charts.share(wanted, got) == (used and pytest.approx(used, rel=1e-3))
    rows = charts.stored("results.json").values()
    shares = [(charts.share(row["wanted"], row["got"]), row["met"]) for row in rows]
    assert sum(used is not None for used, _ in shares) >= 9
    for used, met in shares:
        assert used is None or (used <= 1) == met
