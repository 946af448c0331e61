"""The names of PyTorch's functions and methods that the importer reads, and what they stand for."""

from __future__ import annotations

CHANNELS_FIRST = (  # how the names of modules begin that take (N, C, ...)
    *("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool"),
    *("AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout1d"),
)
POOL = "kernel_size stride padding"  # the first arguments of each
# functions and methods that are modules too: the module, and their arguments after X
FUNCTIONS: dict[str, tuple[str, str]] = {
    **{kind.lower(): (kind, "") for kind in ("Sigmoid", "Tanh", "Softsign")},
    **{
        kind.lower(): (kind, "inplace")
        for kind in ("ReLU", "SELU", "SiLU", "Mish", "Hardsigmoid", "Hardswish")
    },
    **{kind.lower(): (kind, "alpha inplace") for kind in ("ELU", "CELU")},
    "leaky_relu": ("LeakyReLU", "negative_slope inplace"),
    "gelu": ("GELU", "approximate"),
    "hardtanh": ("Hardtanh", "min_val max_val inplace"),
    "softplus": ("Softplus", "beta threshold"),
    "softmax": ("Softmax", "dim _stacklevel dtype"),
    "log_softmax": ("LogSoftmax", "dim _stacklevel dtype"),
    **{
        kind.lower(): (kind, "p training inplace") for kind in ("Dropout", "Dropout1d", "Dropout2d")
    },
    "flatten": ("Flatten", "start_dim end_dim"),
    **{
        f"max_pool{d}d": (f"MaxPool{d}d", f"{POOL} dilation ceil_mode return_indices")
        for d in (1, 2)
    },
    "avg_pool1d": ("AvgPool1d", f"{POOL} ceil_mode count_include_pad"),
    "avg_pool2d": ("AvgPool2d", f"{POOL} ceil_mode count_include_pad divisor_override"),
    **{f"adaptive_avg_pool{d}d": (f"AdaptiveAvgPool{d}d", "output_size") for d in (1, 2)},
    **{
        f"adaptive_max_pool{d}d": (f"AdaptiveMaxPool{d}d", "output_size return_indices")
        for d in (1, 2)
    },
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
