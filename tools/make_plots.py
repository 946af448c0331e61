"""Draw the pictures of pages whose code draws them: run the code, and keep the pictures it writes.

python tools/make_plots.py [plots] [data]    # all pages, or those that are named
"""

import contextlib
import re
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
PAGES = {"plots": "plot", "data": "data"}  # the page, and how its pictures' names begin
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COLOURS = 128  # of a picture, which is then a third of the size


def draw(name: str) -> None:
    page = ROOT / "docs" / f"{name}.md"
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            for code in BLOCK.findall(page.read_text(encoding="utf-8")):
                exec(compile(code, str(page), "exec"), names)
        for made in sorted(Path(folder).iterdir()):
            target = PICTURES / f"{PAGES[name]}_{made.name}"
            if made.suffix == ".png":
                with Image.open(made) as picture:
                    picture.convert("RGB").quantize(COLOURS).save(target, optimize=True)
            elif made.suffix == ".svg":
                target.write_bytes(made.read_bytes())
            else:  # a file of data that the page writes
                continue
            print(target.relative_to(ROOT))


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        draw(name)
