# %% [markdown]
# # 2. A chain: slopes multiply
#
# One neuron can only draw a straight line, so networks put functions behind one another: a weight,
# a curve, another weight. The first weight is now far from the loss. How can it know what its turn
# will do at the other end? In this lesson you send a slope back through a chain, link by link.

# %%
import numpy as np

from phitodeep.layers import Layer
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# Three links: times `w`, then the curve `tanh`, then times `v`.

# %%
w, v, x = 2.0, 3.0, 0.4
u = w * x
h = np.tanh(u)
y = v * h
print(f"x = {x}  ->  u = {u}  ->  h = {h:.4f}  ->  y = {y:.4f}")

# %% [markdown]
# As formulas, for each number in `X` on its own:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** Let `x` grow by 0.001. By how much does `u` grow? At `u = 0.8`, the curve tanh
# has the slope 1 - h² = 0.56. By how much does `h` grow, and by how much `y`?
#
# ## The path
#
# Walk from the end to the beginning. At each link, one number arrives: the slope of the loss with
# respect to the link's result. Multiply it by the link's own slope, and pass it on.
#
# {{path dh du dX}}
#
# ## Your turn
#
# `w` and `v` are fixed here, so all that you return is `dX`. `h` was kept by the forward pass. `X`
# may have any shape, because each of its numbers goes through a chain of its own. The grader tries
# several shapes: *a batch of 1* is an `X` with one row, and *rank 3* is an `X` with three axes.


# %% solution
class Chain(Layer):
    """Y = v tanh(w X), element by element."""

    def __init__(self, w, v):
        super().__init__()
        self.w, self.v = w, v

    def forward(self, X):
        h = np.tanh(self.w * X)
        self.save_for_backward(h=h)
        return self.v * h

    def backward(self, dY):
        h = self.saved("h")
        # BEGIN SOLUTION
        dh = dY * self.v
        du = dh * (1 - h**2)
        return du * self.w
        # END SOLUTION


# %% grade
grade(Chain, "chain", seed=0)

# %% [markdown]
# ## The aha: each link needs only its own slope
#
# Compare the product of the three local slopes with the slope of the whole chain, which is measured
# by moving `x` a little in both directions.

# %%
chain = Chain(w, v)
chain.forward(np.array([x]))
move = 1e-6
measured = (v * np.tanh(w * (x + move)) - v * np.tanh(w * (x - move))) / (2 * move)
print(f"slopes of the links:  {w} x {1 - h**2:.4f} x {v} = {w * (1 - h**2) * v:.4f}")
print(f"your dX for dY = 1:   {chain.backward(np.ones(1))[0]:.4f}")
print(f"measured:             {measured:.4f}")

# %% [markdown]
# > **Aha.** Along a chain, slopes multiply: what arrives, times what I did locally, is what I pass
# > on.
#
# No link knows the others. The last one does not know that there is a `w`, and the first one has
# never heard of the loss. Sending slopes from the loss to the weights in this way is called
# *backpropagation*. This is one of its two rules, and the next lesson has the other. Here is the
# chain in phitodeep, with the same numbers. A `Dense(1, 1)` without a bias is the product with one
# weight.

# %% picture: Slopes travel from right to left. Each layer multiplies what arrives by its own.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(1).dense(1, bias=False).tanh().dense(1, bias=False)
model = builder.optimizer("sgd").alpha(0.05).dtype("float64").build()
model.layers[0].W, model.layers[2].W = [[w]], [[v]]
plots.step(model.trace([[x]], [[1.0]]))

# %% [markdown]
# ## Train with your layer
#
# Your chain bends the line of a neuron. Here it stands between two of them, and fits a curve.
# `SequentialBuilder(1)` starts a network with one input, `dense(1)` adds a neuron, and `add` adds
# your layer. `alpha` is the learning rate, `batch(16)` makes a step for every 16 samples, and
# `epochs(60)` goes through all of them 60 times. The loss is the mean of the squared errors, and
# each step follows the slopes by a rule called Adam, which adapts the length of the step to each
# weight.

# %%
X_train = np.linspace(-2, 2, 64)[:, None]
y_train = np.tanh(3 * X_train - 1)
builder = SequentialBuilder(1, seed=0).dense(1).add(Chain(1.0, 1.0)).dense(1)
model = builder.alpha(0.05).batch(16).epochs(60).build()
model.train(X_train, y_train, verbose=0)
left = np.mean((model.predict(X_train) - y_train) ** 2) / np.var(y_train)
print(f"{1 - left:.0%} of the curve is explained")

# %% [markdown]
# ## Questions
#
# {{question Ten links have the slope 0.5 each. What arrives at the first one if 1 arrives at the
# last?}}
# 0.5 to the power of 10, which is about 0.001. Long chains lose their slopes, unless something
# prevents it: see lesson 8.
# {{end}}
#
# {{question For x = 4, h is 0.9999998. What does the chain pass on?}}
# Almost nothing: the slope of tanh is 1 - h² = 0.0000005. The curve is flat there, so moving `x` no
# longer moves `y`. People call this a saturated unit.
# {{end}}
#
# {{question Why multiply from the end, and not from the beginning?}}
# The product is the same. But a network has millions of weights and one loss: from the end, one
# walk gives the slopes of all weights, because they share the later links. From the beginning, each
# weight would need a walk of its own.
# {{end}}
