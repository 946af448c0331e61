# %% [markdown]
# # 6. Softmax: p - y
#
# Every gradient so far came from somewhere: it arrived. Where does the first one come from? From
# the loss. A network that names one of K classes ends with K numbers, the *logits* `z`, one for
# each class. *Softmax* turns them into probabilities `p`: it takes `exp(z)`, and divides by the
# sum. The loss is the surprise at the true class, `-log p`, which is called *cross-entropy*.
# Exponentials, a division, a logarithm: the derivative looks frightening. In this lesson you find
# out that nearly all of it cancels.

# %%
import numpy as np

from phitodeep.loss import Loss
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# One sample, three classes; the true class is number 0.

# %%
z = np.array([2.0, 1.0, 0.0])
p = np.exp(z) / np.exp(z).sum()
print("p =", p.round(3), " loss =", -np.log(p[0]).round(3))

# %% [markdown]
# As formulas, with `P` for the logits and `q` for the targets as rows such as (1, 0, 0). `v` holds
# the weights of the samples, which are all 1 here: so `counted` is `each`, and `share` is 1 / N.
#
# {{forward top Z E s log_P surprise each summed L}}
#
# ## What you return
#
# Nothing arrives, because the loss is the end of the network. You start the backward pass: return
# the derivative of the loss with respect to each logit.
#
# {{shapes}}
#
# **Predict first.** Raise all three logits by 1. Which probabilities change? So what must the sum
# of each row of `dP` be?
#
# ## The path
#
# For the true class, the loss is `-z[true] + log(sum(exp(z)))`. Differentiate the two terms one by
# one. The derivative of `log(sum(exp(z)))` with respect to `z[k]` is an old friend. In these lines
# `mass`, the sum of a row of `q`, is 1, and only the first case of the last one counts.
#
# {{path d_each p slope dP}}
#
# ## Your turn
#
# A loss is a class with a `value` and a `gradient`. Write the second. `P` holds the logits, and `T`
# the targets as rows; you can ignore `w` and `total`. `N` is what the loss divides by: this is the
# only place in the whole network where the batch size appears. Logits can be as large as 1000, so
# use `log_softmax`, which subtracts the maximum first.


# %% solution
class SoftmaxCrossEntropy(Loss):
    """The mean of -log softmax(z)[label], for logits z of shape (N, K) and integer labels."""

    wants = "logits"

    def targets(self, y, shape, name="y"):
        return np.eye(shape[-1], dtype=np.float32)[np.asarray(y)]

    def positions(self, shape):
        return shape[:-1]

    def log_softmax(self, P):
        Z = P - P.max(axis=-1, keepdims=True)
        return Z - np.log(np.exp(Z).sum(axis=-1, keepdims=True))

    def value(self, P, T, w, total):
        N = len(P) if total is None else total
        return float(-(T * self.log_softmax(P)).sum() / N)

    def gradient(self, P, T, w, total):
        N = len(P) if total is None else total
        # BEGIN SOLUTION
        return (np.exp(self.log_softmax(P)) - T) / N
        # END SOLUTION


# %% grade
grade(SoftmaxCrossEntropy, "softmax_cross_entropy", seed=0)

# %% [markdown]
# ## The aha: the gradient is the error itself
#
# Print the probabilities, the target and the gradient below each other.

# %%
loss = SoftmaxCrossEntropy()
dP = loss.loss_gradient(z[None], [0])[0]
print("p      ", p.round(3))
print("y      ", [1, 0, 0])
print("dP     ", dP.round(3))
print("p - y  ", (p - [1, 0, 0]).round(3))
assert np.allclose(dP, p - [1, 0, 0])

# %% [markdown]
# > **Aha.** The gradient is the error itself, `p - y`: what you predicted, minus what was true.
#
# A confident, correct sample teaches almost nothing, because `p - y` is nearly 0. A confident,
# wrong sample pulls with a force of nearly 1, and never more than that, even if its loss is
# enormous. And each row sums to 0: whatever is given to one class is taken from the others.
#
# The picture shows the gradient of three samples on its way back, drawn with phitodeep's own loss
# of the same name.

# %% picture: The gradient that leaves the loss, in the lower right, is (p - y) / 3.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(2, seed=1).dense(3).loss("softmax_cross_entropy")
model = builder.optimizer("sgd").alpha(0.1).dtype("float64").build()
plots.step(model.trace([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2]))

# %% [markdown]
# ## Train with your loss

# %%
from phitodeep.data import load_mnist

X_train, y_train, X_test, y_test = load_mnist()
X_train, X_test = X_train.reshape(len(X_train), -1), X_test.reshape(len(X_test), -1)
model = (
    SequentialBuilder(784, seed=0)
    .dense(32)
    .relu()
    .dense(10)
    .loss(SoftmaxCrossEntropy())
    .alpha(0.003)
    .batch(32)
    .epochs(3)
    .build()
)
model.train(X_train[:2000], y_train[:2000], verbose=0)
accuracy = np.mean(model.predict(X_test[:500]).argmax(axis=1) == y_test[:500])
print(f"{accuracy:.0%} of 500 new digits are read correctly")

# %% [markdown]
# After training, `plots.confusion_matrix` shows which digits are taken for which.

# %% picture: Rows are the true digits, and columns are the predicted ones.
plots.confusion_matrix(model, X_test[:500], y_test[:500])

# %% [markdown]
# ## Questions
#
# {{question Leave out `/ N` in gradient, but not in value. The grader notices. Would training?}}
# Every gradient is N times as large. Plain gradient descent takes steps that are N times as long,
# as if the learning rate were N times as high. Adam divides by the size of the gradient, and hides
# the mistake.
# {{end}}
#
# {{question All logits are equal, and there are 10 classes. What are the loss and the gradient?}}
# Each probability is 0.1, so the loss is log 10 = 2.3: where an untrained network starts. The
# gradient is -0.9 for the true class and 0.1 for each other one.
# {{end}}
#
# {{question Can a sample have a gradient of exactly 0?}}
# Only if its probability is exactly 1, which no finite logits give. So training with this loss
# never quite ends, and logits grow for ever on data that can be separated.
# {{end}}
