"""The gradient check: run a float64 copy, measure its slopes, and locate what is wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from phitodeep.core.call import Event, calling, watching
from phitodeep.core.checks import as_float, check_count, check_finite, check_number
from phitodeep.core.types import Array, each, numbered, on_each, one
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain
from phitodeep.layers.reshape import Select
from phitodeep.loss import Loss
from phitodeep.testing.diagnoses import fault, malformed
from phitodeep.testing.report import Finding, GradientError, GradientReport, refuse
from phitodeep.testing.slopes import Arrays, Trial, probes_of

Targets = tuple[Any, Any]  # y and sample_weight


def check_gradients(
    obj: Layer | Loss, X: Any, y: Any = None, *, loss: Loss | None = None,
    sample_weight: Any = None, training: bool = True, perturb: bool = True,
    max_probes: int | None = 128, seed: int = 0, rtol: float = 1e-7, atol: float = 0.0,
) -> GradientReport:  # fmt: skip
    """Compare every gradient of a layer, a model or a loss with central differences.

    `obj` is a Layer (X is its input) or a Loss (X holds the predictions, y the targets). With y, a
    layer is checked together with `loss`, or with its own attribute `loss`, which models have.
    Without y, it is checked with a random dY. A layer with several inputs takes them as a tuple,
    and their gradients are dX1, dX2, ...; one with several outputs is checked without y. The check
    runs in float64 on a copy; `obj` is left unchanged. An unbuilt layer is built for X from `seed`,
    which also seeds everything else. Choose sizes that differ from each other and from 2: a wrong
    factor is then easier to identify.

    `training=False` checks the gradients under `saliency()`. `perturb` moves parameters and states
    that still have trivial values (gamma = 1, b = 0), which would hide a missing factor. An array
    of more than `max_probes` elements is probed at that many random elements, and along one random
    direction that moves all of them, so a network of 784-128-64-10 takes a second or two.
    `max_probes=None` probes every element.

    The gradient a that `backward` computes is right if, for a numeric slope n,

        |a - n| <= rtol max(|a|, |n|, floor)      rtol floor = atol + the rounding error of n

    If this fails down to the shortest step and a lies between the two one-sided slopes, the element
    is at a kink (of ReLU, say) and counts as skipped. Skipping more than half is an error.

    Tokens have no gradient, so if X holds any, also in single columns (`Select(tokens=True)`), the
    parameters are checked and X is not.

    The check also requires that float64 stays float64; that X, dY and the parameters are not
    modified; that each parameter has one gradient of its shape (a frozen layer may omit it); and
    that forward and backward return the same values when called again.

    A layer that declares `surrogate` is refused: its gradient is another one on purpose.

    Raises GradientError, or returns a GradientReport.
    """
    if not isinstance(obj, Layer | Loss):
        raise ArgumentTypeError(f"check_gradients takes a layer or a loss, got {obj!r}.")
    if isinstance(obj, Loss):
        loss, X = obj, as_float(X, np.float64, "X")
    layer = obj if isinstance(obj, Layer) else Chain()  # Chain() is the identity
    if others := [part for _, part in layer.walk() if part.surrogate]:
        raise ArgumentError(
            f"{others[0]!r} has, on purpose, another gradient than the slope of its output: check "
            "the layers before and after it on their own."
        )
    limits: dict[str, Any] = {
        "max_probes": None if max_probes is None else check_count(max_probes, "max_probes"),
        "rtol": check_number(rtol, "rtol", above=0),
        "atol": check_number(atol, "atol", minimum=0),
    }
    # Not default_rng(seed) itself, from which X may come: dY would equal X, and hide mistakes.
    rng = np.random.default_rng(seed).spawn(1)[0]
    targets = (y, sample_weight)
    with calling(training=training, caching=True, needs_dX=True, reuse=False, step=0, first=0):
        Xs = (X,) if layer.inputs == 1 else layer._each_input(X)
        shapes = tuple([np.shape(A)[1:] for A in Xs])
        twin = _float64_copy(layer, one(shapes, layer.inputs == 1), seed, rng if perturb else None)
        loss = _loss_of(twin, loss, targets)
        X = on_each(partial(np.array, order="C"), twin._cast_input(one(Xs, layer.inputs == 1)))
        shown = repr(twin if layer is obj else obj)
        subject = shown if len(shown) <= 80 else shown.partition("(")[0]
        trial = _trial_of(subject, twin, X, loss, targets, rng)
        findings: list[Finding] = []
        for name in trial.claims:
            findings.append(Finding(name, trial, findings, *probes_of(trial, name, rng, **limits)))
        faults = [message for finding in findings if (message := fault(finding))]
        if faults and twin.children():
            check = partial(check_gradients, training=training, perturb=False, seed=seed, **limits)
            faults += _wrong_parts(twin, X, loss, targets, check)
        refuse(subject, faults)
    return GradientReport(subject, tuple(finding.entry() for finding in findings))


def _loss_of(layer: Layer, loss: Loss | None, targets: Targets) -> Loss | None:
    """Copy the loss to check with; None means a random dY."""
    if targets[0] is None:
        if loss is None and targets[1] is None:
            return None
        raise ArgumentError(
            "a loss needs targets, as in check_gradients(loss, P, y): "
            "loss and sample_weight are accepted only with targets y."
        )
    if layer.outputs != 1:
        raise ArgumentError(f"{layer!r} has {layer.outputs} outputs: check it without y.")
    found = getattr(layer, "loss", None) if loss is None else loss
    if not isinstance(found, Loss):
        raise ArgumentError(
            f"check_gradients with y needs a loss, as in loss=MeanSquaredError(), got {found!r}."
        )
    return copy.deepcopy(found)


def _float64_copy(obj: Layer, shape: Any, seed: int, rng: np.random.Generator | None) -> Layer:
    """Return a float64 copy with its own parameters; an rng perturbs trivial ones."""
    twin = obj.copy()
    if twin.output_shape is None:
        twin.build(shape, seed=seed, dtype=np.float64)
    else:
        twin.cast(np.float64)
    for _, layer in twin.walk():
        for store in (layer.params, layer.state):
            for name, a in store.items():
                store[name] = a.copy()
                if rng is not None and np.unique(a).size < max(2, a.size):
                    store[name] += rng.uniform(0.1, 0.6, a.shape)  # a variance stays positive
    return twin


def _trial_of(
    subject: str, layer: Layer, X: Any, loss: Loss | None, targets: Targets,
    rng: np.random.Generator,
) -> Trial:  # fmt: skip
    """Return the output, or its loss, as a function of X and of all parameters in the tree.

    Several outputs become one vector, and dY the vector of their gradients.
    """
    Xs, several = numbered("X", X), layer.outputs != 1
    for name, A in Xs.items():
        check_finite(A, name)
    states = [(part.state, copy.deepcopy(part.state)) for _, part in layer.walk()]

    def forward() -> Array:
        for state, kept in states:
            state.update(copy.deepcopy(kept))
        Y: Any = layer.forward(*each(X))
        # a copy: Y may be a view of X, which will be changed
        return np.concatenate([A.ravel() for A in Y]) if several else np.array(Y)

    def run() -> Any:
        return forward() if loss is None else loss.loss_func(forward(), *targets)

    def backward(dY: Array) -> dict[str, Any]:
        dX = layer.backward(*(_parted(dY, layer._frame.output) if several else (dY,)))
        return {**numbered("dX", dX), **layer.gradients()}

    params = _gather(layer.walk(), "params")
    given = {**Xs, **params}
    out, faults = _twice("forward", lambda: {"Y": forward()}, given, " at the same step")
    Y = out["Y"]
    if Y.dtype != np.float64:
        faults.append(f"Y is {Y.dtype}, but X is float64: a layer must keep the dtype.")
    if not np.isfinite(Y).all():
        faults.append("Y contains nan or infinity.")
    refuse(subject, faults)
    if loss is None:
        dY = rng.standard_normal(Y.shape)
    else:
        who = "loss_gradient"
        out, faults = _twice(who, lambda: {who: loss.loss_gradient(Y, *targets)}, {"X": Y})
        refuse(subject, [*faults, *malformed({who: Y}, out)])
        dY = out[who]
    claims, faults = _twice("backward", lambda: backward(dY), {**given, "dY": dY})
    doubled = {} if faults else {k: a for k, a in backward(2 * dY).items() if a is not None}
    linear = not _differing(doubled, {k: 2 * claims[k] for k in doubled})
    if any(isinstance(part, Select) and part.tokens for _, part in layer.walk()):
        claims.pop("dX", None)  # X cannot be moved: some of its columns must stay whole numbers
        arrays = params
    else:  # tokens have no gradient
        arrays = {**{f"d{n}": A for n, A in Xs.items() if A.dtype.kind == "f"}, **params}
    frozen = _gather(((path, part) for path, part in layer.walk() if not part.trainable), "params")
    refuse(subject, [*faults, *malformed(arrays, claims, frozen)])
    upstream, shapes = dY if loss is None else 1.0, {"": each(X)[0].shape, " of Y": Y.shape}
    return Trial(run, run(), upstream, arrays, claims, shapes, *targets, linear)


def _parted(dY: Array, outputs: Any) -> list[Array]:
    """Return the gradient of each output, given the vector of all of them."""
    ends = np.cumsum([math.prod(shape) for shape, _ in outputs])[:-1]
    parts = zip(np.split(dY, ends), outputs, strict=True)
    return [part.reshape(shape) for part, (shape, _) in parts]


def _gather(layers: Iterable[tuple[str, Layer]], store: str) -> Arrays:
    """Return the arrays of every `store` ("params", "grads"), by path."""
    return {
        f"{path}.{name}".removeprefix("."): a
        for path, layer in layers
        for name, a in getattr(layer, store).items()
    }


def _twice(
    who: str, f: Callable[[], dict[str, Any]], given: Arrays, when: str = ""
) -> tuple[Arrays, list[str]]:
    """Call f twice; return its arrays and the faults: `given` was modified, or results differ."""
    kept = copy.deepcopy(given)
    first, second = ({k: np.array(a) for k, a in f().items() if a is not None} for _ in range(2))
    written, changed = _differing(kept, given), _differing(first, second)
    faults = [f"{who} modifies {written}."] if written else []
    faults += [f"{who}, called again{when}, returns a different {changed}."] if changed else []
    return first, faults


def _differing(A: Arrays, B: Arrays) -> str:
    """Return the names of the arrays that differ."""
    pairs = ((name, A.get(name, ()), B.get(name, ())) for name in {**A, **B})
    return ", ".join(name for name, a, b in pairs if not np.array_equal(a, b, equal_nan=True))


def _wrong_parts(
    twin: Layer, X: Any, loss: Loss | None, targets: Targets, check: Callable[..., GradientReport]
) -> list[str]:
    """Check each part on its own, at the input that it receives; report those that are wrong."""
    parts, seen, wrong = dict(twin.walk()), dict[str, Any](), []

    def check_alone(
        what: str, part: Layer | Loss, X: Any, y: Any = None, weight: Any = None
    ) -> None:
        try:
            check(part, X, y, sample_weight=weight)
        except GradientError as error:
            wrong.append(f"On its own, {what} is wrong too: {error}")

    def note(event: Event) -> None:
        if event.when == "before" and event.path in parts and not event.source.children():
            seen[event.path] = on_each(np.array, event.array)

    with watching(note):
        Y = twin.copy().forward(*each(X))
    for path, given in seen.items():
        check_alone(f"layer {path}", parts[path], given)
    if loss is not None:
        check_alone("the loss", loss, Y, *targets)
    name = type(twin).__name__
    return wrong or [f"On its own, every layer inside is right: does {name} join them wrongly?"]
