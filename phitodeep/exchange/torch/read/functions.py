"""The names of PyTorch's functions and methods that the importer reads, and what they stand for."""

from __future__ import annotations

CHANNELS_FIRST = (  # how the names of modules begin that take (N, C, ...)
    *("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool"),
    *("AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout1d"),
)
# functions and methods that are modules too: the module, and their arguments after X
FUNCTIONS: dict[str, tuple[str, str]] = {
    "relu": ("ReLU", "inplace"),
    "leaky_relu": ("LeakyReLU", "negative_slope inplace"),
    "elu": ("ELU", "alpha inplace"),
    "celu": ("CELU", "alpha inplace"),
    "selu": ("SELU", "inplace"),
    "gelu": ("GELU", "approximate"),
    "silu": ("SiLU", "inplace"),
    "mish": ("Mish", "inplace"),
    "hardsigmoid": ("Hardsigmoid", "inplace"),
    "hardswish": ("Hardswish", "inplace"),
    "hardtanh": ("Hardtanh", "min_val max_val inplace"),
    "sigmoid": ("Sigmoid", ""),
    "tanh": ("Tanh", ""),
    "softplus": ("Softplus", "beta threshold"),
    "softsign": ("Softsign", ""),
    "softmax": ("Softmax", "dim _stacklevel dtype"),
    "log_softmax": ("LogSoftmax", "dim _stacklevel dtype"),
    "dropout": ("Dropout", "p training inplace"),
    "dropout1d": ("Dropout1d", "p training inplace"),
    "dropout2d": ("Dropout2d", "p training inplace"),
    "flatten": ("Flatten", "start_dim end_dim"),
    "max_pool1d": ("MaxPool1d", "kernel_size stride padding dilation ceil_mode return_indices"),
    "max_pool2d": ("MaxPool2d", "kernel_size stride padding dilation ceil_mode return_indices"),
    "avg_pool1d": ("AvgPool1d", "kernel_size stride padding ceil_mode count_include_pad"),
    "avg_pool2d": (
        "AvgPool2d",
        "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    ),
    "adaptive_avg_pool1d": ("AdaptiveAvgPool1d", "output_size"),
    "adaptive_avg_pool2d": ("AdaptiveAvgPool2d", "output_size"),
    "adaptive_max_pool1d": ("AdaptiveMaxPool1d", "output_size return_indices"),
    "adaptive_max_pool2d": ("AdaptiveMaxPool2d", "output_size return_indices"),
    "interpolate": (
        "Upsample",
        "size scale_factor mode align_corners recompute_scale_factor antialias",
    ),
}
OPERATIONS = (  # what has a method do_... of `Reader`
    *("add", "mul", "getitem", "view", "reshape", "permute", "transpose", "movedim", "squeeze"),
    *("unsqueeze", "mean", "amax", "max", "cat", "chunk", "split", "contiguous", "linear"),
)
ALIASES = {"multiply": "mul", "swapaxes": "transpose", "swapdims": "transpose", "concat": "cat"}
ALIASES |= {"moveaxis": "movedim", "concatenate": "cat", "max_pool1d_with_indices": "max_pool1d"}
