"""The base class of optimizers, which turns gradients into steps on two flat vectors.

Long because the order of what a step does, for every rule, is in one place.

`Optimizer` packs all trainable parameters of a model into one vector `theta`, and their gradients
into another, `g`, so that clipping, penalties, decay and the formula of a rule are one line of
arithmetic each. The author of a rule writes `update(theta, g, lr)`, which changes theta in place.
It is called once per parameter group; by default all parameters are one group.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Annotated, Any, ClassVar, Self, TypedDict, cast

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_number
from phitodeep.core.settings import Fraction, NonNegative
from phitodeep.core.types import Array, Schedule, describe
from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.optimization.divergence import bad_gradient
from phitodeep.optimization.divergence import length as length
from phitodeep.optimization.memory import ALL, Resumable
from phitodeep.optimization.packing import (
    Group,
    Groups,
    Outputs,
    Packing,
    Slot,
    checked_groups,
    first_matches,
    trainable,
    walk_all,
)
from phitodeep.optimization.schedules import Observer, Rate, as_schedule
from phitodeep.optimization.settings import WithSettings

__all__ = ["Common", "Optimizer"]

BLOCK = 1 << 16  # elements
FLUSHED = (
    256  # steps until what is too small for full speed becomes 0, as for features that are rare
)
Settings = tuple[Group, float, float, slice]  # group, rate, decay, and the part that decays


class Common(TypedDict, total=False):
    """The keyword arguments that every optimizer accepts, for a constructor of your own."""

    weight_decay: float
    l1: float
    l2: float
    clip_norm: float | None
    clip_value: float | None
    groups: Groups | None
    ema: float | None


def _check_limit(limit: Any, who: str) -> Any:
    """Return a limit as it was given, which must be above 0."""
    check_number(limit, who, above=0)
    return limit


class Optimizer(Resumable, WithSettings, registered=False):
    """The base class of all optimizers. `alpha` is the learning rate: a number or a schedule.

    weight_decay    decoupled: in addition to the rule, theta is multiplied by 1 - lr weight_decay
    l1, l2          penalties l1 sum |w| + l2 / 2 sum w^2, whose gradient is added to the loss's
    clip_norm       maximum length of the gradient of all parameters together
    clip_value      maximum size of each entry of the gradient
    groups          alpha and weight_decay for the parameters whose path matches a pattern
    ema             d: keep an average e <- d e + (1 - d) theta, for `Sequential.averaged`

    Decay and penalties apply to weight matrices, never to biases or norms. The gradient is clipped
    first by value, then by norm; then penalties are added. Frozen layers take no part in any of it.

    Paths look like `3.layers.0.W`; patterns have the syntax of Python's `fnmatch`:

        groups={"0.*": {"alpha": 1e-4}, "*.W": {"weight_decay": 0.1}}

    A parameter belongs to the first pattern that matches it. The weight_decay of a group applies to
    every parameter that its pattern matches, including biases. Clipping by norm uses the norm of
    the whole gradient, over all groups.

    Averages start at the values of the parameters, and pause while a parameter is frozen.

    The memory of a rule, such as momentum, belongs to a parameter of a layer object: it stays with
    the layer when other layers are inserted, removed or reordered, and pauses while the layer is
    frozen. Copies, pickles and `state_dict` identify it by the parameter's path.

    Sources: Loshchilov and Hutter 2019, arXiv:1711.05101 (decay); Pascanu, Mikolov and Bengio
    2013, arXiv:1211.5063 (clipping by norm); Polyak and Juditsky 1992, "Acceleration of
    stochastic approximation by averaging", with the running mean of Kingma and Ba 2015, sec. 7.2.
    """

    config_kind = "optimizer"
    elementwise: ClassVar[bool] = False  # True: `update` computes each element from its own values
    evaluates_often: ClassVar[bool] = False  # True: it has `run`, which needs several gradients

    alpha: Rate = field(default=0.01, kw_only=False)
    weight_decay: NonNegative = 0.0
    l1: NonNegative = 0.0
    l2: NonNegative = 0.0
    clip_norm: Annotated[float, _check_limit] | None = None
    clip_value: Annotated[float, _check_limit] | None = None
    groups: Annotated[Groups, checked_groups] | None = None
    ema: Fraction | None = None

    def __post_init__(self) -> None:
        self.reset()

    __repr__ = describe

    # --- the rate --------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self._now(self.alpha)

    def observe(self, loss: float) -> None:
        """Pass the loss of an epoch to the schedules that depend on it."""
        rates = [self.alpha, *(own.get("alpha") for own in (self.groups or {}).values())]
        for schedule in {id(rate): rate for rate in rates if isinstance(rate, Observer)}.values():
            schedule.observe(loss)

    def _now(self, alpha: float | Schedule) -> float:
        if isinstance(alpha, float):
            return alpha  # checked when it was set
        value = as_schedule(alpha)(self.t)
        return check_number(value, f"the rate that {alpha!r} returns at step {self.t}", minimum=0)

    def _settings(self, group: Group, lr: float) -> Settings:
        """Return the settings of a group: its own, or the optimizer's, whose rate is `lr`."""
        if not self.groups:
            return group, lr, self.weight_decay, group.decayed
        own = self.groups.get(group.key[0], {})
        rate = self._now(own["alpha"]) if "alpha" in own else lr
        if "weight_decay" in own:
            return group, rate, own["weight_decay"], group.piece
        return group, rate, self.weight_decay, group.decayed

    def _moving(self, groups: Sequence[Group], lr: float, without: Outputs) -> list[Settings]:
        """Return the settings of the groups that a step without these outputs changes."""
        if without and self._owner is None:
            raise OrderError(
                f"{self!r} does not know which layers only {', '.join(sorted(without))} depends "
                "on: give it to the network first, with network.setoptimizer(optimizer)."
            )
        return [self._settings(group, lr) for group in groups if group.moves(without)]

    # --- what users call -------------------------------------------------------------------

    def step(self, layers: Sequence[Layer], without: Outputs = frozenset()) -> None:
        """Update the parameters of `layers`, and of all layers inside them, from their gradients.

        A gradient that is not finite raises a DivergenceError, and no parameter changes. If a step
        raises, the gradients that `accumulate` held are dropped.

        without    outputs of a network: what only they depend on keeps its values and memory
        """
        packing, lr, sync = self._pack(layers), self.rate, self._sync
        groups = [sync.share(group, packing) for group in packing.groups]
        theta = packing.theta
        settings = self._moving(groups, lr, without)
        try:
            g, watch = self._gathered(packing), current().watch
            if watch is not None:
                g = cast(Array, watch.notify("step", "before", self, g, lr))
            norm = sync.length(g)
            if norm == math.inf:
                g = sync.whole(g)
                raise bad_gradient(packing, g, self.t + 1, self._remedy())
            self.advance(lr)
            if self.clip_value is not None or self.clip_norm is not None:
                g = self._clipped(g, norm)
            if self.l1 or self.l2:
                g = self._penalised(theta, g, groups)
            for group, rate, decay, decayed in settings:
                if decay:
                    theta[decayed] *= 1 - rate * decay
                self._group, self.own = group, group.own
                self.update(theta[group.piece], g[group.piece], rate)
                self._average(theta, group.piece)
            if not self.t % FLUSHED:
                for A in self._slots.values():
                    A[np.abs(A) < np.finfo(A.dtype).tiny] = 0
            sync.spread(theta)
        except BaseException:
            self.drop_held()
            raise
        if watch is not None:
            watch.notify("step", "after", self, g, lr)

    def accumulate(self, layers: Sequence[Layer]) -> None:
        """Hold the gradients of this backward pass, to be added to those of the next `step`.

        If a forward or backward pass between two calls fails, call `drop_held` before you continue.
        """
        packing = self._pack(layers)
        try:
            packing.gather()
        except BaseException:
            self.drop_held()
            raise
        held = self._slot_vector("held")
        held += packing.g

    def drop_held(self) -> None:
        """Discard the gradients that `accumulate` holds."""
        self._slots.pop("held", None)
        self._memories.drop("held")

    @contextmanager
    def averaged(self, layers: Sequence[Layer]) -> Iterator[None]:
        """Inside the `with` block, replace the parameters of `layers` with their averages (`ema`).

        Afterwards their own values are restored, even if the block casts, freezes or inserts
        layers.
        """
        if self.ema is None or self.t == 0:
            todo = "train first" if self.ema is not None else "create it with ema=0.999, and train"
            raise OrderError(f"{self!r} has no averages yet: {todo}.")
        packing = self._pack(layers)
        kept, self._averaged = packing.theta.copy(), True
        packing.theta[...] = self._sync.collected({"ema": self._slot_vector("ema")})["ema"]
        try:
            yield
        finally:
            self._averaged = False
            for path, layer, name in packing.slots:
                a = layer.params[name]  # a different array if the layer was cast
                a[...] = kept[packing.pieces[path]].reshape(a.shape)

    def copy(self) -> Self:
        """Return a copy with the same settings and memory, which another model may use."""
        return copy.deepcopy(self)

    # --- what an author writes and uses ----------------------------------------------------

    def update(self, theta: Array, g: Array, lr: float) -> None:
        """Change the `theta` of a group in place; `g` is its gradient, of the same shape.

        self.t is 1 at the first step. For a separate step count for each parameter, which starts
        when the parameter is added, set `own_start = {"t": 0}` in the class, and add 1 to
        self.own["t"] here.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement update(theta, g, lr).")

    def advance(self, lr: float) -> None:
        """Count a step. Override this for values that change once per step, not once per group."""
        self.t, self.last_rate = self.t + 1, lr

    def kinds(self, layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Hashable]:
        """Return a kind for each parameter; `update` receives one kind at a time."""
        return [None] * len(slots)

    def slot(self, name: str) -> Array:
        """Return a vector of theta's shape that is kept between steps; it starts at 0."""
        return self._slot_vector(name)[self._group.piece]

    def scratch(self, name: str = "scratch") -> Array:
        """Return an uninitialised vector of theta's shape, to compute in."""
        return self._scratch_vector(name)[self._group.piece]

    def scratch_block(self) -> Array:
        """Return an uninitialised vector of at most `BLOCK` elements, to compute in.

        With blocks, a large model needs one vector of its size less, and all arrays of a block stay
        in the processor's cache.
        """
        if "block" not in self._scratch:
            assert self._packing is not None
            theta = self._packing.theta
            self._scratch["block"] = np.empty(max(1, min(BLOCK, theta.size)), theta.dtype)
        return self._scratch["block"]

    def _slot_vector(self, name: str) -> Array:
        """Return the vector of a slot for all groups together."""
        return self._vector(self._slots, name)

    def _scratch_vector(self, name: str) -> Array:
        """Return a scratch vector for all groups together."""
        return self._vector(self._scratch, name)

    def _vector(self, vectors: dict[str, Array], name: str) -> Array:
        if name not in vectors:
            assert self._packing is not None
            theta = self._packing.theta
            vectors[name] = np.zeros(theta.shape, theta.dtype)  # unlike zeros_like, no memory yet
        return vectors[name]

    def _begun(self, layers: Sequence[Layer]) -> tuple[Packing, Array | None]:
        """Return what the last backward pass before a step needs: the packing, what is held."""
        return self._pack(layers), self._slots.get("held")

    def _gathered(self, packing: Packing) -> Array:
        """Return the layers' gradients as one vector, plus those that `accumulate` held."""
        held = self._slots.get("held")
        self._sync.finish(packing, held)
        if held is not None:
            self.drop_held()
        return packing.g

    def _average(self, theta: Array, part: slice) -> None:
        if (d := self.ema) is None:
            return
        e, s = self._slot_vector("ema")[part], self._scratch_vector("scratch")[part]
        np.subtract(theta[part], e, out=s)  # d e + (1 - d) theta = e + (1 - d)(theta - e)
        s *= 1 - d
        e += s

    def _clipped(self, g: Array, norm: float) -> Array:
        if self.clip_value is not None:
            g = np.clip(g, -self.clip_value, self.clip_value, out=self._scratch_vector("g"))
            norm = self._sync.length(g)
        if self.clip_norm is not None and norm > self.clip_norm:
            g = np.multiply(g, self.clip_norm / norm, out=self._scratch_vector("g"))
        return g

    def _penalised(self, theta: Array, g: Array, groups: Sequence[Group]) -> Array:
        penalised = self._scratch_vector("g")
        if penalised is not g:
            penalised[...] = g
        for part in (group.decayed for group in groups):
            w, s = theta[part], self._scratch_vector("scratch")[part]
            penalised[part] += np.multiply(w, self.l2, out=s)
            np.sign(w, out=s)
            s *= self.l1
            penalised[part] += s
        return penalised

    def _remedy(self) -> str:
        """Return a sentence on what to try when training diverges."""
        clip = ", or clip_norm=1" if self.clip_norm is None else ""
        return f"Try a rate below {self.rate:g}{clip}."

    # --- packing ---------------------------------------------------------------------------

    def _claim(self, owner: Container) -> None:
        """Attach this optimizer to a model; refuse a second model, which needs its own memory."""
        held = self._owner() if self._owner is not None else None
        if held is not None and held is not owner:
            raise ArgumentError(
                f"{self!r} already belongs to another model, whose gradients it remembers: "
                "give each model its own, with optimizer.copy()."
            )
        self._owner = weakref.ref(owner)
        self._memories.assign(owner.walk())

    def _pack(self, layers: Sequence[Layer]) -> Packing:
        """Return the packing of these layers; pack again if something changed."""
        if isinstance(layers, Layer) or not all(isinstance(layer, Layer) for layer in layers):
            raise ArgumentTypeError(
                "step expects a list of layers, such as model.layers, or [*a.layers, *b.layers] of "
                f"two models, got {layers!r}."
            )
        self._check_not_averaged("train")
        packing = self._packing
        if packing is not None and packing.holds(layers) and self._unchanged(packing):
            return packing
        slots = list(trainable(layers))
        known = {id(layer.params) for _, layer, _ in packing.slots} if packing else set()
        owner = self._owner() if self._owner is not None else None
        known |= {id(layer.params) for _, layer in owner.walk()} if owner is not None else set()
        if slots and known and known.isdisjoint(id(layer.params) for _, layer, _ in slots):
            raise ArgumentError(
                f"{self!r} already trains the layers of another model: "
                "give each model its own, with optimizer.copy()."
            )
        walk = walk_all(layers)
        paths = [f"{path}.{name}" for path, layer in walk for name in layer.params]
        first = first_matches(list(self.groups or ()), paths)
        kinds = self.kinds(layers, slots)
        keys = [(first[path], kind) for (path, _, _), kind in zip(slots, kinds, strict=True)]
        inside = {id(layer) for _, layer in walk}
        for _, user in walk:
            if any(id(owner) not in inside for owner, _ in user.tied.values()):
                raise ArgumentError(
                    f"{user!r} uses a parameter of a layer outside the model, which would not be "
                    "trained: add that layer itself, not a copy of it."
                )
        self._memories.assign(walk)
        if packing is not None:
            self._sync.refuse_new_packing()
        memories = self._memories.with_packed(packing, self._slots)
        own = [memories.recall(layer, name, self.own_start) for _, layer, name in slots]
        self._packing = Packing(layers, slots, keys, [each.own for each in own], self._owner)
        self._packing.replace(packing)
        packing, self._memories = self._packing, memories
        self._patterns, self._group = list(self.groups or ()), ALL
        self._slots, self._scratch = {}, {}
        for (path, _, _), each in zip(slots, own, strict=True):
            piece = packing.pieces[path]
            if self.ema is not None:
                self._slot_vector("ema")[piece] = packing.theta[piece]
            for name, kept in each.slots.items():
                self._slot_vector(name)[piece] = kept.ravel()
        return packing

    def _unchanged(self, packing: Packing) -> bool:
        """Whether the options and the model are the same as when the parameters were packed."""
        same = packing.owner is self._owner and (self.ema is None or "ema" in self._slots)
        return same and self._patterns == list(self.groups or ())
