"""Grading of layers that students write: a score, verdicts in words, and hints.

    found = grade(Dense, "dense", seed=7)
    print(found)              what is right, what is wrong, where, by how much, and probably why
    assert found.passed

The table `EXERCISES` lists what can be graded. An `Exercise` of your own works with every layer and
loss that has a derivation.
"""

from phitodeep.teach.exercises import EXERCISES, Case, Exercise
from phitodeep.teach.grading import grade
from phitodeep.teach.report import Grade, Verdict

__all__ = ["EXERCISES", "Case", "Exercise", "Grade", "Verdict", "grade"]
