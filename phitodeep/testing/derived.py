"""From a forward pass to the layer that a person would have written: see `derive`."""

from __future__ import annotations

import keyword
import linecache
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.files import atomic_write
from phitodeep.core.types import Array, Shape
from phitodeep.derivations.derive.read import GREATEST, LARGEST, PASSED, RESERVED, Reader
from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Derivation, Step
from phitodeep.errors import ArgumentError, ArgumentTypeError, DerivationError, PhitodeepError
from phitodeep.layers import Layer
from phitodeep.testing.check import check_gradients
from phitodeep.testing.writing import Writer

Source = str | Callable[..., Any] | Sequence[Step]
# What a parameter or a setting cannot be called, besides the names in `RESERVED`.
OWN = {"Y", "call", "layer", "path", "shape", *dir(Layer())}


@np.errstate(all="ignore")
def derive(source: Source, /, *, name: str = "Derived", **given: Any) -> Derived:
    """Derive the backward pass of a layer from its forward pass, and write the layer as source.

        swish = derive("Y = X * sigmoid(beta * X)", X=(4, 5), beta=(5,), name="Swish")
        print(swish.source)

    source    a function of one screen, the text of one, or a list of steps
    name      the name of the class
    given     the shape of X, samples first, and those of the parameters; numbers are settings.
              Sizes differ from each other, since they say which axes belong together

    The source is yours: nothing of `derive` runs afterwards. It has passed `check_gradients` for
    other samples, other numbers of them and, where the mathematics allows it, other ranks. Of equal
    elements, the gradient of a maximum goes to the first.

    A forward pass that cannot be differentiated raises a DerivationError, which names the line.
    """
    if not (isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)):
        raise ArgumentError(f"name must be that of a class, such as Swish, got {name!r}.")
    shapes, settings = _checked(given)
    rng = np.random.default_rng(1)
    values: dict[str, Any] = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    values |= settings
    lines: dict[str, str] = {}  # where a symbol is computed
    if isinstance(source, str) or callable(source):
        reader = Reader(**values)
        forward, lines = reader.read(source), reader.lines
    elif isinstance(source, Sequence) and all(isinstance(step, Step) for step in source):
        forward = [*source]
    else:
        raise ArgumentTypeError(f"derive takes a function, a text or steps, got {source!r}.")
    scope = _performed(forward, values, lines)
    if "Y" not in scope:
        raise DerivationError("the steps compute no Y.")
    if np.shape(scope["Y"])[:1] != shapes["X"][:1]:
        raise DerivationError(
            f"{lines.get('Y', 'the steps')}: Y has shape {np.shape(scope['Y'])} for X of shape "
            f"{shapes['X']}, but a layer keeps the samples, which are the first axis: sum along "
            "other axes, such as axis=-1."
        )
    more = {"X": np.concatenate([values["X"], values["X"][:1]])}
    _performed(forward, values | more, lines, ": write the number of samples as X.shape[0]")
    back = reverse(forward, scope, shapes)
    if missing := [n for n in shapes if f"d{n}" not in {step.symbol for step in back}]:
        raise DerivationError(
            f"Y does not depend on {', '.join(missing)}, so that there is no gradient: leave out "
            "parameters that are not used, and compute Y from X."
        )
    _refuse_chance(forward, values, shapes)
    scope["dY"] = rng.standard_normal(np.shape(scope["Y"]))
    run.run(run.perform(back, scope, "backward"))
    return Derived(
        name, Derivation(forward, back), scope, [n for n in shapes if n != "X"], settings
    )


def _checked(given: dict[str, Any]) -> tuple[dict[str, Shape], dict[str, float]]:
    """The shapes and the settings, apart."""
    shapes: dict[str, Shape] = {}
    settings: dict[str, float] = {}
    for name, value in given.items():
        other = name in (RESERVED | OWN) - {"X"} or name.startswith("_") or PASSED.fullmatch(name)
        if other or keyword.iskeyword(name) or not name.isidentifier():
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
    X = shapes.get("X", ())
    if len(X) < 2:
        raise ArgumentError("derive needs the shape of X, samples first, such as X=(4, 5).")
    if len({*X}) < len(X) or 1 in X:
        raise DerivationError(
            f"X has shape {X}: give each axis a size of its own, above 1, so that the axes can be "
            "told apart."
        )
    for name, shape in shapes.items():
        if name != "X" and X[0] in shape:
            raise DerivationError(
                f"{name} has an axis of {X[0]}, as many as there are samples: give X another first "
                "size, since the parameters of a layer do not depend on the batch."
            )
    return shapes, settings


def _is_shape(value: Any) -> bool:
    found = isinstance(value, list | tuple) and len(value) > 0
    return found and all(isinstance(n, int) and n > 0 for n in value)


def _performed(
    forward: Sequence[Step], values: dict[str, Any], lines: dict[str, str], remedy: str = ""
) -> Scope:
    """Run forward steps; an error names the line, or the step."""
    scope = Scope(_Trial(forward), **values)
    program = run.forward(scope)
    position = next(program)
    try:
        while True:
            position = program.send(position.value())
    except StopIteration:
        return scope
    except (NameError, LookupError, TypeError, ValueError) as error:
        where = lines.get(position.step.symbol, repr(position.step))
        words = f"{where}: with {len(values['X'])} samples, {error}{remedy}."
        raise DerivationError(words) from error


def _refuse_chance(
    forward: Sequence[Step], values: dict[str, Any], shapes: dict[str, Shape]
) -> None:
    """Refuse parameters that have a size of X without need: it would be taken for that of X."""
    for k, n in enumerate(shapes["X"][1:], 1):
        places = [(p, a) for p in shapes if p != "X" for a, m in enumerate(shapes[p]) if m == n]
        for some in chain.from_iterable(combinations(places, r) for r in (1, 2, 3)):
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


class _Trial(Layer):
    """A layer that is its forward steps."""

    def __init__(self, forward: Sequence[Step]) -> None:
        super().__init__()
        self._forward_steps = forward

    def steps(self) -> Derivation:
        return Derivation(self._forward_steps, [])


class Derived:
    """A derived layer: `print` shows its source, and `write` keeps it.

    steps     both passes, as data
    source    the file
    """

    def __init__(
        self, name: str, steps: Derivation, scope: Scope, params: Sequence[str],
        settings: dict[str, float],
    ) -> None:  # fmt: skip
        self.name, self.steps = name, steps
        self._scope, self._params, self._settings = scope, params, settings

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
        parts = self.steps, self._scope, self.name, self._params, self._settings
        return Writer(*parts, fixed=fixed).source()

    def layer(self, **settings: Any) -> Layer:
        """Return a new layer of the class; settings are those of its constructor."""
        made: Layer = self._class(self.source)(**settings)
        return made

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
        """Check the text on other data, with other numbers of samples and another rank."""
        layer, X = self._class(text)(), self._scope["X"]
        layer.build(X.shape[1:], dtype=np.float64)
        layer.set_weights({name: self._scope[name] for name in layer.params})
        same = layer.forward(X)
        if not np.allclose(same, self._scope["Y"], rtol=1e-11, atol=1e-13, equal_nan=True):
            raise DerivationError(f"{self.name}: the code that was written computes another Y.")
        for n in (2, 3):
            if fault := self._fault(text, (n, *X.shape[1:]), n):
                raise DerivationError(f"{self.name} does not pass check_gradients: {fault}")

    @np.errstate(all="ignore")
    def _fault(self, text: str, shape: Shape, seed: int) -> str:
        """What is wrong with the text for X of this shape; "" if nothing is."""
        A: Array = seed * np.random.default_rng(seed).standard_normal(shape)
        try:
            check_gradients(self._class(text)(), A)
        except (PhitodeepError, ValueError, IndexError, TypeError) as error:
            return f"for X of shape {shape}, {' '.join(str(error).splitlines()[:2])}"
        return ""
