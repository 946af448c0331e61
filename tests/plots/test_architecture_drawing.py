"""The drawing of a model: what it names, how it connects, and that nothing covers anything."""

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep import plots
from phitodeep.derivations.language.step import Derivation, Let, Loop, Through
from phitodeep.errors import ArgumentTypeError
from phitodeep.inspect.summary import summarize
from phitodeep.layers.containers import Container
from phitodeep.model import Sequential
from phitodeep.model import architectures as models
from phitodeep.model.network import Network
from phitodeep.plots.architecture import wiring_of
from phitodeep.plots.canvas import POSITIVE
from phitodeep.plots.svg import Drawing
from phitodeep.testing.examples import squeezed
from tests.conftest import model_for
from tests.exchange.several import two_heads

SVG = "{http://www.w3.org/2000/svg}"


def inception():
    first, second, third, fourth = (L.Conv2D(f, 3, padding="same") for f in (4, 2, 6, 8))
    parts = L.Parallel(L.Chain(L.Conv2D(4, 1), L.ReLU()), second)
    inner = L.Residual(L.Parallel(L.Conv2D(6, 1), third, merge="add"))
    skip = L.SkipConcat(L.MaxPool2D(2), fourth, L.Upsample2D(2))
    return model_for((8, 8, 1), first, parts, inner, skip, L.Flatten(), L.Dense(10), seed=0)


def built(layer, *shape):
    layer.build(shape)
    return layer


def gpt(layers):
    return models.gpt(11, 6, layers=layers, heads=2, dim=8).build()


def recurrent():
    return model_for((5, 4), L.Bidirectional(L.LSTM(3)), L.TimeDistributed(L.Dense(2)), seed=0)


def wired():
    """Lines that run around, one over another, and a network inside."""
    uses = [
        (L.Dense(3), ["x"], ["a"]),
        (L.Dense(3), ["x"], ["b"]),
        (L.Add(), ["a", "b"], ["c"]),
        (L.Tanh(), ["b"], ["d"]),
        (L.Multiply(), ["c", "d"], ["e"]),
        (L.Add(), ["e", "x", "b"], ["f"]),
    ]
    inner = L.Wired(["x"], uses, ["f", "a"])
    uses = [
        (L.Dense(3), ["x"], ["u"]),
        (inner, ["u"], ["v", "w"]),
        (L.Average(), ["v", "w", "x"], ["z"]),
    ]
    model = Network(["x"], uses, ["z"], seed=0)
    model.build((3,))
    return model


def ends(model):
    """The names and shapes at both ends."""
    names = (["input"], ["output"])
    if isinstance(model, L.Wired):
        names = model.takes, model.returns
    for own, shape in zip(names, (model.input_shape, model.output_shape), strict=True):
        yield from zip(own, [shape] if len(own) == 1 else shape, strict=True)


MODELS = {
    "heads": lambda: two_heads().build(),
    "squeezed": lambda: built(squeezed(), 4, 3, 2),
    "wired": wired,
    "inception": inception,
    "gpt": lambda: gpt(2),
    "recurrent": recurrent,
    "mlp": lambda: models.mlp(5, 4, 3).build(),
    "resnet": lambda: models.resnet_small(8, 8, 3, blocks=2).build(),
}


def places(drawing):
    """(tag, attributes, x, y, text) of every element, with x and y of its group in the picture."""
    found = []

    def visit(element, x, y):
        move = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        if move:
            x, y = x + float(move[1]), y + float(move[2])
        words = "".join(element.itertext()) if element.tag == f"{SVG}text" else ""
        found.append((element.tag.removeprefix(SVG), element.attrib, x, y, words))
        for child in element:
            visit(child, x, y)

    visit(ET.fromstring(drawing), 0, 0)
    return found


def boxes(drawing):
    """The rectangles of layers: (left, top, right, bottom)."""
    return [
        (x, y, x + float(a["width"]), y + float(a["height"]))
        for tag, a, x, y, _ in places(drawing)
        if tag == "rect" and a.get("rx") == "6"
    ]


def words(drawing):
    return [text for tag, *_, text in places(drawing) if tag == "text"]


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_drawn_and_nothing_covers_anything(name):
    model = MODELS[name]()
    texts = words(plots.architecture(model))
    rows = summarize(model).rows
    containers = {path for path, layer in model.walk() if layer.children()}
    for row in rows:
        if row.path in containers:
            named = rf"{re.escape(row.path)}  \w+, [\d,]+ parameters"
            assert any(re.match(named, text) for text in texts)
            continue
        (i,) = [k for k, text in enumerate(texts) if text.startswith(f"{row.path}  ")]
        count = row.trainable + row.frozen
        expected = f"{row.output}" + (f"  {count:,} parameters" if count else "")
        assert texts[i + 1] == expected
    total = sum(row.trainable for row in rows)
    assert f"{type(model).__name__}: {total:,} parameters" in texts
    assert {f"{name} {shape}" for name, shape in ends(model)} <= {*texts}
    drawing = plots.architecture(MODELS[name]())
    found = boxes(drawing)
    assert len(found) > 2
    for i, (left, top, right, bottom) in enumerate(found):
        for a, b, c, d in found[:i]:
            assert left > c + 8 or right < a - 8 or top > d + 8 or bottom < b - 8
    root = ET.fromstring(drawing)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for left, top, right, bottom in found:
        assert 0 < left < right < width
        assert 0 < top < bottom < height
    # no line runs through a layer, except where it enters or leaves it
    for tag, a, x, y, _ in places(drawing):
        if tag != "polyline":
            continue
        points = [tuple(map(float, p.split(","))) for p in a["points"].split()]
        for (x1, y1), (x2, y2) in itertools.pairwise(points):
            low, high = sorted((y + y1, y + y2))
            near, far = sorted((x + x1, x + x2))
            for left, top, right, bottom in found:
                inside = near < right - 1 and far > left + 1 and low < bottom - 1 and high > top + 1
                assert not inside, (name, points)


def test_text_fits_into_its_box_and_skip_connections_are_orange():
    drawing = plots.architecture(inception())
    rects = boxes(drawing)
    for tag, _, x, y, text in places(drawing):
        if tag == "text":
            own = [r for r in rects if r[0] == x and r[1] == y]
            assert all(0.56 * 11 * len(text) < right - left for left, _, right, _ in own), text

    skips = {"inception": 2, "gpt": 4, "recurrent": 0, "squeezed": 3, "heads": 1}
    assert {name: orange(MODELS[name]()) for name in skips} == skips


def orange(model):
    """How many skip connections are drawn."""
    found = places(plots.architecture(model))
    return sum(tag == "polyline" and a["stroke"] == POSITIVE for tag, a, *_ in found)


def test_how_layers_are_connected_is_read_from_derivations():
    model = inception()
    keys = [f"layers.{i}" for i in range(6)]
    assert wiring_of(model) == (["X", *keys], [[], *([k] for k in range(6))], [6])
    parallel, residual, skip = model.layers[1:4]
    branches, reads = ["branches.0", "branches.1"], [[], [0], [0], [1, 2]]
    assert wiring_of(parallel) == (["X", *branches, "concat"], reads, [3])
    assert wiring_of(residual) == (["X", "layers.0", "+"], [[], [0], [0, 1]], [2])
    assert wiring_of(residual.layers[0]) == (["X", *branches, "+"], reads, [3])
    assert wiring_of(skip) == (["X", *keys[:3], "concat"], [[], [0], [1], [2], [0, 3]], [4])
    product = L.Parallel(L.Dense(2, 2), L.Dense(2, 2), merge="multiply")
    assert wiring_of(product) == (["X", *branches, "*"], reads, [3])
    both, each = recurrent().layers
    assert wiring_of(both) == (["X", "layer", "reverse", "concat"], reads, [3])
    assert wiring_of(each) == (["X", "layer"], [[], [0]], [1])
    inner = wired().layers[1]  # with two outputs, which one layer reads
    assert wiring_of(inner) == (
        ["X", *keys],
        [[], [0], [0], [1, 2], [2], [3, 4], [5, 0, 2]],
        [6, 1],
    )
    assert wiring_of(wired())[1:] == ([[], [0], [1], [2, 0]], [3])


class Own(Container):
    """Says nothing about how its layers are connected."""

    def __init__(self):
        super().__init__()
        self.a, self.b = L.Dense(3, 3), L.Dense(3, 3)

    def create(self, shape):
        return self.b.build(self.a.build(shape))

    def forward(self, X):
        return self.b.forward(self.a.forward(X))


def test_layers_of_an_own_container_are_connected_as_its_derivation_says():
    drawing = plots.architecture(Sequential(Own(), seed=0))
    assert wiring_of(Own()) is None
    assert len(boxes(drawing)) == 2
    lines = [a for tag, a, *_ in places(drawing) if tag == "polyline"]
    assert len(lines) == 2  # from the input to the container, and from there to the output

    added = connected(Through("A", "X", "a"), Through("B", "A", "b"), Let("Y", "A + B"))
    assert wiring_of(added) == (["X", "a", "b", "+"], [[], [0], [1], [1, 2]], [3])
    assert orange(Sequential(added)) == 1
    one = connected(Through("Y", "X", "a"))
    doubled = Loop("X", [Let("A", "2 * X")])
    in_loop = connected(doubled, Through("B", "A", "a"), Through("Y", "B", "b"))
    doubled = Loop("B", [Let("Y", "2 * B")])
    to_loop = connected(Through("A", "X", "a"), Through("B", "A", "b"), doubled)
    assert wiring_of(one) is wiring_of(in_loop) is wiring_of(to_loop) is None
    assert len(boxes(plots.architecture(Sequential(to_loop)))) == 2


def connected(*steps):
    """Layers that are connected as these steps say."""
    layer = Own()
    layer.steps = lambda: Derivation([*steps], [Let("dX", "dY")])
    return layer


def test_repeated_layers_are_drawn_once_frozen_ones_dashed_and_unbuilt_ones_with_question_marks():
    drawing = plots.architecture(gpt(5))
    assert "layers 2 to 6: 5 times the same, drawn once" in words(drawing)
    assert len(boxes(drawing)) == len(boxes(plots.architecture(gpt(1))))
    blocks = [layer for _ in range(3) for layer in (L.Dense(4, 4), L.ReLU())]
    texts = words(plots.architecture(Sequential(*blocks)))
    assert "layers 0 to 5: 3 times the same, drawn once" in texts
    assert not any("times" in w for w in words(plots.architecture(gpt(2))))
    frozen = gpt(3)
    frozen.layers[3].trainable = False
    assert not any("times" in w for w in words(plots.architecture(frozen)))
    model = models.mlp(5, 4, 3).build()
    model.layers[0].trainable = False
    drawing = plots.architecture(model)
    dashed = [a for tag, a, *_ in places(drawing) if tag == "rect" and a.get("rx") == "6"]
    assert ["stroke-dasharray" in a for a in dashed] == [True, False, False]
    assert "(4,)  24 parameters, frozen" in words(drawing)
    model = Sequential(L.Dense(3), L.ReLU())
    texts = words(plots.architecture(model))
    assert {"Sequential: not built yet", "input ?", "output ?", "0  Dense(3)", "?"} <= set(texts)
    assert not model.layers[0].params
    shapes = words(plots.architecture(Sequential(L.Dense(2, 3), L.ReLU())))
    assert "(3,)  9 parameters" in shapes


def test_a_drawing_is_shown_and_saved(tmp_path):
    drawing = plots.architecture(L.Dense(3, 2), path=tmp_path / "drawn.svg")
    assert isinstance(drawing, Drawing)
    assert drawing._repr_svg_() == drawing
    assert drawing.startswith("<svg xmlns=")
    shown = r"<Drawing: [\d,]+ characters of SVG; \.save\(path\) writes it>"
    assert re.fullmatch(shown, repr(drawing))
    drawing.save(tmp_path / "model.svg")
    for name in ("drawn", "model"):
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8") == drawing
    hover = [e.text for e in ET.fromstring(drawing).iter(f"{SVG}title")]
    assert hover == ["Dense(3, 2)"]
    with pytest.raises(ArgumentTypeError, match="takes a model, got ndarray"):
        plots.architecture(np.ones(3))

    class Less(L.ReLU):
        def __repr__(self):
            return "Less(a < b & c)"

    assert "0  Less(a < b & c)" in words(plots.architecture(Sequential(Less())))


def test_repeated_layers_are_found_beside_a_skip_connection_and_in_a_network():
    repeated = "layers 0.layers.0 to 0.layers.5: 3 times the same, drawn once"
    pairs = [layer for _ in range(3) for layer in (L.Dense(4, 4), L.ReLU())]
    assert repeated in words(plots.architecture(Sequential(L.Residual(*pairs))))

    def network(*returns):
        names = "abcdef"
        uses = [(L.Tanh(), [a], [b]) for a, b in itertools.pairwise(names)]
        return Network(["a"], uses, [*returns], seed=0)

    assert any(" 5 times" in w for w in words(plots.architecture(network("f"))))
    texts = words(plots.architecture(network("f", "d")))
    assert not any("times" in w for w in texts)
    assert sum("Tanh" in w for w in texts) == 5
