"""One wrong gradient: its code, its repair, what the checker says, and how it trains."""

from __future__ import annotations

import ast
import inspect
import sys
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phitodeep.layers import Layer
from phitodeep.loss import Loss, SoftmaxCrossEntropy
from phitodeep.model.sequential import Sequential
from phitodeep.optimization.optimizers import SGD
from phitodeep.testing import GradientError, GradientReport, check_gradients


class Source(NamedTuple):
    """Where the mistake was made: a name such as "owner/project #12", its address, and what for."""

    name: str
    url: str
    note: str


class Task(NamedTuple):
    """A small training by SGD: data, and the layers of a model, made from the class under test.

    If the class is a loss, it is the loss that is minimized and shown.
    """

    data: Callable[[], tuple[Any, Any]]
    model: Callable[[Any], list[Layer]]
    loss: Callable[[], Loss] = SoftmaxCrossEntropy
    rate: float = 0.1
    epochs: int = 30


class Bug(NamedTuple):
    """A wrong gradient.

    title, story     the heading, and what happened, in Markdown
    sources          where it happened; every address was opened
    kind             the class with the mistake
    check            the arguments of `check_gradients`, as source code; `Kind` stands for the class
    wrong, right     the lines of the class to replace, and what replaces them
    why              why it often trains anyway
    task             how the page measures that
    """

    title: str
    story: str
    sources: tuple[Source, ...]
    kind: type[Any]
    check: str
    wrong: str
    right: str
    why: str
    task: Task


def read(file: str, names: dict[str, Any], tasks: dict[str, Task]) -> dict[str, Bug]:
    """The bugs of a TOML file next to a file with their classes; `check` begins with the class."""
    found = tomllib.loads(Path(file).with_suffix(".toml").read_text("utf-8"))
    for row in found.values():
        row["sources"] = tuple(Source(*source) for source in row["sources"])
        row["kind"] = names[row["check"].partition("(")[0]]
    return {name: Bug(task=tasks[name], **row) for name, row in found.items()}


class Case:
    """A bug, and all that the page shows of it."""

    def __init__(self, name: str, bug: Bug) -> None:
        self.name, self.bug = name, bug

    @cached_property
    def code(self) -> str:
        """The class as it is written in its file."""
        return inspect.getsource(self.bug.kind)

    @cached_property
    def imports(self) -> str:
        """The imports that the class and the check need."""
        used = {
            n.id
            for n in ast.walk(ast.parse(f"{self.code}\n{self.call}"))
            if isinstance(n, ast.Name)
        }
        module = ast.parse(inspect.getsource(sys.modules[self.bug.kind.__module__]))
        lines = ["import numpy as np"]
        for node in module.body:
            if isinstance(node, ast.ImportFrom):
                node.names = [name for name in node.names if (name.asname or name.name) in used]
                lines += [ast.unparse(node)] * bool(node.names)
        return "\n".join([*lines, "from phitodeep.testing import check_gradients"])

    @cached_property
    def repaired_code(self) -> str:
        assert self.code.count(self.bug.wrong) == 1, f"{self.name}: the line to repair"
        return self.code.replace(self.bug.wrong, self.bug.right)

    @cached_property
    def repaired(self) -> type[Any]:
        """The class with its repair."""
        names = dict(vars(sys.modules[self.bug.kind.__module__]))
        exec(self.repaired_code, names)
        found: type[Any] = names[self.bug.kind.__name__]
        return found

    @property
    def call(self) -> str:
        """The line with which the reader finds the mistake."""
        return f"check_gradients({self.bug.check})"

    def verdict(self, kind: type[Any]) -> str:
        """What the checker says of a class: the text of its error, or of its report."""
        return str(self._checked(kind))

    def _checked(self, kind: type[Any]) -> GradientReport | GradientError:
        names = dict(vars(sys.modules[self.bug.kind.__module__]))
        names |= {self.bug.kind.__name__: kind, "check_gradients": check_gradients}
        names["rng"] = np.random.default_rng(0)
        try:
            report: GradientReport = eval(self.call, names)
        except GradientError as error:
            return error
        return report

    def worst(self) -> float:
        """The largest relative error that the checker finds after the repair."""
        report = self._checked(self.repaired)
        assert isinstance(report, GradientReport)
        return report.worst

    def trained(self, kind: type[Any]) -> tuple[float, float]:
        """Train with a class; return the losses of all data before and after."""
        task = self.bug.task
        X, y = task.data()
        model = Sequential(*task.model(kind), seed=1)
        loss = kind() if issubclass(kind, Loss) else task.loss()
        optimizer, rng = SGD(task.rate), np.random.default_rng(0)
        model.build(X.shape[1:])

        def value() -> float:
            return float(loss.loss_func(model.predict(X), y))

        first = value()
        for _ in range(task.epochs):
            order = rng.permutation(len(X))
            for start in range(0, len(X), BATCH):
                rows = order[start : start + BATCH]
                P = model.forward(X[rows])
                model.backward(loss.loss_gradient(P, y[rows]))
                optimizer.step(model.layers)
        return first, value()


BATCH = 20
