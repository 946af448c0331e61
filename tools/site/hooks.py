"""The site's build: adds the pages and files that are made from the library itself.

mkdocs calls these functions (https://www.mkdocs.org/user-guide/configuration/#hooks). An entry of
the navigation such as `Layers: layers/` stands for all the pages of a generator.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.site import layer_pages
from tools.site.pages import Page, Section
from tools.site.playground import build as playground

GENERATORS = {"layers/": layer_pages.sections}  # by folder; each returns a list of sections
ASSETS = (
    playground.assets,
)  # functions that return a list of pages which are not in the navigation


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


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages and assets to the files of the site."""
    for page in made():
        files.append(File.generated(config, page.path, content=page.content))
    return files


def made() -> list[Page]:
    found = [page for folder in GENERATORS for _, pages in sections(folder) for page in pages]
    return [*found, *(page for assets in ASSETS for page in assets())]
