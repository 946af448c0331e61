"""Pack the texts that come with phitodeep: python tools/pack_text.py FOLDER.

FOLDER holds tinyshakespeare.txt and names.txt. Each is written to phitodeep/data/NAME.xz with a
SHA-256 check.
"""

import lzma
import sys
from pathlib import Path

DATA = Path(__file__).parent.parent / "phitodeep" / "data"

if __name__ == "__main__":
    for name in ("tinyshakespeare", "names"):
        raw = (Path(sys.argv[1]) / f"{name}.txt").read_bytes()
        preset = 9 | lzma.PRESET_EXTREME
        packed = lzma.compress(raw, check=lzma.CHECK_SHA256, preset=preset)
        (DATA / f"{name}.xz").write_bytes(packed)
        print(f"{name}: {len(raw):,} bytes, packed {len(packed):,}")
