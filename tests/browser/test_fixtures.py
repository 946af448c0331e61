"""What conftest.py promises: each fault of a page makes its test fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import conftest
from tests.browser.conftest import SIZES, axe, opened
from tests.rows import long

ROOT = Path(__file__).parents[2]
PAGES = Path(__file__).parent / "pages"
FAULTS = {  # page -> what is reported
    "error": "console error: broken",
    "warning": "console warning: careful",
    "assertion": "console assert: unordered",
    "exception": "exception: thrown",
    "rejection": "exception: rejected",
    "file": "request: file://.*/fine.html",
    "network": "request: http://127.0.0.1:9/",
    "socket": "request: ws://127.0.0.1:9/",
}
PREFERENCES = """() => [
    innerWidth, innerHeight, devicePixelRatio, navigator.maxTouchPoints > 0,
    matchMedia("(prefers-color-scheme: dark)").matches,
    matchMedia("(prefers-reduced-motion)").matches,
]"""


@pytest.mark.parametrize("size", SIZES)
def test_a_page_without_faults_passes(page_of, size):
    page = page_of(PAGES / "fine.html", size=size)
    assert page.evaluate("loading.then((answer) => answer.text())") == "Blobs and data are allowed."
    assert axe(page) == []
    page.goto(f"{page.url}#part")
    page.reload()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_page_is_reported(browser, name):
    with pytest.raises(AssertionError, match=FAULTS[name]), opened(browser, PAGES / f"{name}.html"):
        pass


@long
def test_a_test_that_opens_a_faulty_page_fails(tmp_path):
    """The test itself passes; closing its page does not."""
    test = tmp_path / "test_page.py"
    test.write_text(
        "from pathlib import Path\n"
        f"def test(page_of): page_of(Path({str(PAGES)!r}) / 'error.html')\n"
    )
    plugin = ("-p", "tests.browser.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml")
    command = [sys.executable, "-m", "pytest", *plugin, str(test)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 passed, 1 error" in done.stdout
    assert FAULTS["error"] in done.stdout


def test_late_faults_barriers_sizes_and_preferences(browser, page_of):
    with pytest.raises(AssertionError, match="late"), opened(browser, PAGES / "fine.html") as page:
        page.evaluate("console.error('late')")
    # But for the moderate one: text outside of main.
    rules = {barrier.partition(":")[0] for barrier in axe(page_of(PAGES / "barriers.html"))}
    assert rules == {"button-name", "color-contrast"}
    desktop = page_of(PAGES / "fine.html")
    phone = page_of(PAGES / "fine.html", size="phone", scheme="dark", still=True)
    assert desktop.evaluate(PREFERENCES) == [1280, 800, 1, False, False, False]
    assert phone.evaluate(PREFERENCES) == [390, 844, 3, True, True, True]
    assert page_of(PAGES / "barriers.html", size="phone").evaluate("innerWidth") == 980


def test_a_missing_browser_is_explained(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.exit.Exception, match="but there is none"):
        conftest.executable()
    monkeypatch.setenv("PHITODEEP_BROWSER", "/no/browser")
    with pytest.raises(pytest.exit.Exception, match="PHITODEEP_BROWSER is '/no/browser'"):
        conftest.executable()
