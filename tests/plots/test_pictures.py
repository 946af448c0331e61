"""Pictures draw the numbers that were computed, and pages show what their code draws."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from phitodeep import SequentialBuilder, plots
from phitodeep.data import CharTokenizer
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.inspect.diagnosis.findings import LIMITS
from phitodeep.inspect.explorer.tiles import mosaic
from phitodeep.layers import Conv1D, Conv2D, Dense, Flatten, ReLU, Sigmoid
from phitodeep.model import Sequential
from phitodeep.model import architectures as models
from phitodeep.plots.canvas import evenly, gap_of
from phitodeep.plots.embedding import principal
from phitodeep.plots.recorder import Histograms
from tests.conftest import check_refused, model_for
from tests.inspect.shared import rows
from tests.rows import few
from tools.make_plots import BLOCK, PAGES, PICTURES, ROOT

rng = np.random.default_rng(3)
PLANE = rng.standard_normal((60, 2))
HALVES = (PLANE[:, 0] > 0).astype(int)


def classifier(K=3, seed=0):
    layers = Dense(2, 5), ReLU(), Dense(5, K)
    return Sequential(*layers, loss_class="softmax_cross_entropy", seed=seed)


def convolutions(channels=1):
    layers = Conv2D(5, 3), ReLU(), Conv2D(20, 2), Flatten(), Dense(4)
    return model_for((8, 7, channels), *layers, seed=0)


def gpt(layers=2):
    model = models.gpt(6, 5, layers=layers, heads=3, dim=6).seed(0).build()
    model.loss = classifier().loss
    return model


def image_of(axes):
    (image,) = axes.images
    return np.ma.filled(image.get_array(), np.nan)


def texts(axes):
    return [text.get_text() for text in axes.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_confusion_matrix_of_a_model_of_classes_and_of_shares():
    model, y = classifier(), rng.integers(0, 3, 60)
    axes = plots.confusion_matrix(model, PLANE, y).axes[0]
    predicted = model.predict(PLANE).argmax(axis=1)
    counts = np.zeros((3, 3))
    for t, p in zip(y, predicted, strict=True):
        counts[t, p] += 1
    np.testing.assert_array_equal(image_of(axes), counts)
    assert texts(axes) == [f"{n:.0f}" for n in counts.ravel()]
    assert axes.get_title() == f"60 predictions, {np.mean(predicted == y):.1%} correct"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    net = SequentialBuilder(x=(2,), seed=0).add(*model.layers[:2]).name("h").dense(1)
    net = net.output("size", loss="mse").at("h").add(model.layers[2])
    net = net.output("kind", loss="softmax_cross_entropy").build()
    other = plots.confusion_matrix(net, PLANE, {"kind": y, "size": None}, output="kind").axes[0]
    np.testing.assert_array_equal(image_of(other), counts)
    given = {"labels": ["cat", "dog", "elk"]}
    axes = plots.confusion_matrix([0, 2, -1, 1], [0, 1, 1, 1], **given).axes[0]
    np.testing.assert_array_equal(image_of(axes), [[1, 0, 0], [0, 1, 0], [0, 1, 0]])
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["cat", "dog", "elk"]
    axes = plots.confusion_matrix([0] * 9 + [1], [0] * 9 + [0]).axes[0]
    colours = [text.get_color() for text in axes.texts]
    assert texts(axes) == ["9", "0", "1", "0"]
    assert colours == ["white", "black", "black", "black"]
    y = np.arange(100)
    axes = plots.confusion_matrix(y, y).axes[0]
    assert texts(axes) == []
    assert ticks(axes.xaxis) == [str(k) for k in range(0, 100, 4)]
    for normalize, expected in [
        ("true", [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0]]),
        ("pred", [[1, 1 / 3, 0], [0, 2 / 3, 0], [0, 0, 0]]),
        ("all", [[0.25, 0.25, 0], [0, 0.5, 0], [0, 0, 0]]),
    ]:
        scores = np.eye(3)[[0, 1, 1, 1]]
        axes = plots.confusion_matrix([0, 0, 1, 1], scores, normalize=normalize).axes[0]
        np.testing.assert_allclose(image_of(axes), expected)
        assert texts(axes)[1] == f"{expected[0][1]:.2f}"


def grid_of(image, R):
    """The points at the middles of an image's pixels."""
    left, right, bottom, top = image.get_extent()
    middles, ends = (np.arange(R) + 0.5) / R, ((left, right), (bottom, top))
    x, y = (low + middles * (high - low) for low, high in ends)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def test_a_boundary_is_a_field_around_the_threshold_or_regions():
    layers = Dense(2, 4), ReLU(), Dense(4, 1), Sigmoid()
    model = Sequential(*layers, loss_class="binary_cross_entropy", seed=1, dtype="float64")
    model.train(PLANE, HALVES[:, None], epochs=20, verbose=0)
    axes = plots.decision_boundary(model, PLANE, HALVES, grid_resolution=12).axes[0]
    (image,) = axes.images
    drawn = np.asarray(image.get_array())
    expected = model.predict(grid_of(image, 12)).reshape(12, 12)
    np.testing.assert_allclose(drawn, expected, rtol=1e-9)
    low, high = image.get_clim()
    assert low + high == pytest.approx(1)  # the middle is 0.5
    assert high - 0.5 == pytest.approx(np.abs(expected - 0.5).max())
    fine = plots.decision_boundary(model, PLANE, HALVES, grid_resolution=400).axes[0]
    (line,) = fine.collections[0].get_paths()  # of the contour
    np.testing.assert_allclose(model.predict(line.vertices), 0.5, atol=0.02)
    for k, samples in enumerate(axes.collections[1:]):
        np.testing.assert_allclose(samples.get_offsets(), PLANE[HALVES == k])
    right = np.mean((model.predict(PLANE).ravel() > 0.5) == HALVES)
    assert axes.get_title() == f"{right:.1%} correct, 60 samples"
    model, y = classifier(), rng.integers(0, 3, 60)
    figure = plots.decision_boundary(model, PLANE, y, grid_resolution=15, labels=list("abc"))
    axes = figure.axes[0]
    (image,) = axes.images
    expected = model.predict(grid_of(image, 15)).argmax(axis=1).reshape(15, 15)
    np.testing.assert_array_equal(image.get_array(), expected)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "c"]
    for k, drawn in enumerate(axes.collections):
        np.testing.assert_allclose(drawn.get_offsets(), PLANE[y == k])
    X = rng.standard_normal((5000, 2))
    axes = plots.decision_boundary(classifier(), X, X[:, 0] > 0, grid_resolution=3).axes[0]
    assert sum(len(c.get_offsets()) for c in axes.collections) == 2000
    assert "2,000 of 5,000 samples" in axes.get_title()


def tiles_of(whole, h, w):
    """The tiles of a mosaic that are not empty."""
    gap = gap_of(h, w)
    rows, columns = range(0, whole.shape[0], h + gap), range(0, whole.shape[1], w + gap)
    found = [whole[i : i + h, j : j + w] for i in rows for j in columns]
    return [tile for tile in found if not np.isnan(tile).all()]


def test_filters_are_tiles_of_a_mosaic():
    tiles = rng.standard_normal((5, 2, 3))
    whole = mosaic(tiles, 3, 1)
    assert whole.shape == (2 * 2 + 1, 3 * 3 + 2)
    np.testing.assert_array_equal(tiles_of(whole, 2, 3), tiles)
    assert np.isfinite(whole).sum() == tiles.size
    assert evenly(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert evenly(9, 3).tolist() == [0, 4, 8]
    assert evenly(1, 4).tolist() == [0]
    model = convolutions()
    axes = plots.filters(model, "0").axes[0]
    W = model.layers[0].W  # (3, 3, 1, 5)
    np.testing.assert_array_equal(tiles_of(image_of(axes), 3, 3), W[..., 0, :].transpose(2, 0, 1))
    low, high = axes.images[0].get_clim()
    assert high == -low == np.abs(W).max()
    assert axes.get_title() == "layer 0: 5 filters"
    assert ticks(axes.yaxis) == ["0", "3"]
    model = convolutions()
    axes = plots.filters(model, "2").axes[0]
    W = model.layers[2].W  # (2, 2, 5, 20)
    shown = evenly(20, 16)
    expected = [W[:, :, c, f] for f in shown for c in range(5)]
    np.testing.assert_array_equal(tiles_of(image_of(axes), 2, 2), expected)
    assert axes.get_title() == "layer 2: 16 of 20 filters, 5 input channels"
    assert ticks(axes.yaxis) == [str(f) for f in shown]
    model = convolutions(3)
    W = model.layers[0].W
    W[:, :, :, 1] = 0
    axes = plots.filters(model, "0", limit=2).axes[0]
    whole = np.asarray(axes.images[0].get_array())
    first = 0.5 + W[:, :, :, 0] / (2 * np.abs(W[..., [0, 4]]).max())
    np.testing.assert_allclose(whole[:3, :3], first, rtol=1e-6)
    assert axes.get_title().startswith("layer 0: 2 of 5 filters; full colour is ±")
    axes = plots.filters(model, "0").axes[0]
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array())[:3, 4:7], 0.5)
    model = model_for((4, 5), Flatten(), Dense(3), seed=0)
    axes = plots.filters(model, "1", shape=(4, 5)).axes[0]
    expected = model.layers[1].W.T.reshape(3, 4, 5)
    np.testing.assert_array_equal(tiles_of(image_of(axes), 4, 5), expected)
    model = model_for((9, 4), Conv1D(2, 3), seed=0)
    axes = plots.filters(model, "0").axes[0]
    expected = model.layers[0].W.transpose(2, 1, 0)  # filter, channel, step
    np.testing.assert_array_equal(tiles_of(image_of(axes), 4, 3), expected)


def test_feature_maps_are_the_output_of_the_layer():
    model, x = convolutions(), rng.standard_normal((8, 7, 1))
    axes = plots.feature_maps(model, x, "2", limit=7).axes[0]
    _, cache = model.run_with_cache(x[None])
    expected = cache["2.Y"][0].transpose(2, 0, 1)[evenly(20, 7)]
    np.testing.assert_array_equal(tiles_of(image_of(axes), 5, 4), expected)
    assert axes.get_title() == "output of layer 2: 7 of 20 channels"
    model, x = gpt(), rng.integers(0, 6, 5)
    axes = plots.feature_maps(model, x, "2").axes[0]
    expected = model.run_with_cache(x[None])[1]["2.Y"][0].T  # channels, steps
    np.testing.assert_array_equal(image_of(axes), expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "channel")


def test_a_network_shows_a_sample_of_each_input_and_histograms_of_its_layers():
    builder = SequentialBuilder(a=(4, 3), b=(4, 3), seed=0).at("a").add("b").name("s")
    net = builder.dense(2).output("y", loss="mse").build()
    one, other = rng.standard_normal((2, 4, 3))
    axes = plots.feature_maps(net, {"a": one, "b": other[None]}, "0").axes[0]
    np.testing.assert_allclose(image_of(axes), (one + other).T, rtol=1e-6)
    X = {"a": np.stack([one, other]), "b": np.stack([other, one])}
    watch = Histograms(activations=X)
    net.train(X, np.ones((2, 4, 2)), epochs=1, verbose=0, callbacks=[watch])
    assert watch["0.Y"].counts.sum() == 2 * 4 * 3


HEADS = "3.layers.0.layers.1"


def test_attention_of_all_heads_and_of_one():
    model, x = gpt(), rng.integers(0, 6, 5)
    model.tokenizer = CharTokenizer("ab c\nd")
    figure = plots.attention(model, x, HEADS)
    P = model.attention_maps(x[None])[HEADS][0]
    panels = [axes for axes in figure.axes if axes.get_title().startswith("head")]
    assert len(panels) == 3
    for axes, heads in zip(panels, P, strict=True):
        np.testing.assert_array_equal(image_of(axes), heads)
    names = [model.tokenizer.decode([t]).replace("\n", "↵").replace(" ", "␣") for t in x]
    assert ticks(panels[0].yaxis) == names
    model, x = gpt(), rng.integers(0, 6, 5)
    ax = Figure().subplots()
    assert plots.attention(model, x[None], HEADS, head=2, ax=ax, labels="abcde") is ax
    np.testing.assert_array_equal(image_of(ax), model.attention_maps(x[None])[HEADS][0, 2])
    assert ticks(ax.xaxis) == list("abcde")


def test_paths_names_and_endings(tmp_path):
    x = rng.integers(0, 6, 5)
    assert "layer 2.layers.0.layers.1:" in plots.attention(gpt(1), x).get_suptitle()
    net = model_for((8, 7, 1), Conv2D(5, 3), Flatten(), Dense(4), seed=0)
    assert "layer 0:" in plots.filters(net).axes[0].get_title()
    assert "layer 2:" in plots.filters(net, shape=(6, 5, 5)).axes[0].get_title()
    assert "layer 0:" in plots.feature_maps(net, np.zeros((8, 7, 1))).axes[0].get_title()
    names = ["$a$", "$", r"$\no$", "d", "e"]
    figure = plots.attention(gpt(1), rng.integers(0, 6, 5), labels=names)
    figure.draw_without_rendering()
    assert ticks(figure.axes[0].yaxis) == [r"\$a\$", "$", r"\$\no\$", "d", "e"]
    with pytest.raises(ArgumentError, match=r"cannot be written as \.pgn.*\.png"):
        SINGLE["filters"](path=tmp_path / "a.pgn")
    assert not list(tmp_path.iterdir())


def test_an_embedding_draws_its_projected_rows_with_names_and_colours():
    W = rng.standard_normal((30, 4)) * [3, 2, 1, 0.5] + 5
    points, shares = principal(W)
    values, vectors = np.linalg.eigh(np.cov(W.T))
    np.testing.assert_allclose(points.var(axis=0, ddof=1), values[[3, 2]])
    np.testing.assert_allclose(shares, values[[3, 2]] / values.sum())
    for i, vector in enumerate(vectors.T[[3, 2]]):
        vector = vector * np.sign(vector[np.abs(vector).argmax()])
        np.testing.assert_allclose(points[:, i], (W - W.mean(axis=0)) @ vector, atol=1e-9)
    model = gpt()
    model.tokenizer = CharTokenizer("abcdef")
    axes = plots.embedding(model).axes[0]
    points, shares = principal(model.layers[0].W.astype(np.float64))
    np.testing.assert_allclose(axes.collections[0].get_offsets(), points)
    assert set(texts(axes)) <= set("abcdef")
    names = "6 names" if len(axes.texts) == 6 else f"{len(axes.texts)} of 6 names"
    assert axes.get_title() == f"6 rows, {names}"
    assert axes.get_xlabel() == f"component 1 ({shares[0]:.0%} of the variance)"
    W = np.repeat(rng.standard_normal((4, 3)), 10, axis=0)  # ten rows at each of four places
    figure = plots.embedding(W, labels=[f"word {i}" for i in range(40)])
    axes = figure.axes[0]
    figure.canvas.draw()
    assert [t.get_text() for t in axes.texts] == ["word 0", "word 10", "word 20", "word 30"]
    assert axes.get_title() == "40 rows, 4 of 40 names"
    W, y = rng.standard_normal((50, 3)), rng.integers(0, 3, 50)
    axes = plots.embedding(W, y=y, limit=20).axes[0]
    points, _ = principal(W)
    shown = evenly(50, 20)
    for k, drawn in enumerate(axes.collections):
        np.testing.assert_allclose(drawn.get_offsets(), points[shown[y[shown] == k]])
    assert axes.get_title() == "20 of 50 rows"


def test_gradient_flow_draws_the_rows_of_the_trace():
    model, X = gpt(), rng.integers(0, 6, (4, 5))
    trace = model.trace(X, X)
    figure = plots.gradient_flow(trace)
    rows = [r for r in trace.rows if not any(o.path.startswith(f"{r.path}.") for o in trace.rows)]
    assert ticks(figure.axes[0].yaxis) == [f"{r.path}  {r.layer}" for r in rows]
    for axes, name in zip(figure.axes, ("dY", "dW", "update"), strict=True):
        values = [getattr(row, name) for row in rows]
        (line,) = axes.lines
        expected = [(v, i) for i, v in enumerate(values) if v]
        np.testing.assert_array_equal(line.get_xydata(), expected)
        assert axes.get_xscale() == "log"
    (band,) = figure.axes[2].patches
    drawn = band.get_path().transformed(band.get_patch_transform()).get_extents()
    ends = [LIMITS["updates too small"].value, LIMITS["updates too large"].value]
    assert [drawn.x0, drawn.x1] == pytest.approx(ends)
    top, bottom = figure.axes[0].get_ylim()[::-1]
    assert top < bottom  # the first layer is at the top
    assert figure.get_suptitle() == f"loss {trace.loss:.4g}; {len(rows)} layers"
    model = Sequential(Dense(2, 3), ReLU(), Dense(3, 1), seed=0)
    model.layers[0].b = [-100.0] * 3  # all units are dead
    figure = plots.gradient_flow(model.trace(PLANE, HALVES[:, None]))
    assert texts(figure.axes[1]) == ["0"]
    assert figure.axes[1].texts[0].get_position()[1] == 0
    model = Sequential(*(Dense(2, 2) for _ in range(70)), seed=0)
    figure = plots.gradient_flow(model.trace(PLANE, PLANE))
    assert figure.get_suptitle().endswith("60 of 70 layers")


IMAGE, ROWS, IDS = np.zeros((8, 7, 1)), np.ones((4, 3)), np.zeros(4, int)
PAIRS, SPOILT = np.ones((4, 2)), np.full((4, 2), np.nan)
CONV, UNBUILT = convolutions(), Sequential(Conv2D(2, 3))
NESTED, GPT, WORDS = Sequential(Sequential(Dense(2, 2))), gpt(), np.arange(5)
AX, NET = Figure().subplots(), classifier()
REFUSED = r"""
plots.filters(CONV, "7") -> UnknownNameError: '7' is not one of the layers
plots.filters(CONV, "") -> UnknownNameError: '' is not one of the layers
plots.filters(NESTED, "0.layer.0") -> UnknownNameError: Did you mean '0\.layers\.0'
plots.filters(CONV, "1") -> ArgumentError: '1' is ReLU\(\).*filters are 0, 2, 4
plots.filters(GPT, "0") -> ArgumentError: filters are 2\.layers\.1\.layers\.1\.layers\.0,
plots.filters(CONV, "4") -> ShapeError: takes 400 features.*got shape=None
plots.filters(CONV, "4", shape=(4, 4)) -> ShapeError: got shape=\(4, 4\)
plots.filters(UNBUILT, "0") -> NotBuiltError: no weights yet
plots.filters(CONV, "0", limit=0) -> ArgumentError: limit must be >= 1
plots.filters(CONV) -> ArgumentError: name one of '0', '2'
plots.filters(Sequential(ReLU())) -> ArgumentError: with filters: there is none
plots.feature_maps(CONV, IMAGE) -> ArgumentError: name one of '0', '1', '2'
plots.feature_maps(CONV, IMAGE, "9") -> UnknownNameError: '9' is not one of the layers
plots.feature_maps(CONV, IMAGE, "4") -> ShapeError: samples of shape \(4,\)
plots.feature_maps(CONV, [IMAGE] * 2, "0") -> ShapeError: one sample.*X\[0\]
plots.feature_maps(UNBUILT, IMAGE, "0") -> NotBuiltError: is built
plots.attention(GPT, WORDS) -> ArgumentError: name one of '2\..*', '3.layers.0.layers.1'
plots.attention(GPT, WORDS, HEADS[:-1] + "0") -> UnknownNameError: mean.*3.layers.0.layers.1
plots.attention(GPT, WORDS, HEADS, ax=AX) -> ArgumentError: pass head=
plots.attention(GPT, WORDS, HEADS, head=3) -> ArgumentError: head must be <= 2
plots.attention(GPT, WORDS, HEADS, labels="ab") -> ArgumentError: 5 labels.*got 2
plots.attention(CONV, IMAGE, "0") -> ArgumentError: there is none
plots.embedding(CONV) -> ArgumentError: the model has no Embedding
plots.embedding(CONV, layer="1") -> ArgumentError: has no parameter W
plots.embedding(UNBUILT, layer="0") -> NotBuiltError: no weights yet
plots.embedding(ROWS[:, 0]) -> ShapeError: rows W \(n, D\).*got shape \(4,\)
plots.embedding(ROWS, labels="ab") -> ArgumentError: 4 labels, one per row, got 2
plots.embedding(ROWS, y=[0, 1]) -> ShapeError: y must have the shape \(4,\)
plots.embedding(np.ones((11, 2)), y=np.arange(11)) -> ArgumentError: but y has 11
plots.embedding(ROWS, layer="0") -> ArgumentError: option for a model
plots.decision_boundary(Dense(2, 3), PLANE, HALVES) -> ArgumentTypeError: whole model.*got Dense
plots.decision_boundary(NET, ROWS, IDS) -> ShapeError: \(N, 2\) in the plane, got shape \(4, 3\)
plots.decision_boundary(NET, SPOILT, IDS) -> ArgumentError: is nan
plots.decision_boundary(NET, PAIRS, [0, 1, 2, -1]) -> ArgumentError: negative labels
plots.decision_boundary(NET, PAIRS, [0, 1, 2, 3]) -> ArgumentError: class 3.*3 classes
plots.decision_boundary(NET, PAIRS, IDS, grid_resolution=1) -> ArgumentError: grid_resolution
plots.decision_boundary(NET, PAIRS, list("abca")) -> ArgumentTypeError: y takes real numbers
plots.decision_boundary(NET, PAIRS, IDS, labels="ab") -> ArgumentError: needs 3 labels
plots.confusion_matrix([0, 1], [0, 1, 1]) -> ShapeError: one prediction per label
plots.confusion_matrix([0, 1], [0.5, 1]) -> ArgumentTypeError: y_pred must hold classes
plots.confusion_matrix([0, 1], [0, np.inf]) -> ArgumentTypeError: y_pred must hold classes
plots.confusion_matrix([0, 1], [0, 1], labels=2) -> ArgumentTypeError: a list of texts, got 2
plots.confusion_matrix([0, 1], [0, -1]) -> ArgumentError: y_pred holds the class -1
plots.confusion_matrix([0, 5000], [0, 1]) -> ArgumentError: there is a class 5,000
plots.confusion_matrix([], []) -> ArgumentError: at least one sample
plots.confusion_matrix([0, 1], [0, 1], labels=["a"]) -> ArgumentError: needs 2 labels.*got 1
plots.confusion_matrix([0, 1], [0, 1], normalize="rows") -> ArgumentError: "true", "pred" or "all"
plots.confusion_matrix([0, 1], [0, 1], [0, 1]) -> ArgumentTypeError: no model
plots.confusion_matrix([0, 1], [0, 1], output="a") -> ArgumentTypeError: no model
plots.confusion_matrix(NET, PLANE, HALVES, output="a") -> ArgumentError: output must be "Y"
plots.confusion_matrix(NET, PLANE) -> ArgumentTypeError: needs the true classes
plots.confusion_matrix(["a"], ["b"]) -> ArgumentTypeError: y_true.*real numbers
plots.gradient_flow(CONV) -> ArgumentTypeError: takes model\.trace\(X, y\), got Sequential
"""


@rows(REFUSED)
def test_what_is_refused(call, error):
    check_refused(call, error, globals())


SINGLE = {
    "confusion_matrix": lambda **o: plots.confusion_matrix([0, 1], [0, 1], **o),
    "decision_boundary": lambda **o: plots.decision_boundary(
        classifier(), PLANE, HALVES, grid_resolution=5, **o
    ),
    "filters": lambda **o: plots.filters(convolutions(), "0", **o),
    "feature_maps": lambda **o: plots.feature_maps(convolutions(), np.ones((8, 7, 1)), "0", **o),
    "attention": lambda **o: plots.attention(gpt(), np.arange(5), HEADS, head=0, **o),
    "embedding": lambda **o: plots.embedding(rng.standard_normal((9, 3)), **o),
}


@pytest.mark.parametrize("draw", SINGLE.values(), ids=SINGLE)
def test_a_picture_is_drawn_where_it_is_asked_for(draw):
    ax = Figure().subplots()
    assert draw(ax=ax) is ax
    with pytest.raises(ArgumentTypeError, match="ax must be an Axes"):
        draw(ax=np.array([ax]))


@pytest.mark.parametrize("name", few(SINGLE, 1))
def test_a_picture_is_saved_where_it_is_asked_for(name, tmp_path):
    ax = Figure(layout="constrained").subfigures(1, 2)[0].subplots()
    SINGLE[name](ax=ax, path=tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    made = SINGLE[name](path=str(tmp_path / "b.svg"))
    assert isinstance(made, Figure)
    assert b"<svg" in (tmp_path / "b.svg").read_bytes()
    assert made._repr_png_().startswith(b"\x89PNG")


SEVERAL = {
    "attention": lambda: plots.attention(gpt(), np.arange(5), HEADS, labels=["one"] * 5),
    "filters in columns": lambda: plots.filters(convolutions(), "2"),
    "feature maps of a sequence": lambda: plots.feature_maps(gpt(), np.arange(5), "2"),
    "gradient flow": lambda: plots.gradient_flow(gpt(1).trace([np.arange(5)], [np.arange(5)])),
    "long names": lambda: plots.confusion_matrix([0, 1], [0, 1], labels=["elephant", "mouse"]),
    "many classes": lambda: plots.confusion_matrix(np.arange(150), np.arange(150)),
}


@pytest.mark.parametrize("name", few([*SINGLE, *SEVERAL], 5))
def test_no_text_covers_another_or_leaves_the_picture(name):
    figure = {**SINGLE, **SEVERAL}[name]()
    figure.draw_without_rendering()  # lays it out
    boxes = [(t.get_text(), t.get_window_extent()) for t in visible(figure)]
    assert len(boxes) > 3
    # the boxes of slanted texts overlap, although the texts do not
    slanted = {t.get_text() for t in visible(figure) if t.get_rotation() == 45}
    width, height = figure.bbox.size
    for i, (words, box) in enumerate(boxes):
        assert -1 < box.x0 < box.x1 < width + 1, words
        assert -1 < box.y0 < box.y1 < height + 1, words
        for other, area in boxes[:i]:
            if slanted >= {words, other}:
                continue
            overlap = Bbox.intersection(box, area)
            assert overlap is None or overlap.width * overlap.height < 2, (words, other)


def visible(figure):
    """The texts of a figure that are drawn; ticks outside the view are not."""
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        found += [*axes.texts, axes.title, *(legend.get_texts() if legend else ())]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
            found += [axis.label, *(label for t in shown for label in (t.label1, t.label2))]
    return [text for text in found if text.get_visible() and text.get_text()]


@pytest.mark.parametrize(
    "draw",
    [
        lambda model: plots.filters(model, "0"),
        lambda model: plots.feature_maps(model, PLANE[0], "0"),
        lambda model: plots.attention(model, PLANE[0], "0"),
        lambda model: plots.decision_boundary(model, PLANE, HALVES),
        lambda model: plots.architecture(model),
    ],
)
def test_a_builder_is_not_a_model(draw):
    with pytest.raises(ArgumentTypeError, match=r"takes a model, got Seq.*: call its build\(\)"):
        draw(models.mlp(2, 3))
    with pytest.raises(ArgumentTypeError, match=r"takes a model, got list\."):
        draw([1])


def text(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_its_code_draws(name):
    code = "\n".join(BLOCK.findall(text(name)))
    drawn = re.findall(r'"(\w+\.(?:png|svg))"', code)
    shown = re.findall(rf"\]\(pictures/{PAGES[name]}_(\S+)\)", text(name))
    assert shown
    assert drawn == shown
    files = {path.name for path in PICTURES.glob(f"{PAGES[name]}_*")}
    assert {f"{PAGES[name]}_{each}" for each in shown} == files


def test_the_page_shows_every_function_and_a_step_is_drawn_as_trace_saves_it(trace, tmp_path):
    page = text("plots")
    methods = {"history": "history.plot(", "rates": "rates.plot(", "histograms": "watch.plot("}
    for name in plots.__all__:
        assert methods.get(name, f"plots.{name}(") in page
    trace.save(tmp_path / "saved.svg")
    drawn = plots.step(trace, moving=True, path=tmp_path / "drawn.svg")
    assert drawn._repr_svg_() == (tmp_path / "drawn.svg").read_text("utf-8")
    once = (tmp_path / "saved.svg").read_text("utf-8")
    assert drawn.count("<rect") == once.count("<rect") > 0
    assert "@keyframes" in drawn
    assert "@keyframes" not in plots.step(trace)
    with pytest.raises(ArgumentTypeError, match=r"plots\.step takes"):
        plots.step(np.ones(3))
    with pytest.raises(ArgumentError, match=r"written to \.svg files, got .*step\.png"):
        plots.step(trace, path=tmp_path / "step.png")
    assert not (tmp_path / "step.png").exists()


@pytest.fixture
def trace():
    model = SequentialBuilder(2, seed=0).dense(3).tanh().dense(1).loss("mse").build()
    rng = np.random.default_rng(1)
    return model.trace(rng.standard_normal((4, 2)), rng.standard_normal((4, 1)))
