"""The examples on names, spirals and with an LSTM run, reduced, and reach what they claim."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep.data import CharTokenizer, load_text
from tests.test_examples import load


def test_counted_and_learnt_bigrams_agree(capsys: pytest.CaptureFixture[str]) -> None:
    counted, learnt = load("names_bigram").main(steps=300, write=4)
    assert f"{counted:.4f}" == "2.4546"
    assert 2.4538 < learnt < 2.456
    out = capsys.readouterr().out
    assert "counting 228,146 pairs" in out
    assert len(out.rpartition("generated:")[2].split()) >= 3


def test_the_mlp_of_names_has_12297_parameters_and_learns() -> None:
    example = load("names_mlp")
    assert example.build(27, 10).count_params() == 12_297
    assert example.main(epochs=2, names=4000) < 2.55  # log 27 is 3.30


def test_contexts_begin_with_newlines_and_end_with_the_names_end() -> None:
    example = load("names_mlp")
    X, y = example.contexts(["ab", "c"], CharTokenizer("\nabc"))
    np.testing.assert_array_equal(X, [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 3]])
    np.testing.assert_array_equal(y, [1, 2, 0, 3, 0])


def test_the_transformer_of_names_learns_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("names_transformer")
    assert example.main(epochs=2, names=1500, write=5) < 2.75
    *_, names, last = capsys.readouterr().out.strip().splitlines()
    assert last.startswith("validation loss")
    known = set(load_text("names").split("\n"))
    assert len(names.split()) == 5
    assert not known & set(names.split()[:1])


def test_padding_of_names_weighs_nothing() -> None:
    example = load("names_transformer")
    X, y = example.padded(["ab"], CharTokenizer("\nab"))
    np.testing.assert_array_equal(X[0, :4], [0, 1, 2, 0])
    np.testing.assert_array_equal(y[0, :4], [1, 2, 0, example.IGNORED])


def test_the_lstm_learns_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert load("char_lstm").main(steps=60, units=48, write=20) < 3.1  # log 65 is 4.17
    assert "validation loss" in capsys.readouterr().out


def test_spirals_are_learnt_and_drawn(tmp_path) -> None:
    picture = tmp_path / "spirals.png"
    assert load("spirals").main(picture=str(picture)) > 0.99
    assert picture.read_bytes().startswith(b"\x89PNG")
