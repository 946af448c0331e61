# %% [markdown]
# # 4. A batch: dW sums samples
#
# Until now, your backward passes could treat each sample alone. A network learns from many samples
# at once, a *batch*, and all of them share the same weights. Each sample pushes a weight in its own
# direction. Which one wins? In this lesson you write the backward pass of a dense layer,
# `Y = X W + b`: many neurons, many samples. At the end you can say which sample pushed a weight,
# and how hard.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# Two samples with three inputs each enter, and two outputs leave. The inputs of a sample are also
# called its *features*. Each row is one sample, and every row meets the same `W` and `b`.

# %%
X = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]])
W = np.array([[1.0, 0.0], [2.0, -1.0], [0.0, 1.0]])
b = np.array([0.5, 0.0])
print(X @ W + b)

# %% [markdown]
# As formulas:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# The layer after this one hands you `dY`. It has the shape of `Y`, and each of its numbers says
# how much the loss grows if that number of `Y` grows by 1. From it, you compute three arrays:
#
# {{shapes}}
#
# **Predict first.** Suppose that the second sample has `dY[1] = [0, 0]`: nobody cares about its
# output. Which rows of `dX` are 0? Does sample 1 still have a say in `dW`?
#
# ## The path
#
# One weight `W[i, j]` takes part in one product per sample: `X[n, i] * W[i, j]`, which is added to
# `Y[n, j]`. Move the weight a little. By how much does `Y[n, j]` move? What arrives there? What do
# you get if you add this up over all samples? Try it on paper, then open a line only if you need
# it.
#
# {{path}}
#
# ## Your turn
#
# Write `backward`. Three rules hold for every layer: never write into `X` or `dY`; never divide by
# the batch size, because the loss has done that already; and write each gradient into the array
# that `self.grad_array` returns. The grader also tries rank 3: `X` may have the shape `(N, T, D)`,
# so think of all its rows as one long list.


# %% solution
class Dense(Layer):
    """Y = X W + b on the last axis."""

    W = Param(decay=True)
    b = Param()

    def __init__(self, units):
        super().__init__()
        self.units = units

    def create(self, shape):
        rng = np.random.default_rng(0)
        self.W = rng.standard_normal((shape[-1], self.units)) * np.sqrt(2 / shape[-1])
        self.b = np.zeros(self.units)
        return (*shape[:-1], self.units)

    def forward(self, X):
        self.save_for_backward(X=X)
        return X @ self.W + self.b

    def backward(self, dY):
        X = self.saved("X")
        dW, db = self.grad_array("W"), self.grad_array("b")
        # BEGIN SOLUTION
        rows = X.reshape(-1, X.shape[-1])
        d_rows = dY.reshape(-1, self.units)
        dW[...] = rows.T @ d_rows
        db[...] = d_rows.sum(axis=0)
        return dY @ self.W.T
        # END SOLUTION


# %% grade
grade(Dense, "dense", seed=0)

# %% [markdown]
# ## The aha: a batch is a sum of opinions
#
# Run one sample at a time and look at what each of them wants to do to `W`. Then compare the sum
# with what the whole batch gives.

# %%
layer = Dense(2)
layer.build((3,), dtype="float64")
dY = np.array([[1.0, 0.0], [0.5, -1.0]])
opinions = []
for n in range(2):
    layer.forward(X[n : n + 1])
    layer.backward(dY[n : n + 1])
    opinions.append(layer.grads["W"].copy())
    print(f"sample {n} alone:\n{opinions[-1]}")
layer.forward(X)
layer.backward(dY)
print(f"both together:\n{layer.grads['W']}")
assert np.allclose(sum(opinions), layer.grads["W"])

# %% [markdown]
# > **Aha.** The gradient of a weight is a sum over the batch: each sample adds what it says on its
# > own, and nobody wins.
#
# It is lesson 3 again: a weight that is used by every sample has one path to the loss for each of
# them. Each opinion is a product: what went in (`X`) times what came back (`dY`). A weight whose
# input was 0 gets no blame, however large `dY` is. Dividing by the batch size is the job of the
# loss, which does it once, for all layers, so that the learning rate need not depend on the batch
# size. The picture shows the same two samples, and the sum behind one cell of `dW`.

# %% picture: One cell of dW is ringed. Below, its sum: one term for each of the two samples.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

model = SequentialBuilder(3).dense(2).optimizer("sgd").alpha(0.1).dtype("float64").build()
model.layers[0].W, model.layers[0].b = W, b
plots.step(model.trace(X, X @ W + b - dY))  # targets for which dY is as above

# %% [markdown]
#
# ## Train with your layer
#
# The network reads handwritten digits, and both of its dense layers are yours. The next two lessons
# explain what stands behind them: `ReLU`, and `softmax` with its loss.

# %%
from phitodeep.data import load_mnist
from phitodeep.layers import ReLU

X_train, y_train, X_test, y_test = load_mnist()
X_train, X_test = X_train.reshape(len(X_train), -1), X_test.reshape(len(X_test), -1)
model = (
    SequentialBuilder(784, seed=0)
    .add(Dense(32))
    .add(ReLU())
    .add(Dense(10))
    .softmax()
    .loss("categorical_cross_entropy")
    .alpha(0.003)
    .batch(32)
    .epochs(3)
    .build()
)
model.train(X_train[:2000], y_train[:2000], verbose=0)
accuracy = np.mean(model.predict(X_test[:500]).argmax(axis=1) == y_test[:500])
print(f"{accuracy:.0%} of 500 new digits are read correctly")

# %% [markdown]
# ## Questions
#
# {{question A sample has the input 0 everywhere. Can it still move the layer?}}
# It cannot move `W`: each of its terms is `0 · dY`. It can move `b`, whose gradient is the sum of
# `dY` alone.
# {{end}}
#
# {{question Two samples are equal, but their dY are opposite. What is their share of dW?}}
# 0: their opinions cancel. Their loss is not 0, but no step of `W` makes both better.
# {{end}}
#
# {{question Why does the layer not divide by the batch size?}}
# Because the loss already has, in the `dY` that arrives. If a layer divided again, its weights
# would move too slowly, by a factor of the batch size. This mistake is common: the grader
# recognises it.
# {{end}}
