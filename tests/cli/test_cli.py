"""The command line: what each command prints, its exit codes, and mistakes without a traceback."""

import io
import itertools
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from phitodeep import cli
from phitodeep import layers as nn
from phitodeep.cli.check import _at_most, _inputs, _limited
from phitodeep.cli.digits import build, drawn, show_mistakes
from phitodeep.cli.generate import _pieces
from phitodeep.cli.predict import _write_csv
from phitodeep.core.config import register
from phitodeep.core.table import Table
from phitodeep.core.version import __version__
from phitodeep.data import CharTokenizer
from phitodeep.errors import DataError, warn
from phitodeep.exchange.onnx.write import export as onnx_export
from phitodeep.io.tensors import open_tensors, write_tensors
from phitodeep.layers import Layer
from phitodeep.layers.initialization import He
from phitodeep.loss import BinaryCrossEntropy, BinaryCrossEntropyWithLogits
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.architectures import gpt
from phitodeep.testing import Verification
from phitodeep.testing.verification import Row
from tests.conftest import model_for
from tests.rows import LONG, few
from tests.time_limit import within

COMMANDS = ["demo", "info", "predict", "check", "export", "generate", "derive", "verify"]
READERS = {  # and what each needs besides a model file
    "info": [],
    "predict": ["x.npy"],
    "check": [],
    "export": ["--to", "numpy"],
    "generate": ["--prompt", "a"],
}
# Before click 8.2, stderr is mixed into stdout unless this is asked for.
APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
TEXT = "to be or not to be, that is the question"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    with forgetting():
        yield tmp_path


def phitodeep(*arguments, code=0):
    """Run a command; anything but click's exit is a bug and fails the test."""
    result = CliRunner(**APART).invoke(cli.main, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def mistake(*arguments):
    """Return the message of an error that is the user's."""
    result = phitodeep(*arguments, code=1)
    assert result.stderr.startswith("Error: ")
    return result.stderr.removeprefix("Error: ").strip()


def saved(model, name="m.safetensors"):
    model.save(name)
    return Path(name)


@cache
def classifier():
    builder = SequentialBuilder(4, 6, seed=0).flatten().dense(5).relu().dense(3).softmax()
    model = builder.loss("categorical_crossentropy").optimizer("adam").epochs(2).build()
    model.train(images(20), np.arange(20) % 3, verbose=0)
    return model


@pytest.fixture
def digits():
    """A small classifier of images (4, 6), and some images in x.npy."""
    np.save("x.npy", images(5))
    return saved(classifier(), "digits.safetensors")


@pytest.fixture
def writer():
    model = gpt(CharTokenizer(TEXT).vocab_size, 8, layers=1, heads=2, dim=8).seed(0).build()
    model.tokenizer = CharTokenizer(TEXT)
    return saved(model, "gpt.safetensors")


def images(n):
    return np.random.default_rng(0).random((n, 4, 6)).astype(np.float32)


NO_ARRAY = "a.npy is not an .npy file of numbers, or it is damaged."


def npy(header, size=117):
    """The content of an .npy file with this header, of this size."""
    padded = header.ljust(size) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(64)


def header(shape):
    return f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()


def read_csv(text):
    return np.array([[float(cell) for cell in line.split(",")] for line in text.splitlines()])


# --- all commands ----------------------------------------------------------------------------


def test_the_commands_their_page_the_version_and_the_script():
    assert [*cli.main.commands] == COMMANDS
    shown = phitodeep("--help").stdout
    lines = [
        line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()[: len(COMMANDS)]
    ]
    assert lines == COMMANDS
    assert "..." not in shown.partition("Commands:")[2], "each first line fits"
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    options = {
        option
        for command in cli.main.commands.values()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    assert len(options) > 12
    assert {f"--{name}" for name in re.findall(r"--([a-z][a-z-]+)", page)} == {*options, "--help"}
    assert set(re.findall(r"`?phitodeep ([a-z]+)", page)) >= set(COMMANDS)
    assert phitodeep("--version").stdout == f"phitodeep, version {__version__}\n"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = project["project"]["scripts"]["phitodeep"].partition(":")
    assert getattr(import_module(module), name) is cli.main


def test_each_command_has_an_example_and_a_missing_or_damaged_file_is_a_message(digits):
    for command in COMMANDS:
        for option in ("--help", "-h"):
            assert f"Example:\n    phitodeep {command}" in phitodeep(command, option).stdout
    content = digits.read_bytes()
    for command, more in READERS.items():
        message = mistake(command, "none.safetensors", *more)
        assert message == "cannot read none.safetensors: there is no such file."
        message = mistake(command, os.getcwd(), *more)
        assert message == f"{os.getcwd()} is a folder, but must be a file."
        for damaged in (content[:-10], b"no model"):
            digits.write_bytes(damaged)
            assert "digits.safetensors" in mistake(command, digits, *more)


def test_folders_and_files_that_are_read_are_not_written(digits, here):
    (here / "d.npy").mkdir()
    for arguments in (
        *(["predict", digits], ["predict", digits, "x.npy", "--output"], ["demo", "--save"]),
        ["export", digits, "--to", "numpy", "--output"],
    ):
        assert mistake(*arguments, "d.npy") == "d.npy is a folder, but must be a file."
    model = digits.rename("model.npy").read_bytes()
    for output in ("x.npy", "model.npy"):
        message = mistake("predict", "model.npy", "x.npy", "-o", output)
        assert message == f"{output} is a file that this command reads: pass --output OTHER."
    for name in ("model.py", "model.npz"):
        Path("model.npy").rename(name)
        assert "this command reads" in mistake("export", name, "--to", "numpy", "--force")
        assert Path(name).read_bytes() == model
        Path(name).rename("model.npy")
    assert np.load("x.npy").shape == (5, 4, 6)
    message = mistake("predict", "model.npy", "missing.npy", "-o", "x.npy")
    assert message == "cannot read missing.npy: there is no such file."


def test_wrong_usage_warnings_bugs_and_ctrl_c(digits, monkeypatch):
    for arguments in ("nothing", "info", "info a b", "demo --epochs 0", "export a"):
        assert "Usage: phitodeep" in phitodeep(*arguments.split(), code=2).stderr
    predict = Sequential.predict

    def warned(self, X):
        warn("look here.")
        return predict(self, X)

    monkeypatch.setattr(Sequential, "predict", warned)
    monkeypatch.setattr("warnings.filters", [])
    assert phitodeep("predict", digits, "x.npy").stderr == "Warning: look here.\n"
    monkeypatch.setattr(Sequential, "predict", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        phitodeep("predict", digits, "x.npy")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Sequential, "predict", interrupt)
    assert phitodeep("predict", digits, "x.npy", code=130).output == ""


def test_demo_saves_what_the_other_commands_can_use(monkeypatch):
    text = phitodeep("demo", "--epochs", 1, "--show", 0).stdout
    lines, model = text.splitlines(), build(7)
    for sizes in ("784, 128", "128, 64", "64, 10"):
        assert f" Dense({sizes}) " in text
    assert (model.batch_size, model.epochs) == (64, 7)
    assert lines[-3].endswith("of 1000 test digits are misread.")
    assert lines[-2].startswith("test accuracy 0.8")
    assert lines[-1].endswith("phitodeep demo --save digits.safetensors")
    assert os.listdir() == []
    saves = "--save", "my digits-1.safetensors"
    shown = phitodeep("demo", "--epochs", 1, "--show", 1, *saves).stdout
    assert shown.count("read as") == shown.count("most confident mistakes:") == 1
    tried = [shlex.split(each)[1:] for each in re.findall("(?m)^  phitodeep .*", shown)]
    assert [command for command, *_ in tried] == ["info", "check", "predict", "export"]
    for arguments in tried:
        phitodeep(*arguments)
    classes = phitodeep(*tried[2]).stdout.split()
    truth = shown.rpartition("images are ")[2].rstrip(".\n").split()
    assert len(classes) == len(truth) == 10
    assert sum(map(str.__eq__, classes, truth)) >= 8
    monkeypatch.setattr(Sequential, "train", None)
    Path("file").touch()
    message = mistake("demo", "--save", "file/d.safetensors")
    assert message == "cannot create file: File exists."


@pytest.mark.parametrize("width", [60, 62])
def test_a_narrow_table_breaks_at_spaces_and_keeps_all_digits(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    row = ("1", "Dense(784, 256, initializer=Orthogonal())", "(256,)", "200,960", "0", "803,840")
    Table("title", ("path", "layer", "output", "trainable", "frozen", "bytes"), [row], "end").show()
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in stream.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    words = " ".join(lines).split()
    assert {"Dense(784,", "256,", "(256,)", "200,960", "803,840"} <= {*words}
    assert any(re.fullmatch(r"initializer=\w*…", word) for word in words)


def test_info_shows_settings_and_reads_no_weights(digits, writer, monkeypatch):
    shown = phitodeep("info", digits).stdout
    facts = {
        "file": f"digits.safetensors, {digits.stat().st_size:,} bytes",
        "holds": "weights\n",
        "input": "(4, 6)",
        "dtype": "float32",
        "loss": "CategoricalCrossEntropy()",
        "optimizer": "Adam()",
        "batch size": "all samples",
    }
    for name, fact in facts.items():
        assert f"\n{name:10}  {fact}" in f"\n{shown}", shown
    for part in ("format version 1", "Dense(24, 5)", "143 trainable and 0 frozen parameters"):
        assert part in shown
    assert "holds       weights, a tokenizer\n" in phitodeep("info", writer).stdout
    model = Sequential(nn.Dense(2, 1), batch_size=4, epochs=3)
    model.train(np.ones((8, 2)), np.ones(8), verbose=0)
    model.save("m.safetensors", optimizer=True)
    shown = phitodeep("info", "m.safetensors").stdout
    assert "holds           weights, the optimizer's memory\n" in shown
    assert "epochs trained  3\n" in shown
    assert "batch size      4\n" in shown
    assert "input       unknown\n" in phitodeep("info", saved(Sequential(nn.Tanh()))).stdout

    def fail(*_, **__):
        raise AssertionError("weights are not needed")

    monkeypatch.setattr(import_module("phitodeep.io.tensors").Tensors, "read", fail)
    monkeypatch.setattr(He, "draw", fail)
    phitodeep("info", digits)


CONTROLS = "\x1b[31m \x1b]0;title\x07 \x9b2J \r \x08 \x7f \u202e \u2066 \u2028"


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("colour", [False, True])
def test_texts_of_a_file_do_not_control_the_terminal(command, colour, writer, monkeypatch):
    """Neither the metadata nor names of arrays, however they come to be shown."""
    with open_tensors(writer) as file:
        arrays, texts = {name: file.read(name) for name in file.entries}, file.metadata
    if command == "info":
        write_tensors(writer, arrays, {**texts, "library": CONTROLS})
    else:
        name = f"a{CONTROLS}\nAll checks passed."
        write_tensors(writer, {**arrays, name: np.zeros(1)}, texts)
    if colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
    done = phitodeep(command, writer, *READERS[command], code=command != "info")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", (done.stdout + done.stderr).replace("\x1b[31m ", "!"))
    assert not set(CONTROLS) & set(shown) - {*"[31m ]0;title2J"}
    assert "!" not in shown
    assert r"\x1b]0;title\x07 \x9b2J" in re.sub(r"\s+", " ", shown)
    assert "\nAll checks passed." not in shown


def test_generated_text_is_shown_when_complete_and_does_not_control_the_terminal(writer):
    tokenizer = CharTokenizer("\x1b\u202e\n" + TEXT)
    model = gpt(tokenizer.vocab_size, 8, layers=1, heads=2, dim=8).seed(0).build()
    model.tokenizer = tokenizer
    model.save(writer)
    shown = phitodeep("generate", writer, "-p", "to\x1b\u202e\nbe", "-n", 50).stdout
    assert shown.startswith("to\\x1b\\u202e\nbe")
    assert not {"\x1b", "\u202e"} & set(shown)
    text = "a\u00e9\u20ac, " * 9
    tokens = list(text.encode())
    pieces = [*_pieces(tokens, lambda tokens: bytes(tokens).decode(errors="replace"))]
    assert "".join(pieces) == text
    assert pieces[:4] == ["a", "\u00e9", "\u20ac", ","]
    cut = [*_pieces(tokens[:2], lambda tokens: bytes(tokens).decode(errors="replace"))]
    assert "".join(cut) == "a\ufffd"


# --- layers of one's own ---------------------------------------------------------------------

OWN = """
import phitodeep

@phitodeep.register
class Twice(phitodeep.Layer):
    def forward(self, X):
        return 2 * X

    def backward(self, dY):
        return FACTOR * dY
"""


@contextmanager
def forgetting():
    """Forget at the end which modules were imported, and which layers were registered."""
    registry = import_module("phitodeep.core.config")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
        patch.setattr(registry, "_NAMES", dict(registry._NAMES))
        patch.setattr(sys, "path", [*sys.path])
        patch.delitem(sys.modules, "own_layers", raising=False)
        yield
    sys.modules.pop("own_layers", None)


def own_layer(here, factor=2):
    """A model file with a layer that this process does not know."""
    (here / "own_layers.py").write_text(OWN.replace("FACTOR", str(factor)))
    with forgetting():
        sys.path.insert(0, str(here))
        saved(Sequential(nn.Dense(3, 2), import_module("own_layers").Twice()), "own.safetensors")


def test_a_module_registers_own_layers_whose_wrong_backward_is_found(here):
    own_layer(here, factor=3)
    message = mistake("info", "own.safetensors")
    assert "unknown layer 'Twice'" in message
    assert "pass --import MODULE" in message
    assert "Twice()" in phitodeep("info", "own.safetensors", "--import", "own_layers").stdout
    shown = phitodeep("check", "own.safetensors", "-m", "own_layers", code=1).stdout
    assert "\nFAILED\n" in shown
    assert "has wrong gradients" in shown
    assert "layer 1" in shown


def test_modules_are_searched_first_in_the_working_directory(here):
    own_layer(here)
    mistake("info", "own.safetensors")
    assert str(here) not in sys.path
    for _ in range(2):
        phitodeep("info", "own.safetensors", "--import", "own_layers")
        assert sys.path.index(str(here)) == 0
    assert sys.path.count(str(here)) == 1


def test_a_module_that_cannot_be_imported_or_fails_is_a_message(here):
    for name in ("nothing_here", "", ".", ".py", "../own"):
        said = mistake("info", "m", "--import", name)
        assert "there is no module of this name" in said
        assert "(--import" not in said
    assert mistake("info", "m", "-m", "own.py").endswith("(--import own?).")
    assert mistake("info", "m", "-m", "./a/own.py").endswith("(--import a.own?).")
    failures = {
        "import nothing_here": "ModuleNotFoundError: No module named 'nothing_here'",
        "def f(): return 1 / 0\nf()": "ZeroDivisionError: division by zero",
        "x = (": "SyntaxError: '(' was never closed",
        "import phitodeep as p; p.Dense(0)": "ArgumentError: Dense ",
    }
    for k, (code, message) in enumerate(failures.items()):
        (here / f"half_done_{k}.py").write_text(code)
        result = CliRunner(**APART).invoke(cli.main, ["info", "m", "--import", f"half_done_{k}"])
        assert result.exit_code == 1
        first, *lines = result.stderr.splitlines()
        assert first == f"Error: --import half_done_{k} failed."
        assert any(line.startswith(message) or f".{message}" in line for line in lines)
        files = [Path(line.split('"')[1]) for line in lines if line.startswith("  File ")]
        assert files[0] == here / f"half_done_{k}.py"  # only its own frames are shown
        assert not any(part in result.stderr for part in ("importlib", "click", "cli/app.py"))


# --- check -----------------------------------------------------------------------------------


def test_check_passes_also_with_tokens(digits, writer):
    shown = phitodeep("check", digits).stdout
    assert shown.startswith("digits.safetensors: 4 arrays, 572 bytes, float32\n")
    assert shown.endswith("All checks passed.\n")
    rows = [re.split("  +", line) for line in shown.splitlines() if line.endswith(" ok")]
    assert [row[0] for row in rows] == ["1.W", "1.b", "3.W", "3.b", "input"]
    assert "largest relative error, compared with central differences" in shown
    assert all(float(row[-2]) < 1e-7 for row in rows)
    assert "All checks passed." in phitodeep("check", writer, "--probes", 2).stdout
    categories = [
        nn.Chain(nn.Select([column], tokens=True), nn.Embedding(count, 3), nn.Flatten())
        for column, count in ((2, 3), (3, 50))
    ]
    layers = nn.Parallel(nn.Select([0, 1]), *categories), nn.BatchNorm(), nn.Dense(2), nn.Tanh()
    model = model_for((4,), *layers)
    assert "All checks passed." in phitodeep("check", saved(model), "--probes", 2).stdout


def test_inputs_of_a_check_are_normal_values_or_tokens_of_the_smallest_vocabulary():
    columns, embeddings = range(50), [nn.Embedding(9, 2), nn.Flatten(), nn.Dense(1)]
    X = _inputs(model_for((50,), nn.Select(columns), nn.Dense(1)), 0)
    assert X.shape == (3, 50)
    assert abs(X.mean()) < 0.3 < X.std()
    for start in ([], [nn.Select(columns, tokens=True)]):
        tokens = _inputs(model_for((50,), *start, *embeddings), 0)
        assert np.unique(tokens).tolist() == [*range(9)]
    assert not _inputs(model_for((50,), nn.Select(columns, tokens=True)), 0).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -2.27e38, 1e14])
def test_check_names_a_weight_that_is_not_finite_or_far_too_large(value, digits):
    model = Sequential.load(digits)
    model.layers[3].W[1, 2] = value
    shown = phitodeep("check", saved(model), code=1).stdout
    large = f"{value:.3g} is so large that gradients cannot be computed"
    fault = large if np.isfinite(value) else "1 of 15 values are not finite"
    assert f"\nFAILED\n3.W: {fault}" in shown
    rows = [line.split() for line in shown.splitlines()[2:6]]
    assert [row[-1] for row in rows] == ["ok", "ok", "FAILED", "ok"]


def test_check_finds_wrong_gradients_and_ends_in_time(digits, monkeypatch):
    backward = nn.Dense.backward

    def wrong(self, dY):
        dX = backward(self, dY)
        if self.W.shape == (5, 3):
            self.grads["W"] = self.grads["W"] + (np.arange(15).reshape(5, 3) == 7)
        return dX

    monkeypatch.setattr(nn.Dense, "backward", wrong)
    shown = phitodeep("check", digits, "--probes", 1, code=1).stdout
    assert "are not: a larger --probes finds them." in shown
    assert "W[2, 1]: expected" in phitodeep("check", digits, "--probes", 15, code=1).stdout
    monkeypatch.setattr(nn.Dense, "backward", lambda self, dY: backward(self, dY / 4))
    assert "wrong gradients" in phitodeep("check", digits, code=1).stdout
    monkeypatch.setattr(import_module("phitodeep.cli.check"), "SECONDS", 0.01)
    shown = phitodeep("check", digits, code=1).stdout
    assert "the gradients takes more than 0 s, which is too much for a file of" in shown
    assert "pass fewer --probes" in shown


def test_a_model_without_the_shape_of_its_input_passes_with_its_arrays():
    shown = phitodeep("check", saved(Sequential(nn.ReLU()))).stdout
    assert "The gradients were not checked: the model does not know its input shape." in shown
    assert "All checks passed." in shown


linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of a process's memory")


@pytest.mark.parametrize(
    ("shape", "layer", "dtype", "limit"),
    [
        ((20_000_000,), nn.ReLU(), "float32", "GB of memory"),
        ((10**12,), nn.Residual(nn.Chain(nn.ReLU())), "float64", "GB of memory"),
        ((1000, 1000, 30), nn.Flatten(), "float64", "GB of memory"),
        ((200_000, 1), nn.MultiHeadAttention(1), "float32", "30 s"),
        *(  # inside a layer
            pytest.param(shape, layer, "float32", r"1\.\d GB of memory", marks=linux)
            for shape, layer in (
                ((4, 1), nn.Conv1D(1, 2, dilation=10**9, padding="same")),
                ((1, 1, 1), nn.RandomCrop(1, padding=10**5)),
                ((300_000, 1, 1), nn.Upsample2D(2)),
                ((10_000, 1), nn.TimeDistributed(nn.Chain(nn.Dense(10_000), nn.Dense(1)))),
            )
        ),
    ],
    ids=str,
)
def test_check_takes_no_more_than_its_file_warrants(shape, layer, dtype, limit):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    model = model_for(shape, layer, dtype=dtype)
    with within(10):
        shown = phitodeep("check", saved(model), code=1).stdout
    assert re.search(f"checking the gradients takes more than .*{limit}, which is", shown)
    assert f"too much for a file of {os.path.getsize('m.safetensors'):,} bytes" in shown
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    ("shape", "layer", "size", "available", "limit"),
    [
        ((12_000_000,), nn.ReLU(), 0, 10**25, "1.1 GB"),
        ((10**12,), nn.ReLU(), 10**11, 10**25, "3201.1 GB"),
        ((10**12,), nn.ReLU(), 10**10, 8 * 10**9, "4.0 GB"),
        ((10**9, 1), nn.MultiHeadAttention(1), 26 * 10**13, 10**25, "78000000030 s"),
    ],
    ids=str,
)
def test_what_a_check_may_take_grows_with_its_file(
    shape, layer, size, available, limit, monkeypatch
):
    pages = {"SC_PHYS_PAGES": available // 4, "SC_PAGE_SIZE": 4}
    monkeypatch.setattr(os, "sysconf", pages.get, raising=False)
    file = SimpleNamespace(stat=lambda: SimpleNamespace(st_size=size))
    model = model_for(shape, layer)
    with pytest.raises(DataError, match=f" more than {limit}"), _limited(file, model):
        pytest.fail("the check has begun")


@linux
def test_a_limit_of_memory_counts_from_what_the_process_has_and_raises_none():
    resource = pytest.importorskip("resource")
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    with _at_most(2**42):
        most = resource.getrlimit(resource.RLIMIT_AS)
        assert most == (pytest.approx(own + 2**42, abs=2**26), before[1])
        with _at_most(2**43):
            assert resource.getrlimit(resource.RLIMIT_AS) == most
        with _at_most(2**41):
            assert resource.getrlimit(resource.RLIMIT_AS)[0] < most[0]
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_every_command_takes_a_network_with_named_inputs_and_outputs():
    tower = nn.Dense(3)
    builder = SequentialBuilder(a=(2, 2), words=(4,), seed=0).at("a").flatten().add(tower)
    builder.name("left").at("words").embedding(9, 4).lstm(4, return_sequences=False).shared(tower)
    builder.add("left").output("kind", loss="softmax_cross_entropy").at("left").dense(2)
    model = builder.output("box", loss="huber", weight=0.5).build()
    file, A = saved(model), np.random.default_rng(0).random((3, 2, 2)).astype(np.float32)
    words = np.arange(12).reshape(3, 4) % 9
    np.save("a.npy", A)
    np.save("b.npy", np.zeros((3, 4, 2), int))
    np.savetxt("w.csv", words, "%d", ",")
    P = model.predict({"a": A, "words": words})
    shown = phitodeep("info", file).stdout
    assert "input       a (2, 2), words (4,)\n" in shown
    assert "SoftmaxCrossEntropy() of kind + 0.5 Huber() of box" in shown
    shown = phitodeep("check", file).stdout
    assert "All checks passed." in shown
    assert "\ninput a " in shown
    for form in ("numpy", "onnx"):
        phitodeep("export", file, "--to", form)
    head, rows = phitodeep("predict", file, "words=w.csv", "a=a.npy").stdout.split("\n", 1)
    assert head == "kind 0,kind 1,kind 2,box 0,box 1"
    np.testing.assert_array_equal(read_csv(rows).astype("f"), np.hstack([P["kind"], P["box"]]))
    classes = P["kind"].argmax(1)
    for losses in ({"kind": "softmax_cross_entropy"}, model.loss.losses):
        model.setloss(losses)
        given = saved(model), "a=a.npy", "words=w.csv", "--classes"
        head, rows = phitodeep("predict", *given).stdout.split("\n", 1)
        assert head == "kind,box 0,box 1"
        np.testing.assert_array_equal(read_csv(rows).astype("f"), np.c_[classes, P["box"]])
    said = phitodeep("predict", *given, "-o", "out.npy").stderr
    assert said.startswith("Wrote out-kind.npy: shape (3,), int64.")
    np.testing.assert_array_equal(np.load("out-kind.npy"), classes)
    np.testing.assert_array_equal(np.load("out-box.npy"), P["box"])
    for wrong, message in {
        "a.npy": "INPUT (a=FILE words=FILE) must hold a, words; it lacks 'words'.",
        "a.npy w.csv": "lacks 'a', 'words' and has the unknown 'a.npy', 'w.csv'",
        "a=a.npy b=w.csv": "lacks 'words' and has the unknown 'b'",
        "a=a.npy a=a.npy words=w.csv": "a, a, words: an input is given twice",
        "a=w.csv words=a.npy": "words'] takes integer tokens",
        "a=a.npy words=b.npy": "b.npy has samples of shape (4, 2), but the model takes (4,)",
    }.items():
        assert message in mistake("predict", file, *wrong.split())
    np.save("out-box.npy", A)
    message = mistake("predict", file, "a=out-box.npy", "words=w.csv", "-o", "out.npy")
    assert message.startswith("out-box.npy is a file that this command reads")


# --- predict ---------------------------------------------------------------------------------


@pytest.fixture
def expected(digits):
    return Sequential.load(digits).predict(images(5))


def test_what_predict_prints_and_writes_and_how_exact_it_is(digits, expected, writer):
    shown = phitodeep("predict", digits, "x.npy").stdout
    np.testing.assert_array_equal(read_csv(shown).astype(np.float32), expected)
    shutil.copy("x.npy", "run=1.npy")
    assert phitodeep("predict", digits, "run=1.npy").stdout == shown
    shown = phitodeep("predict", digits, "x.npy", "--classes").stdout
    assert [int(line) for line in shown.splitlines()] == expected.argmax(axis=1).tolist()
    result = phitodeep("predict", digits, "x.npy", "--output", "out.npy")
    assert result.stdout == ""
    assert result.stderr == "Wrote out.npy: shape (5, 3), float32.\n"
    np.testing.assert_array_equal(np.load("out.npy"), expected)
    phitodeep("predict", digits, "x.npy", "-o", "out.csv")
    np.testing.assert_array_equal(read_csv(Path("out.csv").read_text()).astype("f"), expected)
    assert "must end in .npy or .csv" in phitodeep("predict", digits, "x", "-o", "a", code=2).stderr
    Path("x.csv").write_text("0,1,2,3,4,5,6,7\n")
    shown = phitodeep("predict", writer, "x.csv", "--classes").stdout
    assert len(shown.split(",")) == 8
    Path("x.csv").write_text("0,1,2,3,4,5,6,0.5\n")
    np.save("x.npy", np.full((2, 8), 0.5))
    np.save("truth.npy", np.ones((2, 8), bool))
    for name, kind in {"x.csv": "float64", "x.npy": "float64", "truth.npy": "bool"}.items():
        message = mistake("predict", writer, name)
        assert message.endswith(f"{kind}: all numbers in INPUT must be integers from 0.")
    for dtype, tenth in ((np.float32, "0.100000001"), (np.float64, "0.10000000000000001")):
        P = np.random.default_rng(0).standard_normal((200, 2)).astype(dtype)
        P[0, 0], stream = 0.1, io.StringIO()
        _write_csv(stream, {"Y": P})
        assert stream.getvalue().startswith(f"{tenth},")
        np.testing.assert_array_equal(read_csv(stream.getvalue()).astype(dtype), P)
    X = np.array([[-0.5], [0.3], [0.9]])
    np.save("x.npy", X)
    np.save("steps.npy", X[None])
    for loss in (BinaryCrossEntropy(), BinaryCrossEntropyWithLogits()):
        model = Sequential(nn.Dense(1, 1), loss_class=loss)
        model.layers[0].W = [[1.0]]
        for name, between in (("x.npy", "\n"), ("steps.npy", ",")):
            shown = phitodeep("predict", saved(model), name, "--classes").stdout.strip()
            assert shown.split(between) == ["0", "0" if loss.threshold else "1", "1"]


@pytest.mark.parametrize("name", [None, "p{}", "{}_0"])
def test_predict_reads_rows_and_reshapes_them(name, digits, expected):
    header = "" if name is None else ",".join(map(name.format, range(24))) + "\n"
    rows = "\n".join(",".join(map(repr, row.tolist())) for row in images(5).reshape(5, 24))
    Path("x.csv").write_text(header + rows + "\n\n")
    shown = phitodeep("predict", digits, "x.csv").stdout
    np.testing.assert_array_equal(read_csv(shown).astype(np.float32), expected)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "1,2\n3,x\n", "a.csv, row 2, column 2: expected a number, got 'x'."),
        ("a.csv", "u,v\n1,2\n\n3, \n", 'row 4, column 2 ("v"): expected a number, got an empty'),
        ("a.csv", "1,oops\n3,4\n", "a.csv, row 1, column 2: expected a number, got 'oops'."),
        ("a.csv", "1,2\n3\n", "row 2: expected as many columns as in the first row, 2, got 1."),
        ("a.csv", "u,v\n1,2,3\n", "row 2: expected as many columns as in the first row, 2, got 3."),
        ("a.csv", "1;2\n3;4\n", "separated by ';', but must be separated by commas, got '3;4'."),
        ("a.csv", "1\t2\n3\t4\n", "a.csv: the columns are separated by '\\t'"),
        ("a.csv", "1 2\n3 4\n", "a.csv: the columns are separated by ' '"),
        ("a.csv", "1,5;2,3\n4;5,5\n", "a.csv: the columns are separated by ';'"),
        ("a.csv", "1,5;2\n4,5;3\n", "a.csv: the columns are separated by ';'"),
        ("a.csv", "1,not known\n", "a.csv, row 1, column 2: expected a number, got 'not known'."),
        ("a.csv", "1,1_0\n", "a.csv, row 1, column 2: expected a number, got '1_0'."),
        ("a.csv", "u,v\n1,0x10\n", "column 2 (\"v\"): expected a number, got '0x10'."),
        ("a.csv", "u,v\n1,True\n", "column 2 (\"v\"): expected a number, got 'True'."),
        ("a.csv", "1,nan\n", "a.csv, row 1, column 2: expected a number, got 'nan'."),
        ("a.csv", "u,v\n1,2\n3,-inf\n", "row 3, column 2 (\"v\"): expected a number, got '-inf'."),
        ("a.csv", "", "a.csv has no row of numbers."),
        ("a.csv", "u,v\n", "a.csv has no row of numbers."),
        ("a.csv", b"\xff\xfe1,2", "cannot read a.csv as a CSV file: 'utf-8'"),
        ("a.csv", "1,2\n3,4\n", "a.csv has 2 numbers per row, but the model takes samples of sh"),
        ("a.csv", "1\n2\n", "a.csv has 1 number per row, but the model takes samples of shape (4,"),
        ("a.npy", b"nothing", NO_ARRAY),
        ("a.npy", b"", NO_ARRAY),
        ("a.npy", b"PK\x03\x04" + 50 * b"0", NO_ARRAY),
        ("a.npy", npy(b"(" * 117), NO_ARRAY),
        ("a.npy", npy(header("(" + 30 * "9" + ", 4)")), NO_ARRAY),
        ("a.npy", npy(header("(True, 4)")), NO_ARRAY),
        ("a.csv", "1;2\n", "a.csv: the columns are separated by ';'"),
        ("a.npy", np.array([{}]), NO_ARRAY),
        ("a.npy", npy(header("(1, 4)") + 20_000 * b" ", 20_080), NO_ARRAY),
        ("a.npy", np.full((2, 24), np.nan), "nan"),
        ("a.npy", np.array(["1", "2"]), "a.npy is not an .npy file of numbers: its dtype is <U1."),
        ("a.npy", np.ones(2, complex), "not an .npy file of numbers: its dtype is complex128."),
        ("a.npy", np.ones((2, 4, 5)), "shape (4, 5), but the model takes (4, 6): in layer 1"),
        ("a.npy", np.ones((4, 6)), "a single sample must be an array of shape (1, 4, 6)."),
        ("a.csv", "1,2,3\n", "without labels or row numbers."),
        ("a.npy", np.float64(3), "a.npy holds a single number"),
        ("a.npy", np.ones(3), "a.npy has 1 number per row"),
        ("a.txt", "1,2", "a.txt must be an .npy or a .csv file."),
        ("a.npy", npy(header("(1000000000000, 0)")), "its samples hold no numbers."),
        ("a.npy", npy(header("(1000000000000, 0, 5)")), "its samples hold no numbers."),
        ("b/lr=1.csv", None, "cannot read b/lr=1.csv: there is no such file."),
        ("a.npy", None, "cannot read a.npy: there is no such file."),
    ],
)
def test_inputs_that_cannot_be_used(name, content, message, digits):
    if isinstance(content, str):
        Path(name).write_text(content)
    elif isinstance(content, bytes):
        Path(name).write_bytes(content)
    elif content is not None:
        np.save(name, content, allow_pickle=True)
    assert message in mistake("predict", digits, name)


def test_tokens_of_a_csv_are_whole_numbers(here):
    model = model_for((2,), nn.Embedding(300, 2), nn.Flatten(), seed=0)
    saved(model, "m.safetensors")
    (here / "x.csv").write_text("250,3\n1.0,2\n")
    expected = model.predict(np.array([[250, 3], [1, 2]]))
    phitodeep("predict", "m.safetensors", "x.csv", "--output", "y.npy")
    np.testing.assert_array_equal(np.load("y.npy"), expected)
    for number, said in {
        **dict.fromkeys(["1e300", "-1e300", "0.5"], "must be integers from 0"),
        str(2**53 - 1): f"got {2**53 - 1} at X[0, 0]",
        str(2**53 + 1): "must be integers from 0",  # a float would make another number of it
    }.items():
        (here / "x.csv").write_text(f"{number},3\n")
        assert said in mistake("predict", "m.safetensors", "x.csv")


class Reader:
    """Reads four digits, two of them wrongly."""

    def predict(self, X):
        return np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.9, 0.05, 0.05]])


@pytest.mark.parametrize(("width", "lines"), [(53, 30), (54, 16), (81, 16), (20, 30)])
def test_the_most_confident_mistakes_are_drawn_side_by_side(width, lines, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    show_mistakes(Reader(), np.zeros((4, 28, 28)), np.array([0, 1, 2, 1]), 2)
    said = capsys.readouterr().out
    assert said.startswith("2 of 4 test digits are misread.\nThe most confident mistakes:\n\n")
    assert said.index("1, read as 0 (90.0%)") < said.index("1, read as 0 (60.0%)")
    assert said.count("\n") == lines
    show_mistakes(Reader(), np.zeros((4, 28, 28)), np.array([0, 1, 2, 1]), 1)
    assert "60.0%" not in capsys.readouterr().out
    show_mistakes(Reader(), np.zeros((4, 28, 28)), np.array([0, 0, 2, 0]), 2)
    assert capsys.readouterr().out == "0 of 4 test digits are misread.\n"
    image = np.zeros((28, 28))
    image[2:4, 2], image[2, 3], image[4:6, 25], image[5, 24] = 1, 1, 0.22, 0.5
    first, second, *others = drawn(image)
    assert (first, second) == ("█▒" + " " * 22, " " * 22 + "░░")
    assert others == [" " * 24] * 10


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_inputs_are_regular_files(digits):
    for name in ("a.npy", "a.csv"):
        for make in (os.mkfifo, lambda name: os.symlink("/dev/zero", name)):
            make(name)
            message = f"cannot read {name}: it is not a regular file."
            assert mistake("predict", digits, name) == message
            Path(name).unlink()


def test_samples_and_csv_files_at_the_limits(writer, digits, monkeypatch):
    np.save("x.npy", np.ones(2))
    message = mistake("predict", saved(Sequential(nn.Dense(2, 1))), "x.npy")
    assert "must be an array of shape (1, 2)" in message
    message = mistake("predict", saved(Sequential(nn.Dense(3, 1))), "x.npy")
    assert message.startswith("x.npy has 1 number per row")
    for count in (1, 2):
        np.save("x.npy", np.ones(count))
        shown = phitodeep("predict", saved(Sequential(nn.Dense(1, 1))), "x.npy").stdout
        assert len(shown.splitlines()) == count
    Path("a.csv").write_text("1,2,1e30\n")
    assert "takes integer tokens" in mistake("predict", writer, "a.csv")
    Path("a.csv").touch()
    os.truncate("a.csv", (1 << 30) + 1)  # with a hole
    said = mistake("predict", digits, "a.csv")
    assert "it has 1,073,741,825 bytes, and at most 1,073,741,824 are read" in said
    header = ",".join(f"{'name' * 20}{j}" for j in range(24))
    Path("x.csv").write_text(f"{header}\n{'9' * 50}x{',1' * 23}\n")
    message = mistake("predict", digits, "x.csv")
    name, cell = ("name" * 20)[:40], "9" * 40
    assert message == f'x.csv, row 2, column 1 ("{name}"): expected a number, got {cell!r}.'
    Path("x.csv").write_text(header.replace(",", ";") + "\n" + ";".join("1" * 24))
    assert len(mistake("predict", digits, "x.csv")) < 140

    def forbid(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    Path("x.csv").touch()
    monkeypatch.setattr("phitodeep.cli.inputs.Path.open", forbid)
    assert mistake("predict", digits, "x.csv") == "[Errno 13] Permission denied: 'x.csv'"


# --- export ----------------------------------------------------------------------------------


@pytest.fixture
def exports(monkeypatch):
    """Write two files, as the export does; its own tests run what is in them."""

    def write(self, path):
        path.write_text("net")
        path.with_suffix(".npz").write_text("weights")

    monkeypatch.setattr(Sequential, "export_numpy", write, raising=False)


@pytest.mark.usefixtures("exports")
def test_export_writes_next_to_the_model_or_where_it_is_told_and_replaces_nothing(digits):
    shown = phitodeep("export", digits, "--to", "numpy").stdout
    assert shown == "Wrote digits.py, 3 bytes.\nWrote digits.npz, 7 bytes.\n"
    phitodeep("export", digits, "--to", "numpy", "--output", "net.py")
    assert Path("net.npz").read_text() == "weights"
    for name, other in (("digits.py", "digits.npz"), ("digits.npz", "digits.py")):
        Path(other).unlink()
        Path(name).write_text("mine")
        message = mistake("export", digits, "--to", "numpy")
        assert message == f"{name} exists: pass --output OTHER, or --force to replace it."
        assert Path(name).read_text() == "mine"
        phitodeep("export", digits, "--to", "numpy", "--force")
        assert Path(name).read_text() != "mine"


@pytest.mark.usefixtures("exports")
def test_an_exported_module_has_a_name_that_can_be_imported(digits):
    modules = {"my-digits.v2": "my_digits_v2"}
    for name in ("my-digits.v2", "2024", "class", "json", "numpy"):
        digits = digits.rename(f"{name}.safetensors")
        shown = phitodeep("export", digits, "--to", "numpy").stdout
        assert shown.startswith(f"Wrote {modules.get(name, f'model_{name}')}.py")
    for name in ("a-b.py", "net.txt", "1.py", "if.py", "random.py", "numpy.py"):
        message = mistake("export", digits, "--to", "numpy", "--output", name)
        assert message.startswith(f"--output {name}: the file is a Python module")
        assert not Path(name).exists()
    mistake("export", digits, "--to", "numpy", "-o", "")
    mistake("export", "", "--to", "numpy")


def test_export_needs_an_input_shape_that_settings_may_determine():
    saved(Sequential(nn.Dense(4, 2), nn.Tanh()))
    phitodeep("export", "m.safetensors", "--to", "numpy", "--output", "net.py")
    X = np.ones((3, 4), np.float32)
    np.save("x.npy", X)
    expected = read_csv(phitodeep("predict", "m.safetensors", "x.npy").stdout)
    predict = runpy.run_path("net.py", run_name="net")["predict"]
    np.testing.assert_allclose(predict(X), expected, rtol=1e-6)
    message = mistake("export", saved(Sequential(nn.Tanh())), "--to", "numpy")
    assert message.startswith("m.safetensors does not determine the model's input shape")


def test_export_to_onnx(digits):
    import onnx
    from onnx.reference import ReferenceEvaluator

    shown = phitodeep("export", digits, "--to", "onnx").stdout
    assert shown == f"Wrote digits.onnx, {Path('digits.onnx').stat().st_size:,} bytes.\n"
    phitodeep("export", digits, "--to", "onnx", "--output", "net.onnx", "--opset", "17")
    versions = [onnx.load(f"{name}.onnx").opset_import[0].version for name in ("digits", "net")]
    assert versions == [20, 17]
    expected = read_csv(phitodeep("predict", digits, "x.npy").stdout)
    (Y,) = ReferenceEvaluator("net.onnx").run(None, {"X": images(5)})
    np.testing.assert_allclose(Y, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_exports_to_one_file_have_the_same_checks(form, digits):
    ending = {"onnx": ".onnx", "torch": ".pt2"}[form]
    message = mistake("export", digits, "--to", form, "--output", "net.py")
    remedy = f"the name must have the ending {ending}: try --output net{ending}."
    assert message == f"--output net.py: {remedy}"
    Path(f"digits{ending}").write_text("mine")
    message = mistake("export", digits, "--to", form)
    assert message == f"digits{ending} exists: pass --output OTHER, or --force to replace it."
    assert Path(f"digits{ending}").read_text() == "mine"
    digits.rename(f"own{ending}")
    assert "this command reads" in mistake("export", f"own{ending}", "--to", form, "--force")


def test_opsets_formats_and_weights_of_a_large_onnx_file(digits, monkeypatch):
    shown = phitodeep("export", digits, "--to", "numpy", "--opset", "20", code=2).stderr
    assert "--opset is for --to onnx, not for --to numpy." in shown
    assert "opset must be from 17 to" in mistake("export", digits, "--to", "onnx", "--opset", "1")
    assert sorted(p.name for p in Path().iterdir()) == ["digits.safetensors", "x.npy"]
    assert "'nothing' is not" in phitodeep("export", digits, "--to", "nothing", code=2).stderr
    monkeypatch.setattr(onnx_export, "LARGEST", 100)
    Path("digits.onnx.data").write_text("mine")
    assert "digits.onnx.data exists" in mistake("export", digits, "--to", "onnx")
    assert not Path("digits.onnx").exists()
    for form, files in {
        "onnx": ["digits.onnx", "digits.onnx.data"],
        "numpy": ["digits.py", "digits.npz"],
    }.items():
        shown = phitodeep("export", digits, "--to", form, "--force").stdout
        assert re.findall("Wrote ([^,]*),", shown) == files


@register
class Doubled(Layer):
    """A layer that no format knows."""

    def forward(self, X):
        return 2 * X


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_an_export_names_the_layer_that_it_cannot_write(form):
    pytest.importorskip(form)
    model = model_for((3,), nn.Dense(3, 2), Doubled())
    assert "Doubled()" in mistake("export", saved(model), "--to", form)
    assert sorted(p.name for p in Path().iterdir()) == ["m.safetensors"]


def test_export_to_torch_says_what_it_needs(digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    message = mistake("export", digits, "--to", "torch")
    assert message == 'to_torch needs torch: pip install "phitodeep[torch]".'


def test_export_to_torch(digits):
    torch = pytest.importorskip("torch")
    phitodeep("export", digits, "--to", "torch")
    expected = read_csv(phitodeep("predict", digits, "x.npy").stdout)
    script = """
import sys
sys.modules["phitodeep"] = None
import numpy as np, torch
module = torch.export.load("digits.pt2").module()
np.save("y.npy", module(torch.tensor(np.load("x.npy"))).detach().numpy())
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    np.testing.assert_allclose(np.load("y.npy"), expected, rtol=1e-4, atol=1e-6)
    assert torch.export.load("digits.pt2").state_dict


def test_generate_continues_texts_and_numbers(writer, digits):
    model = Sequential.load(writer)
    tokens = model.generate(model.tokenizer.encode("to be"), 12, seed=3, temperature=0.5)[0]
    options = ["--prompt", "to be", "-n", 12, "--seed", 3, "--temperature", 0.5]
    shown = phitodeep("generate", writer, *options).stdout
    assert shown == model.tokenizer.decode(tokens) + "\n"
    likeliest = phitodeep("generate", writer, *options[:4], "--top-k", 1).stdout
    for option in (("--temperature", 0), ("--top-p", 1e-9)):
        assert phitodeep("generate", writer, *options[:4], *option).stdout == likeliest
    model = Sequential.load(writer)
    model.tokenizer = None
    plain = saved(model, "plain.safetensors")
    tokens = model.generate([3, 1, 4], 5, seed=1)[0].tolist()
    for prompt in ("3 1 4", "3,1, 4", " 3 1 4 "):
        shown = phitodeep("generate", plain, "-p", prompt, "-n", 5, "--seed", 1)
        assert [int(token) for token in shown.stdout.split()] == tokens
    for prompt in ("to be", "3 -1", "", "3.5"):
        message = mistake("generate", plain, "--prompt", prompt)
        assert message.startswith("the file holds no tokenizer, so the prompt must be token num")
    assert "needs a model that reads tokens" in mistake("generate", digits, "--prompt", "a")
    assert "has no character 'X'" in mistake("generate", writer, "--prompt", "X")
    assert "at least one token" in mistake("generate", writer, "--prompt", "")
    for tokenizer in (He(), BinaryCrossEntropy()):  # any object with a config can be saved
        model.tokenizer = tokenizer
        message = mistake("generate", saved(model), "--prompt", "a")
        assert message.startswith(f"the tokenizer in m.safetensors is {tokenizer!r}, but must have")


def test_generate_takes_the_other_inputs_of_a_network_from_files(here):
    builder = SequentialBuilder(source=(3,), target=(4,), seed=0).at("source").embedding(5, 4)
    builder = builder.name("memory").at("target").embedding(5, 4).cross_attention("memory", heads=2)
    model = builder.dense(5).build()
    file, source = saved(model), np.array([[1, 2, 4]])
    np.savetxt("source.csv", source, "%d", ",")
    tokens = model.generate([[0]], 6, given={"source": source}, seed=1)[0].tolist()
    options = ["--prompt", "0", "-n", 6, "--seed", 1, "--given"]
    shown = phitodeep("generate", file, *options, "source=source.csv").stdout
    assert [int(token) for token in shown.split()] == tokens
    for given, message in {
        "source.csv": "'' is not one of the names that take --given, which are 'source', 'target'",
        "sauce=source.csv": "Did you mean 'source'?",
        "source=x.csv": "x.csv: there is no such file",
    }.items():
        assert message in mistake("generate", file, *options, given)
    assert "give all but the text that grows" in mistake("generate", file, *options[:2])


def test_derive_prints_or_writes_a_layer(tmp_path):
    given = "derive", "Y = X * sigmoid(beta * X / k)", "X=4,5", "beta=5", "k=2.0", "--name", "Swish"
    source = phitodeep(*given).stdout
    assert "class Swish(Layer)" in source
    assert "k: float = 2.0" in source
    assert phitodeep(*given[:3], "beta=5,", *given[4:]).stdout == source
    assert "swish.py" in phitodeep(*given, "-o", tmp_path / "swish.py").stdout
    assert (tmp_path / "swish.py").read_text() == source
    assert "does not overwrite" in phitodeep(*given, "-o", tmp_path / "swish.py", code=1).stderr
    for targets, base in (("T=4,5", "Rowwise"), ("T=labels", "OneHot")):
        found = phitodeep("derive", "L = (P * T).sum(axis=-1)", "P=4,5", targets, "--name", "Dot")
        assert f"class Dot({base})" in found.stdout
    for wrong in ("X=a", "X=", "X", "X=,"):
        assert f"'{wrong}' must be a shape or a number" in mistake("derive", "Y = X", wrong)


def test_verify_ends_with_its_verdict_even_without_a_reader(monkeypatch):
    for reader, faults in itertools.product([True, False], [[], ["Dense is wrong"]]):

        def verify(verbose=True, reader=reader, faults=faults):
            if verbose and not reader:
                raise BrokenPipeError
            return Verification({"NumPy": "2"}, (Row("layer", "Dense", faults=faults),), 1.0)

        monkeypatch.setattr("phitodeep.testing.verify", verify)
        phitodeep("verify", code=bool(faults))


# --- real processes --------------------------------------------------------------------------

MODULE = [sys.executable, "-m", "phitodeep"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
ENVIRONMENT["PHITODEEP_KERNELS"] = "numpy"  # which need no numba, so that processes start faster
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)


def shell(line, *arguments):
    """Run a line in which `phitodeep` stands for our module; any part of a pipe may fail."""
    line = f"set -o pipefail; {line.replace('phitodeep', ' '.join(MODULE))}"
    command = ["bash", "-c", line, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell and its signals")


def test_the_module_fails_without_a_traceback_and_only_it_imports_click():
    code = """
import runpy, sys, phitodeep.model, phitodeep.testing
assert "click" not in sys.modules
runpy.run_module("phitodeep", run_name="__main__")"""
    command = [sys.executable, "-c", code, "info", "none"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: cannot read none: there is no such file.\n"


@posix
@pytest.mark.parametrize(
    ("command", "reader", "code"),
    [
        ("generate gpt.safetensors -p to -n 1000000", "head -c 3", 0),
        ("check 200.safetensors", "true", 1),  # whose table fits into no buffer
        *[("demo --epochs 1", "true", 0), ("predict digits.safetensors x.npy", "true", 0)] * LONG,
    ],
)
@pytest.mark.usefixtures("digits", "writer")
def test_a_closed_pipe_ends_quietly_and_hides_no_failed_check(command, reader, code):
    spoilt(200)
    done = shell(f"phitodeep {command} | {reader}")
    assert len(done.stdout.splitlines()) == (reader != "true")
    assert (done.stderr, done.returncode) == ("", code)


def spoilt(layers):
    """A file of this many layers, the last of which has no finite bias."""
    model = Sequential(*(nn.Dense(1, 1) for _ in range(layers)))
    model.layers[-1].b[0] = np.nan
    saved(model, f"{layers}.safetensors")


@posix
@pytest.mark.parametrize("command", few(["phitodeep info $0", "phitodeep --help"], 1))
def test_a_stdout_that_was_closed(command, digits):
    done = shell(f"{command} >&-", str(digits))
    assert (done.returncode, done.stderr) == (0, "")


@posix
@pytest.mark.usefixtures("digits")
def test_a_stdout_that_takes_nothing(monkeypatch, capsys):
    """Python flushes it once more when it ends, and here when it is closed."""
    spoilt(1)
    np.save("many.npy", np.repeat(images(1), 20_000, axis=0))
    cases = [
        ("check digits.safetensors", broken_pipe, 0),
        ("check 1.safetensors", broken_pipe, 1),
        ("predict digits.safetensors many.npy", broken_pipe, 0),
        ("--help", broken_pipe, 0),
    ]
    if Path("/dev/full").exists():
        cases += [(command, lambda: "/dev/full", 1) for command in ("info 1.safetensors", "--help")]
    for command, where, code in cases:
        with open(where(), "w", encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            with pytest.raises(SystemExit) as end:
                cli.main(command.split())
            assert end.value.code == code, command
        full = "" if where == broken_pipe else "Error: [Errno 28] No space left on device\n"
        assert capsys.readouterr().err == full


def broken_pipe():
    """The end of a pipe that nobody reads."""
    reader, pipe = os.pipe()
    os.close(reader)
    return pipe


def test_a_terminal_that_cannot_show_all_texts_shows_question_marks(digits, monkeypatch):
    name = digits.rename("é漢.safetensors")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict"))
    with pytest.raises(SystemExit) as end:
        cli.main(["info", str(name)])
    assert end.value.code == 0
    assert b"??.safetensors" in sys.stdout.buffer.getvalue()
    kept = io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace")
    own = type("Own", (io.StringIO,), {"errors": "strict"})()
    for stream in (kept, own):  # one that has its own way, and one of a notebook
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit):
            cli.main(["info", str(name)])
    assert kept.errors == "backslashreplace"
    assert ".safetensors" in own.getvalue()


@posix
def test_ctrl_c_ends_a_process_with_130(keyboard, writer):
    arguments = ["generate", str(writer), "--prompt", "to be", "-n", "1000000"]
    with subprocess.Popen(
        [*MODULE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.read(20).startswith(b"to be")  # tokens come one by one
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.stderr.read() == b""
        assert running.wait(20) == 130
