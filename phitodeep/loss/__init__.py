"""Loss functions: a value to minimise, and its exact gradient with respect to the predictions.

Every loss is a weighted mean: the sum of its terms, divided by `total`. Regression and binary
losses have one term per element. Cross-entropies and losses that compare rows have one term per
position, which is an index into all axes but the last. A sample's weight multiplies each of its
terms, and is added to the divisor once per term. An explicit `total` replaces the divisor, so that
the losses of the parts of a batch add up to the loss of the whole batch.
"""

from phitodeep.core.checks import snake_case
from phitodeep.loss.base import *
from phitodeep.loss.binary import *
from phitodeep.loss.categorical import *
from phitodeep.loss.divergence import *
from phitodeep.loss.regression import *

LOSSES: dict[str, type[Loss]] = {  # by the names that models and builders accept, such as "huber"
    snake_case(name): kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Loss) and kind not in (Loss, Elementwise)
}
LOSSES |= {"mse": MeanSquaredError, "mae": MeanAbsoluteError}
# Type checkers follow the stars.
globals()["__all__"] = sorted(name for name, value in vars().items() if isinstance(value, type))
