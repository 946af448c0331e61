"""What training shows: nothing, a line an epoch, or a bar that moves."""

import io
import re
import sys
import threading
import types

import numpy as np
import pytest
import rich.console

from phitodeep import Dense, Sequential
from phitodeep.model.callbacks import LambdaCallback, StopTraining
from phitodeep.training import loop, progress

X = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def train(epochs=3, verbose=1, **given):
    model = Sequential(Dense(3, 1), seed=0, batch_size=10, metrics=["mae"])
    model.train(X, Y, epochs=epochs, verbose=verbose, **given)
    return model


def test_verbose_0_no_epochs_and_no_values_show_nothing(capsys):
    train(verbose=0)
    train(0)
    assert capsys.readouterr() == ("", "")
    assert type(progress.display(0)) is type(progress.display(False)) is progress.Silent
    logs = {"train_loss": 0.5, "train_f1": np.nan, "test_loss": np.nan, "test_f1": np.nan}
    assert progress._numbers(logs) == ["train loss 0.5000"]


def test_one_line_an_epoch_where_the_output_is_no_terminal(capsys):
    model = train(12, X_test=X[:7], y_test=Y[:7])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert len(lines) == 12
    assert "\x1b" not in out
    assert "\r" not in out
    for i, line in enumerate(lines, 1):
        assert re.match(rf"epoch +{i}/12\b", line)
        for shown in (r"loss \d", r"mae \d", r"\btest\b", r"[\d,]+ samples/s", r"\d s$"):
            assert re.search(shown, line), (shown, line)
    model.train(X, Y, epochs=2, verbose=1)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["13/14", "14/14"]


def test_the_numbers_shown_are_those_of_the_history(capsys):
    def stop(model, epoch, logs):
        if epoch == 3:
            raise StopTraining("that will do")

    model = Sequential(Dense(3, 1), seed=0, metrics=["mae"])
    history = model.train(X, Y, X[:9], Y[:9], epochs=5, callbacks=LambdaCallback(on_epoch_end=stop))
    *lines, last = capsys.readouterr().out.splitlines()
    assert "that will do" in last
    maes = zip(history.metrics["train_mae"], history.metrics["test_mae"], strict=True)
    for line, losses, errors in zip(lines, history, maes, strict=True):
        found = [float(number) for number in re.findall(r"(?:loss|mae) ([\d.]+)", line)]
        expected = (losses[0], errors[0], losses[1], errors[1])
        assert found == pytest.approx(expected, abs=6e-5)


def test_the_speed_is_that_of_training_and_the_time_that_of_the_epoch(capsys, monkeypatch):
    times = iter([10, 10.5, 13, 20, 20.5, 23])  # an epoch begins, is trained, and is evaluated
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=times.__next__))
    train(2, X_test=X, y_test=Y)
    for line in capsys.readouterr().out.splitlines():
        assert line.endswith("  80 samples/s  3.0 s")


@pytest.fixture
def terminal(monkeypatch):
    """What rich writes to a terminal that is 120 wide."""
    out = io.StringIO()
    new = rich.console.Console

    def made(*args, **kwargs):
        return new(file=out, force_terminal=True, force_jupyter=False, width=120, color_system=None)

    monkeypatch.setattr(rich.console, "Console", made)
    monkeypatch.setattr(progress, "REDRAW", -1.0)  # draw at every batch
    return out


@pytest.fixture
def drawn(terminal, monkeypatch):
    """The batches done, those of all epochs, and whether the time left is shown, of each bar."""
    shown = []
    draw = progress.Terminal.draw

    def spy(self, count, head, text):
        shown.append((count, self.total, text.endswith("left")))
        draw(self, count, head, text)

    monkeypatch.setattr(progress.Terminal, "draw", spy)
    return shown


def test_a_terminal_gets_a_live_bar_and_a_line_an_epoch(terminal):
    model = Sequential(Dense(3, 1), seed=0, batch_size=10, metrics=["mae"])
    model.train(X, Y, X, Y, epochs=3)
    text = terminal.getvalue()
    drawn = [part for part in re.split(r"[\r\n]|\x1b\[\d*[A-Za-z]", text) if "━" in part]
    assert len(drawn) >= 12  # 3 epochs of 4 batches
    for shown in (r"loss \d", r"mae \d", r"samples/s", r"\d:\d\d"):  # the last one is time left
        assert re.search(shown, drawn[5]), (shown, drawn[5])
    assert any("1/3" in part for part in drawn)
    assert any("3/3" in part for part in drawn)
    lines = [line for line in text.splitlines() if re.search(r"\d s\s*$", line)]
    assert len(lines) == 3
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_a_bar_counts_all_batches_of_all_epochs(drawn):
    model = Sequential(Dense(3, 1), seed=0, batch_size=9)
    model.train(X, Y, epochs=2)
    assert [n for n, *_ in drawn] == list(range(1, 11))  # 4 batches of 9 and a short one
    drawn.clear()
    model.train(X, Y, epochs=2, accumulate=2)
    assert [n for n, *_ in drawn] == list(range(1, 7))


@pytest.mark.parametrize(
    ("error", "method"),
    [
        *((RuntimeError("broken"), "on_batch_end"), (KeyboardInterrupt(), "on_batch_end")),
        (RuntimeError("broken"), "on_train_end"),
    ],
)
def test_the_cursor_comes_back_when_a_callback_fails(terminal, error, method):
    def fail(*_):
        raise error

    with pytest.raises(type(error)):
        train(2, callbacks=[LambdaCallback(**{method: fail})])
    text = terminal.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_training_in_a_training_shows_both(terminal):
    train(2, callbacks=[LambdaCallback(on_epoch_end=lambda *_: train(1) and None)])
    lines = [line for line in terminal.getvalue().splitlines() if re.search(r"\d s\s*$", line)]
    assert len(lines) == 4


def test_a_notebook_gets_html_that_is_written_again(monkeypatch):
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html)

    fake = types.ModuleType("IPython.display")
    fake.HTML = lambda text: text
    fake.display = lambda html, display_id: Handle() if display_id else None
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "REDRAW", -1.0)
    train(3)
    assert any("<progress" in html for html in shown)
    for html, n in ((next(html for html in shown if "epoch 1/3  " in html), 1), (shown[-1], 3)):
        assert re.fullmatch(rf"<pre>(epoch \d/3  [^\n<]+\n){{{n}}}</pre>", html)
    with pytest.raises(ZeroDivisionError):
        train(1, callbacks=[LambdaCallback(on_batch_end=lambda model, step, loss: 1 // (2 - step))])
    assert shown[-1] == "<pre></pre>"


def test_emscripten_has_no_rich_and_gets_lines(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "emscripten")
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    train(2)
    assert len(capsys.readouterr().out.splitlines()) == 2
    flushed = []
    monkeypatch.setattr(sys.stdout, "flush", lambda: flushed.append(1))
    train(2)
    assert len(flushed) == 2  # each line is there at once


def test_a_bar_of_a_stream_learns_how_long_an_epoch_is(terminal, drawn):
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 40, 10)]
    Sequential(Dense(3, 1), seed=0).train(lambda: iter(batches), epochs=2)
    assert drawn[:4] == [(i, None, False) for i in range(1, 5)]
    assert drawn[4:] == [(i, 8, True) for i in range(5, 9)]
    assert "2/2" in terminal.getvalue()
    drawn.clear()
    Sequential(Dense(3, 1), seed=0).train(batches, epochs=1, accumulate=3)
    assert [(count, total) for count, total, _ in drawn] == [(1, 2), (2, 2)]  # a list has a length


@pytest.mark.parametrize("width", [24, 30, 60, 80])
def test_a_bar_that_is_too_wide_is_cut_at_its_end(terminal, monkeypatch, width):
    monkeypatch.setattr(progress.Terminal, "width", width)
    train(6, metrics=["mae", "r2"])
    drawn = re.findall(r"epoch \d/6 [━╸╺ ]+ [^\r\n\x1b]*", terminal.getvalue())
    drawn = [line.rstrip() for line in drawn]
    assert drawn
    cut = [line for line in drawn if line.endswith("…")]
    assert {len(line) for line in cut} == {width - 4}  # Ctrl-C writes ^C behind it


@pytest.mark.parametrize("width", [60, 80, 140, 10_000])
def test_lines_break_between_their_parts_where_the_terminal_ends(width):
    logs = {f"{p}_{m}": 0.1234 for p in ("train", "test") for m in ("loss", "accuracy", "f1")}
    parts = [*progress._numbers(logs), "57,000 samples/s  0.8 s"]
    lines = progress._fitted("epoch 10/20", parts, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert "  ".join(line.strip() for line in lines) == "  ".join(["epoch 10/20", *parts])
    assert len(lines) == {60: 3, 80: 2, 140: 1, 10_000: 1}[width]
    assert all(line.startswith(" " * len("epoch 10/20  ")) for line in lines[1:])
    for width, text in ((9, "a  bb  cc"), (8, "a  bb\n   cc"), (3, "a  bb\n   cc")):
        assert progress._fitted("a", ["bb", "cc"], width) == text


def test_what_a_bar_says_and_when(monkeypatch):
    now, drawn, lines = 0.5, [], []
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(perf_counter=lambda: now))
    bar, logs = progress.Live(), {"train_loss": 0.5}
    bar.draw, bar.print_line = lambda *given: drawn.append(given), lines.append
    bar.begin(4, 41, 5)
    assert bar.due()
    now = 1.0
    bar.batch(2, 20, logs)
    assert not bar.due()
    now = 1.2
    assert bar.due()
    now = 10.5
    for epoch in range(4, 44):
        bar.epoch(epoch, logs, 40.0, 1.0)
    now = 300.5
    bar.batch(5, 50, logs)
    bar.counted(None)
    bar.batch(5, 50, logs)
    bar.epoch(44, logs, 40.0, 1.0)
    bar.end("that will do")
    assert lines.pop() == "that will do"
    assert drawn == [
        (2, "epoch 4/44", "loss 0.5000  40 samples/s  0:51 left"),
        (205, "epoch 44/44", "loss 0.5000  0 samples/s  0:00 left"),
        (5, "epoch 44/44", "loss 0.5000  0 samples/s"),
    ]
    assert [int(line[6:8]) for line in lines] == [*range(6, 43, 3), 44]
    assert [*map(progress._clock, (0.4, 59.6, 3725))] == ["0:00", "1:00", "1:02:05"]
    assert not progress.Silent().due()


def test_a_terminal_shows_text_as_it_is():
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=True, width=60, color_system="standard")
    bar, threads = progress.Terminal(console), threading.active_count()
    bar.begin(1, 2, 5)
    bar.draw(1, "[b]1[/b]", "[i]2[/i]")
    line = "[b]12[/b] " + 60 * "x"
    bar.print_line(line)
    assert threading.active_count() == threads
    assert all(text in out.getvalue() for text in ("[b]1[/b]", "[i]2[/i]", line))
    bar.end()
    assert out.getvalue().endswith("\x1b[2K")
