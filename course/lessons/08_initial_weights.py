# %% [markdown]
# # 8. Initial weights: waves fade
#
# Twenty layers, random weights, and nothing moves: the loss stays where it was. Every backward pass
# is right; you have proved it. So why does the network not learn? In this lesson you follow a
# signal through a deep network, and find out that what matters is how large the first weights are.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.layers.initialization import Normal
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# In this lesson, the *size* of numbers is their standard deviation. A hundred random numbers of
# size 1 go through twenty matrices, whose cells are random numbers of the size that is printed
# first.

# %%
rng = np.random.default_rng(0)
D = 100
for size in (0.05, 0.1, 0.2):
    y = rng.standard_normal(D)
    sizes = []
    for _ in range(20):
        y = y @ (size * rng.standard_normal((D, D)))
        sizes.append(y.std())
    print(f"weights of size {size}: {sizes[0]:.1e} after 1 layer, {sizes[-1]:.1e} after 20")

# %% [markdown]
# Only one of the three keeps the signal alive. Your layer gets this size for free: its weights have
# the size 1, and it divides by the square root of the number of inputs. As formulas:
#
# {{forward XW Y}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** Each output is a sum of D products of size 1, with random signs. Is the sum of
# the size D, √D or 1? Now the way back: `dX` is a sum as well. What does it need so that the
# gradient keeps its size?
#
# ## The path
#
# {{path g dW dX}}
#
# ## Your turn
#
# You wrote the backward pass of `X W` in lesson 4. Where does the division go? Divide by `D**0.5`,
# as the forward pass does: `np.sqrt(D)` is a float64, which turns float32 arrays into float64.


# %% solution
class ScaledDense(Layer):
    """Y = X W / sqrt(D) on the last axis, with weights of size 1."""

    W = Param(decay=True)

    def __init__(self, units):
        super().__init__()
        self.units = units

    def create(self, shape):
        self.W = self.draw(Normal(1.0), (shape[-1], self.units))
        return (*shape[:-1], self.units)

    def forward(self, X):
        self.save_for_backward(X=X)
        return X @ self.W / X.shape[-1] ** 0.5

    def backward(self, dY):
        X = self.saved("X")
        dW = self.grad_array("W")
        # BEGIN SOLUTION
        g = dY / X.shape[-1] ** 0.5
        dW[...] = X.reshape(-1, X.shape[-1]).T @ g.reshape(-1, self.units)
        return g @ self.W.T
        # END SOLUTION


# %% grade
grade(ScaledDense, "initial_weights", seed=0)

# %% [markdown]
# ## The aha: one factor per layer
#
# The gradient makes the same journey backwards. Here are twenty of your layers, each with a tanh.
# We shrink all weights by a factor, and measure how much of the gradient reaches the first layer.

# %%
from phitodeep.model import SequentialBuilder

X_train = rng.standard_normal((64, 32))
y_train = (X_train[:, 0] > 0).astype(int)


def deep(factor, depth=20):
    builder = SequentialBuilder(32, seed=0)
    for _ in range(depth):
        builder = builder.add(ScaledDense(32)).tanh()
    model = builder.dense(1).sigmoid().loss("binary_cross_entropy").alpha(0.001).build()
    for layer in model.layers[: 2 * depth : 2]:
        layer.W = factor * layer.W
    return model


for factor in (0.5, 1.0):
    trace = deep(factor).trace(X_train, y_train)
    first, last = (np.sqrt(np.mean(trace[f"{k}.backward.dY"].array ** 2)) for k in (0, 38))
    print(f"weights x {factor}: |dY| is {last:.1e} at the last layer, {first:.1e} at the first")

# %% [markdown]
# > **Aha.** A wave that loses a little in every layer is gone after twenty: initial weights of the
# > size 1/√D keep it alive, forward and backward.
#
# Lesson 2 told you that slopes multiply. Half of the size in each of twenty layers leaves a
# millionth, in both directions. So the first layers receive nothing, and do not learn. The pictures
# show networks of ten such layers, with halved weights and with whole ones. The first layer is at
# the top.

# %% picture: Weights half as large as they should be: gradients fade on their way to the top.
from phitodeep import plots

plots.gradient_flow(deep(0.5, 10).trace(X_train, y_train))

# %% picture: Weights of the right size: all layers receive gradients of a similar size.
plots.gradient_flow(deep(1.0, 10).trace(X_train, y_train))

# %% [markdown]
# ## Train with your layer
#
# Eight of your layers, with tanh between them.

# %%
from phitodeep.data import make_moons

X_train, y_train = make_moons(n=200, noise=0.1, seed=0)
builder = SequentialBuilder(2, seed=0).add(ScaledDense(32)).tanh()
for _ in range(6):
    builder = builder.add(ScaledDense(32)).tanh()
builder = builder.add(ScaledDense(1)).sigmoid().loss("binary_cross_entropy")
model = builder.alpha(0.02).batch(32).epochs(20).build()
model.train(X_train, y_train, verbose=0)
accuracy = np.mean((model.predict(X_train)[:, 0] > 0.5) == y_train)
print(f"{accuracy:.0%} of the points are on the right side")

# %% [markdown]
# ## Questions
#
# {{question ReLU closes about half of the gates. By what factor should the weights be larger?}}
# Half of the terms of each sum are 0, so the mean square is halved. Weights that are √2 times as
# large restore it: √(2/D), the initial weights of He. phitodeep's dense layers start with them.
# {{end}}
#
# {{question Why not start with all weights at 0?}}
# Then all units of a layer are equal and receive equal gradients, so they stay equal for ever. And
# the gradient that is passed on is 0.
# {{end}}
#
# {{question The weights change in training. Why does their first size matter so much?}}
# Training moves weights by their gradients. If no gradient arrives, they do not move. The next
# lesson builds a layer that restores the size of the signal at every step, whatever the weights do.
# {{end}}
