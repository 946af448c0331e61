"""The text drawing of a step: every number of a small net, shortened or refused for a large one."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

from phitodeep.errors import ArgumentError
from phitodeep.inspect import drawing
from phitodeep.layers import Dense, Dropout, Embedding, Flatten, ReLU, Residual, Tanh
from phitodeep.model import Sequential

X = np.array([[0.0, 0.5], [1.5, 1.0], [-1.0, 2.0]])
Y = np.array([[1.0], [0.0], [2.0]])


def net(*layers: Any) -> Sequential:
    return Sequential(*layers, seed=3, dtype="float64")


def test_it_shows_every_number_of_one_sample_and_its_share_of_the_gradients() -> None:
    model = net(Dense(2, 3), Tanh(), Dense(3, 1))
    t = model.trace(X, Y)
    text, share = t.draw(1), t.by_sample(1)
    for key, array in (
        *((f"{path}.forward.Y", share[f"{path}.forward.Y"].array[1]) for path in (0, 1, 2)),
        *((f"{path}.backward.dY", share[f"{path}.backward.dY"].array[1]) for path in (0, 1, 2)),
        *((k, share[k].array) for k in ("0.backward.dW", "0.backward.db", "2.backward.dW")),
        ("0.forward.W", model.layers[0].W),
    ):
        for row in np.atleast_2d(array):
            assert " ".join(f"{x:9.3g}" for x in row) in text, key
    assert text.startswith(f"loss {share.loss:.6g}: the share of sample 1 of 3")
    names = ("X", "0 Dense(2, 3)", "1 Tanh()", "2 Dense(3, 1)", "P", "MeanSquaredError()")
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert repr(text) == str(text)


def test_lines_are_aligned_and_as_wide_as_the_rules() -> None:
    lines = str(net(Dense(2, 3), ReLU(), Dense(3, 1)).trace(X, Y).draw()).splitlines()[1:]
    rules = [line for line in lines if line.startswith(("┌", "└"))]
    assert len(rules) == 6
    assert len({len(line) for line in rules}) == 1
    assert max(map(len, lines)) == len(rules[0])
    columns = {line.index("d") for line in lines if " dW" in line or " db" in line}
    assert len(columns) == 1


def test_layers_inside_a_container_are_named_by_their_path() -> None:
    text = net(Dense(2, 3), Residual(Dense(3), ReLU()), Dense(3, 1)).trace(X, Y).draw()
    assert "1 Residual ─" in text
    assert "layers.0.W" in text
    assert "layers.0.dW" in text


def test_large_arrays_are_described_and_large_nets_refused() -> None:
    text = net(Dense(2, 9), Dense(9, 1)).trace(X, Y).draw()
    assert "(2, 9), root mean square" in text
    with pytest.raises(ArgumentError, match="at most 24 layers, got 26"):
        net(Dense(2, 1), *[ReLU() for _ in range(24)], Dense(1, 1)).trace(X, Y).draw()


def test_tokens_and_layers_without_parameters() -> None:
    tokens = np.array([[1, 3], [0, 2], [2, 2]])
    t = net(Embedding(4, 2), Flatten(), Dropout(0.5), Dense(4, 1)).trace(tokens, Y)
    text = t.draw(2)
    assert "2         2" in text
    assert "dX" not in text.splitlines()[1]  # tokens have no gradient


def test_ascii_by_request_and_where_stdout_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    t = net(Dense(2, 2), Dense(2, 1)).trace(X, Y)
    assert t.draw(ascii=True).isascii()
    assert not t.draw(ascii=False).isascii()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="cp1250"))
    assert t.draw().isascii()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not t.draw().isascii()


def test_a_sample_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError):
        net(Dense(2, 1)).trace(X, Y).draw(3)


def test_the_marks_have_the_same_widths() -> None:
    assert drawing.MARKS.keys() == drawing.ASCII.keys()
    assert all(len(drawing.MARKS[k]) == len(drawing.ASCII[k]) for k in drawing.MARKS)
