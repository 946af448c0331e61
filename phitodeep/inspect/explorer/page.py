"""The explorer as one HTML file: the page, its style, its script and the documents."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from phitodeep.core.table import escaped
from phitodeep.inspect.explorer.document import text_of

SCRIPTS = [
    "tensor", "expression", "engine", "terms", "dom", "words", "layout", "colours", "tiles",
    "timeline", "marks", "choices", "gallery", "wires", "lanes", "extras", "stage", "nudge",
    "panels", "rows", "inspector", "player", "dialogs", "keys", "main",
]  # fmt: skip


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
        f'<iframe srcdoc="{escaped(page(step))}" title="One step of training, there and back" '
        'style="width: 100%; height: 860px; border: 1px solid #8886; border-radius: 8px"></iframe>'
    )


@cache
def _frame() -> str:
    """The page without documents: its modules become one script."""
    style, whole = asset("explorer.css"), asset("explorer.html")
    script = "\n".join(_joinable(name, asset(f"{name}.js")) for name in SCRIPTS)
    return whole.replace("/* style */", style).replace("/* script */", script)


def asset(name: str) -> str:
    """The text of a file in the folder `assets`."""
    return (files("phitodeep.inspect.explorer") / "assets" / name).read_text("utf-8")


def _joinable(name: str, module: str) -> str:
    """A module as a function that returns what it exports, so that its other names are its own."""
    body = re.sub(
        r'^import (\{[^}]*\}) from "\./(\w+)\.js";', r"const \1 = \2_js;", module, flags=re.M
    )
    exported = re.findall(r"^export (?:const|function|class) (\w+)", body, flags=re.M)
    body = re.sub(r"^export ", "", body, flags=re.M)
    return f"const {name}_js = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
