"""Arrays come back from a file as they were, however they lie in memory."""

import json
import struct

import numpy as np
import pytest

from phitodeep.errors import ArgumentTypeError, DataError, MissingExtraError
from phitodeep.io.tensors import DTYPES, open_tensors, write_tensors

LAYOUTS = {
    "as it is": lambda a: a,
    "transposed": lambda a: a.T,
    "swapped axes": lambda a: a.swapaxes(0, 2),
    "moved axes": lambda a: a.transpose(1, 0, 2),
    "sliced": lambda a: a[:, 1:3],
    "every other": lambda a: a[::2, :, ::2],
    "backwards": lambda a: a[::-1],
    "all backwards": lambda a: a[::-1, ::-1, ::-1],
    "a column": lambda a: a[:, 0, 1],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, *a.shape[1:])),
    "a broadcast number": lambda a: np.broadcast_to(a[0, 0, 0], (2, 3)),
    "Fortran": np.asfortranarray,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "little-endian": lambda a: a.astype(a.dtype.newbyteorder("<")),
    "big-endian and transposed": lambda a: a.astype(a.dtype.newbyteorder(">")).T,
    "of rank 0": lambda a: a[1, 2, 1, ...],
    "one number": lambda a: a[:1, :1, :1],
    "empty": lambda a: a[:0],
    "empty within": lambda a: a[:, :0].swapaxes(0, 2),
    "unaligned": lambda a: _unaligned(a),
    "read-only": lambda a: _locked(a),
}


def _unaligned(a):
    memory = np.zeros(a.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(a.tobytes(), np.uint8)
    return memory[1:].view(a.dtype).reshape(a.shape)


def _locked(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def numbers(dtype):
    """Every byte occurs; floats include nan, infinities, -0 and the least numbers."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.arange(60).reshape(4, 5, 3) % 3 == 0
    draws = np.random.default_rng(3).integers(0, 256, 60 * kind.itemsize, dtype=np.uint8)
    a = draws.view(kind).reshape(4, 5, 3)
    if kind.kind == "f":
        info = np.finfo(kind)
        a[0, 0] = np.nan, np.inf, -np.inf
        a[0, 1] = -0.0, info.tiny, info.max
    return a


def back(path, arrays):
    write_tensors(path, arrays, {})
    with open_tensors(path) as file:
        return {name: file.read(name) for name in file.entries}


def test_each_dtype_and_layout_comes_back_to_the_bit(tmp_path):
    for dtype in DTYPES.values():
        given = {layout: arranged(numbers(dtype)) for layout, arranged in LAYOUTS.items()}
        before = {layout: a.copy() for layout, a in given.items()}
        found = back(tmp_path / "a.st", given)
        for layout, a in given.items():
            b, case = found[layout], f"{dtype}, {layout}"
            assert (b.dtype, b.shape) == (np.dtype(dtype), a.shape), case
            assert b.tobytes() == np.ascontiguousarray(a).astype(dtype).tobytes(), case
            assert b.dtype.isnative, case
            assert b.flags.c_contiguous, case
            assert b.flags.writeable, case
            assert a.tobytes() == before[layout].tobytes(), case  # neither cast nor moved


def test_arrays_are_in_memory_of_their_own(tmp_path):
    path = tmp_path / "a.st"
    found = back(path, {"a": np.zeros(3)})
    found["a"][:] = 7
    with open_tensors(path) as file:
        one, other = file.read("a"), file.read("a")
    assert (one == 0).all()
    assert not np.shares_memory(one, other)
    path.unlink()
    assert (one == 0).all()


def test_mapped_arrays_are_the_file_until_they_are_written(tmp_path):
    given = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4, dtype=np.int32)}
    given["many axes"] = np.ones((1,) * 64)  # the most that NumPy has
    write_tensors(tmp_path / "a.st", given, {})
    with open_tensors(tmp_path / "a.st") as file:
        found = file.mapped()
        found["a"][0, 0] = 7
        for name, a in given.items():
            np.testing.assert_array_equal(file.read(name), a)
        np.testing.assert_array_equal(found["b"], given["b"])
    assert found["a"].ravel().tolist() == [7, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros(2, complex), "complex128"),
        (np.zeros(2, np.complex64), "complex64"),
        (np.array(["a", "bc"]), "<U2"),
        (np.array([b"a"]), r"\|S1"),
        (np.array([None, 1]), "object"),
        (np.array(["2026-01-01"], "datetime64[D]"), r"datetime64\[D\]"),
        (np.zeros(1, [("x", "f4")]), r"\[\('x', '<f4'\)\]"),
        *([(np.zeros(2, np.longdouble), "float128")] if hasattr(np, "float128") else []),
    ],
)
def test_other_dtypes_are_refused_by_name(array, dtype, tmp_path):
    path = tmp_path / "a.st"
    with pytest.raises(ArgumentTypeError, match=f"'mine' is an array of {dtype}, which cannot be"):
        write_tensors(path, {"good": np.zeros(2), "mine": array}, {})
    assert not path.exists()


def test_names_and_texts_come_back(tmp_path):
    names = ["0.W", "", "ü / \\ \" ' \n \t \0 é 🎉", "a" * 2000, "__metadata", "$array"]
    texts = {"é": 'ü " \\ \n', "": "", "long": "x" * 10**5}
    path = tmp_path / "a.st"
    write_tensors(path, {name: np.full(2, i) for i, name in enumerate(names)}, texts)
    with open_tensors(str(path)) as file:
        assert file.metadata == texts
        assert set(file.entries) == set(names)
        for i, name in enumerate(names):
            assert (file.read(name) == i).all()
    write_tensors(path, {}, {})
    with open_tensors(path) as file:
        assert (file.metadata, file.entries) == ({}, {})


def test_the_bytes_are_those_of_the_format(tmp_path):
    """Read by hand: the length of the header, the header in JSON, the bytes in C order."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_tensors(tmp_path / "a.st", {"a": a.T}, {"x": "y"})
    content = (tmp_path / "a.st").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"] == {"x": "y"}
    assert header["a"] == {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}
    assert content[8 + length :] == a.T.tobytes()


def raw(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), ends=(0, 8)):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": ends}}


DAMAGED = {
    "nothing": b"",
    "text": b"hello, this is no such file",
    "a zip": b"PK\3\4" + bytes(100),
    "a length alone": struct.pack("<Q", 100),
    "a header that is longer than any memory": struct.pack("<Q", 1 << 62) + b"{}",
    "no JSON": raw(b"{'a': 1}"),
    "a list": raw([]),
    "too little data": raw(entry(), bytes(4)),
    "too much data": raw(entry(), bytes(12)),
    "a shape that does not fit": raw(entry(shape=[3]), bytes(8)),
    "a negative shape": raw(entry(shape=[-2]), bytes(8)),
    "an enormous shape": raw(entry(shape=[1 << 40, 1 << 40]), bytes(8)),
    "ends outside": raw(entry(ends=[0, 1 << 40]), bytes(8)),
    "an unknown dtype": raw(entry("F99"), bytes(8)),
}


def refused(path, says, error=DataError):
    with pytest.raises(error, match=says), open_tensors(path):
        pass


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a.st"
    for content in DAMAGED.values():
        path.write_bytes(content)
        refused(path, r"a\.st is not a safetensors file")
    for shape in ((1,) * 65, (0, 1 << 62, 1 << 62)):  # which NumPy cannot have
        size = 4 * (0 not in shape)
        path.write_bytes(raw(entry(shape=shape, ends=[0, size]), bytes(size)))
        refused(path, rf"a\.st is damaged: the array 'a' has the shape \({shape[0]}, ")


def test_every_file_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "a.st"
    write_tensors(path, {"a": np.arange(3.0)}, {"x": "y"})
    content = path.read_bytes()
    for n in range(len(content)):
        path.write_bytes(content[:n])
        refused(path, "damaged")


def test_dtypes_that_numpy_lacks_are_named(tmp_path):
    path = tmp_path / "a.st"
    for dtype, size in (("BF16", 2), ("F8_E4M3", 1), ("F8_E5M2", 1)):
        path.write_bytes(raw(entry(dtype, ends=(0, 2 * size)), bytes(2 * size)))
        refused(path, f"the array 'a' has the type {dtype}, which NumPy does")


def test_the_library_is_named_if_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"^writing model files needs .*np\.savez\(file, "):
        write_tensors(tmp_path / "a.st", {}, {})
    refused(tmp_path / "a.st", "reading model files needs", MissingExtraError)
    assert not list(tmp_path.iterdir())
