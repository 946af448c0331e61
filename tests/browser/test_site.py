"""The site, page by page: no page asks another host for anything, and none has an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

KINDS = [
    "",
    "quickstart/",
    "layers/",
    "lessons/",
    "lessons/01_neuron/",
    "api/layers/",
    "performance/",
    "decisions/",
]


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", KINDS)
def test_a_page_of_each_kind(
    site_page: Callable[..., Page], path: str, scheme: str, size: str
) -> None:
    page = site_page(path, size=size, scheme=scheme)
    assert page.locator("h1").count() == 1
