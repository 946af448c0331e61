"""The names of PyTorch's functions and methods that the importer reads, and what they stand for."""

from __future__ import annotations

from phitodeep.core.checks import snake_case

CHANNELS_FIRST = (  # how the names of modules begin that take (N, C, ...)
    *("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool"),
    *("AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout1d"),
)
POOL = "kernel_size stride padding"  # the first arguments of each
PARAMETERS = {  # of functions and methods that are modules too, after X
    "Sigmoid Tanh Softsign": "",
    "ReLU SELU SiLU Mish Hardsigmoid Hardswish": "inplace",
    "ELU CELU": "alpha inplace",
    "LeakyReLU": "negative_slope inplace",
    "GELU": "approximate",
    "Hardtanh": "min_val max_val inplace",
    "Softplus": "beta threshold",
    "Softmax LogSoftmax": "dim _stacklevel dtype",
    "Dropout Dropout1d Dropout2d": "p training inplace",
    "Flatten": "start_dim end_dim",
    "MaxPool1d MaxPool2d": f"{POOL} dilation ceil_mode return_indices",
    "AvgPool1d": f"{POOL} ceil_mode count_include_pad",
    "AvgPool2d": f"{POOL} ceil_mode count_include_pad divisor_override",
    "AdaptiveAvgPool1d AdaptiveAvgPool2d": "output_size",
    "AdaptiveMaxPool1d AdaptiveMaxPool2d": "output_size return_indices",
}
FUNCTIONS = {  # by name: the module, and these parameters
    snake_case(kind): (kind, names) for kinds, names in PARAMETERS.items() for kind in kinds.split()
} | {
    "interpolate": (
        "Upsample",
        "size scale_factor mode align_corners recompute_scale_factor antialias",
    )
}
ALIASES = {"multiply": "mul", "swapaxes": "transpose", "swapdims": "transpose", "concat": "cat"}
ALIASES |= {"moveaxis": "movedim", "concatenate": "cat", "max_pool1d_with_indices": "max_pool1d"}
