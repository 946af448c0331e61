"""Time and memory of full fine-tuning, and of LoRA on attention and on all products.

    python benchmarks/lora.py [full | attention | all]

Without an argument, each runs in a process of its own. The model is a GPT of 10.7 million
parameters: 6 layers, 6 heads, width 384, context 64; a batch is 8 x 64 tokens, the optimizer Adam.
"""

import resource
import subprocess
import sys
import time

import numpy as np

from phitodeep.model.architectures import gpt

TOKENS, CONTEXT, BATCH, STEPS, RUNS = 65, 64, 8, 12, 3
PATTERNS = {"full": (), "attention": (None,), "all": ("*",)}


def measure(kind: str) -> None:
    """Print the shortest time per step of several runs, and the peak memory of the process."""
    made = gpt(TOKENS, CONTEXT, layers=6, heads=6, dim=384).loss("softmax_cross_entropy")
    model = made.batch(BATCH).epochs(1).seed(0).build()
    for pattern in PATTERNS[kind]:
        model.add_lora(pattern)
    X, y = np.random.default_rng(0).integers(0, TOKENS, (2, BATCH * STEPS, CONTEXT))
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        model.train(X, y, verbose=0)
        times.append((time.perf_counter() - began) / STEPS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{kind:9}  {1 / min(times):.1f} steps/s  {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    else:
        for kind in PATTERNS:
            subprocess.run([sys.executable, __file__, kind], check=True)
