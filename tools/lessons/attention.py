# %% [markdown]
# # Attention: gradients choose where to look
#
# Each position of a sequence asks a question (a query), compares it with a key at every position,
# and takes the average of the values, weighted by how well they match. Nobody tells the layer
# where to look. In this notebook you write the backward pass of scores, softmax and average, and
# then you see how a gradient moves the attention.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# One query, three keys, and three values, which are plain numbers here.

# %%
S = np.array([1.0, 0.0, -1.0])  # how well the query matches each key
P = np.exp(S) / np.exp(S).sum()
V = np.array([10.0, 0.0, 20.0])
print("P =", P.round(3), " O =", (P @ V).round(3))

# %% [markdown]
# As formulas, with one head, so that the index h has only one value:
#
# {{forward QKV XWqkv QK S E total P O}}
#
# ## What arrives, and what you return
#
# The rest of the layer is given: it computes Q, K and V from X, and it turns `dQ`, `dK` and `dV`
# into the gradients below. You write the middle, from `dO` to `dQ`, `dK` and `dV`.
#
# {{shapes}}
#
# **Predict first.** Suppose that the output above should become larger. Value 2 is the largest,
# but gets little attention. Value 0 gets most of it. Which of the three scores should rise?
#
# ## The path
#
# {{path dV dP s dS dQK dQ dK}}
#
# ## Your turn


# %% solution
class Attention(Layer):
    """O = softmax(Q K^T / sqrt(D)) V for each sequence of X (N, T, D), between two dense layers."""

    Wqkv = Param(decay=True)
    bqkv = Param()
    Wo = Param(decay=True)
    bo = Param()
    independent_samples = True

    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal

    def create(self, shape):
        D, rng = shape[-1], np.random.default_rng(0)
        self.Wqkv = rng.standard_normal((D, 3 * D)) / np.sqrt(D)
        self.bqkv = np.zeros(3 * D)
        self.Wo = rng.standard_normal((D, D)) / np.sqrt(D)
        self.bo = np.zeros(D)
        return shape

    def forward(self, X):
        Q, K, V = np.split(X @ self.Wqkv + self.bqkv, 3, axis=-1)
        O, P = self.attend(Q, K, V)
        self.save_for_backward(X=X, Q=Q, K=K, V=V, O=O, P=P)
        return O @ self.Wo + self.bo

    def backward(self, dY):
        X, Q, K, V, O, P = self.saved("X", "Q", "K", "V", "O", "P")
        self.dense_back("o", O, dY)
        dQ, dK, dV = self.attend_back(dY @ self.Wo.T, Q, K, V, P)
        dQKV = np.concatenate([dQ, dK, dV], axis=-1)
        self.dense_back("qkv", X, dQKV)
        return dQKV @ self.Wqkv.T

    def dense_back(self, name, X, dY):
        rows, d_rows = X.reshape(-1, X.shape[-1]), dY.reshape(-1, dY.shape[-1])
        self.grad_array(f"W{name}")[...] = rows.T @ d_rows
        self.grad_array(f"b{name}")[...] = d_rows.sum(axis=0)

    def attend(self, Q, K, V):
        T, D = Q.shape[1:]
        S = Q @ K.swapaxes(1, 2) / np.sqrt(D)
        if self.causal:
            S = np.where(np.tri(T, dtype=bool), S, -np.inf)
        E = np.exp(S - S.max(axis=-1, keepdims=True))
        P = E / E.sum(axis=-1, keepdims=True)
        return (P @ V).astype(Q.dtype), P.astype(Q.dtype)

    def attend_back(self, dO, Q, K, V, P):
        """Return dQ, dK and dV (N, T, D) for dO (N, T, D); P (N, T, T) has a row for each query."""
        D = Q.shape[-1]
        # BEGIN SOLUTION
        dV = P.swapaxes(1, 2) @ dO
        dP = dO @ V.swapaxes(1, 2)
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
        dS = (dS / np.sqrt(D)).astype(Q.dtype)
        return dS @ K, dS.swapaxes(1, 2) @ Q, dV
        # END SOLUTION


# %% grade
grade(Attention, "attention", seed=0)

# %% [markdown]
# ## The aha: better than the average
#
# Back to the numbers from the beginning. `dO = 1` asks for a larger output. Which gradient does
# each score get?

# %%
dP = 1.0 * V
dS = P * (dP - (dP * P).sum())
print("dS =", dS.round(3), " their sum:", dS.sum().round(12) + 0.0)
print("the average value is", (P @ V).round(3))

# %% [markdown]
# A score rises if its value is better than the average that the query gets now, and falls if it is
# worse: that is all that `dP - s` says. The factor `P` decides how fast: a key that is hardly
# looked at hardly learns. So key 0, a little better than the average and with most of the
# attention, gets the same push as key 2, which is far better but hardly looked at. Key 1 pays for
# both: the scores compete, so their gradients sum to 0.
#
# ## Train with your layer
#
# A task for attention: which of six numbers is the largest one? The output is its value.

# %%
from phitodeep.model import SequentialBuilder

rng = np.random.default_rng(0)
X_train = rng.uniform(0, 1, (500, 6, 1))
y_train = X_train.max(axis=1)
builder = SequentialBuilder(6, 1, seed=0).dense(16).add(Attention()).global_avg_pool().dense(1)
model = builder.alpha(0.01).batch(32).epochs(60).build()
model.train(X_train, y_train, verbose=0)
error = np.abs(model.predict(X_train) - y_train).mean()
print(f"the largest number is off by {error:.3f} on average; guessing is off by", end=" ")
print(f"{np.abs(y_train - y_train.mean()).mean():.3f}")

# %% [markdown]
# **One more question.** Leave out `- s` in your backward pass. Do the gradients of a row still sum
# to 0? What would happen to the scores of a query whose values are all good?
