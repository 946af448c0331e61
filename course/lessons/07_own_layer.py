# %% [markdown]
# # 7. A layer of your own: proof
#
# You have written backward passes whose formulas were known. Now imagine that you have just
# invented a layer, so no book has its derivative. You derive it, the network trains with it, the
# loss goes down. Does that mean that it is right? In this lesson you learn how to know.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# ReLU has a hard gate: open or closed. Your layer has a soft one. The input decides how far its own
# gate is open, `s = sigmoid(a x)`, and `a` is learned, one for each feature.

# %%
X = np.array([-2.0, -0.5, 0.0, 0.5, 2.0])
for a in (1.0, 5.0):
    print(f"a = {a}:", (X / (1 + np.exp(-a * X))).round(3))

# %% [markdown]
# As formulas:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** How many paths lead from `x` to `y` (lesson 3)? How many links has each of them
# (lesson 2)? And since every sample uses the same `a`: what happens along the batch (lesson 4)?
#
# ## The path
#
# The slope of a sigmoid `s` is `s (1 - s)`.
#
# {{path ds du through dX da}}
#
# ## Your turn


# %% solution
class Swish(Layer):
    """Y = X sigmoid(a X), with one a for each feature."""

    a = Param()

    def create(self, shape):
        self.a = np.ones(shape[-1])
        return shape

    def forward(self, X):
        s = 1 / (1 + np.exp(-self.a * X))
        self.save_for_backward(X=X, s=s)
        return X * s

    def backward(self, dY):
        X, s = self.saved("X", "s")
        da = self.grad_array("a")
        # BEGIN SOLUTION
        du = dY * X * s * (1 - s)
        da[...] = (du * X).reshape(-1, X.shape[-1]).sum(axis=0)
        return dY * s + du * self.a
        # END SOLUTION


# %% grade
grade(Swish, "own_layer", seed=0)

# %% [markdown]
# ## The aha: a proof without a derivation
#
# The grader knows the right derivation. For a layer that is really new, nobody does. But lesson 1
# works for every layer: move one number by a tiny step in both directions, and measure what
# happens. This is called a *central difference*. `check_gradients` does it for `X` and for each
# parameter, in float64.

# %%
from phitodeep.testing import check_gradients

batch = np.random.default_rng(0).standard_normal((5, 3))
print(check_gradients(Swish(), batch))

# %% [markdown]
# Now a layer with a mistake: it forgets that `x` also moves the gate.


# %%
class Forgetful(Swish):
    def backward(self, dY):
        super().backward(dY)
        return dY * self.saved("s")


try:
    check_gradients(Forgetful(), batch)
except AssertionError as error:
    print(error)

# %% [markdown]
# > **Aha.** A backward pass can be proved without knowing its formula: two forward passes for each
# > number say whether it is the slope.
#
# A training that works proves nothing. Train both layers, and compare.
#
# ## Train with your layer

# %%
from phitodeep.data import make_moons
from phitodeep.model import SequentialBuilder

X_train, y_train = make_moons(n=200, noise=0.1, seed=0)
models = {}
for kind in (Forgetful, Swish):
    builder = SequentialBuilder(2, seed=0).dense(16).add(kind()).dense(16).add(kind()).dense(1)
    builder = builder.sigmoid().loss("binary_cross_entropy").alpha(0.01).batch(32).epochs(40)
    models[kind] = builder.build()
    models[kind].train(X_train, y_train, verbose=0)
    accuracy = np.mean((models[kind].predict(X_train)[:, 0] > 0.5) == y_train)
    print(f"{accuracy:.0%} of the points are on the right side with {kind.__name__}")

# %% picture: The border between the moons that the network with your layer has found.
from phitodeep import plots

plots.decision_boundary(models[Swish], X_train, y_train)

# %% [markdown]
# ## Questions
#
# {{question Why is the check made in float64, with a random dY?}}
# A tiny step changes the loss by a tiny amount, and float32 keeps too few digits of the difference.
# And with `dY = 1` everywhere, some mistakes cancel: a gradient that ignores `dY` would pass.
# {{end}}
#
# {{question Why not train with central differences, and never derive anything?}}
# They need two forward passes for each number. A network with a million weights would need two
# million passes for one step. One backward pass gives all of them.
# {{end}}
#
# {{question Is the layer proved for every input?}}
# No: for the inputs that you tried. At a kink, as in ReLU at 0, there is no slope at all. Try
# several shapes, a batch of 1, and large numbers, as the grader does.
# {{end}}
