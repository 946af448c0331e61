"""Draw docs/pictures/prompt.svg: a real session of `Debugger.prompt` in a pseudo-terminal.

    python tools/picture_of_prompt.py [file.svg]

The program is the first block of docs/debugger.md, followed by db.prompt().
"""

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
COMMANDS = ["b 2.backward", "c", "s", "s", "why dW 0 0", "e dY[2, 0] = 0.0", "q"]
WIDTH, PROMPT = 80, b"(phi) "


def session() -> str:
    """Run the program in a pseudo-terminal, type the commands, and return what it shows."""
    import pty  # only on systems that have pseudo-terminals

    page = (ROOT / "docs" / "debugger.md").read_text(encoding="utf-8")
    program = page.split("```python\n", 1)[1].split("```", 1)[0] + "\ndb.prompt()\n"
    ours, theirs = pty.openpty()
    own = {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | own,
    )
    os.close(theirs)
    shown = b""
    for command in COMMANDS:
        shown += _until_prompt(ours)
        os.write(ours, f"{command}\n".encode())
    child.wait(timeout=60)
    time.sleep(0.1)
    return (shown + os.read(ours, 1 << 16)).decode().replace("\r\n", "\n")


def _until_prompt(terminal: int) -> bytes:
    """What the terminal shows, up to the next prompt."""
    shown = b""
    while PROMPT not in shown:
        shown += os.read(terminal, 1 << 16)
    return shown


def picture(shown: str) -> str:
    """The session as SVG, which loads no fonts from the network."""
    shown = re.sub(r"\x1b\[\?\d+[hl]|\r", "", shown)
    text = Text.from_ansi(shown[shown.index("One step") :].rstrip())
    text.highlight_regex(r"(?m)^\(phi\) .*$", "bold yellow")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(text)
    drawn = console.export_svg(title="db.prompt()", unique_id="prompt")
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures" / "prompt.svg"
    target.write_text(picture(session()), encoding="utf-8")
    print(target)
