"""What all commands share: help, exit codes, errors without a traceback, and `--import`.

    0      success, also if the reader of the output stops early, as `head` does
    1      a check failed, or the user made a mistake: the message is on stderr
    2      the command was used wrongly, such as with an unknown option
    130    Ctrl-C

A PhitodeepError and an OSError are the user's mistakes. Any other error is a bug of phitodeep or of
the user's own module, and keeps its traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Self

import click
from rich.console import Console
from rich.text import Text

from phitodeep.core.version import __version__
from phitodeep.errors import ArgumentError, PhitodeepError, PhitodeepWarning, printable

INTERRUPTED = 130  # 128 plus the number of the signal, as in shells

ADVICE = {  # what a message tells Python programs to do -> what to do in a shell
    "import the module that has": "pass --import MODULE, the name of the module that has",
    "max_probes=None finds them": "a larger --probes finds them",
    "write .astype(int), or Select(columns, tokens=True) for columns of a table": (
        "all numbers in INPUT must be integers from 0"
    ),
}


def in_shell(error: Exception) -> str:
    """Return the message of an error, with advice that fits the command line."""
    message = str(error)
    for python, shell in ADVICE.items():
        message = message.replace(python, shell)
    return message


class Failure(click.ClickException):
    """An error that is shown in red, without a traceback."""

    def show(self, file: IO[Any] | None = None) -> None:
        _tell("Error", self.message, "bold red")


class App(click.Group):
    """The group of all commands."""

    @classmethod
    def of(cls, *commands: click.Command) -> Self:
        """Return the group of these commands, which it lists in this order."""
        app = cls(
            name="phitodeep",
            commands={str(command.name): command for command in commands},
            help="Deep learning in Python and NumPy. New here? Start with: phitodeep demo",
            epilog="phitodeep COMMAND --help explains a command, with an example.",
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        return click.version_option(__version__, prog_name="phitodeep")(app)

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.commands]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            if sys.stdout is None:  # it was closed
                stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(redirect_stdout(stream))
            elif isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
                sys.stdout.reconfigure(errors="replace")  # not every terminal can show all texts
            try:
                return super().main(*args, **kwargs)
            except OSError as error:  # of --help and --version
                _drop_output()
                Failure(str(error)).show()
                sys.exit(1)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # of --help and --version
            _drop_output()
            raise click.exceptions.Exit(0) from None

    def invoke(self, context: click.Context) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = 0
            try:
                try:
                    super().invoke(context)
                except click.exceptions.Exit as end:
                    code = end.exit_code
                sys.stdout.flush()  # now, so that a closed pipe is noticed here
            except BrokenPipeError:  # the reader of stdout is gone, as in `| head`
                _drop_output()
            except KeyboardInterrupt:
                raise click.exceptions.Exit(INTERRUPTED) from None
            except (PhitodeepError, OSError) as error:
                _drop_output()
                raise Failure(in_shell(error)) from error
            raise click.exceptions.Exit(code)


def _drop_output() -> None:
    """Drop the rest of the output if it cannot be written, as Python tries again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def number(
    *names: str, help: str, least: float = 0, kind: type = int, **more: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option that takes a number of at least `least`; its default is shown in the help."""
    ranges: dict[type, Any] = {int: click.IntRange, float: click.FloatRange}
    more = {"type": ranges[kind](min=least), "show_default": "default" in more, **more}
    return click.option(*names, help=help, **more)


class FilePath(click.Path):
    """The name of a file. A folder is a user's mistake, just as a missing file is."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_dir():
            raise Failure(f"{path} is a folder, but must be a file.")
        return path


def output_file(metavar: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option --output."""
    return click.option("--output", "-o", metavar=metavar, type=FilePath(), help=help)


def model_file(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument FILE and the option --import."""
    command = click.option(
        "--import",
        "-m",
        "modules",
        metavar="MODULE",
        multiple=True,
        expose_value=False,
        callback=_import,
        help="Import the Python module that registers the model's own layers.",
    )(command)
    return click.argument("file", type=FilePath())(command)


def _import(context: click.Context, option: click.Parameter, modules: tuple[str, ...]) -> None:
    """Import modules, also from the working directory."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in modules:
        try:
            if not name or name.startswith("."):  # importlib takes a dot for a relative import
                raise ModuleNotFoundError(name=name)
            importlib.import_module(name)
        except Exception as error:  # a module may raise anything
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if not f"{name}.".startswith(f"{missing}."):
                raise Failure(f"--import {name} failed.\n{_own_frames(error)}") from error
            own = name.removesuffix(".py").replace("/", ".").lstrip(".")
            hint = f" (--import {own}?)" if name.endswith(".py") and own else ""
            raise Failure(
                f"--import {name}: there is no module of this name in {os.getcwd()}, nor among the "
                f"installed ones{hint}."
            ) from error


def _own_frames(error: Exception) -> str:
    """Return the traceback of an error in a module, without the frames that imported it."""
    frame = error.__traceback__
    importing = (__name__, "importlib")
    while frame and frame.tb_frame.f_globals.get("__name__", "").startswith(importing):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


def refuse_overwriting(path: Path, force: bool) -> None:
    """Refuse to replace a file, unless --force was given."""
    if path.exists() and not force:
        raise ArgumentError(f"{path} exists: pass --output OTHER, or --force to replace it.")


def refuse_own(path: Path, *read: Path) -> None:
    """Refuse to write to a file that the command reads."""
    if path.exists() and any(other.exists() and path.samefile(other) for other in read):
        raise ArgumentError(f"{path} is a file that this command reads: pass --output OTHER.")


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """Show warnings of phitodeep like its errors, without a line of code."""
    shown = str(message)
    if not issubclass(category, PhitodeepWarning):
        shown = warnings.formatwarning(message, category, filename, lineno).strip()
    _tell("Warning", shown, "yellow")


def _tell(kind: str, message: str, style: str) -> None:
    """Print a message on stderr: its first word in colour if that is a terminal."""
    console = Console(stderr=True)
    console.print(Text.assemble((f"{kind}: ", style), printable(message)), soft_wrap=True)
