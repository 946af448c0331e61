"""Names on the hub: a stub of it on this machine, and what is refused."""

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError
from phitodeep.model.architectures import from_pretrained
from tests.exchange.hub.folders import GPT2, STORED, written

COMMITS = {"main": "a" * 40, "old": "b" * 40}
FOLDERS = {"a" * 40: STORED / "gpt2", "b" * 40: STORED / "llama"}


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves the model tiny/model with two revisions, and remembers what was asked for."""

    asked: list[str]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(self.path)
        parts = self.path.strip("/").partition("?")[0].split("/")
        if parts[:5] == ["api", "models", "tiny", "model", "tree"]:
            files = sorted(FOLDERS[parts[5]].iterdir())
            tree = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "c" * 40}
                    for p in files]  # fmt: skip
            self.answer(json.dumps(tree).encode())
        elif parts[:4] == ["api", "models", "tiny", "model"]:
            self.answer(json.dumps(self.info(parts)).encode() if self.info(parts) else None)
        elif parts[:3] == ["tiny", "model", "resolve"] and parts[3] in FOLDERS:
            path = FOLDERS[parts[3]] / parts[4]
            self.answer(path.read_bytes() if path.exists() else None, parts[3])
        elif parts[:3] == ["api", "models", "broken"]:
            self.answer(b"<html>")
        else:
            self.answer(None)

    def info(self, parts):
        revision = parts[5] if len(parts) > 5 else "main"
        commit = COMMITS.get(revision)
        if commit is None:
            return {}
        files = [path.name for path in FOLDERS[commit].iterdir()] + ["pytorch_model.bin"]
        siblings = [{"rfilename": name} for name in sorted(files)]
        return {"id": "tiny/model", "modelId": "tiny/model", "sha": commit, "siblings": siblings}

    def answer(self, content, commit=""):
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
without = {without}
sys.modules |= dict.fromkeys(without)
from phitodeep.model.architectures import from_pretrained
for call in sys.argv[1:]:
    if call == "with the libraries":
        for name in without:
            del sys.modules[name]
        warnings.resetwarnings()
        continue
    try:
        model = eval(f"from_pretrained({{call}})")
    except Exception as error:
        print(type(error).__name__, *str(error).split())
    else:
        print(type(model.layers[-1]).__name__, model.predict([[1, 2]]).shape, model.tokenizer)
"""


def results(calls, folder, endpoint, without=(), **more):
    """What `from_pretrained` gives or raises in another process, whose hub is at `endpoint`."""
    off = [f"HF_HUB_DISABLE_{what}" for what in ("PROGRESS_BARS", "XET", "TELEMETRY")]
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), **more}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), **dict.fromkeys(off, "1")}
    env["PHITODEEP_KERNELS"] = "numpy"  # which takes less time to import
    warn = ["-W", "error"] if without else []
    done = subprocess.run(
        [sys.executable, *warn, "-c", CODE.format(without=without), *calls],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


NAME, LOCAL = '"tiny/model"', '"tiny/local"'
LOST = {
    '"tiny/other"': "RepositoryNotFoundError",
    '"broken/model"': "Error",
    f'{NAME}, revision="lost"': "RevisionNotFoundError",
    **dict.fromkeys(['"../model"', '"a--b/model"'], "HFValidationError"),
}


def test_a_name_is_downloaded_once_and_then_works_offline(hub, tmp_path):
    """A folder of this name is taken first; what the hub does not have is refused."""
    (tmp_path / "tiny").mkdir()
    written(tmp_path / "tiny" / "local", GPT2)
    calls = [NAME, LOCAL, f'{NAME}, revision="old"', *LOST]
    main, local, old, *lost = results(calls, tmp_path, hub)
    assert main == "TiedDense (1, 2, 64) HubTokenizer(<64 tokens>)"
    assert local == "TiedDense (1, 2, 11) None"
    assert old == "Dense (1, 2, 64) HubTokenizer(<64 tokens>)"  # from several files
    for text, why in zip(lost, LOST.values(), strict=True):
        assert text.startswith("DataError cannot get")
        assert why in text
        assert "check the name and the revision" in text
    fetched = {path.rpartition("/")[2] for path in Hub.asked if f"/resolve/{'a' * 40}" in path}
    assert fetched == {"config.json", "model.safetensors", "tokenizer.json"}  # no reference.npz
    assert not any("local" in path for path in Hub.asked)
    offline = results([NAME, f'{NAME}, revision="c"'], tmp_path, hub, HF_HUB_OFFLINE="1")
    assert offline[0] == main
    assert_offline(offline[1])


def assert_offline(text):
    assert text.startswith("DataError cannot get tiny/model from the hub: ")
    assert "Offline, pass the path of a folder with config.json and model.safe" in text


def test_the_libraries_are_needed_only_for_names_and_tokenizers(tmp_path):
    written(tmp_path / "local", GPT2)
    calls = ['"local"', '"a/b"', repr(str(STORED / "gpt2")), "with the libraries", NAME]
    without = ("tokenizers", "huggingface_hub", "torch")
    local, name, tokenizer, unreached = results(calls, tmp_path, "http://127.0.0.1:9", without)
    assert local == "TiedDense (1, 2, 11) None"
    assert name.startswith("MissingExtraError a/b is not a folder")
    assert 'pip install "phitodeep[hub]"' in name
    assert 'tokenizer.json needs tokenizers: pip install "phitodeep[hub]"' in tokenizer
    assert_offline(unreached)


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
