"""The names of PyTorch's functions and methods that the importer reads, and what they stand for."""

from __future__ import annotations

from phitodeep.core.checks import snake_case

MODULES = (  # that are functions and methods too
    "Sigmoid Tanh Softsign ReLU SELU SiLU Mish Hardsigmoid Hardswish ELU CELU LeakyReLU GELU "
    "Hardtanh Softplus Softmax LogSoftmax Dropout Dropout1d Dropout2d Flatten MaxPool1d MaxPool2d "
    "AvgPool1d AvgPool2d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool1d AdaptiveMaxPool2d"
)
FUNCTIONS = {**{snake_case(kind): kind for kind in MODULES.split()}, "interpolate": "Upsample"}
OTHER = {  # parameters of functions, after X, that differ from those of their modules
    **dict.fromkeys(["Softmax", "LogSoftmax"], "dim _stacklevel dtype"),
    **dict.fromkeys(["Dropout", "Dropout1d", "Dropout2d"], "p training inplace"),
    "Upsample": "size scale_factor mode align_corners recompute_scale_factor antialias",
}
POOL = "kernel_size stride padding dilation ceil_mode return_indices"
OTHER |= dict.fromkeys(["MaxPool1d", "MaxPool2d"], POOL)
ALIASES = {"multiply": "mul", "subtract": "sub", "swapaxes": "transpose", "swapdims": "transpose"}
ALIASES |= {"moveaxis": "movedim", "concat": "cat", "concatenate": "cat"}
