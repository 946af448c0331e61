"""Write docs/pictures/explorer.png: the explorer of a step of the digits net, as Chromium shows it.

    python -m tools.picture_of_explorer

Needs Chromium and Playwright: see `make test-browser`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from phitodeep.cli.digits import build
from phitodeep.data import load_mnist
from tests.browser.conftest import FLAGS, executable

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "explorer.png"
SIZE = {"width": 1440, "height": 960}


def main() -> None:
    X, y, *_ = load_mnist()
    model = build(epochs=1)
    model.train(X[:640], y[:640], verbose=0)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        path = Path(folder) / "step.html"
        model.trace(X[:8], y[:8]).save(path)
        browser = play.chromium.launch(executable_path=executable(), args=FLAGS)
        page = browser.new_page(viewport=SIZE)
        page.goto(path.as_uri())
        page.wait_for_timeout(1500)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
