"""To PyTorch: `phitodeep.io.to_torch`.

Each layer becomes the module of its row in the table of correspondences. A module takes its input
channels first or channels last; a move of the axes stands only where the next module takes another
layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.core.files import atomic_write, check_path
from phitodeep.core.types import PathLike, each, one
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.exchange.correspondence import check_exportable
from phitodeep.exchange.torch.layouts import (
    FIRST,
    LAST,
    Layout,
    flat_order,
    named,
    outer,
    to_theirs,
)
from phitodeep.exchange.torch.library import load
from phitodeep.exchange.torch.pairs import module_of, moves_of
from phitodeep.exchange.torch.rows import Composed, Pair
from phitodeep.exchange.tree import outer_names
from phitodeep.layers.base import Layer

MOST_AXES = 4  # of the samples that PyTorch's BatchNorm3d and its like take
REFUSAL = (
    "PyTorch has no counterpart of {}. Write it as a torch.nn.Module and declare that with "
    "@phitodeep.exchange.torch.pairs.counterpart(YourLayer)."
)


def to_torch(model: Layer) -> Any:
    """Return a torch.nn.Module that computes what the built model computes, with its weights.

        module = phitodeep.io.to_torch(model)
        module(torch.tensor(X))

    Images go in and come out as PyTorch has them, (N, C, H, W). All else is as in phitodeep:
    sequences (N, T, D), tokens (N, T), vectors (N, D). `module.input_layout` and
    `module.output_layout` name the layouts, such as "NCHW". The names of parameters begin with
    the layers' paths, as in "0.weight" and "3.layers.0.bias". The module of a network takes several
    inputs in order and returns several outputs by name, and the layouts are dicts then. A shared
    layer is one module at two places.

    The module is in evaluation mode; `module.train()` and any optimizer of PyTorch train it, also
    on a GPU, and `from_torch` brings it back. Its dtype is the model's, and its weights are
    copies. Parameters of frozen layers have requires_grad=False, and so has the second bias of a
    recurrent module, which stays 0.

    Raises an ArgumentError that names the path of a layer without a counterpart, such as Lambda.
    """
    return write(model).module


class Place(NamedTuple):
    """The module of one layer, and the layouts that it takes and returns, or tuples of them."""

    module: Any
    takes: Any
    returns: Any


class Written(NamedTuple):
    """A module, and the places of all layers by path."""

    module: Any
    places: dict[str, Place]


def write(model: Layer) -> Written:
    """Return the module for a model, after checking that there is one for each layer."""
    torch, own, _ = load("to_torch")
    if not isinstance(model, Layer):
        raise ArgumentTypeError(f"to_torch takes a model or a layer, got {model!r}.")
    check_exportable(model, "torch", "to_torch", REFUSAL)
    for path, layer in model.walk():
        form, axes = module_of(layer), len(layer.input_shape or ())
        if isinstance(form, Pair) and "#" in form.theirs and axes > MOST_AXES:
            raise ArgumentError(
                f"to_torch: {layer!r} (path {path!r}) has samples with {axes} axes, and PyTorch "
                f"has such a module for at most {MOST_AXES}."
            )
    writer = _Writer(torch, own)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        chain = isinstance(model, L.Chain) and model._ends_with_last
        layers = model.layers if isinstance(model, L.Chain) and chain else [model]
        names = [f"{i}" for i in range(len(layers))] if chain else [""]
        starts, ends = [outer(shape) for shape in model._ins()], [*map(outer, model._outs())]
        if isinstance(model, L.Wired):
            module, _ = writer.place(model, "", starts[0] if model.inputs == 1 else tuple(starts))
        else:
            module, _ = writer.chain(layers, names, starts[0], ends[0])
        writer.share()
    takes, returns = outer_names(model)
    inputs = map(named, model._ins(), each(model.takes_tokens))
    layouts = [dict(zip(takes, inputs, strict=True))]
    layouts.append(dict(zip(returns, map(named, model._outs()), strict=True)))
    module.input_layout, module.output_layout = [
        found if len(found) > 1 else next(iter(found.values())) for found in layouts
    ]
    return Written(module.eval(), writer.places)


class _Writer:
    """Makes modules, and remembers where each layer went.

    places    by path
    made      the same by layer, for weights that another layer uses too
    tied      TiedDense layers and their modules
    """

    def __init__(self, torch: Any, own: Any) -> None:
        self.torch, self.nn, self.own = torch, torch.nn, own
        self.places: dict[str, Place] = {}
        self.made: dict[Layer, Place] = {}
        self.tied: list[tuple[L.TiedDense, Any]] = []

    def chain(
        self, layers: Sequence[Layer], paths: Sequence[str], layout: Layout, end: Layout | None
    ) -> tuple[Any, Layout]:
        """Return the modules of layers as one, and the layout that it returns: `end` if given."""
        parts: dict[str, Any] = {}
        for i, (layer, path) in enumerate(zip(layers, paths, strict=True)):
            wanted = self.wanted(layer, layout, layers[i + 1 :])
            self.move(parts, f"before_{i}", layout, wanted)
            parts[f"{i}"], layout = self.place(layer, path, wanted)
        if end is not None:
            self.move(parts, "end", layout, end)
            layout = end
        module = self.nn.Sequential()
        for name, part in parts.items():
            module.add_module(name, part)
        return module, layout

    def alone(self, layer: Layer, path: str, layout: Layout, end: Layout | None) -> Any:
        """Return the module of one layer, from a layout to a layout, and the latter."""
        module, layout = self.chain([layer], [path], layout, end)
        return (module[0] if len(module) == 1 else module), layout

    def move(self, parts: dict[str, Any], name: str, have: Layout, wanted: Layout) -> None:
        """Add a module that moves the channels, if they have to move."""
        if isinstance(have, str) and have != wanted:
            parts[name] = self.moving(wanted)

    def moving(self, wanted: Layout) -> Any:
        """Return a module that moves the channels."""
        return self.own.ChannelsFirst() if wanted == FIRST else self.own.ChannelsLast()

    def wanted(self, layer: Layer, layout: Any, after: Sequence[Layer] = ()) -> Any:
        """Return the layout that a layer's module takes, or one for each of several inputs."""
        if isinstance(layer, L.Shared) and layer.layer in self.made:
            return self.made[layer.layer].takes
        form = module_of(layer)
        if isinstance(layout, tuple):
            images = isinstance(form, Composed) and form.layout == "any" and FIRST in layout
            alike = FIRST if images else LAST
            return tuple([alike if len(shape) > 1 else LAST for shape in layer._ins()])
        if len(layer.input_shape or ()) < 2:
            return layout
        if not isinstance(form, Pair | Composed):
            return LAST
        if isinstance(layer, L.Flatten):
            return layout if _absorbs(after) else LAST
        return layout if form.layout == "any" else form.layout

    def place(self, layer: Layer, path: str, layout: Any) -> tuple[Any, Any]:
        """Return the module of a layer that takes this layout, and the layout that it returns."""
        if isinstance(layer, L.Shared):
            first = self.made.get(layer.layer)
            if first is not None:
                module = self.own.Shared(layer=first.module)
                self.places[path] = Place(module, layout, first.returns)
                return module, first.returns
            layer = layer._bound()
        form = module_of(layer)
        returns: Layout = layout if len(layer.input_shape or ()) > 1 else LAST
        if isinstance(form, Composed):
            module, returns = form.make(self, layer, path, layout)
        elif isinstance(form, Pair):
            module = self.leaf(layer, form)
            if isinstance(layer, L.Flatten) and layout == FIRST:
                returns = flat_order(layer.input_shape or ())
            elif (layer.inputs, layer.outputs) != (1, 1):
                returns = one([LAST] * layer.outputs, layer.outputs == 1)
            elif not isinstance(layout, str) and not isinstance(layer, L.Dense):
                returns = layout
        else:
            module = form(layer)
        if isinstance(returns, str) and len(layer.output_shape or ()) < 2:
            returns = LAST
        self.made[layer] = self.places[path] = Place(module, layout, returns)
        self.fill(layer, module.to(getattr(self.torch, layer.dtype.name)), layout)
        return module, returns

    def leaf(self, layer: Layer, pair: Pair) -> Any:
        """Return a new module for a layer, without its weights."""
        given = {theirs: getattr(layer, ours) for ours, theirs in pair.settings.items()}
        given |= pair.sizes(layer)
        spatial = len(layer.input_shape or ()) - 1
        name = pair.theirs.replace("#", f"{max(spatial, 1)}")
        if isinstance(layer, L.SpatialDropout) and spatial == 0:
            name = "Dropout"
        home = self.own if name.startswith("own.") else self.nn
        return getattr(home, name.removeprefix("own."))(**given)

    def fill(self, layer: Layer, module: Any, layout: Layout) -> None:
        """Copy the layer's own parameters and state into its module."""
        arrays = {**layer.params, **layer.state}
        for name, (place, move) in moves_of(layer).items():
            if name not in arrays:
                continue
            array = arrays[name]
            if isinstance(layout, np.ndarray) and name == "W":
                array = array[layout]
            array = np.ascontiguousarray(move.there(array))
            tensor_of(module, place).data.copy_(self.torch.from_numpy(array))
        if arrays and not layer.trainable:
            module.requires_grad_(False)
        if isinstance(layer, L.RNN | L.LSTM):
            module.bias_hh_l0.data.zero_()
            module.bias_hh_l0.requires_grad_(False)

    def share(self) -> None:
        """Give each tied module the weight of the embedding, if that is in the model."""
        for layer, module in self.tied:
            source = self.made.get(layer.embedding)
            if source is not None:
                module.weight = source.module.weight
            else:
                module.weight.copy_(self.torch.from_numpy(layer.embedding.W))


def _absorbs(after: Sequence[Layer]) -> bool:
    """Return whether a Dense follows whose rows can be permuted instead of its input."""
    for layer in after:
        form = module_of(layer)
        if isinstance(layer, L.Dense):
            return isinstance(form, Pair)
        if not isinstance(form, Pair) or form.layout != "any" or form.moves:
            return False
    return False


def tensor_of(module: Any, name: str) -> Any:
    """Return the parameter or buffer of a module with this name, such as "qkv.weight"."""
    return attrgetter(name)(module)


# --- a file that loads where phitodeep is not installed ------------------------------------------


def export_torch(model: Layer, path: PathLike) -> None:
    """Write `path`, which ends in .pt2, for `torch.export.load(path).module()`.

    The program computes in evaluation mode what `to_torch(model)` does, in the same layout: images
    are (N, C, height, width). It takes any number of samples, and any number of steps if PyTorch
    finds that the module does.
    """
    if check_path(path).suffix != ".pt2":
        raise ArgumentError(f'export_torch: path must end in .pt2, as in "net.pt2", got {path!r}.')
    module = to_torch(model)
    import torch

    batch = torch.export.Dim("N") if model.inputs != 1 else torch.export.Dim.DYNAMIC
    given: list[Any] = []
    sizes: list[Any] = []
    for shape, tokens in zip(model._ins(), each(model.takes_tokens), strict=True):
        example = np.zeros((2, *shape), np.int64 if tokens else model.dtype)
        given.append(torch.tensor(to_theirs(example, outer(shape))))
        sizes.append({0: batch})
        if named(shape, tokens).startswith("NT") and shape[0] > 1:
            sizes[-1][1] = torch.export.Dim.AUTO
    sizes = [tuple(sizes)] if isinstance(model, L.Wired) else sizes  # of `forward(*Xs)`
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of recurrent modules, whose weights PyTorch rearranges
        program = torch.export.export(module, tuple(given), dynamic_shapes=tuple(sizes))
    with atomic_write(path) as file:
        torch.export.save(program, file)
