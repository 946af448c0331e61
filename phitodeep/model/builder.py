"""SequentialBuilder: one method for each layer and each setting of Sequential."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import Any, Concatenate, ParamSpec, Self

from phitodeep import layers as catalogue
from phitodeep.core.checks import check_count, check_list, check_shape, snake_case
from phitodeep.core.config import Configurable, alike, restored
from phitodeep.core.hints import OF_BUILDERS, OF_MODELS
from phitodeep.core.types import DType, Schedule, Shape, parameters
from phitodeep.distributed import DataParallel
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.loss import Loss
from phitodeep.loss.metrics import MetricLike, as_metrics
from phitodeep.model.callbacks import Callback
from phitodeep.model.sequential import Sequential
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.optimization.schedules import check_rate

P = ParamSpec("P")


def _call(layer: Layer) -> str:
    """Return the builder call that appends this layer, such as `dense(784, 128)`."""
    kind, shown = type(layer), repr(layer)
    name = kind.__name__
    if vars(catalogue).get(name) is not kind or not shown.startswith(f"{name}("):
        return f"add({shown})"
    return method_name(name) + shown.removeprefix(name)


def method_name(name: str) -> str:
    """Return the name of the builder method of a layer class: `lambda_` for Lambda."""
    method = snake_case(name)
    return method + "_" * iskeyword(method)


def adds(
    kind: Callable[P, Layer],
) -> Callable[Concatenate[SequentialBuilder, P], SequentialBuilder]:
    """Create a builder method that appends a layer of this kind, with the layer's signature."""

    def method(self: SequentialBuilder, /, *args: P.args, **kwargs: P.kwargs) -> SequentialBuilder:
        try:
            layer = kind(*args, **kwargs)
        except TypeError as error:
            if "unexpected keyword" in str(error):
                raise _unexpected(kind, kwargs) from None
            raise
        return self.add(layer)

    shown = inspect.signature(kind.__init__).replace(return_annotation="SequentialBuilder")
    method.__signature__ = shown  # type: ignore[attr-defined]  # for `help`
    method.__name__ = method_name(kind.__name__)
    method.__qualname__ = f"SequentialBuilder.{method.__name__}"
    method.__doc__ = f"Append a `{kind.__name__}` layer.\n\n{inspect.getdoc(kind)}"
    return method


def _unexpected(kind: Callable[..., Layer], kwargs: Mapping[str, Any]) -> ArgumentTypeError:
    """Return the error for keywords that a layer does not accept."""
    name = kind.__name__
    if "activation" in kwargs and isinstance(kwargs["activation"], str):
        method, call = kwargs["activation"].lower(), snake_case(name)
        return ArgumentTypeError(
            f"{name} has no activation=: an activation is a separate layer, as in "
            f".{call}(...).{method}()."
        )
    known = [p.name for p in parameters(kind)]  # type: ignore[arg-type]
    wrong = ", ".join(key for key in kwargs if key not in known)
    return ArgumentTypeError(f"{name} takes {', '.join(known) or 'nothing'}, got {wrong}=.")


class SequentialBuilder(Configurable):
    """Builds a Sequential step by step: each method returns the builder.

    `SequentialBuilder(28, 28, seed=0)` is short for `SequentialBuilder().input(28, 28).seed(0)`.
    Settings of Sequential may follow in any order. `build` may be called several times, and
    returns an independent model each time.
    """

    def __init__(self, *input_shape: int, seed: int | None = None) -> None:
        self._layers: list[Layer] = []
        self._options: dict[str, Any] = {"seed": seed}
        self._distributed: dict[str, Any] | None = None
        self._input: Shape | None = None
        if input_shape:
            self.input(*input_shape)

    def __getattr__(self, name: str) -> Any:
        if name in OF_BUILDERS:
            raise AttributeError(f"a builder has no {name!r}: {OF_BUILDERS[name]}.")
        if name in OF_MODELS:
            raise AttributeError(f"a builder has no {name!r}: after .build(), {OF_MODELS[name]}.")
        if not name.startswith("_") and callable(getattr(Sequential, name, None)):
            raise AttributeError(
                f"a builder has no {name!r}: build the model first, as in .build().{name}(...)."
            )
        known = [key for key in dir(type(self)) if not key.startswith("_")]
        near = difflib.get_close_matches(name, known, n=1)
        hint = (
            f" Did you mean .{near[0]}()?" if near else " Append any other layer with .add(layer)."
        )
        raise AttributeError(f"a builder has no {name!r}.{hint}")

    def __repr__(self) -> str:
        sizes = [str(n) for n in self._input or ()]
        options = {k: v for k, v in self._options.items() if k != "seed" or v is not None}
        if "seed" in options:
            sizes.append(f"seed={options.pop('seed')}")
        calls = [_call(layer) for layer in self._layers]
        for name, value in options.items():
            method = {"loss_class": "loss", "batch_size": "batch"}.get(name, name)
            values = value if name in ("metrics", "callbacks") else [value]
            calls.append(f"{method}({', '.join(map(repr, values))})")
        return ".".join([f"{type(self).__name__}({', '.join(sizes)})", *calls])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and alike(self, other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def get_config(self) -> dict[str, Any]:
        """Return the layers and settings so far as plain JSON values: see `phitodeep.config`."""
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in self._options.items()}
        shape = None if self._input is None else list(self._input)
        return {"input_shape": shape, "layers": self._layers, **options}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the builder that `get_config` describes."""
        options = restored(config, cls.__name__)
        shape = options.pop("input_shape", None)
        builder = cls(*(() if shape is None else check_shape(shape, "input_shape")))
        for layer in check_list(options.pop("layers", []), "layers"):
            builder.add(layer)
        for name in {"metrics", "callbacks"} & options.keys():
            check_list(options[name], name)
        known = inspect.signature(Sequential).parameters
        for name, value in options.items():
            if name not in known:
                raise ArgumentError(
                    f"the config of SequentialBuilder has the unknown key {name!r}."
                )
            builder._set(name, value)
        return builder

    @property
    def layers(self) -> list[Layer]:
        """The layers so far."""
        return list(self._layers)

    def input(self, *shape: int) -> Self:
        """Set the shape of one sample, without the batch axis."""
        if not shape:
            raise ArgumentError("input expects the sizes of one sample, such as .input(28, 28).")
        self._input = tuple(check_count(n, "input size") for n in shape)
        return self

    def add(self, layer: Layer) -> Self:
        """Append any layer, including your own."""
        self._layers.append(layer)
        return self

    # written by `python tools/builder_methods.py`
    avg_pool1d = adds(catalogue.AvgPool1D)
    avg_pool2d = adds(catalogue.AvgPool2D)
    batch_norm = adds(catalogue.BatchNorm)
    bidirectional = adds(catalogue.Bidirectional)
    celu = adds(catalogue.CELU)
    chain = adds(catalogue.Chain)
    conv1d = adds(catalogue.Conv1D)
    conv2d = adds(catalogue.Conv2D)
    conv_transpose1d = adds(catalogue.ConvTranspose1D)
    conv_transpose2d = adds(catalogue.ConvTranspose2D)
    dense = adds(catalogue.Dense)
    depthwise_conv2d = adds(catalogue.DepthwiseConv2D)
    dropout = adds(catalogue.Dropout)
    elu = adds(catalogue.ELU)
    embedding = adds(catalogue.Embedding)
    feed_forward = adds(catalogue.FeedForward)
    flatten = adds(catalogue.Flatten)
    gaussian_noise = adds(catalogue.GaussianNoise)
    geglu = adds(catalogue.GEGLU)
    gelu = adds(catalogue.GELU)
    global_avg_pool = adds(catalogue.GlobalAvgPool)
    global_max_pool = adds(catalogue.GlobalMaxPool)
    group_norm = adds(catalogue.GroupNorm)
    gru = adds(catalogue.GRU)
    hard_sigmoid = adds(catalogue.HardSigmoid)
    hard_swish = adds(catalogue.HardSwish)
    hard_tanh = adds(catalogue.HardTanh)
    instance_norm = adds(catalogue.InstanceNorm)
    lambda_ = adds(catalogue.Lambda)
    layer_norm = adds(catalogue.LayerNorm)
    leaky_relu = adds(catalogue.LeakyReLU)
    log_softmax = adds(catalogue.LogSoftmax)
    low_rank = adds(catalogue.LowRank)
    lstm = adds(catalogue.LSTM)
    max_pool1d = adds(catalogue.MaxPool1D)
    max_pool2d = adds(catalogue.MaxPool2D)
    mish = adds(catalogue.Mish)
    multi_head_attention = adds(catalogue.MultiHeadAttention)
    parallel = adds(catalogue.Parallel)
    permute = adds(catalogue.Permute)
    positional_embedding = adds(catalogue.PositionalEmbedding)
    prelu = adds(catalogue.PReLU)
    random_crop = adds(catalogue.RandomCrop)
    random_flip = adds(catalogue.RandomFlip)
    random_shift = adds(catalogue.RandomShift)
    relu = adds(catalogue.ReLU)
    reparameterize = adds(catalogue.Reparameterize)
    reshape = adds(catalogue.Reshape)
    residual = adds(catalogue.Residual)
    rms_norm = adds(catalogue.RMSNorm)
    rnn = adds(catalogue.RNN)
    rotary_embedding = adds(catalogue.RotaryEmbedding)
    scaled_dot_product_attention = adds(catalogue.ScaledDotProductAttention)
    select = adds(catalogue.Select)
    selu = adds(catalogue.SELU)
    sigmoid = adds(catalogue.Sigmoid)
    silu = adds(catalogue.SiLU)
    sinusoidal_encoding = adds(catalogue.SinusoidalEncoding)
    skip_concat = adds(catalogue.SkipConcat)
    softmax = adds(catalogue.Softmax)
    softplus = adds(catalogue.Softplus)
    softsign = adds(catalogue.Softsign)
    spatial_dropout = adds(catalogue.SpatialDropout)
    swiglu = adds(catalogue.SwiGLU)
    swish = adds(catalogue.Swish)
    tanh = adds(catalogue.Tanh)
    tied_dense = adds(catalogue.TiedDense)
    time_distributed = adds(catalogue.TimeDistributed)
    transformer_block = adds(catalogue.TransformerBlock)
    upsample2d = adds(catalogue.Upsample2D)
    zero_pad2d = adds(catalogue.ZeroPad2D)

    def optimizer(self, optimizer: Optimizer | str) -> Self:
        """Set the optimizer, as an object or by name."""
        return self._set("optimizer", optimizer)

    def loss(self, loss_class: Loss | str) -> Self:
        """Set the loss, as an object or by name."""
        return self._set("loss_class", loss_class)

    def alpha(self, num: float | Schedule) -> Self:
        """Set the learning rate of the model's optimizer."""
        return self._set("alpha", check_rate(num))

    def epochs(self, num: int) -> Self:
        """Set the number of epochs: how often `train` uses each sample."""
        return self._set("epochs", check_count(num, "epochs", minimum=0))

    def batch(self, num: int) -> Self:
        """Set the number of samples per step."""
        return self._set("batch_size", check_count(num, "batch_size"))

    def metrics(self, *metrics: MetricLike) -> Self:
        """Set the metrics, as names or functions, that are reported along with the loss."""
        as_metrics(metrics, 0.5)
        return self._set("metrics", metrics)

    def callbacks(self, *callbacks: Callback) -> Self:
        """Set the callbacks for every call of `train`."""
        return self._set("callbacks", callbacks)

    def seed(self, num: int) -> Self:
        """Set the seed; weights, shuffles and dropout masks are then reproducible bit for bit."""
        return self._set("seed", check_count(num, "seed", minimum=0))

    def dtype(self, dtype: DType) -> Self:
        """Set the dtype of parameters and computations: "float32" or "float64"."""
        return self._set("dtype", dtype)

    def distributed(
        self, *, shard_optimizer: bool = False, overlap: bool = True, timeout: float = 600.0
    ) -> Self:
        """Train in all processes of an MPI job: see `phitodeep.distributed.DataParallel`."""
        options = {"shard_optimizer": shard_optimizer, "overlap": overlap, "timeout": timeout}
        self._distributed = options
        return self

    def build(self) -> Sequential:
        """Return the model; refuse sizes that do not fit and a loss that does not match."""
        layers, options = copy.deepcopy((self._layers, self._options))
        model = Sequential(*layers, **options)
        if self._input is not None:
            model.build(self._input)
        model._check()
        if self._distributed is not None:
            DataParallel(model, **self._distributed)
        return model

    def _set(self, name: str, value: Any) -> Self:
        self._options[name] = value
        return self
