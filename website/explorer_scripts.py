"""The explorer's modules as files of the site, for pages that run derivations in the browser."""

from __future__ import annotations

from website.pages import ROOT, Page

FOLDER = ROOT / "phitodeep/inspect/explorer/assets"


def assets() -> list[Page]:
    return [Page(f"assets/explorer/{path.name}", path.read_text("utf-8"))
            for path in sorted(FOLDER.glob("*.js"))]  # fmt: skip
