"""SequentialBuilder: one method for each layer and each setting of Sequential."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from keyword import iskeyword
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self

from phitodeep import layers as catalogue
from phitodeep.core.checks import check_count, check_shape, snake_case
from phitodeep.core.config import alike
from phitodeep.core.hints import OF_BUILDERS, OF_MODELS
from phitodeep.core.types import DType, Schedule, Shape, parameters
from phitodeep.distributed import DataParallel
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.loss import Loss
from phitodeep.loss.metrics import MetricLike, as_metrics
from phitodeep.model.callbacks import Callback
from phitodeep.model.draft import INPUT, Draft, Head
from phitodeep.model.network import Network
from phitodeep.model.sequential import Sequential
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.optimization.schedules import check_rate

P = ParamSpec("P")


class Step(NamedTuple):
    """A call of a method of the builder that adds to the network."""

    method: str  # "add" for all that append a layer
    values: tuple[str, ...] = ()  # the names that it takes
    layer: Any = None
    options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        kind, shown = type(self.layer), repr(self.layer)
        arguments = [*map(repr, self.values)]
        name = kind.__name__
        if self.layer is None:
            arguments += [f"{key}={value!r}" for key, value in self.options.items()]
            return f"{self.method}({', '.join(arguments)})"
        known = hasattr(SequentialBuilder, method_name(name))
        if vars(catalogue).get(name) is not kind or not known or not shown.startswith(f"{name}("):
            return f"add({', '.join([shown, *arguments])})"
        if own := shown.removeprefix(f"{name}(").removesuffix(")"):
            arguments.append(own)
        return f"{method_name(name)}({', '.join(arguments)})"


def method_name(name: str) -> str:
    """Return the name of the builder method of a layer class: `lambda_` for Lambda."""
    method = snake_case(name)
    return method + "_" * iskeyword(method)


def adds(
    kind: Callable[P, Layer],
) -> Callable[Concatenate[SequentialBuilder, P], SequentialBuilder]:
    """Create a builder method that appends a layer of this kind, with the layer's signature.

    Of a layer with several inputs, it takes the names of the other values first.
    """
    inputs = getattr(kind, "inputs", 1)
    several = inputs != 1

    def method(self: SequentialBuilder, /, *args: Any, **kwargs: Any) -> SequentialBuilder:
        names = [*takewhile(lambda arg: isinstance(arg, str), args)] if several else []
        if several and any(isinstance(arg, str | list | tuple) for arg in args[len(names) :]):
            raise ArgumentTypeError(f"names of values come first: .{method.__name__}('a', 'b').")
        try:
            layer = kind(*args[len(names) :], **kwargs)
        except TypeError as error:
            if "unexpected keyword" in str(error):
                raise _unexpected(kind, kwargs) from None
            raise
        return self._do(Step("add", tuple(names), layer))

    shown = inspect.signature(kind.__init__).replace(return_annotation="SequentialBuilder")
    if several and not isinstance(inputs, property):  # not only with some options
        own, *rest = shown.parameters.values()
        rest = [p.replace(kind=p.KEYWORD_ONLY) for p in rest]
        shown = shown.replace(parameters=[own, VALUES, *rest])
    method.__signature__ = shown  # type: ignore[attr-defined]  # for `help`
    method.__name__ = method_name(kind.__name__)
    method.__qualname__ = f"SequentialBuilder.{method.__name__}"
    method.__doc__ = f"Append a `{kind.__name__}` layer.\n\n{inspect.getdoc(kind)}"
    return method


VALUES = inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL, annotation="str")


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


class SequentialBuilder:
    """Builds a Sequential step by step: each method returns the builder.

    `SequentialBuilder(28, 28, seed=0)` is short for `SequentialBuilder().input(28, 28).seed(0)`.
    Settings of Sequential may follow in any order. `build` may be called several times, and
    returns an independent model each time.

    Several inputs have names, and so may values on the way:

        SequentialBuilder(image=(28, 28, 1), words=(40,))
        .at("image").flatten().dense(64).name("seen")
        .at("words").embedding(1000, 32).lstm(64, return_sequences=False).concat("seen")
        .dense(10).output("digit", loss="softmax_cross_entropy")

    `build` then returns a `Network`.
    """

    def __init__(self, *input_shape: int, seed: int | None = None, **inputs: Sequence[int]) -> None:
        self._steps: list[Step] = []
        self._draft = Draft()
        self._options: dict[str, Any] = {"seed": seed}
        self._distributed: dict[str, Any] | None = None
        self._shapes: dict[str, Shape] = {}
        if isinstance(seed, list | tuple):
            raise ArgumentTypeError(
                "seed= is the seed of random numbers, an integer: give the input another name."
            )
        if input_shape or inputs:
            self.input(*input_shape, **inputs)

    def __getattr__(self, name: str) -> Any:
        known = [key for key in dir(type(self)) if not key.startswith("_")]
        if name in OF_BUILDERS:
            hint = f": {OF_BUILDERS[name]}."
        elif name in OF_MODELS:
            hint = f": after .build(), {OF_MODELS[name]}."
        elif not name.startswith("_") and callable(getattr(Sequential, name, None)):
            hint = f": build the model first, as in .build().{name}(...)."
        elif near := difflib.get_close_matches(name, known, n=1):
            hint = f". Did you mean .{near[0]}()?"
        else:
            hint = ". Append any other layer with .add(layer)."
        raise AttributeError(f"a builder has no {name!r}{hint}")

    def __repr__(self) -> str:
        plain = [*self._shapes] == [INPUT]
        sizes = [str(n) for n in self._shapes[INPUT]] if plain else []
        sizes += [] if plain else [f"{name}={shape}" for name, shape in self._shapes.items()]
        options = {k: v for k, v in self._options.items() if k != "seed" or v is not None}
        if "seed" in options:
            sizes.append(f"seed={options.pop('seed')}")
        calls = [*map(repr, self._steps)]
        for name, value in options.items():
            method = {"loss_class": "loss", "batch_size": "batch"}.get(name, name)
            values = value if name in ("metrics", "callbacks") else [value]
            calls.append(f"{method}({', '.join(map(repr, values))})")
        return ".".join([f"{type(self).__name__}({', '.join(sizes)})", *calls])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequentialBuilder) and alike(self._value(), other._value())

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _value(self) -> Any:
        """Return what makes two builders equal."""
        return self._shapes, [*map(tuple, self._steps)], self._options

    @property
    def layers(self) -> list[Layer]:
        """The layers so far."""
        return [step.layer for step in self._steps if step.layer is not None]

    @property
    def input_shape(self) -> Shape | None:
        """The shape of a sample, if it is set and there is one input."""
        return next(iter(self._shapes.values())) if len(self._shapes) == 1 else None

    @property
    def is_network(self) -> bool:
        """Whether this is a network, and not one layer after another."""
        bare = all(step.method == "add" and not step.values for step in self._steps)
        shared = any(isinstance(layer, catalogue.Shared) for layer in self.layers)
        return not bare or shared or self._draft.inputs != (INPUT,)

    def _do(self, step: Step) -> Self:
        layer = [] if step.method in ("name", "at", "output") else [step.layer]
        getattr(self._draft, step.method)(*layer, *step.values, **step.options)
        self._steps.append(step)
        return self

    def input(self, *shape: int, **shapes: Sequence[int]) -> Self:
        """Set the shape of one sample, without the batch axis; of several inputs, each by name."""
        if bool(shape) == bool(shapes) or any(isinstance(n, list | tuple) for n in shape):
            raise ArgumentError(
                "input expects the sizes of one sample, such as .input(28, 28), or of each input "
                "by name, such as .input(image=(28, 28, 1), words=(40,))."
            )
        if shapes and self._steps:
            raise ArgumentError("name the inputs before the first layer.")
        self._shapes = {
            name: check_shape(sizes, f"the input {name}" if shapes else "the input")
            for name, sizes in (shapes or {INPUT: shape}).items()
        }
        if shapes:
            self._draft = Draft([*shapes])
        return self

    # --- values ------------------------------------------------------------------------------

    def add(self, *layers: Layer | str) -> Self:
        """Append any layers, including your own; or add the values of these names.

        One layer with several inputs takes the names of the others: `.add(layer, "seen")`.
        """
        names = [part for part in layers if isinstance(part, str)]
        if unknown := [name for name in names if name not in self._draft.names]:
            raise ArgumentError(
                f"add takes layers, such as ReLU(), or names of values, which are "
                f"{', '.join(self._draft.names)}, got {unknown[0]!r}."
            )
        own = [part for part in layers if not isinstance(part, str)] or [catalogue.Add()]
        if names and len(own) > 1:
            raise ArgumentTypeError(f"add takes names for one layer, got {len(own)} layers.")
        for layer in own:
            if isinstance(layer, list | tuple):
                raise ArgumentTypeError(f"add takes layers or names one by one: .add(*{layer!r}).")
            self._do(Step("add", tuple(names), layer))
        return self

    def name(self, *names: str) -> Self:
        """Name the value so far; a name that is taken comes to stand for this value."""
        return self._do(Step("name", names))

    def at(self, name: str) -> Self:
        """Go on from the value of this name."""
        return self._do(Step("at", (name,)))

    def then(self, block: Callable[..., Any], *args: Any, **options: Any) -> Self:
        """Apply a function of the builder, which appends several layers and returns it."""
        if isinstance(block, Layer) or not callable(block):
            raise ArgumentTypeError(
                f"then takes a function of the builder, got {block!r}: append layers with .add()."
            )
        if block(self, *args, **options) is not self:
            name = getattr(block, "__name__", repr(block))
            raise ArgumentTypeError(f"{name} must return the builder that it received.")
        return self

    def shared(self, layer: Layer) -> Self:
        """Append a layer of this builder at a second place, with the same weights."""
        if not any(part is layer for top in self.layers for _, part in top.walk()):
            raise ArgumentError(
                f"shared uses a layer of this builder again, and {layer!r} is not one of them: "
                "append it first, with .add(layer)."
            )
        return self._do(Step("shared", (), catalogue.Shared(layer)))

    def output(
        self, name: str, loss: Loss | str | None = None, *, metrics: Sequence[MetricLike] = (),
        weight: float = 1.0,
    ) -> Self:  # fmt: skip
        """Make the value so far an output; with a loss, whose factor is `weight`, it is trained."""
        options = {"loss": loss, "metrics": metrics, "weight": weight}
        given = {k: v for k, v in options.items() if v != Head._field_defaults[k]}
        return self._do(Step("output", (name,), None, given))

    # written by `python tools/builder_methods.py`
    average = adds(catalogue.Average)
    avg_pool1d = adds(catalogue.AvgPool1D)
    avg_pool2d = adds(catalogue.AvgPool2D)
    batch_norm = adds(catalogue.BatchNorm)
    bidirectional = adds(catalogue.Bidirectional)
    bilinear = adds(catalogue.Bilinear)
    celu = adds(catalogue.CELU)
    chain = adds(catalogue.Chain)
    concat = adds(catalogue.Concat)
    conv1d = adds(catalogue.Conv1D)
    conv2d = adds(catalogue.Conv2D)
    conv_transpose1d = adds(catalogue.ConvTranspose1D)
    conv_transpose2d = adds(catalogue.ConvTranspose2D)
    cross_attention = adds(catalogue.CrossAttention)
    dense = adds(catalogue.Dense)
    depthwise_conv2d = adds(catalogue.DepthwiseConv2D)
    dot = adds(catalogue.Dot)
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
    gradient_reversal = adds(catalogue.GradientReversal)
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
    maximum = adds(catalogue.Maximum)
    mish = adds(catalogue.Mish)
    multi_head_attention = adds(catalogue.MultiHeadAttention)
    multiply = adds(catalogue.Multiply)
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
    subtract = adds(catalogue.Subtract)
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

    def _network(self, draft: Draft, options: dict[str, Any]) -> Network:
        if draft.heads:
            for given, own in (("loss_class", "loss"), ("metrics", "metrics")):
                if given in options:
                    raise ArgumentError(
                        f".{own}(...) is for a single output: give .output(..., {own}=...)."
                    )
            heads = draft.heads.items()
            options["loss_class"] = {n: head.loss for n, head in heads if head.loss is not None}
            options["metrics"] = {n: head.metrics for n, head in heads if head.metrics}
            options["loss_weights"] = {n: head.weight for n, head in heads if head.weight != 1}
        return Network(*draft.wired(), **options)

    def build(self) -> Sequential:
        """Return the model; refuse sizes that do not fit and a loss that does not match."""
        draft, options = copy.deepcopy((self._draft, self._options))
        model: Any
        if self.is_network:
            model = self._network(draft, options)
        else:
            model = Sequential(*[layer for layer, _, _ in draft.uses], **options)
        if self._shapes:
            model.build(self._shapes if self.is_network else self._shapes[INPUT])
        model._check()
        if self._distributed is not None:
            DataParallel(model, **self._distributed)
        return model

    def _set(self, name: str, value: Any) -> Self:
        self._options[name] = value
        return self
