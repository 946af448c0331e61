"""The findings of a check, the report on correct gradients, and the error for wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phitodeep.core.table import Table, Tabled
from phitodeep.core.types import Array, Shape
from phitodeep.errors import PhitodeepError
from phitodeep.testing.slopes import Probe, Probes, Trial


class GradientError(PhitodeepError, AssertionError):
    """A gradient is not the derivative of its function."""


def refuse(subject: str, faults: Sequence[str]) -> None:
    """Raise a GradientError if there are faults."""
    if faults:
        raise GradientError("\n  ".join([f"{subject} has wrong gradients.", *faults]))


class GradientEntry(NamedTuple):
    """The accuracy of one gradient: the worst of its probes."""

    name: str  # "dX", or the path of a parameter such as "3.layers.0.W"
    shape: Shape
    probed: int
    skipped: int  # probes at a kink, where only one-sided slopes exist
    relative: float  # the error relative to the larger value, or to its rounding error if larger
    absolute: float


@dataclass(frozen=True, repr=False)
class GradientReport(Tabled):
    """The accuracy of all gradients of one object; `report["0.W"]` is the entry for W."""

    subject: str
    entries: tuple[GradientEntry, ...]

    @property
    def worst(self) -> float:
        """The largest relative error of all gradients."""
        return max((entry.relative for entry in self.entries), default=0.0)

    def __getitem__(self, name: str) -> GradientEntry:
        return {entry.name: entry for entry in self.entries}[name]

    def table(self) -> Table:
        rows = [(*map(str, e[:4]), *(f"{error:.1e}" for error in e[4:])) for e in self.entries]
        head = ("", "shape", "probed", "skipped", "relative", "absolute")
        return Table(f"{self.subject}: worst errors of each gradient", head, rows, "")


class Finding:
    """All probes of one gradient, in the form that diagnoses use.

    probes, along      probes by flat index, and at most one along a random direction
    smooth, wrong      the `probes` that are not at kinks, and those where the gradient is wrong
    got, expected      gradients and numeric slopes of the smooth probes
    findings           all findings of the trial, including this one
    """

    def __init__(
        self, name: str, trial: Trial, findings: list[Finding], probes: Probes, along: list[Probe]
    ) -> None:
        self.name, self.trial, self.findings = name, trial, findings
        self.gradient, self.probes, self.along = trial.claims[name], probes, along
        self.smooth = {i: probe for i, probe in probes.items() if probe.verdict != "kink"}
        self.wrong = {i: probe for i, probe in probes.items() if probe.verdict == "wrong"}
        self.got = np.array([probe.got for probe in self.smooth.values()])
        self.expected = np.array([probe.expected for probe in self.smooth.values()])

    def take(self, A: Array) -> Array:
        """Return the elements of A, broadcast to the gradient's shape, at the indices of `got`."""
        return np.broadcast_to(A, self.gradient.shape).reshape(-1)[list(self.smooth)]

    def entry(self) -> GradientEntry:
        smooth = [*self.smooth.values(), *(p for p in self.along if p.verdict != "kink")]
        relative = max((probe.relative for probe in smooth), default=0.0)
        absolute = max((probe.error for probe in smooth), default=0.0)
        shape, probed = self.gradient.shape, len(self.probes) + len(self.along)
        return GradientEntry(self.name, shape, probed, probed - len(smooth), relative, absolute)
