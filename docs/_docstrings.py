"""Convert phitodeep's docstrings, which are plain text, to Markdown for mkdocstrings.

In the source they are laid out for reading and for `help()`: formulas are indented, and names
stand in a column next to their descriptions. On a page, formulas become preformatted blocks,
columns become definition lists, labels such as `Backward:` start paragraphs, and characters with
a meaning in Markdown are escaped. A class without a docstring, such as `Conv2D`, gets the docstring
of its base class.

A layer, loss or optimizer that has a page shows its formulas as that page does; the derivation of
its docstring is folded below them, and its arguments are a table.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import griffe

from website import api, options

COLUMNS = re.compile(r"(\S+(?: \S+)*) {2,}(\S.*)")
BOLD = re.compile(r"\*\*[^*]+\*\*")
LONGEST = 78  # characters of a formula that fit on a page next to both columns of links
LABEL = re.compile(r"([A-Z][a-z]+(?: (?:and|by|the|their|of)? ?[a-z]+){0,4}): |(Backward)\. ")
FOLD = '<details markdown="1"><summary>Details, with the formulas as plain text</summary>'
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


class PlainText(griffe.Extension):
    """Convert each docstring to Markdown, once."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None and isinstance(obj, griffe.Class):
            inherit(obj)
        if obj.docstring is None or "text" in obj.extra["phitodeep"]:
            return
        text = obj.extra["phitodeep"]["text"] = obj.docstring.value
        cls = api.classes().get(obj.path)
        if cls is not None and "__init__" in vars(cls) and "__init__" not in obj.members:
            obj.set_member("__init__", constructor(cls))
        obj.docstring.value = markdown(text) if cls is None else entry(text, cls)


def constructor(cls: type) -> griffe.Function:
    """The constructor of a class whose settings are annotated lines, which griffe does not see."""
    given = [
        griffe.Parameter(
            p.name,
            kind=griffe.ParameterKind(p.kind.description),
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in inspect.signature(vars(cls)["__init__"]).parameters.values()
    ]
    return griffe.Function("__init__", parameters=griffe.Parameters(*given))


def inherit(cls: griffe.Class) -> None:
    """Give a class the docstring of a base class in the same module, if one has a docstring."""
    for name in map(str, cls.bases):
        base = cls.module.members.get(name)
        if base is not None and not base.is_alias and base.docstring is not None:
            text = base.extra["phitodeep"].get("text", base.docstring.value)
            cls.docstring = griffe.Docstring(text, parent=cls)
            return


def markdown(text: str) -> str:
    """Convert a docstring to Markdown."""
    return "\n\n".join(pieces(text)) + "\n"


def entry(text: str, cls: type) -> str:
    """Convert the docstring of a class that has a page: its plain formulas are folded."""
    found = [piece for piece in pieces(text) if not describes(piece, cls)]
    typeset = api.formulas(cls)
    plain = [i for i, piece in enumerate(found) if piece.startswith("```")] if typeset else []
    if plain:
        start, end = plain[0], plain[-1] + 1
        start -= start > 1 and not found[start - 1].endswith(".")  # "Forward, for one head:"
        end += end < len(found) and found[end][0].islower()  # "so dW is ..."
        folded = [FOLD, *found[start:end], "</details>"]
    else:
        start = next(
            (i for i, piece in enumerate(found) if piece.startswith("**Source")), len(found)
        )
        end, folded = start, []
    shown = [piece for piece in (options.table(cls), typeset) if piece]
    return "\n\n".join([*found[:start], *shown, *folded, *found[end:]]) + "\n"


def describes(piece: str, cls: type) -> bool:
    """Whether a piece is an argument's entry, which the table of arguments has."""
    names = {name for name, _ in options.arguments(cls)}
    term = re.match(r"`([\w, ]+)`\n:", piece)
    return term is not None and names.issuperset(term[1].split(", "))


def pieces(text: str) -> list[str]:
    """A docstring as blocks of Markdown."""
    paragraphs = [list(lines) for full, lines in groupby(text.splitlines(), bool) if full]
    blocks = (block(lines, not i) for i, lines in enumerate(joined(paragraphs)))
    return [piece for pieces in blocks for piece in pieces]


def joined(paragraphs: list[list[str]]) -> Iterator[list[str]]:
    """Join neighbouring indented paragraphs into one, with blank lines between them."""
    for indented, group in groupby(paragraphs, lambda lines: lines[0].startswith("    ")):
        if indented:
            yield [line for lines in group for line in ["", *lines]][1:]
        else:
            yield from group


def block(lines: list[str], summary: bool) -> Iterator[str]:
    """Convert one paragraph of a docstring; the summary is its first one."""
    if lines[0].startswith("    "):
        depth = min(len(line) - len(line.lstrip()) for line in lines if line)
        narrow = (part for line in lines for part in shortened(line[depth:]))
        yield "\n".join(["```text", *narrow, "```"])
    elif COLUMNS.fullmatch(lines[0]):
        entries = next((i for i, line in enumerate(lines) if ends(line)), len(lines))
        yield from columns(lines[:entries])
        if lines[entries:]:
            yield from prose(lines[entries:], False)
    else:
        yield from prose(lines, summary)


def shortened(line: str) -> list[str]:
    """A line of formulas; if it is too long, each formula has a line of its own."""
    return [line] if len(line) <= LONGEST else re.split(r" {4,}(?=\S)", line)


def ends(line: str) -> bool:
    """Whether a line ends a column of names: it is neither an entry nor indented."""
    return COLUMNS.fullmatch(line) is None and not line.startswith(" ")


def columns(lines: list[str]) -> Iterator[str]:
    """Convert names and their descriptions; an indented line continues a description."""
    entries: list[str] = []
    for line in lines:
        found = COLUMNS.fullmatch(line)
        if found:
            entries.append(f"`{found[1].replace('`', '')}`\n:   {escaped(found[2])}")
        else:
            entries[-1] += f"\n    {escaped(line.strip())}"
    yield from entries


def prose(lines: list[str], summary: bool) -> Iterator[str]:
    """Convert sentences; a label that follows the end of a sentence starts a new paragraph.

    The first line of a docstring has no label, even if it has a colon.
    """
    paragraph: list[str] = []
    for i, line in enumerate(lines):
        label = LABEL.match(line) if i or not summary else None
        if label and (not paragraph or paragraph[-1].endswith((".", ":", ";"))):
            if paragraph:
                yield "\n".join(paragraph)
            end = label.end() - 1
            paragraph = [f"**{line[:end]}**{escaped(line[end:])}"]
        else:
            bold = None if paragraph else BOLD.match(line)
            start = bold.end() if bold else 0
            paragraph.append(line[:start] + escaped(line[start:]))
    yield "\n".join(paragraph)


def escaped(line: str) -> str:
    """Escape Markdown's special characters, except between backticks."""
    parts = re.split(r"(`[^`]*`)", line)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*_>|\[\]])", r"\\\1", parts[i]).replace("<", "&lt;")
        parts[i] = ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", parts[i])
    line = "".join(parts)
    return re.sub(r"^([-+#=])", r"\\\1", line)
