"""The playground in Chromium, with Pyodide served here: no other host is asked for anything."""

import json
import re
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler

import pytest
from playwright.sync_api import expect

from phitodeep import derive
from tests.browser.conftest import ROOT, axe, opened, served
from tests.rows import few, long
from website.playground.build import SIZES, VERSION, presets
from website.playground.session.game import Game

NPM, WHEELS = ROOT / "node_modules/pyodide", ROOT / ".venv/pyodide"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
FILES += ("pyodide-lock.json",)
LOADED = 180_000  # milliseconds, on a busy machine
LOG = """\
class Log(Layer):
    def forward(self, X):
        self.save_for_backward(X=X)
        return np.log(X)

    def backward(self, dY):
        return dY / self.saved("X")

    def steps(self):
        return Derivation([Let("Y", "np.log(X)")], [Let("dX", "dY / X")])


"""
SWISH = '''\
class Swish(Layer):
    """Y = X sigmoid(X)"""

    def forward(self, X):
        self.save_for_backward(X=X)
        return X / (1 + np.exp(-X))

    def backward(self, dY):
        X = self.saved("X")
        s = 1 / (1 + np.exp(-X))
        return dY * (s + X * s * (1 - s))


'''


class Files(SimpleHTTPRequestHandler):
    """Serves Pyodide to another port, as its CDN does."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self):
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def pyodide(tmp_path_factory):
    """The address of Pyodide and its NumPy wheel."""
    lock = NPM / "pyodide-lock.json"
    assert lock.exists(), "Pyodide is missing: run `make test-browser`."
    name = json.loads(lock.read_text("utf-8"))["packages"]["numpy"]["file_name"]
    assert (WHEELS / name).exists(), "NumPy's wheel is missing: run `make test-browser`."
    folder = tmp_path_factory.mktemp("pyodide")
    for path in [*NPM.iterdir(), WHEELS / name]:
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())
    with served(folder, Files) as address:
        yield address


@pytest.fixture
def play(browser, site, pyodide):
    """Open the playground; a hash restores a state. Only these two servers may be asked."""
    with ExitStack() as stack:

        def open_page(hash_="", base=pyodide, path="playground", **options):
            address = f"{site}{path}/?pyodide={base}{hash_}"
            page = stack.enter_context(opened(browser, address, allowed=(site, pyodide), **options))
            page.wait_for_selector("#play[data-ready]")
            return page

        yield open_page


@pytest.fixture
def live(play):
    """A page that has loaded Python, and has taken one step."""
    page = play()
    act(page, "b")
    wait_live(page)
    return page


def wait_live(page):
    page.wait_for_selector("#play.live", timeout=LOADED)
    page.wait_for_function("!document.querySelector('#play').matches('.stale')", timeout=LOADED)
    expect(page.locator(".stages")).to_be_hidden(timeout=LOADED)


def act(page, name):
    page.locator(f"[data-act={name}]").click()


def fact(page, name):
    return float(page.locator(".facts").get_attribute(f"data-{name}"))


def until(page, name, least):
    """Wait until a fact, such as the score, is more than this."""
    page.wait_for_function(
        f"Number(document.querySelector('.facts').dataset.{name}) > {least}", timeout=LOADED
    )


def step_is(page, step):
    expect(page.locator(".facts")).to_have_attribute("data-step", f"{step:.0f}", timeout=LOADED)


def write(page, code):
    """Type a program, and run it at once."""
    page.locator(".editor textarea").fill(code)
    page.locator(".editor textarea").press("Control+Enter")


def says(page, words, kind):
    expect(page.locator(f".code .message.{kind}")).to_contain_text(words, timeout=LOADED)


def test_a_recorded_run_answers_before_python_is_there(play):
    page = play()
    expect(page.locator(".status")).to_contain_text("recorded run")
    expect(page.locator(".facts")).to_contain_text("step 24 ")
    before = page.locator(".inspector .total").inner_text()
    expect(page.locator(".inspector li")).to_have_count(6)
    assert page.locator(".inspector math").count() == 1
    page.locator(".timeline").fill("0")
    expect(page.locator(".facts")).to_contain_text("step 0 ")
    expect(page.locator(".inspector .total")).not_to_have_text(before)
    page.locator('canvas[aria-label^="the gradient of W of layer 2"]').press("ArrowRight")
    expect(page.locator(".inspector .cell")).to_contain_text("[0, 1] of layer 2")


def test_training_steps_and_restores(play):
    page = play()
    recorded = fact(page, "score")
    act(page, "run")
    act(page, "run")  # while it loads, nothing can be paused
    expect(page.locator(".stages")).to_contain_text(
        re.compile(r"Python, [1-9][\d.]* of 13\.5 MB"), timeout=LOADED
    )
    wait_live(page)
    until(page, "score", 0.95)
    act(page, "run")
    expect(page.locator("[data-act=run]")).to_have_text("Run")
    assert recorded < 0.95
    step = fact(page, "step")
    act(page, "b")
    step_is(page, step + 1)
    expect(page.locator(".inspector li")).to_have_count(6)
    assert "\N{MULTIPLICATION SIGN}" in page.locator(".inspector ol").inner_text()
    assert page.locator(".ratio .number").first.inner_text() != "\N{EN DASH}"
    act(page, "s")
    step_is(page, step + 2)
    expect(page.locator(".inspector li")).to_have_count(1)  # the only sample's term
    act(page, "e")
    until(page, "step", step + 2)
    expect(page.locator(".inspector .formula math")).to_have_count(1)
    page.wait_for_function("location.hash.includes('e1')")
    facts, link = page.locator(".facts").inner_text(), page.evaluate("location.hash")
    again = play(link)
    expect(again.locator(".status")).to_contain_text("when you press Run")
    assert again.locator("#play.live").count() == 0
    act(again, "diagnose")  # loads, and replays the steps
    wait_live(again)
    expect(again.locator(".report")).to_contain_text("checks", timeout=LOADED)
    expect(again.locator(".facts")).to_have_text(facts, timeout=LOADED)


def test_an_edited_layer_is_checked_and_a_mistake_is_marked(live):
    page, code = live, presets()["moons"]
    write(page, SWISH + code.replace(".tanh()", ".add(Swish())", 1))
    says(page, "every gradient agrees", "good")
    step_is(page, 0)  # another model
    broken = (SWISH + code).replace("dY * (s + X * s * (1 - s))", "dY * s")
    write(page, broken.replace(".tanh()", ".add(Swish())", 1))
    says(page, "wrong gradients", "error")
    write(page, code.replace(".tanh()", ".tanh(", 1))
    says(page, "line 3: SyntaxError", "error")
    assert page.locator(".lines .wrong").inner_text().strip() == "3"
    act(page, "b")  # the last model is kept
    step_is(page, 1)
    write(page, code.replace(".dense(8)", ".dense(512)", 1))
    says(page, "64 units at most", "error")
    page.locator("#play-data").select_option("circles")
    page.locator("#play-units").fill("12")
    says(page, "every gradient agrees", "good")
    assert ".dense(12)" in page.locator(".editor textarea").input_value()
    assert "circles(" in page.locator(".editor textarea").input_value()


@long
def test_nan_is_frozen_and_located(live):
    write(live, LOG + presets()["moons"].replace(".tanh()", ".relu().add(Log())", 1))
    act(live, "run")
    expect(live.locator(".bad")).to_contain_text("layer 2, Log()", timeout=LOADED)
    assert "Y = log(X)" in live.locator(".bad").inner_text()
    expect(live.locator(".lanes .alarm h3")).to_contain_text("Log")
    assert live.locator(".tile.spoilt").count() > 0
    expect(live.locator("[data-act=run]")).to_have_text("Run")


@long
def test_a_mutant_is_dealt_and_its_repair_accepted(live):
    live.get_by_role("button", name="Deal a mutant").click()
    game = live.locator(".game")
    expect(game.locator(".unit")).to_have_count(6, timeout=LOADED)
    truth = Game(int(game.get_attribute("data-seed")))
    wrong = next(str(k) for k in range(6) if str(k) != truth.path)
    find = "It is this one"
    game.get_by_label(f"Layer {wrong},").get_by_role("button", name=find).click()
    expect(game.locator(".message.error")).to_contain_text("It is not layer")
    game.get_by_label(f"Layer {truth.path},").get_by_role("button", name=find).click()
    other = next(words for words in truth.choices if words != truth.words)
    game.get_by_role("button", name=other.replace("`", ""), exact=True).click()
    expect(game.locator(".message.error")).to_contain_text("No")
    game.get_by_role("button", name=truth.words.replace("`", ""), exact=True).click()
    lines = live.locator("#play-repair")
    expect(lines).to_have_value(truth.shown)
    game.get_by_role("button", name="Ask the checker").click()
    expect(game.locator(".message.error")).to_contain_text("wrong gradients", timeout=LOADED)
    lines.fill(truth.text)
    game.get_by_role("button", name="Ask the checker").click()
    expect(game.locator(".message.good")).to_contain_text("every gradient is right", timeout=LOADED)


@long
def test_a_loop_without_an_end_can_be_stopped(live):
    act(live, "reset")
    step_is(live, 0)
    act(live, "b")
    step_is(live, 1)
    write(live, "while True:\n    pass\n")
    expect(live.locator(".slow")).to_be_visible(timeout=LOADED)
    act(live, "stop")
    expect(live.locator(".status")).to_contain_text("last state is back", timeout=LOADED)
    says(live, "had not ended", "error")
    assert fact(live, "step") == 1
    act(live, "b")  # the last model is kept
    step_is(live, 2)
    write(live, presets()["xor"])
    says(live, "every gradient agrees", "good")


@long
def test_every_data_set_trains(live):
    live.locator("#play-stop-steps").fill("150")
    for name in presets():
        live.locator("#play-data").select_option(name)
        if name == "mine":  # with the mouse; a table has a test of its own
            for x, y in ((60, 60), (90, 80), (70, 90)):
                live.locator(".picture canvas").click(position={"x": x, "y": y})
            live.get_by_label("class 1").check()
            for x, y in ((220, 220), (240, 200), (210, 240)):
                live.locator(".picture canvas").click(position={"x": x, "y": y})
        step_is(live, 0)
        says(live, "every gradient agrees", "good")
        picture = live.locator(".picture canvas")
        if name == "digits":
            before = int(re.findall("misreads (.*) of", picture.get_attribute("aria-label"))[0])
        act(live, "run")
        step_is(live, 150)
        assert fact(live, "score") > (0.15 if name == "names" else 0.6), name
        if name == "digits":
            after = int(re.findall("misreads (.*) of", picture.get_attribute("aria-label"))[0])
            assert before > 32 > 8 > after


@long
def test_an_edit_that_leaves_the_layers_alone_keeps_the_weights(live):
    page, code = live, presets()["moons"]
    act(page, "run")
    until(page, "score", 0.95)
    write(page, code.replace(".tanh()", ".tanh(", 1))
    says(page, "SyntaxError", "error")
    step = fact(page, "step")
    until(page, "step", step)
    write(page, code)
    page.locator("#play-alpha").fill("-3")
    page.locator("#play-noise").fill("0.16")
    says(page, "every gradient agrees", "good")
    expect(page.locator(".status")).to_contain_text("the same weights")
    act(page, "run")
    assert fact(page, "step") > step
    assert fact(page, "score") > 0.9
    page.locator("#play-units").fill("5")
    expect(page.locator(".status")).to_contain_text("again at step 0")
    step_is(page, 0)


@long
def test_a_table_gets_the_model_that_it_needs(live):
    live.locator("#play-data").select_option("mine")
    live.locator("#play-table").fill("a,b,c,kind\n1,2,3,red\n2,x,1,blue")
    act(live, "usetable")
    says(live, "row 2", "error")
    live.locator("#play-table").fill("a,b,c,kind\n1,2,3,red\n2,0,1,blue\n0,1,1,green\n")
    act(live, "usetable")
    editor = live.locator(".editor textarea")
    expect(editor).to_have_value(re.compile(r"SequentialBuilder\(3"), timeout=LOADED)
    says(live, "every gradient agrees", "good")
    live.locator("#play-data").select_option("moons")
    expect(live.locator(".facts")).not_to_contain_text("33")
    says(live, "every gradient agrees", "good")


@long
def test_a_touch_does_what_a_pointer_does(play):
    page = play(size="phone")
    tile = page.locator('canvas[aria-label^="the gradient of W of layer 2"]')
    tile.scroll_into_view_if_needed()
    box = tile.bounding_box()
    page.touchscreen.tap(box["x"] + 0.9 * box["width"], box["y"] + 0.9 * box["height"])
    expect(page.locator(".inspector .cell")).to_contain_text("[7, 7] of layer 2")
    page.get_by_label("one row up").tap()
    expect(page.locator(".inspector .cell")).to_contain_text("[6, 7] of layer 2")
    timeline = page.locator(".timeline")
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    page.touchscreen.tap(box["x"] + 4, box["y"] + box["height"] / 2)
    expect(page.locator(".facts")).to_contain_text("step 0 ")
    page.locator("#play-data").select_option("mine")
    canvas = page.locator(".picture canvas")
    for x, y in ((60, 60), (90, 80)):
        canvas.tap(position={"x": x, "y": y})
    page.get_by_label("class 1").tap()
    for x, y in ((220, 220), (240, 200)):
        canvas.tap(position={"x": x, "y": y})
    page.locator("[data-act=run]").tap()
    wait_live(page)
    until(page, "score", 0.99)
    step = fact(page, "step")
    canvas.tap(position={"x": 200, "y": 240})  # another point: training goes on
    says(page, "every gradient agrees", "good")
    until(page, "step", step)
    act(page, "run")


def cut_off(page):
    """Let Pyodide not arrive."""
    headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript"}
    cut = {"body": "throw new Error('cut off')", "headers": headers}
    page.route("**/pyodide.mjs", lambda route: route.fulfill(**cut))


def test_without_a_download_the_recorded_run_stays_and_can_be_tried_again(play):
    page = play()
    cut_off(page)
    act(page, "run")
    expect(page.locator(".slow")).to_contain_text("could not be loaded: cut off")
    page.unroute("**/pyodide.mjs")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".slow")).to_be_hidden()
    expect(page.locator(".stages")).to_contain_text("Python, ")
    page = play("#code=%25%25&step=b3")
    expect(page.locator(".status")).to_contain_text("cannot be read")
    page = play()
    page.evaluate("delete globalThis.WebAssembly")
    act(page, "run")
    expect(page.locator(".slow")).to_contain_text("cannot run WebAssembly")
    expect(page.locator(".status")).to_contain_text("The recorded run stays in use")
    page.locator(".timeline").fill("3")
    expect(page.locator(".facts")).to_contain_text("step 4 ")


MODES = [("phone", "light"), ("desktop", "dark"), ("phone", "dark"), ("desktop", "light")]


@pytest.mark.parametrize(("size", "scheme"), few(MODES, 2))
def test_no_barriers(play, size, scheme):
    for path in ("playground", "formula"):
        page = play(path=path, size=size, scheme=scheme)
        assert axe(page, "#play") == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# --- the page of formulas ------------------------------------------------------------------------


def test_an_example_is_there_at_once_and_a_formula_of_ones_own_loads_python(play):
    page = play(path="formula")
    answer, given, status = map(page.locator, (".answer", "#formula-given", ".status"))
    page.locator("#formula-example").select_option("RMSNorm")
    expect(answer).to_contain_text("class RMSNorm(Layer)")
    expect(given).to_have_value("X=(4, 5), gamma=(5,), eps=1e-5")
    text = "u = a * X\nY = X * np.tanh(u)"
    write(page, text)
    expect(status).to_contain_text("Derive loads Python (17 MB")  # none was loaded so far
    expect(answer).to_have_class("answer stale")
    given.fill("X=(4, 5), a=(5,)")
    page.locator("#formula-name").fill("TanhGate")
    cut_off(page)
    act(page, "derive")
    expect(page.locator(".slow")).to_contain_text("could not be loaded: cut off")
    page.unroute("**/pyodide.mjs")
    page.get_by_role("button", name="Try again").click()
    expect(answer).to_contain_text("TanhGate(): worst errors of each gradient", timeout=LOADED)
    expect(answer).to_have_class("answer")
    expect(page.locator(".stages")).to_be_hidden()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download tanh_gate.py").click()
    assert download.value.suggested_filename == "tanh_gate.py"
    source = download.value.path().read_text("utf-8")
    assert source == derive(text, X=(4, 5), a=(5,), name="TanhGate").source
    # from now on, the page follows: an error marks its line, and the last answer stays, pale
    write(page, "A = X * 2\nY = np.sinc(A)")
    says(page, "line 2: 'Y = np.sinc(A)': no derivative is known for np.sinc", "error")
    expect(page.locator(".lines .wrong")).to_have_text("2\n")
    expect(answer).to_have_class("answer stale")
    given.fill("4, 5")
    says(page, "write the shapes as in X=(4, 5)", "error")
    page.locator("#formula-example").select_option("Softmax")
    expect(page.locator(".message")).to_have_text("")
    write(page, "Y = np.exp(X)")
    expect(answer).to_contain_text("Y = np.exp(X)", timeout=LOADED)
    assert axe(page, "#play") == []


@long
def test_no_barriers_while_it_is_used(live):
    live.get_by_role("button", name="Deal a mutant").click()
    expect(live.locator(".game .unit")).to_have_count(6, timeout=LOADED)
    wrong = LOG + presets()["moons"].replace(".tanh()", ".relu().add(Log())", 1)
    states = {"digits": presets()["digits"], "nan": wrong, "error": "X = (", "names": None}
    for state, code in states.items():
        write(live, code or presets()[state])
        says(live, "", "error" if state in ("nan", "error") else "good")
        if state != "error":
            act(live, "b")
        if state == "nan":
            expect(live.locator(".bad")).to_be_visible()
        for width in (1280, 390):
            live.set_viewport_size({"width": width, "height": 800})
            for scheme in ("default", "slate"):
                live.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
                live.wait_for_timeout(300)  # the colours change slowly
                assert axe(live, "#play") == [], (state, width, scheme)
                assert live.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_versions_agree():
    package = json.loads((ROOT / "package.json").read_text("utf-8"))
    assert package["devDependencies"]["pyodide"] == VERSION
    assert json.loads((NPM / "package.json").read_text("utf-8"))["version"] == VERSION
    python = sum(p.stat().st_size for p in map(NPM.joinpath, FILES))
    assert round(python / 1e6, 1) == SIZES["Python"]
    assert round(next(WHEELS.glob("numpy*")).stat().st_size / 1e6, 1) == SIZES["NumPy"]
