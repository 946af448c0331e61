"""A page for each loss, made from its class, its derivation and `facts/losses.toml`."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from phitodeep import functional as F
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.losses import givens
from phitodeep.loss.base import Elementwise, Loss, Rowwise
from phitodeep.testing import check_gradients
from phitodeep.training.shortcuts import FUSED
from website import options, parts
from website.loss_facts import FACTS, Facts
from website.pages import Page, Section
from website.playground.session.panel import Panel, svg

FORWARD = ("each", "parts", "_unit", "_split", "log_probabilities", "value")
BACKWARD = ("slope", "gradient", "value_and_gradient")
SHARED = (Loss, Elementwise, Rowwise)
POINTS = 161


def sections() -> list[Section]:
    return [Section("", [Page("losses/index.md", index()), *map(page, FACTS)])]


def page(facts: Facts) -> Page:
    cls = type(facts.loss)
    links = {name: parts.link_of(name) for name in facts.siblings}
    blocks = [
        parts.WIDE + f"# {cls.__name__}",
        f"**{facts.question}** {facts.answer}",
        picture(facts),
        "## Where it is used",
        use(facts),
        "## Derivation and code",
        derivation(facts),
        "## Check it by eye",
        checks(facts),
        "## The gradient checker's verdict",
        verdict(facts),
        "## Arguments",
        options.table(cls) or "It takes no arguments.",
        "## See also",
        parts.see_also(cls, "Related losses", links, "losses", "losses.py"),
        '<script type="module" src="../../assets/js/loss.js"></script>',
    ]
    return Page(f"losses/{parts.link_of(cls.__name__)}.md", "\n\n".join(blocks) + "\n")


# --- the picture -------------------------------------------------------------------------------


def table(facts: Facts) -> dict[str, Any]:
    """The loss and its slope for each value of the axis, and for each target."""
    loss, x = facts.loss, np.linspace(*facts.span, POINTS)
    rows = facts.rows(x)
    found: dict[str, Any] = {"x": [round(float(value), 6) for value in x], "targets": []}
    for label, target in facts.targets.items():
        each = [(loss.loss_func(row[None], [target]), loss.loss_gradient(row[None], [target]))
                for row in rows]  # fmt: skip
        found["targets"].append({
            "label": label,
            "L": [round(value, 6) for value, _ in each],
            "slope": [round(float(dP[0, 0]), 6) for _, dP in each],
        })  # fmt: skip
    return found


def picture(facts: Facts) -> str:
    """The curves of the loss and of its slope; the script adds what can be dragged."""
    values = table(facts)
    panels = [panel(values, "L", 8), panel(values, "slope", 208)]
    drawn = [p.axes(facts.axis if p is panels[1] else "", label, p is panels[1])
             for p, label in zip(panels, ("loss L", "slope dL/dp"), strict=True)]  # fmt: skip
    for i, target in enumerate(values["targets"]):
        lines = "".join(
            f'<path class="pd-{name}" d="{p.path(zip(values["x"], target[name], strict=True))}"/>'
            for name, p in zip(("L", "slope"), panels, strict=True)
        )
        drawn.append(f'<g data-target="{i}"{" hidden" if i else ""}>{lines}</g>')
    for p in panels:
        p_values = {"box": [p.left, p.top, p.width, p.height], "x": p.x, "y": p.y}
        values.setdefault("panels", []).append(p_values)
    name = type(facts.loss).__name__
    title = f"The loss {name} and its slope, by the {facts.axis}"
    return (
        f'<figure class="pd-live pd-loss" data-axis="{escape(facts.axis)}">'
        f"{svg(400, 418, title, *drawn)}"
        f"{parts.data(values)}<figcaption></figcaption></figure>"
    )


def panel(values: dict[str, Any], name: str, top: float) -> Panel:
    """Axes for the loss or the slope, wide enough for all targets."""
    every = np.concatenate([target[name] for target in values["targets"]])
    low, high = min(0.0, every.min()), max(0.0, every.max())
    space = 0.08 * (high - low)
    span = values["x"][0], values["x"][-1]
    return Panel((46, top, 346, 176), span, (low - space, high + space))


# --- the sections ------------------------------------------------------------------------------


def use(facts: Facts) -> str:
    found = [facts.use]
    for (layer, kind), fused in FUSED.items():
        if type(facts.loss) is kind:
            joint = type(fused(facts.loss)).__name__
            found.append(
                f"During training and evaluation, a {layer.__name__} followed by this loss is left "
                f"out: [{joint}]({parts.link_of(joint)}.md) works on the logits, which is exact "
                "where the long way would divide 0 by 0."
            )
        if type(fused(kind())) is type(facts.loss):
            found.append(
                f"It also takes the place of {layer.__name__} and "
                f"[{kind.__name__}]({parts.link_of(kind.__name__)}.md) during training."
            )
    return "\n\n".join(found)


def scope(facts: Facts) -> Scope:
    """The symbols of the derivation, run on the example."""
    P = np.array(facts.P)
    T = facts.loss.targets(np.array(facts.T), P.shape)
    found = Scope(facts.loss, "loss", **givens(facts.loss, P, T, None, None))
    stepwise.run(stepwise.forward(found, "P"))
    stepwise.run(stepwise.backward(found))
    return found


def derivation(facts: Facts) -> str:
    """Both passes as formulas with the numbers of the example, next to the code."""
    symbols = scope(facts)
    blocks = [
        "The formulas are the loss's own `steps()`, run on three samples. The numbers in the "
        "second column are what they computed in the build; w holds the samples' weights, and "
        "share is 1 / total. `loss_func` checks its arguments and calls `value`; `loss_gradient` "
        "calls `gradient`, or `value_and_gradient`.",
        f"```python\nP = {facts.P}\nT = {facts.T}\n```",
    ]
    for title, steps, names in (
        ("Forward", symbols.derivation.forward, FORWARD),
        ("Backward", symbols.derivation.backward, BACKWARD),
    ):
        own, shared = methods(type(facts.loss), names)
        shown = parts.code(*own, *(facts.also if title == "Backward" else ())) if own else ""
        if shared:
            folded = parts.code(*shared)
            shown += f"<details><summary>What all such losses share</summary>{folded}</details>"
        blocks += [f"### {title}", parts.pair(parts.formulas(steps, symbols), shown)]
    return "\n\n".join(blocks)


def methods(cls: type[Loss], names: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """The methods of the loss itself, and those of the base classes of many losses."""
    own, shared = [], []
    for name in names:
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        if owner is not None and owner is not Loss:
            (shared if owner in SHARED else own).append(vars(owner)[name])
    return own, shared


def checks(facts: Facts) -> str:
    """Sentences that are true of the example: the build evaluates each."""
    names = example(facts)
    lines = []
    for sentence, expression in facts.checks:
        if not eval(expression, names):
            raise AssertionError(f"{facts.loss!r}: {sentence} is wrong: {expression}")
        lines.append(f"- {sentence}\n\n    ```python\n    {expression}  # True\n    ```\n")
    numbers = parts.ran(
        f"import numpy as np\nfrom phitodeep.loss import {type(facts.loss).__name__}\n\n"
        f"loss = {facts.loss!r}\nP = np.array({facts.P})\nT = np.array({facts.T})\n"
        "print(loss.loss_func(P, T))\nprint(loss.loss_gradient(P, T).round(4))"
    )
    return f"{numbers}\n\n" + "\n".join(lines)


def example(facts: Facts) -> dict[str, Any]:
    P, T = np.array(facts.P), np.array(facts.T)
    L, dP = facts.loss.loss_func(P, T), facts.loss.loss_gradient(P, T)
    return {"np": np, "F": F, "loss": facts.loss, "P": P, "T": T, "L": L, "dP": dP}


def verdict(facts: Facts) -> str:
    report = check_gradients(facts.loss, np.array(facts.P), np.array(facts.T))
    return (
        "The build compared `loss_gradient` with central differences of `loss_func` "
        "([how](../api/testing.md)):\n\n"
        f"```text\n{report}\n```"
    )


def index() -> str:
    """All losses: what they are for, and a small picture of each."""
    cards = []
    for facts in FACTS:
        values = table(facts)
        name = type(facts.loss).__name__
        every = values["targets"][0]
        low, high = min(every["L"]), max(every["L"])
        box = Panel((4, 4, 192, 72), (values["x"][0], values["x"][-1]), (low, high or 1))
        curve = f'<path class="pd-L" d="{box.path(zip(values["x"], every["L"], strict=True))}"/>'
        drawn = svg(200, 80, f"The curve of {name}", curve)
        cards.append(parts.card(parts.link_of(name), drawn, name, escape(facts.question)))
    return (
        parts.WIDE
        + "# Losses\n\nA loss compares predictions with targets and returns one number, and the "
        "gradient of that number with respect to each prediction. This gradient is where "
        "backpropagation starts. Each loss has a page, with a picture that you can drag.\n\n"
        f'<div class="pd-cards wb-cards">{"".join(cards)}</div>\n'
    )
