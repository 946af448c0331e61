"""The thresholds of a diagnosis: what is measured, and from which value on it is a finding.

`tools/calibrate_diagnosis.py` starts with values of the literature, which the comments name, and
replaces those that do not separate healthy models from sick ones; `docs/_diagnosis.md` shows both.
A test compares this table with the script's output.

Sources: [K] Karpathy 2019, "A recipe for training neural networks"; [C] Stanford CS231n, "Neural
networks part 3"; [G] Godbole et al. 2023, "Deep learning tuning playbook"; [M] Karpathy 2022,
"makemore part 3"; [T] TensorBoard, "Debugger V2".
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """A threshold of one symptom."""

    value: float
    above: bool  # True: a finding lies above the value, otherwise below it
    meaning: str  # what is measured

    def crossed(self, measured: float) -> bool:
        return measured > self.value if self.above else measured < self.value

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.value:g}"


LIMITS = {
    "not finite": Limit(0, True, "values of an array that are NaN or infinite"),
    "inputs off centre": Limit(3, True, "the largest absolute mean of a feature of X"),  # [C]
    "inputs too spread": Limit(10, True, "the largest standard deviation of a feature of X"),
    "inputs too narrow": Limit(0.1, False, "the standard deviation of X over all its features"),
    "start loss": Limit(0.84, True, "|L / L of a guess - 1| before training"),  # [K], [C]
    "cannot overfit": Limit(0.05, True, "the share of the loss that is left on 20 samples"),  # [K]
    "input cut off": Limit(1e-6, False, "the change of P if the samples of X are shuffled"),  # [K]
    "input unused": Limit(0.16, False, "1 - L / L with the samples of X shuffled"),  # [K]
    "samples mix": Limit(1e-6, True, "the share of dX of sample i in other samples"),  # [K]
    "reads ahead": Limit(1e-6, True, "the share of dX of step t in later steps"),  # [K]
    "updates too large": Limit(0.34, True, "|dW step| / |W|"),  # [C]
    "updates too small": Limit(1e-5, False, "|dW step| / |W|"),  # [C]
    "dead units": Limit(0.5, True, "the share of units that are 0 for every sample"),  # [C]
    "saturated units": Limit(0.43, True, "the share of values within 3 % of a bound"),  # [M]
    "vanishing gradients": Limit(1e-3, False, "|dY| of the first layer / |dY| of the last"),
    "exploding gradients": Limit(1e3, True, "|dY| of the first layer / |dY| of the last"),
    "twin units": Limit(0, True, "the share of units with the weights and gradient of another"),
    "penalty rules": Limit(1, True, "|gradient of the penalties| / |gradient of the loss|"),  # [C]
    "spikes": Limit(6.1, True, "the largest |g| / the median of the 100 steps before"),  # [G]
    "clipped too often": Limit(0.5, True, "the share of steps that are clipped"),  # [G]
    "validation periodic": Limit(0.5, True, "the autocorrelation of the test loss"),
    "validation rising": Limit(0.1, True, "the last test loss / the lowest - 1"),
}
