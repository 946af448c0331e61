# %% [markdown]
# # 13. Write the forward pass, read the backward one
#
# You have derived twelve backward passes, always by the same few rules: multiply along a path, add
# where paths meet, sum over what was shared. A program can follow rules. So what is left for you?
# In this lesson you write a forward pass, predict its backward pass, and read what the program
# makes of it.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# RMSNorm is a LayerNorm (lesson 9) that does not subtract the mean: it divides each row by the root
# of its mean square. Here it is written as text, as the program will read it.

# %%
forward = """
r = 1 / np.sqrt(np.mean(X**2, axis=-1, keepdims=True) + eps)
Y = gamma * X * r
"""
names = {"np": np, "X": np.array([[1.0, -2.0, 2.0]]), "gamma": np.ones(3), "eps": 1e-5}
exec(forward, names)
print(names["Y"].round(3), "has mean square", np.mean(names["Y"] ** 2).round(3))

# %% [markdown]
# As formulas:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** In LayerNorm, three ways led from `x` to `y`. How many are there now? A row
# that is twice as long gives the same `Y`: so what must `dX` along `X` be?
#
# ## The path
#
# {{path}}
#
# ## Your turn


# %% solution
class RMSNorm(Layer):
    """Y = gamma X r, where r is 1 / the root of the mean square of a row."""

    gamma = Param()

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def create(self, shape):
        self.gamma = np.ones(shape[-1])
        return shape

    def forward(self, X):
        r = 1 / np.sqrt((X**2).mean(axis=-1, keepdims=True) + self.eps)
        self.save_for_backward(X=X, r=r)
        return self.gamma * X * r

    def backward(self, dY):
        X, r = self.saved("X", "r")
        dgamma = self.grad_array("gamma")
        # BEGIN SOLUTION
        X_hat = X * r
        dgamma[...] = (dY * X_hat).reshape(-1, X.shape[-1]).sum(axis=0)
        g = self.gamma * dY
        return r * (g - X_hat * (g * X_hat).mean(axis=-1, keepdims=True))
        # END SOLUTION


# %% grade
grade(RMSNorm, "rms_norm", seed=0)

# %% [markdown]
# ## The aha: read it
#
# `derive` gets the same forward pass as text, and the shapes of its symbols. It knows a rule for
# each operation, and nothing about norms.

# %%
from phitodeep import derive

found = derive(forward, X=(4, 5), gamma=(5,), eps=1e-5, name="Derived")
source = found.source
print(source[source.index("    def backward") : source.index("    def steps")])

# %% [markdown]
# Read it next to yours. There are two ways: directly, and through `r`. The second one removes what
# lies along `X`, since a longer row gives the same `Y`. The program sums `dY * Y`, where you may
# have summed `g * X_hat`: they are the same, and forward has computed `Y` already.
#
# > **Aha.** A forward pass determines its backward pass: a few rules find it, and a check proves
# > it, whoever wrote it.
#
# Now break it, as a person might: forget the way through `r`.

# %%
from phitodeep.testing import check_gradients

batch = np.random.default_rng(0).standard_normal((3, 4))
broken = source.replace(" - r * s * X / D", "")
assert broken != source
scope = {}
exec(broken, scope)
try:
    check_gradients(scope["Derived"](), batch)
except AssertionError as error:
    print(error)

# %% [markdown]
# The derived layer is an ordinary layer, so you can trace it too.

# %% picture: One row and its gradient, before and after the derived layer.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(4, seed=0).add(found.layer()).dense(1).optimizer("sgd").alpha(0.01)
model = builder.dtype("float64").build()
plots.step(model.trace(batch[:1], [[1.0]]))

# %% [markdown]
# ## Train with your layer
#
# Yours, and the derived one: they start from the same weights.

# %%
from phitodeep.data import make_moons

X_train, y_train = make_moons(n=200, noise=0.1, seed=0)
for norm in (RMSNorm(), found.layer()):
    builder = SequentialBuilder(2, seed=0).dense(16).add(norm).tanh().dense(16).tanh().dense(1)
    builder = builder.sigmoid().loss("binary_cross_entropy").alpha(0.01).batch(32).epochs(40)
    model = builder.build()
    model.train(X_train, y_train, verbose=0)
    accuracy = np.mean((model.predict(X_train)[:, 0] > 0.5) == y_train)
    print(f"{accuracy:.0%} of the points are on the right side with {type(norm).__name__}")

# %% [markdown]
# ## Questions
#
# {{question Write another forward pass: `Y = X * np.tanh(a * X)`. Predict its backward pass, then
# let `derive` write it, for `X=(4, 5), a=(5,)`. What did you expect, and what does it keep?}}
# Two paths, as in Swish: with `h` for the tanh, `dX = dY * h + a * du`, where `du` is
# `dY * X * (1 - h**2)`. It writes `dY * (X - h * Y)`, which is the same, since `Y = X * h`: so it
# keeps `X`, `h` and `Y`.
# {{end}}
#
# {{question Try `derive(forward, X=(5, 5), ...)`. Why are two axes of the same size refused?}}
# `gamma` has five numbers: do they belong to the samples or to the features? With different sizes,
# the shapes say it.
# {{end}}
#
# {{question If a program can derive, why have you derived anything by hand?}}
# To read it. You know which paths there must be, so you see what a line means, and you notice when
# the forward pass itself is not what you wanted: no check finds that.
# {{end}}
