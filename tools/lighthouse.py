"""Measure pages of the built site with Lighthouse, on its simulated phone.

    python tools/lighthouse.py [page ...]

Prints the scores of each page, from the middle one of three measurements, and fails below 95. It
needs the site in the folder site/, Node.js with npx, and Chromium or Chrome, whose path CHROME_PATH
may name. The site is served with gzip, as its host does. The machine should be idle.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

SITE = Path(__file__).parent.parent / "site"
PAGES = ("", "layers/layer-norm/", "lessons/01_neuron/")
GOAL, RUNS = 95, 3
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-background-networking "
    "--disable-component-update --disable-sync"
)


class Gzip(SimpleHTTPRequestHandler):
    """Serves text as hosts do: compressed."""

    def send_head(self) -> Any:
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        kind = self.guess_type(str(path))
        if not path.is_file() or not kind.startswith(("text/", "application/j", "image/svg")):
            return super().send_head()
        content = gzip.compress(path.read_bytes())
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "max-age=600")
        self.end_headers()
        return BytesIO(content)

    def log_message(self, *_: Any) -> None:
        pass


def measured(address: str) -> dict[str, Any]:
    """What Lighthouse reports of a page."""
    names = ("chromium", "google-chrome", "chromium-browser")
    chrome = os.environ.get("CHROME_PATH") or next(filter(None, map(shutil.which, names)), "")
    command = ["npx", "--yes", "lighthouse@12", address, "--output=json", "--quiet"]
    run = subprocess.run(
        [*command, f"--chrome-flags={FLAGS}"],
        env={**os.environ, "CHROME_PATH": chrome},
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def performance(report: dict[str, Any]) -> float:
    score: float = report["categories"]["performance"]["score"]
    return score


def main(pages: tuple[str, ...]) -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Gzip, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    lowest = 100.0
    for k, page in enumerate(pages):
        address = f"http://127.0.0.1:{server.server_port}/{page}"
        report = sorted((measured(address) for _ in range(RUNS)), key=performance)[RUNS // 2]
        scores = {each["title"]: 100 * each["score"] for each in report["categories"].values()}
        if not k:
            print(f"{'page':24}" + "".join(f"{title:>16}" for title in scores))
        print(
            f"{page or 'home':24}" + "".join(f"{score:16.0f}" for score in scores.values()),
            flush=True,
        )
        for audit in complaints(report):
            print(f"    {audit}")
        lowest = min(lowest, *scores.values())
    return int(lowest < GOAL)


def complaints(report: dict[str, Any]) -> list[str]:
    """The audits that cost a score, and what they found."""
    counted = [
        part["id"]
        for category in report["categories"].values()
        for part in category["auditRefs"]
        if part["weight"]
    ]
    found = [report["audits"][name] for name in dict.fromkeys(counted)]
    return [
        f"{audit['id']} {audit['score']:.2f} {audit.get('displayValue', '')}"
        for audit in found
        if audit["score"] is not None and audit["score"] < 0.9
    ]


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or PAGES))
