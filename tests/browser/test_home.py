"""The picture of the home page: it plays, stops, and shows where a cell of dW came from."""

import re

import pytest

from tests.browser.conftest import axe
from tests.browser.explorer import number
from tests.rows import few

STILL = 1500  # milliseconds; no stage of the wave is longer


def stage(page):
    return page.locator(".pd-home").get_attribute("data-stage")


def wait_for_a_change(page):
    was = stage(page)
    page.wait_for_function(
        "was => document.querySelector('.pd-home').dataset.stage != was", arg=was, timeout=8000
    )


def assert_still(page):
    was = stage(page)
    page.wait_for_timeout(STILL)
    assert stage(page) == was


def cell(page, name, index):
    return page.locator(f'[data-name="{name}"] .step-cells > *').nth(index)


def lit(page, name):
    return page.eval_on_selector_all(
        f'[data-name="{name}"] .step-cells > *',
        "all => all.flatMap((each, k) => each.classList.contains('step-lit') ? [k] : [])",
    )


def check_explained(page, layer, i, j, inputs, outputs):
    """The columns of the cell are lit, and the shown terms are the numbers and sum of the cell."""
    names = {name: f"{name}{layer}" for name in ("X", "W", "Y", "dW", "dY")}
    assert lit(page, names["dW"]) == [i * outputs + j]
    assert lit(page, names["X"]) == [n * inputs + i for n in range(8)]
    assert lit(page, names["dY"]) == [n * outputs + j for n in range(8)]
    data = page.evaluate("JSON.parse(document.querySelector('.pd-home script').textContent)")
    X, dY, dW = (data["arrays"][names[name]] for name in ("X", "dY", "dW"))
    said = page.locator(".step-said").inner_text()
    shown = re.match(r"dW.\[(\d), (\d)\] = (\u2212?[\d.]+)\. ", said)
    assert shown
    assert (int(shown[1]), int(shown[2])) == (i, j)
    assert number(shown[3]) == pytest.approx(dW[i][j], abs=5.1e-5)
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".step-terms tr").all()]
    terms = {int(row[0]): number(row[3]) for row in rows[1:4]}
    for n, value in terms.items():
        assert value == pytest.approx(X[n][i] * dY[n][j], abs=5.1e-5)
    largest = sorted((abs(X[n][i] * dY[n][j]) for n in range(8)), reverse=True)[:3]
    assert [abs(value) for value in terms.values()] == pytest.approx(largest, abs=5.1e-5)
    total = sum(terms.values()) + number(rows[4][3])
    assert total == pytest.approx(number(shown[3]), abs=5 * 5.1e-5)
    (line,) = page.locator(".step-source .step-lit").all_inner_texts()
    assert 'grad_array("W")' in line
    assert page.locator(".step-line code").inner_text() == line.strip()
    assert page.locator(".step-threads path").count() == 6


@pytest.mark.parametrize("size", few(["desktop", "phone"], 1))
def test_it_plays_and_pauses(site_page, size):
    page = site_page(size=size)
    for _ in range(3):
        wait_for_a_change(page)
    page.get_by_role("button", name="Pause").click()
    assert_still(page)
    page.get_by_role("button", name="Play", exact=True).click()
    wait_for_a_change(page)


def test_the_loss_falls_at_the_end_of_the_wave_and_reduced_motion_shows_a_still(site_page):
    page = site_page()
    page.wait_for_function("document.querySelector('.pd-home').dataset.stage == 0", timeout=8000)
    after = page.locator(".step-after")
    assert after.evaluate("element => getComputedStyle(element).opacity") != "1"
    page.wait_for_function("document.querySelector('.pd-home').dataset.stage == 18", timeout=8000)
    assert after.evaluate("element => getComputedStyle(element).opacity") == "1"
    page = site_page(still=True)
    page.wait_for_timeout(2500)
    assert_still(page)
    assert page.locator(".step-later").count() == 0
    cell(page, "dW2", 13).hover()
    check_explained(page, 2, 3, 1, 4, 4)
    page.get_by_role("button", name="Play", exact=True).click()
    wait_for_a_change(page)


def test_a_cell_under_the_mouse_is_explained(site_page):
    page = site_page()
    wait_for_a_change(page)
    cell(page, "dW2", 6).hover()
    check_explained(page, 2, 1, 2, 4, 4)
    assert_still(page)
    cell(page, "dW1", 7).hover()
    check_explained(page, 1, 1, 3, 2, 4)
    page.mouse.move(5, 5)
    wait_for_a_change(page)
    cell(page, "dW3", 2).hover()
    check_explained(page, 3, 2, 0, 4, 1)
    page.keyboard.press("Escape")  # it goes on, under the mouse too
    wait_for_a_change(page)


def test_the_keyboard_explains_a_cell(site_page):
    page = site_page()
    page.locator(".step-play").focus()
    page.keyboard.press("Tab")
    check_explained(page, 1, 0, 0, 2, 4)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")  # at the edge: it stays
    check_explained(page, 1, 1, 1, 2, 4)
    assert_still(page)
    page.keyboard.press("Tab")
    check_explained(page, 2, 0, 0, 4, 4)
    page.keyboard.press("Shift+Tab")
    check_explained(page, 1, 1, 1, 2, 4)  # where it had been left
    page.keyboard.press("Escape")
    wait_for_a_change(page)


def test_a_tap_explains_a_cell_on_a_phone(site_page):
    page = site_page(size="phone")
    for name, index, explained in (("dW1", 2, (1, 0, 2, 2, 4)), ("dW3", 3, (3, 3, 0, 4, 1))):
        cell(page, name, index).tap()
        check_explained(page, *explained)
        box = cell(page, name, index).bounding_box()
        sheet = page.locator(".step-why").bounding_box()
        assert box
        assert sheet
        assert box["y"] + box["height"] <= sheet["y"], "the explanation covers the cell"
        assert sheet["y"] + sheet["height"] <= 844
    assert not axe(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert_still(page)
    page.locator("h1").tap()
    wait_for_a_change(page)


def test_screen_readers_hear_the_chosen_cell_only_and_without_javascript_there_is_a_picture(
    site_page, site
):
    page = site_page()
    assert page.get_by_role("figure", name="One step of training").count() == 1
    live = page.locator(".pd-home [aria-live]")
    assert live.count() == 1
    before = live.inner_text()
    wait_for_a_change(page)
    wait_for_a_change(page)
    assert live.inner_text() == before
    cell(page, "dW1", 0).hover()
    assert live.inner_text() != before
    browser = site_page("decisions/").context.browser
    assert browser
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site)
    assert page.locator("noscript img").is_visible()
    assert not page.locator(".step-lanes").is_visible()
    context.close()


def test_nothing_jumps_while_the_page_loads_and_the_index_of_the_search_waits(site_page):
    for size in ("desktop", "phone"):
        page = site_page(size=size)
        page.wait_for_timeout(500)
        moved = page.evaluate(
            """new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()
            .reduce((sum, entry) => sum + entry.value, 0)))
            .observe({type: "layout-shift", buffered: true}) ?? setTimeout(() => done(0), 500))"""
        )
        assert moved < 0.03
    page = site_page("decisions/")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.wait_for_timeout(1000)
    assert not [address for address in asked if "search_index" in address]
    page.keyboard.press("/")
    page.keyboard.type("orthogonal")
    page.locator(".md-search-result__item").first.wait_for()
    assert [address for address in asked if "search_index" in address]
