"""Every kind of page: none asks another host for anything, or has an error or a barrier."""

import pytest

from tests.browser.conftest import axe
from tests.rows import LONG

KINDS = [
    "", "quickstart/", "layers/", "layers/layer-norm/", "losses/", "losses/huber/", "optimizers/",
    "optimizers/adam/", "lessons/", "lessons/01_neuron/", "bugs/", "coming-from/pytorch/",
    "api/losses/", "performance/", "results/", "decisions/", "404.html", "transfer/",
]  # fmt: skip


# One page of three, in one of the three first modes; in a long run, every page in all four.
MODES = [("phone", "light"), ("desktop", "dark"), ("phone", "dark"), ("desktop", "light")]
CASES = [(path, *mode) for path in KINDS for mode in MODES]
if not LONG:
    CASES = [(path, *MODES[i % 3]) for i, path in enumerate(KINDS[::3])]


@pytest.mark.parametrize(("path", "size", "scheme"), CASES)
def test_a_page_of_each_kind(site_page, path, size, scheme):
    page = site_page(path, size=size, scheme=scheme)
    assert page.locator("h1").count() == 1
    assert not axe(page)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= page.viewport_size["width"]
