"""Convolutions against loops over every number, and what one is to another."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, ShapeError
from phitodeep.layers import (
    Conv1D,
    Conv2D,
    ConvTranspose1D,
    ConvTranspose2D,
    DepthwiseConv2D,
    Layer,
    MaxPool2D,
    ReLU,
    convolution,
)
from phitodeep.model import Sequential
from phitodeep.testing import check_gradients
from phitodeep.testing.examples import made

LINES = [  # sizes, kernel, stride, padding, dilation, groups
    ((n,), k, s, p, d, g)
    for n, k, s, p, d, g in itertools.product(
        (1, 4, 7), (1, 2, 3), (1, 2, 3), ("valid", "same", 2), (1, 2), (1, 2)
    )
    if p != "valid" or (k - 1) * d < n
]
IMAGES = [
    ((4, 5), (3, 2), 1, "valid", 1, 1),
    ((5, 4), (2, 3), (2, 1), "same", 1, 2),
    ((5, 6), 3, 2, 1, 1, 1),
    ((1, 1), 3, 1, 1, 1, 2),
    ((1, 4), (1, 3), (1, 2), "same", (1, 2), 1),
    ((4, 4), 2, 3, "same", 1, 1),
    ((5, 3), 2, 1, 2, (2, 1), 2),
    ((3, 2), (3, 2), 1, "valid", 1, 1),
]
TABLE = [*LINES, *IMAGES]
few = pytest.mark.parametrize("row", [*LINES[::5], *IMAGES], ids=str)


def channels(groups: int) -> tuple[int, int]:
    return (2, 4) if groups == 2 else (3, 2)


def conv(row: Any, *, bias: bool = True) -> Layer:
    sizes, k, s, p, d, g = row
    c, f = channels(g)
    kind = (Conv1D, Conv2D)[len(sizes) - 1]
    options = {"stride": s, "padding": p, "dilation": d, "groups": g, "bias": bias}
    return made(lambda: kind(f, k, **options), (2, *sizes, c))


def along(value: Any, rank: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * rank


def rule(row: Any) -> list[tuple[int, int, int, int, int]]:
    """(output size, zeros before, kernel, stride, dilation) of each axis, from the definitions."""
    sizes, k, s, p, d, _ = row
    rank, found = len(sizes), []
    for n, k_i, s_i, d_i in zip(sizes, along(k, rank), along(s, rank), along(d, rank), strict=True):
        extent = (k_i - 1) * d_i + 1
        if p == "same":
            out = int(np.ceil(n / s_i))
            before = max((out - 1) * s_i + extent - n, 0) // 2
        else:
            before = 0 if p == "valid" else p
            out = (n + 2 * before - extent) // s_i + 1
        found.append((out, before, k_i, s_i, d_i))
    return found


def by_loops(row: Any, X: Array, W: Array, b: Array) -> Array:
    """The sum in Conv's docstring, one product at a time."""
    axes, groups = rule(row), row[-1]
    c, f = X.shape[-1] // groups, W.shape[-1] // groups
    Y = np.zeros((len(X), *(a[0] for a in axes), W.shape[-1])) + b
    for place in np.ndindex(Y.shape[1:-1]):
        for tap in np.ndindex(W.shape[:-2]):
            at = tuple(
                i * s + t * d - before
                for i, t, (_, before, _, s, d) in zip(place, tap, axes, strict=True)
            )
            if all(0 <= i < n for i, n in zip(at, X.shape[1:-1], strict=True)):
                for g in range(groups):
                    G = slice(g * f, (g + 1) * f)
                    x = X[(slice(None), *at, slice(g * c, (g + 1) * c))]
                    Y[(slice(None), *place, G)] += x @ W[(*tap, slice(None), G)]
    return Y


@pytest.mark.parametrize("rank", [1, 2])
def test_forward_is_the_sum_over_places_taps_and_groups(
    rank: int, rng: np.random.Generator
) -> None:
    for row in TABLE:
        if len(row[0]) == rank:
            layer = conv(row)
            X = rng.standard_normal((2, *row[0], channels(row[-1])[0]))
            Y = layer.forward(X)
            assert Y.shape[1:] == layer.output_shape
            wanted = by_loops(row, X, layer.params["W"], layer.params["b"])
            np.testing.assert_allclose(Y, wanted, rtol=1e-12, atol=1e-12, err_msg=str(row))


@few
def test_convolution_gradients(row: Any, rng: np.random.Generator) -> None:
    for n in (1, 2):
        X = rng.standard_normal((n, *row[0], channels(row[-1])[0]))
        check_gradients(conv(row), X, max_probes=40)


@pytest.mark.parametrize("kind", [Conv1D, Conv2D, DepthwiseConv2D])
@pytest.mark.parametrize("needs_dX", [True, False])
def test_one_channel_gives_what_two_give_if_one_is_zero(
    kind: Any, needs_dX: bool, rng: np.random.Generator
) -> None:
    """With one channel, b is one more row of W."""
    one = DepthwiseConv2D(2, multiplier=3) if kind is DepthwiseConv2D else kind(3, 2)
    sizes = (6,) if kind is Conv1D else (6, 5)
    one.build((*sizes, 1), seed=0, dtype=np.float64)
    two = (Conv1D if kind is Conv1D else Conv2D)(3, 2)
    two.build((*sizes, 2), seed=0, dtype=np.float64)
    one.b = two.b = rng.standard_normal(3)
    two.W = np.concatenate([one.W, one.W], axis=-2)
    X, found = rng.standard_normal((4, *sizes, 1)), []
    dY = rng.standard_normal((4, *(one.output_shape or ())))
    for layer, A in ((one, X), (two, np.concatenate([X, 0 * X], axis=-1))):
        Y = layer.forward(A)
        with calling(needs_dX=needs_dX):
            dX = layer.backward(dY)
        assert (dX is None) != needs_dX
        dX = np.zeros(1) if dX is None else dX
        found.append([Y, dX[..., :1], layer.grads["W"][..., :1, :], layer.grads["b"]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("block", [1, 300, 800])
def test_windows_in_blocks_give_what_all_at_once_give(
    block: int, channels: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = min(channels, 2)
    layer = Conv2D(6, 3, stride=2, padding="same", groups=groups)
    layer.build((9, 7, channels), seed=0, dtype=np.float64)
    layer.b = rng.standard_normal(6)
    X, dY = rng.standard_normal((7, 9, 7, channels)), rng.standard_normal((7, 5, 4, 6))
    seen = []
    for numbers in (1 << 20, block):
        monkeypatch.setattr(convolution, "BLOCK", numbers)
        with calling(reuse=True):
            for n in (7, 5):  # a shorter last batch
                Y = layer.forward(X[:n]).copy()
                for _ in range(2):  # backward again gives the same
                    dX = layer.backward(dY[:n])
                    assert dX is not None
                    seen.append([Y, dX.copy(), *layer.gradients().values()])
        kept = layer.cache["U"]
        assert (kept is None) == (numbers == block)
    for one, two in zip(seen[: len(seen) // 2], seen[len(seen) // 2 :], strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def leftover(row: Any) -> tuple[int, ...]:
    """How many places of X the last window of a strided convolution does not reach."""
    return tuple(
        (n + 2 * before - ((k - 1) * d + 1)) % s
        for n, (_, before, k, s, d) in zip(row[0], rule(row), strict=True)
    )


def adjoint(row: Any, layer: Layer) -> Layer:
    """The transposed convolution of the same settings and the same weights."""
    sizes, k, s, p, d, g = row
    c, f = channels(g)
    kind = (ConvTranspose1D, ConvTranspose2D)[len(sizes) - 1]
    more: dict[str, Any] = {} if p == "same" else {"output_padding": leftover(row)}
    back = kind(c, k, stride=s, padding=p, dilation=d, groups=g, bias=False, **more)
    back.build((*(a[0] for a in rule(row)), f), dtype=np.float64)
    back.W = layer.params["W"].swapaxes(-1, -2)
    return back


def divides(row: Any) -> bool:
    """Whether a "same" convolution's input is known from its output."""
    strides = along(row[2], len(row[0]))
    return row[3] != "same" or all(n % s == 0 for n, s in zip(row[0], strides, strict=True))


@pytest.mark.parametrize("rank", [1, 2])
def test_transposed_convolution_is_the_adjoint(rank: int, rng: np.random.Generator) -> None:
    """<conv(x), y> = <x, conv_transpose(y)>, and each one's backward is the other's forward."""
    tried = 0
    for row in TABLE:
        if len(row[0]) == rank and divides(row):
            layer = conv(row, bias=False)
            X = rng.standard_normal((2, *row[0], channels(row[-1])[0]))
            CX = layer.forward(X)
            Y = rng.standard_normal(CX.shape)
            back = adjoint(row, layer)
            TY = back.forward(Y)
            assert TY.shape == X.shape
            assert np.vdot(CX, Y) == pytest.approx(np.vdot(X, TY), rel=1e-10)
            np.testing.assert_allclose(layer.backward(Y), TY, atol=1e-12, err_msg=str(row))
            np.testing.assert_allclose(back.backward(X), CX, atol=1e-12, err_msg=str(row))
            tried += 1
    assert tried >= (6 if rank == 2 else 100)


TRANSPOSED: list[tuple[Any, ...]] = [  # sizes, kernel, options
    ((4,), 3, {}),
    ((1,), 1, {}),
    ((3,), 2, {"stride": 3}),
    ((3,), 2, {"stride": 3, "padding": "same"}),
    ((4,), 3, {"stride": 2, "padding": 1, "output_padding": 1}),
    ((4,), 4, {"stride": 2, "padding": "same", "dilation": 2, "groups": 2}),
    ((3,), 3, {"padding": 2, "dilation": 2, "groups": 2, "bias": False}),
    ((1, 3), (2, 3), {"stride": (3, 2), "output_padding": (2, 1)}),
    ((2, 3), 3, {"stride": 2, "padding": "same", "groups": 2}),
    ((3, 2), (2, 3), {"dilation": (2, 1), "padding": 1}),
]


@pytest.mark.parametrize("row", TRANSPOSED, ids=str)
def test_transposed_gradients_and_size(row: Any, rng: np.random.Generator) -> None:
    sizes, k, options = row
    kind, rank = (ConvTranspose1D, ConvTranspose2D)[len(sizes) - 1], len(sizes)
    layer = made(lambda: kind(4, k, **options), (2, *sizes, 2))
    for n in (1, 2):
        check_gradients(layer, rng.standard_normal((n, *sizes, 2)), max_probes=40)
    s, d, o = (
        along(options.get(name, least), rank)
        for name, least in (("stride", 1), ("dilation", 1), ("output_padding", 0))
    )
    p = options.get("padding", "valid")
    zeros = 0 if isinstance(p, str) else p
    assert layer.output_shape == (
        *(
            n * s_i if p == "same" else (n - 1) * s_i + (k_i - 1) * d_i + 1 + o_i - 2 * zeros
            for n, k_i, s_i, d_i, o_i in zip(sizes, along(k, rank), s, d, o, strict=True)
        ),
        4,
    )


def test_same_pads_the_odd_zero_after(rng: np.random.Generator) -> None:
    layer = Conv1D(1, 2, padding="same", bias=False)
    layer.build((3, 1), dtype=np.float64)
    layer.W = np.array([1.0, 10.0]).reshape(2, 1, 1)
    X = np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1)
    np.testing.assert_array_equal(layer.forward(X).ravel(), [21, 32, 3])
    for n, k, s in itertools.product(range(1, 9), range(1, 6), range(1, 4)):
        assert Conv1D(2, k, stride=s, padding="same")._measured((n, 1)).output_shape == (
            -(-n // s),
            2,
        )


def test_groups_are_convolutions_side_by_side(rng: np.random.Generator) -> None:
    whole = made(lambda: Conv2D(6, 3, groups=3, stride=2), (2, 5, 6, 6))
    X = rng.standard_normal((2, 5, 6, 6))
    parts = []
    for g in range(3):
        alone = Conv2D(2, 3, stride=2)
        alone.build((5, 6, 2), dtype=np.float64)
        alone.W, alone.b = whole.W[..., 2 * g : 2 * g + 2], whole.b[2 * g : 2 * g + 2]
        parts.append(alone.forward(X[..., 2 * g : 2 * g + 2]))
    np.testing.assert_allclose(whole.forward(X), np.concatenate(parts, -1), rtol=1e-12)


def test_depthwise_gives_each_channel_its_filters(rng: np.random.Generator) -> None:
    layer = made(lambda: DepthwiseConv2D(2, multiplier=3), (2, 3, 4, 2))
    X = rng.standard_normal((2, 3, 4, 2))
    Y, W = layer.forward(X), layer.params["W"]
    assert W.shape == (2, 2, 1, 6)
    for out in range(6):
        wanted = sum(
            X[:, i : i + 2, j : j + 3, out // 3] * W[i, j, 0, out]
            for i, j in itertools.product(range(2), repeat=2)
        )
        np.testing.assert_allclose(Y[..., out], wanted + layer.params["b"][out], rtol=1e-12)
    check_gradients(layer, X)
    check_gradients(DepthwiseConv2D((3, 2), stride=2, padding="same", dilation=(1, 2)), X)


def test_a_conv_of_one_place_is_a_dense_layer(rng: np.random.Generator) -> None:
    layer = made(lambda: Conv2D(3, 1), (2, 4, 5, 2))
    X = rng.standard_normal((2, 4, 5, 2))
    np.testing.assert_allclose(
        layer.forward(X), X @ layer.params["W"][0, 0] + layer.params["b"], rtol=1e-12
    )


def test_an_image_of_another_size_may_come(rng: np.random.Generator) -> None:
    layer = made(lambda: Conv2D(2, 3, padding="same"), (2, 4, 4, 2))
    for sizes in ((3, 7), (5, 5), (1, 1)):
        check_gradients(layer, rng.standard_normal((2, *sizes, 2)), max_probes=10)


def test_a_strided_view_may_come(rng: np.random.Generator) -> None:
    for layer in (conv(IMAGES[0]), made(lambda: ConvTranspose2D(2, 2), (2, 4, 5, 3))):
        X = rng.standard_normal((5, 4, 2, 3)).transpose(2, 1, 0, 3)
        Y = layer.forward(X)
        dY = rng.standard_normal(Y.shape[::-1]).T
        dX = layer.backward(dY)
        np.testing.assert_array_equal(layer.forward(X.copy()), Y)
        np.testing.assert_allclose(layer.backward(dY.copy()), dX, rtol=1e-12)


def test_weights_begin_at_the_scale_of_their_fan_in() -> None:
    for make, fan_in in (
        (lambda: Conv2D(64, 3), 9 * 32),
        (lambda: Conv2D(64, 3, groups=4), 9 * 8),
        (lambda: Conv1D(200, 5), 5 * 32),
    ):
        layer = make()
        layer.build((8,) * layer.rank + (32,), seed=1)
        assert layer.W.std() == pytest.approx(np.sqrt(2 / fan_in), rel=0.05)
        assert not layer.b.any()
    assert Conv2D(2, 3, bias=False)._measured((4, 4, 1)).count_params() == 18


def test_flops_count_each_product_and_sum() -> None:
    conv2d = Conv2D(4, 3, groups=2)._measured((5, 6, 2))
    assert conv2d.flops() == 2 * (3 * 4) * (9 * 1 * 4) + 3 * 4 * 4
    back = ConvTranspose2D(4, 3, stride=2, bias=False)._measured((5, 6, 2))
    assert back.flops() == 2 * (5 * 6) * (9 * 2 * 4)


@pytest.mark.parametrize(
    ("make", "shape", "says"),
    [
        (lambda: Conv2D(2, 5), (4, 6, 1), r"Conv2D: a window of \(5, 5\) does not fit.*\(4, 6\)"),
        (lambda: Conv1D(2, 3, dilation=3), (6, 1), r"Conv1D: a window of \(7,\) does not fit"),
        (lambda: Conv2D(2, 7, padding=1), (4, 4, 1), r"padded to \(6, 6\)"),
        (
            lambda: Conv2D(4, 3, groups=2),
            (4, 4, 3),
            "Conv2D.*3 channels are not divisible by 2 groups",
        ),
        (lambda: ConvTranspose1D(4, 3, groups=2), (4, 3), "ConvTranspose1D.*3 channels"),
        (lambda: Conv2D(4, 3), (4, 4), r"Conv2D.*\(height, width, C\), got \(4, 4\)"),
        (lambda: Conv1D(4, 3), (4, 4, 1), r"Conv1D.*\(steps, C\)"),
        (lambda: Conv1D(4, 3), (4,), r"Conv1D.*\(steps, C\)"),
        (lambda: DepthwiseConv2D(3), (4, 4), "DepthwiseConv2D.*takes samples"),
        (lambda: ConvTranspose2D(4, 3), (4, 4), "ConvTranspose2D.*takes samples"),
        (lambda: ConvTranspose1D(2, 1, padding=1), (2, 1), "ConvTranspose1D.*leaves nothing"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make: Any, shape: Any, says: str) -> None:
    for layer in (make(), Sequential(ReLU(), make())):
        with pytest.raises(ShapeError, match=says) as caught:
            layer.build(shape)
    assert "layer 1 of Sequential" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Conv2D(4, 3, groups=3), "Conv2D: 4 filters are not divisible by 3 groups"),
        (lambda: ConvTranspose1D(2, 3, output_padding=1), "ConvTranspose1D.*less than the stride"),
        (lambda: ConvTranspose2D(2, 3, stride=(3, 2), output_padding=(2, 2)), "ConvTranspose2D"),
        (
            lambda: ConvTranspose1D(2, 3, stride=2, padding="same", output_padding=1),
            "leave out output_p",
        ),
        (lambda: Conv2D(0, 3), "Conv2D filters must be >= 1"),
        (lambda: Conv2D(2, 0), "Conv2D kernel_size must be >= 1"),
        (lambda: Conv2D(2, (3, 3, 3)), "Conv2D kernel_size takes one integer or 2"),
        (lambda: Conv1D(2, (3, 3)), "Conv1D kernel_size takes one integer or 1"),
        (lambda: Conv2D(2, 3, stride=0), "Conv2D stride must be >= 1"),
        (lambda: Conv2D(2, 3, stride=(1, 0)), "Conv2D stride must be >= 1"),
        (lambda: Conv2D(2, 3, dilation=0), "Conv2D dilation must be >= 1"),
        (lambda: Conv2D(2, 3, groups=0), "Conv2D groups must be >= 1"),
        (lambda: Conv2D(2, 3, padding="full"), "Conv2D padding must be"),
        (lambda: Conv2D(2, 3, padding=-1), "Conv2D padding must be >= 0"),
        (lambda: ConvTranspose2D(2, 3, stride=2, output_padding=-1), "output_padding must be >= 0"),
        (lambda: DepthwiseConv2D(3, multiplier=0), "DepthwiseConv2D multiplier must be >= 1"),
    ],
)
def test_settings_without_a_meaning_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make()


@pytest.mark.parametrize("wrong", [2.0, "3", True, None, (1.5, 2)])
def test_settings_that_are_no_integers_are_refused(wrong: Any) -> None:
    for setting in ("kernel_size", "stride", "dilation"):
        with pytest.raises((ArgumentTypeError, ArgumentError), match=f"Conv2D {setting}"):
            Conv2D(2, **{"kernel_size": 3, setting: wrong})
    with pytest.raises(ArgumentTypeError, match="ConvTranspose1D filters"):
        ConvTranspose1D(2.5, 3)
    with pytest.raises(ArgumentTypeError, match="Conv1D padding"):
        Conv1D(2, 3, padding=1.5)


def test_an_input_that_does_not_fit_what_was_built_is_refused() -> None:
    for layer in (Conv2D(2, 3), ConvTranspose2D(2, 3), DepthwiseConv2D(3)):
        layer.build((5, 5, 2))
        for shape in ((2, 5, 5, 3), (2, 5, 5), (5, 5, 2), (2, 1, 5, 5, 2)):
            with pytest.raises(ShapeError, match=type(layer).__name__):
                layer.forward(np.ones(shape))
    with pytest.raises(ShapeError, match="does not fit"):
        made(lambda: Conv2D(2, 3), (1, 5, 5, 1)).forward(np.ones((1, 2, 5, 1)))
    with pytest.raises(ShapeError, match="in layer 1 of Sequential: Conv2D"):
        Sequential(MaxPool2D(2), Conv2D(2, 4)).build((6, 6, 1))


def test_a_refused_build_changes_nothing(rng: Any) -> None:
    layer, X = made(lambda: DepthwiseConv2D(3), (1, 5, 5, 3)), rng.standard_normal((1, 5, 5, 3))
    Y = layer.forward(X)
    with pytest.raises(PhitodeepError):
        layer.build((5, 5, 4))
    np.testing.assert_array_equal(layer.forward(X), Y)
