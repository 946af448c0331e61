"""`phitodeep export`."""

from __future__ import annotations

import re
import sys
from keyword import iskeyword
from pathlib import Path

import click

from phitodeep.cli.app import model_file, output_file, refuse_overwriting, refuse_own
from phitodeep.cli.inputs import sample_shapes
from phitodeep.errors import ArgumentError, NotBuiltError
from phitodeep.exchange.onnx.write.export import OPSET, files_of
from phitodeep.exchange.torch.write.writing import export_torch
from phitodeep.model.model import Model
from phitodeep.model.sequential import load

ENDINGS = {"numpy": ".py", "onnx": ".onnx", "torch": ".pt2"}


@click.command()
@model_file
@click.option("--to", "form", type=click.Choice([*ENDINGS]), required=True, help="The format.")
@output_file("FILE", "The file to write; by default FILE with the ending of the format.")
@click.option(
    "--opset", type=int, help=f"For onnx: the version of its operators, by default {OPSET}."
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def export(file: Path, form: str, output: Path | None, opset: int | None, force: bool) -> None:
    """Write a model in another format.

    \b
    Formats:
      numpy    a Python file that needs nothing but NumPy, and its weights (.py, .npz)
      onnx     a graph of standard operators, for onnxruntime and other programs (.onnx)
      torch    a program for torch.export.load, without phitodeep (.pt2)

    \b
    Example:
      phitodeep export digits.safetensors --to numpy --output net.py
    """
    if opset is not None and form != "onnx":
        raise click.UsageError(f"--opset is for --to onnx, not for --to {form}.")
    ending = ENDINGS[form]
    target = _default(file, ending) if output is None else output
    _check_name(target, ending)
    model = _built(file)
    written = files_of(model, target) if form == "onnx" else [target]
    written += [target.with_suffix(".npz")] if form == "numpy" else []
    for path in written:
        refuse_own(path, file)
        refuse_overwriting(path, force)
    if form == "onnx":
        model.export_onnx(target, OPSET if opset is None else opset)
    elif form == "torch":
        export_torch(model, target)
    else:
        model.export_numpy(target)
    for path in written:
        click.echo(f"Wrote {path}, {path.stat().st_size:,} bytes.")


def _built(file: Path) -> Model:
    """Return the model, built for the input shape that the file or its settings determine."""
    model: Model = load(file)
    shapes = sample_shapes(model)
    if not shapes:
        raise NotBuiltError(
            f"{file} does not determine the model's input shape, which the export needs: train the "
            "model, or call model.build(input_shape), before model.save."
        )
    if model.input_shape is None:
        model.build(*shapes.values())
    return model


def _default(file: Path, ending: str) -> Path:
    """Return the name of the file with this ending; a module's name is changed to be importable."""
    if ending != ".py":
        return file.with_name(f"{file.stem}{ending}")
    name = file.with_name(re.sub(r"\W", "_", file.stem) + ending)
    return name if _is_module(name) else name.with_name(f"model_{name.name}")


def _check_name(path: Path, ending: str) -> None:
    if ending == ".py" and not _is_module(path):
        raise ArgumentError(
            f"--output {path}: the file is a Python module, so its name must be an identifier "
            "with the ending .py, which no module of Python or NumPy has: try --output net.py."
        )
    if path.suffix != ending:
        raise ArgumentError(
            f"--output {path}: the name must have the ending {ending}: try --output net{ending}."
        )


def _is_module(path: Path) -> bool:
    """Return whether Python can import a file of this name, and it hides no other module."""
    name = path.stem
    taken = iskeyword(name) or name in {"numpy", *sys.stdlib_module_names}
    return path.suffix == ".py" and name.isidentifier() and not taken
