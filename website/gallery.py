"""The gallery of bugs: wrong gradients that real libraries shipped, each found by the checker."""

from __future__ import annotations

from difflib import unified_diff
from functools import cache

from course.bugs import activations, dense, sequences
from course.bugs.bug import Case
from website.pages import Page, Section

GROUPS = (
    ("Activations", activations.BUGS),
    ("Dense layers, dropout, shared values", dense.BUGS),
    ("Windows, norms, sequences, losses", sequences.BUGS),
)
INTRODUCTION = """# A gallery of bugs

Backward passes that are written by hand go wrong, and a wrong one often trains. The mistakes on
these pages were made by real libraries and teaching repositories, and three of them by phitodeep
itself. Each page repeats the mistake in a small layer of ours and leaves the rest to you: read the
code, look for the mistake, then let the checker find it. The checker is `check_gradients` of
[lesson 7](../lessons/07_own_layer.md), which measures every slope. Below that, the page says what
happened, and links to where.

Each page was made by the build: it ran the checker, applied the repair, ran the checker again, and
trained a small net with both gradients. The numbers below are the losses of the training data after
a training with the wrong and with the right gradient.

"""
HEAD = "| bug | wrong | right |\n|---|---:|---:|\n"
PAGE = """# {title}

Something is wrong in this class. Look for it before you read on.

```py
{imports}


{code}
```

```py
{call}
```

??? question "What the checker says"
    ```text
{verdict}
    ```

??? success "The repair"
    ```diff
{repair}
    ```

    After that, every gradient is right: the worst relative error is {worst}.

## What happened

{story}

{sources}

## How it trains

{why}

| loss of the training data | |
|---|---:|
| before training | {before:.3f} |
| after {epochs} epochs with the wrong gradient | {wrong:.3f} |
| after {epochs} epochs with the right gradient | {right:.3f} |
"""


@cache
def cases() -> dict[str, tuple[Case, ...]]:
    """All cases by the title of their group."""
    return {title: tuple(Case(name, bug) for name, bug in bugs.items()) for title, bugs in GROUPS}


def sections() -> list[Section]:
    found = [Section(title, [page(case) for case in group]) for title, group in cases().items()]
    return [Section("", [index()]), *found]


@cache
def losses(case: Case) -> tuple[float, float, float]:
    """The losses before training, and after it with the wrong and with the right gradient."""
    before, wrong = case.trained(case.bug.kind)
    return before, wrong, case.trained(case.repaired)[1]


def index() -> Page:
    """The list of all bugs, with their losses."""
    text = INTRODUCTION
    for title, group in cases().items():
        text += f"## {title}\n\n{HEAD}"
        for case in group:
            numbers = " | ".join(f"{loss:.3f}" for loss in losses(case)[1:])
            text += f"| [{case.bug.title}]({case.name}.md) | {numbers} |\n"
        text += "\n"
    return Page("bugs/index.md", text)


def page(case: Case) -> Page:
    """The page of one bug."""
    bug = case.bug
    before, wrong, right = losses(case)
    text = PAGE.format(
        title=bug.title,
        story=bug.story,
        sources=sources(case),
        imports=case.imports,
        code=case.code.rstrip(),
        call=f"rng = np.random.default_rng(0)\n{case.call}",
        verdict=indented(case.verdict(bug.kind)),
        repair=indented(difference(bug.wrong, bug.right)),
        worst=f"{case.worst():.0e}",
        why=bug.why,
        epochs=bug.task.epochs,
        before=before,
        wrong=wrong,
        right=right,
    )
    return Page(f"bugs/{case.name}.md", text)


def sources(case: Case) -> str:
    lines = (f"- [{name}]({url}): {note}." for name, url, note in case.bug.sources)
    return "**Seen in**\n\n" + "\n".join(lines)


def difference(wrong: str, right: str) -> str:
    """The repair as lines to remove and to add; indentation counts, for it can be the repair."""
    old, new = wrong.rstrip().splitlines(), right.rstrip().splitlines()
    space = min(len(line) - len(line.lstrip()) for line in [*old, *new])
    parts = ([line[space:] for line in lines] for lines in (old, new))
    head, rest = 3, [*unified_diff(*parts, lineterm="")]
    return "\n".join(f"{line[0]} {line[1:]}" for line in rest[head:])


def indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
