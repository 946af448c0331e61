"""What the worker's JavaScript calls: questions as JSON to the session and the game."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from phitodeep.errors import PhitodeepError

from . import formula, points, program
from .game import Game
from .session import Session


class Worker:
    """What the worker calls: each method takes and returns JSON, except for frames and snapshots.

    A program that cannot be used leaves the last session in place.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.game: Game | None = None

    def call(self, name: str, text: str) -> str:
        """Run a method; the answer is its result, or what is wrong with the program."""
        try:
            return json.dumps({"result": getattr(self, name)(**json.loads(text))}, allow_nan=True)
        except program.Refused as error:
            return json.dumps({"error": error.message, "line": error.line})
        except (PhitodeepError, ValueError) as error:
            return json.dumps({"error": str(error), "line": program.line_of(error)})
        except BaseException as error:  # the program's layers may raise anything
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            return json.dumps({"error": words, "line": program.line_of(error)})

    @staticmethod
    def bytes_of(array: Any) -> bytes:
        """Python's bytes of an array of JavaScript."""
        return bytes(array.to_py())

    def init(self, code: str, points_: Any = None, keep: bool = False) -> dict[str, Any]:
        """Take a program; `keep` goes on with the weights if the edit left the layers alone."""
        if points_:
            self.give(points_)
        session = Session(code)
        session.frame()  # a program whose passes fail is refused too
        kept = bool(keep and self.session and session.go_on(self.session))
        self.session = session
        return session.about() | {"history": session.path, "kept": kept}

    def replay(self, history: str) -> dict[str, Any]:
        self.session.replay(history)
        return self.status()

    def give(self, given: Any) -> None:
        """Take the points that the reader drew, or the table that they pasted."""
        if "csv" in given:
            X, y = points.read_table(given["csv"])
        else:
            X = np.array(given["X"], np.float32)
            y = np.array(given["y"])
        points.given.update(X=X, y=y, drawn="csv" not in given)

    def table(self, csv: str, code: str) -> str:
        """The program with the input and the output that a table needs."""
        return program.fitted(code, *points.read_table(csv))

    def step(self, what: str) -> dict[str, Any]:
        self.session.advance(what)
        return self.status()

    def status(self) -> dict[str, Any]:
        return {"history": self.session.path, "bad": self.session.bad}

    def trace(self) -> dict[str, Any]:
        return json.loads(self.session.trace())

    def explorer(self) -> str:
        return self.session.trace(html=True)

    def check(self) -> dict[str, Any]:
        return self.session.check()

    def diagnose(self) -> str:
        return str(self.session.model.diagnose(self.session.X, self.session.y, overfit=0))

    def names(self) -> list[str]:
        return self.session.names() if self.session.kind == "names" else []

    def export(self) -> str:
        return program.script(self.session.code)

    def derive(self, text: str, given: str, name: str) -> dict[str, Any]:
        return formula.derived(text, given, name)

    # --- break the gradient ------------------------------------------------------------------

    def deal(self, seed: int) -> dict[str, Any]:
        self.game = Game(seed)
        return self.game.about()

    def find(self, path: str) -> dict[str, Any]:
        return self.game.find(path)

    def name(self, words: str) -> dict[str, Any]:
        return self.game.name(words)

    def repair(self, text: str) -> dict[str, Any]:
        return self.game.repair(text)
