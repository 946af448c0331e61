# %% [markdown]
# # 9. A norm: three ways
#
# Good first weights keep the signal alive (lesson 8), but training moves them. Could a layer
# restore the size of the signal, whatever the weights do? LayerNorm subtracts the mean of each row
# and divides by its standard deviation. Then each `x` reaches the output in three ways: directly,
# through the mean that it is part of, and through the deviation that it is part of. In this lesson
# you find all three. Forget one of them and the network still trains, only worse: nobody notices
# this mistake without a check.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# One row of four features, then the same row shifted by 100.

# %%
row = np.array([[1.0, 2.0, 3.0, 6.0]])
for x in (row, row + 100):
    centred = x - x.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    print((centred * r).round(3))

# %% [markdown]
# In the end, each feature is multiplied by a learned `gamma`, and a learned `beta` is added, so
# that the network can choose another size and mean. A tiny number `eps` keeps the division from
# failing. As formulas:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** Shifting a row changes nothing. So what must each row of `dX` sum to? Keep
# your answer: it is a test that you can run by eye.
#
# ## The path
#
# Let `g` be what arrives at `X_hat`, the centred and scaled row. Follow it back along each of the
# three ways. Each way through a mean has a `1 / D` in it, because the mean of `D` numbers moves by
# `1 / D` if one of them moves by 1.
#
# {{path}}
#
# ## Your turn


# %% solution
class LayerNorm(Layer):
    """Each row is centred and scaled to variance 1; then Y = gamma X_hat + beta."""

    gamma = Param()
    beta = Param()
    independent_samples, time_steps = True, "independent"

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def create(self, shape):
        self.gamma = np.ones(shape[-1])
        self.beta = np.zeros(shape[-1])
        return shape

    def forward(self, X):
        centred = X - X.mean(axis=-1, keepdims=True)
        r = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.eps)
        X_hat = centred * r
        self.save_for_backward(X_hat=X_hat, r=r)
        return self.gamma * X_hat + self.beta

    def backward(self, dY):
        X_hat, r = self.saved("X_hat", "r")
        dgamma, dbeta = self.grad_array("gamma"), self.grad_array("beta")
        # BEGIN SOLUTION
        rows = tuple(range(dY.ndim - 1))
        dgamma[...] = (dY * X_hat).sum(axis=rows)
        dbeta[...] = dY.sum(axis=rows)
        g = self.gamma * dY
        through_mean = g.mean(axis=-1, keepdims=True)
        through_r = X_hat * (g * X_hat).mean(axis=-1, keepdims=True)
        return r * (g - through_mean - through_r)
        # END SOLUTION


# %% grade
grade(LayerNorm, "layer_norm", seed=0)

# %% [markdown]
# ## The aha: what changes nothing has no gradient
#
# A shift of the row changes nothing, and neither does making all centred numbers twice as large.
# So along these two directions the slope must be 0.

# %%
rng = np.random.default_rng(0)
layer = LayerNorm()
layer.build((6,), dtype="float64")
layer.forward(rng.standard_normal((3, 6)))
dX = layer.backward(rng.standard_normal((3, 6)))
X_hat = layer.saved("X_hat")
print("sums of the rows of dX:", dX.sum(axis=-1).round(12) + 0.0)
print("dX along X_hat:        ", (dX * X_hat).sum(axis=-1).round(4) + 0.0)
assert np.allclose(dX.sum(axis=-1), 0)
assert np.allclose((dX * X_hat).sum(axis=-1), 0, atol=1e-3)

# %% [markdown]
# > **Aha.** One number reaches the output in three ways, and the two that go through the mean and
# > the deviation remove from the gradient whatever cannot change the output.
#
# `through_mean` removes the part of the gradient that would shift the row, and `through_r` removes
# the part that would stretch it. What is left is what the layer lets through. In the picture, one
# row passes through the layer. Its gradient leaves the layer with a sum of 0.

# %% picture: One row of four features and its gradient, before and after LayerNorm.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(4, seed=0).layer_norm().dense(1).optimizer("sgd").alpha(0.01)
model = builder.dtype("float64").build()
plots.step(model.trace(row, [[1.0]]))

# %% [markdown]
#
# ## Train with your layer
#
# The inputs are 50 times too large, which would saturate every tanh. LayerNorm does not mind.

# %%
from phitodeep.data import make_moons

X_train, y_train = make_moons(n=200, noise=0.1, seed=0)
builder = SequentialBuilder(2, seed=0).dense(16).add(LayerNorm()).tanh().dense(16)
builder = builder.add(LayerNorm()).tanh().dense(1).sigmoid()
model = builder.loss("binary_cross_entropy").alpha(0.01).batch(32).epochs(40).build()
model.train(50 * X_train, y_train, verbose=0)
accuracy = np.mean((model.predict(50 * X_train)[:, 0] > 0.5) == y_train)
print(f"{accuracy:.0%} of the points are on the right side")

# %% [markdown]
# ## Questions
#
# {{question Delete `through_mean` and run the grader. What does it say? Would training have told
# you?}}
# The grader says that `dX` is computed without the term `- through_mu`. Training goes on, and the
# accuracy hardly changes: only a check finds this mistake.
# {{end}}
#
# {{question Why is the sum of dX along X_hat only nearly 0, and the sum of a row exactly 0?}}
# A shift changes nothing at all. A stretch changes nothing only if `eps` is 0: the layer divides by
# `√(variance + eps)`, so a stretched row differs a little.
# {{end}}
#
# {{question Every row is multiplied by 50 in the training above. Why does it not matter?}}
# The first layer is dense, so its output grows by about 50, and LayerNorm divides by the deviation,
# which has grown by the same factor.
# {{end}}
