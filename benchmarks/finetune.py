"""The memory of a GPT-2 of 124M parameters: loaded, used for a prediction, and fine-tuned.

    python benchmarks/finetune.py            a folder with random weights, made for the purpose
    python benchmarks/finetune.py FOLDER     any folder that from_pretrained reads

Each row is the peak of the resident memory of a new process (VmHWM, Linux), in MB of 10^6 bytes,
and what that is in sizes of the weights. Fine-tuning is 4 steps of Adam on one sample each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from processes import fresh

from phitodeep.exchange.hub.pretrained import read_plan
from phitodeep.io.tensors import write_tensors

CODE = """
import sys
import numpy as np
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
from phitodeep.models import from_pretrained
folder, what, T, checkpoint = sys.argv[1:]
model, T = from_pretrained(folder, checkpoint=checkpoint == "True"), int(T)
vocabulary = model.layers[0].vocab_size
tokens = np.random.default_rng(0).integers(0, vocabulary, (4, T + 1))
if what == "predict":
    model.predict(tokens[:1, :-1])
if what == "train":
    model.alpha = 1e-5
    model.train(tokens[:, :-1], tokens[:, 1:], batch_size=1, epochs=1, verbose=0)
print(peak(), 4 * model.count_params())
"""
ROWS = (
    ("load", 1, False),
    ("predict", 64, False),
    ("predict", 128, False),
    ("train", 64, False),
    ("train", 128, False),
    ("train", 128, True),
    ("train", 1024, True),
)


def make(folder: Path) -> None:
    """Write a GPT-2 of 124M parameters with random weights."""
    off = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **off}))
    rng, arrays = np.random.default_rng(0), {}
    for source in read_plan(folder).sources().values():
        for name, shape in source.shapes.items():
            arrays[name] = rng.standard_normal(shape, np.float32)
            arrays[name] *= 0.02
    write_tensors(folder / "model.safetensors", arrays, {"format": "pt"})


def main(folder: str) -> None:
    print(f"{'kernels':<10}{'what':<10}{'T':>6}{'checkpoint':>12}{'MB':>8}{'weights':>9}")
    for kernels in ("numpy", "numba"):
        for what, T, checkpoint in ROWS:
            arguments = (folder, what, str(T), str(checkpoint))
            environment = {"PHITODEEP_KERNELS": kernels, "OPENBLAS_NUM_THREADS": "1"}
            found, size = map(int, fresh(CODE, environment, arguments).split())
            print(
                f"{kernels:<10}{what:<10}{T:>6}{checkpoint!s:>12}{found / 1e6:>8.0f}"
                f"{found / size:>9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name))
            main(name)
