"""Classic mistakes, made in the solution of each lesson, are named in the right words."""

import re

import numpy as np
import pytest

from phitodeep.teach import EXERCISES, grade
from tests.rows import LONG, long
from tests.teach.lessons import brief, changed

SOFTMAX, MEAN = "softmax_cross_entropy", "g.mean(axis=-1, keepdims=True)"
DW, DB, DX = "dW[...] = rows.T @ d_rows", "d_rows.sum(axis=0)", "return dY @ self.W.T"
GATE = "return np.where(X > 0, dY, 0)"
P_T = "(np.exp(self.log_softmax(P)) - T) / N"
OVERFLOWS = "(np.exp(P) / np.exp(P).sum(axis=-1, keepdims=True) - T) / N"
NORM = "r * (g - through_mean - through_r)"
LENGTH = "return r * (g - X_hat * (g * X_hat).mean(axis=-1, keepdims=True))"
TAPS = "self.under(i, j, dX)[...] += dY @ self.W[i, j].T"
CROP = "return dX[:, p : dX.shape[1] - p, p : dX.shape[2] - p]"
CELL = "dc = dc_later + dh * o * (1 - tanh_c**2)"
BACK = "return da, da @ self.Wh.T, dc * f"
SOFT = "dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))"
LINK, MEET = "du = dh * (1 - h**2)", "return dY + through"
OWN_DA = "da[...] = (du * X).reshape(-1, X.shape[-1]).sum(axis=0)"
# Of the mistakes in a loop: a term, a factor, a symbol, and an order. A long run has the others.
LOOP = ("return da, 0 * dh, dc * f", "c_prev * f", "da_o = dc", "da_o, da_g]")
OWN_DX, SCALED = "return dY * s + du * self.a", "g = dY / X.shape[-1] ** 0.5"
MISTAKES = [  # lesson, the right code, the wrong code, the check that fails, and what it says
    ("neuron", "dW[...] = dY[0] * X[0]", "dW[...] = X[0]", "dW", "ignores dY"),
    ("neuron", "dW[...] = dY[0] * X[0]", "dW[...] = 2 * dY[0] * X[0]", "dW", "2 times what it"),
    ("neuron", "dW[...] = dY[0] * X[0]", "dW[...] = -dY[0] * X[0]", "dW", "Its sign is wrong"),
    ("neuron", "return dY * self.W", "return dY * X", "dX", "`X` instead of `W`"),
    ("neuron", "return dY * self.W", "return dY", "dX", "should have shape.*It is dY unchanged"),
    ("chain", LINK, "du = dh", "dX", "`du` is computed without the factor `1 - h²`"),
    ("chain", LINK, "du = dh * (1 - h)", "dX", "with `h` instead of `h²`"),
    ("chain", "return du * self.w", "return du", "dX", "without the factor `w`"),
    ("chain", "dh = dY * self.v", "dh = dY", "dX", "without the factor `v`"),
    ("two_paths", MEET, "return through", "dX", "without the term `dY`"),
    ("two_paths", MEET, "return dY", "dX", "dY unchanged"),
    ("two_paths", MEET, "return dY - through", "dX", r"`- through` instead of `\+ through`"),
    ("own_layer", OWN_DX, "return dY * s", "dX", r"without the term `\+ through`"),
    ("own_layer", OWN_DX, "return dY * s + du", "dX", "without the factor `a`"),
    ("own_layer", OWN_DA, OWN_DA.replace(" * X)", ")"), "da", "without the factor `X`"),
    ("own_layer", OWN_DA, OWN_DA.replace("sum", "mean"), "da", "the batch size.* too small"),
    ("own_layer", "* s * (1 - s)", "* (1 - s)", "dX", "without the factor `s`"),
    ("initial_weights", SCALED, "g = dY", "dX", "without the division by `√"),
    ("initial_weights", SCALED, SCALED.replace(" ** 0.5", ""), "dW", "`D` instead of `√"),
    ("initial_weights", SCALED, SCALED.replace("/", "*"), "dX", "the last axis.* too large"),
    ("dense", DW, f"{DW} / len(X)", "dW", "the batch size.* too small"),
    ("dense", DW, f"{DW} / len(rows)", "dW", r"\d \(the batch size.* Only the loss divides"),
    ("dense", DW, "self.grads['W'] = d_rows.T @ rows", "dW", "Is it transposed"),
    ("dense", DW, "dW += rows.T @ d_rows", "dW", r"with dW\[\.\.\.\] = and neither dW = nor \+="),
    ("dense", DW, "dW[...] = -rows.T @ d_rows", "dW", "Its sign is wrong"),
    ("dense", DW, "dW[...] = 2 * rows.T @ d_rows", "dW", "is 2 times what it should be"),
    ("dense", DW, "dW[...] = rows.T @ np.ones_like(d_rows)", "dW", "ignores dY"),
    ("dense", DW, "dW[...] = 0", "dW", "is 0 everywhere"),
    ("dense", DW, "pass", "dW", "All of it is NaN"),
    ("dense", DB, "d_rows.mean(axis=0)", "db", "the batch size.* too small"),
    ("dense", f"db[...] = {DB}", "self.grads['b'] = d_rows", "db", "not summed over the rows"),
    ("dense", f"db[...] = {DB}", f"self.grads['b'] = {DB[:-1]}, keepdims=True)", "db", "keepdims"),
    ("dense", DX, "return dY", "dX", "It is dY unchanged"),
    ("dense", DX, DX[:-2], "dX", r"matrix product.*\.T.*at the line `return dY @ self\.W`"),
    ("dense", DX, "return (dY @ self.W.T)[::-1]", "dX", "another order"),
    ("dense", DX, "dY *= 2\n        return dY @ self.W.T / 2", "side effects", "dY, in backward"),
    ("dense", DX, "return dY.astype(np.float64) @ self.W.T", "float32", "dX is float64"),
    ("dense", "rows = X.reshape(-1, X.shape[-1])", "rows = X", "rank 3", "matrix product"),
    ("relu", GATE, "return dY", "dX", "dY unchanged"),
    ("relu", GATE, "return np.where(X < 0, dY, 0)", "dX", "`X > 0` the wrong way round"),
    ("relu", GATE, "return (X > 0).astype(X.dtype)", "dX", "ignores dY"),
    ("relu", GATE, "return np.where(X > 0, X, 0)", "dX", "with X instead of dY"),
    ("relu", GATE, "dY[X <= 0] = 0\n        return dY", "side effects", "dY, in backward"),
    (SOFTMAX, P_T, P_T.removesuffix(" / N"), "dP", "the batch size.* too large"),
    (SOFTMAX, P_T, f"-{P_T}", "dP", "Its sign is wrong"),
    (SOFTMAX, P_T, P_T.replace(" - T", ""), "dP", "without the term `- q`"),
    (SOFTMAX, P_T, "(P - T) / N", "dP", "with `P` instead of `p`"),
    (SOFTMAX, P_T, f"{P_T} / N", "dP", "the batch size.* too small"),
    (SOFTMAX, P_T, f"{P_T} / P.shape[-1]", "dP", "the size of the last axis.* too small"),
    (SOFTMAX, P_T, OVERFLOWS, "large logits", "Did an exp overflow"),
    ("layer_norm", NORM, "r * (g - through_r)", "dX", "`- through_mu`.*through the mean"),
    ("layer_norm", NORM, "r * (g - through_mean)", "dX", "`- through_r`"),
    ("layer_norm", NORM, f"{NORM[:-2]}mean)", "dX", "`through_mu` instead of `through_r`"),
    ("layer_norm", NORM, "r * g", "dX", "as `g` alone, without the terms after it"),
    ("layer_norm", NORM, NORM[4:], "dX", r"factor `r` \(1 / the standard deviation\)"),
    ("layer_norm", NORM, "r * (g - through_mean + through_r)", "dX", r"`\+ through_r` instead"),
    ("layer_norm", "g = self.gamma * dY", "g = dY", "dX", "without the factor `\u03b3`"),
    ("layer_norm", "(dY * X_hat).sum", "dY.sum", "dgamma", "without the factor `X\u0302`"),
    ("layer_norm", "(dY * X_hat).sum", "(self.gamma * dY * X_hat).sum", "dgamma", "gamma once too"),
    ("layer_norm", MEAN, MEAN.replace("mean", "sum"), "dX", "by `D`"),
    ("layer_norm", MEAN, "g.mean()", "dX", "one mean of the whole batch"),
    ("layer_norm", "rows = tuple(range(dY.ndim - 1))", "rows = 0", "rank 3", "could not broadcast"),
    ("layer_norm", "+ self.eps", "+ 1e-5", "a larger eps", "should be"),
    ("rms_norm", LENGTH, "return r * g", "dX", "without the term `- through_r`"),
    ("rms_norm", LENGTH, LENGTH[:7] + LENGTH[11:], "dX", "without the factor `r`"),
    ("conv2d", TAPS, TAPS.replace("+=", "="), "dX", r"with = instead of \+="),
    ("conv2d", TAPS, TAPS.replace("i, j]", "-1 - i, -1 - j]"), "dX", "`W` reversed along i and j"),
    ("conv2d", CROP, "return dX", "padding", "shape"),
    ("conv2d", "dY.sum(axis=(0", "dY.mean(axis=(0", "db", "a mean instead of a sum"),
    ("lstm", CELL, CELL.replace("dc_later + ", ""), "dX", "the term `dc_later`.*step t . 1"),
    ("lstm", CELL, "dc = dc_later + dh * o", "dWx", "`dc_t` .* without the factor `1 - tanh_c²`"),
    ("lstm", CELL, CELL.replace("**2", ""), "dX", "`tanh_c` instead of `tanh_c²`"),
    ("lstm", BACK, BACK.replace("dc * f", "dc"), "dX", "without the factor `f_t`.*forget gate"),
    ("lstm", BACK, "return da, 0 * dh, dc * f", "dWh", r"without the term `\+ dh_later`"),
    ("lstm", "dc * c_prev", "dc * (f * c_prev + i * g)", "dX", "`c_t` instead of `c_prev`"),
    ("lstm", "c_prev * f * (1 - f)", "c_prev * f", "dX", "without the factor `1 - f_t`"),
    ("lstm", "da_o = dh", "da_o = dc", "db", "`dc_t` instead of `dh_t`"),
    ("lstm", "da_g, da_o]", "da_o, da_g]", "dX", "`da_g` and `da_o` swapped"),
    ("attention", "dS / D**0.5", "dS", "dX", "without the division by `√"),
    ("attention", SOFT, "dS = P * dP", "dX", "without the term `- s`"),
    ("attention", SOFT, SOFT.replace("P * (dP -", "(dP -"), "dWqkv", "`dS` .* the factor `P`"),
    ("attention", SOFT, SOFT.replace("(dP * P)", "dP"), "dX", "`s` is .* without the factor `P`"),
    ("attention", "dS.swapaxes(1, 2) @ Q", "dS @ Q", "dWqkv", "`dK` .* with `dQK` transposed"),
    ("attention", "dV = P.swapaxes(1, 2)", "dV = P", "dX", "`dV` .* with `P` transposed"),
]


@pytest.mark.parametrize(
    ("name", "right", "wrong", "part", "words"),
    [
        pytest.param(*row, id=f"{row[0]}: {row[2].strip()[:60]}", marks=long if slow else ())
        for row in MISTAKES
        for slow in [row[0] == "lstm" and row[2] not in LOOP]
    ],
)
def test_a_mistake_is_named(name, right, wrong, part, words):
    kind = changed(name, right, wrong)
    for seed in (0, 11)[: 1 + LONG]:
        found = grade(kind, name if LONG else brief(name, part), seed, hints=1)
        assert not found.passed
        verdict = next(v for v in found.verdicts if v.part.startswith(part))
        assert not verdict.passed
        assert re.search(words, " ".join([verdict.words, verdict.hints[0]])), verdict
        assert found["forward"].passed


def test_a_mistake_must_explain_all_batches_and_two_are_both_named():
    assert {name for name, *_ in MISTAKES} == set(EXERCISES)
    first = EXERCISES["layer_norm"].cases(np.random.default_rng(3))[0].shape
    wrong = f"r * (g - (through_r if dY.shape == {first} else through_mean))"
    verdict = grade(changed("layer_norm", NORM, wrong), "layer_norm", 3)["dX"]
    assert not verdict.passed
    assert verdict.hints[0] == ""
    source = f"{DW} / len(X)"
    kind = changed("dense", f"{DW}\n        db[...] = {DB}", f"{source}\n        db[...] = -{DB}")
    found = grade(kind, "dense", 2)
    assert "the batch size" in found["dW"].hints[0]
    assert "Its sign is wrong" in found["db"].hints[0]
    assert found["dX"].passed


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        pytest.param("attention", SOFT, "dS = P * (1 - P) * dP", marks=long),
        ("layer_norm", NORM, "r * (g - np.sin(through_mean))"),
        ("dense", DX, "return dY @ (self.W.T + 0.1)"),
    ],
)
def test_an_unknown_mistake_gets_no_name(name, right, wrong):
    verdict = grade(changed(name, right, wrong), brief(name), 5)["dX"]
    assert not verdict.passed
    assert "should be" in verdict.words
    assert verdict.hints[0] == ""
