"""Every example runs, reduced, and reaches what it claims."""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from phitodeep.data import load_mnist

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mnist_learns_and_ends_with_its_accuracy(capsys):
    load("mnist").train_digits(epochs=3, show=3)
    *_, last = capsys.readouterr().out.strip().splitlines()
    assert float(last.removeprefix("test accuracy ")) > 0.91


def test_mnist_draws_its_mistakes(capsys):
    load("mnist").train_digits(epochs=1, show=2)
    out = capsys.readouterr().out
    assert out.count("read as") == 2
    assert "█" in out


def test_mnist_datasets_runs_the_quickstart_on_a_hub_dataset(monkeypatch, capsys):
    X, y, X_test, y_test = load_mnist()
    parts = {"train": (X[:3000], y[:3000]), "test": (X_test, y_test)}

    def load_dataset(name, split):
        assert name == "ylecun/mnist"
        images, labels = parts[split]
        return {"image": list((images * 255).astype(np.uint8)), "label": list(labels)}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    example = load("mnist_datasets")
    assert example.main(alpha=0.001, epochs=3) > 0.85
    assert example.main(alpha=0.05, epochs=3) > 0.7


def test_manual_loop_learns(capsys):
    assert load("manual_loop").main(epochs=2) > 0.92
    assert "dW has shape (784, 128)" in capsys.readouterr().out


def test_moons_reach_100_percent_with_337_parameters(tmp_path, capsys):
    picture = tmp_path / "moons.png"
    assert load("moons").main(picture=str(picture)) == 1.0
    assert capsys.readouterr().out.startswith("337 parameters")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_custom_layer_is_proved_and_the_wrong_one_diagnosed():
    message = load("custom_layer").main()
    assert "exactly 5 (the batch size) times too small" in message


def test_char_gpt_learns_and_writes(capsys):
    assert load("char_gpt").main(steps=40, write=20) < 3.3  # log 65 is 4.17
    assert "validation loss" in capsys.readouterr().out


def test_lora_tunes_on_names_what_was_trained_on_plays(capsys):
    losses = load("lora").main(steps=30, tuning=20, rank=4, write=20)
    base, tuned, merged = losses.values()
    assert base[0] < 3.5  # log 65 is 4.17
    assert tuned[1] < base[1] - 0.3
    assert tuned[0] > base[0]
    np.testing.assert_allclose(merged, tuned, rtol=1e-4)
    out = capsys.readouterr().out
    assert "The base model writes:" in out
    assert "The tuned model writes:" in out
    sizes = [int(word.replace(",", "")) for word in out.split() if word.replace(",", "").isdigit()]
    assert sizes[-1] < sizes[-2] / 10  # bytes of the updates and of the whole model


def test_mnist_cnn_learns():
    assert load("mnist_cnn").main(epochs=1, small=True) > 0.9


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_every_example_is_tested(path):
    tests = Path(__file__).parent.rglob("test_*.py")
    assert any(f'load("{path.stem}")' in test.read_text() for test in tests)
