"""A step of training, layer by layer: `Sequential.trace`; the difference of two: `Trace.diff`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.call import calling, within
from phitodeep.core.checks import check_count
from phitodeep.core.files import atomic_write, check_path
from phitodeep.core.table import Table, Tabled
from phitodeep.core.types import Array, each, on_each
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.losses import givens
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.inspect.drawing import draw
from phitodeep.inspect.entries import Entries, Entry, Text, rms
from phitodeep.inspect.explorer.page import inline, page
from phitodeep.inspect.explorer.picture import picture
from phitodeep.inspect.hooks import replaced_by
from phitodeep.inspect.recording import Recording, record, updates_of
from phitodeep.inspect.summary import name_of
from phitodeep.layers.base import Layer
from phitodeep.training.objective import Trainable
from phitodeep.training.shortcuts import plan

WIDEST = 30  # characters of a layer in a table
HEAD = ("path", "layer", "|Y|", "|dY|", "|dW|", "update/W", "zeros", "note")


@dataclass(frozen=True)
class Row:
    """One layer in a step; sizes are root mean squares, and None where there is nothing."""

    path: str
    layer: str
    Y: float
    dY: float | None
    dW: float | None  # of all parameters together
    update: float | None  # the length of the update, divided by the length of the parameters
    zeros: float  # the share of the elements of Y that are 0
    note: str

    def cells(self) -> tuple[str, ...]:
        sizes = (self.Y, self.dY, self.dW, self.update)
        shown = ("" if size is None else f"{size:.3g}" for size in sizes)
        return (self.path, self.layer, *shown, f"{self.zeros:.0%}", self.note)


class Trace(Tabled, Entries[Entry]):
    """One step of training: a mapping from keys such as "1.backward.dW" to arrays and formulas.

    loss       the loss
    rows       one row per layer, which `print` shows as a table
    sample     the sample whose share this is, or None for the whole batch: see `by_sample`
    model      the copy of the model that took the step, with its parameters before the update
    updates    what the optimizer adds to each parameter, by path and name
    remarks    what the lines below the table say
    edited     whether hooks were active, so that arrays may not follow from their formulas

    Arrays are float64, computed from what the layers received in the model's own dtype. Updates are
    in that dtype.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        updates: dict[str, dict[str, Array]],
        notes: dict[str, str],
        remarks: tuple[str, ...] = (),
        edit: run.Edit | None = None,
        sample: int | None = None,
    ) -> None:
        self._recording, self._notes, self.remarks = recording, notes, remarks
        self.loss, self.sample, self.model = recording.value, sample, recording.model
        self.edited = edit is not None
        loss, exact = _loss_scope(recording, edit), np.float64
        super().__init__(recording.passes, loss=loss, updates=updates, dtype=exact, edit=edit)

    # --- what pictures of it read ------------------------------------------------------------

    def name_of(self, path: str) -> str:
        """How tables name the layer at a path, or the loss."""
        return kind_of(self.scope(path).layer)

    @cached_property
    def loss_after(self) -> float | None:
        """The loss of the same batch after the update, or None without one."""
        if not self.updates or self.edited:
            return None
        recording = self._recording
        twin, data = self.model.copy(), recording.data
        for path, layer in twin.walk():
            for name, update in self.updates.get(path, {}).items():
                layer.params[name] += update
        with within(recording.call), np.errstate(all="ignore"):
            return float(twin.loss.value(twin.forward(data.X), data.T, data.w, recording.total))

    # --- the table -------------------------------------------------------------------------

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._row(path, layer) for path, layer in self.model.walk() if path)

    def _row(self, path: str, layer: Layer) -> Row:
        passes, name = self._passes.get(path), kind_of(layer)
        if passes is None:
            return Row(path, name, float("nan"), None, None, None, 0.0, "did not run")
        grads = list(passes.grads.values())
        return Row(
            path=path,
            layer=name,
            Y=rms(passes.Y),
            dY=None if passes.dY is None else rms(passes.dY),
            dW=rms(np.concatenate([g.reshape(-1) for g in grads])) if grads else None,
            update=self._ratio(path, layer),
            zeros=float(np.mean(np.concatenate([np.ravel(Y == 0) for Y in each(passes.Y)]))),
            note=self._notes.get(path, ""),
        )

    def _ratio(self, path: str, layer: Layer) -> float | None:
        updates = self.updates.get(path)
        if not updates:
            return None
        moved, size = (
            np.sqrt(sum(float(np.vdot(a, a)) for a in arrays))
            for arrays in (updates.values(), (layer.params[name] for name in updates))
        )
        return float(moved / size) if size else None

    def table(self) -> Table:
        n = self._recording.data.n
        of = f"sample {self.sample} of {n}" if self.sample is not None else f"{n} samples"
        title = f"loss {self.loss:.6g}, {of}; |A| is the root mean square of A"
        return Table(title, HEAD, [row.cells() for row in self.rows], "\n".join(self.remarks))

    def draw(self, sample: int = 0, *, ascii: bool | None = None) -> Text:
        """Draw a small net as text: every value on the way forward, every gradient on the way back.

            print(model.trace(X, y).draw())

        The numbers are those of one sample: its values, and its share of each gradient. Arrays of
        more than 8 rows or columns are described by their shape and root mean square. The layers of
        a network say what they read, and their values have its names. `ascii=True`
        uses no other characters; by default, that depends on what standard output can write.

        Raises ArgumentError for a sample that does not exist, and for a net of more than 24 layers.
        """
        share = self.by_sample(sample)
        return draw(share._recording, sample % share._recording.data.n, ascii)

    def save(self, path: str | Path, *, compare: Trace | None = None) -> None:
        """Write the step as a picture or as a page that explains every number in it.

            t.save("step.html")                   # the explorer: open it in any browser
            t.save("step.html", compare=other)    # two traces of the same layers
            t.save("step.svg")                    # a picture that plays the step once

        A file needs no network and no server, and is replaced at once or not at all. See
        docs/explorer.md. Raises ArgumentError for another suffix, for `compare` with a picture or
        with a trace of other layers, and if the step is too large for a page.
        """
        path = check_path(path)
        kind = path.suffix.lower()
        if kind not in (".html", ".svg"):
            raise ArgumentError(f"save writes .html or .svg files, got {str(path)!r}.")
        if compare is not None:
            if kind == ".svg":
                raise ArgumentError("compare= needs the explorer: save to a .html file.")
            self.diff(compare)  # refuses other layers or shapes
        text = picture(self) if kind == ".svg" else page(self, compare)
        with atomic_write(path) as file:
            file.write(text.encode())

    def _repr_html_(self) -> str:
        try:
            return inline(self)
        except ArgumentError:  # too large for a page
            return super()._repr_html_()

    # --- shares and differences ------------------------------------------------------------

    def by_sample(self, n: int) -> Trace:
        """The share of sample n: its term of the loss, and all gradients that come from it.

        Gradients are linear in dP, so the shares of all samples add up to the gradients of the
        batch. Forward arrays are not divided, and updates, which are not linear, are left out.
        """
        recording = self._recording
        count = recording.data.n
        n = check_count(n, "by_sample: n", minimum=-count, maximum=count - 1) % count
        P, data, loss = recording.P, recording.data, recording.loss
        w = loss.weights_of(n, P, data.w)
        with calling(watch=None):
            value, dP = loss.value_and_gradient(P, data.T, w, recording.total)
        share = replace(
            recording, data=data._replace(w=w), value=value, dP=dP, passes=recording.backward(dP)
        )
        return Trace(share, updates={}, notes=self._notes, edit=self._joined(), sample=n)

    def _joined(self) -> run.Edit | None:
        """The forward hooks of this step, and the backward hooks of the pass that just ran."""
        step, share = self._edit, replaced_by(self._recording.watch)
        if step is None or share is None:
            return step

        def edit(position: run.Position, value: Any) -> Any:
            return (step if position.direction == "forward" else share)(position, value)

        return edit

    def diff(self, other: Trace) -> Difference:
        """How far this trace is from another one of the same layers."""
        if not isinstance(other, Trace):
            raise ArgumentTypeError(
                f"a trace is compared with another one, model.trace(X, y), got "
                f"{type(other).__name__}."
            )
        for path in self._passes.keys() ^ other._passes.keys():
            raise ArgumentError(
                f"diff compares traces of the same layers, and only one of them has {path!r}."
            )
        rows = []
        for path, name in ((row.path, row.layer) for row in other.rows if row.path in self._passes):
            a, b = self._passes[path], other._passes[path]
            shapes = [on_each(np.shape, passes.Y) for passes in (a, b)]
            if shapes[0] != shapes[1]:
                raise ShapeError(
                    f"diff compares traces of batches of the same shape, and the Y of {path} has "
                    f"the shapes {shapes[0]} and {shapes[1]}."
                )
            pairs = ((a.Y, b.Y), (a.dY, b.dY), (a.grads, b.grads))
            updates = self.updates.get(path), other.updates.get(path)
            rows.append(Change(path, name, *(far(*pair) for pair in (*pairs, updates))))
        return Difference(self.loss, other.loss, tuple(rows))


def _loss_scope(recording: Recording, edit: run.Edit | None) -> Scope:
    """The symbols of the loss, in float64."""
    data = recording.data
    loss = recording.loss.present(data.T)
    P = on_each(lambda A: A.astype(np.float64), recording.P)
    symbols = givens(loss, P, data.T, data.w, recording.total)
    scope = Scope(loss, "loss", call=recording.call, dtype=np.float64, **symbols)
    if not run.has_steps(loss):
        scope.values |= {"L": np.float64(recording.value), "dP": scope.cast(recording.dP)}
        return scope
    run.run(run.forward(scope, "P"), edit)
    run.run(run.backward(scope), edit)
    return scope


def trace(model: Trainable, X: Any, y: Any, **options: Any) -> Trace:
    """Record one step of training on a copy of the model: see `Sequential.trace`."""
    recording = record(model, X, y, **options)
    updates, why_not = updates_of(recording.model)
    notes = plan(model, model.loss).notes
    return Trace(
        recording,
        updates=updates,
        notes=_notes(recording, notes),
        remarks=(*(f"in training: {note}" for note in notes), *filter(None, [why_not])),
        edit=replaced_by(recording.watch),
    )


def _notes(recording: Recording, shortcuts: tuple[str, ...]) -> dict[str, str]:
    """What is worth knowing about each layer."""
    found: dict[str, str] = {}
    for path, passes in recording.passes.items():
        layer, last = passes.layer, passes.layer is recording.model.layers[-1]
        here, joint = f"({path})", f"{layer!r} and"  # how shortcuts name it, or it with the loss
        arrays = {"Y": passes.Y, "dY": passes.dY, **{f"d{n}": g for n, g in passes.grads.items()}}
        notes = {
            "fused in training": path.isdecimal()
            and any(here in s or (last and s.startswith(joint)) for s in shortcuts),
            "frozen": layer.params and not layer.trainable,
            "no steps(): boundaries only": not run.has_steps(layer),
        }
        for name, a in arrays.items():
            known = [A for A in each(a) if A is not None]
            notes[f"{name} is not finite"] = not all(np.isfinite(A).all() for A in known)
        dY = passes.dY
        notes["no gradient arrives"] = dY is not None and not any(A.any() for A in each(dY))
        found[path] = ", ".join(note for note, applies in notes.items() if applies)
    return found


def kind_of(layer: Any) -> str:
    """How tables name a layer, without most of its arguments if it has many."""
    whole = name_of(layer)
    head = whole[:WIDEST].rpartition(", ")[0]
    short = f"{head}, ...)" if head.count("(") == 1 else f"{type(layer).__name__}(...)"
    return short if len(whole) > WIDEST and "(" in whole else whole


@dataclass(frozen=True)
class Change:
    """How far the arrays of one layer differ, relative to their size; None where there is none."""

    path: str
    layer: str
    Y: float | None
    dY: float | None
    dW: float | None
    update: float | None

    def cells(self) -> tuple[str, ...]:
        numbers = (self.Y, self.dY, self.dW, self.update)
        shown = ("" if x is None else "same" if x == 0 else f"{x:.2g}" for x in numbers)
        return (self.path, self.layer, *shown)


@dataclass(frozen=True, repr=False)
class Difference(Tabled):
    """What differs between two traces of the same layers.

    loss, before    both losses; None before they are known
    rows            one per layer: |A - B| / |B| for each array
    """

    loss: float | None
    before: float | None
    rows: tuple[Change, ...]

    def table(self) -> Table:
        if self.loss is None or self.before is None:
            moved = "the loss is not known yet"
        elif self.loss == self.before:
            moved = f"the loss is the same, {self.loss:.6g}"
        else:
            moved = f"the loss goes from {self.before:.6g} to {self.loss:.6g}"
        title = f"{moved}; entries are |A - B| / |B|"
        head = ("path", "layer", "Y", "dY", "dW", "update")
        return Table(title, head, [row.cells() for row in self.rows], "")


def far(A: Any, B: Any) -> float | None:
    """|A - B| / |B| of arrays, or of dicts or tuples of them; None if one is missing or empty."""
    if A is None or B is None or len(A) == 0:
        return None
    if isinstance(A, dict):
        A, B = tuple(A.values()), tuple(B.values())
    A, B = (np.concatenate([np.ravel(a) for a in each(D)]) for D in (A, B))
    apart, size = rms(np.subtract(A, B, dtype=np.float64)), rms(B)
    return apart / size if size else apart
