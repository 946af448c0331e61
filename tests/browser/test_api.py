"""The built API reference has no artefacts of the conversion from docstrings."""

from __future__ import annotations

import html
import re
from urllib.request import urlopen

import pytest

from tests.website.test_api import ROOT

PAGES = sorted(page.stem for page in (ROOT / "docs" / "api").glob("*.md"))
ARTEFACTS = {
    "a backslash": r"\\[\\`*_{}\[\]<>()#+.!|&-]",
    "a backtick": r"`",
    "bold that was not converted": r"\*\*\S",
    "an entity": r"&(?:lt|gt|amp|quot);",
    "a column that was not converted": r"(?m)^\S+(?: \S+)* {3,}\S",
}


@pytest.mark.parametrize("name", PAGES)
def test_text_has_no_artefacts(site: str, name: str) -> None:
    address = site + ("api/" if name == "index" else f"api/{name}/")
    page = urlopen(address).read().decode()
    article = page[page.index("<article") : page.index("</article>")]
    article = re.sub(r"(?s)<(pre|script|code)\b.*?</\1>", "", article)
    text = html.unescape(re.sub(r"<[^>]+>", "", article))
    for artefact, pattern in ARTEFACTS.items():
        found = re.search(pattern, text)
        assert found is None, f"{artefact}: {text[max(0, found.start() - 60) : found.end() + 60]}"
