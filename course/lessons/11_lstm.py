# %% [markdown]
# # 11. An LSTM: time is depth
#
# The meaning of a sentence may depend on its first word. How does the gradient find a cause that
# lies a hundred steps back? A recurrent layer uses the same weights at every step, as a convolution
# uses them at every place. Unrolled over T steps, it is a network of T layers, and the gradient has
# to pass through all of them. In this lesson you write one step back in time, and the loop that
# repeats it is given. Then you see why the cell state `c` exists: it is a path on which gradients
# survive.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# An LSTM (*long short-term memory*) has a memory, the *cell* `c`. Three gates between 0 and 1
# decide what happens to it at each step: the forget gate `f` sets how much of the old `c` is kept,
# `i` how much of the candidate `g` is added, and `o` how much of `c` is shown as the output `h`.

# %%
c_prev, i, f, g, o = 2.0, 0.5, 0.9, -1.0, 0.8
c = f * c_prev + i * g
print("c =", c, " h =", round(o * np.tanh(c), 3))

# %% [markdown]
# A gate is the sigmoid of a dense layer, which sees the input of this step and the last output. As
# formulas, with `a` for the numbers before the gates, and `t` for the step:
#
# {{forward a_t i_t f_t g_t o_t c_t h_t}}
#
# ## What arrives, and what you return
#
# At step t, `dh` arrives from two sides: from the output at this step, and from the next step.
# `dc` arrives only from the next step. You return the gradient of the numbers before the gates
# (`da`, all four gates side by side), and what the step before will receive: `dh_prev` and
# `dc_prev`. The loop around it turns `da` into the gradients of the layer:
#
# {{shapes}}
#
# **Predict first.** `c` reaches the loss in two ways: through `h` at this step, and through the
# next step. So `dc` at this step is a sum of two terms. Which of them has already arrived?
#
# ## The path
#
# {{path dc_t di_t df_t dg_t do_t da_i da_f da_g da_o da_t dh_prev dc_prev}}
#
# ## Your turn


# %% solution
def sigmoid(a):
    return 1 / (1 + np.exp(-a))


class LSTM(Layer):
    """c = f c_prev + i g and h = o tanh(c), at each step of X (N, T, D); Y (N, T, H) is all h."""

    Wx = Param(decay=True)
    Wh = Param(decay=True)
    b = Param()

    def __init__(self, units):
        super().__init__()
        self.units = units

    def create(self, shape):
        T, D = shape
        H, rng = self.units, np.random.default_rng(0)
        self.Wx = rng.standard_normal((D, 4 * H)) / np.sqrt(D)
        self.Wh = rng.standard_normal((H, 4 * H)) / np.sqrt(H)
        self.b = np.zeros(4 * H)
        return (T, H)

    def forward(self, X):
        N, T, _ = X.shape
        h = c = np.zeros((N, self.units), X.dtype)
        states, kept = [h], []
        for t in range(T):
            h, c, values = self.step(X[:, t], h, c)
            states.append(h)
            kept.append(values)
        self.save_for_backward(X=X, states=states, kept=kept)
        return np.stack(states[1:], axis=1)

    def backward(self, dY):
        X, states, kept = self.saved("X", "states", "kept")
        N, T, D = X.shape
        dh = dc = np.zeros((N, self.units), X.dtype)
        da = np.zeros((N, T, 4 * self.units), X.dtype)
        for t in reversed(range(T)):
            da[:, t], dh, dc = self.step_back(dY[:, t] + dh, dc, kept[t])
        rows = da.reshape(-1, 4 * self.units)
        before = np.stack(states[:-1], axis=1).reshape(-1, self.units)
        self.grad_array("Wx")[...] = X.reshape(-1, D).T @ rows
        self.grad_array("Wh")[...] = before.T @ rows
        self.grad_array("b")[...] = rows.sum(axis=0)
        return da @ self.Wx.T

    def step(self, x, h_prev, c_prev):
        a_i, a_f, a_g, a_o = np.split(x @ self.Wx + h_prev @ self.Wh + self.b, 4, axis=-1)
        i, f, g, o = sigmoid(a_i), sigmoid(a_f), np.tanh(a_g), sigmoid(a_o)
        c = f * c_prev + i * g
        tanh_c = np.tanh(c)
        return o * tanh_c, c, (i, f, g, o, c_prev, tanh_c)

    def step_back(self, dh, dc_later, values):
        """Return da (N, 4H), dh_prev and dc_prev (N, H)."""
        i, f, g, o, c_prev, tanh_c = values
        # BEGIN SOLUTION
        dc = dc_later + dh * o * (1 - tanh_c**2)
        da_i = dc * g * i * (1 - i)
        da_f = dc * c_prev * f * (1 - f)
        da_g = dc * i * (1 - g**2)
        da_o = dh * tanh_c * o * (1 - o)
        da = np.concatenate([da_i, da_f, da_g, da_o], axis=-1)
        return da, da @ self.Wh.T, dc * f
        # END SOLUTION


# %% grade
grade(LSTM, "lstm", seed=0)

# %% [markdown]
# ## The aha: the forget gate is the length of the memory
#
# The gradient arrives only at the last of 20 steps. How much of it is left at the first step? We
# compare a forget gate that is mostly closed with one that is open.

# %%
rng = np.random.default_rng(0)
X = rng.standard_normal((1, 20, 3))
for bias in (-1.0, 0.0, 4.0):
    layer = LSTM(4)
    layer.build((20, 3), dtype="float64")
    layer.Wh = 0.1 * layer.Wh
    layer.b[4:8] = bias  # the columns of the forget gate
    Y = layer.forward(X)
    dY = np.zeros_like(Y)
    dY[:, -1] = 1
    size = np.linalg.norm(layer.backward(dY)[0], axis=-1)
    print(f"forget gate about {sigmoid(bias):.2f}: step 19 {size[19]:.1e}, step 0 {size[0]:.1e}")

# %% [markdown]
# > **Aha.** Time is depth: each step back multiplies the gradient by the forget gate, so the gate
# > is the length of the memory.
#
# With `f` about 0.27, twenty steps leave less than a billionth of the gradient. With `f` about
# 0.98, they leave most of it. A deep network loses its gradient layer by layer (lesson 8); a
# recurrent one loses it step by step, and the cell state is the way around (lesson 3). This is why
# people start the bias of the forget gate at 1 or more. In the picture, each row of `0.dY` and
# `0.dX` is a step. Only the last one receives a gradient, and it travels up.

# %% picture: Six steps, one in each row. The gradient enters at the last and travels up.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(6, 3, seed=0).lstm(4).permute(2, 1).select(-1).flatten().dense(1)
model = builder.optimizer("sgd").alpha(0.1).dtype("float64").build()
plots.step(model.trace(X[:, :6], [[1.0]]))

# %% [markdown]
#
# ## Train with your layer
#
# Was the first number of a sequence above 0? The answer is due only after 10 steps.

# %%
X_train = rng.standard_normal((400, 10, 1))
y_train = (X_train[:, 0, 0] > 0).astype(int)
builder = SequentialBuilder(10, 1, seed=0).add(LSTM(8))
builder = builder.permute(2, 1).select(-1).flatten().dense(1).sigmoid()  # only the last step
model = builder.loss("binary_cross_entropy").alpha(0.02).batch(32).epochs(30).build()
model.train(X_train, y_train, verbose=0)
accuracy = np.mean((model.predict(X_train)[:, 0] > 0.5) == y_train)
print(f"{accuracy:.0%} of the sequences are remembered")

# %% [markdown]
# ## Questions
#
# {{question Return `np.zeros_like(dc)` for dc_prev. How far back can the layer still learn?}}
# The path along the cell is cut. What is left goes through `h` and `Wh`, and fades as in a plain
# recurrent layer: a few steps.
# {{end}}
#
# {{question Wx and Wh are used at every step. Where in the code do their gradients add up?}}
# In `backward`, in `X.reshape(-1, D).T @ rows` and `before.T @ rows`: the rows are all samples and
# all steps, so the product sums over both. It is lesson 4 with N T samples.
# {{end}}
#
# {{question The forget gate is exactly 1. Is the gradient then never lost?}}
# Not along the cell. But a gate of 1 never forgets anything, and its own slope, `f (1 - f)`, is 0:
# it can no longer learn to close.
# {{end}}
