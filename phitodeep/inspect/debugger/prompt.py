"""The debugger in a terminal: `Debugger.prompt`, with the commands of Python's own debugger."""

from __future__ import annotations

import cmd
import sys
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from phitodeep.core.table import facts
from phitodeep.errors import ArgumentError, PhitodeepError

AROUND = 4  # steps before and after the next one that each movement shows
INTRO = """One step of training: s runs the next step, h lists the commands, q leaves.
|A| is the root mean square of A, where A has too many numbers to show."""
COLOURS = {  # patterns of what is shown -> styles of rich that are readable on light and on dark
    r"(?m)^->.*$": "bold green",
    r"(?m)^ \*.*$": "bold magenta",
    r"(?m)^(?:[\w.]+\.)?(?:forward|backward) of .*$": "bold",
    r"━+╸?|╸": "green",
    r"─+": "bright_black",
    r"(?m)^\*\*\* .*$": "red",
}


def _count(rest: str) -> int:
    return int(rest) if rest else 1


TAKES: dict[str, Callable[[str], Any]] = {"until": str, "back": _count}  # what movements take


def _movement(method: str, text: str) -> Callable[[Prompt, str], None]:
    """The command that moves the debugger by this method, and shows the new place."""

    def do(self: Prompt, rest: str) -> None:
        getattr(self.db, method)(*([TAKES[method](rest)] if method in TAKES else []))
        self.view()

    do.__doc__ = text
    return do


class Prompt(cmd.Cmd):
    """Reads commands and shows what the debugger does; see `Debugger.prompt`."""

    prompt = "(phi) "

    def __init__(self, db: Any, stdin: TextIO | None = None, stdout: TextIO | None = None) -> None:
        """Takes a debugger; without stdin, it reads from the terminal with history."""
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.db = db

    def run(self) -> None:
        """Read and run commands until q or the end of the input."""
        self.say(INTRO)
        self.view()
        while True:
            try:
                self.cmdloop("")
                return
            except KeyboardInterrupt:
                self.say("\n(Ctrl-C; q leaves)")

    def onecmd(self, line: str) -> bool:
        """Run one command; an error is one line, and the prompt goes on."""
        try:
            return bool(super().onecmd(line))
        except KeyboardInterrupt:
            self.db._restart([*self.db._values])  # it may have ended the program
            self.say("\nCtrl-C: stopped here")
            self.view()
        except PhitodeepError as error:
            self.fail(str(error))
        except Exception as error:  # an expression that the user typed may raise anything
            self.fail(f"{type(error).__name__}: {error}")
        return False

    # --- showing ---------------------------------------------------------------------------

    def say(self, text: object) -> None:
        """Print a text, with colours if this is a terminal."""
        if sys.platform == "emscripten":
            print(text, file=self.stdout)
            return
        from rich.console import Console
        from rich.text import Text

        shown = Text(str(text))
        for pattern, style in COLOURS.items():
            shown.highlight_regex(pattern, style)
        Console(file=self.stdout, force_jupyter=False).print(shown, soft_wrap=True)

    def fail(self, message: str) -> None:
        self.say(f"*** {' '.join(message.split())}")

    def view(self) -> None:
        """Show how far the step has come, and the steps around the next one."""
        db = self.db
        loss = "" if db.loss is None else f"   L = {db.loss:.4g}"
        self.say(f"\n{db.progress()}{loss}")
        if db.position is None:
            self.say("the end: diff shows what your edits moved; back, restart or q")
            return
        self.say(f"{db.where().splitlines()[0]}\n{db.list(AROUND)}")

    # --- moving ----------------------------------------------------------------------------

    def do_s(self, rest: str) -> None:
        """s [count]: run the next step, or several, and show the last value"""
        self.db.step(_count(rest))
        self.say(_shown(self.db.value, f"{self.db.last.name} = "))
        self.view()

    do_n = _movement("next", "n: run to the end of this layer's pass")
    do_c = _movement("cont", "c: run to the next breakpoint, or to the end")
    do_until = _movement("until", "until key: run until this symbol is known: until 1.backward.dW")
    do_back = _movement("back", "back [count]: undo the last step, or several; also z")
    do_restart = _movement("restart", "restart: go back to the start, and forget all edits")

    # --- looking ---------------------------------------------------------------------------

    def do_w(self, rest: str) -> None:
        """w: show where we are: layer, pass and next step"""
        self.say(f"{self.db.progress()}\n{self.db.where()}")

    def do_l(self, rest: str) -> None:
        """l: list all steps of this pass, with the shape and |size| of their values"""
        self.say(self.db.list())

    def do_p(self, rest: str) -> None:
        """p expression: print a symbol or an expression: p dY, p 1.Y, p abs(dX).max()"""
        self.say(_shown(self.db.p(rest)))

    def do_why(self, rest: str) -> None:
        """why symbol cell: show the terms of one cell's sum: why dW 2 3"""
        if not rest.strip():
            raise ArgumentError("why takes a symbol and a cell, such as why dW 2 3.")
        symbol, *cell = rest.replace("[", " ").replace("]", " ").replace(",", " ").split()
        self.say(self.db.why(symbol, *map(int, cell)))

    def do_diff(self, rest: str) -> None:
        """diff: show what the edits have moved so far"""
        self.say(self.db.diff())

    # --- changing --------------------------------------------------------------------------

    def do_b(self, rest: str) -> None:
        """b [place[, condition]]: stop there; list: b 2.backward, abs(dX).max() > 10"""
        if not rest:
            self.say("\n".join(map(str, self.db.breaks)) or "no breakpoints")
            return
        key, _, when = (part.strip() for part in rest.partition(","))
        self.say(f"stops at {self.db.set_break(key, when or None)}")

    def do_cl(self, rest: str) -> None:
        """cl [place]: clear the breakpoints of a place, or all"""
        self.db.clear_break(rest or None)
        self.do_b("")

    def do_e(self, rest: str) -> None:
        """e symbol = value: replace a symbol or some of its cells: e dY[0, 3] = 0.0"""
        place, _, value = rest.partition("=")
        self.db.edit(place.strip(), self.db.p(value.strip()))
        self.view()

    # --- leaving ---------------------------------------------------------------------------

    def do_q(self, rest: str) -> bool:
        """q: leave; the debugger stays where it is"""
        return True

    def do_EOF(self, rest: str) -> bool:
        """Ctrl-D: the same as q"""
        self.say("")
        return True

    def do_help(self, arg: str) -> None:
        """h [command]: list the commands, or show one"""
        if arg:
            found = getattr(self, f"do_{arg}", None)
            self.say(found.__doc__) if found else self.fail(f"no command {arg!r}: h lists them")
            return
        found = dict.fromkeys(f for name, f in vars(Prompt).items() if name.startswith("do_"))
        self.say(facts(dict(f.__doc__.split(": ", 1) for f in found)))

    do_step, do_next, do_cont, do_continue, do_z = do_s, do_n, do_c, do_c, do_back
    do_where, do_list, do_ll, do_break, do_clear = do_w, do_l, do_l, do_b, do_cl
    do_edit, do_quit, do_exit, do_h, do_unt = do_e, do_q, do_q, do_help, do_until

    def default(self, line: str) -> None:
        """Print the value of what is no command, as Python's debugger does."""
        self.do_p(line.removeprefix("!"))

    # --- completion ------------------------------------------------------------------------

    def completedefault(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Complete breakpoints, places such as 1.backward.dW, or symbols of the layer that runs."""
        command, names = line.split()[0], self.db.symbols()
        if command in ("cl", "clear"):
            names = [found.key for found in self.db.breaks]
        elif command in ("b", "break", "until", "unt") and "," not in line[:begin]:
            names = self.db.places()
        return [name for name in names if name.startswith(text)]


def _shown(value: Any, prefix: str = "") -> str:
    """A value as text; of a large array, the corners."""
    array = np.asarray(value)
    numbers = np.array2string(
        array, precision=4, suppress_small=True, threshold=64, edgeitems=3, max_line_width=78,
        prefix=prefix,
    )  # fmt: skip
    shape = f"   {array.shape}" if array.size > 64 else ""
    return f"{prefix}{numbers}{shape}"
