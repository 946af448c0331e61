"""Every example runs, reduced, and reaches what it claims.

Where that takes many seconds, the example only runs here, and a long run sees what it reaches.
"""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from phitodeep.data import CharTokenizer, load_mnist, load_text
from tests.rows import LONG

EXAMPLES = Path(__file__).parent.parent / "examples"


def digits(count):
    """`load_mnist`, with so many digits."""
    return lambda *_, **__: [array[:count] for array in load_mnist()]


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mnist_learns_draws_its_mistakes_and_ends_with_its_accuracy(capsys):
    load("mnist").train_digits(epochs=1, show=2)
    out = capsys.readouterr().out
    assert float(out.strip().rpartition("\ntest accuracy ")[2]) > 0.88
    assert out.count("read as") == 2
    assert "█" in out


def test_mnist_datasets_runs_the_quickstart_on_a_hub_dataset(monkeypatch, capsys):
    X, y, *test = digits(1500)()

    def load_dataset(name, split):
        assert name == "ylecun/mnist"
        images, labels = {"train": (X, y), "test": test}[split]
        return {"image": list((images * 255).astype(np.uint8)), "label": list(labels)}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    example = load("mnist_datasets")
    assert example.main(alpha=0.001, epochs=2) > 0.6
    assert example.main(alpha=0.05, epochs=2) > 0.5


def test_manual_loop_learns_and_a_wrong_layer_is_diagnosed(capsys):
    example = load("manual_loop")
    example.load_mnist = digits(4000)
    assert example.main(epochs=2) > 0.88
    assert "dW has shape (784, 128)" in capsys.readouterr().out
    message = load("custom_layer").main()
    assert "exactly 5 (the batch size) times too small" in message


def few_characters(name):
    """The beginning of a text, with all characters that the text has."""
    text = load_text(name)
    return text[:40_000] + "".join(sorted({*text}))


def test_char_gpt_learns_and_writes(capsys):
    steps, loss = (40, 3.3) if LONG else (5, 4.1)  # log 65 is 4.17
    example = load("char_gpt")
    if not LONG:
        example.load_text = few_characters
    assert example.main(steps=steps, write=20 if LONG else 3) < loss
    assert "validation loss" in capsys.readouterr().out


def test_lora_tunes_on_names_what_was_trained_on_plays(capsys):
    steps = {"steps": 30, "tuning": 20} if LONG else {"steps": 4, "tuning": 2}
    example = load("lora")
    if not LONG:
        example.split = lambda tokens: (tokens[:-2000], tokens[-2000:])
    losses = example.main(**steps, rank=4, write=5)
    base, tuned, merged = losses.values()
    assert tuned[1] < base[1]
    if LONG:
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
    example = load("mnist_cnn")
    if not LONG:
        example.load_mnist = digits(600)
    assert example.main(epochs=1, small=True) > (0.9 if LONG else 0.4)


# --- names, spirals and an LSTM ------------------------------------------------------------------


def test_counted_and_learnt_bigrams_agree(capsys):
    counted, learnt = load("names_bigram").main(steps=300, write=4)
    assert f"{counted:.4f}" == "2.4546"
    assert 2.4538 < learnt < 2.456
    out = capsys.readouterr().out
    assert "counting 228,146 pairs" in out
    assert len(out.rpartition("generated:")[2].split()) >= 3


def test_the_mlp_of_names_has_12297_parameters_and_learns():
    example = load("names_mlp")
    assert example.build(27, 10).count_params() == 12_297
    assert example.main(epochs=2, names=1500) < 2.7  # log 27 is 3.30
    X, y = example.contexts(["ab", "c"], CharTokenizer("\nabc"))
    np.testing.assert_array_equal(X, [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 3]])
    np.testing.assert_array_equal(y, [1, 2, 0, 3, 0])


def test_the_transformer_of_names_learns_and_writes(capsys):
    example = load("names_transformer")
    assert example.main(epochs=2, names=800, write=5) < 2.9  # log 27 is 3.30
    *_, names, last = capsys.readouterr().out.strip().splitlines()
    assert last.startswith("validation loss")
    known = set(load_text("names").split("\n"))
    assert len(names.split()) == 5
    assert not known & set(names.split()[:1])
    X, y = example.padded(["ab"], CharTokenizer("\nab"))
    np.testing.assert_array_equal(X[0, :4], [0, 1, 2, 0])
    np.testing.assert_array_equal(y[0, :4], [1, 2, 0, example.IGNORED])


def test_the_lstm_learns_and_writes(capsys):
    example = load("char_lstm")
    example.load_text = few_characters
    assert example.main(steps=60, units=48, write=20) < 3.1  # log 65 is 4.17
    assert "validation loss" in capsys.readouterr().out


def test_spirals_and_moons_are_learnt_and_drawn(tmp_path, capsys):
    epochs, least = (100, 0.99) if LONG else (40, 0.95)
    picture = tmp_path / "points.png"
    for example, accuracy, size in ((load("spirals"), least, 4547), (load("moons"), 1.0, 337)):
        assert example.main(epochs, picture=str(picture)) >= accuracy
        assert capsys.readouterr().out.startswith(f"{size} parameters")
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


# --- examples that make new samples --------------------------------------------------------------


def test_vae_mnist_learns_to_rebuild_and_to_make_digits(tmp_path, capsys):
    picture = tmp_path / "vae.png"
    example = load("vae_mnist")
    if not LONG:
        example.load_mnist = digits(3000)
        example.COMPARED = 300
    loss, found = example.main(epochs=8 if LONG else 1, picture=str(picture))
    assert loss < (128 if LONG else 250)  # from 550; 105.5 after ten epochs of all digits
    assert abs(found["other digits"]) < (0.003 if LONG else 0.006)
    if LONG:
        assert found["samples"] < found["digits with shuffled pixels"] / 2
    assert capsys.readouterr().out.endswith(f"test loss {loss:.2f}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    model = example.vae(784, 30, latent=example.LATENT).seed(0).build()
    X = example.load_mnist()[2].reshape(-1, 784)
    reconstruction, divergence = example.bound(model, X)
    assert reconstruction > 500  # 784 log 2 is 543
    assert divergence > 0
    drawn, same = example.bound(model, X)  # other draws, the same distributions
    assert drawn != reconstruction
    assert drawn == pytest.approx(reconstruction, rel=0.02)
    assert same == pytest.approx(divergence, rel=1e-6)


def test_diffusion_turns_noise_into_moons(tmp_path, capsys):
    picture = tmp_path / "diffusion.png"
    size = {"epochs": 20, "points": 1000} if LONG else {"epochs": 1, "points": 100}
    found = load("diffusion_moons").main(**size, picture=str(picture))
    noise, samples, other, split = found.values()
    assert noise > 0.01
    assert samples < noise
    if LONG:
        assert abs(other) < noise / 10
        assert samples < noise / 10
        assert samples < 2 * split  # after 60 epochs it is less than one
    assert "34434 parameters" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_differential_equations_are_solved_and_drawn(tmp_path, capsys):
    size = {} if LONG else {"points": 200, "iterations": 200}
    errors = load("differential_equations").main(**size, picture=str(tmp_path / "solutions.png"))
    assert [*errors] == ["heat", "Burgers", "Poisson"]
    assert max(errors.values()) < (0.01 if LONG else 0.15)
    assert capsys.readouterr().out.count("% from the reference") == 3
    assert (tmp_path / "solutions.png").read_bytes().startswith(b"\x89PNG")


def test_every_example_is_tested():
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f'load("{path.stem}")' in tests


# --- networks of named values --------------------------------------------------------------------


def test_two_heads_answer_questions_about_digits():
    example = load("two_heads")
    if not LONG:
        example.load_mnist = digits(2000)
    digit, answer = example.main(epochs=8 if LONG else 2)
    assert digit > (0.92 if LONG else 0.75)
    assert answer > (0.94 if LONG else 0.65)


def test_a_toy_language_is_translated():
    exact = load("translation").main(**({} if LONG else {"epochs": 4, "n": 2000}))
    assert exact > (0.95 if LONG else 0.5)


def test_a_unet_finds_shapes(tmp_path):
    if LONG:
        assert load("unet_shapes").main(picture=tmp_path / "unet.png") > 0.9
        assert (tmp_path / "unet.png").stat().st_size > 10_000
    else:
        assert load("unet_shapes").main(epochs=3, n=200) > 0.15


def test_dense_connections_and_gates_learn_digits():
    example = load("dense_and_gated")
    if not LONG:
        example.load_mnist = digits(2000)
    found = example.main(**({} if LONG else {"epochs": 1, "n": 600}))
    assert min(found) > (0.93 if LONG else 0.2)


def test_a_siamese_network_tells_digits_apart():
    found = load("siamese_digits").main(**({} if LONG else {"epochs": 2, "n": 1500}))
    assert found > (0.8 if LONG else 0.3)


def test_a_gan_draws_moons():
    apart, usual = load("gan_moons").main(steps=4000 if LONG else 300)
    assert apart < (2 if LONG else 6) * usual


def test_actor_and_critic_walk_around_the_cliff():
    example = load("actor_critic")
    costs = example.main(**({} if LONG else {"seeds": 1, "steps": 150}))
    assert max(costs) < 0.1 * example.SHORTEST + 1e-9


def test_an_autoencoder_also_names_digits():
    example = load("two_head_autoencoder")
    if not LONG:
        example.load_mnist = digits(4000)
    left, accuracy = example.main(epochs=8 if LONG else 3)
    assert left < (0.55 if LONG else 0.9)
    assert accuracy > (0.9 if LONG else 0.6)


def test_a_head_with_few_targets_learns_from_the_others():
    alone, together = load("multitask_table").main(epochs=30 if LONG else 12)
    assert together > alone + 0.1
