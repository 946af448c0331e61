"""Keep freed memory in the process, so that large arrays are cheap to allocate again.

On Linux, glibc returns the memory of an array above 128 kB to the system when the array is freed.
Every page of the next array then causes a page fault, which often costs more than the layer itself.
Training asks glibc, for the whole process, to keep blocks of up to 32 MB. Set the environment
variable PHITODEEP_KEEP_MEMORY=0 to leave the allocator alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

LARGEST = 1 << 25  # bytes: 32 MB, the maximum that glibc accepts
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h: see `man mallopt`


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks, unless PHITODEEP_KEEP_MEMORY=0; return whether it will."""
    if sys.platform != "linux" or os.environ.get("PHITODEEP_KEEP_MEMORY") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, 2 * LARGEST)
    )
