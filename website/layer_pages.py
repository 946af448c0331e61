"""A page for each layer, made from its class, its derivation and `facts/layers.toml`."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from html import escape
from typing import Any

import numpy as np

from phitodeep import functional
from phitodeep.core.call import calling
from phitodeep.core.types import each
from phitodeep.derivations.language.step import Derivation, Let, Loop, Step
from phitodeep.layers.base import Layer
from phitodeep.model.builder import SequentialBuilder
from website import arrays, derived, options, parts
from website.bench import Bench, inputs
from website.layer_facts import ALIASES, FACTS, KINDS, Check, Facts, example
from website.layer_pictures import picture
from website.mistakes import mistakes, verdict
from website.pages import Page, Section


@cache
def sections() -> list[Section]:
    """The index, and the pages by kind."""
    return [
        Section("", [Page("layers/index.md", index())]),
        *(Section(title, [page(name) for name in facts]) for title, facts in KINDS.items()),
    ]


def page(name: str) -> Page:
    return Page(f"layers/{link_of(name)}.md", LayerPage(name).content())


class LayerPage:
    """What one page shows: the layer of the example and all numbers of its two passes."""

    def __init__(self, name: str) -> None:
        self.name, self.facts = name, FACTS[name]
        self.layer, self.Xs, self.dY = example(self.facts)
        self.checks = checked(self.facts.checks)
        self.bench = Bench(self.layer, self.Xs, self.dY, (*self.facts.extra, *self.checks))
        self.inputs = inputs(self.layer, self.Xs)
        self.kind = next(kind for kind, facts in KINDS.items() if name in facts)
        self.image = any(X.ndim == 4 for X in self.Xs)
        self._scales()

    def _scales(self) -> None:
        """What is compared has one scale: the parts of a gradient, and the gradient."""
        whole = [*(s.symbol for s in self.facts.extra), "dX"] if self.facts.extra else []
        self.scales = dict.fromkeys(whole, arrays.scale_of(*(self.bench[s] for s in whole)))

    def content(self) -> str:
        cls = type(self.layer)
        blocks = [
            parts.WIDE + f"# {self.name}",
            f"**{self.facts.question}**",
            summary(cls),
            self.workbench(),
            *self.aliases(),
            "## Predict one number",
            self.prediction(),
            "## Derivation and code",
            *self.derivation(),
            *derived.section(self.layer, self.Xs),
            "## Checks by eye",
            self.eye(),
            "## Break it",
            self.broken(),
            "## The gradient checker's verdict",
            self.verdict(),
            "## Arguments",
            options.table(cls) or "It takes no arguments.",
            "## Cost",
            self.cost(),
            "## Exercise",
            self.facts.exercise,
            "## See also",
            self.see_also(),
            '<script type="module" src="../../assets/js/layer.js"></script>',
        ]
        return "\n\n".join(blocks) + "\n"

    def aliases(self) -> list[str]:
        return [f"`{alias}` is another name of `{name}`."
                for alias, name in ALIASES.items() if name == self.name]  # fmt: skip

    # --- the workbench -------------------------------------------------------------------------

    def array(self, symbol: str, tall: bool = True) -> str:
        A = self.bench[symbol]
        if A is None or not arrays.shown(A):
            return ""
        scale = self.scales.get(symbol, 0.0)
        label = next((step.words for step in self.facts.extra if step.symbol == symbol), "")
        return arrays.array(symbol, A, image=self.image, scale=scale, tall=tall, label=label)

    def workbench(self) -> str:
        """Both passes with their numbers, and what the script needs to run them again."""
        names = [*self.layer.params, *self.layer.tied]
        steps = Derivation([], self.bench.derivation.backward).every()
        back = {step.symbol for step in (*steps, *self.facts.extra)}
        shown = self.facts.shown
        lanes = {
            "Forward": [*self.inputs, *names, *(s for s in shown if s not in back), "Y"],
            "Backward": [
                *("dY", *(s for s in shown if s in back)),
                *(f"d{name}" for name in (*self.inputs, *names)),
            ],
        }
        rows = "".join(
            f'<div class="wb-lane"><p class="wb-title">{title}</p><div class="wb-arrays">'
            f"{''.join(self.array(symbol) for symbol in symbols)}</div></div>"
            for title, symbols in lanes.items()
        )
        movable = self.bench.movable()
        data = {"document": self.bench.document(), "movable": movable, "blank": self.facts.blank}
        return (
            f'<section class="wb" aria-label="{self.name} with numbers">{rows}'
            f'<p class="wb-help">{self.help(movable)}</p>{parts.data(data)}</section>'
        )

    def help(self, movable: list[str]) -> str:
        names = [f"<code>{name}</code>" for name in movable]
        names = [", ".join(names[:-1]) + " or " + names[-1]] if len(names) > 1 else names
        return (
            f"Drag a number of {names[0]} up or down; the others follow. With the keyboard, the "
            "arrows up and down change a number, and left and right go to the next one."
        )

    # --- the sections --------------------------------------------------------------------------

    def prediction(self) -> str:
        symbol, k = self.facts.blank
        place = ", ".join(map(str, np.unravel_index(k, np.shape(self.bench[symbol]))))
        asked = f"{symbol}[{place}]"
        return (
            f"One number above is hidden: `{asked}`. Compute it from the others, to one decimal."
            f'\n\n<form class="wb-blank" data-sym="{symbol}" data-k="{k}" hidden>'
            f'<label>{asked} = <input inputmode="decimal" autocomplete="off" size="8"></label> '
            '<button type="submit">Check</button> <button type="button">Show it</button>'
            '<div aria-live="polite"></div></form>'
        )

    def derivation(self) -> list[str]:
        cls = type(self.layer)
        blocks = [
            "These are the layer's own `steps()`, in the order in which they run, with the numbers "
            "of the example. Point at a step to light up what it reads and what it computes."
        ]
        for steps, method in zip(self.bench.derivation, ("forward", "backward"), strict=True):
            listed = f'<ol class="wb-steps">{self.steps(steps)}</ol>'
            blocks += [f"### {method.capitalize()}", parts.pair(listed, code(cls, method))]
        return blocks

    def steps(self, steps: Any) -> str:
        return "".join(self.step(step) for step in steps)

    def step(self, step: Step) -> str:
        if isinstance(step, Loop):
            order = "from the last step to the first" if step.reverse else "for each step t"
            body = f'<ol class="wb-steps">{self.steps(step.body)}</ol>'
            return f'<li class="wb-loop"><p>{order}</p>{body}</li>'
        reads = " ".join((step.symbol, *step.operands))
        formula, words = parts.typeset(step, parts.BLOCK)
        numbers = self.array(step.symbol, tall=False)
        short = np.size(self.bench[step.symbol]) == 1  # one number: all in one line
        look = "pd-words wb-short" if short else "pd-words"
        said = f'<p class="{look}">{escape(words)}</p>' if words else ""
        shown = formula + (numbers + said if short else said + numbers)
        return f'<li tabindex="0" data-reads="{reads}">{shown}</li>'

    def eye(self) -> str:
        rows = []
        for k, check in enumerate(self.facts.checks):
            worst = float(np.abs(self.bench[f"check_{k}"]).max())
            if not worst <= check.tolerance:
                raise AssertionError(f"{self.name}: not true: {check.sentence}: {worst}")
            rows.append(
                f'<li data-check="check_{k}" data-tolerance="{check.tolerance:g}">'
                f"{escape(check.sentence)}. <output>True here.</output></li>"
            )
        return f'<ul class="wb-checks">{"".join(rows)}</ul>'

    def broken(self) -> str:
        if self.layer.surrogate:
            return "The checker expects the slope of Y: it cannot tell mistakes from the purpose."
        found = mistakes(self.layer, self.Xs, self.bench.derivation, self.facts.mistakes)
        if not found:
            return "Nothing can be left out: this layer only moves or copies numbers."
        return "The checker's answer to the likeliest mistakes:\n\n" + "\n\n".join(
            f'<p class="wb-broken"><strong>{m.step.mathml}, {parts.coded(m.sentence)}</strong></p>'
            f'<pre class="wb-said"><code>{escape(m.verdict)}</code></pre>'
            for m in found
        )

    def verdict(self) -> str:
        return (
            "[check_gradients](../api/testing.md) compares the layer's gradients with central "
            "differences in float64. When this page was built, it said:\n\n"
            f"<pre><code>{escape(verdict(self.layer, self.Xs))}</code></pre>"
        )

    def cost(self) -> str:
        small = self.layer.copy()
        for layer in {small, *(owner for owner, _ in small.tied.values())}:
            layer.cast(np.float32)
        with calling(step=0, caching=True, training=True):
            small.forward(*(self.Xs if self.facts.tokens else [X.astype("f4") for X in self.Xs]))
        kept = {id(A): A.nbytes for _, part in small.walk() for found in part.cache.values()
                for A in each(found) if isinstance(A, np.ndarray)}  # fmt: skip
        cells = sum(X.size for X in self.Xs)
        shapes = ", ".join(f"{name} {X.shape}" for name, X in self.inputs.items())
        return (
            f"| for the example, {shapes} | |\n|---|---:|\n"
            f"| operations of a forward pass, per sample | {small.flops():,} |\n"
            f"| parameters | {small.count_params():,} |\n"
            f"| bytes kept for the backward pass, in float32 | {sum(kept.values()):,} |\n"
            f"| bytes of {' and '.join(self.inputs)}, in float32 | {4 * cells:,} |"
        )

    def see_also(self) -> str:
        cls = type(self.layer)
        links = {name: link_of(name) for name in KINDS[self.kind] if name != self.name}
        derived = inspect.getsourcefile(inspect.unwrap(cls.steps)) or ""
        where = derived.partition("phitodeep/derivations/")[2]
        return parts.see_also(cls, self.kind, links, "layers", where)


@cache
def link_of(name: str) -> str:
    """The address of a layer's page: the name of its builder method, such as "leaky-relu"."""
    methods = (method.strip("_") for method in dir(SequentialBuilder) if method[0] != "_")
    found = (method for method in methods if method.replace("_", "") == name.lower())
    return next(found, parts.link_of(name)).replace("_", "-")


# --- parts -------------------------------------------------------------------------------------


def checked(checks: tuple[Check, ...]) -> list[Step]:
    """The steps that compute what must be 0; steps that several checks share are there once."""
    found: dict[str, Step] = {}
    for k, check in enumerate(checks):
        found |= {step.symbol: step for step in check.before}
        found[f"check_{k}"] = Let(f"check_{k}", check.zero)
    return list(found.values())


def summary(cls: type) -> str:
    """The first paragraph of a docstring."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]


def code(cls: type[Layer], method: str) -> str:
    """A pass and what it calls; folded below the pass if it is long."""
    own = getattr(cls, method)
    called = helpers(cls, own)
    if sum(len(inspect.getsource(each).splitlines()) for each in called) <= SHORT:
        return parts.code(own, *called)
    names = "Its functions" if len(called) > 1 else "Its function"
    folded = f"<details><summary>{names}</summary>{parts.code(*called)}</details>"
    return parts.code(own) + folded


SHORT = 12  # lines of what a pass calls that stand below it at once
SHOWN = ("phitodeep.layers.", "phitodeep.functional", "phitodeep.kernels")
PLUMBING = ("phitodeep.layers.base", "phitodeep.core.call", "phitodeep.layers.random")
OTHER = re.compile(
    "_?check|_?refuse|.*shape_error|_?compiled|buffer|like|empty_float|create|_step_mask"
)


def helpers(cls: type[Layer], function: Any) -> list[Any]:
    """What a pass calls of this library, in order, without what every layer calls.

    A method of the layer, such as `slope`, brings what it calls itself.
    """
    module = sys.modules[inspect.unwrap(function).__module__]
    text = inspect.getsource(inspect.unwrap(function))
    body = text.partition(") -> ")[2]
    found: list[Any] = []
    for prefix, name in dict.fromkeys(re.findall(r"(self\.|F\.|\b)(\w+)", body)):
        home = {"self.": cls, "F.": functional}.get(prefix, module)
        thing = getattr(home, name, None)
        plain = inspect.unwrap(thing) if thing is not None else None  # of a kernel, too
        place = getattr(plain, "__module__", None) or ""
        if not inspect.isfunction(plain) or plain is inspect.unwrap(function):
            continue
        if place in PLUMBING or not place.startswith(SHOWN) or OTHER.match(name):
            continue
        found.append(plain)
        if prefix == "self.":
            found += helpers(cls, plain)
    return list(dict.fromkeys(found))


# --- the index ---------------------------------------------------------------------------------


def index() -> str:
    blocks = [
        parts.WIDE + "# Layers",
        "Each layer has a page: its numbers, which you can drag, its derivation next to its code, "
        "what the gradient checker says about it and about the likeliest mistakes. All numbers and "
        "verdicts come from the library, which ran while this site was built.",
    ]
    for title, facts in KINDS.items():
        cards = [card(name, row) for name, row in facts.items()]
        cards += [
            card(name, facts[name], alias) for alias, name in ALIASES.items() if name in facts
        ]
        blocks += [f"## {title}", f'<div class="pd-cards wb-cards">{"".join(cards)}</div>']
    return "\n\n".join(blocks) + "\n"


def card(name: str, facts: Facts, alias: str = "") -> str:
    layer, Xs, _ = example(facts)
    said = f"Another name of {name}." if alias else escape(facts.question)
    drawn = picture(name, layer, Xs, name in KINDS["Activations"])
    return parts.card(link_of(name), drawn, alias or name, said)
