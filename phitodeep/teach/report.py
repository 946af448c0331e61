"""What grading returns: verdicts, points, and hints of several levels."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from phitodeep.core.checks import check_count
from phitodeep.core.table import NOTE, Shown, Table
from phitodeep.errors import ArgumentError

LEVELS = (
    "only what is right and what is wrong",
    "what is wrong: the worst cell, and the likely mistake",
    "also the formula",
    "also the line of code",
)
WIDTH = 88


def _folded(line: str) -> str:
    """A line in several; code is left whole."""
    if line.startswith("  "):
        return line
    whole = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), line)
    folded = textwrap.fill(whole, WIDTH - 9, break_long_words=False, break_on_hyphens=False)
    return folded.replace("\0", " ")


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    part      what was checked: "forward", a gradient such as "dW", or "a batch of 1"
    passed    whether it is right
    points    what it counts
    words     what was expected, what came, where, and by how much
    hints     what helps, one text for each hint level from 1 on; "" adds nothing
    """

    part: str
    passed: bool
    points: int
    words: str
    hints: tuple[str, str, str] = ("", "", "")

    def texts(self, level: int) -> list[str]:
        """The texts that are shown at a hint level."""
        return [text for text in ((self.words, *self.hints[:level]) if level else ()) if text]


@dataclass(frozen=True, repr=False)
class Grade(Shown):
    """A graded class: `score` from 0 to 1, `passed`, and one verdict per check.

    Printing it shows hints up to `level`; `hint(level)` returns the same text at another level.
    """

    name: str
    exercise: str
    seed: int
    verdicts: tuple[Verdict, ...]
    level: int = 1

    @property
    def points(self) -> int:
        return sum(verdict.points for verdict in self.verdicts if verdict.passed)

    @property
    def possible(self) -> int:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def score(self) -> float:
        """The share of all points, from 0 to 1."""
        return self.points / self.possible

    @property
    def passed(self) -> bool:
        """Whether everything is right."""
        return all(verdict.passed for verdict in self.verdicts)

    def __getitem__(self, part: str) -> Verdict:
        found = {verdict.part: verdict for verdict in self.verdicts}
        if part not in found:
            raise ArgumentError(
                f"no check is called {part!r}: the checks are {', '.join(map(repr, found))}."
            )
        return found[part]

    def hint(self, level: int) -> str:
        """The verdicts with hints up to a level from 0 to 3.

        0 shows only what is right and what is wrong; 1 adds the worst cell and the likely mistake,
        2 the formula, and 3 the line of code.
        """
        level = check_count(level, "the hint level", minimum=0)
        if level >= len(LEVELS):
            shown = ", ".join(f"{k} ({words})" for k, words in enumerate(LEVELS))
            raise ArgumentError(f"the hint level must be one of {shown}, got {level}.")
        rows = [f"{self.name}: {self.points} of {self.possible} points ({self.exercise})"]
        for verdict, lines in self._lines(level):
            word = "right" if verdict.passed else "wrong"
            rows.append(f"  {word}  {verdict.part}")
            rows += [textwrap.indent(_folded(line), " " * 9) for line in lines]
        return "\n".join(rows)

    def _lines(self, level: int) -> Iterator[tuple[Verdict, list[str]]]:
        """Yield each verdict and its lines; a text that was shown already is not repeated."""
        shown: dict[str, str] = {}
        for verdict in self.verdicts:
            lines: list[str] = []
            for text in verdict.texts(level):
                first = shown.setdefault(text, verdict.part)
                lines += text.splitlines() if first == verdict.part else [f"As for {first}."]
            yield verdict, list(dict.fromkeys(lines))

    def __str__(self) -> str:
        return self.hint(self.level)

    def _repr_html_(self) -> str:
        return re.sub("`([^`]*)`", r"<code>\1</code>", super()._repr_html_())

    def table(self) -> Table:
        """The same as a table, which notebooks show, with what is in backticks as code."""
        rows = []
        for verdict, lines in self._lines(self.level):
            first, *more = lines or [""]
            rows.append(("right" if verdict.passed else "wrong", verdict.part, first))
            rows += [("", "", line) for line in more]
        title = f"{self.name}: {self.points} of {self.possible} points"
        return Table(title, ("", "check", NOTE), rows, "")
