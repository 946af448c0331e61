"""Text tables, drawn by rich in a terminal and in Jupyter, plain elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phitodeep.errors import printable

NOTE = "note"  # the name of a column of texts after the numbers
READABLE = 14  # the smallest width of all texts together in a terminal


@dataclass(frozen=True)
class Table:
    """Rows of text below a header; the first `left` columns, and notes, are aligned to the left."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    totals: str
    left: int = 2
    styles: Mapping[str, str] = field(default_factory=dict)  # of rich, by the text of a cell

    def __str__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [
            "  ".join(
                c.ljust(w) if i < self.left or name == NOTE else c.rjust(w)
                for i, (name, c, w) in enumerate(zip(self.head, line, widths, strict=True))
            )
            for line in lines
        ]
        return printable("\n".join([self.title, *(line.rstrip() for line in aligned), self.totals]))

    def html(self) -> str:
        """The table in HTML, in the colours of the page around it."""
        sides = ["left" if i < self.left or n == NOTE else "right" for i, n in enumerate(self.head)]

        def row(tag: str, cells: Sequence[str]) -> str:
            styled = (
                f'<{tag} style="text-align:{side}">{escaped(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(styled)}</tr>"

        above, below = (
            f'<div style="white-space:pre-wrap">{escaped(text.strip())}</div>'
            if text.strip()
            else ""
            for text in (self.title, self.totals)
        )
        body = "".join(row("td", cells) for cells in self.rows)
        head = f"<thead>{row('th', self.head)}</thead>"
        return f"<div>{above}<table>{head}<tbody>{body}</tbody></table>{below}</div>"

    def show(self) -> None:
        """Print the table."""
        if sys.platform == "emscripten":
            print(self)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            print(self)
            return
        numbers = [*zip(self.head, *self.rows, strict=True)][self.left :]
        space = console.width - sum(max(map(len, column)) + 2 for column in numbers)
        readable = space >= READABLE  # if so, only texts wrap, at their spaces
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for i, name in enumerate(self.head):
            if i < self.left:
                table.add_column(name, overflow="ellipsis" if readable else "fold")
            else:
                side: Any = "left" if name == NOTE else "right"
                table.add_column(name, justify=side, overflow="fold", no_wrap=readable)
        for row in self.rows:
            table.add_row(*(Text(printable(cell), self.styles.get(cell, "")) for cell in row))
        # the table itself begins and ends with an empty line
        above, below = printable(self.title.rstrip()), printable(self.totals.lstrip())
        console.print(Text(above), table, Text(below))


def total(name: str) -> Any:
    """Return a property: the sum of this attribute over `rows`."""
    return property(lambda self: sum(getattr(row, name) for row in self.rows))


def facts(named: Mapping[str, Any]) -> str:
    """Return one line per fact: its name, then its value, whose further lines are indented."""
    width = max(map(len, named))
    shown = {name: str(value).replace("\n", f"\n{'':{width}}  ") for name, value in named.items()}
    return "\n".join(f"{name:{width}}  {value}" for name, value in shown.items())


class Shown:
    """What `repr` and Jupyter show: the table of what has one, and otherwise the text of `str`."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        table = getattr(self, "table", None)
        return f"<pre>{escaped(str(self))}</pre>" if table is None else table().html()


class Tabled(Shown):
    """What is shown as its `table`."""

    def table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table()).rstrip()

    def show(self) -> None:
        """Print the table: with rich in a terminal and in Jupyter, else as plain text."""
        self.table().show()


def escaped(text: str) -> str:
    """Text for HTML, SVG and MathML."""
    from html import escape

    return escape(text)
