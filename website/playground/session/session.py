"""The model that the playground trains: `Session` runs in the worker and owns it.

A session begins with a program. It takes steps of one sample, one batch or one epoch, and after
each it can give a frame: one float32 array with all that the page draws. `head` says where in a
frame each array is.
"""

from __future__ import annotations

import math
import pickle
import re
import time
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np

from phitodeep.core.call import Call, watching, within
from phitodeep.errors import DivergenceError, PhitodeepError
from phitodeep.inspect.anomaly import anomaly
from phitodeep.inspect.explorer.document import text_of
from phitodeep.inspect.explorer.page import page
from phitodeep.inspect.recording import Recorder
from phitodeep.optimization.divergence import bad_loss
from phitodeep.testing import check_gradients
from phitodeep.training.inputs import validate
from phitodeep.training.loop import SHUFFLE
from phitodeep.training.ranks import Work

from . import points, program
from .arrays import flat, formulas, parameters, ratios

SIDE = 50  # cells of the boundary along each side
HEAD = ("step", "epoch", "loss", "accuracy", "batch", "bad", "boundary")
SHOWN = 16  # samples of a batch in the lanes
PICTURES = 64  # images in the picture


class Session:
    """One program and its model.

    history   the steps that were taken, as pairs of a letter (s, b or e) and a count
    bad       where the first number that is not finite arose, or None
    """

    def __init__(self, code: str) -> None:
        self.code = code
        self.program = program.run(code)
        self.model, self.X, self.y = self.program
        self.data = validate(self.model, self.model.loss, self.X, self.y)
        self.history: list[list[Any]] = []
        self.step, self.epoch, self.cursor = 0, 0, 0
        self.order = self._shuffled()
        self.bad: dict[str, Any] | None = None
        self.recorder: Recorder | None = None  # of the step that frames show
        self.seen = 0  # its number
        self.ratios: dict[str, float] = {}
        self.size = min(self.model.batch_size or program.BATCH, program.BATCH, len(self.X))
        self.losses: deque[float] = deque(maxlen=-(-len(self.X) // self.size))  # of an epoch
        self.kind = self._kind()
        self.layout = self._layout()

    # --- what the page must know -------------------------------------------------------------

    def _kind(self) -> str:
        """How predictions are drawn: plane, curve, images, names or table."""
        shape = self.X.shape[1:]
        if self.model.takes_tokens:
            return "names"
        if shape == (2,):
            return "plane"
        if shape == (1,):
            return "curve"
        return "images" if shape in ((64,), (8, 8)) else "table"

    def _layout(self) -> list[dict[str, Any]]:
        """Where each array begins in a frame: rows and columns of every layer's arrays."""
        found, at = [], len(HEAD)
        for k, layer in enumerate(self.model.layers):
            size = int(np.prod(layer.output_shape))
            arrays = {"Y": (SHOWN, size), "dY": (SHOWN, size)}
            for name, A in layer.params.items():
                shape = flat(A).shape
                arrays |= {name: shape, f"d{name}": shape}
            places = {}
            for name, (rows, columns) in arrays.items():
                places[name] = [at, rows, columns]
                at += rows * columns
            found.append(
                {"path": str(k), "name": repr(layer), "kind": type(layer).__name__, "ratio": at}
                | {"arrays": places, "formulas": formulas(layer)}
            )
            at += 1
        self.length = at
        return found

    def about(self) -> dict[str, Any]:
        """What the page needs once: the layers, and the data as they are drawn."""
        X = np.asarray(self.X)
        rows = X.reshape(len(X), -1)
        return {
            "kind": self.kind,
            "layers": self.layout,
            "length": self.length,
            "side": SIDE,
            "samples": len(X),
            "batch": self.size,
            "classes": self._classes(),
            "X": np.round(rows.astype(float), 4).tolist() if self.kind != "names" else [],
            "y": np.round(np.asarray(self.y, float).reshape(len(X), -1)[:, 0], 4).tolist(),
            "box": self.box(),
            "loss": type(self.model.loss).__name__,
            "optimizer": repr(self.model.optimizer),
            "parameters": self.model.count_params(),
        }

    def _classes(self) -> int:
        """2 or more for classes, 0 for a regression."""
        last = int(np.prod(self.data.outputs[1:]))
        if np.asarray(self.y).dtype.kind == "f":
            return 0
        return max(2, last)

    # --- steps -------------------------------------------------------------------------------

    def advance(self, what: str, count: int = 1) -> None:
        """Take steps: of a sample "s", a batch "b" or an epoch "e". The last one is recorded."""
        for k in range(count):
            if self.bad:
                return
            if what == "e":
                goal = self.epoch + 1
                while self.epoch < goal and not self.bad:
                    self._take(self.size, record=self.cursor + self.size >= len(self.X))
            else:
                self._take(1 if what == "s" else self.size, record=k == count - 1)
            self._note(what)

    def run(self, milliseconds: float, record: bool, most: int | None = None) -> int:
        """Take batches for so many milliseconds, or `most` of them; return how many.

        The last one is recorded on demand, or if it is the last of `most`.
        """
        end, taken = time.perf_counter() + milliseconds / 1000, 0
        while not self.bad and taken != most:
            final = taken + 1 == most
            last = final or time.perf_counter() >= end
            self._take(self.size, record=final or (record and last))
            self._note("b")
            taken += 1
            if last:
                break
        return taken

    def settle(self) -> None:
        """Before a pause: take one more batch, unless the last step was recorded."""
        if not self.bad and self.seen != self.step:
            self.advance("b")

    def _note(self, what: str) -> None:
        if self.history and self.history[-1][0] == what:
            self.history[-1][1] += 1
        else:
            self.history.append([what, 1])

    def _shuffled(self) -> Any:
        """The order of an epoch's samples, which depends only on the seed and the epoch."""
        root = self.model._seed_sequence
        key = (*root.spawn_key, SHUFFLE, self.epoch + 1)
        rng = np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=key))
        return rng.permutation(len(self.data.X))

    def _take(self, size: int, record: bool) -> None:
        """One step of the optimizer on the next samples of this epoch."""
        model = self.model
        rows = self.order[self.cursor : self.cursor + size]
        batch = self.data._pick(lambda A: A[rows])
        before = model.copy() if record else model
        try:
            with np.errstate(all="ignore"):
                loss, recorder = self._passes(batch, record)
                if not math.isfinite(loss):
                    raise bad_loss(loss, model.optimizer.t + 1, model.optimizer._remedy())
                model.optimizer.step(model.layers)
        except DivergenceError as error:
            self._freeze(batch, rows, error)
            return
        except PhitodeepError:
            raise
        except Exception as error:
            raise program.Refused(
                f"{type(error).__name__}: {error}", program.line_of(error)
            ) from error
        self.losses.append(loss)
        self.step += 1
        self.cursor += len(rows)
        if self.cursor >= len(self.X):
            self.epoch, self.cursor = self.epoch + 1, 0
            self.order = self._shuffled()
        if record:
            self.recorder, self.rows, self.before = recorder, rows, before
            self.seen = self.step
            self.ratios = ratios(parameters(before), parameters(model))

    def _passes(self, batch: Any, record: bool) -> tuple[float, Recorder | None]:
        """Forward, loss and backward, as the layers are written."""
        model, recorder = self.model, Recorder() if record else None
        with within(Call(step=model.optimizer.t)):
            if recorder is None:
                P = model.forward(batch.X)
                loss, dP = model.loss.value_and_gradient(P, batch.T, batch.w, None)
                if math.isfinite(loss):
                    model.backward(dP)
                return loss, None
            with watching(recorder, root=model):
                P = model.forward(batch.X)
                loss, dP = model.loss._watched(P, batch.T, batch.w, None)
                model.backward(dP)
        return loss, recorder

    def _freeze(self, batch: Any, rows: Any, error: DivergenceError) -> None:
        """Stop at a step that failed: find its first bad number, and keep its arrays."""
        model = self.model
        work = Work([batch], [0], len(batch.X), None, False)
        found = anomaly(model, work, [rows], self.epoch + 1, self.step + 1, error)
        with np.errstate(all="ignore"):
            self.before, self.rows = model.copy(), rows
            self.recorder = self._passes(batch, True)[1]
            advice = model.diagnose(self.X, self.y, overfit=0)
        self.bad = {
            "message": str(found).partition(" No parameter has changed")[0],
            "path": getattr(found, "path", ""),
            "symbol": getattr(found, "symbol", ""),
            "direction": getattr(found, "direction", ""),
            "findings": [
                {"name": f.name, "path": f.path, "evidence": f.evidence, "remedy": f.remedy}
                for f in advice
            ],
        }

    # --- frames ------------------------------------------------------------------------------

    def frame(self, boundary: bool = True) -> Any:
        """All that the page draws now, as one float32 array."""
        extra = self._boundary() if boundary and not self.bad else np.zeros(0, np.float32)
        out = np.full(self.length + len(extra), np.nan, np.float32)
        loss = float(np.mean(self.losses)) if self.losses else self._loss()
        head = (self.step, self.epoch, loss, self.score(), 0, self.bad is not None)
        out[: len(HEAD)] = (*head, len(extra))
        if self.recorder is None:
            self._look()
        with np.errstate(all="ignore"):
            for entry in self.layout:
                self._fill(out, entry)
        out[4] = len(self.rows)
        out[self.length :] = extra
        return out

    def _look(self) -> None:
        """Record the passes of the next batch without a step, so that there is something to see."""
        self.rows = self.order[self.cursor : self.cursor + self.size]
        batch = self.data._pick(lambda A: A[self.rows])
        kept, self.before = self.model, self.model.copy()
        self.model = self.model.copy()  # whose statistics this pass may change
        try:
            with np.errstate(all="ignore"):
                self.recorder = self._passes(batch, True)[1]
        finally:
            self.model = kept

    def _fill(self, out: Any, entry: dict[str, Any]) -> None:
        passes = self.recorder and self.recorder.passes.get(entry["path"])
        if not passes:
            return
        layer = self.before.layers[int(entry["path"])]
        values = {"Y": passes.Y, "dY": passes.dY, **layer.params}
        values |= {f"d{name}": dW for name, dW in passes.grads.items()}
        for name, (at, rows, columns) in entry["arrays"].items():
            A = values.get(name)
            if A is None:
                continue
            A = A.reshape(len(A), -1) if name in ("Y", "dY") else flat(A)
            part = A[:rows, :columns]
            block = out[at : at + rows * columns].reshape(rows, columns)
            block[: part.shape[0], : part.shape[1]] = part
        out[entry["ratio"]] = self.ratios.get(entry["path"], np.nan)

    def _loss(self) -> float:
        with np.errstate(all="ignore"):
            P = self.model.predict(self.data.X)
            return float(self.model.loss.value(P, self.data.T, self.data.w, None))

    def score(self) -> float:
        """The share of samples whose class is right; for a regression, 1 - error / variance."""
        with np.errstate(all="ignore"):
            P = self.model.predict(self.data.X)
        y = np.asarray(self.y)
        if not self._classes():
            rest, own = ((P.reshape(y.shape) - y) ** 2).mean(), y.var()
            return float(1 - rest / own) if own else math.nan
        return float((self._class_of(P) == y.reshape(-1)).mean())

    def _boundary(self) -> Any:
        """The predictions on a grid of the plane (50 x 50), along a line (100), or of images."""
        if self.kind not in ("plane", "curve"):
            return self._read() if self.kind == "images" else np.zeros(0, np.float32)
        box = np.array(self.box()).reshape(2, -1)
        if self.kind == "curve":
            grid = np.linspace(box[0, 0], box[1, 0], 100)[:, None]
        else:
            axes = [np.linspace(box[0, k], box[1, k], SIDE) for k in (0, 1)]
            grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
        with np.errstate(all="ignore"):
            P = self.model.predict(grid.astype(np.float32))
        if P.shape[-1] == 1:
            P = P[:, 0]
            if self._classes() and self.model.loss.threshold == 0:  # logits
                P = 1 / (1 + np.exp(-P))
            return P.astype(np.float32)
        best = P.argmax(axis=-1)
        top = np.sort(P, axis=-1)
        return (best + np.clip(top[:, -1] - top[:, -2], 0, 0.999)).astype(np.float32)

    def _read(self) -> Any:
        """The classes that the model reads in the images that the page shows."""
        if not self._classes():
            return np.zeros(0, np.float32)
        with np.errstate(all="ignore"):
            return self._class_of(self.model.predict(self.data.X[:PICTURES])).astype(np.float32)

    def _class_of(self, P: Any) -> Any:
        if P.shape[-1] == 1:
            return P.reshape(-1) > self.model.loss.threshold
        return P.argmax(axis=-1).reshape(-1)

    def box(self) -> list[float]:
        """The corners of the picture: the least of each feature and the greatest, with a margin."""
        X = np.asarray(self.X, float).reshape(len(self.X), -1)
        low, high = X.min(axis=0), X.max(axis=0)
        if points.given.get("drawn") and self.X is points.given["X"]:  # the reader goes on drawing
            low, high = np.minimum(low, -1), np.maximum(high, 1)
        pad = 0.1 * (high - low)
        return [*(low - pad), *(high + pad)]

    # --- questions ---------------------------------------------------------------------------

    def trace(self, html: bool = False) -> str:
        """The step that the frame shows, traced: the explorer's document, or its page."""
        if self.recorder is None:
            self._look()
        with np.errstate(all="ignore"):
            found = self.before.trace(self.X[self.rows], self.y[self.rows])
            return page(found) if html else text_of(found)

    def check(self) -> dict[str, Any]:
        """The gradient checker's verdict on the model as it is."""
        rows = np.arange(min(5, len(self.X)))
        try:
            with np.errstate(all="ignore"):
                report = check_gradients(self.model, self.X[rows], self.y[rows], max_probes=12)
        except Exception as error:
            return {"right": False, "words": str(error)}
        return {"right": True, "words": str(report)}

    def names(self, count: int = 8) -> list[str]:
        """Names that the model makes up, letter by letter."""
        rng, found = np.random.default_rng(self.step), []
        for _ in range(count):
            word = [0] * points.CONTEXT
            while len(word) < points.CONTEXT + 12:
                P = self.model.predict(np.array([word[-points.CONTEXT :]]))[0].astype(float)
                if P.min() < 0 or abs(P.sum() - 1) > 1e-3:  # logits
                    P = np.exp(P - P.max())
                word.append(int(rng.choice(len(P), p=P / P.sum())))
                if word[-1] == 0:
                    break
            found.append("".join(points.LETTERS[k] for k in word[points.CONTEXT :]).rstrip("."))
        return found

    # --- snapshots ---------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything that `restore` needs to go on from here."""
        keys = ("history", "step", "epoch", "cursor", "losses")
        kept = {key: getattr(self, key) for key in keys}
        return pickle.dumps(kept | {"state": self.model.state_dict()})

    def restore(self, kept: bytes) -> None:
        """Go on from a snapshot of the same program."""
        found = pickle.loads(kept)
        self.model.load_state_dict(found.pop("state"))
        vars(self).update(found)
        self.order, self.recorder = self._shuffled(), None

    def go_on(self, old: Session) -> bool:
        """Go on where another session stands, if both programs have the same layers."""
        same = program.fixed(self.code) == program.fixed(old.code) and self.layout == old.layout
        if not same:
            return False
        self.model.set_weights(old.model.get_weights())
        with suppress(PhitodeepError):  # another optimizer, or another schedule, begins anew
            self.model.optimizer.load_state_dict(old.model.optimizer.state_dict())
        self.history, self.losses = old.history, deque(old.losses, self.losses.maxlen)
        self.step = self.seen = old.step
        self.epoch, self.cursor = old.epoch, old.cursor if len(self.X) == len(old.X) else 0
        self.order, self.recorder = self._shuffled(), None
        return True

    def replay(self, history: str) -> None:
        """Take the steps that a link names, such as "b120s3"; e, b and s as in `advance`."""
        for what, count in re.findall(r"([sbe])(\d{1,6})", history):
            self.advance(what, int(count))

    @property
    def path(self) -> str:
        """The history as a link writes it."""
        return "".join(f"{what}{count}" for what, count in self.history)
