# %% [markdown]
# # 3. Two paths: slopes add
#
# In a chain, every number is used once. In real networks the same number is often used twice: it
# goes through a layer, and it also goes around it. Then it has two ways to reach the loss. Which of
# the two slopes is the right one? In this lesson you find out what happens where paths meet.

# %%
import numpy as np

from phitodeep.layers import Layer
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# The chain of lesson 2, with a way around it: `y = x + v tanh(w x)`.

# %%
w, v, x = 2.0, 3.0, 0.4
through = v * np.tanh(w * x)
print(f"directly {x}, through the chain {through:.4f}, together y = {x + through:.4f}")

# %% [markdown]
# As formulas:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** Let `x` grow by 0.001. By how much does `y` grow because of the direct path?
# Lesson 2 says that the path through the chain has the slope 3.354. By how much does `y` grow in
# all?
#
# ## The path
#
# {{path dh du through dX}}
#
# ## Your turn


# %% solution
class TwoPaths(Layer):
    """Y = X + v tanh(w X), element by element."""

    def __init__(self, w, v):
        super().__init__()
        self.w, self.v = w, v

    def forward(self, X):
        h = np.tanh(self.w * X)
        self.save_for_backward(h=h)
        return X + self.v * h

    def backward(self, dY):
        h = self.saved("h")
        # BEGIN SOLUTION
        through = dY * self.v * (1 - h**2) * self.w
        return dY + through
        # END SOLUTION


# %% grade
grade(TwoPaths, "two_paths", seed=0)

# %% [markdown]
# ## The aha: one term for each path
#
# Freeze one path, measure the other, and compare with the slope of both together.

# %%
layer = TwoPaths(w, v)
layer.forward(np.array([x]))
move = 1e-6


def slope(f):
    return (f(x + move) - f(x - move)) / (2 * move)


print(f"only the direct path:    {slope(lambda t: t + v * np.tanh(w * x)):.4f}")
print(f"only through the chain:  {slope(lambda t: x + v * np.tanh(w * t)):.4f}")
print(f"both:                    {slope(lambda t: t + v * np.tanh(w * t)):.4f}")
print(f"your dX for dY = 1:      {layer.backward(np.ones(1))[0]:.4f}")

# %% [markdown]
# > **Aha.** Where a number is used twice, its slopes add: one term for each path to the loss.
#
# So a forgotten term in a backward pass is a forgotten path. Multiply along a path, add over all
# paths: you now know the whole chain rule. In phitodeep, the way around is `Residual`, and several
# ways side by side are `Parallel`.

# %% picture: x goes through the layers and around them. On the way back, both meet at the top.
from phitodeep import plots
from phitodeep.layers import Dense, Tanh
from phitodeep.model import SequentialBuilder

chain = Dense(1, bias=False), Tanh(), Dense(1, bias=False)
model = SequentialBuilder(1).residual(*chain).dtype("float64").build()
inside = model.layers[0].layers
inside[0].W, inside[2].W = [[w]], [[v]]
plots.architecture(model)

# %% [markdown]
# The layer that adds says the same about itself, with the numbers of this lesson:

# %%
trace = model.trace([[x]], [[x + through - 0.5]])  # an error of 0.5, so that dY is 1
print(trace["0.backward.dX"].formula)
print(trace["0.backward.dX"].why(0, 0))

# %% [markdown]
# ## Train with your layer
#
# With `v = 0.5` and `w = 1`, the chain alone has a slope of at most 0.5. Twenty of them leave a
# millionth of what arrives. The direct path adds 1, so the slope of your layer is never below 1,
# and everything gets through. Here are twenty in a row, without the direct path and with it. They
# learn to tell the points of two classes from each other. `sigmoid` turns the last number into a
# probability, and `binary_cross_entropy` is a loss for probabilities (lesson 6).

# %%
from phitodeep.data import make_moons

X_train, y_train = make_moons(n=200, noise=0.1, seed=0)


class ChainAlone(TwoPaths):
    def forward(self, X):
        return super().forward(X) - X

    def backward(self, dY):
        return super().backward(dY) - dY


for kind in (ChainAlone, TwoPaths):
    builder = SequentialBuilder(2, seed=0).dense(16)
    for _ in range(20):
        builder = builder.add(kind(1.0, 0.5))
    builder = builder.dense(1).sigmoid().loss("binary_cross_entropy")
    model = builder.alpha(0.01).batch(32).epochs(20).build()
    model.train(X_train, y_train, verbose=0)
    accuracy = np.mean((model.predict(X_train)[:, 0] > 0.5) == y_train)
    print(f"{accuracy:.0%} of the points are on the right side with {kind.__name__}")

# %% [markdown]
# ## Questions
#
# {{question y = x · x uses x twice. What does adding over paths say about its slope?}}
# Each factor is a path. Along the first, the slope is the other factor, which is `x`. Along the
# second, it is `x` again. They add up to `2x`, which you knew all along.
# {{end}}
#
# {{question What does the grader say if you return only the path through the chain? Try it.}}
# It names the term: `dX` is computed without the term `dY`. In the network above, almost nothing
# would reach the first layer. In a network with few layers, it would, and nobody would notice.
# {{end}}
#
# {{question Can the two paths cancel?}}
# Yes. If the chain has the slope -1, for which `w` and `v` need opposite signs, the sum is 0:
# whatever `y` gains directly, it loses through the chain.
# {{end}}
