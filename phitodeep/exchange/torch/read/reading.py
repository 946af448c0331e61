"""From a PyTorch module to the layers of a model: what `phitodeep.io.from_torch` reads.

The module is traced; each step of the graph becomes an operation of `exchange/tree.py`, which
turns them into layers. Values in the graph may have their axes in another order than ours: see
`graph.py`.
"""

from __future__ import annotations

import copy
from inspect import signature
from itertools import product
from typing import Any

import numpy as np

from phitodeep.core.checks import check_shape
from phitodeep.core.types import Shape, one
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError
from phitodeep.exchange.torch.layouts import IMAGE
from phitodeep.exchange.torch.library import load
from phitodeep.exchange.torch.read.leaves import Leaves, described
from phitodeep.exchange.torch.read.operations import Reader
from phitodeep.training.inputs import in_order


def read_torch(module: Any, input_shape: Any, model: Any, network: Any) -> Any:
    """Return what `model` makes of the layers of a module: see `phitodeep.io.from_torch`.

    `network` makes it of layers between named values, if they are no tree.
    """
    torch, own, tracing = load("from_torch")
    compiled = isinstance(module, torch.jit.ScriptModule)
    if compiled or not isinstance(module, torch.nn.Module):
        what = "a torch.nn.Module that runs in Python" if compiled else "a torch.nn.Module"
        raise ArgumentTypeError(f"from_torch takes {what}, got {described(module)}.")
    declared = getattr(module, "input_layout", None)
    names = [*declared] if isinstance(declared, dict) else [*signature(module.forward).parameters]
    shapes = input_shape
    if isinstance(shapes, dict):
        names = names[: len(shapes)]
        shapes = in_order(shapes, tuple(names), "the shapes")
    several = isinstance(shapes, tuple | list) and any(isinstance(s, tuple | list) for s in shapes)
    shapes = [check_shape(s, "from_torch input_shape") for s in (shapes if several else [shapes])]
    if len(shapes) > len(names):
        raise ArgumentError(
            f"from_torch: forward takes {', '.join(names)}, but input_shape holds {len(shapes)} "
            "shapes."
        )
    layouts = declared.values() if isinstance(declared, dict) else [declared] * len(shapes)
    try:
        module = copy.deepcopy(module).cpu()
    except (RuntimeError, TypeError) as error:  # of computed weights, or what is no data
        raise ArgumentError(f"from_torch: the module cannot be copied: {error}") from None
    double = any(p.dtype == torch.float64 for p in module.parameters())
    module, dtype = (module.double(), "float64") if double else (module.float(), "float32")
    errors: list[Exception] = []
    for inputs in product(*map(_inputs, shapes, layouts)):
        examples = {
            name: torch.zeros(
                tracing.BATCH,
                *(shape if start == len(shape) else (shape[-1], *shape[:-1])),
                dtype=torch.long if tokens else getattr(torch, dtype),
            )
            for name, shape, (start, tokens) in zip(names, shapes, inputs, strict=False)
        }
        reader = Reader(torch, own, tracing, Leaves(torch, own, float(np.finfo(dtype).eps)))
        try:
            reader.trace(module, examples)
        except tracing.TraceError as error:
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
        starts = [start for start, _ in inputs]
        if declared is None and any(
            start == 2 == len(shape) and reader.begins_channels_first(name)
            for name, shape, start in zip(names, shapes, starts, strict=False)
        ):
            continue
        end = None if declared is None else _channels
        made = reader.read(starts, end, sequential=model, network=network, dtype=dtype)
        return _loaded(made, reader.leaves, one(shapes, not several))
    raise ArgumentError(
        f"from_torch: the module does not take samples of shape {input_shape}, with the channels "
        f"last: {errors[-1] if 'indices' in str(errors[0]) else errors[0]}"
    )


WRONG_INPUT = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)  # of a module


def _inputs(shape: Shape, declared: str | None) -> list[tuple[int, bool]]:
    """Return the axis of the channels that an input may have, and whether it may hold tokens."""
    starts = [_channels(len(shape)), *([1] if declared is None and len(shape) == 2 else [])]
    kinds = [True] if declared in ("NT", "N") else [False, True]
    return [(start, tokens) for tokens in kinds for start in starts]


def _channels(count: int) -> int:
    """Return the axis of the channels of a module's samples: the first of images, or the last."""
    return 1 if count == IMAGE else count


def _loaded(model: Any, leaves: Leaves, shape: Any) -> Any:
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
