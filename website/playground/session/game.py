"""Break the gradient: one line of one layer's backward pass is wrong, and the reader repairs it.

The mistakes are those of `phitodeep.teach.mutations`, written as lines of NumPy. A mistake is dealt
only if its line computes what the mutation computes, and if a gradient changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from phitodeep.data import make_moons
from phitodeep.derivations.language.notation import PLAIN
from phitodeep.derivations.language.run import Scope, backward, forward, run
from phitodeep.derivations.language.step import FUNCTIONS, Let, Step, Sum
from phitodeep.model import SequentialBuilder
from phitodeep.teach.mutations import mutations
from phitodeep.testing import check_gradients

SAMPLES, CHOICES = 7, 4
FAR = 1e-3  # relative error of a gradient that counts as wrong


class Mutant(NamedTuple):
    """A mistake: the layer, the symbol, the mistake in words, and its line."""

    path: str
    symbol: str
    words: str
    line: str


class Game:
    """One mutant, dealt by a seed. `path`, `words` and `text` are what the reader has to find."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        X, self.y = make_moons(SAMPLES, noise=0.2, seed=seed)
        self.X = X.astype(np.float64)
        self.model = (
            SequentialBuilder(2, seed=seed)
            .dense(5)
            .layer_norm()
            .tanh()
            .dense(4)
            .softplus()
            .dense(1)
            .loss("binary_cross_entropy_with_logits")
            .dtype("float64")
            .build()
        )
        for _, layer in self.model.walk():
            for A in layer.params.values():  # a gamma of 1 would hide a missing factor
                A += rng.uniform(-0.3, 0.3, A.shape)
        self.scope = self._scope()
        self.right = self.gradients(None, "")
        self.mutant = next(self._wrong(rng))
        self.path, self.words = self.mutant.path, self.mutant.words
        self.text = self.lines(self.path)  # the right lines
        self.shown = self.lines(self.path, self.mutant)
        others = [m.words for m in self._mutants() if m.path == self.path and m.words != self.words]
        picked = rng.permutation(sorted(set(others)))[: CHOICES - 1]
        self.choices = [str(words) for words in rng.permutation([*picked, self.words])]

    def _scope(self) -> Scope:
        """The right pass of the whole model."""
        scope = Scope(self.model, X=self.X)
        run(forward(scope))
        run(backward(scope, self._dP(scope["Y"])))
        return scope

    def _dP(self, P: Any) -> Any:
        return self.model.loss.loss_gradient(P, self.y)

    # --- lines -------------------------------------------------------------------------------

    def lines(self, path: str, mutant: Mutant | None = None) -> str:
        """The backward pass of a layer as lines of NumPy, with a mistake in one of them."""
        inner = self.scope.inside[f"layers.{path}"]
        steps = [step for step in inner.derivation.backward if isinstance(step, Let | Sum)]
        broken = {mutant.symbol: mutant.line} if mutant else {}
        return "\n".join(broken.get(s.symbol, line_of(s, inner)) for s in steps)

    def _mutants(self) -> Iterator[Mutant]:
        for k in range(len(self.model.layers)):
            inner = self.scope.inside[f"layers.{k}"]
            for step in inner.derivation.backward:
                for words, line in wrong_lines(step, inner):
                    yield Mutant(str(k), step.symbol, f"{step.symbol} is computed {words}", line)

    def _wrong(self, rng: np.random.Generator) -> Iterator[Mutant]:
        """Mutants that change a gradient, in a random order."""
        found = list(self._mutants())
        for k in rng.permutation(len(found)):
            try:
                with np.errstate(all="ignore"):
                    wrong = self.gradients(found[k].path, self.lines(found[k].path, found[k]))
            except Exception:  # such as other shapes
                continue
            if all(np.isfinite(A).all() for A in wrong.values()) and any(self.errors(wrong)):
                yield found[k]

    # --- passes ------------------------------------------------------------------------------

    def gradients(self, path: str | None, text: str) -> dict[str, Any]:
        """The gradients of all parameters, with other lines in one layer."""
        model = self.model if path is None else self.rewritten(path, text)
        model.backward(self._dP(model.forward(self.X)))
        return {
            f"{k}.{name}": dW.copy()
            for k, layer in enumerate(model.layers)
            for name, dW in layer.grads.items()
        }

    def errors(self, gradients: dict[str, Any]) -> list[bool]:
        """Which gradients are wrong."""
        return [far(gradients[key], right) for key, right in self.right.items()]

    def rewritten(self, path: str, text: str) -> Any:
        """A copy of the model in which one layer's backward pass runs these lines."""
        model = self.model.copy()
        layer = model.layers[int(path)]
        layer.__class__ = rewritten(type(layer), compile(text, "<lines>", "exec"))
        return model

    # --- what the reader does ----------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """The layers, with the gradients that the model computes and those that are right."""
        found = self.gradients(self.path, self.shown)
        layers = []
        for k, layer in enumerate(self.model.layers):
            gradients = []
            for name in layer.params:
                got, right = found[f"{k}.{name}"], self.right[f"{k}.{name}"]
                entry = {"symbol": f"d{name}", "got": _rows(got), "right": _rows(right)}
                gradients.append(entry | {"wrong": far(got, right)})
            layers.append({"path": str(k), "name": repr(layer), "gradients": gradients})
        return {"layers": layers}

    def find(self, path: str) -> dict[str, Any]:
        """Whether this layer is the broken one; if so, the mistakes to choose from."""
        if path == self.path:
            return {"right": True, "choices": self.choices, "text": self.shown}
        got = self.gradients(self.path, self.shown)
        wrong = [int(key.split(".")[0]) for key, A in self.right.items() if far(got[key], A)]
        return {
            "right": False,
            "words": f"It is not layer {path}. The last layer whose gradient is wrong is "
            f"{max(wrong)}. Backward runs from the last layer to the first: which passes "
            "are between the right gradients and the wrong ones?",
        }

    def name(self, words: str) -> dict[str, Any]:
        return {"right": words == self.words}

    def repair(self, text: str) -> dict[str, Any]:
        """What the gradient checker says about the model with these lines."""
        try:
            report = check_gradients(self.rewritten(self.path, text), self.X, self.y)
        except Exception as error:  # whatever the reader's lines raise
            return {"right": False, "words": str(error) or type(error).__name__}
        return {"right": True, "words": str(report)}


def far(got: Any, right: Any) -> bool:
    """Whether an array is not the right one."""
    return bool(np.abs(got - right).max() > FAR * np.abs(right).max())


def _rows(A: Any) -> list[list[float]]:
    return np.atleast_2d(A).tolist()


def rewritten(kind: type, code: Any) -> type:
    """A class of layers like another one, whose backward pass runs lines of NumPy."""

    def forward_(self: Any, X: Any) -> Any:
        self.received = np.array(X)
        return kind.forward(self, X)

    def backward_(self: Any, dY: Any) -> Any:
        own, self.__class__ = type(self), kind
        try:
            scope = Scope(self, X=self.received)
            run(forward(scope))
        finally:
            self.__class__ = own
        symbols = scope.values | {"dY": dY, "einsum": np.einsum} | FUNCTIONS
        exec(code, symbols)
        for name in self.params:
            self.grad_array(name)[...] = symbols[f"d{name}"]
        return symbols["dX"]

    methods = {"forward": forward_, "backward": backward_, "steps": lambda self: None}
    return type(kind.__name__, (kind,), methods)


# --- steps as lines --------------------------------------------------------------------------


def line_of(step: Step, scope: Scope) -> str:
    """A step as a line of NumPy."""
    if isinstance(step, Sum):
        return f"{step.symbol} = {_sum(step, scope, list(step.operands))}"
    return f"{step.symbol} = {step.code}"


def _sum(step: Sum, scope: Scope, operands: list[str]) -> str:
    parts, out = step.letters(scope)
    text = f'einsum("{",".join(parts)}->{out.replace("1", "")}", {", ".join(operands)})'
    return f"{text}[..., None]" if out.endswith("1") else text


def wrong_lines(step: Step, scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield the mistakes of a step that can be written as a line: in words, and the line."""
    for words, wrong in mutations(step, scope.derivation):
        text = None
        if isinstance(step, Let):
            text = wrong.args[0]
        elif isinstance(step, Sum):
            text = _wrong_sum(step, scope, words, wrong)
        if text is not None and _computes(text, scope, wrong):
            yield words, f"{step.symbol} = {text}"


def _wrong_sum(step: Sum, scope: Scope, words: str, wrong: Callable[..., Any]) -> str | None:
    operands = list(step.operands)
    for k, name in enumerate(operands):
        if words.startswith(f"without the factor `{PLAIN.symbol(name)}`"):
            operands[k] = f"np.ones_like({name})"
            return _sum(step, scope, operands)
    function = getattr(getattr(wrong, "func", None), "__name__", "")
    if function == "_swapped":
        _, k, operands[k] = wrong.args
        return _sum(step, scope, operands)
    if words == "as a mean instead of a sum":
        return f"{_sum(step, scope, operands)} / {_count(step, scope)}"
    return None


def _count(step: Sum, scope: Scope) -> str:
    """How many terms a sum has, as an expression."""
    parts, out = step.letters(scope)
    found = {}
    for name, part in zip(step.operands, parts, strict=True):
        for axis, letter in enumerate(part):
            if letter not in out:
                found.setdefault(letter, f"len({name})" if axis == 0 else f"{name}.shape[{axis}]")
    return " / ".join(found.values())


def _computes(text: str, scope: Scope, wrong: Callable[..., Any]) -> bool:
    """Whether an expression gives what the mutation gives, of the same shape."""
    symbols = scope.values | {"einsum": np.einsum} | FUNCTIONS
    try:
        with np.errstate(all="ignore"):
            got, expected = eval(text, symbols), wrong(scope)
    except Exception:
        return False
    same = np.shape(got) == np.shape(expected)
    return same and bool(np.allclose(got, expected, rtol=1e-9, atol=1e-12, equal_nan=True))
