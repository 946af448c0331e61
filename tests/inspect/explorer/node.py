"""The explorer's JavaScript in one Node process, which answers questions about documents."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from phitodeep.core.types import Array

SECONDS = 60  # to wait for an answer
DRIVER = Path(__file__).with_name("engine.mjs")


class JavaScriptError(Exception):
    """What the JavaScript threw."""


class Ref(NamedTuple):
    """A cell of a symbol."""

    path: str
    symbol: str
    cell: tuple[int, ...]

    def data(self) -> dict[str, Any]:
        return {**self._asdict(), "t": None}


class Node:
    """A Node process that runs tests/inspect/explorer/engine.mjs."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [program, str(DRIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, message: str) -> Any:
        """Send one line of JSON and return the answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(message + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        if not ready:
            self.process.kill()
            raise JavaScriptError(f"no answer within {SECONDS} seconds")
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise JavaScriptError(answer["stack"])
        return answer["answers"]

    def ask(self, text: str, *questions: Any) -> Any:
        """Ask about a document, given as JSON; a question is [name, options, ...]."""
        return self.send(f'{{"doc": {text}, "ask": {json.dumps(questions, default=plain)}}}')

    def arrays(self, text: str, **options: Any) -> dict[tuple[str, str], Any]:
        """All values of a pass by path and symbol; what is reduced stays as it is."""
        (found,) = self.ask(text, ["arrays", options])
        return {(path, symbol): unpacked(value) for path, symbol, value in found}

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def node() -> Node:
    """Start Node; skip the test if there is none, which is an error in CI."""
    program = shutil.which("node")
    if program is None and os.environ.get("CI") != "true":
        pytest.skip("Node is not installed, and it runs the explorer's JavaScript")
    assert program is not None, "CI must have Node, which runs the explorer's JavaScript"
    return Node(program)


def plain(value: Any) -> Any:
    """A cell or an array as JSON."""
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "data": value.reshape(-1).tolist()}
    return int(value)


def unpacked(value: Any) -> Any:
    if value is None or "n" in value:
        return value
    return np.frombuffer(base64.b64decode(value["data"])).reshape(value["shape"])


def floats(value: Any) -> Array:
    return np.asarray(value, np.float64)
