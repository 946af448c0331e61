"""Optimizers: rules that turn gradients into steps, each on two flat vectors.

The base class packs all trainable parameters of a model into one vector `theta` and their
gradients into another, `g`, so that clipping, penalties, decay and a rule's formula are each a
line of arithmetic. An author writes `update(theta, g, lr)` in place.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Sequence
from typing import Any, Self, TypedDict, Unpack

import numpy as np

from phitodeep.checks import check_number
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.optimization.packing import Packing, trainable
from phitodeep.optimization.schedules import as_schedule, check_rate
from phitodeep.types import Array, Schedule, describe


class Common(TypedDict, total=False):
    """What every optimizer takes by keyword."""

    weight_decay: float
    l1: float
    l2: float
    clip_norm: float | None
    clip_value: float | None


class Optimizer:
    """What the rules share. `alpha` is the learning rate: a number or a schedule of the step.

    weight_decay    decoupled: theta shrinks by the factor 1 - lr weight_decay beside the rule
    l1, l2          penalties l1 sum |w| + l2 / 2 sum w^2, whose gradient joins the loss's
    clip_norm       the gradient of all parameters together is shortened to this length
    clip_value      each entry of the gradient is held between -clip_value and clip_value

    Decay and penalties pull on weight matrices, never on biases and norms. Clipping comes
    first: by value, then by norm, then penalties. Frozen layers take no part in any of it.
    Sources: Loshchilov and Hutter 2019, arXiv:1711.05101 (decay); Pascanu, Mikolov and Bengio
    2013, arXiv:1211.5063 (clipping by norm).
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
        value = as_schedule(self._alpha)(self.t)
        return check_number(value, f"the rate that {self._alpha!r} gives at step {self.t}", least=0)

    # --- what users call -------------------------------------------------------------------

    def step(self, layers: Sequence[Layer]) -> None:
        """Change the parameters of `layers`, and of all layers inside them, by their grads."""
        packing = self.pack(layers)
        packing.gather()
        theta, g, lr = packing.theta, packing.g, self.rate
        if self._holding:
            g += self.slot("held")
            self.drop_held()
        self.t, self.last_rate = self.t + 1, lr
        g = self._clipped(g)
        g = self._penalised(theta, g, packing.decayed)
        if self.weight_decay:
            theta[: packing.decayed] *= 1 - lr * self.weight_decay
        self.update(theta, g, lr)

    def accumulate(self, layers: Sequence[Layer]) -> None:
        """Hold the grads of this backward pass, and add them to those of the next `step`."""
        packing = self.pack(layers)
        packing.gather()
        held = self.slot("held")
        held += packing.g
        self._holding = True

    def drop_held(self) -> None:
        """Forget the gradients that `accumulate` holds."""
        self._holding = False
        self._slots.pop("held", None)
        for slots in self._kept.values():
            slots.pop("held", None)

    def copy(self) -> Self:
        """The same rule with the same memory, free for another model."""
        return copy.deepcopy(self)

    # --- what an author writes and uses ----------------------------------------------------

    def update(self, theta: Array, g: Array, lr: float) -> None:
        """Change `theta` in place; `g` is of its shape, and self.t is 1 at the first step."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(theta, g, lr).")

    def slot(self, name: str) -> Array:
        """A vector of theta's shape that the rule remembers; 0 at first."""
        if name not in self._slots:
            self._slots[name] = self._like_theta()
        return self._slots[name]

    def scratch(self, name: str = "scratch") -> Array:
        """A vector of theta's shape that the rule forgets."""
        if name not in self._scratch:
            self._scratch[name] = self._like_theta()
        return self._scratch[name]

    def _like_theta(self) -> Array:
        assert self._packing is not None
        return np.zeros_like(self._packing.theta)

    def _clipped(self, g: Array) -> Array:
        if self.clip_value is not None:
            g = np.clip(g, -self.clip_value, self.clip_value, out=self.scratch("g"))
        if self.clip_norm is not None:
            norm = _norm(g)
            if norm > self.clip_norm:
                g = np.multiply(g, self.clip_norm / norm, out=self.scratch("g"))
        return g

    def _penalised(self, theta: Array, g: Array, decayed: int) -> Array:
        if self.l1 or self.l2:
            copied, s = self.scratch("g"), self.scratch()[:decayed]
            if copied is not g:
                copied[...] = g
            g, w = copied, theta[:decayed]
            g[:decayed] += np.multiply(w, self.l2, out=s)
            np.sign(w, out=s)
            s *= self.l1
            g[:decayed] += s
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
        packing = self._packing
        if packing is not None and packing.holds(layers):
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
        self._kept |= self.memory()
        every = [layer for top in layers for _, layer in top.walk()]
        here, users = {id(layer) for layer in every}, [layer for layer in every if layer.tied]
        for user in users:
            if any(id(owner) not in here for owner, _ in user.tied.values()):
                raise ArgumentError(
                    f"{user!r} uses a parameter of a layer outside the model, which nothing would "
                    "step: add that layer itself, not a copy of it."
                )
        self._packing = packing = Packing(slots, users)
        self._slots, self._scratch = {}, {}
        for path, piece in packing.pieces.items():
            for name, kept in self._kept.get(path, {}).items():
                if kept.size == piece.stop - piece.start:
                    self.slot(name)[piece] = kept.ravel()
        return packing

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
            "_owner": None,
        }


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

    def update(self, theta: Array, g: Array, lr: float) -> None:
        m, v, s, r = self.slot("m"), self.slot("v"), self.scratch(), self.scratch("root")
        mu, mu_next = self._momentum(self.t), self._momentum(self.t + 1)
        self.product *= mu

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


OPTIMIZERS: dict[str, type[Optimizer]] = {
    rule.__name__.lower(): rule
    for rule in (SGD, Adam, AdamW, Nadam, RMSProp, Adagrad, Adadelta, Lion)
}
