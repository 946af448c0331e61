"""Write a model as a program of PyTorch, which loads where phitodeep is not installed."""

from __future__ import annotations

import os
import warnings

import numpy as np

from phitodeep.core.files import atomic_write, check_path
from phitodeep.errors import ArgumentError
from phitodeep.exchange.torch.write.writing import to_torch
from phitodeep.layers.base import Layer


def export_torch(model: Layer, path: str | os.PathLike[str]) -> None:
    """Write `path`, which ends in .pt2, for `torch.export.load(path).module()`.

    The program computes in evaluation mode what `to_torch(model)` does, in the same layout: images
    are (N, C, height, width). It takes any number of samples, and any number of steps if PyTorch
    finds that the module does.
    """
    if check_path(path).suffix != ".pt2":
        raise ArgumentError(f'export_torch: path must end in .pt2, as in "net.pt2", got {path!r}.')
    module = to_torch(model)
    import torch

    shape = (2, *(model.input_shape or ()))
    example = np.zeros(shape, np.int64 if model.takes_tokens else model.dtype)
    if module.input_layout == "NCHW":
        example = np.moveaxis(example, -1, 1)
    sizes = {0: torch.export.Dim.DYNAMIC}
    if module.input_layout.startswith("NT"):
        sizes[1] = torch.export.Dim.AUTO
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of recurrent modules, whose weights PyTorch rearranges
        program = torch.export.export(module, (torch.tensor(example),), dynamic_shapes=(sizes,))
    with atomic_write(path) as file:
        torch.export.save(program, file)
