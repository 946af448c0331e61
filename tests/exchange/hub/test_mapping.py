"""Parameters that are parts of a file: the file never changes, and the model can do anything."""

import copy
import mmap
import os
import pickle
import sys
import tracemalloc

import numpy as np
import pytest

import phitodeep
from phitodeep.errors import DataError
from phitodeep.io.tensors import open_tensors, write_tensors
from phitodeep.model.architectures import from_pretrained
from tests.conftest import assert_same
from tests.exchange.hub.folders import GPT2, LLAMA, arrays_of, written

TOKENS = np.arange(8).reshape(2, 4)


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "gpt2", GPT2)


def is_mapped(a):
    while isinstance(a, np.ndarray):
        if isinstance(a.base, mmap.mmap):
            return True
        a = a.base
    return False


def test_every_parameter_of_gpt2_is_part_of_the_file(folder):
    model = from_pretrained(folder)
    arrays = [a for _, layer in model.walk() for a in layer.params.values()]
    assert len(arrays) == 28
    assert all(is_mapped(a) and type(a) is np.ndarray and a.flags.writeable for a in arrays)
    assert all(a.dtype == np.float32 and a.flags.aligned for a in arrays)


def test_llama_keeps_only_what_it_needs_not_transpose(tmp_path):
    model = from_pretrained(written(tmp_path / "llama", LLAMA))
    mapped = {name for name, store, key in model._stored() if is_mapped(store[key])}
    assert mapped == {
        *("0.W", "3.gamma"),
        *(f"{i}.layers.{k}.layers.0.gamma" for i in (1, 2) for k in (0, 1)),
    }


def new_weights(model):
    return {name: a + 1 for name, a in model.get_weights().items()}


def change_a_parameter(model, folder):
    model.layers[0].W = np.zeros((11, 6))
    model.layers[0].W[0] = 1


def set_weights(model, folder):
    model.set_weights(new_weights(model))


def load_weights(model, folder):
    write_tensors(folder / "other.safetensors", new_weights(model), {})
    model.load_weights(folder / "other.safetensors")


def train(model, folder):
    model.train(TOKENS, TOKENS, epochs=2, verbose=0)
    assert not any(is_mapped(a) for _, layer in model.walk() for a in layer.params.values())


def train_in_part(model, folder):
    model.layers[0].trainable = False
    model.train(TOKENS, TOKENS, epochs=2, verbose=0)
    assert is_mapped(model.layers[0].W)


def cast(model, folder):
    model.cast("float64")
    assert model.predict(TOKENS).dtype == np.float64


def copies(model, folder):
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not any(is_mapped(a) for _, layer in twin.walk() for a in layer.params.values())
        np.testing.assert_array_equal(twin.predict(TOKENS), model.predict(TOKENS))
        twin.set_weights(new_weights(twin))


USES = [change_a_parameter, set_weights, load_weights, train, train_in_part, cast, copies]


@pytest.mark.parametrize("use", USES)
def test_what_changes_the_model_does_not_change_the_file(use, folder):
    path = folder / "model.safetensors"
    before, model = path.read_bytes(), from_pretrained(folder)
    weights = model.get_weights()
    use(model, folder)
    assert path.read_bytes() == before
    changed = model.get_weights()
    same = all(np.array_equal(weights[key], changed[key]) for key in weights)
    assert same == (use in (cast, copies))
    assert_same(from_pretrained(folder).get_weights(), weights)


def test_a_file_saved_over_replaces_the_old_one_whose_content_the_model_keeps(folder):
    model = from_pretrained(folder)
    before = model.predict(TOKENS)
    model.save(folder / "model.safetensors")
    for each in (model, phitodeep.load(folder / "model.safetensors")):
        np.testing.assert_array_equal(each.predict(TOKENS), before)


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted there")
def test_a_deleted_file_stays_readable(folder):
    model = from_pretrained(folder)
    wanted = {name: a + 1 for name, a in arrays_of(folder).items()}
    (folder / "model.safetensors").unlink()
    found = model.get_weights()["0.W"] + 1
    np.testing.assert_array_equal(found, wanted["transformer.wte.weight"])


def peak_of_loading(folder):
    tracemalloc.start()
    from_pretrained(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_loading_allocates_little(tmp_path):
    """GPT-2's weights stay in the file; of Llama's, there is one copy."""
    folder = written(tmp_path / "a", GPT2 | {"n_embd": 256, "vocab_size": 9000, "n_head": 8})
    assert (folder / "model.safetensors").stat().st_size > 15e6
    assert peak_of_loading(folder) < 1e6
    config = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    folder = written(tmp_path / "b", LLAMA | config)
    assert peak_of_loading(folder) < 1.15 * (folder / "model.safetensors").stat().st_size


def test_what_is_not_aligned_is_copied(tmp_path):
    """Old writers did not align the arrays."""
    path = tmp_path / "a.safetensors"
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    header += b" " * (1 - len(header) % 2)
    content = np.array([1.5, -2.0], "<f4").tobytes()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)
    assert (8 + len(header)) % 4
    with open_tensors(path) as tensors:
        x = tensors.mapped()["x"]
    assert x.tolist() == [1.5, -2.0]
    assert x.flags.aligned
    assert not is_mapped(x)


def test_a_file_that_changes_while_it_is_opened_is_refused(folder):
    path = folder / "model.safetensors"
    with open_tensors(path) as tensors:
        other = folder / "other.safetensors"
        write_tensors(other, {"x": np.zeros(3, np.float32)}, {})
        os.replace(other, path)
        with pytest.raises(DataError, match="is damaged"):
            tensors.mapped()


def test_bfloat16_needs_to_be_asked_for(tmp_path):
    path = tmp_path / "a.safetensors"
    header = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x80\x3f\x00\xc0")
    with pytest.raises(DataError, match="BF16, which NumPy does not have"), open_tensors(path):
        pass
    with open_tensors(path, bfloat16=True) as tensors:
        assert tensors.mapped()["x"].tolist() == [(0x3F80,), (0xC000,)]
