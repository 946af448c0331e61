"""The shipped texts, characters as tokens, and windows that copy nothing."""

from pathlib import Path

import numpy as np
import pytest

from phitodeep.data import CharTokenizer, load_text, text, windows
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError


def test_the_shipped_texts_are_whole():
    plays, names = load_text(), load_text("names")
    assert len(plays) == 1_115_394
    assert plays.startswith("First Citizen:\nBefore we proceed any further")
    assert len(set(plays)) == 65
    assert names.split()[:3] == ["emma", "olivia", "ava"]
    assert len(names.split()) == 32_033


def test_an_unknown_text_and_a_damaged_file_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ArgumentError, match="unknown text 'shakespear'"):
        load_text("shakespear")
    damaged = tmp_path / "names.xz"
    damaged.write_bytes(b"no xz")
    monkeypatch.setattr(text, "__file__", str(tmp_path / "text.py"))
    with pytest.raises(DataError, match=r"names\.xz is missing or damaged"):
        load_text("names")
    with pytest.raises(DataError, match=r"tinyshakespeare\.xz is missing or damaged"):
        load_text()


def test_tokens_go_there_and_back():
    tokenizer = CharTokenizer("hello world")
    assert tokenizer.characters == " dehlorw"
    assert tokenizer.vocab_size == 8
    tokens = tokenizer.encode("low")
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [4, 5, 7]
    assert tokenizer.decode(tokens) == "low"
    assert tokenizer.decode(int(tokens[0])) == "l"
    assert tokenizer.decode(tokens[:0]) == ""
    assert eval(repr(tokenizer), {"CharTokenizer": CharTokenizer}).characters == " dehlorw"
    assert tokenizer.encode("").shape == (0,)


def test_what_a_tokenizer_does_not_know_is_refused():
    with pytest.raises(ArgumentError, match="has no character 'z'"):
        CharTokenizer("abc").encode("az")
    with pytest.raises(ArgumentError, match="at least one character"):
        CharTokenizer("")
    with pytest.raises(ArgumentTypeError, match="integer tokens"):
        CharTokenizer("abc").decode(np.array([0.0]))
    for unknown in (3, -1):
        with pytest.raises(ArgumentError, match=rf"tokens\[1\] is {unknown}.* from 0 to 2"):
            CharTokenizer("abc").decode(np.array([0, unknown]))
    with pytest.raises(ShapeError, match="decode each row"):
        CharTokenizer("abc").decode(np.array([[0], [1]]))


def test_windows_are_views_one_token_apart():
    tokens = np.arange(10)
    X, y = windows(tokens, 4)
    assert X.shape == y.shape == (6, 4)
    assert X[2].tolist() == [2, 3, 4, 5]
    np.testing.assert_array_equal(y, X + 1)
    assert np.shares_memory(X, tokens)
    assert np.shares_memory(y, tokens)
    assert not X.flags.writeable


def test_windows_need_room():
    with pytest.raises(ArgumentError, match="windows of length 4 require tokens"):
        windows(np.arange(4), 4)
    with pytest.raises(ArgumentError, match="length"):
        windows(np.arange(4), 0)


def test_the_licences_name_every_shipped_file():
    folder = Path(text.__file__).parent
    licences = (folder / "LICENSES.md").read_text()
    for path in folder.glob("*.xz"):
        assert path.name in licences
