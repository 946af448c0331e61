"""From a PyTorch module to the layers of a model: what `phitodeep.io.from_torch` reads.

The module is traced; each step of the graph becomes an operation of `exchange/tree.py`, which
turns them into layers. Values in the graph may have their axes in another order than ours: see
`graph.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from phitodeep.core.checks import check_shape
from phitodeep.core.types import Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError
from phitodeep.exchange.torch.layouts import IMAGE
from phitodeep.exchange.torch.library import load
from phitodeep.exchange.torch.read.leaves import Leaves
from phitodeep.exchange.torch.read.operations import Reader


def read_torch(module: Any, input_shape: Shape, model: Callable[..., Any]) -> Any:
    """Return what `model` makes of the layers of a module: see `phitodeep.io.from_torch`."""
    torch = load("from_torch")[0]
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(f"from_torch takes a torch.nn.Module, got {module!r}.")
    shape = check_shape(input_shape, "from_torch input_shape")
    try:
        module = copy.deepcopy(module).cpu()
    except RuntimeError as error:  # of weights that were computed, as by the old weight_norm
        raise ArgumentError(f"from_torch: the module cannot be copied: {error}") from None
    double = any(p.dtype == torch.float64 for p in module.parameters())
    module = module.double() if double else module.float()
    return _read(module, shape, "float64" if double else "float32", model)


WRONG_INPUT = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)  # of a module


def _read(module: Any, shape: Shape, dtype: str, model: Callable[..., Any]) -> Any:
    torch, own, tracing = load("from_torch")
    declared = getattr(module, "input_layout", None)
    errors: list[Exception] = []
    for start, tokens in _inputs(shape, declared):
        sizes = shape if start == len(shape) else (shape[-1], *shape[:-1])
        example = torch.zeros(
            tracing.BATCH, *sizes, dtype=torch.long if tokens else getattr(torch, dtype)
        )
        reader = Reader(torch, own, tracing, Leaves(torch, own, float(np.finfo(dtype).eps)))
        try:
            reader.trace(module, example)
        except torch.fx.proxy.TraceError as error:
            raise ArgumentError(
                "from_torch: forward has control flow that depends on values, so it cannot be "
                f"traced ({error}). Remedy: move it out of forward, or put the layers together "
                "in phitodeep."
            ) from None
        except PhitodeepError:
            raise
        except WRONG_INPUT as error:
            errors.append(error)
            continue
        if declared is None and start == 2 == len(shape) and reader.begins_channels_first():
            continue
        layers = reader.read(start, None if declared is None else _channels)
        return _loaded(model(*layers, dtype=dtype), reader.leaves, shape)
    raise ArgumentError(
        f"from_torch: the module does not take samples of shape {shape}, with the channels last: "
        f"{errors[-1] if 'indices' in str(errors[0]) else errors[0]}"
    )


def _inputs(shape: Shape, declared: str | None) -> Iterator[tuple[int, bool]]:
    """Yield the axis of the channels that the input may have, and whether it may hold tokens."""
    starts = [_channels(len(shape)), *([1] if declared is None and len(shape) == 2 else [])]
    for tokens in [True] if declared in ("NT", "N") else [False, True]:
        for start in starts:
            yield start, tokens


def _channels(count: int) -> int:
    """Return the axis of the channels of a module's samples: the first of images, or the last."""
    return 1 if count == IMAGE else count


def _loaded(model: Any, leaves: Leaves, shape: Shape) -> Any:
    """Return the model, built, with the arrays of the modules in it."""
    model.build(shape)
    inside = {layer for _, layer in model.walk()}
    for layer, path, arrays in leaves.loads:
        if layer not in inside:  # the output does not depend on it
            continue
        for name, array in arrays.items():
            store = layer.params if name in layer.params else layer.state
            if name not in store or store[name].shape != array.shape:
                raise ArgumentError(
                    f"from_torch: the module at {path!r} has a {name} of shape {array.shape}, and "
                    f"{layer!r} has one of shape {store[name].shape if name in store else None}."
                )
            store[name][...] = array
    return model
