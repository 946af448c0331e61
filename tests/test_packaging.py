"""What is published says the same everywhere: metadata, README, changelog, recipe, workflows.

`make dist` builds the sdist and the wheel, and looks into both.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import phitodeep
from tests import test_docs
from tests.rows import long
from tools import check_extras as tool
from tools.check_extras import FEATURES, HEAVY, OURS, features, pins, problems, refused, works

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SITE, SOURCE = PROJECT["urls"]["Documentation"], PROJECT["urls"]["Source"]
README = (ROOT / "README.md").read_text("utf-8")
PROSE = re.sub(r"^```.*?^```$|`[^`]*`", "", README, flags=re.MULTILINE | re.DOTALL)
LINKS = dict(re.findall(r"^\[(.+)\]: (\S+)$", PROSE, re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_every_file_names_the_same_version_and_addresses():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    newest = re.search(r"^## \[(\d\S*)\] - (\S+)$", changelog(), re.MULTILINE)
    assert newest is not None
    assert phitodeep.__version__ == PROJECT["version"] == newest[1] == citation["version"]
    assert citation["date-released"] == newest[2]
    assert (citation["url"], citation["repository-code"]) == (SITE, SOURCE)
    site_url = f"\nsite_url: !ENV [READTHEDOCS_CANONICAL_URL, {SITE}]\n"
    assert site_url in (ROOT / "mkdocs.yml").read_text("utf-8")
    for path in [ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *ROOT.glob(".github/**/*.yml")]:
        found = re.findall(r"https://(?:github\.com|\w+\.github\.io)/\S+", path.read_text("utf-8"))
        assert [address for address in found if not address.startswith((SITE, SOURCE))] == []


# --- README ----------------------------------------------------------------------------------


def test_the_readme_begins_with_a_picture_and_uses_links_that_a_package_page_has():
    inline = re.findall(r"\]\(([^)]+)\)|(?:src|href|srcset)=.([^\"']+)", PROSE)
    targets = [one or other for one, other in inline] + list(LINKS.values())
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith("https://")] == []
    text = re.sub(r"^\[.*\]: .*$", "", PROSE, flags=re.MULTILINE)
    used = {name.lower() for name in re.findall(r"\[([^][]+)\](?!\()", text)}
    used -= {name.lower() for name in re.findall(r"!\[([^][]+)\]\[", text)}  # alternative text
    assert used == {name.lower() for name in LINKS}
    assert re.match(r"# phitodeep\n\n[^\n]+\n\n\[!\[[^\]]{40,}\]\[picture\]\]\[site\]\n", README)


def test_a_link_of_the_readme_leads_to_a_file_of_the_source():
    for address in LINKS.values():
        if address.startswith(SITE):
            wanted = ROOT / "docs" / re.sub("/$", ".md", address.removeprefix(SITE))
        else:
            wanted = ROOT / re.sub(rf"^{SOURCE}/(blob|tree)/main/", "", address)
        made = re.findall(r": ([\w-]+/)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
        assert wanted.exists() or address.removeprefix(SITE) in made  # by the site's build


# --- the changelog: https://keepachangelog.com/en/1.1.0/ -----------------------------------------

KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def changelog():
    return (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_changelog_keeps_its_form_and_links_to_changes():
    unreleased, *versions = re.findall(r"^## (.*)$", changelog(), re.MULTILINE)
    assert unreleased == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - 20\d\d-\d\d-\d\d", v) for v in versions)
    for part in re.split(r"^## ", changelog(), flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", part, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]
    names = re.findall(r"^## \[([^]]+)\]", changelog(), re.MULTILINE)
    links = re.findall(rf"^\[(.+)\]: {SOURCE}/compare/v\S+\.\.\.(\S+)$", changelog(), re.MULTILINE)
    assert links == [(n, "main" if n == "Unreleased" else f"v{n}") for n in names]


# --- workflows: actionlint checks their form, and these are our own rules ------------------------


def test_workflows_and_the_recipe_say_what_the_project_says():
    assert {path.stem for path in WORKFLOWS} == {"docs", "mutants", "release", "tests"}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    wanted = [one.partition(";")[0] for one in PROJECT["dependencies"]]  # conda knows no browser
    python, *others = recipe["requirements"]["run"]
    assert sorted(one.replace(" ", "") for one in others) == sorted(wanted)
    assert python == "python >=${{ python_min }}"
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["about"]["license_file"] == PROJECT["license-files"]
    assert recipe["about"]["license"] == PROJECT["license"]
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["homepage"] == recipe["about"]["documentation"] == SITE
    assert recipe["about"]["repository"] == SOURCE


def steps(workflow):
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_permissions_ends_and_runs_targets_of_the_makefile(path):
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] < 360
        if job.get("permissions"):  # a job that publishes runs nothing of the repository
            assert not any("run" in step for step in job["steps"])
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step["uses"])
            assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for target in re.findall(r"run: make (\S+)", path.read_text("utf-8")):
        assert target in targets


# --- extras ---------------------------------------------------------------------------------------


LIBRARIES = {  # the library without which a feature is refused
    "data": "datasets",
    "plot": "matplotlib",
    "lbfgs": "scipy",
    "fast": "numba",
    "tensorboard": "tensorboardX",
    "torch": "torch",
    "onnx": "onnx",
    "sklearn": "sklearn",
    "hub": "tokenizers",
    "mpi": "mpi4py",
}


def test_every_extra_has_a_check(capsys):
    assert problems(features()) == []
    assert LIBRARIES.keys() == FEATURES.keys()
    assert problems([*features(), "new"]) == ["the extra new has no check"]
    assert problems(features()[1:]) == [f"{features()[0]} is not an extra"]
    assert tool.main(["new"]) == 1
    assert capsys.readouterr().out.startswith("no such extra: new; there are data, plot")


def test_tests_install_every_feature_but_pinned_heavy_ones():
    extras = PROJECT["optional-dependencies"]
    assert OURS <= extras.keys()
    light = [extra for extra in features() if extra not in HEAVY]
    assert f"phitodeep[{','.join(light)}]" in extras["test"]
    assert set(features()) > HEAVY
    files = tool.skipped_by_make_test()
    for name in ("torch/test_to_torch", "onnx/test_export_runtime", "hub/test_parity"):
        assert f"tests/exchange/{name}.py" in files
    assert [pin.split("==")[0] for pin in pins()] == ["torch"]
    assert tool.wanted_by_tests()[0].startswith("dask")


def test_pages_of_features_have_blocks_that_tests_run():
    test = test_docs.test_blocks_run_and_print_what_the_page_shows.__name__
    for page in [feature.page for feature in FEATURES.values() if feature.page]:
        assert test_docs.BLOCK.search((ROOT / page).read_text(encoding="utf-8"))
        assert tool.blocks_of(page) == f"tests/test_docs.py::{test}[{page}]"


@long  # and `.ci/run` runs them without any of the libraries, and with all
@pytest.mark.parametrize("extra", FEATURES)
def test_the_code_of_each_check_runs(extra, tmp_path):
    """It works with the library, and is refused with an error that names the extra without it."""
    if extra in {*HEAVY, "fast"}:  # the other tests also run without Numba
        pytest.importorskip(LIBRARIES[extra])
    missing = f"import sys; sys.modules[{LIBRARIES[extra]!r}] = None\n"
    for code in (works(extra), missing + refused(extra), missing + works(extra)):
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        if code == missing + works(extra):
            assert f"phitodeep[{extra}]" in done.stderr.splitlines()[-1]
        else:
            assert done.returncode == 0, done.stderr


def test_a_feature_that_works_without_its_extra_fails_the_check(monkeypatch):
    monkeypatch.setitem(FEATURES, "plot", tool.Feature("pass"))
    command = [sys.executable, "-c", refused("plot")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "it works without the extra" in done.stderr
