"""What the classifier and the regressor share: their parameters, and how they learn and predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.settings import Count, Flag, checks_of
from phitodeep.core.types import Array, DType, Schedule
from phitodeep.errors import ArgumentError
from phitodeep.loss import Loss
from phitodeep.model.builder import SequentialBuilder
from phitodeep.model.callbacks import EarlyStopping, LambdaCallback
from phitodeep.optimization.optimizers import AdamW, Optimizer, as_optimizer
from phitodeep.optimization.schedules import CosineDecay
from phitodeep.sklearn.batches import STEPS, automatic_size, outputs, samples
from phitodeep.sklearn.network import average_unknown, network
from phitodeep.sklearn.table import TableEncoder, category_columns

RATE, DECAY = 0.015, 0.5  # of AdamW, the default optimizer


class Part(NamedTuple):
    """Samples X (n, features), with targets y (n, ...) and perhaps weights w (n,)."""

    X: Any
    y: Array
    w: Array | None


@dataclass(eq=False, repr=False)
class PhitoEstimator(BaseEstimator):
    """The base class of `PhitoClassifier`, which documents the parameters, and `PhitoRegressor`."""

    hidden: int | Sequence[int] = (100,)
    activation: str = "relu"
    _: KW_ONLY
    model: SequentialBuilder | None = None
    dropout: float = 0.0
    optimizer: Optimizer | str | None = None
    learning_rate: float | Schedule | None = None
    batch_size: int | str | None = "auto"
    epochs: Count = 20
    early_stopping: Flag = False
    validation_fraction: Annotated[float, partial(check_number, above=0, below=1)] = 0.1
    n_iter_no_change: Count = 10
    categories: Sequence[str | int] | str | None = "auto"
    scale: Flag = True
    dtype: DType = None
    random_state: Any = None
    warm_start: Flag = False
    threads: int | str = "auto"
    verbose: int | bool = 0

    _numeric: ClassVar[bool]  # whether y holds numbers

    # --- what a subclass decides -----------------------------------------------------------

    def _read(self, y: Any, *, first: bool, classes: Any) -> Array:
        """Return checked targets (n,) or (n, outputs), with classes as integers."""
        raise NotImplementedError

    def _objective(self, y: Array) -> tuple[int, Loss]:
        """Return the number of outputs of the network, and its loss."""
        raise NotImplementedError

    def _observe(self, part: Part, *, first: bool) -> None:
        """Look at the targets of the training part before `_targets` is called."""

    def _targets(self, y: Array) -> Array:
        """Return the targets of the loss."""
        return y

    def _class_weights(self, y: Array, *, partial: bool) -> Array | None:
        """Return a weight (n,) for each sample by its class, or None."""
        return None

    def _strata(self, y: Array) -> Array | None:
        """Return the classes (n,) that both parts hold in equal shares, or None."""
        return None

    def _score(self, P: Array, y: Array, w: Array | None) -> float:
        """Return the score of the network's outputs P (n, outputs)."""
        raise NotImplementedError

    # --- learning --------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from X (n, features) and y (n,) or (n, outputs), and return the estimator.

        sample_weight (n,) weights the samples in the loss. With warm_start=True, a second call
        continues with the network, the scaling, the classes and the categories of the first;
        parameters that shape the network, such as `hidden`, count in the first call only.
        """
        first = not (self.warm_start and hasattr(self, "model_"))
        return self._learn(X, y, sample_weight, first=first)

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool, partial: bool = False,
        classes: Any = None,
    ) -> Self:  # fmt: skip
        """Train as `fit` does, or for the single epoch of `partial_fit`."""
        self._check_settings(partial)
        if first:
            self.__dict__.pop("model_", None)  # a call that fails leaves no half-new one
        X, y = self._validated(X, y, first=first)
        y = self._read(y, first=first, classes=classes)
        if not first and (count := self._objective(y)[0]) != self.n_outputs_:
            raise ArgumentError(
                f"y has {count} outputs, but the network has {self.n_outputs_}: to build a new "
                "one, call fit with warm_start=False."
            )
        rng, held = self._rng(), None
        part = Part(X, y, self._weights(X, y, sample_weight, partial))
        if self.early_stopping:
            part, held = self._split(part, rng)
        if first:
            self.encoder_.fit(part.X, sample_weight=part.w)
        elif partial:
            self.encoder_.partial_fit(part.X, sample_weight=part.w)
        if first or partial:
            self._observe(part, first=first)
        part = part._replace(X=self.encoder_.transform(part.X))
        if first:
            self._build(part, rng)
        n, epochs = part.X.shape[0], 1 if partial else self.epochs
        size = self._size(n)
        rule = self._rule(-(-n // size), None if partial else epochs)
        if first or not partial or self.optimizer != self._optimizer:
            self.model_.setoptimizer(rule)
        else:  # which keeps the moments of earlier calls
            self.model_.optimizer.alpha = rule.alpha
        self._optimizer: Optimizer | str | None = self.optimizer
        self._train(part, held, epochs, size)
        if self.encoder_.columns:
            average_unknown(self.model_, self.encoder_.offsets_, self.encoder_.counts_)
        return self

    def _split(self, part: Part, rng: np.random.Generator) -> tuple[Part, Part]:
        """Return the part to train on, and the validation part of early stopping."""
        arrays = [a for a in part if a is not None]
        try:
            halves = train_test_split(
                *arrays, test_size=self.validation_fraction, stratify=self._strata(part.y),
                random_state=int(rng.integers(1 << 31)),
            )  # fmt: skip
        except ValueError as error:  # a class with one sample, or fewer samples than classes
            raise ArgumentError(
                f"early_stopping=True cannot hold out validation_fraction="
                f"{self.validation_fraction} of {len(part.y)} samples: {error} "
                "Change validation_fraction, or set early_stopping=False."
            ) from None
        if len(halves[3]) < 2:
            raise ArgumentError(
                f"validation_fraction={self.validation_fraction} of {len(part.y)} samples leaves "
                "one to validate on: make it larger, or set early_stopping=False."
            )
        without = [None] * (3 - len(arrays))
        parts = Part(*halves[0::2], *without), Part(*halves[1::2], *without)
        if any(each.w is not None and not each.w.any() for each in parts):
            raise ArgumentError(
                "all samples in the training part or in the validation part have weight 0: change "
                "validation_fraction, or set early_stopping=False."
            )
        return parts

    def _build(self, part: Part, rng: np.random.Generator) -> None:
        """Build the network, and forget what an earlier one left."""
        self.n_outputs_, loss = self._objective(part.y)
        self.model_ = network(
            self.hidden, self.activation, self.dropout, self.model, features=part.X.shape[1],
            offsets=self.encoder_.offsets_, outputs=self.n_outputs_, loss=loss,
            seed=int(rng.integers(1 << 31)), dtype=self.dtype or part.X.dtype,
        )  # fmt: skip
        self.loss_curve_: list[float] = []
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None

    def _size(self, n: int) -> int:
        """Return the number of samples per batch, given n samples."""
        if self.batch_size is None:
            return n
        return min(n, automatic_size(n) if self.batch_size == "auto" else int(self.batch_size))

    def _rule(self, steps: int, epochs: int | None) -> Optimizer:
        """Return a new optimizer, for `steps` per epoch.

        Its rate, if it is a number, decays to 0 over the epochs; None: it stays constant. The
        default is AdamW. In an epoch, its decay shrinks weights by the same factor for all tables
        with at least STEPS steps, since more data need less regularisation.
        Source: Wang and Aitchison 2024, "How to set AdamW's weight decay", arXiv:2405.13698.
        """
        usual = AdamW(RATE, weight_decay=DECAY * min(1.0, STEPS / steps))
        rule = usual if self.optimizer is None else as_optimizer(self.optimizer).copy()
        if self.learning_rate is not None:
            rule.alpha = self.learning_rate
        if epochs is not None and not callable(rule.alpha):
            rule.alpha = CosineDecay(rule.alpha, epochs * steps)
        return rule

    def _train(self, part: Part, held: Part | None, epochs: int, size: int) -> None:
        """Train the network, and set the attributes that say how it went."""
        model, began = self.model_, self.model_.epoch
        options: dict[str, Any] = {}
        stop, scores = EarlyStopping(self.n_iter_no_change), list[float]()
        if held is not None:
            Z, y, w = self.encoder_.transform(held.X), held.y, held.w

            def score(*_: Any) -> None:
                P = outputs(model, Z, self.threads)
                scores.append(self._score(P, y, w) if np.isfinite(P).all() else math.nan)

            options["callbacks"] = [LambdaCallback(on_epoch_end=score), stop]
            options["X_test"] = samples(model, Z, self._targets(y), w)
        data = samples(model, part.X, self._targets(part.y), part.w)
        history = model.train(
            data, epochs=epochs, batch_size=size, threads=self.threads, verbose=self.verbose,
            **options,
        )  # fmt: skip
        self.n_iter_ = len(history)
        self.loss_curve_ += [loss for loss, _ in history]
        self.best_loss_ = min(self.loss_curve_, default=math.nan)
        if held is not None:
            best = stop.best_epoch - began - 1  # negative if every loss was NaN
            self.best_loss_ = stop.best
            self.validation_scores_ = [*(self.validation_scores_ or []), *scores]
            self.best_validation_score_ = scores[best] if best >= 0 else math.nan

    # --- predicting ------------------------------------------------------------------------

    def _outputs(self, X: Any) -> Array:
        """Return the network's outputs (n, outputs) for X (n, features)."""
        check_is_fitted(self)
        return outputs(self.model_, self.encode(X), self.threads)

    def encode(self, X: Any) -> Any:
        """Return X (n, features) as the input of `model_`: scaled, with categories as tokens.

        For tools that look into the network, as in `est.model_.trace(est.encode(X), ...)`.
        """
        check_is_fitted(self)
        return self.encoder_.transform(self._validated(X, first=False))

    # --- input -----------------------------------------------------------------------------

    def _validated(self, X: Any, y: Any = "no_validation", *, first: bool) -> Any:
        """Return the checked table X, and y if it is given; `first` sets the number of features."""
        if first:
            self.encoder_ = TableEncoder(category_columns(X, self.categories), scale=self.scale)
        learning = not (isinstance(y, str) and y == "no_validation")
        if not len(self.encoder_.columns):
            options = {"multi_output": True, "y_numeric": self._numeric} if learning else {}
            return validate_data(
                self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], reset=first,
                **options,
            )  # fmt: skip
        if not hasattr(X, "columns"):  # it is not a DataFrame
            kind = None if hasattr(X, "dtype") else object  # mixed lists keep their numbers
            X = check_array(X, dtype=kind, ensure_all_finite=False, input_name="X")
        found = validate_data(self, X, y, skip_check_array=True, reset=first)
        if not learning:
            return found
        numbers = "numeric" if self._numeric else None
        y = check_array(y, accept_sparse="csr", dtype=numbers, ensure_2d=False, input_name="y")
        check_consistent_length(X, y)
        return X, y

    def _weights(self, X: Any, y: Array, sample_weight: Any, partial: bool) -> Array | None:
        """Return the weight (n,) of each sample, or None if all are 1."""
        w = self._class_weights(y, partial=partial)
        if sample_weight is not None:
            if not np.asarray(sample_weight).any():  # which scikit-learn 1.6 accepts
                raise ArgumentError(
                    "sample_weight is zero for every sample: at least one must count."
                )
            given: Array = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            w = given if w is None else given * w
        if w is not None and not w.any():
            raise ArgumentError(
                "class_weight gives every sample the weight 0: at least one must count."
            )
        return w

    def _rng(self) -> np.random.Generator:
        """Return a generator with the seed that random_state gives, as in scikit-learn.

        An integer gives the same seed in each call, a RandomState its next one, and None a new one.
        """
        if self.random_state is None:
            return np.random.default_rng()
        return np.random.default_rng(check_random_state(self.random_state).randint(1 << 31))

    def _check_settings(self, partial: bool) -> None:
        for name, check in checks_of(PhitoEstimator).items():
            check(getattr(self, name), name)
        if self.batch_size is not None and self.batch_size != "auto":
            check_count(self.batch_size, "batch_size")
        if partial and self.early_stopping:
            raise ArgumentError(
                "partial_fit trains for one epoch, so it cannot stop early: set "
                "early_stopping=False, or call fit."
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
