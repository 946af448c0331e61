"""`phitodeep export`."""

from __future__ import annotations

from pathlib import Path

import click

from phitodeep.cli.app import model_file, refuse_overwriting
from phitodeep.sequential import load

EXPORTS = {  # format -> the method that writes it, and the suffix of its files
    "numpy": ("export_numpy", ".py"),
}


@click.command()
@model_file
@click.option("--to", "form", type=click.Choice([*EXPORTS]), required=True, help="The format.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default FILE with another ending.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def export(file: Path, form: str, output: Path | None, force: bool) -> None:
    """Write a model in another format.

    \b
    Formats:
      numpy    a Python file that needs nothing but NumPy

    \b
    Example:
      phitodeep export digits.safetensors --to numpy --output net.py
    """
    method, suffix = EXPORTS[form]
    target = file.with_suffix(suffix) if output is None else output
    refuse_overwriting(target, force)
    getattr(load(file), method)(target)
    click.echo(f"Wrote {target}, {target.stat().st_size:,} bytes.")
