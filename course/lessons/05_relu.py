# %% [markdown]
# # 5. ReLU: gates, and death
#
# Two dense layers in a row are only one dense layer: the product of two matrices is a matrix. What
# must stand between them so that depth is worth something? `Y = max(X, 0)` is enough. It has no
# weights, and its backward pass fits on one line. Yet it decides which parts of a network learn at
# all. In this lesson you write that line, and then you watch a unit die.

# %%
import numpy as np

from phitodeep.layers import Layer
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers

# %%
X = np.array([[2.0, -1.0, 0.5], [-3.0, 4.0, 0.0]])
print(np.maximum(X, 0))

# %% [markdown]
# As a formula:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** Take `x = -1`. Move it to -0.999: does `y` move? Take `x = 2` and move it to
# 2.001: by how much does `y` move? The answer to these two questions is the whole backward pass.
#
# ## The path
#
# The chain rule is the same in every layer: what arrives, times what the layer did locally, is
# what it passes on.
#
# {{path}}
#
# ## Your turn
#
# Which array do you need to remember from the forward pass: `X`, `Y`, or either? At `x = 0` there
# are two one-sided slopes, 0 and 1. phitodeep uses 0, as most libraries do, and the grader accepts
# both.


# %% solution
class ReLU(Layer):
    """Y = max(X, 0)."""

    def forward(self, X):
        self.save_for_backward(X=X)
        return np.maximum(X, 0)

    def backward(self, dY):
        X = self.saved("X")
        # BEGIN SOLUTION
        return np.where(X > 0, dY, 0)
        # END SOLUTION


# %% grade
grade(ReLU, "relu", seed=0)

# %% [markdown]
# ## The aha: a closed gate stays closed
#
# Four units see the same 200 points. Their biases are 1, 0, -2 and -6. We count for how many
# points the gate of each unit is open, and how much gradient reaches it.

# %%
rng = np.random.default_rng(0)
points = rng.standard_normal((200, 2))
W = rng.standard_normal((2, 4)) * 0.8
bias = np.array([1.0, 0.0, -2.0, -6.0])
layer = ReLU()
Y = layer.forward(points @ W + bias)
dA = layer.backward(np.ones_like(Y))
dW = points.T @ dA
print("open for", (Y > 0).sum(axis=0), "of 200 points")
print("length of dW", np.linalg.norm(dW, axis=0).round(2))
assert not dW[:, 3].any()

# %% [markdown]
# > **Aha.** A gate that is closed for every sample stays closed: its gradient is exactly 0, so its
# > own weights cannot move to open it.
#
# The last unit is dead. Its weights do not move and its inputs are fixed, so its gate stays closed,
# however long you train. (Deep in a network, the layers before it may still change its inputs and
# wake it up.) A gradient of 0 is not a small gradient: no factor that comes after can make it
# larger. A learning rate that is too high can do this to a healthy unit in one step. The picture
# shows a step with eight of the points, and `1.Y` is the output of layer 1, the ReLU. Look for the
# empty column.

# %% picture: The last column of 1.Y is 0 for all samples, and so are its gradients: a dead unit.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(2).dense(4).relu().dense(1).optimizer("sgd").alpha(0.1)
model = builder.seed(0).dtype("float64").build()
model.layers[0].W, model.layers[0].b = W, bias
plots.step(model.trace(points[:8], np.ones((8, 1))))

# %% [markdown]
#
# ## Train with your layer
#
# Two moons, which no straight line can separate: without the gates, this network could only draw
# one.

# %%
from phitodeep.data import make_moons

X_train, y_train = make_moons(n=200, noise=0.1, seed=0)
builder = SequentialBuilder(2, seed=0).dense(16).add(ReLU()).dense(16).add(ReLU()).dense(1)
model = builder.sigmoid().loss("binary_cross_entropy").alpha(0.01).batch(32).epochs(40).build()
model.train(X_train, y_train, verbose=0)
accuracy = np.mean((model.predict(X_train)[:, 0] > 0.5) == y_train)
print(f"{accuracy:.0%} of the points are on the right side")

# %% [markdown]
# ## Questions
#
# {{question Replace your layer by the identity, Y = X. What can the network above still learn?}}
# A straight line. Three dense layers without gates are one dense layer with the product of their
# weights, so the moons cannot be separated.
# {{end}}
#
# {{question Does a closed gate harm the sample for which it is closed?}}
# No. For this sample the unit contributes 0, and other units answer. It becomes a problem only if
# the gate is closed for all samples.
# {{end}}
#
# {{question Train with `.alpha(1.0)`. What happened to the gates?}}
# A few huge steps push most biases far below 0. In the second layer, almost every unit is then
# closed for all points, and the loss stays above 0.3, although it was nearly 0 before. A leaky
# ReLU, whose slope below 0 is 0.01 instead of 0, keeps passing gradients on, so its units could
# recover.
# {{end}}
