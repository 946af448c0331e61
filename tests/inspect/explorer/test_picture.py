"""The picture of a step: well-formed, small, made of the trace's own numbers, for every layer."""

import base64
import re
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace

import numpy as np
import pytest

from phitodeep import Sequential, SequentialBuilder
from phitodeep import layers as L
from phitodeep.inspect.explorer.picture import apart, picture, slots
from phitodeep.inspect.explorer.ringed_cell import ring
from phitodeep.inspect.explorer.source import method_with
from phitodeep.inspect.explorer.tiles import SIDE, found, number, plane, tile
from phitodeep.inspect.svg import fit, width_of, wrapped
from phitodeep.layers import Layer
from phitodeep.loss import CategoricalCrossEntropy, MeanSquaredError
from phitodeep.optimization.lbfgs import LBFGS
from phitodeep.optimization.optimizers import SGD
from phitodeep.testing.examples import data, made
from tests.conftest import assert_same
from tests.rows import KINDS, over

SVG = "{http://www.w3.org/2000/svg}"
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 3)), RNG.standard_normal((6, 2))


def mlp(*more, **options):
    options = {"seed": 1, "dtype": "float64", "alpha": 0.1, "optimizer": SGD()} | options
    return Sequential(L.Dense(3, 4), L.Tanh(), *more, L.Dense(4, 2), **options)


def drawn(trace):
    return ET.fromstring(picture(trace))


def titles(tree):
    """(key, index, number) of every cell with a title."""
    for title in tree.iter(f"{SVG}title"):
        match = re.fullmatch(r"([\w.]+)\[([\d, ]*)\] = (\S+)", title.text or "")
        if match:
            yield match[1], tuple(map(int, match[2].split(","))), match[3]


def told(trace):
    found = ring(trace)
    assert found
    return found


def texts(tree):
    return "\n".join("".join(node.itertext()) for node in tree.iter(f"{SVG}text"))


def test_every_cell_is_the_number_of_the_trace_in_one_file_that_loads_nothing():
    trace = mlp().trace(X, Y)
    found = list(titles(drawn(trace)))
    keys = {key for key, *_ in found}
    paths = [f"{path}.{name}" for path in "012" for name in ("Y", "dY")]
    assert keys == {"X", "0.dX", *paths, "0.W", "0.dW", "2.W", "2.dW"}
    assert len(found) == 2 * (18 + 6 * 4 + 6 * 4 + 6 * 2) + 2 * (3 * 4 + 4 * 2)
    for key, index, shown in found:
        assert number(trace["0.X" if key == "X" else key].array[index]) == shown, (key, index)
    trace = mlp().trace(X, Y)
    shown = picture(trace)
    tree = ET.fromstring(shown)
    assert {node.tag.removeprefix(SVG) for node in tree.iter()} <= {
        *("svg", "title", "desc", "style", "defs", "marker", "path", "g", "rect", "text"),
        *("tspan", "circle", "image"),
    }
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in shown.replace("url(#k)", "")
    assert "prefers-reduced-motion: reduce" in shown
    assert "prefers-color-scheme: dark" in shown
    classes = {c for value in re.findall(r'class="([^"]*)"', shown) for c in value.split()}
    moving = {c for c in classes if re.fullmatch(r"[vfqy]\d+|wo|wn", c)}
    assert len(moving) > 12
    assert moving == set(re.findall(r"@keyframes (\w+)", shown))
    assert min(map(float, re.findall(r"font-size:([\d.]+)px", shown))) >= 11
    still = picture(trace, moving=False)
    assert "@keyframes" not in still
    assert still.partition("</style>")[2] == shown.partition("</style>")[2]
    assert tree.get("role") == "img"
    assert tree[0].text == f"One step of training, there and back: loss {number(trace.loss)}"
    before, after = apart(trace.loss, trace.loss_after)
    wanted = f"{told(trace).sentence()} After this update, the loss goes from {before} to {after}."
    assert tree[1].text == wanted
    assert [tree[0].get("id"), tree[1].get("id")] == (tree.get("aria-labelledby") or "").split()


@over(KINDS)
def test_every_layer_can_be_drawn(make, shape, tokens):
    layer = made(make, shape)
    A, dY = data(layer, shape, tokens)
    model = Sequential(layer, dtype="float64", loss_class=MeanSquaredError())
    trace = model.trace(A, np.zeros(dY.shape))
    tree = drawn(trace)
    assert type(layer).__name__ in texts(tree)
    for key, index, shown in titles(tree):
        key = key if key != "X" else "0.X"
        assert number(float(trace[key].array[index])) == shown, (key, index)


def group(tree, key):
    """The tile of an array."""
    groups = (node for node in tree.iter(f"{SVG}g") if len(node) and node[0].tag == f"{SVG}rect")
    return next(node for node in groups if "".join(node[0].itertext()).startswith(f"{key}["))


def test_the_wave_goes_forward_and_back_and_the_weights_move():
    tree = drawn(mlp().trace(X, Y))
    order = ["X", "0.Y", "1.Y", "2.Y", "2.dY", "2.dW", "1.dY", "0.dY", "0.dW", "0.dX"]
    times = [int((group(tree, key).get("class") or "")[1:]) for key in order]
    assert times == sorted(times)
    assert len(set(times)) >= 9  # the last dY and dP are one array
    assert times[3] < 34 < times[4]  # the loss is between them
    assert group(tree, "0.W").get("class") == "wo"  # the weights are there from the start
    trace = mlp(alpha=50.0).trace(X, Y)
    tree = drawn(trace)
    for old in (node for node in tree.iter(f"{SVG}g") if node.get("class") == "wo"):
        key = re.match(r"[\w.]+", "".join(old[0][0].itertext()))
        assert key
        path, _, name = key[0].rpartition(".")
        new = next(n for n in tree.iter(f"{SVG}g") if n.get("class") == "wn")
        new.set("class", "seen")
        W = trace[key[0]].array + trace.updates[path][name]
        signs = [rect.get("class") for rect in new.iter(f"{SVG}rect")]
        assert signs == ["np"[int(w > 0)] for w in W.reshape(-1)]
        assert signs != [rect.get("class") for rect in old.iter(f"{SVG}rect")]


def test_large_and_deep_networks_are_small_files_that_say_what_is_hidden():
    rows, labels = RNG.random((256, 784)), RNG.integers(0, 10, 256)
    layers = L.Dense(784, 128), L.ReLU(), L.Dense(128, 64), L.ReLU(), L.Dense(64, 10), L.Softmax()
    model = Sequential(*layers, loss_class=CategoricalCrossEntropy(), seed=0)
    shown = picture(model.trace(rows, labels))
    assert len(shown.encode()) < 300_000
    assert "shown 4,096" in shown
    assert "of 8,192" in shown
    blocks = [layer for _ in range(8) for layer in (L.Dense(4, 4), L.Tanh())]
    shown = texts(drawn(mlp(*blocks).trace(X, Y)))
    paths = re.findall(r"(?m)^(\d+) (?:Dense|Tanh)", shown)
    assert sum(map(int, re.findall(r"(\d+) more", shown))) == 19 - len(paths) == 14


def test_shares_networks_without_parameters_and_infinite_numbers_are_drawn():
    share = mlp().trace(X, Y).by_sample(2)
    it = told(share)
    assert (it.sample, it.share) == (2, 1)
    assert "no update" in texts(drawn(share))
    trace = Sequential(L.Tanh(), loss_class=MeanSquaredError()).trace(X, X)
    assert ring(trace) is None
    assert "No gradient here is a sum over samples." in texts(drawn(trace))
    big = X.copy()
    big[0, 0] = 1e300
    with np.errstate(all="ignore"):
        trace = Sequential(L.Dense(3, 2), dtype="float64", seed=0).trace(big, Y * 1e300)
        tree = drawn(trace)
    assert not np.isfinite(trace["0.dW"].array).all()
    assert any(rect.get("class") == "w" for rect in tree.iter(f"{SVG}rect"))

    class Odd(L.Tanh):
        def __repr__(self):
            return "Odd<&>"

    assert "1 Odd<&>" in texts(drawn(Sequential(L.Dense(3, 2), Odd(), seed=0).trace(X, Y)))


def test_the_sentence_the_terms_and_the_code_are_those_of_the_ringed_cell():
    trace = mlp().trace(X, Y)
    it = told(trace)
    terms = list(trace[f"{it.path}.d{it.name}"].why(*it.cell))
    sizes = [sum(abs(t.value) for t in terms if t.at["n"] == n) for n in range(6)]
    assert it.share == pytest.approx(max(sizes) / sum(sizes), rel=1e-12)
    assert it.sample == int(np.argmax(sizes))
    best = max((t for t in terms if t.at["n"] == it.sample), key=lambda t: abs(t.value))
    i, j = it.cell
    first, second = trace[f"{it.path}.X"].array[it.sample, i], trace[f"{it.path}.dY"].array
    assert (best.factors["X"], best.factors["dY"]) == (first, second[it.sample, j])
    share = f"{it.share:.0%}".replace("%", " %")
    whole, a, b, c = map(number, (it.why.total, first, second[it.sample, j], best.value))
    assert it.sentence() == (
        f"{it.path}.dW[{i}, {j}] = {whole}: {share} of its terms' size came from sample "
        f"{it.sample}. Its term is X \u00d7 dY = {a} \u00d7 {b} = {c}."
    )
    trace = mlp(optimizer=SGD(), alpha=3.0).trace(X, Y)
    it = told(trace)
    W = trace[f"{it.path}.W"].array[it.cell]
    a, b = (f"{w:.5g}" for w in (W, W + trace.updates[it.path]["W"][it.cell]))
    said = texts(drawn(trace)).replace("\n", " ").replace("\u2212", "-")
    assert f"The optimizer moves W{it.place} from {a} to {b}." in said
    images, targets = RNG.standard_normal((3, 5, 5, 2)), RNG.standard_normal((3, 3, 3, 2))
    trace = Sequential(L.Conv2D(2, 3), dtype="float64", seed=0).trace(images, targets)
    it = told(trace)
    (first, pixel), (second, place) = it.factors()
    assert (first, second) == ("X", "dY")
    term = it.best
    assert term.factors == {"U": images[pixel], "dY": trace["0.dY"].array[place]}
    assert "Its largest term, at h = " in it.sentence()
    trace = mlp().trace(X, Y)
    it, tree = told(trace), drawn(trace)
    rects = {r: r.get("class") or "" for r in tree.iter(f"{SVG}rect")}
    bars = [kind for r, kind in rects.items() if r.get("height") == "10"]
    assert bars == ["tn" if term.value < 0 else "tp" for term in it.why[:5]]
    assert f"1 other\n{number(it.why[5].value)}" in texts(tree)
    assert "dX = dY · slope" in texts(tree)
    (mark,) = [r for r, kind in rects.items() if kind.startswith("lit ")]
    _, lines, lit = method_with(L.Dense, "dW")
    level = float(mark.get("y", 0)) + 12
    code = {float(t.get("y", 0)): t.text for t in tree.iter(f"{SVG}text") if t.get("class") == "m"}
    assert code[level] == lines[lit or 0]
    before = {"0": "X"}.get(it.path, f"{int(it.path) - 1}.Y")
    threads = [p for p in tree.iter(f"{SVG}path") if (p.get("class") or "").startswith("h ")]
    keys = {"X": before, "dY": f"{it.path}.dY"}
    for thread, (name, (k, j)) in zip(threads, it.factors(), strict=True):
        x, y, w, h = map(float, re.findall(r"[\d.]+", group(tree, keys[name]).get("transform", "")))
        start = [float(v) for v in re.findall(r"[\d.]+", thread.get("d", ""))[:2]]
        assert start == pytest.approx([x + (j + 0.48) * w, y + (k + 0.48) * h], abs=0.3)


@pytest.mark.parametrize(("path", "shown"), [("0", "0123 9"), ("5", "0 456 9"), ("9", "0 6789")])
def test_the_layers_around_the_ring_are_shown(path, shown):
    blocks = [layer for _ in range(4) for layer in (L.Dense(4, 4), L.Tanh())]
    model = Sequential(*blocks, L.Dense(4, 4), L.Tanh(), seed=1)
    trace = model.trace(X[:, [0, 1, 2, 1]], X[:, [0, 1, 2, 0]])
    found = slots(trace, replace(told(trace), path=path))
    assert "".join(slot.path or " " for slot in found) == shown


def test_a_network_is_shown_along_one_way_through_it():
    builder = SequentialBuilder(a=(3,), b=(3,), seed=1)
    builder.at("a").dense(4).name("seen").at("b").dense(4).tanh().concat("seen").name("both")
    builder.dense(2).output("u", loss="mse").at("both").dense(2).output("v", loss="huber")
    model = builder.build()
    model.cast("float64")
    trace = model.trace({"a": X, "b": X[::-1]}, {"u": Y, "v": Y})
    for path, shown in (("0", "0 3 4"), ("1", "1 2 3 4"), ("5", "1 2 3 5")):
        way = slots(trace, replace(told(trace), path=path))
        assert " ".join(slot.path for slot in way) == shown
        (merge,) = (slot for slot in way if slot.path == "3")
        assert (merge.X, merge.more) == (("X2", "tanh") if path == "0" else ("X1", "seen"))
    found = drawn(trace)
    count = 0
    for key, index, number_ in titles(found):
        first = {"X": "0.X" if ring(trace).path == "0" else "1.X"}
        assert number(trace[first.get(key, key)].array[index]) == number_, key
        count += 1
    assert count > 50
    assert "MeanSquaredError + Huber"[:20] in texts(found)
    assert "beside it" in texts(found)
    assert "↓ seen " in trace.draw(ascii=False)


def test_the_loss_after_the_update_and_without_one():
    for layers in ((), (L.Dropout(0.4),), (L.BatchNorm(),)):
        model = mlp(*layers)
        trace = model.trace(X, Y)
        before = trace.model.get_weights()
        found = trace.loss_after
        picture(trace)
        assert_same(before, trace.model.get_weights())
        for path, updates in trace.updates.items():
            for name, update in updates.items():
                dict(model.walk())[path].params[name] += update
        assert found == model.trace(X, Y).loss  # the same step, so the same dropout
    trace = mlp(optimizer=LBFGS()).trace(X, Y)
    assert trace.loss_after is None
    assert "no update" in texts(drawn(trace))
    assert "optimizer moves" not in texts(drawn(trace))


@pytest.mark.parametrize(
    ("layer", "name", "title", "line"),
    [
        (L.Dense(3), "W", "Dense.product_back", "product(X.T"),
        (L.LSTM(3), "Wh", "LSTM.backward", "Wh"),
        (L.MultiHeadAttention(2), "Wo", "MultiHeadAttention.backward", "dY"),
        (L.Embedding(5, 3), "W", "Embedding.backward", "sum_by_token"),
        (L.LayerNorm(), "gamma", "LayerNorm.backward", "dgamma"),
    ],
    ids=repr,
)
def test_the_line_that_writes_a_gradient(layer, name, title, line):
    found, lines, lit = method_with(type(layer), f"d{name}")
    assert found == title
    assert lit is not None
    assert line in lines[lit]
    assert lines[0].startswith("def ")


@pytest.mark.parametrize(
    ("shape", "sample", "size", "note"),
    [
        ((4, 3), None, (4, 3), ""),
        ((3,), None, (1, 3), ""),
        ((3, 2, 5), None, (6, 5), ""),
        ((3, 3, 2, 5), None, (7, 19), ""),
        ((8, 3), 1, (8, 3), ""),
        ((8,), 1, (8, 1), ""),
        ((8, 5, 3), 1, (5, 3), "sample 1 of 8"),
        ((8, 4, 4, 3), 1, (9, 9), "sample 1 of 8"),
        ((200, 64), None, (50, 64), "shown 3,200 of 12,800"),
        ((8, 28, 28, 16), 1, (59, 59), "sample 1 of 8 shown 3,136 of 12,544"),
        ((3, 3, 64, 64), None, (31, 31), "shown 576 of 36,864"),
    ],
    ids=str,
)
def test_how_arrays_are_laid_out(shape, sample, size, note):
    A = np.arange(1, 1 + np.prod(shape), dtype=float).reshape(shape)
    shown = plane(A, sample)
    assert (shown.values.shape, " ".join(shown.notes)) == (size, note)
    assert max(shown.values.shape) <= SIDE
    if shown.whole:
        for k, j in np.argwhere(~shown.blank):
            place = shown.place(k, j)
            assert A[place] == shown.values[k, j]
            assert found(shape, sample, place) == (k, j)


def test_how_large_arrays_become_images():
    A = RNG.standard_normal((130, 200))
    A[64, 77] = -9
    shown = plane(A)
    k, j = found(A.shape, None, (64, 77)) or (0, 0)
    assert (k, j) == (64 // 3, 77 // 4)
    assert shown.values[k, j] == -9
    for k, j in ((0, 0), (5, 7)):
        block = A[3 * k : 3 * k + 3, 4 * j : 4 * j + 4].reshape(-1)
        assert shown.values[k, j] == block[np.abs(block).argmax()]
    A = np.array([[-2.0, 1.0], [0.0, np.inf]] * 100)
    shown = tile(plane(A[:60]), 0, 0, 3, 3, "A")
    assert "A, from -2 to inf</title>" in shown
    cells = pixels(shown, 2)[:2].reshape(4, 4)
    np.testing.assert_array_equal(
        cells[:, :3], [(31, 111, 180), (217, 104, 15), (128, 136, 146), (150, 40, 150)]
    )
    np.testing.assert_allclose(cells[:, 3], [255, 15 + 240 * np.sqrt(0.5), 15, 255], atol=2)
    maps = plane(np.ones((1, 20, 20, 3)), 0)  # three images in a square of four
    opaque = pixels(tile(maps, 0, 0, 3, 3, "A"), maps.values.shape[1])[..., 3] > 0
    np.testing.assert_array_equal(opaque, ~maps.blank)
    assert maps.blank.sum() == 2 * 41 - 1 + 20 * 20


def pixels(drawing, columns):
    """The colours and the opacity of an image, (rows, columns, 4)."""
    png = base64.b64decode(re.findall(r"base64,([^\"]+)", drawing)[0])
    chunks, at = dict[bytes, bytes](), 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        chunks[kind] = png[at + 8 : at + 8 + length]
        check = zlib.crc32(kind + chunks[kind])
        assert int.from_bytes(png[at + 8 + length : at + 12 + length]) == check
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    return rows.reshape(-1, 1 + 4 * columns)[:, 1:].reshape(-1, columns, 4)


def test_texts_fit_and_a_layer_without_source_has_no_lines():
    assert fit("short", 100, 12) == "short"
    cut = fit("a long name of a layer", 60, 12)
    assert cut.endswith("\u2026")
    assert 45 < width_of(cut, 12) <= 60
    lines = wrapped("a sentence that takes several lines", 80, 12)
    assert " ".join(lines) == "a sentence that takes several lines"
    assert all(width_of(line, 12) <= 80 for line in lines)
    assert apart(0.6931, 0.6104) == ("0.693", "0.610")
    assert apart(0.69312, 0.69309) == ("0.69312", "0.69309")
    assert apart(2.0, None) == ("2.00", "2.00")
    space = {"Layer": Layer}
    exec("class Typed(Layer):\n    def backward(self, dY): return dY", space)
    assert method_with(space["Typed"], "dW") == ("Typed.backward", [], None)
