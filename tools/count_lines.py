"""Count the lines of code by room, without docstrings, comments and blank lines; fail over a limit.

python tools/count_lines.py
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = {  # lines of code, but for tests, where every line counts
    # What there is, with its reasons: docs/decisions/0024-*.md, "Lines".
    "phitodeep": 36_905,
    "tools, website, course, references, benchmarks": 10_580,
    "tests": 51_700,
}
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines that hold code, docstrings excluded."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def main() -> int:
    command = ["git", "ls-files", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    counts: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name in listed.stdout.split():
        path = ROOT / name
        folder, _, rest = name.partition("/")
        if not path.exists():
            continue
        source = path.read_text(encoding="utf-8")
        room = f"{folder}/{rest.partition('/')[0]}" if folder == "phitodeep" else folder
        for key in {room, folder}:
            counts[key] += source.count("\n") if folder == "tests" else code_lines(source)
            files[key] += 1
    for key in sorted(counts):
        print(f"{key:32} {files[key]:4} files {counts[key]:7,} lines")
    over = False
    for folders, limit in LIMITS.items():
        total = sum(counts[folder] for folder in folders.split(", "))
        over |= total > limit
        print(f"{folders}: {total:,} of at most {limit:,} lines")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
