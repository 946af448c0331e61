"""What terminals and notebooks show: short reprs, HTML tables, figures without pyplot."""

import copy
import math
import pickle
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from phitodeep import Dense, ReLU, Sequential, check_gradients, plots
from phitodeep.core.table import Table
from phitodeep.errors import MissingExtraError
from phitodeep.inspect.profile import Profile, Row
from phitodeep.inspect.summary import summarize
from phitodeep.training.history import History
from phitodeep.training.rate_finder import RateRange

rng = np.random.default_rng(2)
X, Y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))


class Cells(HTMLParser):
    """The cells of a table in HTML, row by row, with their alignment; `texts` are around it."""

    def __init__(self, html):
        super().__init__()
        self.rows = []
        self.sides = []
        self.texts = []
        self.open = []
        self.feed(html)
        assert self.open == []  # every element was closed

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.sides.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.sides[-1].append(str(dict(attrs)["style"]).removeprefix("text-align:"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        else:
            self.texts.append(data)


def net():
    return Sequential(Dense(3, 4), ReLU(), Dense(4, 2), seed=0)


def history(epochs):
    made = History()
    for i in range(epochs):
        logs = {"train_loss": 1 / (i + 1), "train_accuracy": i / 10}
        made.record(logs, seconds=0.5, rate=0.01)
    return made


def test_tables_in_html_and_profiles():
    table = Table("a < b", ("path", "layer", "n", "note"), [("0", "A<B> & C", "7", "odd")], "sum 7")
    found = Cells(table.html())
    assert found.rows == [["path", "layer", "n", "note"], ["0", "A<B> & C", "7", "odd"]]
    assert found.sides == [["left", "left", "right", "left"]] * 2
    assert found.texts == ["a < b", "sum 7"]
    assert Cells(Table("", ("a",), [], "").html()).texts == []
    found = net().profile(X, Y, steps=2)
    assert not hasattr(found, "_repr_html_")
    assert "\n" not in repr(found)
    row = Row("0", "ReLU()", 1e-3, 1e-3, 1.0, 10**6, 0, 1e-4)
    found = Profile((row,), 32, 2e-3, 0.0, 0.0, 0.0, 1e10)
    assert repr(found) == "<Profile: 2,000 us for a step of 32 samples, 1 layers>"
    for flops, seconds, speed in (
        (6_400_000, 0.0, None),  # it ran as part of another layer
        (6_400_000, 5e-7, None),  # less than calling the clock takes
        *((6_400_000, 2e-3, 3.2e9), (0, 2e-3, None), (320, 2e-3, None), (5000, 2e-3, 2.5e6)),
    ):
        row = Row("0", "ReLU()", seconds / 4, 3 * seconds / 4, 0.1, flops, 1000, flops / 1e9)
        assert row.speed == (speed and pytest.approx(speed))
        cells = row.cells()
        assert cells[6] == ("" if speed is None else f"{speed / 1e9:,.1f}")
        assert (cells[5] == "") == (cells[8] == "") == (flops < 5000)
        assert len(cells) == 9


SHOWN = {
    "summary": lambda: summarize(net()),
    "gradient report": lambda: check_gradients(Dense(3, 2), X),
    "difference": lambda: net().trace(X, Y).diff(net().trace(X, Y)),
    "history": lambda: history(3),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_has_a_table_shows_it_in_notebooks_and_has_a_short_repr(name):
    shown = SHOWN[name]()
    table = shown.table()
    found = Cells(shown._repr_html_())
    assert found.rows == [list(table.head), *map(list, table.rows)]
    assert len(found.rows) > 1
    text = repr(shown)
    assert not text.endswith("\n")
    assert len(text.splitlines()) <= 8
    assert max(map(len, text.splitlines())) < 120


def test_a_model_shows_its_summary_and_has_a_short_repr(capsys):
    model = net()
    found = Cells(model._repr_html_())
    assert found.rows[1:] == [list(row.cells()) for row in summarize(model).rows]
    model.summary()
    printed = capsys.readouterr().out
    assert all(line in printed for text in found.texts for line in text.splitlines())
    short = Sequential(*(Dense(2, 2) for _ in range(20)))
    assert repr(short).count("Dense") == 20
    long = Sequential(Dense(2, 100), *(Dense(100, 100) for _ in range(28)), Dense(100, 3))
    assert repr(long) == (
        "Sequential(Dense(2, 100), Dense(100, 100), ... 27 more ..., Dense(100, 3))"
    )


def test_histories_and_range_tests_show_what_there_is():
    shown = history(3)
    shown.interrupted = True
    table = shown.table()
    assert table.title == "3 epochs in 1.5 s, interrupted"
    assert table.head == ("epoch", "train_loss", "train_accuracy", "learning rate", "seconds")
    assert table.rows[1] == ["2", "0.5", "0.1", "0.01", "0.5"]
    shown[1] = (0.5, 0.25)  # a test loss in one of the epochs
    assert shown.table().head[2] == "test_loss"
    assert [row[2] for row in shown.table().rows] == ["", "0.25", ""]
    shown.metrics = {"confusion": [np.eye(2)] * 3, "late": [0.25, math.nan]}
    assert [row[3:5] for row in shown.table().rows] == [["", "0.25"], ["", ""], ["", ""]]
    assert str(shown).splitlines()[2].startswith("    1           1")
    table = history(12).table()
    assert [row[0] for row in table.rows] == [*"12345", "...", "8", "9", "10", "11", "12"]
    assert table.rows[5] == ["..."] * len(table.head)
    assert [row[0] for row in history(11).table().rows] == [str(i + 1) for i in range(11)]
    assert repr(History()) == "0 epochs in 0 s\nepoch  learning rate  seconds"
    found = RateRange([1e-3, 1e-2, 1e-1], [3.0, 1.0, 2.0], 1e-2)
    assert repr(found) == (
        "suggested rate  0.01\ntested          3 rates from 0.001 to 0.1\nlowest loss     1 at 0.01"
    )
    assert found._repr_html_() == f"<pre>{found}</pre>"


def test_a_figure_shows_itself_without_pyplot():
    """In a new Python: nothing outside the figure changes."""
    code = """
import sys
import matplotlib
def settings():  # to read the backend is to choose one
    return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != "backend"}
before = settings()
from phitodeep.training.history import History
history = History()
history.record({"train_loss": 1.0}, 0.1, 0.01)
figure = history.plot()
assert figure._repr_png_().startswith(b"\\x89PNG")
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_figure_can_be_copied_and_pickled_and_ipython_shows_it():
    pytest.importorskip("IPython")
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(history(3).plot())
    assert data["image/png"].startswith(b"\x89PNG")
    data, _ = DisplayFormatter().format(plots.architecture(net()))
    assert data["image/svg+xml"].startswith("<svg")
    assert data["text/plain"].startswith("<Drawing")
    figure = history(3).plot()
    for twin in (pickle.loads(pickle.dumps(figure)), copy.deepcopy(figure)):
        twin.axes[0].lines[0].set_ydata([9, 9, 9])
        assert twin._repr_png_() != figure._repr_png_()  # it shows itself, not the original
    assert figure._repr_png_() == figure._repr_png_()


DRAWN = {
    "plots.history": lambda: plots.history(history(2)),
    "plots.rates": lambda: plots.rates(RateRange([1e-3], [3.0], 1e-3)),
    "plots.filters": lambda: plots.filters(net(), "0", shape=(1, 3)),
    "plots.confusion_matrix": lambda: plots.confusion_matrix([0, 1], [0, 1]),
    "History.plot": lambda: history(2).plot(),
    "RateRange.plot": lambda: RateRange([1e-3], [3.0], 1e-3).plot(),
}


@pytest.mark.parametrize("name", DRAWN)
def test_without_matplotlib_every_picture_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=rf'^{name} needs.*"phitodeep\[plot\]"'):
        DRAWN[name]()
    assert plots.architecture(net()).startswith("<svg")


def test_curves_are_the_history_and_rates_are_drawn_where_asked():
    shown = history(4)
    loss, accuracy = shown.plot().axes
    assert [panel.get_ylabel() for panel in (loss, accuracy)] == ["loss", "accuracy"]
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [(i, 1 / i) for i in range(1, 5)])
    np.testing.assert_array_equal(accuracy.lines[0].get_ydata(), [0, 0.1, 0.2, 0.3])
    assert len(loss.lines) == 1  # there is no test data
    shown[2] = (0.5, 0.25)
    assert [line.get_ydata()[2] for line in shown.plot().axes[0].lines] == [0.5, 0.25]
    assert history(0).plot() is not None
    (single,) = plots.history(history(1)).axes[0].lines
    assert single.get_marker() == "."  # a single epoch has no line
    from matplotlib.figure import Figure

    found, ax = RateRange([1e-3, 1e-2, 1e-1], [3.0, 1.0, 2.0], 1e-2), Figure().subplots()
    assert found.plot(ax=ax) is ax
    assert ax.get_xscale() == "log"
    curve, mark = ax.lines
    np.testing.assert_array_equal(curve.get_xydata(), [(1e-3, 3), (1e-2, 1), (1e-1, 2)])
    assert mark.get_xdata()[0] == 1e-2
    assert mark.get_label() == "suggested: 0.01"
