"""The API reference: every public name is on a page, and docstrings become correct Markdown."""

import contextlib
import importlib
import inspect
import re
import runpy
from functools import cache
from types import SimpleNamespace

import pytest

from phitodeep import AdamW, Dense, ScaledDotProductAttention
from website import api, options
from website.pages import ROOT

library = pytest.importorskip("markdown")  # which mkdocs brings: `make test-browser` has it

FACES = [
    "phitodeep", "phitodeep.layers", "phitodeep.loss", "phitodeep.model", "phitodeep.data",
    "phitodeep.optimization.optimizers", "phitodeep.optimization.schedules", "phitodeep.text",
    "phitodeep.loss.metrics", "phitodeep.functional", "phitodeep.inspect", "phitodeep.plots",
    "phitodeep.testing", "phitodeep.teach", "phitodeep.training", "phitodeep.model.architectures",
    "phitodeep.errors", "phitodeep.layers.initialization", "phitodeep.sklearn",
]  # fmt: skip
SHOWN = re.findall(
    r"^::: (\S+)$",
    "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def docstrings():
    pytest.importorskip("griffe")
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs/_docstrings.py")))


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_is_in_the_api(face):
    try:
        module = importlib.import_module(face)
    except ImportError:
        pytest.skip(f"{face} needs an extra")
    shown = objects_shown()
    missing = [
        name
        for name in getattr(module, "__all__", [])
        if callable(thing := getattr(module, name)) and id(thing) not in shown
    ]
    assert not missing


@cache
def objects_shown():
    """All objects that the API shows: those of its entries, and what its modules export."""
    found = []
    for path in SHOWN:
        try:
            thing = importlib.import_module(path)
        except ModuleNotFoundError:
            module, _, name = path.rpartition(".")
            with contextlib.suppress(ImportError):  # an extra is missing
                found.append(getattr(importlib.import_module(module), name))
            continue
        found += [v for v in vars(thing).values() if getattr(v, "__module__", "") == path]
        found += [getattr(thing, name) for name in getattr(thing, "__all__", ())]
    return {id(thing): thing for thing in found}


def html(docstrings, text):
    return library.markdown(
        docstrings.markdown(text), extensions=["def_list", "tables", "fenced_code"]
    )


def test_docstrings_become_html(docstrings):
    attention = inspect.getdoc(ScaledDotProductAttention) or ""
    found = html(docstrings, "Sum up.\n\nleft    the first\n        one\nright   another\nThe end.")
    assert found.count("<dt>") == 2
    assert "first\none</dd>" in found
    assert "<p>The end.</p>" in found  # no part of the column
    found = html(docstrings, attention)
    terms = re.findall(r"<dt><code>(\w+)</code></dt>", found)
    assert terms == ["causal", "rope", "dropout", "mask"]
    found = html(docstrings, "Read a * b.\n\n**Axes.** The model takes *x* as it is.")
    assert "<p>Read a * b.</p>" in found
    assert "<strong>Axes.</strong> The model takes *x* as" in found
    assert "<p>a &lt; b [c] | d_e_ * f</p>" in html(docstrings, "a < b [c] | d_e_ * f")
    found = docstrings.markdown(inspect.getdoc(Dense) or "")
    block = re.search(r"```text\n(.*?)\n```", found, re.DOTALL)
    assert block is not None
    assert block[1].splitlines() == [
        "dL/dW_ij = sum_rows(x_i dy_j)", "dL/db_j = sum_rows(dy_j)", "dL/dx_i = sum_j dy_j W_ij"
    ]  # fmt: skip
    short = docstrings.markdown("Sum.\n\n    a = b        c = d")
    assert "a = b        c = d" in short
    found = docstrings.entry(attention, ScaledDotProductAttention)
    assert "`causal`\n:" not in found
    assert "| `causal` | `False` | position t attends only" in found
    assert "`mask`\n:" in found


@pytest.mark.parametrize("cls", api.classes().values(), ids=lambda cls: cls.__name__)
def test_arguments_have_meanings_and_formulas_are_typeset(cls, docstrings):
    table = options.table(cls).splitlines()[2:]
    assert all(re.fullmatch(r"\| .+ \|.*\| .{9,} \|", row) for row in table)
    names = [n for n in inspect.signature(cls).parameters if n not in ("common", "options")]
    assert [name for name, _ in options.arguments(cls)][: len(names)] == names
    found = docstrings.entry(inspect.getdoc(cls) or "", cls)
    if cls.__name__ == "Lambda":  # its derivation is the reader's own
        assert "<math" not in found
        return
    typeset = re.search(r'<div class="pd-formulas.*', found)
    assert typeset is not None
    assert "<math" in typeset[0]
    unfolded = re.sub(r"(?s)<details.*?</details>", "", found)
    assert "```" not in unfolded
    assert not re.search(r":\n*(<div|\|)", unfolded)  # a sentence that leads to nothing


def test_settings_of_rules_are_the_arguments_of_their_constructor():
    griffe = pytest.importorskip("griffe")
    hook = griffe.load_extensions(str(ROOT / "docs/_docstrings.py"))
    path = ROOT / "phitodeep/optimization/rules.py"
    code = path.read_text(encoding="utf-8")
    rules = griffe.visit("phitodeep.optimization.rules", path, code, extensions=hook)
    for name in ("SGD", "Adam", "RMSProp"):
        hook.call("on_object", obj=rules[name], loader=griffe.GriffeLoader())
        given = rules[name].members["__init__"].parameters
        signature = inspect.signature(getattr(importlib.import_module(rules.path), name))
        names = [p.name for p in signature.parameters.values()]
        assert [p.name for p in given][1:] == names
    assert rules["SGD"].members["__init__"].parameters["momentum"].default == "0.0"


def test_arguments_have_no_spare_meanings_and_entries_are_linked():
    own = {f"{cls.__name__}.{name}" for cls in api.classes().values()
           for name, _ in options.arguments(cls)}  # fmt: skip
    assert set(options.ARGUMENTS) <= {name.partition(".")[2] for name in own}
    assert {f"{name}.{a}" for name, facts in options.FACTS.items() for a in facts.arguments} <= own
    assert dict(options.arguments(AdamW)) == {
        "alpha": "0.01", "beta1": "0.9", "beta2": "0.999", "eps": "1e-08", "weight_decay": "0.01"
    }  # fmt: skip
    heading = '<h3 id="phitodeep.loss.regression.Huber" class="doc">\n<code>Huber</code></h3>'
    method = '<h4 id="phitodeep.loss.regression.Huber.each">each</h4>'
    rule = '<h4 id="phitodeep.optimization.rules.adam">adam</h4>'
    pages = {"losses/huber.md", "optimizers/adam.md"}
    found = api.linked(heading + method + rule, pages)
    assert found.count("<a ") == 1
    assert f'{heading}<p><a href="../../losses/huber/">' in found
    assert api.linked(heading, set()) == heading
