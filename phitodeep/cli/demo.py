"""`phitodeep demo`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import numpy as np

from phitodeep.cli.app import FilePath, number
from phitodeep.cli.digits import train_digits
from phitodeep.core.files import make_folder
from phitodeep.data import load_mnist
from phitodeep.model.sequential import Sequential

SAMPLES = 10


@click.command()
@number("--epochs", least=1, default=15, help="Number of epochs to train.")
@number("--show", default=6, help="Number of mistakes to draw.")
@click.option(
    "--save",
    metavar="FILE",
    type=FilePath(),
    help="Keep the model, and ten test images next to it.",
)
def demo(epochs: int, show: int, save: Path | None) -> None:
    """Train a network on handwritten digits, in seconds.

    The digits come with phitodeep: the first 10,000 training images and 1,000 test images of MNIST.
    With --save, you can try the other commands on the saved files.

    \b
    Example:
      phitodeep demo --save digits.safetensors
    """
    if save is not None:
        make_folder(save.parent)  # so that a path that cannot be used is noticed before training
    model = train_digits(epochs, show)
    if save is None:
        click.echo("To try the other commands: phitodeep demo --save digits.safetensors")
    else:
        _keep(model, save)


def _keep(model: Sequential, file: Path) -> None:
    """Save the model and some images, and print which commands to try on them."""
    images = file.with_name(f"{file.stem}-images.npy")
    _, _, X_test, y_test = load_mnist()
    model.save(file)
    np.save(images, X_test[:SAMPLES])
    model_file, inputs = (shlex.quote(str(path)) for path in (file, images))
    click.echo(
        f"""
Saved the model in {file} and {SAMPLES} test images in {images}. Try:
  phitodeep info {model_file}
  phitodeep check {model_file}
  phitodeep predict {model_file} {inputs} --classes
  phitodeep export {model_file} --to numpy
The digits on the images are {" ".join(map(str, y_test[:SAMPLES]))}."""
    )
