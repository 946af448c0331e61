"""Pages in a real browser, for `make test-browser`: the tests need Chromium and axe-core.

A test opens a file with `page_of(path)`. It fails if the page writes an error or a warning to the
console, raises an exception, or requests anything but its own file. `site_page(path)` opens a page
of the site, which may request only files of the site. `axe(page)` looks for barriers to people with
disabilities.
"""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.explorer import Explorer, traced

NAMES = ("chromium", "google-chrome", "chromium-browser")
QUIET = ("no-first-run", "disable-background-networking", "disable-component-update")
FLAGS = [f"--{flag}" for flag in ("no-sandbox", "disable-gpu", "disable-sync", *QUIET)]
SIZES = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 3,
        "has_touch": True,
        "is_mobile": True,
    },
}
SETTLED = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules/axe-core/axe.min.js"
OPTIONS = "{resultTypes: ['violations'], preload: false}"  # no details of what is right


def executable():
    """Return the path of the browser, or end the run and say how to install one."""
    wanted = os.environ.get("PHITODEEP_BROWSER")
    for name in [wanted] if wanted else NAMES:
        if path := shutil.which(name):
            return path
    found = f"PHITODEEP_BROWSER is {wanted!r}, which cannot be run" if wanted else "there is none"
    pytest.exit(
        f"The tests of pages need Chromium, but {found}. Install it (Debian and Ubuntu: apt-get "
        "install chromium), or set PHITODEEP_BROWSER to the path of Chromium or Chrome.",
        returncode=1,
    )


@pytest.fixture(scope="session")
def browser():
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser, place, size="desktop", scheme="light", still=False, allowed=()):
    """Open a page in a new context, and raise AssertionError at the end if anything was wrong.

    place      a file, or an address
    size       a row of SIZES
    scheme     the colour scheme that the reader prefers: "light" or "dark"
    still      whether the reader prefers reduced motion
    allowed    how the addresses begin that the page may request, in addition to its own
    """
    url = place.resolve().as_uri() if isinstance(place, Path) else place
    wrong = []
    motion = "reduce" if still else "no-preference"
    context = browser.new_context(**SIZES[size], color_scheme=scheme, reduced_motion=motion)

    def written(message):
        if message.type in ("assert", "error", "warning"):
            wrong.append(f"console {message.type}: {message.text}")

    def requested(address):
        known = address == url or address.startswith(allowed or ())
        if not known and not address.startswith("blob:"):  # data: is never reported
            wrong.append(f"request: {address}")

    context.on("console", written)
    context.on("weberror", lambda error: wrong.append(f"exception: {error.error}"))
    context.on("request", lambda request: requested(request.url))
    page = context.new_page()
    page.on("websocket", lambda socket: requested(socket.url))
    try:
        page.goto(url)
        yield page
        page.evaluate(SETTLED)
    finally:
        context.close()
        assert not wrong, f"{place}:\n" + "\n".join(wrong)


@pytest.fixture
def page_of(browser):
    """Call it as `opened`, without the browser; the page closes after the test."""
    with ExitStack() as stack:
        yield lambda *place, **options: stack.enter_context(opened(browser, *place, **options))


@pytest.fixture
def explorer(page_of, tmp_path):
    """Call it with a trace, or the name of a model, to open its explorer.

    `compare` is another trace for the same file; other options are those of `opened`.
    """

    def show(trace, compare=None, **options):
        trace = traced(trace) if isinstance(trace, str) else trace
        trace.save(tmp_path / "step.html", **({} if compare is None else {"compare": compare}))
        return Explorer(page_of(tmp_path / "step.html", **options))

    return show


# --- the site ------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def translate_path(self, path):
        # 404.html, which is sent for any address, links from the root of the published site
        return super().translate_path(path.removeprefix("/phitodeep"))


@contextmanager
def served(folder, handler):
    """The address of a server of this folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of the built site, which is served for the tests.

    PHITODEEP_SITE names a folder that has the built site; without it, the site is built first.
    """
    folder = os.environ.get("PHITODEEP_SITE")
    if not folder:
        folder = str(tmp_path_factory.mktemp("site"))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment)
    with served(folder, Quiet) as address:
        yield address


@pytest.fixture
def site_page(browser, site):
    """Call it with a page of the site, such as "layers/dense/", and options of `opened`.

    The page may request only what the site itself has.
    """
    with ExitStack() as stack:
        yield lambda path="", **options: stack.enter_context(
            opened(browser, site + path, allowed=site, **options)
        )


@cache
def axe_source():
    if not AXE.exists():
        pytest.exit("axe-core is missing: run `npm ci`, or `make test-browser`.", returncode=1)
    return AXE.read_text(encoding="utf-8")


def axe(page, within="html"):
    """Return the barriers that axe-core calls serious or critical: "rule: where: what to do"."""
    page.evaluate(axe_source())
    run = f"part => axe.run(part, {OPTIONS}).then(({{violations}}) => violations)"
    found = page.evaluate(run, within)
    return [
        f"{barrier['id']}: {node['target']}: {node['failureSummary']}"
        for barrier in found
        if barrier["impact"] in ("serious", "critical")
        for node in barrier["nodes"]
    ]
