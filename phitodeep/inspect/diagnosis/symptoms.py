"""The table of symptoms that `Sequential.diagnose` looks for, with their causes and remedies."""

from __future__ import annotations

from typing import Any

from phitodeep.inspect.diagnosis import measures
from phitodeep.inspect.diagnosis.evidence import Evidence
from phitodeep.inspect.diagnosis.findings import Diagnosis, Symptom, examine
from phitodeep.training.objective import Trainable

_SCALE = "Standardise X (subtract the mean of each feature, divide by its standard deviation); "
_SCALE += "divide images by 255."
_LABELS = "Check that X and y belong together, make the model larger, raise the learning rate, "
_LABELS += "and run check_gradients on layers of your own."

SYMPTOMS = (
    Symptom(
        "not finite",
        measures.not_finite,
        "Weights or inputs that are too large, or a logarithm, root or division at 0.",
        "Use a loss that takes logits, lower the learning rate, and look at that layer's input.",
        "[T]",
    ),
    Symptom(
        "inputs off centre",
        measures.inputs_off_centre,
        "The features are not centred, so that the gradients of a unit's weights share a sign.",
        _SCALE,
        "[C]",
    ),
    Symptom(
        "inputs too spread",
        measures.inputs_too_spread,
        "The features are large, so that no learning rate suits all weights.",
        _SCALE,
        "[C]",
    ),
    Symptom(
        "inputs too narrow",
        measures.inputs_too_narrow,
        "The features hardly differ from sample to sample, so that units hardly react to them.",
        _SCALE,
        "[C]",
    ),
    Symptom(
        "start loss",
        measures.start_loss,
        "The last layer's initial weights are too large, or its bias is far from the targets.",
        "Use smaller initial weights in the last layer; set its bias to the mean of y, or "
        "standardise y.",
        "[K], [C]",
    ),
    Symptom(
        "cannot overfit",
        measures.cannot_overfit,
        "Wrong labels or a wrong loss, too little capacity, a poor learning rate, or a wrong "
        "gradient.",
        _LABELS,
        "[K], [C]",
    ),
    Symptom(
        "input cut off",
        measures.input_cut_off,
        "A layer multiplies by 0, all units of a layer are dead, or a layer of your own drops X.",
        "Follow X through the layers, and look for the first Y that is the same for all samples.",
        "[K]",
    ),
    Symptom(
        "input unused",
        measures.input_unused,
        "The labels do not belong to X, or the model has learnt only how frequent they are.",
        "Check how X and y are shuffled; train longer; compare with a model that sees zeros.",
        "[K]",
    ),
    Symptom(
        "samples mix",
        measures.samples_mix,
        "A layer of your own reshapes, transposes or averages over the batch axis.",
        "Keep axis 0 for the samples; use Permute and Reshape, which do so.",
        "[K]",
    ),
    Symptom(
        "reads ahead",
        measures.reads_ahead,
        "A layer sees the token that it should predict: attention without causal=True, a "
        "Bidirectional layer, or a convolution with padding on both sides.",
        "Write causal=True, or remove the layer.",
        "[K]",
    ),
    Symptom(
        "updates too large",
        measures.updates_too_large,
        "The learning rate is too high for these weights.",
        "Lower the learning rate until a step changes W by about 1e-3 of its size; warm up.",
        "[C]",
    ),
    Symptom(
        "updates too small",
        measures.updates_too_small,
        "The learning rate is too low, or no gradient reaches these weights.",
        "Raise the learning rate until a step changes W by about 1e-3 of its size: see "
        "model.find_alpha.",
        "[C]",
    ),
    Symptom(
        "dead units",
        measures.dead_units,
        "A learning rate that was too high, or initial weights or biases that are too negative.",
        "Lower the learning rate, use He's initial weights, or use LeakyReLU.",
        "[C]",
    ),
    Symptom(
        "saturated units",
        measures.saturated_units,
        "The weights or the inputs are too large, so that the slope is almost 0.",
        "Use smaller initial weights (Xavier), or a norm before the activation.",
        "[M]",
    ),
    Symptom(
        "vanishing gradients",
        measures.fading,
        "Each layer shrinks the gradient: small weights, saturated units, many layers.",
        "Use He's initial weights, residual connections or norms.",
        "[G]",
    ),
    Symptom(
        "exploding gradients",
        measures.fading,
        "Each layer enlarges the gradient: large weights, many layers.",
        "Use He's initial weights, residual connections or norms, and warm up the learning rate.",
        "[G]",
    ),
    Symptom(
        "twin units",
        measures.twin_units,
        "The initial weights are equal, so that units compute, and learn, the same.",
        "Draw the initial weights at random: He, Xavier, Normal.",
        "",
    ),
    Symptom(
        "penalty rules",
        measures.penalty_rules,
        "l1, l2 or weight_decay is so strong that the weights shrink rather than fit the data.",
        "Divide it by 10.",
        "[C]",
    ),
)


def diagnose(model: Trainable, X: Any, y: Any, **options: Any) -> Diagnosis:
    """Look for all symptoms, on copies of the model: see `Sequential.diagnose`."""
    return examine(SYMPTOMS, Evidence(model, X, y, **options))
