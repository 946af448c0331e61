"""What the arguments of layers, losses and optimizers mean, in one table for a class.

An argument means what the docstring of its class says in a column. Otherwise it means what `OWN`
says, or `COMMON`, since arguments with the same name have the same meaning in most classes.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from phitodeep.optimization.base import Optimizer

COMMON = {
    "activation": '"gelu", "gelu_tanh" (GPT-2\'s approximation), "relu", "silu", "swiglu" or '
    '"geglu"',
    "adam_ratio": "the rate of the parameters that Adam updates, relative to alpha",
    "adjust_lr_fn": 'how the step depends on the shape: "original", or "match_rms_adamw" for '
    "Adam's alpha and weight_decay",
    "alpha": "the learning rate: a number, or a schedule",
    "approximate": '"none": the exact function; "tanh": its approximation by tanh',
    "axis": "the axis along which the results sum to 1",
    "base": "the pair of features i rotates by t / base^(2i / D) at position t",
    "beta": "the weight of the KL divergence",
    "beta1": "how much of the running mean of g is kept at each step",
    "beta2": "how much of the running mean of g² is kept at each step",
    "bias": "whether a bias is added",
    "branches": "the layers, or lists of layers, that read the same X",
    "causal": "whether position t attends only to positions up to t",
    "class_weight": "a weight for each class, which multiplies the loss of its samples",
    "columns": "the columns of X to return, or one column",
    "delta": "where the parabola ends and the straight line begins",
    "dilation": "the distance between the cells of X that neighbouring weights of a kernel read",
    "dim": "the number of features of a vector",
    "dims": "the new order of the axes, counted from 1: the batch axis stays first",
    "dropout": "the probability that an attention weight is set to 0 during training",
    "embedding": "the Embedding whose table is used again",
    "eps": "added to a denominator, which keeps it above 0",
    "factor": "how many times larger: one number, or one for each axis",
    "filters": "the number of output channels",
    "groups": "the number of groups of channels, each with filters of its own",
    "head_dim": "the number of features of a head; by default D / heads",
    "heads": "the number of heads",
    "hidden": "the number of units between the two products",
    "history_size": "how many of the last changes describe the curvature",
    "horizontal": "whether images are mirrored left to right",
    "ignore_index": "samples with this label have no loss and no gradient",
    "init": "the first value of each slope",
    "initializer": "draws the first weights: an initializer, such as `He()`",
    "input_size": "the number of features of X; if it is the only number, of Y",
    "kernel_size": "the size of a window: one number, or one for each axis",
    "kv_heads": "the number of heads of keys and values, each shared by several heads of queries; "
    "by default `heads`",
    "label_smoothing": "the share of a target that is spread evenly over all classes",
    "latent": "the number of latent variables",
    "layer": "the layer that is applied",
    "layers": "the layers inside, in order",
    "log_input": "True: a prediction is the logarithm of the rate; False: the rate itself",
    "max_iter": "the largest number of iterations in one step",
    "max_len": "the length of the longest sequence",
    "merge": 'how outputs are combined: "concat", "add" or "multiply"',
    "mlp_ratio": "the size of the network's hidden layer, as a multiple of D",
    "mode": '"nearest" repeats pixels; "bilinear" interpolates between them',
    "momentum": "how much of the running sum of steps is kept at each step",
    "multiplier": "the number of filters for each channel",
    "nesterov": "whether to look one step of momentum ahead",
    "norm": '"layer" for LayerNorm, or "rms" for RMSNorm',
    "ns_steps": "the number of Newton-Schulz steps",
    "output_padding": "rows and columns added at the end of Y, where several sizes are possible",
    "output_size": "the number of features of Y",
    "padding": 'rows and columns added around X: "valid" for none, "same" for an output of '
    "size / stride, rounded up, or a number",
    "pixels": "the farthest shift in each direction",
    "pool_size": "the size of a window: one number, or one for each axis",
    "pre_norm": "True: normalise before attention and network; False: after each sum",
    "psi": "how fast the momentum warms up",
    "rank": "the number of columns of A, which is the number of rows of B",
    "rate": "the probability that a number is dropped during training",
    "recurrent_initializer": "draws the first Wh, in the same way",
    "return_sequences": "True: Y has every step, (N, T, H); False: only the last one, (N, H)",
    "rho": "how much of the running mean of g² is kept at each step",
    "rope": "whether queries and keys are rotated by their position: True, or a class of "
    "`phitodeep.functional.rotary`",
    "shape": "the new shape of a sample, without the batch axis; -1 stands for what is left",
    "size": "the height and width of the crop, or one number for both",
    "sync": "True: if several processes share a batch, statistics over the rows of all of them",
    "std": "the standard deviation of the noise",
    "stride": "the distance between neighbouring windows",
    "tolerance_change": "the step ends if the loss falls by less, relative to max(loss, 1)",
    "tolerance_grad": "the step ends if the largest slope is smaller",
    "units": "H, the number of features of the state",
    "vertical": "whether images are mirrored upside down",
    "vocab_size": "the number of tokens",
}  # fmt: skip
OWN = {
    "BatchNorm.momentum": "the share of a batch in the running mean and variance",
    **{
        f"ConvTranspose{n}D.padding": 'rows and columns cut off around Y: "valid" for none, "same" '
        "for an output of size times stride, or a number"
        for n in (1, 2)
    },
    **dict.fromkeys(
        ("CELU.alpha", "ELU.alpha"), "Y approaches -alpha as X becomes very negative"
    ),
    "Bidirectional.layer": "the recurrent layer that reads forward; a second one like it reads "
    "backward",
    "Bidirectional.merge": 'how the two outputs are combined: "concat" or "add"',
    "GroupNorm.groups": "the number of groups of channels, each with a mean and a variance",
    "Lambda.forward": "a function of X that returns Y",
    "Lambda.backward": "a function of dY, X and Y that returns dX",
    "LeakyReLU.alpha": "the slope where X is negative",
    "LowRank.alpha": "the product is scaled by alpha / rank",
    "RandomCrop.padding": "the number of zeros on each side, before an image is cropped",
    "SpatialDropout.rate": "the probability that a channel is dropped during training",
    "TransformerBlock.dropout": "the probability that a number is dropped during training",
    "ZeroPad2D.padding": "zeros on all sides, or ((top, bottom), (left, right))",
}  # fmt: skip
ENTRY = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*(?:\n {2,}\S.*)*)", re.MULTILINE)

EVERY = "phitodeep.optimization.base.Optimizer"


def table(cls: type, link: str = f"[{EVERY}]") -> str:
    """The arguments of a class as a table in Markdown; `link` leads to those of all optimizers."""
    rows = [
        f"| `{name}` | {f'`{default}`' if default else 'required'} | {meaning(cls, name)} |"
        for name, default in arguments(cls)
    ]
    if issubclass(cls, Optimizer):
        rows.append(f"| and | | the [arguments of every optimizer]{link} |")
    if not rows:
        return ""
    return "\n".join(["| argument | default | meaning |", "|---|---|---|", *rows])


def arguments(cls: type) -> list[tuple[str, str]]:
    """The arguments of a class, and their defaults as text."""
    found, base = {}, cls
    while True:
        parameters = inspect.signature(base.__init__).parameters
        found = {
            **found,
            **{name: p.default for name, p in parameters.items() if name not in found},
        }
        if "options" not in parameters:  # **options belong to the base class
            break
        base = base.__mro__[1]
    if issubclass(cls, Optimizer) and cls().weight_decay:
        found["weight_decay"] = cls().weight_decay
    left_out = ("self", "args", "kwargs", "common", "options")
    return [
        (name, "" if default is inspect.Parameter.empty else written(default))
        for name, default in found.items()
        if name not in left_out
    ]


def written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def meaning(cls: type, name: str) -> str:
    """What an argument means; KeyError if nothing says it."""
    own = OWN.get(f"{cls.__name__}.{name}") or described(cls).get(name)
    return (own or COMMON[name]).replace("|", "\\|")


def described(cls: type) -> dict[str, str]:
    """The entries of columns in the docstrings of a class and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        for names, text in ENTRY.findall(inspect.cleandoc(each.__doc__ or "")):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found
