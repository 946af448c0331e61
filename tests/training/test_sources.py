"""What goes into training: arrays, files, datasets and streams of batches."""

import tracemalloc
from collections import deque

import numpy as np
import pytest

from phitodeep import CategoricalCrossEntropy, SequentialBuilder, SoftmaxCrossEntropy
from phitodeep.data import windows
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, ShapeError
from phitodeep.training.inputs import Share
from phitodeep.training.sources import Epoch, Shard, as_source
from tests.conftest import assert_weights, in_parts

N, D, K = 120, 6, 3


def classifier():
    builder = SequentialBuilder(D, seed=3).dense(8).tanh().dropout(0.1).dense(K).softmax()
    return builder.loss("categorical_cross_entropy").metrics("accuracy").alpha(0.01).build()


@pytest.fixture
def arrays(rng):
    X = rng.standard_normal((N, D)).astype(np.float32)
    return X, X[:, :K].argmax(axis=1)


def on_disk(path, a):
    file = np.memmap(path, a.dtype, "w+", shape=a.shape)
    file[...] = a
    file.flush()
    return np.memmap(path, a.dtype, "r", shape=a.shape)


def pairs(X, y, size=16):
    return [(X[i : i + size], y[i : i + size]) for i in range(0, len(X), size)]


def dataset_of(X, y):
    import datasets

    return datasets.Dataset.from_dict({"pixels": X, "label": y})


SIZE = {"batch_size": 16}


def trained(y, loss=None, **options):
    """A classifier after some steps on fixed inputs."""
    X = np.random.default_rng(5).standard_normal((N, D)).astype(np.float32)
    model = classifier()
    model.setloss(loss or "categorical_cross_entropy")
    model.train(X, y, epochs=2, batch_size=16, verbose=0, **options)
    return model


LABELS = np.arange(N) % 7 // 3  # three classes: 3/7, 3/7 and 1/7 of the samples
BALANCE = {k: N / (3 * np.count_nonzero(LABELS == k)) for k in range(3)}


@pytest.mark.parametrize("form", ["labels", "column", "one-hot"])
def test_balanced_weighs_classes_against_their_frequency(form):
    y = {"labels": LABELS, "column": LABELS[:, None], "one-hot": np.eye(3)[LABELS]}[form]
    assert_weights(trained(y, class_weight="balanced"), trained(y, class_weight=BALANCE))


@pytest.mark.parametrize(("name", "missing"), [("no row", 0), ("ignored", -1), ("ignored", 1)])
def test_balanced_counts_the_classes_that_occur(name, missing):
    """Labels of class 1 are 0, or are ignored."""
    y = np.where(LABELS == 1, missing, LABELS)
    loss = CategoricalCrossEntropy(ignore_index=missing) if name == "ignored" else None
    n = np.count_nonzero(y != missing) if loss else N
    weights = {k: n / (2 * np.count_nonzero(y == k)) for k in (0, 2)}
    models = [trained(y, loss, class_weight=each) for each in ("balanced", weights)]
    assert_weights(*models)
    assert trained(0 * y, class_weight="balanced").optimizer.t == 16


@pytest.mark.parametrize("loss", ["binary_cross_entropy_with_logits", "hinge"])
@pytest.mark.parametrize("smooth", [0.0, 0.1])
def test_balanced_weighs_the_two_classes_of_one_output(loss, smooth, rng):
    X, y = rng.standard_normal((40, 3)), (np.arange(40) % 5 == 0).astype(int)
    positive, negative = 40 / (2 * 8), 40 / (2 * 32)
    T = 2 * y - 1 if loss == "hinge" else y * (1 - 2 * smooth) + smooth
    low = -1 if loss == "hinge" else 0
    models = []
    for options in (
        {"class_weight": "balanced"},
        {"class_weight": {low: negative, 1: positive}},
        {"sample_weight": np.where(y, positive, negative)},
    ):
        models.append(SequentialBuilder(3, seed=0).dense(1).loss(loss).build())
        models[-1].train(X, T, epochs=3, batch_size=40, verbose=0, **options)
    assert_weights(models[0], models[1])
    assert_weights(models[0], models[2], rtol=1e-5, atol=0)


def test_balanced_does_not_count_padding(rng):
    X, lengths = rng.standard_normal((30, 5, 3)), rng.integers(1, 6, 30)
    y = (rng.random((30, 5)) < 0.3).astype(int)
    there = np.arange(5) < lengths[:, None]
    y[~there] = 1
    y[0, 0] = -1  # is ignored
    ones, n = np.count_nonzero(y[there] == 1), lengths.sum() - 1
    models = []
    for class_weight in ("balanced", [n / (2 * (n - ones)), n / (2 * ones)]):
        model = (
            SequentialBuilder(5, 3, seed=0)
            .gru(4)
            .dense(2)
            .loss(SoftmaxCrossEntropy(ignore_index=-1))
        )
        models.append(model.build())
        options = {"class_weight": class_weight, "lengths": lengths, "verbose": 0}
        models[-1].train(X, y, epochs=2, batch_size=8, **options)
    assert_weights(*models)


def test_a_label_that_is_ignored_has_no_class_weight(rng):
    X, y = rng.standard_normal((6, 3)), np.array([0, 1, 0, 1, 255, 255])
    models, by_label = [], {"class_weight": {1: 3.0}}
    for n, weights in ((6, by_label), (6, {"sample_weight": [1, 3, 1, 3, 7, 9]}), (4, by_label)):
        loss = SoftmaxCrossEntropy(ignore_index=255)
        models.append(SequentialBuilder(3, seed=0).dense(2).loss(loss).optimizer("sgd").build())
        models[-1].train(X[:n], y[:n], **weights, epochs=2, verbose=0)
    assert_weights(*models[:2])
    assert_weights(*models[1:], rtol=1e-6)  # sums of fewer rows round otherwise


def test_balanced_needs_labels_in_memory(arrays, tmp_path):
    X, y = arrays
    for data in ((pairs(X, y),), (lambda: pairs(X, y),), (on_disk(tmp_path / "X", X), y)):
        with pytest.raises(ArgumentError, match=r"arrays in memory.*give the weights by label"):
            classifier().train(*data, class_weight="balanced", batch_size=8, epochs=1, verbose=0)
    with pytest.raises(ArgumentError, match=r'takes "balanced".*got .equal.'):
        classifier().train(X, y, class_weight="equal", epochs=1, verbose=0)
    regression = SequentialBuilder(D, seed=0).dense(1).build()
    with pytest.raises(ArgumentError, match="a classification loss"):
        regression.train(X, X[:, :1], class_weight="balanced", epochs=1, verbose=0)


def test_targets_at_padding_may_be_anything(rng):
    X, labels = rng.standard_normal((4, 3, 2)), rng.integers(0, 2, (4, 3))
    model = SequentialBuilder(3, 2, seed=0).gru(4).dense(2).loss("softmax_cross_entropy").build()
    for lengths in ([3, 1, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0]):
        there = np.arange(3) < np.array(lengths)[:, None]
        for y, bad in ((labels, -7), (np.eye(2)[labels], np.nan)):
            given = y.copy()
            given[~there] = bad if any(lengths) else y[~there]
            before = given.copy()
            wanted = model.evaluate(X, y, lengths=lengths)
            assert any(lengths) or wanted == {"loss": 0}
            assert model.evaluate(X, given, lengths=lengths) == wanted
            np.testing.assert_array_equal(given, before)


def test_padding_changes_no_divergence(rng):
    """The loss, its gradient, accumulation and threads with KLDivergence are those without it."""
    lengths = np.array([3, 1, 2, 3, 2, 1])
    X, T = rng.standard_normal((6, 3, 4)), rng.dirichlet(np.ones(5), (6, 3))
    weights = np.linspace(0.5, 2, 6)
    found = []
    for steps, options in (
        (3, {}),
        (6, {}),
        (30, {}),
        (3, {"batch_size": 2, "accumulate": 3, "shuffle": False}),
        (30, {"batch_size": 2, "accumulate": 3, "shuffle": False}),
        (30, {"threads": 2}),  # in two parts
    ):
        longer, wide = np.zeros((6, steps, 4)), np.full((6, steps, 5), 0.2)
        longer[:, :3], wide[:, :3] = X, T
        model = SequentialBuilder(steps, 4, seed=0).dense(5).log_softmax()
        model = model.loss("kl_divergence").optimizer("sgd").alpha(0.1).dtype("float64").build()
        known = {"lengths": lengths, "sample_weight": weights}
        before = model.evaluate(longer, wide, **known, batch_size=4)["loss"]
        with in_parts(options.get("threads", 1)):
            history = model.train(longer, wide, epochs=2, verbose=0, **known, **options)
        found.append([before, *model.layers[0].W.ravel()])
        assert history[0][0] == pytest.approx(before)
    log_p = SequentialBuilder(3, 4, seed=0).dense(5).log_softmax().dtype("float64").build()(X)
    each = (T * (np.log(T) - log_p)).sum(-1) * (np.arange(3) < lengths[:, None])
    assert found[0][0] == pytest.approx((each.sum(1) * weights).sum() / weights.sum())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9)


@pytest.mark.parametrize(("size", "dtype"), [(16, np.float32), (N, np.float32), (16, np.int16)])
def test_a_file_trains_as_the_array_does(arrays, tmp_path, size, dtype):
    X, y = (arrays[0] * (50 if dtype is np.int16 else 1)).astype(dtype), arrays[1]
    held, filed = classifier(), classifier()
    wanted = held.train(X[:96], y[:96], X[96:], y[96:], epochs=3, batch_size=size, verbose=0)
    files = on_disk(tmp_path / "X", X), on_disk(tmp_path / "y", y)
    found = filed.train(*files, epochs=3, batch_size=size, validation_split=0.2, verbose=0)
    assert found == wanted
    assert found.metrics == wanted.metrics
    assert_weights(held, filed)
    unbuilt = SequentialBuilder(seed=0).dense(K).loss("softmax_cross_entropy").build()
    assert unbuilt.train(*files, epochs=1, batch_size=16, verbose=0)
    np.testing.assert_array_equal(filed.predict(files[0], 50), held.predict(X, 50))
    assert filed.evaluate(*files, batch_size=16) == held.evaluate(X, y, batch_size=16)


def test_weights_lengths_and_windows_go_with_a_file(rng, tmp_path):
    X, y = rng.standard_normal((20, 5, 3)).astype(np.float32), rng.integers(0, 2, (20, 5))
    w, lengths = np.repeat(rng.random((20, 1)), 5, 1), rng.integers(0, 6, 20)
    models = []
    for given in (X, on_disk(tmp_path / "X", X)):
        model = SequentialBuilder(5, 3, seed=0).gru(4).dense(2).loss("softmax_cross_entropy")
        models.append(model.metrics("accuracy").build())
        options = {"epochs": 2, "batch_size": 8, "sample_weight": w, "lengths": lengths}
        models[-1].train(given, y, verbose=0, **options)
    assert_weights(*models)
    flat = SequentialBuilder(5, 3, seed=0).flatten().dense(2).loss("softmax_cross_entropy").build()
    with pytest.raises(PhitodeepError, match=r"lengths|mask") as error:
        flat.train(on_disk(tmp_path / "X", X), y[:, 0], batch_size=8, lengths=lengths, verbose=0)
    assert "batch 1" not in str(error.value)  # none was read
    tokens = rng.integers(0, 9, 300).astype(np.uint16)
    models = []
    for corpus in (tokens, on_disk(tmp_path / "tokens", tokens)):
        X, y = windows(corpus, 7)
        model = SequentialBuilder(7, seed=0).embedding(9, 4).gru(5).dense(9)
        models.append(model.loss("softmax_cross_entropy").build())
        models[-1].train(X, y, epochs=1, batch_size=32, verbose=0)
    assert isinstance(X, np.memmap)
    assert X.dtype == np.uint16
    assert_weights(*models)


@pytest.mark.parametrize("kind", ["file", "function", "dataset", "stream"])
def test_memory_stays_under_a_quarter_of_the_file(kind, tmp_path):
    n, width = 2048, 256
    X = np.memmap(tmp_path / "X", np.float32, "w+", shape=(n, width))
    rng = np.random.default_rng(0)
    for i in range(0, n, 512):
        X[i : i + 512] = rng.standard_normal((512, width))
    size = X.nbytes
    y = np.arange(n) % K
    arrow = 0
    if kind == "file":
        data = (X, y)
    elif kind == "function":

        def read():
            with (tmp_path / "X").open("rb") as file:
                for i in range(0, n, 64):
                    rows = np.frombuffer(file.read(64 * 4 * width), np.float32)
                    yield rows.reshape(64, width), y[i : i + 64]

        data = (read,)
    else:
        pa, datasets = pytest.importorskip("pyarrow"), pytest.importorskip("datasets")
        features = datasets.Features(
            {"x": datasets.Sequence(datasets.Value("float32"), width), "y": datasets.Value("int64")}
        )
        with datasets.arrow_writer.ArrowWriter(
            path=str(tmp_path / "rows.arrow"), features=features, writer_batch_size=256
        ) as writer:
            for i in range(0, n, 256):
                writer.write_batch({"x": X[i : i + 256], "y": y[i : i + 256]})
            writer.finalize()
        dataset = datasets.Dataset.from_file(str(tmp_path / "rows.arrow"))
        data = (dataset if kind == "dataset" else dataset.to_iterable_dataset(),)
        arrow = pa.total_allocated_bytes()
    model = SequentialBuilder(width, seed=0).dense(K).loss("softmax_cross_entropy").build()
    model.train(X[:64], y[:64], epochs=1, batch_size=64, verbose=0)  # imports, loads kernels
    tracemalloc.start()
    try:
        model.train(*data, epochs=1, batch_size=64, verbose=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if kind in ("dataset", "stream"):
        peak += pa.default_memory_pool().max_memory() - arrow
    assert model.optimizer.t == 1 + n // 64
    assert peak < size / 4


def test_what_a_file_needs_and_that_a_bad_row_is_named(arrays, tmp_path):
    file = on_disk(tmp_path / "X", arrays[0])
    for data in ((file, arrays[1].tolist()), (arrays[0], on_disk(tmp_path / "y", arrays[1]))):
        with pytest.raises(ArgumentError, match="needs a batch_size"):
            classifier().train(*data, epochs=1, verbose=0)
    with pytest.raises(ArgumentTypeError, match="X was given without y"):
        classifier().train(file, epochs=1, verbose=0)
    with pytest.raises(ShapeError, match=r"X has 120 samples, y has shape \(119,\)"):
        classifier().train(file, arrays[1][1:], epochs=1, batch_size=8, verbose=0)
    X, y = arrays
    X[70, 2] = np.nan
    model, good = classifier(), classifier()
    with pytest.raises(ArgumentError, match=r"X\[6, 2\] is nan.*batch 5|batch 5.*X\[6, 2\] is nan"):
        model.train(on_disk(tmp_path / "X", X), y, batch_size=16, shuffle=False, verbose=0)
    for data in ((on_disk(tmp_path / "X", X), y), (pairs(X, y), None)):
        source = as_source(model, model.loss, *data, batch_size=16)
        with pytest.raises(ArgumentError, match="batch 5"):
            list(source.batches(Epoch(16, first=3)))
    good.train(X[:64], y[:64], epochs=1, batch_size=16, shuffle=False, verbose=0)
    assert_weights(model, good)
    model.train(X[:64], y[:64], epochs=1, batch_size=16, verbose=0)  # and it goes on


STREAMS = {
    "list": list,
    "tuple": tuple,
    "object": lambda batches: deque(map(list, batches)),  # as a DataLoader
    "function": lambda batches: lambda: iter(batches),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_batches_train_as_the_array_in_its_own_order(make, arrays):
    X, y = arrays
    held, fed = classifier(), classifier()
    options = {"epochs": 3, "verbose": 0}
    wanted = held.train(X, y, X[:50], y[:50], batch_size=16, shuffle=False, **options)
    found = fed.train(make(pairs(X, y)), X_test=make(pairs(X[:50], y[:50], 25)), **options)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for name, values in wanted.metrics.items():
        np.testing.assert_allclose(found.metrics[name], values, rtol=1e-12)
    assert_weights(held, fed)
    assert fed.evaluate(make(pairs(X, y)))["loss"] == pytest.approx(fed.evaluate(X, y)["loss"])


WEIGHTS, CLASSES = np.linspace(0, 1, N), {0: 2.0, 2: 0.0}
NAMED = {"columns": ("pixels", "label")}
# what is trained on, given X and y; its options; options of the same training on arrays
ALIKE = {
    "class weights": (pairs, {"class_weight": CLASSES}, {"class_weight": CLASSES}),
    "accumulated": (pairs, {"accumulate": 3}, {"accumulate": 3}),  # 8 batches: 3, 3 and 2
    "triples": (
        lambda X, y: [(*p, w) for p, (w, _) in zip(pairs(X, y), pairs(WEIGHTS, y), strict=True)],
        {},
        {"sample_weight": WEIGHTS},
    ),
    "columns": (
        lambda X, y: [{"label": b, "pixels": a, "name": "?"} for a, b in pairs(X, y)],
        NAMED,
        {},
    ),
    "a dataset that streams": (lambda X, y: dataset_of(X, y).to_iterable_dataset(), SIZE, {}),
    "a dataset with more columns": (
        lambda X, y: dataset_of(X, y).add_column("name", ["?"] * N),
        {**SIZE, **NAMED, "shuffle": False},
        {},
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_batches_train_as_arrays_that_are_not_shuffled(name, arrays):
    make, options, same = ALIKE[name]
    if "dataset" in name:
        pytest.importorskip("datasets")
    held, fed = classifier(), classifier()
    held.train(*arrays, epochs=2, shuffle=False, verbose=0, **SIZE, **same)
    fed.train(make(*arrays), epochs=2, verbose=0, **options)
    assert fed.optimizer.t == held.optimizer.t == (6 if name == "accumulated" else 16)
    assert_weights(held, fed)


def test_a_generator_is_read_once(arrays):
    X, y = arrays
    model = classifier()
    for data in ((iter(pairs(X, y)),), (X, y, iter(pairs(X, y)))):
        with pytest.raises(ArgumentError, match="yields its batches only once, but epochs=2"):
            model.train(*data, epochs=2, verbose=0)
    assert model.optimizer.t == 0
    model = SequentialBuilder(seed=0).dense(K).loss("softmax_cross_entropy").build()
    assert len(model.train(iter(pairs(X, y)), epochs=1, verbose=0)) == 1
    assert model.optimizer.t == 8  # no batch was lost to the look at the first,
    assert model.input_shape == (D,)  # which built the model


def test_streams_that_cannot_be_read_are_refused():
    for data, says in (
        ([], "at least one sample"),
        (lambda: iter([]), "yielded no batches"),
        (lambda: [(1.0, 2.0)], "at least one sample"),
        (lambda: [np.ones((2, D))], r"pairs \(X, y\)"),
        (lambda: [(np.ones((2, D)),)], "pairs"),
        (lambda: [(np.ones((2, D)), [0, 1]), (np.ones((2, D + 1)), [0, 1])], "batch 2"),
        (lambda: [{"a": 1, "b": 2, "c": 3}], r"columns \['a', 'b', 'c'\]"),
        *((data, "was given without y") for data in (np.ones((4, D)), [np.ones(D)] * 4)),
        ("text", "real numbers"),
        (b"text", "real numbers"),
        (range(4), "batches must be pairs"),
    ):
        with pytest.raises(PhitodeepError, match=says):
            classifier().train(data, epochs=1, verbose=0)


def test_options_of_arrays_are_refused_for_streams(arrays):
    for options, says in (
        ({"sample_weight": np.ones(N)}, "sample_weight is for arrays"),
        ({"lengths": np.ones(N, int)}, "lengths is for arrays"),
        ({"validation_split": 0.2}, "validation_split needs arrays"),
    ):
        with pytest.raises(ArgumentError, match=says):
            classifier().train(pairs(*arrays), epochs=1, verbose=0, **options)
    with pytest.raises(ArgumentError, match="columns are for datasets and batches"):
        classifier().train(*arrays, columns=("a", "b"), epochs=1, verbose=0)
    with pytest.raises(ArgumentTypeError, match="y_test was given without X_test"):
        classifier().train(*arrays, y_test=arrays[1], epochs=1, verbose=0)
    shared = iter(pairs(*arrays))
    with pytest.raises(ArgumentError, match="no batches in this epoch"):  # the second time
        classifier().train(lambda: shared, epochs=2, verbose=0)


class Streaming:
    """A dataset that streams, in memory."""

    def with_format(self, kind):
        return self

    def __iter__(self):
        return self.iter(1)

    def iter(self, batch_size):
        return iter([{"x": np.ones((batch_size, D)), "y": np.zeros(batch_size, int)}] * 2)


def test_a_rank_reads_batches_of_its_own_size_from_a_stream():
    model, share = classifier(), Share(1, 3)
    source = as_source(model, model.loss, Shard(Streaming(), share), None, batch_size=16)
    for _ in range(2):
        found = [len(batch.X) for batch in source.batches(Epoch(16, share=share))]
        assert found == [share.count(16)] * 2 == [5, 5]
    assert source.batch_size(16) == 5
    one = as_source(model, model.loss, np.ones((1, D)), [0], batch_size=16)
    assert [(part.n, part.counts) for part in one.batches(Epoch(16, share=share))] == [(1, False)]
    batches = pairs(np.ones((20, D)), LABELS[:20])
    source = as_source(model, model.loss, Shard(batches, share), None, batch_size=None)
    assert (source.steps(None), source.batch_size(None)) == (2, 16)
    assert [batch.n for batch in source.batches(Epoch(None, share=share))] == [16, 4]
    assert source.source.count == 20
    for data, y in ((batches[0][0], None), (batches, LABELS)):
        with pytest.raises(ArgumentError, match="is for data that yield batches"):
            as_source(model, model.loss, Shard(data, share), y, batch_size=16)


@pytest.fixture
def dataset(arrays):
    pytest.importorskip("datasets")
    return dataset_of(*arrays)


def test_a_dataset_trains_as_its_arrays_do(dataset, arrays):
    X, y = arrays
    held, fed = classifier(), classifier()
    options = {"epochs": 2, "batch_size": 16, "validation_split": 0.25, "verbose": 0}
    wanted, found = held.train(X, y, **options), fed.train(dataset, **options)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert_weights(held, fed)
    assert fed.evaluate(dataset)["loss"] == pytest.approx(fed.evaluate(X, y)["loss"])


def test_datasets_need_columns_samples_and_a_batch_size(dataset):
    wide = dataset.add_column("name", ["?"] * N)
    for options, says in (
        ({}, "name the columns of X and y"),
        ({"columns": ("pixels", "lable")}, "has the columns"),
    ):
        with pytest.raises(ArgumentError, match=says):
            classifier().train(wide, epochs=1, batch_size=16, verbose=0, **options)
    with pytest.raises(ShapeError, match="no samples"):
        classifier().train(dataset.select([]), epochs=1, batch_size=8, verbose=0)
    for data in (dataset, dataset.to_iterable_dataset()):
        with pytest.raises(ArgumentError, match="needs a batch_size"):
            classifier().train(data, epochs=1, verbose=0)
