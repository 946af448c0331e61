"""Optimizers: rules that turn gradients into steps, each on two flat vectors.

The base class packs all trainable parameters of a model into one vector `theta` and their
gradients into another, `g`, so that clipping, penalties, decay and a rule's formula are each a
line of arithmetic. An author writes `update(theta, g, lr)` in place, for one group of parameters:
all of them, unless some have a rate or a decay of their own.
"""

from __future__ import annotations

import copy
import difflib
import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Self, TypedDict, Unpack

import numpy as np

from phitodeep.checks import check_count, check_number
from phitodeep.errors import ArgumentError, ArgumentTypeError, MissingExtraError, OrderError
from phitodeep.layers.base import Layer
from phitodeep.optimization.matrices import hidden, matrices, orthogonal
from phitodeep.optimization.packing import Group, Key, Packing, Slot, trainable
from phitodeep.optimization.schedules import Observer, as_schedule, check_rate
from phitodeep.types import Array, Schedule, describe

Groups = Mapping[str, Mapping[str, Any]]  # pattern of paths -> alpha, weight_decay
Settings = tuple[Group, float, float, slice]  # a group, its rate and decay, and what decays
ALL = Group(("", None), [], slice(None), slice(0))  # the group of everything, outside a step


class Common(TypedDict, total=False):
    """What every optimizer takes by keyword."""

    weight_decay: float
    l1: float
    l2: float
    clip_norm: float | None
    clip_value: float | None
    groups: Groups | None
    ema: float | None


class Optimizer:
    """What the rules share. `alpha` is the learning rate: a number or a schedule of the step.

    weight_decay    decoupled: theta shrinks by the factor 1 - lr weight_decay beside the rule
    l1, l2          penalties l1 sum |w| + l2 / 2 sum w^2, whose gradient joins the loss's
    clip_norm       the gradient of all parameters together is shortened to this length
    clip_value      each entry of the gradient is held between -clip_value and clip_value
    groups          alpha and weight_decay of their own, by a pattern of parameter paths
    ema             d: an average e <- d e + (1 - d) theta is kept, for `Sequential.averaged`

    Decay and penalties pull on weight matrices, never on biases and norms. Clipping comes
    first: by value, then by norm, then penalties. Frozen layers take no part in any of it.

    Paths are those such as `3.layers.0.W`, patterns those of Python's `fnmatch`:

        groups={"0.*": {"alpha": 1e-4}, "*.W": {"weight_decay": 0.1}}

    A parameter belongs to the first pattern that fits. A group's own weight_decay pulls on all
    that its pattern names, biases too. Clipping by norm stays one for all.

    Averages begin as the parameters that they are of, and rest while those are frozen.

    Sources: Loshchilov and Hutter 2019, arXiv:1711.05101 (decay); Pascanu, Mikolov and Bengio
    2013, arXiv:1211.5063 (clipping by norm); Polyak and Juditsky 1992, "Acceleration of
    stochastic approximation by averaging", with the running mean of Kingma and Ba 2015, sec. 7.2.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.01,
        *,
        weight_decay: float = 0.0,
        l1: float = 0.0,
        l2: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
        ema: float | None = None,
    ) -> None:
        name = type(self).__name__
        self.alpha = alpha
        self.weight_decay = check_number(weight_decay, f"{name} weight_decay", least=0)
        self.l1 = check_number(l1, f"{name} l1", least=0)
        self.l2 = check_number(l2, f"{name} l2", least=0)
        for option, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if limit is not None:
                check_number(limit, f"{name} {option}", above=0)
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.groups = None if groups is None else _checked(groups, f"{name} groups")
        self.ema = None if ema is None else check_number(ema, f"{name} ema", least=0, below=1)
        self.reset()

    def __repr__(self) -> str:
        return describe(self)

    def reset(self) -> None:
        """Forget everything but the settings."""
        self.t = 0  # steps taken
        self.last_rate = 0.0  # of the last step
        self._slots: dict[str, Array] = {}
        self._kept: dict[str, dict[str, Array]] = {}  # slots by path, while nothing is packed
        self._packing: Packing | None = None
        self._patterns: list[str] = []  # of the groups as packed
        self._group = ALL  # whose `update` runs
        self._lent = False  # whether the parameters are their averages
        self._holding = False  # whether the slot "held" has gradients of accumulated batches
        self._scratch: dict[str, Array] = {}
        self._owner: weakref.ref[Layer] | None = None

    # --- the rate --------------------------------------------------------------------------

    @property
    def alpha(self) -> float | Schedule:
        """The learning rate: a number, or a function of the step."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float | Schedule) -> None:
        self._alpha = check_rate(alpha)

    @property
    def rate(self) -> float:
        """The rate of the next step."""
        return self._now(self._alpha)

    def observe(self, loss: float) -> None:
        """Tell the schedules that listen an epoch's loss."""
        rates = [self._alpha, *(own.get("alpha") for own in (self.groups or {}).values())]
        for schedule in {id(rate): rate for rate in rates if isinstance(rate, Observer)}.values():
            schedule.observe(loss)

    def _now(self, alpha: float | Schedule) -> float:
        value = as_schedule(alpha)(self.t)
        return check_number(value, f"the rate that {alpha!r} gives at step {self.t}", least=0)

    def _settings(self, group: Group, lr: float) -> Settings:
        """A group's settings: its own, or those of the optimizer, whose rate is `lr`."""
        pattern, _ = group.key
        own = (self.groups or {}).get(pattern, {})
        rate = self._now(own["alpha"]) if "alpha" in own else lr
        if "weight_decay" in own:
            return group, rate, own["weight_decay"], group.piece
        return group, rate, self.weight_decay, group.decayed

    # --- what users call -------------------------------------------------------------------

    def step(self, layers: Sequence[Layer]) -> None:
        """Change the parameters of `layers`, and of all layers inside them, by their grads."""
        packing, lr = self.pack(layers), self.rate
        theta, settings = packing.theta, [self._settings(group, lr) for group in packing.groups]
        g = self._gathered(packing)
        self.advance(lr)
        g = self._clipped(g)
        g = self._penalised(theta, g, packing.groups)
        for self._group, rate, decay, decayed in settings:
            if decay:
                theta[decayed] *= 1 - rate * decay
            self.update(theta[self._group.piece], g[self._group.piece], rate)
        self._average(theta)

    def run(self, layers: Sequence[Layer], evaluate: Callable[[], float]) -> float:
        """A step on the loss that `evaluate` computes, leaving its gradients; that loss."""
        loss = evaluate()
        self.step(layers)
        return loss

    def accumulate(self, layers: Sequence[Layer]) -> None:
        """Hold the grads of this backward pass, and add them to those of the next `step`."""
        packing = self.pack(layers)
        packing.gather()
        held = self._vector("held")
        held += packing.g
        self._holding = True

    def drop_held(self) -> None:
        """Forget the gradients that `accumulate` holds."""
        self._holding = False
        self._slots.pop("held", None)
        for slots in self._kept.values():
            slots.pop("held", None)

    @contextmanager
    def averaged(self, layers: Sequence[Layer]) -> Iterator[None]:
        """Within the body, the parameters of `layers` are their averages: see `ema`."""
        if self.ema is None or self.t == 0:
            todo = "train first" if self.ema is not None else "make it with ema=0.999, and train"
            raise OrderError(f"{self!r} has no averages yet: {todo}.")
        theta = self.pack(layers).theta
        kept, self._lent = theta.copy(), True
        theta[...] = self._vector("ema")
        try:
            yield
        finally:
            theta[...] = kept
            self._lent = False

    def copy(self) -> Self:
        """The same rule with the same memory, free for another model."""
        return copy.deepcopy(self)

    # --- what an author writes and uses ----------------------------------------------------

    def update(self, theta: Array, g: Array, lr: float) -> None:
        """Change a group's `theta` in place; `g` is of its shape, self.t is 1 at the first step."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(theta, g, lr).")

    def advance(self, lr: float) -> None:
        """Count a step: here goes what changes once, however many groups there are."""
        self.t, self.last_rate = self.t + 1, lr

    def kinds(self, layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Hashable]:
        """Of each slot, a kind: `update` gets those of one kind, and one pattern, together."""
        return [None] * len(slots)

    def slot(self, name: str) -> Array:
        """A vector of theta's shape that the rule remembers; 0 at first."""
        return self._vector(name)[self._group.piece]

    def scratch(self, name: str = "scratch") -> Array:
        """A vector of theta's shape that the rule forgets."""
        return self._passing(name)[self._group.piece]

    def _vector(self, name: str) -> Array:
        """A slot of all groups."""
        if name not in self._slots:
            self._slots[name] = self._like_theta()
        return self._slots[name]

    def _passing(self, name: str) -> Array:
        """A scratch vector of all groups."""
        if name not in self._scratch:
            self._scratch[name] = self._like_theta()
        return self._scratch[name]

    def _like_theta(self) -> Array:
        assert self._packing is not None
        return np.zeros_like(self._packing.theta)

    def _gathered(self, packing: Packing) -> Array:
        """The gradients, with those that `accumulate` held."""
        packing.gather()
        if self._holding:
            packing.g += self._vector("held")
            self.drop_held()
        return packing.g

    def _average(self, theta: Array) -> None:
        if self.ema is not None:
            e, s = self._vector("ema"), self._passing("scratch")
            np.subtract(theta, e, out=s)  # d e + (1 - d) theta = e + (1 - d)(theta - e)
            s *= 1 - self.ema
            e += s

    def _clipped(self, g: Array) -> Array:
        if self.clip_value is not None:
            g = np.clip(g, -self.clip_value, self.clip_value, out=self._passing("g"))
        if self.clip_norm is not None:
            norm = _norm(g)
            if norm > self.clip_norm:
                g = np.multiply(g, self.clip_norm / norm, out=self._passing("g"))
        return g

    def _penalised(self, theta: Array, g: Array, groups: Sequence[Group]) -> Array:
        if self.l1 or self.l2:
            copied = self._passing("g")
            if copied is not g:
                copied[...] = g
            g = copied
            for part in (group.decayed for group in groups):
                w, s = theta[part], self._passing("scratch")[part]
                g[part] += np.multiply(w, self.l2, out=s)
                np.sign(w, out=s)
                s *= self.l1
                g[part] += s
        return g

    # --- packing ---------------------------------------------------------------------------

    def claim(self, owner: Layer) -> None:
        """Belong to one model: an optimizer's memory has no meaning for another."""
        held = self._owner() if self._owner is not None else None
        if held is not None and held is not owner:
            raise ArgumentError(
                f"{self!r} already belongs to another model, and its memory is of that model's "
                "gradients: give each model its own, with optimizer.copy()."
            )
        self._owner = weakref.ref(owner)

    def pack(self, layers: Sequence[Layer]) -> Packing:
        """The packing of these layers, made anew where it no longer holds."""
        if isinstance(layers, Layer):
            raise ArgumentTypeError(
                f"step takes a list of layers, such as model.layers: {layers!r}."
            )
        if self._lent:
            raise OrderError("the model's parameters are averages here: train outside `averaged`.")
        packing = self._packing
        if packing is not None and packing.holds(layers) and self._unchanged():
            return packing
        slots = list(trainable(layers))
        known = {id(layer.params) for _, layer, _ in packing.slots} if packing else set()
        owner = self._owner() if self._owner is not None else None
        known |= {id(layer.params) for _, layer in owner.walk()} if owner is not None else set()
        if slots and known and known.isdisjoint(id(layer.params) for _, layer, _ in slots):
            raise ArgumentError(
                f"{self!r} already steps the layers of another model: "
                "give each model its own, with optimizer.copy()."
            )
        keys = self._keys(layers, slots)
        self._kept |= self.memory()
        every = [layer for top in layers for _, layer in top.walk()]
        here, users = {id(layer) for layer in every}, [layer for layer in every if layer.tied]
        for user in users:
            if any(id(owner) not in here for owner, _ in user.tied.values()):
                raise ArgumentError(
                    f"{user!r} uses a parameter of a layer outside the model, which nothing would "
                    "step: add that layer itself, not a copy of it."
                )
        self._packing = packing = Packing(slots, users, keys)
        self._patterns, self._group = list(self.groups or ()), ALL
        self._slots, self._scratch = {}, {}
        for path, piece in packing.pieces.items():
            if self.ema is not None:
                self._vector("ema")[piece] = packing.theta[piece]
            for name, kept in self._kept.get(path, {}).items():
                if kept.size == piece.stop - piece.start:
                    self._vector(name)[piece] = kept.ravel()
        return packing

    def _unchanged(self) -> bool:
        """Whether the options are those that the parameters were packed for."""
        averages = self.ema is None or "ema" in self._slots
        return averages and self._patterns == list(self.groups or ())

    def _keys(self, layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Key]:
        """Of each slot, the first pattern that fits, or "", and its kind."""
        patterns = list(self.groups or ())
        paths = [
            f"{path}.{name}"
            for i, top in enumerate(layers)
            for path, layer in top.walk(str(i))
            for name in layer.params
        ]
        first = {path: next((p for p in patterns if fnmatchcase(path, p)), "") for path in paths}
        for pattern in patterns:
            if pattern not in first.values():
                taken = any(fnmatchcase(path, pattern) for path in paths)
                near = difflib.get_close_matches(pattern, paths, n=8, cutoff=0)
                raise ArgumentError(
                    f"groups: all that {pattern!r} fits belongs to patterns before it."
                    if taken
                    else f"groups: {pattern!r} fits no parameter, such as {', '.join(near)}."
                )
        kinds = self.kinds(layers, slots)
        return [(first[path], kind) for (path, _, _), kind in zip(slots, kinds, strict=True)]

    def memory(self) -> dict[str, dict[str, Array]]:
        """Copies of what the rule remembers, by parameter path and slot name."""
        if self._packing is None:
            return {path: dict(slots) for path, slots in self._kept.items()}
        return {
            path: {name: vector[piece].copy() for name, vector in self._slots.items()}
            for path, piece in self._packing.pieces.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the packing: a copied view is no view."""
        return {
            **vars(self),
            "_kept": self._kept | self.memory(),
            "_slots": {},
            "_scratch": {},
            "_packing": None,
            "_group": ALL,
            "_lent": False,
            "_owner": None,
        }


def _checked(groups: Any, who: str) -> dict[str, dict[str, Any]]:
    """Groups whose patterns, options and values are such."""
    if not isinstance(groups, Mapping):
        raise ArgumentTypeError(
            f'{who} must be such as {{"0.*": {{"alpha": 1e-4}}}}, got {groups!r}.'
        )
    for pattern, own in groups.items():
        if not (isinstance(pattern, str) and pattern and isinstance(own, Mapping)):
            raise ArgumentTypeError(
                f"{who} must give options to each pattern, got {pattern!r}: {own!r}."
            )
        for option, value in own.items():
            where = f"{who}: {option} of {pattern!r}"
            if option == "alpha":
                check_rate(value, where)
            elif option == "weight_decay":
                check_number(value, where, least=0)
            else:
                raise ArgumentError(
                    f"{who}: {pattern!r} has the unknown option {option!r}. "
                    "Known: alpha, weight_decay."
                )
    return {pattern: dict(own) for pattern, own in groups.items()}


def _norm(g: Array) -> float:
    """The length of g; in float64 where squares overflow."""
    with np.errstate(over="ignore"):
        square = float(np.dot(g, g))
    return math.sqrt(square) if math.isfinite(square) else float(np.linalg.norm(g.astype(float)))


class SGD(Optimizer):
    """theta <- theta - lr v, with v = g, or a running sum of gradients.

    momentum mu:    v <- mu v + g
    nesterov:       the step is g + mu v, which looks one step of momentum ahead

    Sources: Robbins and Monro 1951; Polyak 1964; Sutskever et al. 2013, "On the importance of
    initialization and momentum in deep learning", in the form that PyTorch uses.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.01,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.momentum = check_number(momentum, "SGD momentum", least=0, below=1)
        self.nesterov = nesterov
        if nesterov and not self.momentum:
            raise ArgumentError("SGD nesterov needs momentum > 0.")

    def update(self, theta: Array, g: Array, lr: float) -> None:
        s = self.scratch()
        if not self.momentum:
            theta -= np.multiply(g, lr, out=s)
            return
        v = self.slot("v")
        v *= self.momentum
        v += g
        if self.nesterov:
            np.multiply(v, self.momentum, out=s)
            s += g
            s *= lr
        else:
            np.multiply(v, lr, out=s)
        theta -= s


class Adam(Optimizer):
    """Steps of size about `alpha`, scaled per coordinate by recent gradient size.

        m <- b1 m + (1 - b1) g         running mean of g
        v <- b2 v + (1 - b2) g^2       running mean of g^2
        theta <- theta - lr m_hat / (sqrt(v_hat) + eps)

    m and v start at 0, so after t steps they are short of the true means by the factors
    1 - b1^t and 1 - b2^t; m_hat and v_hat divide those out. The ratio is unitless: multiplying
    the loss by 1000 leaves the step as it was.

    The slots hold the sums M = m / (1 - b1) and V = v / (1 - b2), which take three passes over
    memory fewer; with c^2 = (1 - b2) / (1 - b2^t), sqrt(v_hat) is c sqrt(V), and the step is
    lr (1 - b1) / (1 - b1^t) M / (c (sqrt(V) + eps / c)).

    Sources: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.01,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        name = type(self).__name__
        self.beta1 = check_number(beta1, f"{name} beta1", least=0, below=1)
        self.beta2 = check_number(beta2, f"{name} beta2", least=0, below=1)
        self.eps = check_number(eps, f"{name} eps", above=0)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        M, V, s = self.slot("M"), self.slot("V"), self.scratch()
        c = math.sqrt((1 - self.beta2) / (1 - self.beta2**self.t))

        M *= self.beta1
        M += g
        np.square(g, out=s)
        V *= self.beta2
        V += s
        np.sqrt(V, out=s)
        s += self.eps / c
        np.divide(M, s, out=s)
        s *= lr * (1 - self.beta1) / (1 - self.beta1**self.t) / c
        theta -= s


class AdamW(Adam):
    """Adam with a decoupled weight decay of 0.01 unless given another.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    def __init__(self, alpha: float | Schedule = 0.01, **options: Any) -> None:
        super().__init__(alpha, **{"weight_decay": 0.01, **options})


class Nadam(Optimizer):
    """Adam with Nesterov's look ahead, under a momentum that warms up.

        mu_t = b1 (1 - 0.5 * 0.96^(t psi))         M_t = mu_1 ... mu_t
        m <- b1 m + (1 - b1) g                     v <- b2 v + (1 - b2) g^2
        theta <- theta - lr (mu_{t+1} m / (1 - M_{t+1}) + (1 - mu_t) g / (1 - M_t))
                            / (sqrt(v / (1 - b2^t)) + eps)

    Source: Dozat 2016, "Incorporating Nesterov momentum into Adam", ICLR workshop, sec. 3.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.002,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        psi: float = 0.004,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.beta1 = check_number(beta1, "Nadam beta1", least=0, below=1)
        self.beta2 = check_number(beta2, "Nadam beta2", least=0, below=1)
        self.eps = check_number(eps, "Nadam eps", above=0)
        self.psi = check_number(psi, "Nadam psi", least=0)

    def reset(self) -> None:
        super().reset()
        self.product = 1.0  # M_t

    def advance(self, lr: float) -> None:
        super().advance(lr)
        self.product *= self._momentum(self.t)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        m, v, s, r = self.slot("m"), self.slot("v"), self.scratch(), self.scratch("root")
        mu, mu_next = self._momentum(self.t), self._momentum(self.t + 1)

        m *= self.beta1
        m += np.multiply(g, 1 - self.beta1, out=s)
        np.square(g, out=s)
        s *= 1 - self.beta2
        v *= self.beta2
        v += s
        np.divide(v, 1 - self.beta2**self.t, out=r)
        np.sqrt(r, out=r)
        r += self.eps
        np.multiply(m, lr * mu_next / (1 - self.product * mu_next), out=s)
        s /= r
        theta -= s
        np.multiply(g, lr * (1 - mu) / (1 - self.product), out=s)
        s /= r
        theta -= s

    def _momentum(self, t: int) -> float:
        return self.beta1 * (1 - 0.5 * 0.96 ** (t * self.psi))


class RMSProp(Optimizer):
    """theta <- theta - lr g / (sqrt(v) + eps), with v <- rho v + (1 - rho) g^2.

    momentum mu: the step goes into a running sum b <- mu b + g / (sqrt(v) + eps) first.
    Source: Tieleman and Hinton 2012, "Neural networks for machine learning", lecture 6.5.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.01,
        *,
        rho: float = 0.9,
        eps: float = 1e-8,
        momentum: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.rho = check_number(rho, "RMSProp rho", least=0, below=1)
        self.eps = check_number(eps, "RMSProp eps", above=0)
        self.momentum = check_number(momentum, "RMSProp momentum", least=0, below=1)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        v, s = self.slot("v"), self.scratch()
        np.square(g, out=s)
        s *= 1 - self.rho
        v *= self.rho
        v += s
        np.sqrt(v, out=s)
        s += self.eps
        np.divide(g, s, out=s)
        if self.momentum:
            b = self.slot("b")
            b *= self.momentum
            b += s
            s[...] = b
        s *= lr
        theta -= s


class Adagrad(Optimizer):
    """theta <- theta - lr g / (sqrt(v) + eps), with v the sum of all g^2 so far.

    Source: Duchi, Hazan and Singer 2011, "Adaptive subgradient methods", JMLR 12, fig. 1.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.01,
        *,
        eps: float = 1e-10,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.eps = check_number(eps, "Adagrad eps", above=0)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        v, s = self.slot("v"), self.scratch()
        v += np.square(g, out=s)
        np.sqrt(v, out=s)
        s += self.eps
        np.divide(g, s, out=s)
        s *= lr
        theta -= s


class Adadelta(Optimizer):
    """theta <- theta - lr u, with u = g sqrt(d + eps) / sqrt(v + eps): it has theta's unit.

        v <- rho v + (1 - rho) g^2          d <- rho d + (1 - rho) u^2  (after the step)

    Source: Zeiler 2012, arXiv:1212.5701, algorithm 1 (where lr is 1).
    """

    def __init__(
        self,
        alpha: float | Schedule = 1.0,
        *,
        rho: float = 0.9,
        eps: float = 1e-6,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.rho = check_number(rho, "Adadelta rho", least=0, below=1)
        self.eps = check_number(eps, "Adadelta eps", above=0)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        v, d, u, s = self.slot("v"), self.slot("d"), self.scratch("u"), self.scratch()
        np.square(g, out=s)
        s *= 1 - self.rho
        v *= self.rho
        v += s
        np.add(d, self.eps, out=u)
        np.add(v, self.eps, out=s)
        u /= s
        np.sqrt(u, out=u)
        u *= g
        np.square(u, out=s)
        s *= 1 - self.rho
        d *= self.rho
        d += s
        theta -= np.multiply(u, lr, out=s)


class Lion(Optimizer):
    """theta <- theta - lr sign(b1 m + (1 - b1) g), then m <- b2 m + (1 - b2) g.

    Every coordinate moves by lr, so it wants a rate some ten times smaller than Adam's.
    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", arXiv:2302.06675,
    program 1.
    """

    def __init__(
        self,
        alpha: float | Schedule = 1e-4,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.beta1 = check_number(beta1, "Lion beta1", least=0, below=1)
        self.beta2 = check_number(beta2, "Lion beta2", least=0, below=1)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        m, s = self.slot("m"), self.scratch()
        np.subtract(g, m, out=s)  # b1 m + (1 - b1) g = m + (1 - b1)(g - m)
        s *= 1 - self.beta1
        s += m
        np.sign(s, out=s)
        s *= lr
        theta -= s
        np.subtract(g, m, out=s)
        s *= 1 - self.beta2
        m += s


class Muon(Adam):
    """Steps that turn every direction of a hidden matrix alike: W <- W - lr c orthogonal(B).

        M <- mu M + g                running sum of g
        B = M, or g + mu M           nesterov: one step of momentum ahead
        orthogonal(U S V^T) = U V^T  nearly, by `ns_steps` steps of Newton and Schulz

    A step is of one size in all directions, where that of SGD follows the few in which g is
    large. c is for the shape, so that a rate serves matrices of all sizes (r rows, k columns):

        original           c = sqrt(max(1, k / r))
        match_rms_adamw    c = 0.2 sqrt(max(r, k)): entries move as much as by Adam, whose
                           alpha, weight_decay and adam_ratio=1 are then right

    It costs some 4 ns_steps r^2 k operations, r the smaller side, beside 6 N r k for N rows forward
    and back: little where N is far above r.

    Convolution kernels are matrices (taps C, filters). Queries, keys and values, the gates of
    recurrent layers and the groups of a convolution are matrices of their own.

    Everything else moves by Adam, with `beta1`, `beta2` and `eps`, at adam_ratio times the rate:
    vectors, embeddings, and the last layer that has matrices. A group's own alpha is taken as
    it is by both. weight_decay is decoupled, as in AdamW.

    Sources: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks";
    match_rms_adamw: Liu et al. 2025, "Muon is scalable for LLM training", arXiv:2502.16982.
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "original",
        adam_ratio: float = 0.015,
        **options: Any,
    ) -> None:
        super().__init__(alpha, **options)
        self.momentum = check_number(momentum, "Muon momentum", least=0, below=1)
        self.nesterov = nesterov
        self.ns_steps = check_count(ns_steps, "Muon ns_steps")
        if adjust_lr_fn not in ("original", "match_rms_adamw"):
            raise ArgumentError(
                f'Muon adjust_lr_fn must be "original" or "match_rms_adamw", got {adjust_lr_fn!r}.'
            )
        self.adjust_lr_fn = adjust_lr_fn
        self.adam_ratio = check_number(adam_ratio, "Muon adam_ratio", least=0)

    def kinds(self, layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Hashable]:
        """Each hidden matrix is of its own kind; the rest is one."""
        orthogonalised = hidden(layers)
        return [path if (layer, name) in orthogonalised else None for path, layer, name in slots]

    def _settings(self, group: Group, lr: float) -> Settings:
        _, matrix = group.key
        return super()._settings(group, lr if matrix else lr * self.adam_ratio)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        _, matrix = self._group.key
        if matrix is None:
            super().update(theta, g, lr)
            return
        M, B = self.slot("M"), self.scratch()
        M *= self.momentum
        M += g
        if self.nesterov:
            np.multiply(M, self.momentum, out=B)
            B += g
        else:
            B[...] = M
        _, layer, name = self._group.slots[0]
        for W, D in zip(matrices(layer, name, theta), matrices(layer, name, B), strict=True):
            W -= self._adjusted(lr, *W.shape[1:]) * orthogonal(D, self.ns_steps)

    def _adjusted(self, lr: float, rows: int, columns: int) -> float:
        """The rate for matrices of this shape."""
        if self.adjust_lr_fn == "original":
            return lr * math.sqrt(max(1, columns / rows))
        return lr * 0.2 * math.sqrt(max(rows, columns))


class LBFGS(Optimizer):
    """Each step minimises the loss of its batch: theta <- theta + lr (theta* - theta).

    theta* is where at most `max_iter` steps of the L-BFGS method lead, by SciPy in float64. Along
    d = -H g it searches a point where the loss falls enough; H, near the inverse of the Hessian,
    is made of the last `history_size` pairs of changes of theta and of g. It ends early where

        the largest |g| is below tolerance_grad, or
        the loss fell by less than tolerance_change, relative to max(loss, 1)

    It wants a loss that is the same at each call: all samples as one batch, and many iterations
    in few epochs, for each step learns H anew. Dropout's mask is one for the whole step. The
    loss of a step is that before it. weight_decay joins the loss as l2 does, as a penalty on w^2;
    l1, clip_norm and clip_value have no place here.

    Sources: Liu and Nocedal 1989, "On the limited memory BFGS method for large scale
    optimization"; Byrd, Lu, Nocedal and Zhu 1995, whose L-BFGS-B SciPy runs.
    """

    def __init__(
        self,
        alpha: float | Schedule = 1.0,
        *,
        max_iter: int = 20,
        history_size: int = 10,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(alpha, **common)
        self.max_iter = check_count(max_iter, "LBFGS max_iter")
        self.history_size = check_count(history_size, "LBFGS history_size")
        self.tolerance_grad = check_number(tolerance_grad, "LBFGS tolerance_grad", least=0)
        self.tolerance_change = check_number(tolerance_change, "LBFGS tolerance_change", least=0)
        for option in ("l1", "clip_norm", "clip_value"):
            if getattr(self, option):
                raise ArgumentError(
                    f"LBFGS has no {option}: its steps need the gradient of a smooth loss as it is."
                )
        _minimize()

    def step(self, layers: Sequence[Layer]) -> None:
        """Refused: one gradient is not enough."""
        raise OrderError(
            "LBFGS evaluates the loss many times in a step: train with model.train, or call "
            "run(layers, evaluate), where evaluate() goes forward and back and returns the loss."
        )

    def run(self, layers: Sequence[Layer], evaluate: Callable[[], float]) -> float:
        """Minimise the loss that `evaluate` computes, leaving its gradients; its first value."""
        packing, lr = self.pack(layers), self.rate
        settings = [self._settings(group, lr) for group in packing.groups]
        theta, start = packing.theta, packing.theta.astype(float)
        pull = np.zeros_like(start)  # the penalty is sum pull theta^2 / 2
        for group, _, decay, decayed in settings:
            pull[group.decayed] += self.l2
            pull[decayed] += decay
        losses: list[float] = []
        highest = 0.0

        def objective(x: Array) -> tuple[float, Array]:
            nonlocal highest
            theta[...] = x
            losses.append(evaluate())
            if not math.isfinite(losses[-1]):
                self.drop_held()
                return 2 * highest + 1, np.zeros_like(x)  # infinity would end the search
            g = self._gathered(packing)
            value = losses[-1] + pull @ x**2 / 2
            highest = max(highest, abs(value))
            return value, g + pull * x

        options = {
            "maxiter": self.max_iter,
            "maxcor": self.history_size,
            "gtol": self.tolerance_grad,
            "ftol": self.tolerance_change,
        }
        try:
            found = _minimize()(objective, start, jac=True, method="L-BFGS-B", options=options).x
        except BaseException:
            theta[...] = start
            self.drop_held()
            raise
        self.advance(lr)
        for group, rate, _, _ in settings:
            piece = group.piece
            theta[piece] = start[piece] + rate * (found[piece] - start[piece])
        self._average(theta)
        return losses[0]


def _minimize() -> Callable[..., Any]:
    """SciPy's minimiser, where it is installed."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtraError.of("scipy", "lbfgs", "LBFGS") from None
    return minimize


OPTIMIZERS: dict[str, type[Optimizer]] = {
    rule.__name__.lower(): rule
    for rule in (SGD, Adam, AdamW, Nadam, RMSProp, Adagrad, Adadelta, Lion, Muon, LBFGS)
}
