# %% [markdown]
# # 12. A GPT: gradients choose where to look
#
# An LSTM passes its memory from step to step. Why not look directly at any earlier position? In
# *attention*, each position asks a question (a query), compares it with a key at every position,
# and takes the average of the values, weighted by how well they match. Nobody tells the layer where
# to look: who does? In this lesson you write the backward pass of scores, softmax and average, and
# see how a gradient moves the attention. Then you build a GPT around your layer.

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
# The scores are products of queries and keys. Three dense layers, computed side by side as `QKV`,
# make a query, a key and a value for each position. In the formulas, `n` counts the sequences, `q`
# the positions that ask, and `k` those that they look at. There is only one *head*, which is one
# set of queries, keys and values, so the index `h` has only one value:
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
#
# `P` has a row for each query and a column for each key. Divide by `D**0.5`: `np.sqrt(D)` is a
# float64, which turns float32 arrays into float64.


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
        S = Q @ K.swapaxes(1, 2) / D**0.5
        if self.causal:
            S = np.where(np.tri(T, dtype=bool), S, -np.inf)
        E = np.exp(S - S.max(axis=-1, keepdims=True))
        P = E / E.sum(axis=-1, keepdims=True)
        return P @ V, P

    def attend_back(self, dO, Q, K, V, P):
        """Return dQ, dK and dV (N, T, D) for dO (N, T, D); P (N, T, T) has a row for each query."""
        D = Q.shape[-1]
        # BEGIN SOLUTION
        dV = P.swapaxes(1, 2) @ dO
        dP = dO @ V.swapaxes(1, 2)
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
        dS = dS / D**0.5
        return dS @ K, dS.swapaxes(1, 2) @ Q, dV
        # END SOLUTION


# %% grade
grade(Attention, "attention", seed=0)

# %% [markdown]
# ## The aha: better than the average
#
# Back to the numbers from the beginning. Let `dO` be -1: the loss falls if the output rises. Which
# gradient does each score get, and what does a step against it do?

# %%
dO = -1.0
dP = dO * V
dS = P * (dP - (dP * P).sum())
print("dS =", dS.round(3), " their sum:", dS.sum().round(12) + 0.0)
E = np.exp(S - 0.1 * dS)
print("the average value was", (P @ V).round(3), "and is now", (E / E.sum() @ V).round(3))

# %% [markdown]
# > **Aha.** Gradients choose where to look: a score rises if its value is better than the average
# > that the query gets now, and falls if it is worse.
#
# That is all that `dP - s` says. Scores 0 and 2 have a negative gradient, so the step raises them.
# The factor `P` decides how fast: a key that is hardly looked at hardly learns. So key 0, a little
# better than the average and with most of the attention, gets the same push as key 2, which is far
# better but hardly looked at. Key 1 pays for both: the scores compete, so their gradients sum to 0.
#
# ## Train with your layer
#
# A GPT predicts the next letter from all letters before it. Only two of its parts are new, and both
# are tables of weights: an *embedding* has a row of numbers for each letter, and a *positional
# embedding* adds one for each position. You know all the others: norms (lesson 9), ways around
# (lesson 3), a dense network with gates (lessons 4 and 5), softmax with its `p - y` (lesson 6), and
# your attention. It looks only backwards: `causal=True`. Here it reads 2,000 first names.

# %%
from phitodeep.data import CharTokenizer, load_text
from phitodeep.layers import Dense, LayerNorm, ReLU
from phitodeep.loss import SoftmaxCrossEntropy as CrossEntropy
from phitodeep.model import SequentialBuilder

CONTEXT, names = 10, load_text("names").split("\n")[:2000]
tokenizer = CharTokenizer("\n" + "".join(names))
tokens = [tokenizer.encode(f"\n{name}\n")[: CONTEXT + 1] for name in names]
rows = np.array([[*row, *[-1] * (CONTEXT + 1 - len(row))] for row in tokens])
X_train, y_train = np.maximum(rows[:, :-1], 0), rows[:, 1:]  # -1 is after the end: ignored


def gpt(attention):
    builder = SequentialBuilder(CONTEXT, seed=0).embedding(tokenizer.vocab_size, 32)
    builder = builder.positional_embedding(CONTEXT)
    for _ in range(2):
        builder = builder.residual(LayerNorm(), attention())
        builder = builder.residual(LayerNorm(), Dense(64), ReLU(), Dense(32))
    builder = builder.layer_norm().dense(tokenizer.vocab_size).loss(CrossEntropy(ignore_index=-1))
    return builder.alpha(0.005).batch(64).epochs(6).build()


model = gpt(lambda: Attention(causal=True))
history = model.train(X_train, y_train, verbose=0)
print("loss by epoch:", [round(train, 2) for train, _ in history])

# %% [markdown]
# At first, it guesses among 27 letters: the loss is log 27 = 3.3. Let it write, one letter at a
# time.

# %%
starts = np.zeros((6, 1), int)  # six times the beginning of a name
for text in model.generate(starts, CONTEXT, seed=1, stop=0):
    print(tokenizer.decode(text).strip().partition("\n")[0])

# %% [markdown]
# Where does it look? phitodeep's own layer has the same parameters, so it can take over the weights
# that yours has learned, and phitodeep can draw it.

# %% picture: Each row is a letter, and its columns are the letters that it looks at.
from phitodeep import plots
from phitodeep.layers import MultiHeadAttention

twin = gpt(lambda: MultiHeadAttention(1, causal=True))
twin.set_weights(model.get_weights())
twin.tokenizer = tokenizer
plots.attention(twin, X_train[1], "2.layers.1")

# %% [markdown]
# All of it was learned from `p - y`, sent back by rules that you have written yourself.
#
# ## Questions
#
# {{question Leave out `- s`. Do the gradients of a row still sum to 0? What happens if all values
# of a query are good?}}
# They do not. If all values are good, all scores rise. But raising all of them by the same amount
# changes no probability: softmax looks only at differences. That part of the step has no effect.
# {{end}}
#
# {{question In a causal layer, no score is computed for later positions. What is their gradient?}}
# 0, without further code: their probability is 0, and `dS` has the factor `P`.
# {{end}}
#
# {{question Why is the score divided by √D?}}
# It is lesson 8: a sum of D products of size 1 has the size √D. Without the division, softmax would
# be saturated at the start, with `P` near 0 or 1, and its gradient near 0.
# {{end}}
