"""LoRA for a whole model: low-rank updates are added, trained, merged, removed, saved and loaded.

A file of updates is a safetensors file. For each weight with an update, such as `1.Wqkv`, it has
the arrays `1.Wqkv.A`, `1.Wqkv.B` and `1.Wqkv.alpha`; the rank follows from their shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.frame import Frame
from phitodeep.core.state import check_types
from phitodeep.core.types import PathLike, Shape
from phitodeep.core.version import __version__
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    NotBuiltError,
    OrderError,
    PhitodeepError,
    first_few,
)
from phitodeep.io.model_file import differences
from phitodeep.io.tensors import Entry, Tensors, open_tensors, write_tensors
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.layers.lora import ADAPTED, Adapted, LowRank, Update
from phitodeep.optimization.packing import first_matches, matching
from phitodeep.training.objective import Trainable

FORMAT, VERSION = "phitodeep-lora", "1"  # of the files of updates
ABLE = "the W of Dense, and the Wqkv and Wo of MultiHeadAttention"


class Share(NamedTuple):
    """Which weights have updates, and how many of the parameters learn."""

    weights: tuple[str, ...]
    learning: int
    parameters: int

    def __str__(self) -> str:
        percent = 100 * self.learning / self.parameters
        return (
            f"{self.learning:,} of {self.parameters:,} parameters learn ({percent:.2f} %): "
            f"updates of {first_few(self.weights, 3)}"
        )


class Adaptable(Trainable, registered=False):
    """A model that can be fine-tuned by LoRA: a base class of `Sequential`."""

    _frozen_before: Sequence[str] | None = None  # the layers that were frozen before `add_lora`
    _plans: Any = None  # of predictions, which depend on the layers

    def add_lora(
        self, pattern: str | Sequence[str] | None = None, rank: int = 8, alpha: float = 16.0
    ) -> Share:
        """Freeze the model, and give some weights W an update that learns, (alpha / rank) A B.

            print(model.add_lora("*.W", rank=2))
            model.train(X, y)
            model.merge_lora()

        B starts at 0, so the model first computes what it did before. A Dense becomes a Parallel of
        itself and a LowRank. A MultiHeadAttention becomes a chain of its two products, with a
        LowRank next to one of them or both, and ScaledDotProductAttention between them.

        pattern    of the paths of weights, as in the groups of an optimizer, or several of them:
                   "*.Wqkv" and "*.Wo" are the products of attention, "*.W" those of Dense layers,
                   "3.*" all products in layer 3, and "*" all products. By default, it is both
                   products of every attention layer or, without attention, those of all Dense
                   layers. Other parameters that a pattern matches stay as they are, such as
                   embeddings and the weights of convolutions
        rank       the columns of A (D, rank) and rows of B (rank, output size)
        alpha      the scale: updates with another rank need about the same learning rate

        All layers but the new ones are frozen. Unfreeze others afterwards, such as a new head, with
        `trainable = True`. The optimizer forgets its memory and counts steps from 0. Returns the
        weights with updates, and the number of parameters that learn.

        Raises OrderError if the model has updates already, NotBuiltError if it is not built, and
        ArgumentError if a pattern matches no weight that can have an update, the rank is larger
        than that of a weight, or a group of the optimizer names a parameter that now has another
        path. Nothing changes then.
        Source: Hu et al. 2021, "LoRA", arXiv:2106.09685, sec. 4.
        """
        rank = check_count(rank, "add_lora rank")
        alpha = check_number(alpha, "add_lora alpha", above=0)
        if self._updates():
            raise OrderError(
                "the model has the updates of an earlier add_lora: call merge_lora or remove_lora "
                "first, or give add_lora several patterns in a list."
            )
        self._adapt(dict.fromkeys(self._chosen(pattern), Update(rank, alpha)))
        return self._share()

    def merge_lora(self) -> None:
        """Add the updates to their weights, and restore the layers as they were.

        Predictions change only by rounding. Paths, configs and frozen layers are those from before
        `add_lora`. The optimizer forgets its memory. Raises OrderError if there are no updates.
        """
        self._restore("merge_lora", merge=True)

    def remove_lora(self) -> None:
        """Drop the updates, and restore the layers as they were.

        The weights are those from before `add_lora`, bit for bit, unless layers were unfrozen and
        trained in between. Paths, configs and frozen layers are those from before `add_lora`, too.
        The optimizer forgets its memory. Raises OrderError if there are no updates.
        """
        self._restore("remove_lora", merge=False)

    def save_lora(self, path: PathLike) -> None:
        """Save only the updates, for `load_lora`, completely or not at all.

        The file is small, and is of use only with the weights that the updates were trained for.
        Raises OrderError if there are no updates.
        """
        self._adapted("save_lora")
        arrays = {
            f"{weight}.{name}": np.asarray(getattr(low, name))
            for weight, low in self._updates().items()
            for name in ("A", "B", "alpha")
        }
        texts = {"format": FORMAT, "version": VERSION, "library": __version__}
        write_tensors(path, arrays, texts)

    def load_lora(self, path: PathLike) -> Share:
        """Read the updates that `save_lora` wrote; everything is checked before anything changes.

        A model without updates gets them, as by `add_lora`. In a model with updates of the same
        weights and ranks, they are replaced, so that several can be used one after another. The
        optimizer forgets its memory. Raises DataError if the file is damaged or does not fit.
        """
        updates = self._updates()
        with open_tensors(path) as tensors:
            plan = self._plan_in(tensors, updates)
            new = {w: (tensors.read(f"{w}.A"), tensors.read(f"{w}.B")) for w in plan}
        if updates:
            self._start_afresh("call load_lora")
        else:
            self._adapt(plan)
        for weight, low in self._updates().items():
            low.A, low.B = new[weight]
            low.alpha = plan[weight].alpha
        return self._share()

    # --- weights and updates -------------------------------------------------------------------

    def _updates(self) -> dict[str, LowRank]:
        """Return the updates by the path of their weight, as it was before `add_lora`."""
        return {
            f"{path}.{name}": low
            for path, layer in self.walk()
            if isinstance(layer, Adapted)
            for name, low in layer.updates().items()
        }

    def _shapes(self) -> dict[str, Shape]:
        """Return the shapes of the weights that have updates or, if none has, that can."""
        return {
            f"{path}.{name}": layer.weight(name).shape
            for path, layer in self.walk()
            if isinstance(layer, Adapted)
            for name in layer.updates()
        } or {
            f"{path}.{name}": layer.params[name].shape
            for path, layer in self.walk()
            for name in (ADAPTED[type(layer)].names if type(layer) in ADAPTED else ())
            if name in layer.params
        }

    def _chosen(self, pattern: Any) -> list[str]:
        """Return the paths of the weights that a pattern, or several, or None stand for."""
        for path, layer in self.walk():
            if path and layer.output_shape is None:
                raise NotBuiltError(
                    f"add_lora: layer {path}, {layer!r}, is not built: call build(input_shape) "
                    "first, or set the shape of the model's input with .input(...)."
                )
        patterns = [pattern] if isinstance(pattern, str) else pattern
        able = list(self._shapes())
        if not able:
            raise ArgumentError(f"add_lora: the model has no weight for an update, such as {ABLE}.")
        if patterns is None:  # the weights of attention or, if there is none, of Dense
            return [weight for weight in able if not weight.endswith(".W")] or able
        texts = isinstance(patterns, Sequence) and all(isinstance(p, str) for p in patterns)
        if not texts or not patterns:
            raise ArgumentTypeError(
                f'add_lora pattern must be text such as "*.Wqkv", or several in a list, got '
                f"{pattern!r}."
            )
        every = [f"{path}.{name}" for path, layer in self.walk() for name in layer.params]
        chosen: set[str] = set()
        for p in patterns:
            found = matching(p, every, "add_lora")
            if not {*found} & {*able}:
                raise ArgumentError(
                    f"add_lora: {p!r} matches only {first_few(found, 8)}, and only {ABLE} can have "
                    f"updates. This model has {first_few(able, 8)}."
                )
            chosen |= {*found} & {*able}
        return [weight for weight in able if weight in chosen]

    def _share(self) -> Share:
        layers = [layer for _, layer in self.walk()]
        arrays = {id(a): (a.size, lay.trainable) for lay in layers for a in lay.params.values()}
        learning = sum(size for size, learns in arrays.values() if learns)
        return Share(tuple(self._updates()), learning, sum(size for size, _ in arrays.values()))

    # --- changes of the tree -------------------------------------------------------------------

    def _adapt(self, plan: Mapping[str, Update]) -> None:
        """Give weights updates, by path, and freeze everything else; if that fails, no change."""
        self.optimizer._check_not_averaged("call add_lora")
        layers, of_layer = dict(self.walk()), dict[str, dict[str, Update]]()
        for weight, update in plan.items():
            path, _, name = weight.rpartition(".")
            of_layer.setdefault(path, {})[name] = update
        new: dict[Layer, Layer] = {}
        for path, updates in of_layer.items():
            try:
                new[layers[path]] = ADAPTED[type(layers[path])](layers[path], updates)
            except PhitodeepError as error:
                raise error.at(f"layer {path}") from None
        self._exchange(new)
        try:
            paths = [f"{path}.{name}" for path, layer in self.walk() for name in layer.params]
            first_matches(list(self.optimizer.groups or ()), paths)
        except ArgumentError:
            self._exchange({after: before for before, after in new.items()})
            raise
        self._frozen_before = [path for path, layer in layers.items() if not layer.trainable]
        self.trainable = False
        for low in self._updates().values():
            low.trainable = True
        self._start_afresh("call add_lora")

    def _restore(self, what: str, *, merge: bool) -> None:
        """Put the original layers back, with the updates added to their weights or without."""
        adapted = self._adapted(what)
        self.optimizer._check_not_averaged(f"call {what}")
        if merge:
            for layer in adapted:
                layer.add_updates()
        frozen = self._frozen_afterwards()
        self._exchange({layer: layer.restored() for layer in adapted})
        for path, part in self.walk():
            part._trainable = path not in frozen
            if isinstance(part, Adaptable):
                part._frozen_before = None
        self._start_afresh(f"call {what}")

    def _frozen_afterwards(self) -> list[str]:
        """Return the paths of the layers that are frozen once the updates are gone.

        A model inside this one may have frozen its layers for updates of its own.
        """
        frozen = {path: not layer.trainable for path, layer in self.walk()}
        for outer, model in reversed(list(self.walk())):
            if isinstance(model, Adaptable) and model._frozen_before is not None:
                for (own, _), (path, _) in zip(model.walk(), model.walk(outer), strict=True):
                    frozen[path] = own in model._frozen_before
        return [path for path, is_frozen in frozen.items() if is_frozen]

    def _adapted(self, what: str) -> list[Adapted]:
        """Return the layers with updates; raise an OrderError if there are none."""
        found = [layer for _, layer in self.walk() if isinstance(layer, Adapted)]
        if not found:
            raise OrderError(f"{what}: the model has no updates: call add_lora or load_lora first.")
        return found

    def _exchange(self, new: Mapping[Layer, Layer]) -> None:
        """Put the new layers in the places of the old ones, which are the keys."""
        by_id = {id(layer): other for layer, other in new.items()}
        for _, parent in list(self.walk()):
            if isinstance(parent, Container) and any(
                id(child) in by_id for child in parent.children().values()
            ):
                parent._replace(by_id)

    def _start_afresh(self, what: str) -> None:
        """Forget caches, gradients and the optimizer's memory, which belong to other layers."""
        self.optimizer._check_not_averaged(what)
        for _, layer in self.walk():
            layer._frame = Frame()
            if isinstance(layer, Adaptable):
                layer._plans = None
        self.optimizer.reset()
        self.optimizer._claim(self)

    # --- files and configs ---------------------------------------------------------------------

    def _plan_in(self, tensors: Tensors, updates: Mapping[str, LowRank]) -> dict[str, Update]:
        """Return the updates in a file, which must fit this model and the updates that it has."""
        if tensors.metadata.get("format") != FORMAT:
            raise DataError(f"{tensors.path} was not written by save_lora: it holds no updates.")
        if tensors.metadata.get("version") != VERSION:
            raise DataError(
                f"{tensors.path} has the format version {tensors.metadata.get('version')!r}, and "
                f"this phitodeep ({__version__}) reads version {VERSION}: install a newer one."
            )
        entries, wanted, shapes = tensors.entries, dict[str, Entry](), self._shapes()
        ranks = {weight: low.rank for weight, low in updates.items()} or {
            name[:-2]: (0, *a.shape)[-1] for name, a in entries.items() if name.endswith(".A")
        }
        for weight, rank in ranks.items():
            if weight in shapes:  # otherwise its arrays are not wanted
                D, size = shapes[weight]
                wanted[f"{weight}.A"] = Entry((D, rank), self.dtype)
                wanted[f"{weight}.B"] = Entry((rank, size), self.dtype)
                wanted[f"{weight}.alpha"] = Entry((), np.dtype(np.float64))
        found = differences(wanted, entries)
        if any(found) or not wanted:
            remedy = " Call remove_lora first to read updates of another form." if updates else ""
            raise DataError(f"{tensors.path} does not fit {self!r}: {found}.{remedy}")
        where = f"{tensors.path}: alpha"
        alphas = {weight: float(tensors.read(f"{weight}.alpha")) for weight in ranks}
        return {w: Update(ranks[w], check_number(a, where, above=0)) for w, a in alphas.items()}

    def _written_lora(self) -> dict[str, Any]:
        """Return what a config holds: rank and alpha by weight, and what was frozen before."""
        weights = {weight: [low.rank, low.alpha] for weight, low in self._updates().items()}
        return {"weights": weights, "frozen": self._frozen_afterwards()}

    def _adapt_as_written(self, written: Any) -> None:
        """Add the updates that a config describes."""
        who, kinds = "the config: lora", {"weights": dict[str, list[float]], "frozen": list[str]}
        entries = check_types(written, kinds, who)
        able, plan = self._shapes(), dict[str, Update]()
        for weight, given in entries["weights"].items():
            if weight in able and len(given) == 2:
                rank, alpha = check_count(given[0], who), check_number(given[1], who, above=0)
                plan[weight] = Update(rank, alpha)
        if not plan or len(plan) < len(entries["weights"]):
            raise ArgumentError(
                f"{who} needs the rank and alpha of each weight with an update, of those that can "
                f"have one ({first_few([*able])}), got {entries['weights']!r}."
            )
        self._adapt(plan)
        self._frozen_before = entries["frozen"]
