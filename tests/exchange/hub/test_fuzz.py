"""Damaged folders, thousands in a long run: each loads, or is refused with one of our errors.

The damage is that of tests/io/test_fuzz.py, to one file of a folder or to several: the config, the
weights, their index, and the tokenizer. All of it is a function of one number, so a case that fails
can be run again: see `damage`.
"""

import functools
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from phitodeep.model.architectures import from_pretrained
from tests.exchange.hub.folders import GPT2, LLAMA, STORED, written
from tests.io.test_fuzz import SHM, Hostile, dumped, noise, peak, predicted, refused_and_used
from tests.rows import times

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}
YARN = {"type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8, "mscale": 1.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4}
CONFIGS = {
    "plain gpt2": GPT2 | {"n_inner": 5, "activation_function": "gelu", "n_layer": 1},
    "longrope": LLAMA | {"head_dim": 4, "rope_parameters": LONGROPE, "mlp_bias": True},
    "yarn": LLAMA | {"rope_scaling": YARN, "rope_theta": 500.0, "tie_word_embeddings": True},
    "llama3": LLAMA | {"rope_parameters": LLAMA3, "attention_bias": True, "num_hidden_layers": 1},
}
NAMES = ("gpt2", "llama", *CONFIGS)
WORDS = (  # values that mean something in these files
    *("gpt2", "llama", "mistral", "gelu", "silu", "relu", "linear", "dynamic", "yarn", "longrope"),
    *("default", "BPE", "Unigram", "WordPiece", "WordLevel", "ByteLevel", "Metaspace", "Sequence"),
    *("Precompiled", "Replace", "Split", "Strip", "Fuse", "TemplateProcessing", "BertProcessing"),
    *("AA==", "/////w==", "(a+)+b", "[a-", "\\1", "$A", "isolated", "x" * 300),
)


class HostileFolder(Hostile):
    """The damage of `Hostile`, with the words of these files."""

    def value(self, depth=0):
        if self.rng.random() < 0.3:
            return self.rng.choice(WORDS)
        return super().value(depth)


@functools.cache
def base(name):
    """Return the files of a folder by name."""
    if name in CONFIGS:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            written(Path(folder), CONFIGS[name])
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    files = {path.name: path.read_bytes() for path in (STORED / name).iterdir()}
    del files["reference.npz"]
    return files


def damage(name, number):
    """Return the files of a damaged folder that differ from the base."""
    rng, files = random.Random(f"{name} {number}"), base(name)
    changed = {}
    for _ in range(rng.choice((1, 1, 1, 2))):
        file = rng.choice(sorted(files))
        content = changed.get(file, files[file])
        if rng.random() < 0.2:
            changed[file] = noise(rng, content)
        elif file.endswith(".json"):
            changed[file] = damaged_json(rng, content)
        else:
            hostile = HostileFolder(rng, files[file])
            for _ in range(rng.choice((1, 1, 2))):
                hostile.array()
            changed[file] = hostile.packed(damaged_header=rng.random() < 0.2)
    return changed


def damaged_json(rng, content):
    weights = next(c for file, c in base("plain gpt2").items() if file.endswith(".safetensors"))
    hostile = HostileFolder(rng, weights)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):  # it is damaged already
        return content
    if isinstance(value, dict) and "model" in value and rng.random() < 0.7:
        part = rng.choice([key for key in value if key != "added_tokens"] or [""])  # few tokens
        if part in value and part != "model":
            value[part] = hostile.value() if rng.random() < 0.5 else {"type": rng.choice(WORDS)}
            return dumped(value).encode("utf-8", "surrogatepass")
    for _ in range(rng.choice((1, 1, 2))):
        value = hostile.mutated(value)
    return dumped(value).encode("utf-8", "surrogatepass")


def use(folder):
    model = from_pretrained(folder)
    predicted(model)
    if model.tokenizer is not None:
        model.tokenizer.decode(model.tokenizer.encode("to be, that\n"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that is written again and again, in memory if possible."""
    folder = tmp_path_factory.mktemp("fuzz")
    if os.access(SHM, os.W_OK):
        folder = SHM / f"phitodeep-hub-{os.getpid()}"
        folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def prepare(name, place, changed):
    """Write a folder; a file that is mapped into memory must not change, so it is a new one."""
    folder = place / name
    folder.mkdir(exist_ok=True)
    for file, content in base(name).items():
        path = folder / file
        wanted = changed.get(file, content)
        if not path.exists() or path.read_bytes() != wanted:
            path.unlink(missing_ok=True)
            path.write_bytes(wanted)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_damaged_folders_load_or_are_refused(name, place, capfd):
    """The tokenizers library prints its panics."""
    folders = ((i, prepare(name, place, damage(name, i))) for i in range(times(25)))
    refused_and_used((i, functools.partial(use, folder)) for i, folder in folders)


@pytest.mark.parametrize("name", NAMES)
def test_no_damaged_folder_takes_much_memory(name, place, capfd):
    for number in range(30_000, 30_000 + times(2)):
        folder = prepare(name, place, damage(name, number))
        size = sum(path.stat().st_size for path in folder.iterdir())
        taken = peak(functools.partial(from_pretrained, folder))
        assert taken < 20 * size + 4e6, f"damage({name!r}, {number})"
