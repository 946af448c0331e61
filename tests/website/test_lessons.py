"""The pages of the lessons: every cell runs, and each has an aha, a picture and an exercise."""

import re

import pytest
from matplotlib.figure import Figure

from phitodeep.teach import EXERCISES
from tests.conftest import brief
from tests.rows import LONG, long
from website import lessons
from website.lessons import AHA

pytestmark = [long, pytest.mark.xdist_group("lessons")]  # they run once; `make docs` runs them too

GROUND = "fill: #ffffff"
each = pytest.mark.parametrize("number", range(1, 14))


@pytest.fixture(scope="module", autouse=True)
def _short():
    """The lessons run once, with trainings of one epoch unless in a long run."""
    with pytest.MonkeyPatch.context() as patch:
        if not LONG:
            brief(patch)
        lessons.lessons()
        yield


def lesson_of(number):
    return lessons.lessons()[number - 1]


def page_of(number):
    ((title, pages),) = lessons.sections()
    assert not title
    return pages[number]  # the first is the index


def test_a_figure_is_the_same_svg_in_every_build():
    axes = Figure().subplots()
    axes.plot([1, 3, 2])
    axes.imshow([[1, 2], [3, 4]])
    assert lessons.svg(axes.figure) == lessons.svg(axes.figure)


@each
def test_a_page_has_its_parts_pictures_and_neighbours(number):
    lesson, page = lesson_of(number), page_of(number)
    text = str(page.content)
    assert text.startswith(f"# {number}. ")
    assert text.count('<div class="pd-aha"') == text.count("**Aha.**") == 1
    assert not AHA.search(text)
    assert len(lesson.aha.split()) < 40
    assert lesson.aha.count(". ") == 0, "one sentence"
    assert text.count("YOUR CODE HERE") == text.count("<summary>The solution</summary>") == 1
    assert "SOLUTION" not in text
    assert "{{" not in text
    assert "$$" not in text
    assert "<math" in text
    assert "```text\n" in text
    assert text.partition("## Questions")[2].count("<details") in (2, 3)
    assert re.search(rf"(\d+) of \1 points \({lesson.name}\)", text)
    shown = re.findall(r'<img src="\.\./([^"]+)" alt="([^"]+)"', text)
    assert [f"lessons/{path}" for path, _ in shown] == [p.path for p in lesson.pictures]
    assert shown
    made = {page.path: page.content for page in lessons.assets()}
    for picture in lesson.pictures:
        assert made[picture.path] == picture.content
        assert str(picture.content).rstrip().endswith("</svg>")
        # readable on light and dark pages: it follows the scheme, or has a ground of its own
        svg = str(picture.content)
        assert "prefers-color-scheme: dark" in svg or 'fill="#ffffff"' in svg or GROUND in svg
    made = {page.path for page in lessons.assets()} | {page_of(k).path for k in range(14)}
    linked = set(re.findall(r"\]\(([\w/]+\.\w+)\)", text))
    assert {f"lessons/{path}" for path in linked} <= made
    for other in {number - 1, number + 1} & set(range(1, 14)):
        assert f"{lesson_of(other).file}.md" in linked
    assert {f"{lesson.file}.ipynb", f"solutions/{lesson.file}.ipynb"} < linked
    assert re.findall(r'aria-current="step">(\d+)<', text) == [str(number)]


def test_the_index_is_the_way_from_the_first_to_the_last():
    text = str(page_of(0).content)
    assert [*EXERCISES] == [lesson.name for lesson in lessons.lessons()]
    places = [text.index(f'<a href="{lesson.file}/">') for lesson in lessons.lessons()]
    assert places == sorted(places)
    for lesson in lessons.lessons():
        assert lessons.coded(lesson.aha) in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("x, target = 2.0, 5.0", "raise RuntimeError('a cell')", "a cell"),
        ("dW[...] = dY[0] * X[0]", "dW[...] = dY[0]", "'neuron' is not right"),
    ],
)
def test_a_lesson_that_fails_ends_the_build(old, new, words, tmp_path, monkeypatch):
    source = lessons.LESSONS["neuron"].read_text(encoding="utf-8")
    assert source.count(old) == 1
    path = tmp_path / "01_neuron.py"
    path.write_text(source.replace(old, new), encoding="utf-8")
    monkeypatch.setitem(lessons.LESSONS, "neuron", path)
    with pytest.raises((RuntimeError, ValueError), match=words):
        lessons.ran("neuron")
