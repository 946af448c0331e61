"""A page for each layer, made from its class and its derivation."""

from __future__ import annotations

from tools.site.pages import Page, Section


def sections() -> list[Section]:
    return [Section("", [Page("layers/index.md", "# Layers\n\nEach layer has a page.\n")])]
