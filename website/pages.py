"""What the generators of the site return: pages in sections, and files that pages load."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Page(NamedTuple):
    """A page or an asset that the build makes.

    path       where it is in the site's sources, such as "layers/dense.md"
    content    Markdown, or the text or bytes of an asset
    """

    path: str
    content: str | bytes


class Section(NamedTuple):
    """Pages that stand together in the navigation; without a title, at its upper level."""

    title: str
    pages: list[Page]
