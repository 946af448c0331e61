"""MNIST from its three sources, whole and damaged, the geometry of synthetic sets, and texts."""

import gzip
import lzma
import pickle
import random
import socket
import struct
import subprocess
import sys
import zlib
from itertools import product
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest

import phitodeep.data
from phitodeep.data import (
    CharTokenizer,
    load_mnist,
    load_text,
    make_blobs,
    make_moons,
    make_spirals,
    mnist,
    text,
    windows,
)
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    MissingExtraError,
    ShapeError,
)

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.fixture
def arrays():
    """Three training and two test digits, with 0, 255 and the labels 0 and 9 among them."""
    pixels = np.random.default_rng(7).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    pixels[:, 0, :2] = 0, 255
    labels = np.array([0, 9, 4, 1, 7], np.uint8)
    train, test = {IMAGES: pixels[:3], LABELS: labels[:3]}, {TEST_IMAGES: pixels[3:]}
    return {**train, **test, TEST_LABELS: labels[3:]}


def idx(a):
    return struct.pack(f">{1 + a.ndim}I", 0x800 + a.ndim, *a.shape) + a.tobytes()


@pytest.fixture
def folder(arrays, tmp_path):
    for name, a in arrays.items():
        (tmp_path / name).write_bytes(idx(a))
    return tmp_path


def assert_loaded(result, arrays):
    assert [a.dtype for a in result] == [np.float32, np.int64] * 2
    for got, stored in zip(result, arrays.values(), strict=True):
        scale = 255 if stored.ndim == 3 else 1
        np.testing.assert_array_equal(got, stored.astype(np.float32) / np.float32(scale))


# The shipped part


def test_shipped_digits_are_mnists_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr(socket, "socket", None)  # no network either
    X_train, y_train, X_test, y_test = load_mnist()
    assert (X_train.shape, X_test.shape) == ((10_000, 28, 28), (1_000, 28, 28))
    assert (y_train.shape, y_test.shape) == ((10_000,), (1_000,))
    assert [a.dtype for a in (X_train, y_train, X_test, y_test)] == [np.float32, np.int64] * 2
    assert (y_train[:5].tolist(), y_test[:5].tolist()) == ([5, 0, 4, 1, 9], [7, 2, 1, 0, 4])
    counts = [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
    assert np.bincount(y_train).tolist() == counts
    assert np.bincount(y_test).tolist() == [85, 126, 116, 107, 110, 87, 87, 99, 89, 94]
    for X, crc in ((X_train, 3385337822), (X_test, 2276168080)):
        assert (X.min(), X.max()) == (0, 1)
        assert zlib.crc32(np.round(X * 255).astype(np.uint8).tobytes()) == crc
    assert mnist.SHIPPED.read_bytes()[7] == lzma.CHECK_SHA256  # the xz header's kind of check
    for a in (X_train, y_train):
        a[:] = 30  # every load gives arrays of its own
    assert [a.max() for a in load_mnist("small")[:2]] == [1, 9]


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda data: data[:-40], lambda data: data[:1000], lambda data: b"", None],
    ids=["one bit", "end lost", "most lost", "empty", "absent"],
)
def test_damaged_shipped_file_is_refused(damage, tmp_path, monkeypatch):
    path = tmp_path / "mnist.xz"
    if damage:
        path.write_bytes(damage(mnist.SHIPPED.read_bytes()))
    monkeypatch.setattr(mnist, "SHIPPED", path)
    with pytest.raises(DataError, match=r"mnist\.xz: .*force-reinstall phitodeep"):
        load_mnist()


def test_package_needs_neither_lzma_nor_datasets_until_they_are_used():
    code = (
        "import sys; sys.modules.update(lzma=None, datasets=None); "
        "from phitodeep.data import *; make_moons()"
    )
    root = Path(mnist.__file__).parents[2]
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=root, check=True)


# A folder of IDX files


def test_folder_round_trip(arrays, tmp_path):
    for dot, zipped, suffix in product("-.", (True, False), (".gz", "")):
        folder = tmp_path / f"{dot}{zipped}{suffix}"  # browsers may unzip, and keep the name
        folder.mkdir()
        for name, a in arrays.items():
            path = folder / (name.replace("-idx", f"{dot}idx") + suffix)
            path.write_bytes(gzip.compress(idx(a)) if zipped else idx(a))
        assert_loaded(load_mnist(folder=folder), arrays)


def test_folder_replaces_either_source_and_may_start_at_home(folder, arrays, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert_loaded(load_mnist("full", folder=str(folder)), arrays)
    assert_loaded(load_mnist("small", folder), arrays)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert_loaded(load_mnist(folder=f"~/{folder.name}"), arrays)


def uint8(values):
    return np.array(values, np.uint8)


ZEROS = np.zeros((3, 28, 28), np.uint8)
DAMAGE = {  # the file, what it holds, and what the error says
    "empty": (IMAGES, b"", "truncated: 0 bytes"),
    "header cut": (TEST_IMAGES, idx(ZEROS)[:15], "truncated: 15 bytes"),
    "items cut": (IMAGES, idx(ZEROS)[:-1], r"truncated: 2367 of 2368 bytes.*\(3, 28, 28\)"),
    "absurd shape": (IMAGES, struct.pack(">4I", 2051, *[2**32 - 1] * 3), "truncated: 16 of"),
    "too long": (TEST_LABELS, idx(uint8([1, 2])) + b"\n", "1 bytes too many"),
    "labels for images": (IMAGES, idx(np.ones(99, np.uint8)), "number 2049, expected 2051"),
    "images for labels": (LABELS, idx(ZEROS), "number 2051, expected 2049"),
    "a web page": (IMAGES, b"<!DOCTYPE html><title>404</title>", "magic number"),
    "gzip cut": (TEST_IMAGES, gzip.compress(idx(ZEROS))[:-9], "ended before"),
    "gzip checksum": (IMAGES, gzip.compress(idx(ZEROS))[:-8] + bytes(8), "CRC check failed"),
    "gzip stream": (IMAGES, gzip.compress(idx(ZEROS))[:10] + b"\xff" * 99, "invalid block"),
}


@pytest.mark.parametrize(("name", "data", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_named(folder, name, data, message):
    (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=f"{name}: .*{message}.*fresh download"):
        load_mnist(folder=folder)


MISFITS = {
    "fewer labels": (LABELS, uint8([1, 2]), r"3 images but labels of shape \(2,\)"),
    "more test labels": (TEST_LABELS, uint8([1] * 3), r"2 images but labels of shape \(3,\)"),
    "other size": (TEST_IMAGES, ZEROS[:2, :, :27], r"images of shape \(2, 28, 27\), expected"),
    "no images": (IMAGES, ZEROS[:0], r"images of shape \(0, 28, 28\), expected"),
    "no digit": (TEST_LABELS, uint8([9, 10]), "label 10"),
}


@pytest.mark.parametrize(("name", "array", "message"), MISFITS.values(), ids=MISFITS)
def test_files_that_do_not_fit_are_refused(folder, name, array, message):
    (folder / name).write_bytes(idx(array))
    pair = f"{IMAGES} and {LABELS}" if "train" in name else f"{TEST_IMAGES} and {TEST_LABELS}"
    with pytest.raises(DataError, match=f"{pair}: {message}.*pair from one source"):
        load_mnist(folder=folder)


def test_missing_files_and_folders_are_named(folder):
    for name in (TEST_LABELS, TEST_IMAGES, LABELS, IMAGES):  # the first that is missing
        (folder / name).unlink()
        (folder / name).mkdir()  # as some archives unpack
        with pytest.raises(DataError, match=rf"has no file {name} or .*\.gz.*four IDX files"):
            load_mnist(folder=folder)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_mnist(folder=folder / "nowhere")


def test_bad_arguments_of_load_mnist(folder):
    with pytest.raises(ArgumentError, match="'large'"):
        load_mnist("large")
    with pytest.raises(ArgumentError, match="pass a path as folder="):
        load_mnist(folder)
    with pytest.raises(ArgumentTypeError, match="got 3"):
        load_mnist(folder=3)


# Hugging Face


class FakeSplit:
    """Of `datasets.Dataset`, what load_mnist uses."""

    def __init__(self, images, labels):
        self.columns = {"image": images, "label": labels}

    def with_format(self, kind):
        assert kind == "numpy"  # any other format gives lists of Pillow images
        return self

    def __getitem__(self, rows):
        return {name: column[rows] for name, column in self.columns.items()}


def fake_datasets(monkeypatch, load_dataset=None, error=None):
    """Replace the library by one that loads this, or raises the error."""
    module = ModuleType("datasets")
    module.load_dataset = load_dataset or Mock(side_effect=error)
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_full_comes_from_hugging_face(arrays, monkeypatch):
    def load_dataset(path, *, split):
        assert path == "ylecun/mnist"
        images, labels = {"train": (IMAGES, LABELS), "test": (TEST_IMAGES, TEST_LABELS)}[split]
        return FakeSplit(arrays[images], arrays[labels].astype(np.int64))

    fake_datasets(monkeypatch, load_dataset)
    assert_loaded(load_mnist("full"), arrays)


def test_missing_datasets_or_pillow_names_the_extra(monkeypatch):
    for module in (None, ModuleType("datasets")):  # absent, or a folder of this name
        monkeypatch.setitem(sys.modules, "datasets", module)
        with pytest.raises(MissingExtraError, match=r'datasets.*"phitodeep\[data\]"'):
            load_mnist("full")
    fake_datasets(monkeypatch, error=ImportError("please install 'Pillow'"))
    with pytest.raises(MissingExtraError, match=r'Pillow.*"phitodeep\[data\]"'):
        load_mnist("full")


def test_failing_and_wrong_downloads_are_refused(monkeypatch):
    for error in (ConnectionError("no route"), RuntimeError("no route")):
        fake_datasets(monkeypatch, error=error)
        with pytest.raises(DataError, match=rf"{type(error).__name__}: no route.*folder="):
            load_mnist("full")
    fake_datasets(monkeypatch, lambda *a, **k: FakeSplit(ZEROS[:, :5], np.zeros(3, np.int64)))
    with pytest.raises(DataError, match=r"shape \(3, 5, 28\)"):
        load_mnist("full")


# Synthetic sets

MAKERS = [(make_moons, 2, "noise"), (make_spirals, 3, "noise"), (make_blobs, 3, "spread")]
each_maker = pytest.mark.parametrize(
    ("make", "classes", "noise"), MAKERS, ids=[m.__name__ for m, *_ in MAKERS]
)


def test_every_public_name_is_tested():
    texts = {"load_text", "CharTokenizer", "windows"}
    made = {m.__name__ for m, *_ in MAKERS}
    assert {"load_mnist", *made, *texts} == set(phitodeep.data.__all__)


@each_maker
@pytest.mark.parametrize("n", [3, 100, 301])
def test_shapes_dtypes_and_balance(make, classes, noise, n):
    X, y = make(n)
    assert (X.shape, y.shape) == ((n, 2), (n,))
    assert [X.dtype, y.dtype] == [np.float32, np.int64]
    counts = np.bincount(y)
    assert len(counts) == classes
    assert np.ptp(counts) <= 1


def global_generators():
    return pickle.dumps((np.random.get_state(), random.getstate()))  # noqa: NPY002


@each_maker
def test_seed_alone_decides(make, classes, noise):
    before = global_generators()
    X, y = make(seed=5)
    X_again, y_again = make(seed=np.int64(5))
    assert global_generators() == before
    np.testing.assert_array_equal(X, X_again)
    np.testing.assert_array_equal(y, y_again)
    X_other, y_other = make(seed=6)
    assert (X_other != X).any()
    assert (y_other != y).any()
    np.testing.assert_array_equal(make()[0], make(seed=0)[0])


@each_maker
def test_points_come_shuffled(make, classes, noise):
    y = make(300, **{noise: 0})[1]
    share = np.bincount(y[:100], minlength=classes) / 100
    np.testing.assert_allclose(share, 1 / classes, atol=0.15)
    pairs = np.unique(y[:-1] * classes + y[1:])  # cyclic order would show few of them
    assert len(pairs) == classes**2


@pytest.mark.parametrize(("make", "noise"), [(make_moons, "noise"), (make_blobs, "spread")])
def test_noise_is_the_deviation_of_each_coordinate(make, noise):
    exact, once, twice = (make(4000, **{noise: s})[0] for s in (0, 0.5, 1))
    np.testing.assert_allclose(twice - exact, 2 * (once - exact), atol=1e-5)
    np.testing.assert_allclose(np.cov((twice - exact).T), np.eye(2), atol=0.08)
    np.testing.assert_allclose((twice - exact).mean(axis=0), 0, atol=0.06)


def test_moons_are_the_half_circles_that_scikit_learn_draws():
    X, y = make_moons(7, noise=0)  # the odd point goes to the lower moon
    upper = X[y == 0][np.argsort(-X[y == 0, 0])]
    lower = X[y == 1][np.argsort(X[y == 1, 0])]
    np.testing.assert_allclose(upper, [[1, 0], [0, 1], [-1, 0]], atol=1e-6)
    h = np.sqrt(3) / 2
    expected = [[0, 0.5], [0.5, 0.5 - h], [1.5, 0.5 - h], [2, 0.5]]
    np.testing.assert_allclose(lower, expected, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_spirals_wind_four_radians_as_they_grow(classes):
    X, y = make_spirals(500, classes, noise=0)
    r = np.hypot(*X.T)
    np.testing.assert_allclose(np.sort(r), np.arange(1, 501) / 500, rtol=1e-5)
    angle = 4 * r + 2 * np.pi * y / classes
    np.testing.assert_allclose(X, np.stack([r * np.cos(angle), r * np.sin(angle)], 1), atol=1e-5)


def test_spiral_noise_turns_points_and_keeps_their_radius():
    (exact, _), (X, _) = (make_spirals(4000, noise=s) for s in (0, 0.3))
    np.testing.assert_allclose(np.hypot(*X.T), np.hypot(*exact.T), rtol=1e-5)
    turn = np.angle((X @ [1, 1j]) / (exact @ [1, 1j]))
    assert turn.std() == pytest.approx(0.3, rel=0.05)
    assert turn.mean() == pytest.approx(0, abs=0.02)


def test_blobs_have_one_centre_a_class():
    X, y = make_blobs(50, classes=4, dims=3, spread=0)
    centres = np.unique(np.column_stack([y, X]), axis=0)
    assert X.shape == (50, 3)
    assert len(centres) == 4
    many = make_blobs(999, classes=999, spread=0)[0]
    np.testing.assert_allclose(many.min(axis=0), -10, atol=0.1)
    np.testing.assert_allclose(many.max(axis=0), 10, atol=0.1)
    np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.6)


def test_bad_arguments_of_makers():
    for make, bad, message in (
        (make_moons, {"n": 1}, "n must be >= 2, got 1"),
        (make_spirals, {"n": 2}, "n must be >= 3, got 2"),
        (make_spirals, {"classes": 0}, "classes must be >= 1"),
        (make_blobs, {"n": 4, "classes": 5}, "n must be >= 5, got 4"),
        (make_blobs, {"classes": 0}, "classes must be >= 1"),
        (make_blobs, {"dims": 0}, "dims must be >= 1"),
        *((m, {noise: -0.1}, f"{noise} must be >= 0") for m, _, noise in MAKERS),
        *((m, {noise: np.nan}, f"{noise} must be") for m, _, noise in MAKERS),
        *((m, {"seed": -1}, "seed must be >= 0, got -1") for m, *_ in MAKERS),
        *(
            (m, {name: wrong}, f"^{name} must be a")
            for m, _, noise in MAKERS
            for name, wrong in (("n", 10.0), ("n", True), (noise, "0.1"), ("seed", None))
        ),
    ):
        kind = ArgumentTypeError if message.endswith("must be a") else ArgumentError
        with pytest.raises(kind, match=message):
            make(**bad)


def test_the_shipped_texts_are_whole():
    plays, names = load_text(), load_text("names")
    assert len(plays) == 1_115_394
    assert plays.startswith("First Citizen:\nBefore we proceed any further")
    assert len(set(plays)) == 65
    assert names.split()[:3] == ["emma", "olivia", "ava"]
    assert len(names.split()) == 32_033


def test_an_unknown_text_and_a_damaged_file_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ArgumentError, match="unknown text 'shakespear'"):
        load_text("shakespear")
    damaged = tmp_path / "names.xz"
    damaged.write_bytes(b"no xz")
    monkeypatch.setattr(text, "__file__", str(tmp_path / "text.py"))
    with pytest.raises(DataError, match=r"names\.xz is missing or damaged"):
        load_text("names")
    with pytest.raises(DataError, match=r"tinyshakespeare\.xz is missing or damaged"):
        load_text()


def test_tokens_go_there_and_back():
    tokenizer = CharTokenizer("hello world")
    assert tokenizer.characters == " dehlorw"
    assert tokenizer.vocab_size == 8
    tokens = tokenizer.encode("low")
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [4, 5, 7]
    assert tokenizer.decode(tokens) == "low"
    assert tokenizer.decode(int(tokens[0])) == "l"
    assert tokenizer.decode(tokens[:0]) == ""
    assert eval(repr(tokenizer), {"CharTokenizer": CharTokenizer}).characters == " dehlorw"
    assert tokenizer.encode("").shape == (0,)


def test_what_a_tokenizer_does_not_know_is_refused():
    with pytest.raises(ArgumentError, match="has no character 'z'"):
        CharTokenizer("abc").encode("az")
    with pytest.raises(ArgumentError, match="at least one character"):
        CharTokenizer("")
    with pytest.raises(ArgumentTypeError, match="integer tokens"):
        CharTokenizer("abc").decode(np.array([0.0]))
    for unknown in (3, -1):
        with pytest.raises(ArgumentError, match=rf"tokens\[1\] is {unknown}.* from 0 to 2"):
            CharTokenizer("abc").decode(np.array([0, unknown]))
    with pytest.raises(ShapeError, match="decode each row"):
        CharTokenizer("abc").decode(np.array([[0], [1]]))


def test_windows_are_views_one_token_apart():
    tokens = np.arange(10)
    X, y = windows(tokens, 4)
    assert X.shape == y.shape == (6, 4)
    assert X[2].tolist() == [2, 3, 4, 5]
    np.testing.assert_array_equal(y, X + 1)
    assert np.shares_memory(X, tokens)
    assert np.shares_memory(y, tokens)
    assert not X.flags.writeable


def test_windows_need_room():
    with pytest.raises(ArgumentError, match="windows of length 4 require tokens"):
        windows(np.arange(4), 4)
    with pytest.raises(ArgumentError, match="length"):
        windows(np.arange(4), 0)


def test_the_licences_name_every_shipped_file():
    folder = Path(text.__file__).parent
    licences = (folder / "LICENSES.md").read_text()
    for path in folder.glob("*.xz"):
        assert path.name in licences
