"""Entries of the API for layers, losses and optimizers that have a page of their own.

Their formulas are typeset from the same steps as on that page, and their arguments are a table.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from functools import cache
from html import escape

from phitodeep import layers
from phitodeep.derivations.language.step import Loop, Step
from website import layer_facts, layer_pages, loss_facts, optimizer_facts, optimizer_pages, parts

FOLDERS = {"layers": "layers", "loss": "losses", "optimization": "optimizers"}
HEADING = re.compile(r'<h\d id="phitodeep\.(\w+)\.[\w.]*?([A-Z]\w*)"[^>]*>.*?</h\d>', re.DOTALL)


def linked(html: str, pages: Container[str]) -> str:
    """A page of the API, with a link below the heading of each class that has a page."""

    def link(found: re.Match[str]) -> str:
        heading, package, name = found[0], found[1], found[2]
        of = layer_pages.link_of if package == "layers" else parts.link_of
        path = f"{FOLDERS.get(package)}/{of(name)}"
        if f"{path}.md" not in pages:
            return heading
        return f'{heading}<p><a href="../../{path}/">{name}: picture, numbers, derivation</a></p>'

    return HEADING.sub(link, html)


@cache
def classes() -> dict[str, type]:
    """The classes that have a page, by their path in the library."""
    found = [getattr(layers, name) for name in layer_facts.FACTS]
    found += [type(facts.loss) for facts in loss_facts.FACTS]
    found += [facts.cls for facts in optimizer_facts.FACTS]
    return {f"{cls.__module__}.{cls.__name__}": cls for cls in found}


def formulas(cls: type) -> str:
    """The formulas of a class that has a page, as MathML; nothing if its derivation is yours."""
    for facts in optimizer_facts.FACTS:
        if facts.cls is cls:
            rules = "".join(map(optimizer_pages.one_rule, facts.rules))
            return BOX.format("", rules)
    for loss in (facts.loss for facts in loss_facts.FACTS if type(facts.loss) is cls):
        return both(loss.steps())
    layer, _, _ = layer_facts.example(layer_facts.FACTS[cls.__name__])
    return "" if cls is layers.Lambda else both(layer.steps())


def both(derivation: tuple[Iterable[Step], Iterable[Step]]) -> str:
    """The formulas of a derivation: its forward and its backward pass."""
    passes = "".join(
        f"<div><p><strong>{title}</strong></p>{listed(steps)}</div>"
        for title, steps in zip(("Forward", "Backward"), derivation, strict=True)
    )
    return BOX.format(" pd-two", passes)


BOX = '<div class="pd-formulas{}" role="region" aria-label="Formulas" tabindex="0">{}</div>'


def listed(steps: Iterable[Step]) -> str:
    return f'<ol class="pd-rule">{"".join(map(item, steps))}</ol>'


def item(step: Step) -> str:
    if isinstance(step, Loop):
        order = "from the last step to the first" if step.reverse else "for each step t"
        return f"<li>{order}{listed(step.body)}</li>"
    formula, words = parts.typeset(step, parts.BLOCK)
    said = f'<span class="pd-words">{escape(words)}</span>' if words else ""
    return f"<li>{formula}{said}</li>"
