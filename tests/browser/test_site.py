"""Every kind of page: no other host is asked, no error, barrier or trace of the conversion."""

import html
import re
from urllib.request import urlopen

import pytest

from tests.browser.conftest import axe
from tests.rows import LONG
from tests.website.test_api import ROOT

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


# --- the API reference ----------------------------------------------------------------------------


PAGES = sorted(page.stem for page in (ROOT / "docs" / "api").glob("*.md"))
ARTEFACTS = {
    "a backslash": r"\\[\\`*_{}\[\]<>()#+.!|&-]",
    "a backtick": r"`",
    "bold that was not converted": r"\*\*\S",
    "an entity": r"&(?:lt|gt|amp|quot);",
    "a column that was not converted": r"(?m)^\S+(?: \S+)* {3,}\S",
}


@pytest.mark.parametrize("name", PAGES)
def test_text_has_no_artefacts(site, name):
    address = site + ("api/" if name == "index" else f"api/{name}/")
    page = urlopen(address).read().decode()
    article = page[page.index("<article") : page.index("</article>")]
    article = re.sub(r"(?s)<(pre|script|code)\b.*?</\1>", "", article)
    text = html.unescape(re.sub(r"<[^>]+>", "", article))
    for artefact, pattern in ARTEFACTS.items():
        found = re.search(pattern, text)
        assert found is None, f"{artefact}: {text[max(0, found.start() - 60) : found.end() + 60]}"


@pytest.mark.parametrize("kind", ["layers", "losses", "optimizers"])
def test_addresses_follow_from_names(site, kind):
    names = re.findall(rf"/{kind}/([^/<]+)/", urlopen(f"{site}sitemap.xml").read().decode())
    assert len(set(names)) == len(names) > 8
    for name in names:
        title = re.search(r"<h1[^>]*>(\w+)", urlopen(f"{site}{kind}/{name}/").read().decode())
        assert title is not None
        assert name.replace("-", "") == title[1].lower()  # LeakyReLU is at leaky-relu
