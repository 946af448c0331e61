"""What users call on a model to look into it: summary, profile, and backpropagation made visible.

The work is done in the other modules here. Each is imported when it is first used, so a program
that only trains does not load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phitodeep.core.checks import keywords
from phitodeep.core.types import Array
from phitodeep.errors import DivergenceError, extra
from phitodeep.training.objective import Trainable
from phitodeep.training.shortcuts import plan

if TYPE_CHECKING:
    from phitodeep.inspect.cache import Cache, Patched
    from phitodeep.inspect.debugger.debugger import Debugger
    from phitodeep.inspect.diagnosis.findings import Diagnosis
    from phitodeep.inspect.hooks import Hook, Hooks
    from phitodeep.inspect.operators import Curvature
    from phitodeep.inspect.profile import Profile
    from phitodeep.inspect.samples import SampleGradients
    from phitodeep.inspect.summary import Summary
    from phitodeep.inspect.trace import Trace


class Inspectable(Trainable, registered=False):
    """A model that shows what it does: the base class of `Sequential`.

    Nothing here changes the model: all methods but `hooks` and `patch` work on copies.
    """

    def summary(self) -> None:
        """Print each layer's path, output shape, parameters, bytes and FLOPs.

        A line below the table lists how training differs from these layers, if it does.
        """
        self._summary().show()

    def _summary(self) -> Summary:
        from phitodeep.inspect.summary import summarize

        batch = "all samples" if self.batch_size is None else f"batch {self.batch_size}"
        title = f"{self.loss!r}, {self.optimizer!r}, {batch}, {self.epochs} epochs, {self.dtype}"
        return summarize(self, title, plan(self, self.loss).notes)

    def _repr_html_(self) -> str:
        return self._summary()._repr_html_()

    def profile(self, X: Any, y: Any, *, batch_size: int | None = None, steps: int = 20) -> Profile:
        """Train a copy for `steps` steps, print where the time goes, and return the table.

        Each layer has a row: the times of forward and backward, their share of the step, FLOPs by
        the layer's formula (backward counts once for dX and once for parameters), GFLOP/s, bytes
        cached for backward, and the time that its FLOPs would take at the speed of a large matrix
        product on this machine. The model itself is not changed.
        """
        from phitodeep.inspect.profile import profile

        size = self.batch_size or 64 if batch_size is None else batch_size
        found = profile(self, X, y, batch_size=size, steps=steps)
        found.show()
        return found

    def diagnose(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        lengths: Any = None,
        overfit: int = 500,
        verbose: int | bool = 1,
    ) -> Diagnosis:
        """Look for what commonly goes wrong, and return the findings; there may be none.

            report = model.diagnose(X, y)
            print(report)
            for finding in report:
                print(finding.name, finding.path, finding.remedy)

        One training step is recorded and compared with thresholds that were calibrated on healthy
        and sick models; a few steps and predictions are tried. All of it runs on copies of the
        model, with at most 512 samples of X (N, ...) and y, evenly spaced: no weight, statistic or
        random stream of the model changes. The start loss is checked only before the first step of
        training, and whether X is used, only after it. The callback `Diagnose` finds what shows
        only during training, such as spikes.

        overfit      the maximum number of steps in which 20 samples should be learnt, the most
                     expensive check; 0 leaves it out
        verbose      0: show no progress of these steps

        X, y, `sample_weight` and `lengths` are as in `train`. The findings are explained in
        docs/diagnosis.md.
        """
        from phitodeep.inspect.diagnosis.symptoms import diagnose

        return diagnose(
            self, X, y, sample_weight=sample_weight, lengths=lengths, overfit=overfit,
            verbose=verbose,
        )  # fmt: skip

    def _find_anomaly(self, *step: Any) -> DivergenceError:
        from phitodeep.inspect.anomaly import anomaly

        return anomaly(self, *step)

    # --- see backpropagation ---------------------------------------------------------------

    def trace(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None) -> Trace:
        """Run one step of training on a copy, and return everything that happened in it.

            t = model.trace(X[:8], y[:8])
            print(t)                             # layer by layer: sizes, updates, notes
            t["2.backward.dW"].why(3, 1)         # the terms of this cell's sum, largest first

        The layers run as written, without shortcuts, with the random values of the model's next
        step. Nothing in the model changes. See `Trace`; the other arguments are as in `train`.
        """
        from phitodeep.inspect.trace import trace

        return trace(self, X, y, sample_weight=sample_weight, lengths=lengths)

    def run_with_cache(self, X: Any, *, lengths: Any = None) -> tuple[Array, Cache]:
        """Return the output for X, as `predict` does, and all arrays on the way, by name.

            Y, cache = model.run_with_cache(X)
            cache["1.Y"]                         # the output of layer 1
            cache["0.XW"]                        # what happens inside layer 0

        For a MultiHeadAttention, "P" is the attention map (N, heads, T, T).
        """
        from phitodeep.inspect.cache import run_with_cache

        return run_with_cache(self, X, lengths=lengths)

    def hooks(
        self, fwd: Mapping[str, Hook] | None = None, bwd: Mapping[str, Hook] | None = None
    ) -> Hooks:
        """Inside the `with` block, call functions on arrays of forward and backward passes.

            with model.hooks(fwd={"1.Y": lambda Y, at: 0 * Y}, bwd={"2.dX": print}):
                model.trace(X, y)

        A key is a path and a symbol, as in a trace. The function receives the array and `at`, which
        has the key, path, direction, symbol and layer, and t, the step, for a symbol inside a
        loop over time. An array that it returns replaces the one it received, which it cannot
        write to; None leaves it. A new Y or dX is what the layer's neighbours receive, as if a
        layer were in between. Hooks reach every symbol: a layer with a hook inside runs by its
        steps. Training overwrites its arrays, so keep copies.
        """
        from phitodeep.inspect.hooks import Hooks

        return Hooks(self, fwd, bwd)

    def patch(self, values: Mapping[str, Array]) -> Patched:
        """Return this model with some arrays replaced, for `trace`, `predict` and the like.

            Y, cache = model.run_with_cache(X[:4])
            t = model.trace(X[4:], y[4:])
            model.patch({"1.Y": cache["1.Y"]}).trace(X[4:], y[4:]).diff(t)

        Each array must have the shape of the one that it replaces.
        """
        from phitodeep.inspect.cache import Patched

        return Patched(self, values)

    def debug(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None) -> Debugger:
        """Return a debugger at the start of a training step, on a copy of the model.

            db = model.debug(X, y)
            db.set_break("2.backward", when="abs(dX).max() > 0.01")
            db.cont(); db.where(); db.p("dY"); db.step(); db.back()
            db.edit("2.dY[0, 1]", 0.0); db.cont(); db.diff()

        `db.prompt()` reads such commands in a terminal. The arguments are as in `train`.
        """
        from phitodeep.inspect.debugger.debugger import debug

        return debug(self, X, y, sample_weight=sample_weight, lengths=lengths)

    def sample_gradients(
        self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None
    ) -> SampleGradients:
        """Return each sample's share of every gradient, by parameter path.

            g = model.sample_gradients(X, y)
            g["0.W"]                             # (N, *W.shape); its sum over N is the gradient
            g.norms                              # (N,): whose gradient is the longest
            g.which_samples("0.W", (2, 1))       # where this cell's gradient comes from

        It is the step that `trace` shows. There is no loop over samples: every layer's derivation
        says which sum runs over them. Layers that mix samples, such as BatchNorm, are refused.
        """
        from phitodeep.inspect.samples import sample_gradients

        return sample_gradients(self, X, y, sample_weight=sample_weight, lengths=lengths)

    def jvp(self, X: Any, weights: Mapping[str, Any], tX: Any = None) -> tuple[Any, Any]:
        """Return Y, and how it moves if parameters move along `weights` and X along tX.

        weights    a direction by path, such as {"0.W": V}, in the parameter's shape; 0 for others
        tX         in the shape of X (N, ...); 0 by default

        The model is in prediction mode. At kinks, tangents take the side that gradients take.
        """
        from phitodeep.inspect.curvature import jvp

        return jvp(self, X, weights, tX)

    def hvp(
        self, X: Any, y: Any, weights: Mapping[str, Any], *, sample_weight: Any = None,
        lengths: Any = None,
    ) -> dict[str, Array]:  # fmt: skip
        """Return the Hessian of the loss times a direction of the parameters, by path.

        weights    a direction by path, such as {"0.W": V}, in the parameter's shape; 0 for others

        The loss is the one of the next training step on the batch X, y, with the same dropout.
        Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian".
        """
        from phitodeep.inspect.curvature import hvp

        return hvp(self, X, y, weights, sample_weight=sample_weight, lengths=lengths)

    def hessian(
        self, X: Any, y: Any, *, params: str = "*", batch_size: int | None = None,
        sample_weight: Any = None, lengths: Any = None,
    ) -> Curvature:  # fmt: skip
        """Return the Hessian of the loss by the parameters, (D, D), as SciPy's LinearOperator.

            H = model.hessian(X, y)
            v = np.ones(H.shape[0])
            H @ v                                # (D,), the product with a vector
            H.trace(), H.diagonal(), H.largest(3)

        params        a pattern of paths, as for `groups` of an optimizer: the other parameters do
                      not move
        batch_size    samples at a time, to save memory; by default all are one batch

        The loss is that of `hvp`, without penalties. BatchNorm sees each batch alone. See
        `Curvature` for the other methods.
        """
        return self._curvature("hessian", X, y, params, batch_size, sample_weight, lengths)

    def ggn(
        self, X: Any, y: Any, *, params: str = "*", batch_size: int | None = None,
        sample_weight: Any = None, lengths: Any = None,
    ) -> Curvature:  # fmt: skip
        """Return the generalized Gauss-Newton matrix J^T H_P J, (D, D), as `hessian` does.

        J is the Jacobian of the predictions P, and H_P the Hessian of the loss by P. If the loss is
        convex in P, no eigenvalue is negative. Source: Schraudolph 2002, "Fast curvature
        matrix-vector products for second-order gradient descent".
        """
        return self._curvature("ggn", X, y, params, batch_size, sample_weight, lengths)

    def fisher(
        self, X: Any, y: Any, *, params: str = "*", batch_size: int | None = None,
        sample_weight: Any = None, lengths: Any = None,
    ) -> Curvature:  # fmt: skip
        """Return the Fisher information matrix, (D, D), as `hessian` does.

        It is the mean of g g^T for targets that the model itself would draw for X, where g is the
        gradient of a sample's loss. It is computed exactly, nothing is drawn, and scaled as the
        loss is. It is not the "empirical" Fisher matrix of the targets y, of which only the shape
        and weights count. The loss must be minus the log of a probability of the targets. For
        logits and squares, this matrix is the `ggn`. Source: Martens 2020, "New insights and
        perspectives on the natural gradient method", JMLR 21, sec. 5, 9.2 and 11.
        """
        return self._curvature("fisher", X, y, params, batch_size, sample_weight, lengths)

    def _curvature(self, kind: str, *given: Any) -> Curvature:
        with extra("lbfgs", "scipy", kind):
            from phitodeep.inspect.operators import Curvature

        return Curvature(self, kind, *given)

    @keywords({"index": "write target="})
    def attributions(
        self,
        X: Any,
        method: str = "gradient",
        *,
        target: Any = None,
        step: int = -1,
        baseline: Any = None,
        steps: int | None = None,
        layer: str | None = None,
        lengths: Any = None,
        output: str | None = None,
    ) -> Any:
        """Return how much each input of X (N, ...) contributes to a score of its sample.

        The score is one output of the model in prediction mode: dropout is off, and BatchNorm uses
        its running statistics. If the model ends with Softmax, LogSoftmax or Sigmoid, the score is
        the logit, the input of that layer: a probability also rises when the scores of the other
        classes fall, and its gradient vanishes when the model is certain.

        method      "gradient": the slope of the score S for each input, dS/dX, in the shape of X.
                    "gradient_x_input": x dS/dx, in the shape of X.
                    "integrated": (x - b) times the mean of dS/dx on the straight path from a
                    baseline b to x, in the shape of X; the sum over a sample is S(x) - S(b).
                    "grad_cam": for networks with images inside, maps (N, height, width) of the
                    regions that raise the score, in the size of X
        target      the output to explain: an integer, or (N,) integers; by default the output with
                    the highest score, separately for each sample
        step        the step to explain, if the model returns (N, T, K); by default the last one.
                    Negative steps count from the end of each sample, without its padding
        baseline    for "integrated": a number, a sample or an array like X; 0 by default
        steps       for "integrated": the number of points on the path, at most 1000; 50 by default
        layer       for "grad_cam": the path of a layer that returns images (height, width, C). By
                    default it is the last such layer; if that is inside a block that returns
                    images too, such as Residual, it is the block
        lengths     as in `predict`; padding gets 0
        output      the name of the output to explain, if a `Network` has several

        Of a `Network` with several inputs, X, the baseline and the result are dicts with an array
        for each input, and the sum over a sample spans them all; "grad_cam" returns one array.

        Tokens (N, T) have no gradient, so their vectors (N, T, D), the output of the Embedding,
        take the place of X. "gradient" returns (N, T, D). "gradient_x_input" and "integrated" sum
        over D and return (N, T). The baseline is a vector (D,), or any array like the vectors.

        If X has no image shape, as in a model that starts with Reshape, maps have the size of the
        first image inside. Everything has the dtype of the model, and the model is not changed.
        Raises ArgumentError, ArgumentTypeError or ShapeError for arguments that do not fit, and
        NotBuiltError if the model is not built.
        Sources: gradient and logit: Simonyan, Vedaldi and Zisserman 2013, arXiv:1312.6034, sec. 3;
        gradient x input: Shrikumar et al. 2016, arXiv:1605.01713; integrated: Sundararajan, Taly
        and Yan 2017, arXiv:1703.01365; grad_cam: Selvaraju et al. 2017, arXiv:1610.02391.
        """
        from phitodeep.inspect.attributions import attributions

        return attributions(
            self, X, method, target=target, step=step, baseline=baseline, steps=steps, layer=layer,
            lengths=lengths, output=output,
        )  # fmt: skip

    def attention_maps(self, X: Any, *, lengths: Any = None) -> dict[str, Array]:
        """Return where each attention layer looks when it predicts X: a map by path.

        A map is (N, heads, T, T): the weight that each position, a row, gives to every position.
        Each row sums to 1, or to 0 if the position may attend to none.
        """
        from phitodeep.inspect.attributions import attention_maps

        return attention_maps(self, X, lengths=lengths)
