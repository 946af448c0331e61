"""The site's build: adds the pages and files that are made from the library itself.

mkdocs calls these functions (https://www.mkdocs.org/user-guide/configuration/#hooks). An entry of
the navigation such as `Layers: layers/` stands for all the pages of a generator.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parents[1]))

from website import (
    api,
    charts,
    explorer_scripts,
    gallery,
    home,
    layer_pages,
    lessons,
    loss_pages,
    optimizer_pages,
)
from website.pages import Page, Section
from website.playground import build as playground

GENERATORS = {  # by folder; each returns a list of sections
    "bugs/": gallery.sections,
    "layers/": layer_pages.sections,
    "lessons/": lessons.sections,
    "losses/": loss_pages.sections,
    "optimizers/": optimizer_pages.sections,
}
TABLE = r'<div class="pd-scroll" role="region" aria-label="Table" tabindex="0">\g<0></div>'
# Each returns pages outside the navigation.
ASSETS = (explorer_scripts.assets, lessons.assets, playground.assets)


@cache
def sections(folder: str) -> list[Section]:
    return GENERATORS[folder]()


def on_config(config: Any) -> Any:
    """Put the generated pages into the navigation."""
    config.nav = [expanded(entry) for entry in config.nav]
    return config


def expanded(entry: Any) -> Any:
    """Return an entry of the navigation, with the pages of a generator instead of its folder."""
    if isinstance(entry, list):
        return [expanded(part) for part in entry]
    if isinstance(entry, dict):
        return {title: expanded(part) for title, part in entry.items()}
    if entry not in GENERATORS:
        return entry
    found: list[Any] = []
    for title, pages in sections(entry):
        paths = [page.path for page in pages]
        found += [{title: paths}] if title else paths
    return found


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Draw the charts, and the picture of the home page, where a page asks for them."""
    return home.drawn(charts.drawn(markdown))


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Put tables into boxes that scroll, and link entries of the API to pages of their classes."""
    html = re.sub(r"<table>.*?</table>", TABLE, html, flags=re.DOTALL)
    if not page.file.src_uri.startswith("api/"):
        return html
    return api.linked(html, {each.path for each in made()})


def on_post_page(output: str, **_: Any) -> str:
    """Let the keyboard reach code that scrolls, and name Material's search dialog."""
    output = re.sub(r"<pre(?=[ >])(?![^>]*tabindex)", r'\g<0> tabindex="0"', output)
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Treat 404.html, which is a template to mkdocs, like any other page."""
    return on_post_page(output_content) if template_name == "404.html" else output_content


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages and assets to the files of the site."""
    for page in made():
        files.append(File.generated(config, page.path, content=page.content))
    return files


@cache
def made() -> list[Page]:
    found = [page for folder in GENERATORS for _, pages in sections(folder) for page in pages]
    return [*found, *(page for assets in ASSETS for page in assets())]
