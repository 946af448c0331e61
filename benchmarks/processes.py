"""Run code in new Python processes."""

from __future__ import annotations

import os
import subprocess
import sys

from measuring import HERE


def fresh(
    code: str, environment: dict[str, str] | None = None, arguments: tuple[str, ...] = ()
) -> str:
    """Run `code` in a new Python process that finds the benchmark's files; return its output."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **(environment or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, with compiled bytecode
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
