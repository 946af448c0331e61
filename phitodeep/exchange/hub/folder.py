"""Find the folder of a model, on the disk or on the hub, and read its JSON files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from phitodeep.core.files import check_path, readable
from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentError, DataError, extra
from phitodeep.io.json_text import parsed

NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)  # organisation/name
WANTED = [  # all that is downloaded
    *("config.json", "tokenizer.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
]

SETTINGS, TOKENIZER = 1 << 24, 1 << 27  # bytes of the largest files: real ones are smaller


def find_folder(folder_or_name: PathLike, revision: str | None) -> Path:
    """Return a folder on the disk, or the folder to which a model of the hub was downloaded."""
    folder = check_path(folder_or_name)
    if folder.is_dir():
        if revision is not None:
            raise ArgumentError(f"{folder} is a folder, but revision= is for names on the hub.")
        return folder
    if folder.is_file():
        raise DataError(f"{folder} is a file: phitodeep.load reads what `model.save` wrote.")
    if not isinstance(folder_or_name, str) or not NAME.fullmatch(folder_or_name):
        raise DataError(
            f"{folder} is not a folder with a model. A model on the hub has a name such as "
            '"openai-community/gpt2".'
        )
    return _download(folder_or_name, revision)


def _download(name: str, revision: str | None) -> Path:
    purpose = f"{name} is not a folder, and reading a model from the hub"
    with extra("hub", "huggingface_hub", purpose):
        import huggingface_hub
    try:
        found = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=WANTED)
    except Exception as error:  # of the network, its library, or the hub
        raise DataError(
            f"cannot get {name} from the hub: {type(error).__name__}: {error} Remedy: connect to "
            "the internet, and check the name and the revision; private models need `hf auth "
            "login`. Offline, pass the path of a folder with config.json and model.safetensors."
        ) from error
    return Path(found)


def inside(folder: Path, name: str, largest: float = math.inf) -> Path:
    """Return the path of a file of the folder, of at most `largest` bytes.

    A link may lead only to another file of the folder or, as in the cache of the hub, from
    models--X/snapshots/REVISION to models--X/blobs.
    """
    path, home = readable(folder / name, largest), folder.resolve()
    cached = [home.parents[1] / "blobs"] if home.parent.name == "snapshots" else []
    real = path.resolve()
    if not any(real.is_relative_to(allowed) for allowed in (home, *cached)):
        raise DataError(f"cannot read {path}: it is a link to {real}, outside the folder.")
    return path


def read_text(folder: Path, name: str, largest: float = TOKENIZER) -> str:
    """Return the text of a file of the folder."""
    path = inside(folder, name, largest)
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it is not text in UTF-8.") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error


def read_json(folder: Path, name: str) -> Any:
    """Return the content of a JSON file of the folder."""
    return parsed(read_text(folder, name, SETTINGS), folder / name, "the file")
