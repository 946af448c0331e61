"""Links from the API's entries of layers, losses and optimizers to their own pages."""

from __future__ import annotations

import re
from collections.abc import Container

from tools.site import parts

FOLDERS = {"layers": "layers", "loss": "losses", "optimization": "optimizers"}
HEADING = re.compile(r'<h\d id="phitodeep\.(\w+)\.[\w.]*?([A-Z]\w*)"[^>]*>.*?</h\d>', re.DOTALL)


def linked(html: str, pages: Container[str]) -> str:
    """A page of the API, with a link below the heading of each class that has a page."""

    def link(found: re.Match[str]) -> str:
        heading, package, name = found[0], found[1], found[2]
        path = f"{FOLDERS.get(package)}/{parts.link_of(name)}"
        if f"{path}.md" not in pages:
            return heading
        return f'{heading}<p><a href="../../{path}/">{name}: picture, numbers, derivation</a></p>'

    return HEADING.sub(link, html)
