"""Run tests on Pyodide, the Python of the browser, in Chromium.

    python tools/suite_in_browser.py                       # the tests of all mathematics
    python tools/suite_in_browser.py tests/loss -k huber   # the arguments are pytest's

It needs what `make test-browser` installs, and downloads pytest. In the browser there are no
threads, processes, model files, compiled kernels and other libraries, and an integer has 32 bits:
tests of these fail there. The exit status is pytest's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Route, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser.conftest import FLAGS, ROOT, executable

NEEDS = ("pytest", "hypothesis", "rich", "click")  # in pure Python
FOLDERS = (ROOT / "node_modules/pyodide", ROOT / ".venv/pyodide")
MATHEMATICS = ("layers", "loss", "optimization", "steps", "test_aliasing.py", "test_functional.py")
NOT_THERE = "not thread and not lbfgs and not makes_no_array"  # needs threads, SciPy, 64 bits
DEFAULT = [*(f"tests/{each}" for each in MATHEMATICS), "-k", NOT_THERE]
HOST = "http://suite.test/"
PAGE = """async ({host, wheels, project, options}) => {
  const {loadPyodide} = await import(host + "pyodide.mjs");
  const python = await loadPyodide({indexURL: host});
  const write = (bytes) => (print(new TextDecoder().decode(bytes)), bytes.length);
  python.setStdout({write});
  python.setStderr({write});
  await python.loadPackage(wheels.map((name) => host + name), {messageCallback: () => {}});
  const archive = await (await fetch(host + project)).arrayBuffer();
  python.unpackArchive(archive, "zip", {extractDir: "/project"});
  python.globals.set("options", python.toPy(options));
  return python.runPython(`
    import os, sys, numpy, pytest
    os.chdir("/project")
    sys.path.insert(0, "/project")
    os.environ["PHITODEEP_KERNELS"] = "numpy"
    print(f"Python {sys.version}, NumPy {numpy.__version__}")
    int(pytest.main(options))
  `);
}"""


def main(options: list[str]) -> int:
    """Return pytest's exit status."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
        anywhere = ["--python-version=3.14", "--platform=any", "--implementation=py", "--abi=none"]
        subprocess.run([*pip, *anywhere, f"--dest={folder}", *NEEDS], check=True)
        wheels = sorted(path.name for path in Path(folder).glob("*.whl"))
        _pack(Path(folder) / "project.zip")
        lock = json.loads((FOLDERS[0] / "pyodide-lock.json").read_text("utf-8"))
        inputs = {
            "host": HOST,
            "wheels": [lock["packages"]["numpy"]["file_name"], *wheels],
            "project": "project.zip",
            "options": options or DEFAULT,
        }
        status = _run((Path(folder), *FOLDERS), inputs)
    print(f"{time.perf_counter() - started:.0f} s")
    return status


def _pack(path: Path) -> None:
    """Write an archive of the files that git knows."""
    git = ["git", "ls-files"]
    files = subprocess.run(git, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files.split():
            archive.write(ROOT / name, name)


def _run(folders: tuple[Path, ...], inputs: dict[str, Any]) -> int:
    """Open an empty page that takes its files from these folders, and run the tests in it."""

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(HOST) or "empty"
        found = [folder / name for folder in folders if (folder / name).exists()]
        if found:
            route.fulfill(path=found[0])
        else:
            route.fulfill(content_type="text/html", body="<!doctype html><title>Tests</title>")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(0)
        page.route("**/*", answer)
        page.expose_function("print", lambda text: print(text, end="", flush=True))
        page.goto(HOST)
        status = page.evaluate(PAGE, inputs)
        browser.close()
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
