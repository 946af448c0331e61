"""L-BFGS: each step minimises the loss of its batch, with SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Annotated, Any, cast

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count
from phitodeep.core.settings import Count, NonNegative
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, OrderError, extra
from phitodeep.layers.base import Layer
from phitodeep.optimization.base import Optimizer
from phitodeep.optimization.divergence import bad_gradient, bad_loss, length
from phitodeep.optimization.packing import Outputs
from phitodeep.optimization.schedules import Rate

__all__ = ["LBFGS"]


class LBFGS(Optimizer):
    """Each step minimises the loss of its batch: theta <- theta + lr (theta* - theta).

    theta* is the result of at most `max_iter` iterations of the L-BFGS method, run by SciPy in
    float64. Each iteration searches along d = -H g for a point where the loss falls enough; H, an
    approximation of the inverse Hessian, is built from the last `history_size` changes of theta and
    of g. A step ends early if the largest |g| is below tolerance_grad,
    or if the loss fell by less than tolerance_change, relative to max(loss, 1).

    The loss must be the same function at each evaluation: use all samples as one batch, with many
    iterations and few epochs, because each step starts with a new H. Dropout uses one mask for
    the whole step. The loss reported for a step is the loss before it. weight_decay acts like l2,
    as a penalty on w^2 in the loss; l1, clip_norm and clip_value are not supported.

    Sources: Liu and Nocedal 1989, "On the limited memory BFGS method for large scale
    optimization"; Byrd, Lu, Nocedal and Zhu 1995, whose L-BFGS-B SciPy implements.
    """

    evaluates_often = True
    alpha: Rate = field(default=1.0, kw_only=False)
    max_iter: Count = 20
    history_size: Annotated[int, partial(check_count, maximum=1000)] = 10
    tolerance_grad: NonNegative = 1e-7
    tolerance_change: NonNegative = 1e-9

    def __post_init__(self) -> None:
        for option in ("l1", "clip_norm", "clip_value"):
            if getattr(self, option):
                raise ArgumentError(
                    f"LBFGS does not support {option}: it needs the gradient of a smooth loss."
                )
        _minimize()

    def step(self, layers: Sequence[Layer], without: Outputs = frozenset()) -> None:
        """Raise an OrderError: one gradient is not enough."""
        raise OrderError(
            "LBFGS evaluates the loss several times per step: train with model.train, or call "
            "run(layers, closure), where closure() runs forward and backward and returns the loss."
        )

    def run(
        self, layers: Sequence[Layer], closure: Callable[[], float], without: Outputs = frozenset()
    ) -> float:
        """Minimise the loss that `closure` returns; return its value before the step.

        `closure` also leaves the gradients in the layers. If the first loss or its gradient is not
        finite, a DivergenceError is raised, and no parameter changes. If a later one is not finite,
        the line search backtracks. `without` is as in `Optimizer.step`.
        """
        packing, lr = self._pack(layers), self.rate
        settings = self._moving(packing.groups, lr, without)
        theta, start = packing.theta, packing.theta.astype(float)
        penalty = np.zeros_like(start)  # adds sum penalty theta^2 / 2 to the loss
        for group, _, decay, decayed in settings:
            penalty[group.decayed] += self.l2
            penalty[decayed] += decay
        losses: list[float] = []
        highest, watch = 0.0, current().watch

        def objective(x: Array) -> tuple[float, Array]:
            nonlocal highest
            theta[...] = x
            losses.append(closure())
            first, g = len(losses) == 1, packing.g
            finite = math.isfinite(losses[-1])
            if finite:
                g = self._gathered(packing)
                if first and watch is not None:
                    g = cast(Array, watch.notify("step", "before", self, g, lr))
            if not finite or length(g) == math.inf:
                self.drop_held()
                step, remedy = self.t + 1, self._remedy()
                if first and finite:
                    raise bad_gradient(packing, g, step, remedy)
                if first:
                    raise bad_loss(losses[0], step, remedy)
                return 2 * highest + 1, np.zeros_like(x)  # infinity would end the search
            value = losses[-1] + penalty @ x**2 / 2
            highest = max(highest, abs(value))
            return value, g + penalty * x

        options = {
            "maxiter": self.max_iter,
            "maxcor": self.history_size,
            "gtol": self.tolerance_grad,
            "ftol": self.tolerance_change,
        }
        try:
            if start.size:
                minimize = _minimize()
                found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
            else:  # SciPy before 1.15 refuses an empty vector
                objective(start)
                found = start
        except BaseException:
            theta[...] = start
            self.drop_held()
            raise
        self.advance(lr)
        for group, rate, _, _ in settings:
            piece = group.piece
            theta[piece] = start[piece] + rate * (found[piece] - start[piece])
            self._average(theta, piece)
        if watch is not None:
            watch.notify("step", "after", self, packing.g, lr)
        return losses[0]

    def _remedy(self) -> str:
        return "Start with smaller weights, or scale X to values near 1."


def _minimize() -> Callable[..., Any]:
    """Return SciPy's minimiser; raise an error that names the extra if SciPy is missing."""
    with extra("lbfgs", "scipy", "LBFGS"):
        from scipy.optimize import minimize
    return minimize
