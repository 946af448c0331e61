"""A page for each optimizer: its rule, its code, and its path on two valleys."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from phitodeep.derivations.language.mathml import MATHML
from phitodeep.layers import Dense
from phitodeep.optimization.base import Optimizer
from phitodeep.optimization.optimizers import LBFGS
from website import options, parts
from website.optimizer_facts import FACTS, Facts, Line, Rule
from website.pages import Page, Section
from website.playground.session.panel import Panel, svg
from website.valleys import VALLEYS, Valley, best, paths

WIDTH, HEIGHT = 400.0, 270.0


def sections() -> list[Section]:
    return [Section("", [Page("optimizers/index.md", index()), *map(page, FACTS)])]


def page(facts: Facts) -> Page:
    name = facts.cls.__name__
    links = {name: parts.link_of(name) for name in facts.siblings}
    blocks = [
        parts.WIDE + f"# {name}",
        f"**{facts.question}** {facts.answer}",
        f'<div class="pd-two">{"".join(picture(i, name) for i in range(len(VALLEYS)))}</div>',
        "The build ran every path with the library's own optimizer. The faint paths are those of "
        "the other optimizers, each at the rate that serves it best on this "
        "valley.",
        "## The rule and its code",
        rules(facts),
        "## Memory",
        memory(facts.cls),
        "## When to use it",
        facts.when,
        "## Arguments",
        options.table(facts.cls, f"(../api/optimizers.md#{options.EVERY})"),
        "## See also",
        parts.see_also(facts.cls, "Related optimizers", links, "optimizers"),
        '<script type="module" src="../../assets/js/valley.js"></script>',
    ]
    return Page(f"optimizers/{parts.link_of(name)}.md", "\n\n".join(blocks) + "\n")


# --- the pictures ------------------------------------------------------------------------------


def picture(index: int, name: str) -> str:
    """The paths of one optimizer, one for each learning rate; a slider chooses among them."""
    valley, found = VALLEYS[index], paths(index)
    shown, box = best(index, name), panel(valley)
    groups, choices = [], []
    for i, (rate, path) in enumerate(found[name]):
        hidden = "" if i == shown else " hidden"
        groups.append(f'<g data-rate="{i}"{hidden}>{line(box, path, dots=True)}</g>')
        choices.append({"rate": f"{rate:g}", "words": words(valley, path, name)})
    others = "".join(
        f'<g class="pd-others">{line(box, found[other][best(index, other)][1])}</g>'
        for other in found
        if other != name
    )
    title = f"The path of {name} on {valley.name[0].lower()}{valley.name[1:]}, {valley.formula}"
    drawn = svg(WIDTH, HEIGHT, title, background(valley, box, index), others, *groups)
    rate = choices[shown]["rate"]
    return (
        f'<figure class="pd-live pd-valley" data-shown="{shown}">'
        f"<p><strong>{valley.name}</strong>, f = {valley.formula}</p>{drawn}{parts.data(choices)}"
        f"<figcaption><p>alpha = {rate}: {choices[shown]['words']}</p></figcaption></figure>"
    )


def panel(valley: Valley) -> Panel:
    x0, x1, y0, y1 = valley.window
    return Panel((36, 6, WIDTH - 44, HEIGHT - 30), (x0, x1), (y0, y1))


def background(valley: Valley, box: Panel, index: int) -> str:
    """Axes, contours, the start and the bottom."""
    clip = (
        f'<clipPath id="pd-clip-{index}"><rect x="{box.left}" y="{box.top}" '
        f'width="{box.width}" height="{box.height}"/></clipPath>'
    )
    lines = "".join(
        f'<path class="pd-contour" d="{box.path(valley.contour(level))}"/>'
        for level in valley.levels
    )
    (sx, sy), (bx, by) = box.at(*valley.start), box.at(*valley.bottom)
    marks = (
        f'<circle class="pd-start" cx="{sx:.1f}" cy="{sy:.1f}" r="5"/>'
        f'<path class="pd-bottom" d="M{bx - 6:.1f},{by:.1f}h12M{bx:.1f},{by - 6:.1f}v12"/>'
        f'<text x="{sx:.1f}" y="{sy - 9:.1f}" class="pd-mid">start</text>'
    )
    return clip + f'<g clip-path="url(#pd-clip-{index})">{lines}</g>' + box.axes("", "") + marks


def line(box: Panel, path: Any, dots: bool = False) -> str:
    """A path, cut where it leaves the picture; dots mark its steps."""
    (x0, x1), (y0, y1) = box.x, box.y
    far = (path < (x0, y0)).any(axis=1) | (path > (x1, y1)).any(axis=1)
    pieces, piece = [], []
    for point, out in zip(path, far, strict=True):
        if not out:
            piece.append(point)
        elif piece:
            pieces.append(piece)
            piece = []
    pieces.append(piece)
    drawn = "".join(f'<path d="{box.path(p)}"/>' for p in pieces if len(p) > 1)
    for x, y in (box.at(*p) for p in path[~far][:61]) if dots else []:
        drawn += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
    return drawn


def words(valley: Valley, path: Any, name: str) -> str:
    """How far a path gets."""
    if not np.all(np.abs(path[-1]) < 1e6):
        return f"it diverges after {len(path) - 1} steps."
    end = valley.f(*path[-1])
    counted = "points of its search" if name == LBFGS.__name__ else "steps"
    start = valley.f(*valley.start)
    moves = "falls" if end < start else "rises"
    return f"f {moves} from {start:.3g} to {end:.2g} in {len(path) - 1} {counted}."


# --- the sections ------------------------------------------------------------------------------


def formula(line: Line) -> str:
    """A line of a rule, typeset."""
    right = MATHML.words(line.words) if line.words else MATHML.expression(line.code)
    return MATHML.whole(f"{MATHML.symbol(line.symbol)}<mo>\u2190</mo>{right}")


def rules(facts: Facts) -> str:
    """The rules as formulas, next to the code."""
    listed = "".join(one_rule(rule) for rule in facts.rules)
    names = ", ".join(
        f"{MATHML.whole(MATHML.symbol(symbol))} is <code>{escape(name)}</code>"
        for name, symbol in facts.names.items()
    )
    known = (
        f"<p>{MATHML.whole(MATHML.symbol('g'))} is the gradient of the parameters "
        f"{MATHML.whole(MATHML.symbol('theta'))}, {MATHML.whole(MATHML.symbol('alpha'))} the "
        f"learning rate, t the number of the step{', ' + names if names else ''}. What has not "
        "been computed yet is 0.</p>"
    )
    own = [vars(c)["update"] for c in facts.cls.__mro__ if "update" in vars(c)][:1]
    code = [facts.cls.run] if facts.cls is LBFGS else own
    shown = parts.code(*code, *facts.code)
    text = (
        "A test runs these formulas next to the optimizer for five steps of random gradients and "
        "compares the results to 1e-12."
    )
    return f"{parts.pair(listed + known, shown)}\n\n{text}"


def one_rule(rule: Rule) -> str:
    rows = "".join(f"<li>{formula(line)}</li>" for line in rule.lines)
    given = ", ".join(f"{name}={value!r}" for name, value in rule.options.items())
    note = f" <code>{escape(given)}</code>" if given else ""
    title = f"<p><strong>{escape(rule.title)}</strong>{note}</p>" if rule.title else ""
    return f'{title}<ol class="pd-rule">{rows}</ol>'


def remembered(cls: type[Optimizer]) -> float:
    """How many numbers per parameter an optimizer keeps, measured on a layer after one step."""
    hidden, last = Dense(8, 6, bias=False), Dense(6, 4, bias=False)
    for layer in (hidden, last):
        layer.build(layer.W.shape[:1], seed=0)
        layer.grad_array("W")[...] = 1.0
    optimizer = cls()
    optimizer.step([hidden, last])
    kept = optimizer.state_dict()["parameters"]["0.W"]
    return sum(a.size for a in arrays(kept)) / hidden.W.size


def arrays(values: Any) -> list[Any]:
    """All arrays in a nested dict."""
    if isinstance(values, dict):
        return [a for value in values.values() for a in arrays(value)]
    return [values] if isinstance(values, np.ndarray) and values.ndim else []


def memory(cls: type[Optimizer]) -> str:
    if cls is LBFGS:
        return (
            "It keeps nothing between steps. During a step, SciPy keeps about "
            "2 `history_size` + 5 numbers per parameter, in float64."
        )
    count = remembered(cls)
    if not count:
        return "It keeps nothing; with momentum, one number per parameter."
    plural = "s" if count > 1 else ""
    extra = "; momentum adds one" if cls.__name__ == "RMSProp" else ""
    extra = " of a hidden matrix, and two per other parameter" if cls.__name__ == "Muon" else extra
    return (
        f"It keeps {count:g} number{plural} per parameter{extra}. A model of a million parameters "
        f"in float32 therefore needs {4 * count:g} MB for it, in addition to the 4 MB of its "
        "parameters and the 4 MB of their gradients."
    )


def index() -> str:
    """All paths on the narrow valley, and a list of all optimizers."""
    found, box = paths(0), panel(VALLEYS[0])
    groups, legend = [], []
    for i, facts in enumerate(FACTS):
        name = facts.cls.__name__
        rate, path = found[name][best(0, name)]
        groups.append(f'<g class="pd-path-{i}">{line(box, path)}</g>')
        said = f"alpha = {rate:g}: {words(VALLEYS[0], path, name)}"
        look = f' class="pd-path-{i}"'
        legend.append(
            parts.card(parts.link_of(name), "", name, escape(facts.question), said, look=look)
        )
    drawn = svg(
        WIDTH, HEIGHT, "The paths of all optimizers on a narrow valley",
        background(VALLEYS[0], box, 0), *groups,
    )  # fmt: skip
    blocks = [
        parts.WIDE + "# Optimizers",
        "An optimizer reads the gradients that the backward pass left in the layers, and moves the "
        "parameters. The picture shows every optimizer on the same narrow valley, f = "
        f"{VALLEYS[0].formula}, each at the rate of several that serves it best. A page for each "
        "of them shows its rule, its code, and how its path depends on the learning rate.",
        f'<figure class="pd-live pd-all">{drawn}</figure>',
        f'<div class="pd-cards wb-cards pd-all">{"".join(legend)}</div>',
    ]
    return "\n\n".join(blocks) + "\n"
