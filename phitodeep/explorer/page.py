"""The explorer as one HTML file: the page, its style, its script and the documents."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from phitodeep.explorer.document import text_of

SCRIPTS = (
    "tensor",
    "expression",
    "engine",
    "terms",
    "dom",
    "words",
    "colours",
    "tiles",
    "timeline",
    "marks",
    "choices",
    "lanes",
    "extras",
    "stage",
    "nudge",
    "panels",
    "inspector",
    "player",
    "dialogs",
    "keys",
    "main",
)


def page(step: Any, other: Any = None) -> str:
    """The page of a trace, and of another one to compare it with."""
    documents = "".join(
        f'<script type="application/json">{text_of(trace)}</script>'
        for trace in (step, other)
        if trace is not None
    )
    return _frame().replace("<!-- documents -->", documents)


def inline(step: Any) -> str:
    """The page inside another page, such as a Jupyter notebook."""
    return (
        f'<iframe srcdoc="{escape(page(step))}" title="One step of training, there and back" '
        'style="width: 100%; height: 860px; border: 1px solid #8886; border-radius: 8px"></iframe>'
    )


@cache
def _frame() -> str:
    """The page without documents: its modules become one script, without imports and exports."""
    style, whole = _asset("explorer.css"), _asset("explorer.html")
    script = "\n".join(_joinable(_asset(f"{name}.js")) for name in SCRIPTS)
    return whole.replace("/* style */", style).replace("/* script */", script)


def _asset(name: str) -> str:
    return (files("phitodeep.explorer") / "assets" / name).read_text("utf-8")


def _joinable(module: str) -> str:
    module = re.sub(r"^import [^;]*;\n", "", module, flags=re.M)
    return re.sub(r"^export (?=const|function|class)", "", module, flags=re.M)
