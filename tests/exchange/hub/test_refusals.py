"""Folders that do not fit: each is refused by the name of what is wrong, before it costs memory."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, PhitodeepError
from phitodeep.io.tensors import write_tensors
from phitodeep.model.architectures import from_pretrained
from tests.conftest import assert_same
from tests.exchange.hub.folders import GPT2, LLAMA, STORED, arrays_of, write_config, written

YARN = {"rope_type": "yarn", "factor": 2.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [1.0, 1.0]}


WRONG = {
    "gpt2": [
        ({"model_type": "bert"}, 'model_type must be "gpt2", "llama" or "mistral", got \'bert\''),
        ({"model_type": None}, "lacks 'model_type'"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, which is not supported"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"activation_function": "quick_gelu"}, "activation_function must be"),
        ({"n_head": 4}, "cannot be divided into 4 heads"),
        ({"n_embd": 8}, "the weights do not fit config.json"),
        ({"n_layer": 3}, "lacks transformer.h.2.ln_1.weight"),
        ({"n_layer": 1}, "has the unknown transformer.h.1."),
        ({"n_layer": 10**9}, "describes 1000000000 blocks, but the weights are only 28 arrays"),
        ({"n_layer": "2"}, "n_layer must be an integer"),
        ({"n_layer": True}, "n_layer must be an integer"),
        ({"vocab_size": 10**12}, "the weights do not fit config.json"),
        ({"vocab_size": 10**30}, "vocab_size must be <="),
        ({"vocab_size": 0}, "vocab_size must be >= 1"),
        ({"n_positions": 10**12}, "transformer.wpe.weight (float32 (9, 6) instead of float32 (10"),
        ({"layer_norm_epsilon": 0}, "eps"),
        ({"attn_pdrop": 1.0}, "attn_pdrop must be >= 0 and < 1"),
        ({"tie_word_embeddings": False}, "lacks lm_head.weight"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be True or False"),
    ],
    "llama": [
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"rope_parameters": {"full_attention": {}}}, "differs between layers ('full_attention')"),
        ({"rope_scaling": {"type": "su", "factor": 2}}, "rope_scaling: type must be"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling lacks 'factor'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "factor must be >= 1"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "lacks 'low_freq_factor'"),
        ({"rope_scaling": YARN | {"attention_factor": "a"}}, "attention_factor must be a number"),
        ({"rope_scaling": LONG | {"long_factor": [1.0]}}, "long_factor must have 2 numbers"),
        ({"rope_scaling": LONG | {"short_factor": [1.0, -1.0]}}, "short_factor must be > 0"),
        ({"rope_scaling": 3}, "rope_scaling must be a dict"),
        ({"rope_theta": 0.5}, "base must be > 1"),
        ({"head_dim": 3}, "model.layers.0.self_attn.q_proj.weight (float32 (16, 8) instead of"),
        ({"num_key_value_heads": 1}, "model.layers.0.self_attn.k_proj.weight"),
        ({"hidden_act": "relu"}, "hidden_act must be"),
        ({"attention_bias": True}, "lacks model.layers.0.self_attn.q_proj.bias"),
        ({"mlp_bias": True}, "lacks model.layers.0.mlp.gate_proj.bias"),
        ({"model_type": "mistral"}, "lacks 'sliding_window'"),
        ({"model_type": "mistral", "sliding_window": 9}, "sliding_window is 9, which is not"),
        ({"tie_word_embeddings": True}, "has the unknown lm_head.weight"),
        ({"max_position_embeddings": 2**62}, "too large for any computer"),
    ],
}


@pytest.mark.parametrize("family", WRONG)
def test_wrong_configs(family, tmp_path):
    config = {"gpt2": GPT2, "llama": LLAMA | {"head_dim": 4}}[family]
    folder = written(tmp_path, config)
    for changed, message in WRONG[family]:
        write_config(folder, config | changed)
        with pytest.raises(PhitodeepError) as caught:
            from_pretrained(folder)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2 | {"n_embd": 7}, "7 cannot be divided into 2 heads"),
        (LLAMA | {"head_dim": 3}, "heads of 3 features, not of even size"),
        (LLAMA | {"num_key_value_heads": 3}, "4 heads are not divisible by 3 kv_heads"),
        (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2}}, "more than 2 features, got 2"),
    ],
)
def test_sizes_that_no_layer_accepts(config, message, tmp_path):
    """Even if the weights have the sizes that the config says."""
    with pytest.raises(PhitodeepError, match=message):
        from_pretrained(written(tmp_path, {**config, "rope_scaling": None}, **config))


def test_a_tied_head_may_be_stored_as_a_copy(tmp_path):
    folder = written(tmp_path, GPT2)
    arrays = arrays_of(folder)
    wanted = from_pretrained(folder).get_weights()
    arrays["lm_head.weight"] = arrays["transformer.wte.weight"].copy()
    write_tensors(folder / "model.safetensors", arrays, {})
    assert_same(from_pretrained(folder).get_weights(), wanted)
    arrays["lm_head.weight"][3, 2] += 1
    write_tensors(folder / "model.safetensors", arrays, {})
    with pytest.raises(DataError, match=r"has the unknown lm_head\.weight"):
        from_pretrained(folder)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("config", [GPT2, LLAMA | {"tie_word_embeddings": True}])
def test_buffers_are_ignored_and_a_base_model_has_no_prefix(config, bare, tmp_path):
    folder = written(tmp_path, config)
    wanted = from_pretrained(folder).get_weights()
    prefix = {"gpt2": "transformer.", "llama": "model."}[config["model_type"]]
    arrays = arrays_of(folder)
    for i in range(2):
        arrays[f"{prefix}h.{i}.attn.bias"] = np.tri(9, dtype=bool)[None, None]
        arrays[f"{prefix}h.{i}.attn.masked_bias"] = np.float32([-1e4])
        arrays[f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq"] = np.float32([1])
    wrong = {"gpt2": "layers", "llama": "h."}[config["model_type"]]
    kept = {name: a for name, a in arrays.items() if not name.startswith(prefix + wrong)}
    if bare:
        kept = {name.removeprefix(prefix): a for name, a in kept.items()}
    write_tensors(folder / "model.safetensors", kept, {})
    assert_same(from_pretrained(folder).get_weights(), wanted)
    write_tensors(folder / "model.safetensors", arrays, {})
    with pytest.raises(DataError, match="has the unknown"):
        from_pretrained(folder)


def test_types_that_no_weight_has(tmp_path):
    folder = written(tmp_path, GPT2)
    arrays = arrays_of(folder)
    for dtype in ("float64", "int32", "int8"):
        arrays["transformer.ln_f.bias"] = np.ones(6, dtype)
        write_tensors(folder / "model.safetensors", arrays, {})
        wrong = rf"ln_f.bias \({dtype} \(6,\) instead of float32 \(6,\)"
        with pytest.raises(DataError, match=wrong):
            from_pretrained(folder)


def test_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*config\.json: there is no such"):
        from_pretrained(tmp_path)
    written(tmp_path, GPT2)
    for text, message in (
        (b"{", "is damaged: the file cannot be read"),
        (b"[1]", "must be a dict"),
        (b"\xff", "is not text in UTF-8"),
        (b'{"model_type": NaN}', "NaN in the file is not JSON"),
        (b'{"n_embd": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ):
        (tmp_path / "config.json").write_bytes(text)
        with pytest.raises(DataError, match=message):
            from_pretrained(tmp_path)
    write_config(tmp_path, GPT2)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"has neither model\.safetensors nor"):
        from_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch bad'\ntR.")
    with pytest.raises(DataError, match="a pickle, which can run any code") as caught:
        from_pretrained(tmp_path)
    assert "save_pretrained" in str(caught.value)
    assert not Path("bad").exists()


def index(folder, change):
    """Copy the stored Llama, and change the weight_map of its index."""
    shutil.copytree(STORED / "llama", folder)
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content = change(content["weight_map"]) or content
    path.write_text(json.dumps(content))
    return folder


def test_an_index_names_only_files_of_its_folder(tmp_path):
    write_tensors(tmp_path / "model.safetensors", {"x": np.zeros(1)}, {})
    folder = index(tmp_path / "llama", lambda names: {"weight_map": names})
    path = folder / "model.safetensors.index.json"
    names = json.loads(path.read_text())["weight_map"]
    for file in (
        *("../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..\\m.safetensors"),
        *("C:m.safetensors", "..", "", "m.bin", "a\0.safetensors", 3, None, ["m.safetensors"]),
    ):
        path.write_text(json.dumps({"weight_map": names | {"lm_head.weight": file}}))
        with pytest.raises(DataError, match="not the name of a safetensors file in the same"):
            from_pretrained(folder)


NAMES = ["config.json", "tokenizer.json", "model.safetensors"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and links")


@posix
@pytest.mark.parametrize("name", [*NAMES, "model.safetensors.index.json"])
def test_only_regular_files_are_read(name, tmp_path):
    folder = shutil.copytree(STORED / ("llama" if "index" in name else "gpt2"), tmp_path / "a")
    for replace in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (folder / name).unlink()
        replace(folder / name)
        with pytest.raises(DataError, match=rf"cannot read .*{name}: it is not a regular file"):
            from_pretrained(folder)


@pytest.mark.parametrize("name", NAMES[:2])
def test_texts_are_not_endless(name, tmp_path):
    folder = shutil.copytree(STORED / "gpt2", tmp_path / "a")
    os.truncate(folder / name, 1 << 28)  # with a hole
    with pytest.raises(DataError, match=rf"cannot read .*{name}: it has 268,435,456 bytes"):
        from_pretrained(folder)


@posix
@pytest.mark.parametrize("name", NAMES)
def test_links_lead_out_of_the_folder_only_in_the_cache_of_the_hub(name, tmp_path):
    cache = tmp_path / "models--a--b"
    folder = shutil.copytree(STORED / "gpt2", cache / "snapshots" / "1")
    (cache / "blobs").mkdir()
    (folder / name).rename(cache / "blobs" / "2")
    (folder / name).symlink_to("../../blobs/2")
    (tmp_path / "link").symlink_to(folder)
    wanted = from_pretrained(STORED / "gpt2").get_weights()
    for place in (folder, tmp_path / "link"):
        assert_same(from_pretrained(place).get_weights(), wanted)
    (cache / "blobs").rename(tmp_path / "elsewhere")
    (cache / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=rf"cannot read .*{name}: it is a link to .*elsewhere"):
        from_pretrained(folder)
    plain = (cache / "snapshots").rename(tmp_path / "models") / "1"
    (plain / name).unlink()
    (plain / name).symlink_to("../../elsewhere/2")
    with pytest.raises(DataError, match="outside the folder"):
        from_pretrained(plain)


def test_an_index_that_does_not_fit_its_files(tmp_path):
    first = "model-00001-of-00003.safetensors"
    missing = "model-00009-of-00009.safetensors"
    for i, (change, message) in enumerate(
        (
            (lambda names: names.update({"other": first}), r"lacks .other., which model.*names"),
            (lambda names: names.update({"other": missing}), f"read .*{missing}: there is no such"),
            (lambda names: {"weight_map": {}}, "it has no 'weight_map'"),
            (lambda names: [1], "it has no 'weight_map'"),
        )
    ):
        with pytest.raises(DataError, match=message):
            from_pretrained(index(tmp_path / str(i), change))
    folder = index(tmp_path / "e", lambda names: names.update({"more": "x.safetensors"}))
    more = {"more": np.zeros(1, np.float32), "lm_head.weight": np.zeros((64, 8), np.float32)}
    write_tensors(folder / "x.safetensors", more, {})
    with pytest.raises(DataError, match=r"two files have the array 'lm_head\.weight'"):
        from_pretrained(folder)


def test_tokenizers_that_are_damaged(tmp_path):
    folder = shutil.copytree(STORED / "gpt2", tmp_path / "gpt2")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"the text is not a tokenizer\.json") as caught:
        from_pretrained(folder)
    assert "tokenizer.json" in str(caught.value).partition(":")[0]  # the path


# --- names on the hub -----------------------------------------------------------------------------


REVISIONS = {"main": ("a" * 40, STORED / "gpt2"), "old": ("b" * 40, STORED / "llama")}


@cache
def pages():
    """What a hub answers that has the model tiny/model in two revisions, by path."""
    found = {"/api/models/broken/model/revision/main": b"<html>"}
    for revision, (commit, folder) in REVISIONS.items():
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        found |= {f"/tiny/model/resolve/{commit}/{name}": a for name, a in files.items()}
        siblings = [{"rfilename": name} for name in (*files, "pytorch_model.bin")]
        info = {"id": "tiny/model", "sha": commit, "siblings": siblings}
        file = {"type": "file", "oid": "c" * 40}
        tree = [file | {"path": name, "size": len(a)} for name, a in files.items()]
        for path, answer in ((f"revision/{revision}", info), (f"tree/{commit}", tree)):
            found[f"/api/models/tiny/model/{path}"] = json.dumps(answer).encode()
    return found


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves these pages, and remembers what was asked for."""

    asked: list[str]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        content = pages().get(path)
        commit = path.split("/")[4] if "/resolve/" in path else ""
        self.send_response(404 if content is None else 200)
        if content is None:
            wrong = "RevisionNotFound" if "tiny/model" in self.path else "RepoNotFound"
            self.send_header("X-Error-Code", wrong)
        if commit:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hash(content) & (1 << 60) - 1:x}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    Hub.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


CODE = """
import sys, warnings
from functools import partial
sys.modules |= dict.fromkeys(["tokenizers", "huggingface_hub", "torch"])
from phitodeep.model.architectures import from_pretrained
for call in sys.argv[1:]:
    if call == "with the libraries":
        for name in "tokenizers", "huggingface_hub", "torch":
            del sys.modules[name]
        warnings.resetwarnings()
        import huggingface_hub as hub
    elif call.startswith("hub."):
        exec(call)
    else:
        try:
            model = eval(f"from_pretrained({call})")
        except Exception as error:
            print(type(error).__name__, *str(error).split())
        else:
            print(type(model.layers[-1]).__name__, model.predict([[1, 2]]).shape, model.tokenizer)
"""


def results(calls, folder, endpoint):
    """What `from_pretrained` gives or raises in another process, whose hub is at `endpoint`."""
    off = [f"HF_HUB_DISABLE_{what}" for what in ("PROGRESS_BARS", "XET", "TELEMETRY")]
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), **dict.fromkeys(off, "1")}
    env["PHITODEEP_KERNELS"] = "numpy"  # which takes less time to import
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, *calls],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


GET = "hub.snapshot_download"
NAME, LOCAL, UNKNOWN = '"tiny/model"', '"tiny/local"', '"tiny/model", revision="c"'
LOST = {
    '"tiny/other"': "RepositoryNotFoundError",
    '"broken/model"': "Error",
    f'{NAME}, revision="lost"': "RevisionNotFoundError",
    **dict.fromkeys(['"../model"', '"a--b/model"'], "HFValidationError"),
}


def test_a_name_is_downloaded_once_and_then_works_offline(hub, tmp_path):
    """A folder of this name is taken first, without libraries; what the hub lacks is refused."""
    (tmp_path / "tiny").mkdir()
    written(tmp_path / "tiny" / "local", GPT2)
    calls = [LOCAL, '"a/b"', repr(str(STORED / "gpt2")), "with the libraries"]
    calls += [NAME, LOCAL, f'{NAME}, revision="old"', *LOST]
    calls += [f"{GET} = partial({GET}, endpoint='http://127.0.0.1:9')", UNKNOWN]
    calls += ["hub.constants.HF_HUB_OFFLINE = True", NAME, UNKNOWN]
    found = results(calls, tmp_path, hub)
    local, name, tokenizer, main, again, old, *lost, unreached, offline, unknown = found
    assert local == again == "TiedDense (1, 2, 11) None"
    assert name.startswith("MissingExtraError a/b is not a folder")
    assert 'pip install "phitodeep[hub]"' in name
    assert 'tokenizer.json needs tokenizers: pip install "phitodeep[hub]"' in tokenizer
    assert main == offline == "TiedDense (1, 2, 64) HubTokenizer(<64 tokens>)"
    assert old == "Dense (1, 2, 64) HubTokenizer(<64 tokens>)"  # from several files
    for text, why in zip(lost, LOST.values(), strict=True):
        assert text.startswith("DataError cannot get")
        assert why in text
        assert "check the name and the revision" in text
    for text in (unreached, unknown):
        assert text.startswith("DataError cannot get tiny/model from the hub: ")
        assert "Offline, pass the path of a folder with config.json and model.safe" in text
    fetched = {path.rpartition("/")[2] for path in Hub.asked if f"/resolve/{'a' * 40}" in path}
    assert fetched == {"config.json", "model.safetensors", "tokenizer.json"}  # no reference.npz
    assert not any("local" in path or path.endswith("/c") for path in Hub.asked)


def test_refusals_that_ask_nobody(tmp_path):
    for name in ("gpt2", "a/b/c", "a b/c", "/no/such", "org/name\n", Path("a/b")):
        with pytest.raises(DataError, match="not a folder with a model"):
            from_pretrained(name)
    folder = written(tmp_path, GPT2)
    for name, revision, error, message in (
        ("a\0/b", None, ArgumentError, "NUL"),
        (3, None, ArgumentTypeError, "must be text or a Path"),
        (folder, "main", ArgumentError, "revision= is for names on the hub"),
        (folder / "model.safetensors", None, DataError, r"is a file: phitodeep\.load"),
    ):
        with pytest.raises(error, match=message):
            from_pretrained(name, revision=revision)
