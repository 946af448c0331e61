"""Pack the first 10,000 training and 1,000 test digits of MNIST into phitodeep/data/mnist.xz.

Usage: python tools/pack_mnist.py FOLDER     (FOLDER holds the four IDX .gz files)

The packed file holds the four IDX files in the order of FILES, each truncated and with a matching
header, as one xz stream with a SHA-256 check. Plain images compressed best of all the layouts tried
(images, columns, pixel planes, stacked rows, delta filters, nibbles).
"""

from __future__ import annotations

import gzip
import lzma
import math
import struct
import sys
from pathlib import Path

FILES = {
    "train-images-idx3-ubyte.gz": 10_000,
    "train-labels-idx1-ubyte.gz": 10_000,
    "t10k-images-idx3-ubyte.gz": 1_000,
    "t10k-labels-idx1-ubyte.gz": 1_000,
}
PACKED = Path(__file__).parents[1] / "phitodeep" / "data" / "mnist.xz"


def first(n: int, idx: bytes) -> bytes:
    """Truncate an IDX file to its first `n` items."""
    magic, _, *item = struct.unpack_from(f">{1 + idx[3]}I", idx)
    header = struct.pack(f">{1 + idx[3]}I", magic, n, *item)
    return header + idx[len(header) :][: n * math.prod(item)]


def pack(folder: Path) -> bytes:
    """The content of phitodeep/data/mnist.xz, from the four files in `folder`."""
    parts = [first(n, gzip.decompress((folder / name).read_bytes())) for name, n in FILES.items()]
    return lzma.compress(b"".join(parts), check=lzma.CHECK_SHA256, preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"{PACKED.write_bytes(pack(Path(sys.argv[1]))):,} bytes")
