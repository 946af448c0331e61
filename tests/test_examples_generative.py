"""The examples that make new samples, reduced: what they make is far from noise, and drawn."""

import pytest

from tests.test_examples import load


def test_vae_mnist_learns_to_rebuild_and_to_make_digits(tmp_path, capsys):
    picture = tmp_path / "vae.png"
    loss, found = load("vae_mnist").main(epochs=8, picture=str(picture))
    assert loss < 128  # from 550; 105.5 after ten epochs of all digits
    assert abs(found["other digits"]) < 0.003
    assert found["samples"] < found["digits with shuffled pixels"] / 2
    assert capsys.readouterr().out.endswith(f"test loss {loss:.2f}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_vae_mnist_tells_both_parts_of_its_bound():
    example = load("vae_mnist")
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
    found = load("diffusion_moons").main(epochs=20, picture=str(picture))
    noise, samples, other, split = found.values()
    assert noise > 0.02
    assert samples < noise / 10
    assert samples < 2 * split  # after 60 epochs it is less than one
    assert abs(other) < noise / 10
    assert "34434 parameters" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
