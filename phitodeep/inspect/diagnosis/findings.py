"""Findings about a model: what is wrong, the number that shows it, why, and what to do."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from phitodeep.core.table import Shown, facts
from phitodeep.errors import first_few

WIDTH = 88  # characters of a line of the report


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    name        of the symptom, such as "dead units"
    path        where: of a layer or a parameter; "" for the model as a whole
    evidence    a sentence with the number that was measured, and the threshold
    cause       what usually causes it
    remedy      what to do
    value       the number that was measured
    limit       the threshold that it crosses
    """

    name: str
    path: str
    evidence: str
    cause: str
    remedy: str
    value: float
    limit: float

    def __str__(self) -> str:
        parts = {"evidence": self.evidence, "cause": self.cause, "remedy": self.remedy}
        wrapped = {name: textwrap.fill(text, WIDTH - 13) for name, text in parts.items()}
        where = f" at {self.path}" if self.path else ""
        return f"{self.name}{where}\n{textwrap.indent(facts(wrapped), '   ')}"


class Measure(NamedTuple):
    """A measured value, and the words for it."""

    path: str
    value: float
    text: str


Measuring = Callable[[Any], Iterable[Measure]]  # takes the evidence; it may raise `NotChecked`


class NotChecked(Exception):
    """A symptom raises it, with the reason, if its rule does not apply to a model."""


class Limit(NamedTuple):
    """A threshold of one symptom."""

    value: float
    above: bool  # True: a finding lies above the value, otherwise below it

    def crossed(self, measured: float) -> bool:
        return measured > self.value if self.above else measured < self.value

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.value:g}"


class Symptom(NamedTuple):
    """A row of symptoms.toml, and the function that measures it.

    limit      from which value on it is a finding
    source     where the rule comes from: see phitodeep/inspect/diagnosis/symptoms.py
    meaning    what is measured, in words
    """

    name: str
    measure: Measuring
    limit: Limit
    source: str
    meaning: str
    cause: str
    remedy: str

    def judge(self, evidence: Any) -> Finding | None:
        """Return the worst of the measures that cross the threshold, if there are any."""
        limit = self.limit
        crossed = [m for m in self.measure(evidence) if limit.crossed(m.value)]
        if not crossed:
            return None
        worst = (max if limit.above else min)(crossed, key=lambda m: m.value)
        others = [m.path for m in crossed if m is not worst]
        also = f"; also at {first_few(others, 3)}" if others else ""
        words = f"{worst.text} (a finding {limit}){also}", self.cause, self.remedy
        return Finding(self.name, worst.path, *words, worst.value, limit.value)


ROWS = tomllib.loads(Path(__file__).with_name("symptoms.toml").read_text("utf-8"))
LIMITS = {
    name: Limit(row.pop("above"), True) if "above" in row else Limit(row.pop("below"), False)
    for name, row in ROWS.items()
}


def symptoms(measures: Mapping[str, Measuring]) -> tuple[Symptom, ...]:
    """The rows with these names."""
    return tuple(Symptom(name, f, LIMITS[name], **ROWS[name]) for name, f in measures.items())


class Diagnosis(Shown, tuple[Finding, ...]):
    """The findings about a model, in the order of the checks; there are none if it is healthy.

    checked    the names of the symptoms that were looked for
    skipped    why the others were not, by name
    """

    checked: tuple[str, ...]
    skipped: dict[str, str]

    def __new__(
        cls, findings: Iterable[Finding], checked: Iterable[str], skipped: dict[str, str]
    ) -> Self:
        made = super().__new__(cls, findings)
        made.checked, made.skipped = tuple(checked), skipped
        return made

    @property
    def healthy(self) -> bool:
        return not self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings."""
        return tuple(finding.name for finding in self)

    def _head(self) -> str:
        if not self.checked:
            return "nothing was checked"
        if self.healthy:
            return f"healthy: {len(self.checked)} checks found nothing"
        plural = "s" if len(self) > 1 else ""
        return f"{len(self)} finding{plural} in {len(self.checked)} checks"

    def __str__(self) -> str:
        why: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            why.setdefault(reason, []).append(name)
        skipped = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in why.items())
        named = {"checked": ", ".join(self.checked), "not checked": skipped}
        checks = {name: textwrap.fill(text, WIDTH - 13) for name, text in named.items() if text}
        numbered = [f"{i}. {finding}" for i, finding in enumerate(self, 1)]
        return "\n\n".join([self._head(), *numbered, *([facts(checks)] if checks else [])])


def examine(symptoms: Iterable[Symptom], evidence: Any) -> Diagnosis:
    """Look for each of the symptoms in the evidence."""
    findings, checked, skipped = [], [], {}
    for symptom in symptoms:
        try:
            findings.append(symptom.judge(evidence))
            checked.append(symptom.name)
        except NotChecked as reason:
            skipped[symptom.name] = str(reason)
    return Diagnosis(filter(None, findings), checked, skipped)
