"""`phitodeep export`."""

from __future__ import annotations

from pathlib import Path

import click

from phitodeep.cli.app import model_file, refuse_overwriting, refuse_own
from phitodeep.sequential import load

EXPORTS = {  # format -> the method that writes it, and the endings of its files
    "numpy": ("export_numpy", (".py", ".npz")),
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
@click.option("--force", is_flag=True, help="Replace files that exist.")
def export(file: Path, form: str, output: Path | None, force: bool) -> None:
    """Write a model in another format.

    \b
    Formats:
      numpy    a Python file that needs nothing but NumPy, and its weights (.npz)

    \b
    Example:
      phitodeep export digits.safetensors --to numpy --output net.py
    """
    method, (first, *others) = EXPORTS[form]
    target = _ending(file, first) if output is None else output
    written = [target, *(_ending(target, other) for other in others)]
    for path in written:
        refuse_own(path, file)
        refuse_overwriting(path, force)
    getattr(load(file), method)(target)
    for path in written:
        click.echo(f"Wrote {path}, {path.stat().st_size:,} bytes.")


def _ending(path: Path, suffix: str) -> Path:
    """Return the path with another ending; unlike `with_suffix`, also of an empty name."""
    return path.parent / f"{path.stem}{suffix}"
