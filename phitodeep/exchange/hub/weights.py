"""The weights of a folder: one safetensors file or several, in float32, float16 or bfloat16."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.hub.family import Plan, Source
from phitodeep.exchange.hub.folder import inside, read_json
from phitodeep.io.model_file import differences
from phitodeep.io.tensors import BFLOAT16, Entry, open_tensors

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SUPPORTED = {np.dtype("<f4"), np.dtype("<f2"), BFLOAT16}
PLAIN = re.compile(r"[^/\\:\0]+\.safetensors")  # the name of a file, without a folder or a drive
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Checkpoint:
    """The arrays of a folder by name, as parts of their files (see `Tensors.mapped`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, Array] = {}
        for file, names in _files(folder).items():
            with open_tensors(inside(folder, file), bfloat16=True) as tensors:
                missing = [name for name in names if name not in tensors.entries]
                if missing:
                    raise DataError(f"{folder / file} lacks {missing[0]!r}, which {INDEX} names.")
                twice = [name for name in tensors.entries if name in self.arrays]
                if twice:
                    raise DataError(f"{folder}: two files have the array {twice[0]!r}.")
                self.arrays |= tensors.mapped()

    def fit(self, plan: Plan, tied: str = "lm_head.weight") -> dict[str, Source]:
        """Return the sources of the plan's parameters, by the names that the arrays have here.

        Refuse arrays that are missing, unexpected, or of another shape or type. A copy of the tied
        head is accepted if it equals the embedding.
        """
        if plan.blocks > len(self.arrays):
            raise DataError(
                f"{self.folder}: config.json describes {plan.blocks} blocks, but the weights are "
                f"only {len(self.arrays)} arrays."
            )
        bare = not any(name.startswith(plan.prefix) for name in self.arrays)
        sources = plan.sources()
        if bare:
            for path, source in sources.items():
                shapes = {n.removeprefix(plan.prefix): s for n, s in source.shapes.items()}
                sources[path] = source._replace(shapes=shapes)
        ignored = re.compile(("" if bare else re.escape(plan.prefix)) + plan.ignored)
        found = {n: _entry(a) for n, a in self.arrays.items() if not ignored.fullmatch(n)}
        wanted = {
            name: Entry(shape, np.dtype(np.float32))
            for source in sources.values()
            for name, shape in source.shapes.items()
        }
        if tied not in wanted and tied in found:
            one, other = self.arrays[tied], self.arrays.get(next(iter(sources["0.W"].shapes)))
            if other is not None and one.dtype == other.dtype and np.array_equal(one, other):
                del found[tied]
        wrong = differences(wanted, found)
        if any(wrong):
            raise DataError(f"{self.folder}: the weights do not fit config.json: {wrong}.")
        return sources

    def parameter(self, source: Source) -> Array:
        """Return a parameter in float32: part of the file, or an array in memory."""
        parts = [self.arrays[name] for name in source.shapes]
        if len(parts) == 1 and not source.transposed and parts[0].dtype == np.float32:
            return parts[0]
        parts = [part.T if source.transposed else part for part in parts]
        out = np.empty((*parts[0].shape[:-1], sum(a.shape[-1] for a in parts)), np.float32)
        end = 0
        for part in parts:
            begin, end = end, end + part.shape[-1]
            widen(part, out[..., begin:end])
        return out


def widen(a: Array, out: Array) -> None:
    """Write the numbers of an array in float32, float16 or bfloat16 to `out`, in float32."""
    if a.dtype != BFLOAT16:
        out[...] = a
        return
    for row, wide in zip(np.atleast_2d(a), np.atleast_2d(out), strict=True):
        bits = row["bfloat16"].astype(np.uint32)
        bits <<= 16
        wide[...] = bits.view(np.float32)


def _entry(a: Array) -> Entry:
    """Return the shape and type of an array; supported types count as float32."""
    return Entry(a.shape, np.dtype(np.float32) if a.dtype in SUPPORTED else a.dtype)


def _files(folder: Path) -> Mapping[str, list[str]]:
    """Return the files with weights, and the names of the arrays that each must have."""
    if (folder / WHOLE).exists():
        return {WHOLE: []}
    if not (folder / INDEX).exists():
        pickles = [name for name in PICKLES if (folder / name).exists()]
        if pickles:
            raise DataError(
                f"{folder} has its weights in {pickles[0]}, a pickle, which can run any code when "
                "it is read. Convert it to safetensors once, where you trust it: "
                "transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new)."
            )
        raise DataError(f"{folder} has neither {WHOLE} nor {INDEX}.")
    return _shards(read_json(folder, INDEX), folder / INDEX)


def _shards(index: Any, path: Path) -> Mapping[str, list[str]]:
    """Return what an index says; its files must be in the same folder."""
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise DataError(f"{path} is damaged: it has no 'weight_map'.")
    files: dict[str, list[str]] = {}
    for name, file in names.items():
        if not isinstance(file, str) or not PLAIN.fullmatch(file):
            raise DataError(
                f"{path}: weight_map names the file {file!r} for {name!r}, which is not the name "
                "of a safetensors file in the same folder."
            )
        files.setdefault(file, []).append(name)
    return files
