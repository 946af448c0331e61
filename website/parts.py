"""Parts of generated pages: formulas, code, numbers, and pictures drawn as SVG.

Each function returns HTML without blank lines, so that Markdown leaves it alone.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import textwrap
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from phitodeep.core.checks import snake_case
from phitodeep.derivations.language.mathml import MATHML, MathML
from phitodeep.derivations.language.step import Given, Step
from phitodeep.optimization.optimizers import OPTIMIZERS
from website.pages import ROOT

BLOCK = MathML("block")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
WIDE = "---\nhide: [toc]\n---\n\n"  # a page without a table of contents, so that code fits


def code(*objects: Any) -> str:
    """The source of functions, classes or methods, highlighted."""
    texts = [textwrap.dedent(inspect.getsource(inspect.unwrap(each))) for each in objects]
    return highlighted("\n".join(texts))


def highlighted(text: str) -> str:
    """Python code as HTML; a blank line has a space, because blank lines end HTML in Markdown."""
    found = highlight(text, PythonLexer(), HtmlFormatter(nowrap=True, wrapcode=True))
    lines = found.rstrip("\n").replace("\n\n", "\n \n").replace("\n\n", "\n \n")
    return f'<div class="highlight"><pre><code>{lines}</code></pre></div>'


def place(thing: Any) -> tuple[str, int]:
    """The file of a class or function, from the repository's root, and its first line."""
    file = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT)
    return file.as_posix(), inspect.getsourcelines(thing)[1]


def formulas(steps: Iterable[Step], symbols: Any) -> str:
    """A list of steps: their formulas, what they mean, and their values in `symbols`."""
    rows = []
    for step in steps:
        formula, words = typeset(step)
        said = f'<span class="pd-words">{escape(words)}</span>' if words else ""
        value = escape(numbers(symbols[step.symbol]))
        rows.append(f"<tr><td>{formula}{said}</td><td><code>{value}</code></td></tr>")
    head = "<thead><tr><th>step</th><th>here</th></tr></thead>"
    return f'<table class="pd-steps">{head}<tbody>{"".join(rows)}</tbody></table>'


def typeset(step: Step, style: MathML = MATHML, symbols: Any = None) -> tuple[str, str]:
    """A step as MathML, and what it means if the formula does not say it."""
    if isinstance(step, Given) or not step.code:
        return style.whole(style.symbol(step.symbol)), step.words
    if step.formula == f"{step.symbol} = {step.words}":  # words, which can go on a second line
        return style.whole(style.symbol(step.symbol) + "<mo>=</mo>"), step.words
    return step.written(style, symbols), step.words if step.words not in step.formula else ""


def coded(sentence: str) -> str:
    """A sentence as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence, quote=False))


def numbers(values: Any) -> str:
    """Numbers as short text: rows of an array on their own lines."""
    return np.array2string(
        np.asarray(values),
        formatter={"float_kind": lambda x: f"{x + 0.0:.4g}".replace("e-0", "e-")},
    )


def ran(text: str) -> str:
    """A block of Python and what it prints when the build runs it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "<page>", "exec"), {})  # the page's own code, from the generators
    return f"```python\n{text.strip()}\n```\n\n```text\n{printed.getvalue().strip()}\n```"


def pair(left: str, right: str) -> str:
    """Two parts next to each other, or below each other on a narrow screen."""
    return f'<div class="pd-pair"><div tabindex="0">{left}</div><div>{right}</div></div>'


def data(values: Any) -> str:
    """Values for a script, in the page."""
    text = json.dumps(values, separators=(",", ":")).replace("</", "<\\/")
    return f'<script type="application/json">{text}</script>'


def see_also(cls: type, title: str, links: dict[str, str], api: str, derived: str = "") -> str:
    """Where to read on: related classes, the API, the source, and what the docstring cites."""
    file, line = place(cls)
    source = f"; the derivation is in `phitodeep/derivations/{derived}`" if derived else ""
    return (
        f"- {title}: {', '.join(f'[{name}]({link}.md)' for name, link in links.items())}.\n"
        f"- API: [`{cls.__name__}`](../api/{api}.md#{cls.__module__}.{cls.__name__}).\n"
        f"- Source: `{file}`, line {line}{source}.\n{literature(cls)}"
    )


def literature(cls: type) -> str:
    """The sources that a docstring names."""
    _, found, rest = inspect.cleandoc(cls.__doc__ or "").partition("Source")
    if not found:
        return ""
    cited = " ".join(rest.partition(": ")[2].split("\n\n")[0].split())
    return "- Literature: " + ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", cited)


def card(link: str, picture: str, name: str, *lines: str, look: str = "") -> str:
    """An entry of an index: a picture, a name and some lines, which lead to a page."""
    spans = "".join(f"<span>{line}</span>" for line in lines)
    return f'<a href="{link}/"{look}>{picture}<strong>{name}</strong>{spans}</a>'


def link_of(name: str) -> str:
    """The address of a class's page: CategoricalCrossEntropy's is categorical-cross-entropy."""
    if name.lower() in OPTIMIZERS:
        return name.lower()
    return snake_case(name).replace("_", "-")
