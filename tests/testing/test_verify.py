"""`verify` passes what is right, finds what is broken, and covers all that is public."""

import inspect

import numpy as np
import pytest

from phitodeep import inference, layers, loss
from phitodeep.core.version import __version__
from phitodeep.layers import Dense, Layer, ReLU, Tanh
from phitodeep.loss import Loss, MeanSquaredError
from phitodeep.optimization.optimizers import OPTIMIZERS, SGD
from phitodeep.testing import references, verification, verify
from phitodeep.testing.examples import EXAMPLES, TOKENS
from phitodeep.testing.references import Pair, compare, construct
from tests import rows

CHECKS = list(verification._checks())


@pytest.fixture(scope="module")
def report():
    """In a short run, the first check of each kind for twelve layers, and all other classes."""
    layers = {type(make()).__name__ for make, *_ in rows.KINDS}
    first = {(kind, name, check.func): (kind, name, check) for kind, name, check in CHECKS[::-1]}
    with pytest.MonkeyPatch.context() as patch:
        short = [row for row in first.values() if row[0] != "layer" or row[1] in layers]
        checks = CHECKS if rows.LONG else short
        patch.setattr(verification, "_checks", lambda: checks)
        return verify(verbose=False)


def verified(monkeypatch, *names):
    monkeypatch.setattr(verification, "_checks", lambda: [c for c in CHECKS if c[1] in names])
    return verify(verbose=False)


def test_everything_passes_and_nothing_is_left_out(report):
    assert report.passed, str(report)
    assert report.faults == []
    assert {row.verdict for row in report.rows} == {"ok"}
    assert sum(row.checks for row in report.rows) == len(CHECKS) or not rows.LONG

    def public(module, base):
        found = (getattr(module, name) for name in module.__all__)
        return {c.__name__ for c in found if inspect.isclass(c) and issubclass(c, base)}

    assert {(kind, name) for kind, name, _ in CHECKS} == {
        *(("layer", name) for name in public(layers, Layer) - {"Layer", "Swish"}),
        *(("loss", name) for name in public(loss, Loss) - {"Loss", "Elementwise"}),
        *(("optimizer", kind.__name__) for kind in OPTIMIZERS.values() if kind.__name__ != "LBFGS"),
    }
    cases = [len(kind.cases()) for kind in references.KINDS.values()]
    slopes = len(references.loss_cases())
    assert len(CHECKS) == len(EXAMPLES) + len(TOKENS) + slopes + sum(cases)
    for row in report.rows:
        assert (row.gradient is None) == (row.kind == "optimizer"), row
        assert row.differences.keys() in (set(), {"float64", "float32"})
        if row.differences:
            assert row.differences["float64"] < 1e-12
            assert row.differences["float32"] < 1e-4
    assert sum(bool(row.differences) for row in report.rows) > (75 if rows.LONG else 30)
    assert all(0 < (row.gradient or 0) < 1e-7 for row in report.rows if row.kind == "layer")
    assert report.machine["NumPy"] == np.__version__
    assert report.machine["kernels"] in ("NumPy", "compiled by Numba")
    assert "threads: " in report.machine["BLAS"]
    text = str(report)
    assert f"NumPy      {np.__version__}" in text
    assert report.machine["phitodeep"] == __version__
    count = sum(row.checks for row in report.rows)
    assert f"All {count} checks of {len(report.rows)} classes passed in " in text.split("\n")[-1]


@pytest.mark.parametrize("terminal", [False, True])
def test_it_prints_the_report_with_progress_and_colours_in_a_terminal(
    terminal, monkeypatch, capsys
):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR", raising=False)
    verified(monkeypatch, "Dense")
    assert capsys.readouterr() == ("", "")
    report = verify()
    out, err = capsys.readouterr()
    assert ("\x1b[32mok\x1b[0m" in out.replace(" ", "")) == ("Verifying" in err) == terminal
    assert terminal or (out, err.strip()) == (f"{report}\n", "")


def changed(method, change):
    return lambda *args, **kwargs: change(method(*args, **kwargs))


def test_a_wrong_backward_fails_also_of_a_tied_weight_and_a_bug_is_raised(monkeypatch):
    monkeypatch.setattr(Tanh, "backward", changed(Tanh.backward, lambda dX: 1.001 * dX))
    report = verified(monkeypatch, "Tanh", "ReLU")
    assert not report.passed
    assert {row.name: row.verdict for row in report.rows} == {"ReLU": "ok", "Tanh": "FAILED"}
    text = str(report)
    assert text.endswith("FAILED: Tanh. Please report this, with the table above.")
    assert "Tanh() has wrong gradients.\n  dX[" in text
    assert "Tanh() | rank 2 in float64: dX differs from the expected numbers by " in text
    backward = layers.TiedDense.backward

    def wrong(self, dY):
        dX = backward(self, dY)
        self.grads["W"] *= 1.001
        return dX

    monkeypatch.setattr(layers.TiedDense, "backward", wrong)
    report = verified(monkeypatch, "Chain")
    assert any("TiedDense(" in fault for fault in report.faults)
    with inference(), np.errstate(all="raise"):
        assert verified(monkeypatch, "AvgPool1D", "Softmax").passed

    def crash(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(ReLU, "backward", crash)
    with pytest.raises(ZeroDivisionError):
        verified(monkeypatch, "ReLU")


def test_forward_passes_that_differ_from_pytorch_or_change_the_dtype_fail(monkeypatch):
    """Its gradient is right: only the stored numbers tell."""
    monkeypatch.setattr(Dense, "forward", changed(Dense.forward, lambda Y: Y + 1e-3))
    (row,) = verified(monkeypatch, "Dense").rows
    assert row.verdict == "FAILED"
    assert {fault.partition(": ")[2][:9] for fault in row.faults} == {"Y differs"}
    assert row.differences["float64"] == pytest.approx(1e-3, rel=0.3)

    def promoted(Y):
        return Y.astype(np.float64)

    monkeypatch.setattr(layers.Dropout, "forward", changed(layers.Dropout.forward, promoted))
    (row,) = verified(monkeypatch, "Dropout").rows
    assert row.faults[0] == "Dropout(0.4): Y in float32 is float64, expected float32"


@pytest.mark.parametrize("name", ["TiedDense", "Dropout", "Select", "Chain", "RandomShift"])
def test_what_is_wrong_in_float32_only_fails(name, monkeypatch):
    """For layers that PyTorch lacks too, or whose random numbers differ."""

    def wrong(Y):
        return Y + Y.dtype.type(1e-3) if Y.dtype == np.float32 else Y

    kind = getattr(layers, name)
    monkeypatch.setattr(kind, "forward", changed(kind.forward, wrong))
    (row,) = verified(monkeypatch, name).rows
    assert any("Y in float32 differs from the expected numbers by" in f for f in row.faults)


def test_wrong_losses_and_optimizers_fail(monkeypatch):
    gradient = changed(MeanSquaredError.loss_gradient, lambda dY: dY / 2)
    monkeypatch.setattr(MeanSquaredError, "loss_gradient", gradient)
    (row,) = verified(monkeypatch, "MeanSquaredError").rows
    assert any("has wrong gradients" in fault for fault in row.faults)
    assert any("the gradient for float64 targets differs" in fault for fault in row.faults)
    update = SGD.update

    def slow(self, theta, g, lr):
        update(self, theta, g, 0.999 * lr)

    monkeypatch.setattr(SGD, "update", slow)
    (row,) = verified(monkeypatch, "SGD").rows
    assert row.verdict == "FAILED"
    assert "SGD(0.1) in float64: 0.W after step 1 differs from" in row.faults[0]


def test_what_a_pair_finds_wrong():
    for found, fault in (
        (np.array([1.0, 2.0]), ""),
        (np.array([1.0, 2.0 + 1e-12]), ""),
        (np.array([1.0, 2.02]), "Y differs from the expected numbers by 1.0e-02"),
        (np.array([1.0, np.nan]), "Y differs from the expected numbers by nan"),
        (np.array([1.0]), r"Y has shape (1,), expected (2,)"),
        (np.array([1, 2], np.float32), "Y is float32, expected float64"),
    ):
        assert Pair("Y", found, np.array([1.0, 2.0])).fault("float64", 1e-10, 1e-10) == fault


def test_an_array_that_is_missing_is_a_fault(monkeypatch):
    def backward(self, dY, run=Dense.backward):
        dX = run(self, dY)
        self.grads = {"W": self.grads["W"], "V": np.ones(2)}
        return dX

    monkeypatch.setattr(Dense, "backward", backward)
    faults = compare("layer", "Dense(4, 3) | rank 2", "float64")[1]
    assert [fault.partition(": ")[2] for fault in faults] == [
        "grads.V has shape (2,), expected (0,)",
        "grads.b has shape (0,), expected (3,)",
    ]


def test_stored_cases_are_read_without_eval_and_compared_step_by_step():
    pairs = list(references.optimizer_pairs("Adam()", "float64"))
    names = {pair.name for pair in pairs}
    assert len(pairs) == len(names) == 12 * 6
    assert {"0.W after step 1", "1.gamma after step 7", "2.b after step 12"} < names
    made = construct('Parallel(Dense(4, 3), Chain(Tanh()), merge="add") | a remark', layers)
    assert repr(made) == repr(layers.Parallel(Dense(4, 3), layers.Chain(Tanh()), merge="add"))
    for bad in ("__import__('os')", "Dense.__init__", "Dense(x)", "Dense(1 + n)"):
        with pytest.raises((AttributeError, ValueError)):
            construct(bad, layers)
    files = [references.read(references.FOLDER / f"{name}.npz") for name in ("layers", "catalogue")]
    assert len(references.layer_cases()) == sum(map(len, files)) > 180
