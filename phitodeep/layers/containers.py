"""Containers: layers that combine other layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import calling, current
from phitodeep.core.checks import check_option
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import containers as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.layers.chain import Chain as Chain
from phitodeep.layers.container import Container as Container
from phitodeep.layers.container import Position


class Residual(Chain):
    """A residual connection, Y = X + F(X), around the chain F of `layers`.

    Shapes: X, Y, dX, dY are (N, ...). F must keep the shape.
    Backward: X reaches Y directly and through F, so dX = dY + dF, with dF the gradient through F.
    Source: He et al. 2016, "Deep residual learning", arXiv:1512.03385, eq. 1.
    """

    _ends_with_last = False

    steps = derived.residual

    def create(self, shape: Shape) -> Shape:
        out = super().create(shape)
        if out != shape:
            raise self._shape_error(shape, out)
        return shape

    def forward(self, X: Array) -> Array:
        F = self._through(X)
        if F.shape != X.shape:
            raise self._shape_error(X.shape, F.shape)
        return np.add(X, F, out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array | None:
        dF = self._back_through(dY)
        if dF is None:
            return None
        return np.add(dY, dF, out=self.buffer("dX", dY.shape, dY.dtype))

    def _shape_error(self, shape: Shape, out: Shape) -> ShapeError:
        return ShapeError(
            f"{self!r} adds X to F(X): F must keep the shape {shape}, but it returns {out}."
        )

    def compute_mask(self, mask: Array) -> Array | None:
        return self._kept_mask(mask)

    def flops(self) -> int:
        return super().flops() + int(np.prod(self.output_shape or ()))


class Parallel(Container):
    """Apply several branches to the same X and merge their outputs.

    Shapes: X, dX are (N, ...). With merge="concat", branch i returns (N, ..., C_i), and Y, dY are
    (N, ..., sum of all C_i). With "add" or "multiply", all outputs must have the same shape, which
    is also the shape of Y, dY.

    Backward. X reaches Y through every branch, so dX is the sum of the branches' gradients.
    Branch i receives

        concat      its slice of dY
        add         dY
        multiply    dY times the product of the other outputs

    Source: Szegedy et al. 2015, "Going deeper with convolutions", arXiv:1409.4842 (concat).
    """

    skips_dX = True

    steps = derived.parallel

    def __init__(self, *branches: Layer, merge: str = "concat") -> None:
        super().__init__()
        self.merge = check_option(merge, "Parallel merge", ("concat", "add", "multiply"))
        if not branches:
            raise ArgumentError("Parallel needs at least one branch.")
        self.branches = self._held(branches)

    def create(self, shape: Shape) -> Shape:
        with Position("Parallel", "branch") as at:
            outs = []
            for at.i, branch in enumerate(self.branches):
                outs.append(branch.build(shape))
        self._check(outs)
        if self.merge == "concat":
            return (*outs[0][:-1], sum(o[-1] for o in outs))
        return outs[0]

    def forward(self, X: Array) -> Array:
        with Position("Parallel", "branch") as at:
            outs = []
            for at.i, branch in enumerate(self.branches):
                outs.append(branch.forward(X))
        self._check([Y.shape for Y in outs])
        self.save_for_backward(outs=outs)
        if self.merge == "concat":
            return np.concatenate(outs, axis=-1)
        return _product(outs) if self.merge == "multiply" else _sum(outs)

    def backward(self, dY: Array) -> Array | None:
        outs = self.saved("outs")
        if self.merge == "concat":
            ends = np.cumsum([Y.shape[-1] for Y in outs])
            shares = np.split(dY, ends[:-1], axis=-1)
        elif self.merge == "add":
            shares = [dY] * len(outs)
        else:
            shares = [_product([dY, *outs[:i], *outs[i + 1 :]]) for i in range(len(outs))]
        dXs = []
        with Position("Parallel", "branch") as at:
            for at.i, branch in enumerate(self.branches):
                dXs.append(branch.backward(shares[at.i]))
        given = [dX for dX in dXs if dX is not None]
        return _sum(given) if given and current().needs_dX else None

    def _check(self, shapes: Sequence[Shape]) -> None:
        if len({s[:-1] if self.merge == "concat" else s for s in shapes}) > 1:
            raise ShapeError(
                f'{self!r} cannot merge outputs of shapes {shapes} with merge="{self.merge}".'
            )

    @property
    def takes_tokens(self) -> bool:  # type: ignore[override]
        return all(branch.takes_tokens for branch in self.branches)

    def known_input(self) -> Shape | None:
        return next((s for b in self.branches if (s := b.known_input()) is not None), None)

    def compute_mask(self, mask: Array) -> Array | None:
        masks = []
        with Position("Parallel", "branch") as at:
            for at.i, branch in enumerate(self.branches):
                masks.append(branch.compute_mask(mask))
        for i, other in enumerate(masks):
            if not np.array_equal(other, masks[0]):  # type: ignore[arg-type]
                raise ArgumentError(
                    f"{self!r}: with `lengths`, all branches must keep the same steps, but "
                    f"branches 0 and {i} differ."
                )
        return masks[0]

    def flops(self) -> int:
        merging = 0 if self.merge == "concat" else len(self.branches) - 1
        return super().flops() + merging * int(np.prod(self.output_shape or ()))


class SkipConcat(Chain):
    """A skip connection: concatenate X and F(X), where F is the chain of `layers`.

    Shapes: X, dX are (N, ..., C); Y, dY are (N, ..., C + C'), where F(X) is (N, ..., C'): F must
    keep all axes except the last. This is the skip connection of a U-Net, in which F is all that
    lies between an encoder stage and the decoder stage of the same resolution.
    Backward. X reaches Y directly and through F, so dX is the first C features of dY plus the
    gradient of the other features through F.
    Source: Ronneberger, Fischer and Brox 2015, "U-Net", arXiv:1505.04597, fig. 1.
    """

    _ends_with_last = False

    steps = derived.skip_concat

    def create(self, shape: Shape) -> Shape:
        out = super().create(shape)
        if out[:-1] != shape[:-1]:
            raise self._shape_error(shape, out)
        return (*shape[:-1], shape[-1] + out[-1])

    def forward(self, X: Array) -> Array:
        F = self._through(X)
        if F.shape[:-1] != X.shape[:-1]:
            raise self._shape_error(X.shape, F.shape)
        self.save_for_backward(channels=X.shape[-1])
        return np.concatenate([X, F], axis=-1)

    def backward(self, dY: Array) -> Array | None:
        channels = self.saved("channels")
        dF = self._back_through(np.ascontiguousarray(dY[..., channels:]))
        return None if dF is None else dF + dY[..., :channels]

    def _shape_error(self, shape: Shape, out: Shape) -> ShapeError:
        return ShapeError(
            f"{self!r} concatenates X and F(X): F must keep all axes of {shape} except the "
            f"last, but it returns {out}."
        )

    def compute_mask(self, mask: Array) -> Array | None:
        return self._kept_mask(mask)


class TimeDistributed(Container):
    """Apply a layer to every step of (N, T, ...), as if each step were a sample.

    Shapes: X is (N, T, ...). The inner layer receives X as (N T, ...), and Y is its output as
    (N, T, ...).
    Dense, norms and activations do not need it: they already treat each step separately. Use it for
    layers that work on whole samples, such as Conv2D on the frames of a video.
    Backward: dY and dX are reshaped in the same way.
    """

    skips_dX = True
    max_steps = None  # the inner layer's limit, if any, applies to its own time axis
    _mask_remedy = "use an inner layer that declares independent_samples = True"

    steps = derived.time_distributed

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = self._held([layer])[0]

    def create(self, shape: Shape) -> Shape:
        if not shape:
            raise ShapeError(f"{self!r} takes samples of shape (T, ...), got {shape}.")
        return (shape[0], *self.layer.build(shape[1:]))

    def forward(self, X: Array) -> Array:
        if X.ndim < 2:
            raise ShapeError(f"{self!r} takes X (N, T, ...), got shape {X.shape}.")
        self.save_for_backward(shape=X.shape)
        call, first = current(), current().first * X.shape[1]
        with calling(mask=None, memory=None, caching=call.keeps, first=first):
            Y = self.layer.forward(X.reshape(-1, *X.shape[2:]))
        return Y.reshape(*X.shape[:2], *Y.shape[1:])

    def backward(self, dY: Array) -> Array | None:
        shape = self.saved("shape")
        dX = self.layer.backward(dY.reshape(-1, *dY.shape[2:]))
        return None if dX is None else dX.reshape(shape)

    @property
    def time_steps(self) -> str:
        with calling(training=True):  # what holds in training holds in predictions too
            return "independent" if self.independent_samples else "joined"

    @property
    def gives(self) -> Any:
        return self.layer.gives

    @property
    def takes_tokens(self) -> bool:  # type: ignore[override]
        return self.layer.takes_tokens

    def flops(self) -> int:
        return (self.input_shape or (0,))[0] * self.layer.flops()


def _sum(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for a in arrays[1:]:
        total += a
    return total


def _product(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for a in arrays[1:]:
        total *= a
    return total
