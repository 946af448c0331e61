"""The rule of each optimizer as data, and what its page says.

The lines of a rule are run by `run_rule` and typeset from the same code, and a test holds them
equal to the optimizer itself. A line may read the parameters theta, their gradient g, the rate
alpha, the step t (from 1), the settings named in `names`, and what a line of this or of an earlier
step computed, which is 0 before the first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.optimization.base import Optimizer
from phitodeep.optimization.muon import orthogonal
from phitodeep.optimization.optimizers import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    Muon,
    Nadam,
    RMSProp,
)
from phitodeep.optimization.rules import (
    adadelta,
    adagrad,
    adam,
    lion,
    nadam,
    rmsprop,
    sgd,
)


class Line(NamedTuple):
    """One line of a rule: `symbol` becomes the value of `code`; words replace its formula."""

    symbol: str
    code: str
    words: str = ""


class Rule(NamedTuple):
    """A rule under certain options.

    lines     in the order in which they run
    options   those of the optimizer for which it is the rule
    start     what a symbol is before the first step, if not 0
    """

    title: str
    lines: tuple[Line, ...]
    options: Mapping[str, Any] = {}
    start: Mapping[str, float] = {}


class Facts(NamedTuple):
    """What the page of an optimizer says.

    names     the symbols of its settings, by argument
    rates     learning rates for the picture: on the narrow valley, and on Rosenbrock's
    code      functions that are shown in addition to `update`
    """

    cls: type[Optimizer]
    question: str
    answer: str
    when: str
    names: Mapping[str, str]
    rules: tuple[Rule, ...]
    rates: tuple[Sequence[float], Sequence[float]]
    code: tuple[Any, ...]
    siblings: tuple[str, ...]


def run_rule(rule: Rule, facts: Facts, optimizer: Any, theta: Any, gradients: Any) -> Iterator[Any]:
    """Apply a rule to theta for each gradient in turn; yield theta after each step."""
    symbols: dict[str, Any] = {line.symbol: 0.0 for line in rule.lines} | dict(rule.start)
    symbols |= {symbol: getattr(optimizer, name) for name, symbol in facts.names.items()}
    symbols |= {"np": np, "orthogonal": orthogonal, "theta": theta, "alpha": optimizer.alpha}
    for t, g in enumerate(gradients, 1):
        symbols |= {"t": t, "g": g}
        for line in rule.lines:
            symbols[line.symbol] = eval(line.code, symbols)
        yield symbols["theta"]


def _powers(low: float, count: int = 7, per_decade: int = 4) -> list[float]:
    """Learning rates at equal factors, rounded to two digits."""
    return [float(f"{low * 10 ** (i / per_decade):.2g}") for i in range(count)]


MEAN = Line("m", "beta_1 * m + (1 - beta_1) * g")
SQUARES = Line("v", "beta_2 * v + (1 - beta_2) * g ** 2")
UNBIASED = (
    Line("m_hat", "m / (1 - beta_1 ** t)"),
    Line("v_hat", "v / (1 - beta_2 ** t)"),
    Line("theta", "theta - alpha * m_hat / (np.sqrt(v_hat) + eps)"),
)
BETAS = {"beta1": "beta_1", "beta2": "beta_2", "eps": "eps"}
DECAYING = Line("v", "rho * v + (1 - rho) * g ** 2")

FACTS = (
    Facts(
        SGD,
        "What is the simplest step that follows the gradient?",
        "Across the narrow side of the valley the gradient is steep, so the path zigzags; along "
        "it, it crawls. A larger rate speeds up the crawl until the zigzag explodes. Momentum sums "
        "the steps: the zigzags cancel, and the crawl adds up.",
        "With momentum 0.9 and a schedule, for convolutional networks, where it often generalizes "
        "well; without momentum, to see the gradient itself. It needs inputs and layers of similar "
        "scale, because every parameter has the same rate.",
        {"momentum": "mu"},
        (
            Rule("Plain", (Line("theta", "theta - alpha * g"),)),
            Rule(
                "With momentum",
                (Line("v", "mu * v + g"), Line("theta", "theta - alpha * v")),
                {"momentum": 0.9},
            ),
            Rule(
                "With Nesterov's momentum",
                (Line("v", "mu * v + g"), Line("theta", "theta - alpha * (g + mu * v)")),
                {"momentum": 0.9, "nesterov": True},
            ),
        ),
        ((0.005, 0.01, 0.02, 0.03, 0.0375, 0.0395, 0.0405), _powers(1e-4)),
        (sgd,),
        ("Adam", "Muon", "Lion"),
    ),
    Facts(
        Adam,
        "What if every parameter had its own learning rate?",
        "Each step is divided by the recent size of that parameter's gradient, so the steep and "
        "the flat direction advance equally fast. The running mean gives it momentum: it "
        "overshoots and comes back.",
        "The default of phitodeep, and a good first choice for nearly everything. Its steps have "
        "about the size alpha, whatever the scale of the loss.",
        BETAS,
        (Rule("", (MEAN, SQUARES, *UNBIASED)),),
        (_powers(0.03), _powers(0.005)),
        (adam,),
        ("AdamW", "Nadam", "RMSProp"),
    ),
    Facts(
        AdamW,
        "How should weights decay if steps are rescaled?",
        "The path is Adam's, but each step also shrinks the weights by the same factor. An L2 "
        "penalty would be divided by the gradient's size, and would hardly touch the weights with "
        "large gradients.",
        "For transformers, and wherever Adam overfits. Decay applies to weight matrices, not to "
        "biases or norms.",
        BETAS | {"weight_decay": "decay"},
        (
            Rule(
                "",
                (
                    Line("theta", "(1 - alpha * decay) * theta"),
                    MEAN,
                    SQUARES,
                    *UNBIASED,
                ),
            ),
        ),
        (_powers(0.03), _powers(0.005)),
        (),
        ("Adam", "Lion", "Muon"),
    ),
    Facts(
        Nadam,
        "Can Adam look one step ahead?",
        "The step uses the momentum that the next step will have, so it reacts to the newest "
        "gradient sooner than Adam. The momentum itself warms up over the first steps.",
        "Instead of Adam, where training is noisy at the start; the difference is often small.",
        BETAS | {"psi": "psi"},
        (
            Rule(
                "",
                (
                    Line("mu_now", "beta_1 * (1 - 0.5 * 0.96 ** (t * psi))"),
                    Line("mu_next", "beta_1 * (1 - 0.5 * 0.96 ** ((t + 1) * psi))"),
                    Line("M", "M * mu_now"),
                    MEAN,
                    SQUARES,
                    Line("u", "mu_next * m / (1 - M * mu_next) + (1 - mu_now) * g / (1 - M)"),
                    Line("theta", "theta - alpha * u / (np.sqrt(v / (1 - beta_2 ** t)) + eps)"),
                ),
                start={"M": 1.0},
            ),
        ),
        (_powers(0.03), _powers(0.005)),
        (nadam,),
        ("Adam", "RMSProp"),
    ),
    Facts(
        RMSProp,
        "What if a step forgets how large the gradient used to be?",
        "Each gradient is divided by the root of a running mean of its squares. Near the bottom "
        "the steps do not shrink, so a large rate ends in a jitter.",
        "For recurrent networks and for reinforcement learning, where the scale of the gradients "
        "keeps changing.",
        {"rho": "rho", "eps": "eps", "momentum": "mu"},
        (
            Rule("Plain", (DECAYING, Line("theta", "theta - alpha * g / (np.sqrt(v) + eps)"))),
            Rule(
                "With momentum",
                (
                    DECAYING,
                    Line("b", "mu * b + g / (np.sqrt(v) + eps)"),
                    Line("theta", "theta - alpha * b"),
                ),
                {"momentum": 0.9},
            ),
        ),
        (_powers(0.01), _powers(0.001)),
        (rmsprop,),
        ("Adam", "Adagrad", "Adadelta"),
    ),
    Facts(
        Adagrad,
        "Should rare features learn faster?",
        "The gradient is divided by the root of the sum of all its squares so far. The sum only "
        "grows, so the steps only shrink: it starts boldly and slows down by itself.",
        "For sparse data, such as bags of words, where a rare feature keeps its large steps.",
        {"eps": "eps"},
        (
            Rule(
                "",
                (
                    Line("v", "v + g ** 2"),
                    Line("theta", "theta - alpha * g / (np.sqrt(v) + eps)"),
                ),
            ),
        ),
        (_powers(0.056), _powers(0.063)),
        (adagrad,),
        ("RMSProp", "Adadelta"),
    ),
    Facts(
        Adadelta,
        "Can an optimizer find its own learning rate?",
        "The step is the gradient times the ratio of two running sizes: that of past steps, and "
        "that of past gradients. The first steps are tiny, because there is no past step yet.",
        "When you do not want to choose a learning rate: 1 is the rule as published.",
        {"rho": "rho", "eps": "eps"},
        (
            Rule(
                "",
                (
                    DECAYING,
                    Line("u", "g * np.sqrt(d + eps) / np.sqrt(v + eps)"),
                    Line("theta", "theta - alpha * u"),
                    Line("d", "rho * d + (1 - rho) * u ** 2"),
                ),
            ),
        ),
        (_powers(1.8), _powers(0.3)),
        (adadelta,),
        ("RMSProp", "Adagrad"),
    ),
    Facts(
        Lion,
        "What if only the direction of each gradient counts?",
        "Every parameter moves by exactly alpha, up or down. The path therefore runs along "
        "diagonals, and close to the bottom it steps back and forth.",
        "For large models, if memory is short: it keeps one array for each parameter, and Adam "
        "keeps two. Use about a tenth of Adam's learning rate.",
        {"beta1": "beta_1", "beta2": "beta_2"},
        (
            Rule(
                "",
                (
                    Line("theta", "theta - alpha * np.sign(beta_1 * m + (1 - beta_1) * g)"),
                    Line("m", "beta_2 * m + (1 - beta_2) * g"),
                ),
            ),
        ),
        (_powers(0.02), _powers(0.003)),
        (lion,),
        ("AdamW", "SGD"),
    ),
    Facts(
        Muon,
        "What if a matrix moved equally far in all of its directions?",
        "A single point is not a matrix, so here x and y are the diagonal of a 2 x 2 matrix. The "
        "step makes all singular values of the momentum nearly equal, so both directions "
        "advance alike.",
        "For the hidden matrices of transformers and MLPs; vectors, embeddings and the last layer "
        "are updated by Adam.",
        {"momentum": "mu", "ns_steps": "n"},
        (
            Rule(
                "A hidden matrix of r rows and k columns",
                (
                    Line("M", "mu * M + g"),
                    Line("B", "g + mu * M"),
                    Line("O", "orthogonal(B, n)", "U V\u1d40, approximately, for B = U S V\u1d40"),
                    Line(
                        "c",
                        "np.sqrt(np.maximum(1, theta.shape[1] / theta.shape[0]))",
                        "the larger of 1 and \u221a(k / r)",
                    ),
                    Line("theta", "theta - alpha * c * O"),
                ),
            ),
        ),
        (_powers(0.05), _powers(0.005)),
        (orthogonal,),
        ("SGD", "Adam", "AdamW"),
    ),
    Facts(
        LBFGS,
        "Can a step know how the valley curves?",
        "From a few past gradients it estimates the curvature, and so it jumps along the valley "
        "instead of down its walls. Its step is one such search: the path shows every point at "
        "which the search asked for the loss and its gradient.",
        "For small models and data that fits into one batch (`phitodeep[lbfgs]`): a few epochs "
        "replace hundreds.",
        {},
        (
            Rule(
                "",
                (
                    Line("theta_best", "theta_best", "what SciPy's L-BFGS-B returns, from \u03b8"),
                    Line("theta", "theta + alpha * (theta_best - theta)"),
                ),
            ),
        ),
        ((1.0,), (1.0,)),
        (),
        ("SGD", "Adam"),
    ),
)
