"""From a forward pass to the layer that a person would have written: see `derive`."""

from __future__ import annotations

import keyword
import linecache
import math
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import numpy as np

from phitodeep.core.files import atomic_write
from phitodeep.core.types import Shape
from phitodeep.derivations.derive.own import scope_of
from phitodeep.derivations.derive.read import GREATEST, LARGEST, PASSED, RESERVED, Reader
from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Derivation, Max, Step, Sum, split
from phitodeep.derivations.losses import weighted
from phitodeep.errors import ArgumentError, ArgumentTypeError, DerivationError, PhitodeepError
from phitodeep.layers import Layer
from phitodeep.loss.base import Elementwise
from phitodeep.testing.check import check_gradients
from phitodeep.testing.writing import Writer
from phitodeep.testing.writing_losses import LossWriter

Source = str | Callable[..., Any] | Sequence[Step]
# What a parameter or a setting cannot be called, besides the names in `RESERVED`.
OWN = {"Y", "call", "layer", "path", "shape", *dir(Layer())}
# What the steps of a loss use, and what its settings cannot be called.
SYMBOLS = {"each", "slope", "v", "w", "total", "share", "d_each", "counted", "summed"}
OWN_OF_LOSS = {"L", "call", "layer", "path", *SYMBOLS, *dir(Elementwise())}


@np.errstate(all="ignore")
def derive(source: Source, /, *, name: str = "Derived", **given: Any) -> Derived:
    """Derive the backward pass of a layer from its forward pass, and write the layer as source.

        swish = derive("Y = X * sigmoid(beta * X)", X=(4, 5), beta=(5,), name="Swish")
        print(swish.source)

    A loss is derived from its formula, with predictions P and targets T instead of X:

        error = derive("L = ((P - T) ** 2).sum(axis=-1)", P=(4, 5), T=(4, 5), name="Error")

    source    a function of one screen, the text of one, or a list of steps
    name      the name of the class
    given     the shape of X, samples first, and those of the parameters; numbers are settings.
              Sizes differ from each other, since they say which axes belong together. Of a loss,
              the equal shapes of P and T; T="labels" says that T holds rows of 0 and 1 that the
              class makes of labels

    L is a term for each element, for each row or for each sample; the weighted mean of all terms
    is taken by the class.

    The source is yours: nothing of `derive` runs afterwards. It has passed `check_gradients` for
    other samples, other numbers of them and, where the mathematics allows it, other ranks. Of equal
    elements, the gradient of a maximum goes to the first.

    A forward pass that cannot be differentiated raises a DerivationError, which names the line.
    """
    written = isinstance(name, str) and name.isidentifier() and is_normalized("NFKC", name)
    if not written or keyword.iskeyword(name):
        raise ArgumentError(f"name must be that of a class, such as Swish, got {name!r}.")
    if "P" in given:
        return _derive_loss(source, name, given)
    shapes, settings = _checked(given)
    rng = np.random.default_rng(1)
    values: dict[str, Any] = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    values |= settings
    forward, lines = _read(source, values, "Y")
    scope = _performed(forward, values, lines)
    more = {"X": np.concatenate([values["X"], values["X"][:1]])}
    other = _performed(forward, values | more, lines, ": write the number of samples as X.shape[0]")
    Y, n = np.shape(scope["Y"]), len(values["X"])
    if Y[:1] != (n,) or np.shape(other["Y"]) != (n + 1, *Y[1:]):
        raise DerivationError(
            f"{lines.get('Y', 'the steps')}: Y has shape {Y} for X of shape {shapes['X']}, but a "
            "layer keeps the samples, which are the first axis and no other: sum along other axes, "
            "such as axis=-1, and keep them with keepdims=True."
        )
    try:
        back = reverse(forward, scope, shapes)
    except OverflowError:
        raise DerivationError("the numbers of a gradient overflow: write smaller ones.") from None
    if missing := [n for n in shapes if f"d{n}" not in {step.symbol for step in back}]:
        raise DerivationError(
            f"Y does not depend on {', '.join(missing)}, so that there is no gradient: leave out "
            "parameters that are not used, and compute Y from X."
        )
    _refuse_chance(forward, values, shapes)
    scope["dY"] = rng.standard_normal(np.shape(scope["Y"]))
    run.run(run.perform(back, scope, "backward"))
    found, params = Derivation(forward, back), [n for n in shapes if n != "X"]
    alone = np.allclose(other["Y"][:n], scope["Y"], equal_nan=True) and _alone(forward, values)
    writer = partial(Writer, found, scope, name, params, settings, alone=alone)
    return Derived(name, found, scope, writer)


def _derive_loss(source: Source, name: str, given: dict[str, Any]) -> DerivedLoss:
    labels = given.get("T") == "labels"
    shapes, settings = _checked(given | {"T": given["P"]} if labels else given, "P", OWN_OF_LOSS)
    if dict.fromkeys("PT", shapes["P"]) != shapes:
        raise ArgumentError(
            "a loss compares P with T of the same shape, and has neither X nor parameters: write "
            f'P=(4, 5), T=(4, 5) or T="labels", and numbers as settings, got {given}.'
        )
    rng = np.random.default_rng(1)
    for draw in ("standard_normal", "random"):  # such as probabilities
        values = {n: getattr(rng, draw)(shape) for n, shape in shapes.items()} | settings
        terms, lines = _read(source, values, "L")
        L = _performed(terms, values, lines)["L"]
        if np.isfinite(L).all():
            break
    else:
        raise DerivationError("L is not finite for numbers around 0, nor for those from 0 to 1.")
    each, axes = [_with_axes(step) for step in terms], len(shapes["P"]) - np.ndim(L)
    each[-1].symbol = "each"
    scope = _performed([*each, Sum("L", "...->", "each")], values, lines)
    if not np.ndim(L) or scope["each"].shape != shapes["P"][: np.ndim(L)] + (1,) * axes:
        raise DerivationError(
            f"L has shape {np.shape(L)} for P of shape {shapes['P']}: it has a number for each "
            "element, row or sample, and the loss takes their mean, with weights. Keep all axes "
            "until L (keepdims=True, P[..., :1]), and end with .sum(axis=-1)."
        )
    back = reverse(scope.derivation.forward, scope, ["P"])
    if not back:
        raise DerivationError("L does not depend on P.")
    back[-1].symbol = "slope"
    run.run(run.perform(back, scope, "backward"))
    scope.values |= {"X": scope["P"], "Y": L}
    found = Derivation(each, back)
    writer = partial(LossWriter, terms, labels, found, scope, name, (), settings)
    return DerivedLoss(draw, name, weighted(*found, axes), scope, writer)


def _with_axes(step: Step) -> Step:
    """The step; of a sum or maximum along axes, the one that keeps them with length 1."""
    step, (parts, _, out) = copy(step), step.code.replace(" ", "").partition("->")
    first = parts.partition(",")[0]
    if isinstance(step, Sum | Max) and {*parts.split(",")} == {first} and first.startswith(out):
        gone = first.removeprefix(out)
        step.code = f"{parts.replace(first, f'...{gone}')}->...{'1' * len(gone)}"
    return step


def _read(source: Any, values: dict[str, Any], end: str) -> tuple[list[Step], dict[str, str]]:
    """The steps up to Y or L, and the lines in which symbols are computed."""
    if isinstance(source, str) or callable(source):
        reader = Reader(end, SYMBOLS if end == "L" else (), **values)
        return [*split(reader.read(source), end)[0]], reader.lines
    if isinstance(source, Sequence) and all(isinstance(step, Step) for step in source):
        return [*split(source, end)[0]], {}
    raise ArgumentTypeError(f"derive takes a function, a text or steps, got {source!r}.")


def _checked(
    given: dict[str, Any], first: str = "X", own: Collection[str] = OWN
) -> tuple[dict[str, Shape], dict[str, float]]:
    """The shapes and the settings, apart."""
    shapes: dict[str, Shape] = {}
    settings: dict[str, float] = {}
    for name, value in given.items():
        other = name not in (first, "X") and (name in {*RESERVED, *own} or PASSED.fullmatch(name))
        if other or name.startswith("_") or keyword.iskeyword(name) or not name.isidentifier():
            raise ArgumentError(f"derive: {name!r} has another meaning here: choose another name.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) <= GREATEST:
                raise ArgumentError(f"derive: {name} is at most {GREATEST:g}, got {value}.")
            settings[name] = int(value) if isinstance(value, int) else float(value)
        elif _is_shape(value):
            shapes[name] = tuple(value)
            if math.prod(value) > LARGEST:
                raise ArgumentError(f"derive: {name} is an example: give it fewer elements.")
        else:
            raise ArgumentTypeError(
                f"derive: {name} is a shape, such as (4, 5), or a number, got {value!r}."
            )
    X = shapes.get(first, ())
    if len(X) < 2:
        raise ArgumentError(
            f"derive needs the shape of {first}, samples first, such as {first}=(4, 5)."
        )
    if len({*X}) < len(X) or 1 in X:
        raise DerivationError(
            f"{first} has shape {X}: give each axis a size of its own, above 1, so that the axes "
            "can be told apart."
        )
    for name, shape in shapes.items():
        if first == "X" != name and X[0] in shape:
            raise DerivationError(
                f"{name} has an axis of {X[0]}, as many as there are samples: give X another first "
                "size, since the parameters of a layer do not depend on the batch."
            )
    return shapes, settings


def _is_shape(value: Any) -> bool:
    found = isinstance(value, list | tuple) and 0 < len(value) <= 32
    return found and all(type(n) is int and n > 0 for n in value)


def _performed(
    forward: Sequence[Step], values: dict[str, Any], lines: dict[str, str], remedy: str = ""
) -> Scope:
    """Run forward steps; an error names the line, or the step."""
    scope, given = scope_of(forward, **values), "P" if "P" in values else "X"
    program = run.forward(scope, given)
    position = next(program)
    try:
        while True:
            position = program.send(position.value())
    except StopIteration:
        return scope
    except (NameError, LookupError, TypeError, ValueError) as error:
        where = lines.get(position.step.symbol, repr(position.step))
        words = f"{where}: with {len(values[given])} samples, {error}{remedy}."
        raise DerivationError(words) from error


def _refuse_chance(
    forward: Sequence[Step], values: dict[str, Any], shapes: dict[str, Shape]
) -> None:
    """Refuse parameters that have a size of X without need: it would be taken for that of X."""
    for k, n in enumerate(shapes["X"][1:], 1):
        places = [(p, a) for p in shapes if p != "X" for a, m in enumerate(shapes[p]) if m == n]
        for some in chain.from_iterable(
            combinations(places, r) for r in (1, 2, 3)[: 1 + 2 * (len(places) < 20)]
        ):
            larger = dict(values)
            for p, a in some:
                larger[p] = np.repeat(larger[p], 3, axis=a)
            try:
                _performed(forward, larger, {})
            except DerivationError:
                continue
            p, a = some[0]
            raise DerivationError(
                f"axis {a} of {p} has the size {n} of axis {k} of X, and need not: give it a "
                "size of its own, so that the axes can be told apart."
            )


@np.errstate(all="ignore")
def _alone(forward: Sequence[Step], values: dict[str, Any]) -> bool:
    """Whether each sample of Y depends on its own X only, also where comparisons decide.

    A sample of NaN or of infinities would change others through sums, maxima and conditions.
    """

    def others(k: int, bad: float) -> Any:
        X = values["X"].copy()
        X[k] = bad
        return np.delete(_performed(forward, values | {"X": X}, {})["Y"], k, axis=0)

    each = range(len(values["X"]))
    return all(
        np.allclose(others(k, bad), others(k, 0), equal_nan=True)
        for k in each
        for bad in (np.nan, np.inf, -np.inf)
    )


class Derived:
    """A derived layer or loss: `print` shows its source, and `write` keeps it.

    steps     both passes, as data
    source    the file
    """

    def __init__(
        self, name: str, steps: Derivation, scope: Scope, writer: Callable[..., Writer]
    ) -> None:
        self.name, self.steps, self._scope, self._writer = name, steps, scope, writer

    @cached_property
    def source(self) -> str:
        X = self._scope["X"].shape
        text = self._written()
        self._check(text)
        twice = [[n * (1 + (a == k)) for a, n in enumerate(X)] for k in range(1, len(X))]
        same = [k for k, shape in enumerate(twice) if self._fault(text, (2, *shape[1:]), k + 2)]
        if same or self._fault(text, (3, 2, *X[1:]), 4):  # samples with one axis more
            text = self._written(fixed=same)
        return text

    @np.errstate(all="ignore")
    def _written(self, fixed: Sequence[int] | None = None) -> str:
        return self._writer(fixed).source()

    def layer(self, **settings: Any) -> Any:
        """Return a new layer, or a new loss, of the class, with settings for its constructor."""
        return self._class(self.source)(**settings)

    loss = layer

    def write(self, path: str | Path) -> Path:
        """Write the source to a file, which must not exist."""
        if not isinstance(path, str | Path):
            raise ArgumentTypeError(f"write takes the path of a file as text, got {path!r}.")
        path, source = Path(path), self.source
        if path.exists() or not path.parent.is_dir():
            raise ArgumentError(
                f"{path} must be a new file in a folder that is there: derive does not overwrite."
            )
        with atomic_write(path) as file:
            file.write(source.encode())
        return path

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"Derived({self.name!r})"

    def _class(self, text: str) -> Any:
        """Run the text, which was written from checked steps, and return its class."""
        place = f"<derived {self.name}>"
        linecache.cache[place] = len(text), None, text.splitlines(keepends=True), place
        names: dict[str, Any] = {"__name__": f"derived_{self.name}"}
        exec(compile(text, place, "exec"), names)
        return names[self.name]

    @np.errstate(all="ignore")
    def _check(self, text: str) -> None:
        """Check the text on the example, and on other data with other numbers of samples."""
        same, X, Y = self._computed(self._class(text)()), self._scope["X"], self._scope["Y"]
        if not np.allclose(same, Y, rtol=1e-11, atol=1e-13, equal_nan=True):
            raise DerivationError(f"{self.name}: the code that was written computes another Y.")
        for n in (2, 3):
            if fault := self._fault(text, (n, *X.shape[1:]), n):
                raise DerivationError(
                    f"{self.name} does not pass check_gradients: {fault} Central differences "
                    "measure values of moderate size, away from jumps: write the forward pass so "
                    "that it has them. The attribute steps has what was derived."
                )

    def _computed(self, layer: Any) -> Any:
        """The Y of the example."""
        X = self._scope["X"]
        layer.build(X.shape[1:], dtype=np.float64)
        layer.set_weights({name: self._scope[name] for name in layer.params})
        return layer.forward(X)

    @np.errstate(all="ignore")
    def _fault(self, text: str, shape: Shape, seed: int) -> str:
        """What is wrong with the text for X, or P, of this shape; "" if nothing is."""
        try:
            self._try_gradients(self._class(text)(), shape, seed)
        except (PhitodeepError, ValueError, IndexError, TypeError) as error:
            given = "P" if "P" in self._scope else "X"
            return f"for {given} of shape {shape}, {' '.join(str(error).splitlines()[:2])}"
        return ""

    def _try_gradients(self, made: Any, shape: Shape, seed: int) -> None:
        check_gradients(made, seed * np.random.default_rng(seed).standard_normal(shape))


class DerivedLoss(Derived):
    """A derived loss; `draw` is a distribution of P and T for which L is finite."""

    def __init__(self, draw: str, *parts: Any) -> None:
        super().__init__(*parts)
        self._draw = draw

    def _computed(self, loss: Any) -> Any:
        return loss.each(self._scope["P"], self._scope["T"])

    def _try_gradients(self, made: Any, shape: Shape, seed: int) -> None:
        rng = np.random.default_rng(seed)
        P, T = (getattr(rng, self._draw)(shape) for _ in range(2))
        first = self._scope.values | {"P": P[:1], "T": T[:1]}
        alone = _performed(self._scope.derivation.forward, first, {})["each"].ravel()
        if not np.allclose(made.each(P, T)[:1].ravel(), alone, equal_nan=True):
            raise DerivationError("the L of a sample depends on other samples.")
        for w in (None, rng.random(made.positions(shape))):
            check_gradients(made, P, T, sample_weight=w)
