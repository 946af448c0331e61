"""Model: layers with a loss, an optimizer and a training loop, the base of Sequential and Network.

Long because its public methods carry their full documentation; the work is done elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from phitodeep.core.call import calling, current
from phitodeep.core.checks import (
    check_count,
    check_list,
    check_number,
    check_shape,
    choose,
    class_hint,
    keywords,
)
from phitodeep.core.config import being_written, check_mapping, written
from phitodeep.core.hints import OF_MODELS, OF_TRAIN
from phitodeep.core.state import StateDict, check_array, check_entries, load_all, plain
from phitodeep.core.threads import check_threads
from phitodeep.core.types import Array, DType, PathLike, Schedule, cut, each
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError
from phitodeep.inspect.methods import Inspectable
from phitodeep.io.model_file import (
    Differences,
    check_tokenizer,
    differences,
    open_model,
    packed,
    weights_in,
)
from phitodeep.io.tensors import Entry, open_tensors, write_tensors
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.layers.random import shapes_only
from phitodeep.loss import LOSSES, Loss
from phitodeep.loss.metrics import MetricLike, as_metrics
from phitodeep.model.lora import Adaptable
from phitodeep.optimization.optimizers import Adam, Optimizer, as_optimizer
from phitodeep.optimization.schedules import check_rate
from phitodeep.text.generation import Generating
from phitodeep.training.callback import Callback, as_callbacks
from phitodeep.training.history import History
from phitodeep.training.inputs import mask_of, named_inputs, validate_inputs
from phitodeep.training.loop import Training, held_out
from phitodeep.training.objective import Objective
from phitodeep.training.parts import predictions
from phitodeep.training.rate_finder import RateRange, find_alpha
from phitodeep.training.run import TrainingRun, difference, fixed, named_states, paired
from phitodeep.training.shortcuts import rearranged
from phitodeep.training.sources import Epoch, as_source

FOR_USERS = {  # of what every container has; the rest is for authors of layers
    *("backward", "build", "cast", "checkpoint", "children", "copy", "count_params", "flops"),
    *("forward", "get_config", "get_weights", "gradients", "output_shape", "save"),
    *("set_weights", "trainable", "walk"),
}


class Model(Inspectable, Adaptable, Generating, registered=False):
    """A model that trains: its settings, and all methods of `Sequential` and `Network`.

    The methods that look into a model, such as `summary` and `trace`, come from `Inspectable`,
    those for fine-tuning by LoRA, such as `add_lora`, from `Adaptable`, and `generate` and `stream`
    from `Generating`.
    """

    refers_to: ClassVar[tuple[str, ...]] = ("_checked", "_plans")
    _default_loss: ClassVar[Any] = "mse"
    takes: tuple[str, ...] = ("X",)  # the names of the inputs, which only a Network chooses
    returns: tuple[str, ...] = ("Y",)
    tokenizer: Any = None  # turns text into tokens; saved with the model
    _plans: tuple[Any, tuple[int, int, Any]] | None = None
    kept_as: ClassVar = {"loss_class": "loss", "alpha": "_own_alpha"}

    @keywords({"loss": "write loss_class=", "batch": "write batch_size=", "lr": "write alpha="})
    def __init__(
        self, *layers: Any, alpha: float | Schedule | None = None,
        optimizer: Optimizer | str | None = None, batch_size: int | None = None, epochs: int = 1000,
        loss_class: Loss | str | None = None, metrics: Sequence[MetricLike] = (),
        callbacks: Sequence[Callback] = (), seed: int | None = None, dtype: DType = None,
    ) -> None:  # fmt: skip
        super().__init__(*layers)
        self.epochs = check_count(epochs, "epochs", minimum=0)
        self.epoch = 0  # epochs trained so far
        self._alpha = None if alpha is None else check_rate(alpha)
        self._checked: tuple[Layer | None, Loss] | None = None
        self.setbatchsize(batch_size)
        self.setloss(self._default_loss if loss_class is None else loss_class)
        self.metrics = self._as_metrics(metrics)
        self.callbacks = as_callbacks(callbacks)
        self.cast(np.float32 if dtype is None else dtype)
        self._set_seed(
            None if seed is None else check_count(seed, "seed", minimum=0, maximum=math.inf)
        )
        self._build_known()
        self.setoptimizer(Adam() if optimizer is None else optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plans": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.optimizer._claim(self)

    def __getattr__(self, name: str) -> Any:
        if name in OF_MODELS:
            raise AttributeError(f"a model has no {name!r}: {OF_MODELS[name]}.")
        return object.__getattribute__(self, name)  # raises the usual error

    def __dir__(self) -> list[str]:
        """List the names for users of a model, which completion offers."""
        own = {*dir(Container), "params", "returns", "skips_dX", "state", "takes"} - FOR_USERS
        own.add("samples_at_once")  # which `predict` asks
        return [name for name in super().__dir__() if name[0] == "_" or name not in own]

    # --- settings --------------------------------------------------------------------------

    def _set_seed(self, seed: Any) -> None:
        super()._set_seed(seed)
        if not isinstance(seed, np.random.SeedSequence):
            self.seed: int | None = seed  # a SeedSequence comes from an outer model

    def get_config(self) -> dict[str, Any]:
        """Return the layers and all settings as plain JSON values: see `phitodeep.core.config`.

        The settings include the input shape, if it is known, the paths of frozen layers, and the
        updates of LoRA.
        """
        config = super().get_config()
        outer = [o for o in being_written() if isinstance(o, Model) and o is not self]
        if self.input_shape is not None and all(o.input_shape is None for o in outer):
            shapes: Any = self.input_shape
            config["input_shape"] = [*shapes] if self.inputs == 1 else [[*s] for s in shapes]
        frozen = [path for path, layer in self.walk() if not layer.trainable]
        if frozen and not outer:
            config["frozen"] = frozen
        lora = self._written_lora()
        if lora["weights"] and not outer:
            config["lora"] = lora
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the model that `get_config` describes, as it was before training.

        It is built if the original was. With a seed, its initial weights are identical bit for bit;
        without a seed, they are drawn again.
        """
        config = dict(check_mapping(config, cls.__name__))
        shape, frozen = config.pop("input_shape", None), config.pop("frozen", [])
        lora = config.pop("lora", None)
        model = super().from_config(config)
        if shape is not None:
            several, who = model.inputs != 1, "input_shape"
            model.build(tuple(check_list(shape, who)) if several else check_shape(shape, who))
        if lora is not None:
            model._adapt_as_written(lora)
            model.trainable = True
        layers = dict(model.walk())
        for path in check_list(frozen, "frozen"):
            if not isinstance(path, str) or path not in layers:
                raise ArgumentError(f"frozen: the model has no layer {path!r}.")
            layers[path]._trainable = False
        return model

    @property
    def _own_alpha(self) -> float | Schedule | None:
        """The learning rate if it was set on the model, or None if the optimizer's own is used."""
        return None if self._alpha is None else self.optimizer.alpha

    def setoptimizer(self, optimizer: Optimizer | str) -> None:
        """Set the optimizer, as an object or by name; it uses the model's alpha, if one was set."""
        optimizer = as_optimizer(optimizer)
        optimizer._claim(self)
        before = vars(self).get("optimizer")
        if before is not None and before is not optimizer:
            before.reset()
        self.optimizer = optimizer
        if self._alpha is not None:
            optimizer.alpha = self._alpha

    def setbatchsize(self, num: int | None) -> None:
        """Set the number of samples per step; None means all of them."""
        self.batch_size = None if num is None else check_count(num, "batch_size")

    def setloss(self, loss_class: Loss | str) -> None:
        """Set the loss, as an object or by name."""
        if isinstance(loss_class, str):
            loss_class = choose(loss_class, LOSSES, "loss")()
        if not isinstance(loss_class, Loss):
            raise ArgumentTypeError(
                f"loss must be a Loss or its name, got {loss_class!r}.{class_hint(loss_class)}"
            )
        self.loss = loss_class

    def _as_metrics(self, metrics: Any) -> Any:
        """Return metrics as they are kept; a wrong name is refused."""
        as_metrics(metrics, self.loss.threshold)
        several = isinstance(metrics, Sequence) and not isinstance(metrics, str)
        return list(metrics) if several else [metrics]

    @property
    def alpha(self) -> float | Schedule:
        """The learning rate of the model's optimizer."""
        return self.optimizer.alpha

    @alpha.setter
    def alpha(self, alpha: float | Schedule) -> None:
        self.optimizer.alpha = self._alpha = alpha

    # --- use -------------------------------------------------------------------------------

    def __call__(self, X: Any) -> Array:
        """Call `predict`."""
        return self.predict(X)

    def predict(
        self, X: Any, batch_size: int | None = None, *, lengths: Any = None,
        threads: int | str = "auto",
    ) -> Array:  # fmt: skip
        """Return the outputs for X (N, ...), computed in batches, without dropout or caching.

        `batch_size`, by default `samples_at_once()`, is the maximum size of a batch. X may be an
        np.memmap; only one batch of it per thread is in memory at a time. `lengths`: see `forward`.
        `threads`: see `train`.
        """
        if on_disk := isinstance(X, np.memmap):
            mask = mask_of(X, lengths, self.takes_tokens)
        else:
            X, mask = self._inputs(X, lengths)
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        threads = check_threads(threads)

        flops, at_once, body = self._planned()
        body = body if current().watch is None else self

        def forward(rows: slice) -> Array:
            kept = cut(mask, rows)
            part = validate_inputs(self, X[rows], mask=kept) if on_disk else cut(X, rows)
            if kept is current().mask:  # None, as a rule
                return body.forward(*each(part))
            with calling(mask=kept):
                return body.forward(*each(part))

        n = len(each(X)[0])
        return self._named(predictions(self, forward, n, batch_size or at_once, flops, threads))

    def _inputs(self, X: Any, lengths: Any) -> tuple[Any, Any]:
        """Return the checked inputs and their masks."""
        return named_inputs(self, X, lengths, "X")

    def _check_trained(self) -> None:
        """Refuse layers that training would never change."""

    def _in_order(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return samples and targets given by name in the order of inputs and outputs."""
        return X, y

    def _named(self, P: Any) -> Any:
        """Return predictions as users get them: several by name."""
        return dict(zip(self.returns, P, strict=True)) if self.outputs > 1 else P

    def samples_at_once(self) -> int:
        """Return how many samples to process at a time: about a million values per layer.

        That many stay in the processor's cache from layer to layer. The maximum is 1024.
        """
        return self._planned()[1]

    def _planned(self) -> tuple[int, int, Any]:
        """Return a sample's FLOPs, `samples_at_once` and what `predict` runs, until layers change.

        The body takes the shortcuts that change no bit of a prediction.
        """
        biases = [getattr(layer, "bias", None) for layer in self.layers]
        key = (self.input_shape, self.output_shape, self.dtype, biases, self.layers)
        if self._plans is None or self._plans[0] != key:
            sizes = [math.prod(out) for _, layer in self.walk() for out in layer._outs()]
            widest = max(sizes, default=1)
            at_once = max(1, min(1024, (5 << 18) // max(widest, 1)))
            body = self if self.output_shape is None else rearranged(self)
            self._plans = (*key[:-1], [*self.layers]), (self.flops(), at_once, body)
        return self._plans[1]

    @keywords({})
    def evaluate(
        self, X: Any, y: Any = None, *, batch_size: int | None = None, sample_weight: Any = None,
        lengths: Any = None, columns: Sequence[str] | None = None,
        metrics: Sequence[MetricLike] | None = None, threads: int | str = "auto",
    ) -> dict[str, Any]:  # fmt: skip
        """Return `loss` and the metrics of the predictions for X (N, ...) against y, by name.

        Each is a float, except for `ConfusionMatrix`, which is an array (K, K). `batch_size`, by
        default `samples_at_once()`, limits the memory used. It does not change the results, except
        for metrics that are functions, which are averaged over batches. X, `sample_weight`,
        `lengths`, `columns` and `threads` are as in `train`.
        """
        objective = Objective(self, self.metrics if metrics is None else metrics)
        if batch_size is None:
            batch_size = self.samples_at_once()
        size = check_count(batch_size, "batch_size")
        source = as_source(
            self, self.loss, X, y, batch_size=size, sample_weight=sample_weight, lengths=lengths,
            columns=columns,
        )  # fmt: skip
        return objective.evaluate(source.batches(Epoch(size)), check_threads(threads))

    @keywords(OF_TRAIN)
    def train(
        self, X: Any, y: Any = None, X_test: Any = None, y_test: Any = None, *,
        epochs: int | None = None, batch_size: int | None = None,
        metrics: Sequence[MetricLike] | None = None, callbacks: Sequence[Callback] = (),
        validation_split: float = 0.0, sample_weight: Any = None, class_weight: Any = None,
        lengths: Any = None, lengths_test: Any = None, columns: Sequence[str] | None = None,
        threads: int | str = "auto", accumulate: int = 1, shuffle: bool = True,
        shortcuts: bool = True, verbose: int | bool = 1,
        resume: PathLike | None = None, anomaly: str | None = None,
    ) -> History:  # fmt: skip
        """Fit the parameters to X (N, ...) and y; return a (train, test) loss pair per epoch.

        X and y are arrays, or np.memmap files; only one batch of a file is in memory at a time.
        Instead, X alone may yield batches: an iterable of pairs (X, y) or triples
        (X, y, sample_weight), such as a list or a PyTorch DataLoader; a function that creates such
        an iterable for each epoch; or a Hugging Face dataset, streaming or not, which is read batch
        by batch. The same holds for X_test and y_test.

        X_test, y_test      evaluated after each epoch; the model does not learn from them
        epochs, batch_size, metrics   replace the model's own for this call
        callbacks           in addition to the model's own
        validation_split    this fraction of the samples, the last ones, becomes the test data
        sample_weight       (N,), or one weight for each position, in the loss. Metrics, as in
                            Keras, count every sample once
        class_weight        the same for each class, by label or in order; or "balanced", which
                            weights the classes of arrays by their inverse frequency: a class with
                            n_k of the n labels has weight n / (K n_k), where K is the number of
                            classes that occur
        lengths             (N,), the number of steps of each sample of X (N, T, ...), or a mask
                            (N, T). The padding has no effect, and no weight in the loss; layers
                            that cannot ignore it are refused. `lengths_test` is the same for
                            X_test
        columns             the names of X and y in a dataset, such as ("image", "label")
        threads             the maximum number of threads that share a large batch, or "auto": one
                            per core that the process may use (see `phitodeep.get_threads`). It
                            changes no result: the sizes of the model and the batch alone decide
                            how many parts a batch has
        accumulate          the number of batches whose gradients are added up for each step
        shuffle             use a new order in each epoch; every sample still occurs once
        shortcuts           False: run the layers as written. By default, training fuses softmax
                            with cross-entropy, runs a Dense and its ReLU as one, and may swap
                            neighbouring layers. Results differ by
                            rounding only, unless the layers as written overflow: `summary()` shows
                            where
        verbose             0: print nothing
        resume              the path of a file that `ModelCheckpoint` wrote: training continues from
                            there, to `epochs` epochs in all, and ends with the same weights, bit
                            for bit, as if it had not been interrupted. Give the same model, data,
                            options and callbacks again; what makes other batches or another model
                            is refused. The batches that an iterable has already yielded in the
                            unfinished epoch are skipped. If all epochs are done, nothing is trained
        anomaly             "raise": if a loss or a gradient is not finite, raise an AnomalyError
                            that says where in the step the first such number arises, instead of
                            ending with a warning

        Calling `train` again continues where the last call ended. Integers in X become floats and
        are not rescaled. Ctrl-C ends training after the current batch. A loss or a gradient that is
        not finite also ends it, with a warning, before any parameter changes.
        """
        self._check()
        self._check_trained()
        epochs = check_count(self.epochs if epochs is None else epochs, "epochs", minimum=0)
        metrics = self.metrics if metrics is None else metrics
        objective = Objective(self, metrics, shortcuts=shortcuts)
        for metric in objective.metrics:
            if not metric.scalar:
                raise ArgumentError(
                    f"{metric!r} is not a single number, which a history needs: compute it with "
                    f"model.evaluate(X, y, metrics=[{metric.name!r}])."
                )
        size = self.batch_size if batch_size is None else batch_size
        size = None if size is None else check_count(size, "batch_size")
        source = partial(as_source, self, self.loss, batch_size=size, columns=columns)
        data = source(X, y, sample_weight=sample_weight, class_weight=class_weight, lengths=lengths)
        test = None
        if X_test is not None:
            test = source(X_test, y_test, lengths=lengths_test, names=("X_test", "y_test"))
        elif y_test is not None or lengths_test is not None:
            given = "y_test" if y_test is not None else "lengths_test"
            raise ArgumentTypeError(f"{given} was given without X_test.")
        if check_number(validation_split, "validation_split", minimum=0, below=1):
            if test is not None:
                raise ArgumentError("give either X_test and y_test or validation_split, not both.")
            data, test = held_out(data, validation_split)
        if epochs > 1 and (data.once or (test is not None and test.once)):
            raise ArgumentError(
                f"an iterator yields its batches only once, but epochs={epochs}: pass a function "
                "that creates one, or epochs=1."
            )
        for option, value in (("shuffle", shuffle), ("shortcuts", shortcuts)):
            if value not in (True, False):
                raise ArgumentTypeError(f"{option} must be True or False, got {value!r}.")
        if anomaly not in (None, "raise"):
            raise ArgumentError(f'anomaly must be None or "raise", got {anomaly!r}.')
        accumulate = check_count(accumulate, "accumulate")
        threads = check_threads(threads)
        callbacks = [*self.callbacks, *as_callbacks(callbacks)]
        if self.input_shape is None:
            self.build(data.sample)
        settings = {
            "epochs": epochs, "batch_size": size, "accumulate": accumulate,
            "shuffle": bool(shuffle), "shortcuts": bool(shortcuts), "threads": threads,
            "samples": data.count, "test_samples": None if test is None else test.count,
            "metrics": [metric.name for metric in objective.metrics],
        }  # fmt: skip
        run = TrainingRun(self, callbacks[len(self.callbacks) :], settings)
        if resume is not None:
            self._resume(resume, run)
        objective = Objective(self, metrics, shortcuts=shortcuts)  # again, with all shapes
        return Training(
            self, objective, data, test, run, size=size, accumulate=accumulate, threads=threads,
            shuffle=shuffle, callbacks=callbacks, verbose=verbose, locates=anomaly is not None,
        ).train()  # fmt: skip

    @contextmanager
    def averaged(self) -> Iterator[Self]:
        """Inside the `with` block, replace the parameters with their averages: see `Optimizer`.

            with model.averaged():
                model.evaluate(X_test, y_test)

        Afterwards their own values are restored. Frozen parameters do not change. Training, and
        a second `averaged` inside the first, are refused.
        """
        with self.optimizer.averaged(self.layers):
            yield self

    # --- files -----------------------------------------------------------------------------

    def save(self, path: PathLike, *, optimizer: bool = False) -> None:
        """Save the model to a file for `phitodeep.load`, completely or not at all.

            model.save("digits.safetensors")
            model = phitodeep.load("digits.safetensors")

        The file holds the layers, all settings, the weights and the running statistics, and the
        tokenizer if `model.tokenizer` is set. Callbacks are not part of it. It holds no code: your
        own classes and functions are stored by the names under which `@phitodeep.register`
        registered them.

        optimizer    True: also save the optimizer's memory, the number of epochs and the random
                     streams, so that the next call of `train` continues exactly

        A model that is not built, or whose parts have no name, such as a lambda as its schedule, is
        refused. To continue within an epoch, use `ModelCheckpoint`.
        """
        packed = self._packed({"model": self._progress()} if optimizer else None)
        if self._ranks.rank == 0:
            write_tensors(path, *packed)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Return the model in a file that `save` or `ModelCheckpoint` wrote.

        Names, shapes, dtypes and sizes are checked before memory is allocated. Import the module
        that registers your own layers before you load a file with them. Loading runs nothing from
        the file, so files from strangers are safe to load.
        """
        with open_model(path) as file:
            with shapes_only():
                model, tokenizer = file.build()
            if not isinstance(model, cls):
                raise DataError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}.")
            found = differences(model._entries(), file.weights)
            if any(found):
                raise DataError(f"{path} is damaged: its weights do not fit its model: {found}.")
            for name, store, key in model._stored():
                if store[key].flags.writeable:
                    store[key][...] = file.tensors.read(name)
                else:  # a placeholder
                    store[key] = file.tensors.read(name)
            for _, layer in model.walk():
                layer._shapes_only = False
            model.tokenizer = tokenizer
            state = file.state()
            if state is not None:
                own = {"weights": model.get_weights(), "callbacks": []}
                model.load_state_dict({**file.model_state(state), **own})
        return model

    def save_weights(self, path: PathLike) -> None:
        """Save only the weights and the running statistics, for `load_weights`.

        `phitodeep.load` cannot read such a file, because it holds no model.
        """
        if self._ranks.rank == 0:
            write_tensors(path, {name: store[key] for name, store, key in self._stored()}, {})

    def load_weights(self, path: PathLike, *, strict: bool = True) -> Differences:
        """Read the weights and running statistics of a file into this model, by path.

        The file may come from `save`, `save_weights` or `ModelCheckpoint`, or be any other
        safetensors file with these names.

        strict    True: if a name, a shape or a dtype differs, nothing changes, and a DataError
                  lists the differences. False: the weights that fit are read, and the rest is
                  returned
        """
        with open_tensors(path) as tensors:
            entries, weights = self._entries(), weights_in(tensors)
            found = differences(entries, weights)
            fitting = [name for name in entries if weights.get(name) == entries[name]]
            if any(found) and (strict or not fitting):
                remedy = " Pass strict=False to read the weights that fit." if fitting else ""
                raise DataError(f"{path} does not fit {self!r}: {found}.{remedy}")
            new = {name: tensors.read(name) for name in fitting}
        for name, store, key in self._stored():
            if name in new:
                store[key][...] = new[name]
        return found

    def export_numpy(self, path: PathLike) -> None:
        """Write a Python file with `predict(X)` that needs NumPy alone, and its weights next to it.

        `export_numpy("net.py")` writes net.py and net.npz. The file holds the few functions that
        this model uses and the network, line by line; its predictions are those of `predict`, in
        the model's dtype. It supports neither `lengths` nor threads. Existing files are replaced.
        Several inputs are given by name or in order, and several outputs returned by name.
        A layer without a NumPy function, such as a Lambda, is refused before anything is written:
        see `phitodeep.exchange.numpy.forms.exports`.
        """
        from phitodeep.exchange.numpy.export import export_numpy

        export_numpy(self, path, max(1, self.samples_at_once() // 4))

    def export_onnx(self, path: PathLike, opset: int = 20) -> None:
        """Write the model as an ONNX file, which many programs run, such as onnxruntime.

        The file computes Y from X in the layout of `predict`: images (N, height, width, C),
        sequences (N, T, D) and tokens (N, T), which are int64. N is free, and so is T if the layers
        allow it. Dropout does nothing, and there are no `lengths`: every step counts. A tokenizer
        is not included. In the file of a `Network`, X and Y have the names that they have there.

        opset    the version of ONNX's operators, from 17; a newer one has operators for more
                 layers, but older programs cannot read it. onnxruntime reads 20 from 1.17 on

        The graph consists of standard operators and is checked by ONNX's own checker before
        anything is written. The file is replaced if it exists. More than 2 GB of weights are
        written to a second file, path.data, which must stay next to the first.

        Requires the extra `onnx`. Raises an ArgumentError that names each layer without an
        operator, such as a Lambda: see `phitodeep.exchange.onnx.write.forms.exports`.
        """
        from phitodeep.exchange.onnx.write.export import export_onnx

        export_onnx(self, path, opset)

    def _entries(self) -> dict[str, Entry]:
        """Return the shape and dtype of every parameter and state, by path."""
        return {name: Entry(store[key].shape, self.dtype) for name, store, key in self._stored()}

    def _packed(
        self, state: StateDict | None = None, run: str | None = None
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return the arrays and texts of a model file, given a state without the weights."""
        weights = {name: store[key] for name, store, key in self._stored()}
        parts = {"model": self, "tokenizer": check_tokenizer(self.tokenizer)}
        configs = written(parts, "the file")
        return packed(weights, state, **configs, run=run)

    def _resume(self, path: PathLike, run: TrainingRun) -> None:
        """Continue the training whose checkpoint is in this file; if it does not fit, no change."""
        with open_model(path) as file:
            state = file.state()
            if state is None or "place" not in state:
                raise DataError(
                    f"{path} is not a checkpoint: resume= takes a file that ModelCheckpoint wrote. "
                    "To train a saved model, load it with phitodeep.load(path)."
                )
            found = differences(self._entries(), file.weights)
            if any(found):
                raise DataError(f"{path} does not fit {self!r}: {found}.")
            here = written({"model": self}, "this model")["model"]
            wrong = difference(fixed(file.model), fixed(here), "the model")
            if wrong:
                raise ArgumentError(f"{path} was written with {wrong}: resume with the same model.")
            weights = {name: file.tensors.read(name) for name in file.weights}
            own = {**file.model_state(state), "weights": weights}
        run.load_state_dict({**state, "model": own})

    # --- the state of training -----------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return everything that training needs to continue: nested dicts of plain JSON values
        and copies of arrays.

            weights      get_weights(): parameters and state by path
            optimizer    its memory by parameter path, its steps, and the state of schedules
            callbacks    the class and state of each of the model's own callbacks that has a state
            epoch        epochs trained
            seed         entropy and spawn_key of the model's random streams
            frozen       the paths of layers that are not trainable

        A model that was built in the same way and loads the state continues bit for bit. Call this
        method between two calls of `train`, or in a callback's `on_epoch_end`.
        """
        return {"weights": self.get_weights(), **self._progress()}

    def _progress(self) -> StateDict:
        """Return what `state_dict` returns, without the weights."""
        seed = self._seed_sequence
        return {
            "optimizer": self.optimizer.state_dict(),
            "callbacks": named_states(self.callbacks),
            "epoch": self.epoch,
            "seed": {"entropy": plain(seed.entropy), "spawn_key": plain(seed.spawn_key)},
            "frozen": [path for path, layer in self.walk() if not layer.trainable],
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what `state_dict` returned; it is checked before anything changes."""
        who, here, stored = f"{self!r}: the state", dict(self.walk()), self.get_weights()
        keys = ("weights", "optimizer", "callbacks", "epoch", "seed", "frozen")
        state = check_entries(state, keys, who)
        weights = check_entries(state["weights"], stored, f"{who} of weights")
        for path, a in stored.items():
            check_array(weights[path], a.shape, f"{who}: {path}")
        epoch = check_count(state["epoch"], f"{who}: epoch", minimum=0)
        seed = check_entries(state["seed"], ("entropy", "spawn_key"), f"{who} of seed")
        if seed["entropy"] is None:  # NumPy would draw one
            raise ArgumentError(f"{who}: seed {seed!r} is not valid: it has no entropy.")
        try:
            root = np.random.SeedSequence(seed["entropy"], spawn_key=tuple(seed["spawn_key"]))
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{who}: seed {seed!r} is not valid: {error}.") from None
        named = [str(path) for path in check_list(state["frozen"], f"{who}: frozen")]
        check_entries(dict.fromkeys([*here, *named]), here, f"{who} of frozen layers")
        own = paired(self.callbacks, state["callbacks"], who)
        load_all([(self.optimizer, state["optimizer"]), *own])
        self.set_weights(weights)
        self.epoch = epoch
        self._set_seed(root)
        for path, layer in here.items():  # top down: setting a layer also sets those inside
            layer.trainable = path not in state["frozen"]

    def _check(self) -> None:
        """Refuse a loss that does not match the layer before it."""
        raise NotImplementedError

    def find_alpha(
        self, X: Any, y: Any, *, batch_size: int | None = None, low: float = 1e-6,
        high: float = 1.0, steps: int = 100,
    ) -> RateRange:  # fmt: skip
        """Train a copy for `steps` steps while the learning rate grows from `low` to `high`.

        It ends early if the loss explodes. The suggestion is a tenth of the rate with the lowest
        smoothed loss: a rate at which the loss falls fast, and safely. The model itself is not
        changed.
        Source: Smith 2017, "Cyclical learning rates", arXiv:1506.01186, sec. 3.3.
        """
        size = self.batch_size or 64 if batch_size is None else batch_size
        return find_alpha(self, X, y, batch_size=size, low=low, high=high, steps=steps)
