"""Draw docs/pictures/plot_*: run the code of docs/plots.md, and keep the files that it writes.

python tools/make_plots.py
"""

import contextlib
import re
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
PAGE, PICTURES = ROOT / "docs" / "plots.md", ROOT / "docs" / "pictures"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COLOURS = 128  # of a picture, which is then a third of the size


def main() -> None:
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            for code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
                exec(compile(code, str(PAGE), "exec"), names)
        for made in sorted(Path(folder).iterdir()):
            target = PICTURES / f"plot_{made.name}"
            if made.suffix == ".png":
                with Image.open(made) as picture:
                    picture.convert("RGB").quantize(COLOURS).save(target, optimize=True)
            else:
                target.write_bytes(made.read_bytes())
            print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
