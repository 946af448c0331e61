# %% [markdown]
# # 10. A convolution: one weight, many windows
#
# An edge looks the same wherever it is in an image. Does a network have to learn it again for every
# place? A convolution slides one small kernel over the whole image. Each weight of the kernel is
# used in every window, and each pixel is seen by many windows. In this lesson you follow gradients
# in both directions, and the two loops turn out to be the same.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# The kernel (-1, 1) looks for edges from dark to bright. Here is one row of an image.

# %%
image = np.array([0.0, 0.0, 1.0, 1.0, 0.0])
kernel = np.array([-1.0, 1.0])
print([float(image[w : w + 2] @ kernel) for w in range(4)])

# %% [markdown]
# A batch of images has the shape (N, H, W, C): the samples, the rows, the columns, and the numbers
# of each pixel, which are called *channels*, such as red, green and blue. A layer has several
# kernels, called *filters*, and each makes one channel of the output, so all weights together have
# the shape (kh, kw, C, filters). The *stride* is the step from one window to the next, and
# *padding* is a border of zeros around the image.
#
# There are two ways to write the sum. One visits each window. The other visits each *tap* `(i, j)`
# of the kernel: it takes the pixels under that tap in all windows at once, which is a slice of `X`,
# and multiplies them by `W[i, j]`. The code below does the second, because it needs only kh * kw
# rounds. As formulas, in which `k` counts the filters:
#
# {{forward U UW Y}}
#
# ## What arrives, and what you return
#
# {{shapes}}
#
# **Predict first.** In a 5 x 5 image with a 3 x 3 kernel, how many windows see the pixel in the
# corner? And the one in the middle? Which of them will have the larger gradient, on average?
#
# ## The path
#
# For one tap, the forward pass is a dense layer: `pixels @ W[i, j]`. You know its backward pass.
# The only new thing is where the results go: back into the slice that the pixels came from.
# Windows overlap, so slices overlap. What must happen where they do?
#
# {{path}}
#
# ## Your turn
#
# `self.under(i, j, A)` is the slice of an image A under tap (i, j), as a view: you can read it and
# add to it.


# %% solution
class Conv2D(Layer):
    """Y[n, h, w] = sum over taps (i, j) of X[n, s h + i, s w + j] W[i, j], plus b."""

    W = Param(decay=True)
    b = Param()

    def __init__(self, filters, kernel_size, stride=1, padding=0):
        super().__init__()
        self.filters, self.padding = filters, padding
        self.kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        self.stride = (stride, stride) if isinstance(stride, int) else stride

    def create(self, shape):
        H, W, C = shape
        rng = np.random.default_rng(0)
        fan_in = self.kernel[0] * self.kernel[1] * C
        self.W = rng.standard_normal((*self.kernel, C, self.filters)) * np.sqrt(2 / fan_in)
        self.b = np.zeros(self.filters)
        self.out = tuple(
            (size + 2 * self.padding - k) // s + 1
            for size, k, s in zip((H, W), self.kernel, self.stride, strict=True)
        )
        return (*self.out, self.filters)

    def under(self, i, j, A):
        (h, w), (sh, sw) = self.out, self.stride
        return A[:, i : i + sh * h : sh, j : j + sw * w : sw]

    def forward(self, X):
        p = self.padding
        X = np.pad(X, ((0, 0), (p, p), (p, p), (0, 0)))
        self.save_for_backward(X=X)
        Y = np.zeros((len(X), *self.out, self.filters), X.dtype) + self.b
        for i, j in np.ndindex(self.kernel):
            Y += self.under(i, j, X) @ self.W[i, j]
        return Y

    def backward(self, dY):
        X, p = self.saved("X"), self.padding  # X with its padding
        dW, db = self.grad_array("W"), self.grad_array("b")
        # BEGIN SOLUTION
        db[...] = dY.sum(axis=(0, 1, 2))
        d_rows = dY.reshape(-1, self.filters)
        dX = np.zeros_like(X)
        for i, j in np.ndindex(self.kernel):
            pixels = self.under(i, j, X)
            dW[i, j] = pixels.reshape(-1, X.shape[-1]).T @ d_rows
            self.under(i, j, dX)[...] += dY @ self.W[i, j].T
        return dX[:, p : dX.shape[1] - p, p : dX.shape[2] - p]
        # END SOLUTION


# %% grade
grade(Conv2D, "conv2d", seed=0)

# %% [markdown]
# ## The aha: every pixel counts its windows
#
# Let all weights be 1 and all of `dY` be 1. Then each cell of `dX` is simply the number of windows
# that see this pixel, and each cell of `dW` is the sum of all pixels under that tap.

# %%
layer = Conv2D(1, 3)
layer.build((5, 5, 1), dtype="float64")
layer.W = np.ones((3, 3, 1, 1))
layer.forward(np.ones((1, 5, 5, 1)))
print(layer.backward(np.ones((1, 3, 3, 1)))[0, :, :, 0])
print("each weight collects from", layer.grads["W"][0, 0, 0, 0], "windows")

# %% [markdown]
# > **Aha.** A weight that is used in every window collects a gradient from every window: to a
# > convolution, one image is already a batch.
#
# This is why it learns from few images. And the pixels: 1 window sees the corner, 9 see the middle.
# The forward pass gathers nine pixels into one output, and the backward pass scatters one gradient
# over nine pixels. The picture shows one cell of `dW`, and its terms from all windows.

# %% picture: One weight of the kernel is ringed. Its sum has a term for every window of the image.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

builder = SequentialBuilder(5, 5, 1, seed=0).conv2d(1, 3).flatten().dense(1)
model = builder.optimizer("sgd").alpha(0.01).dtype("float64").build()
plots.step(model.trace(np.arange(25.0).reshape(1, 5, 5, 1) / 25, [[1.0]]))

# %% [markdown]
#
# ## Train with your layer

# %%
from phitodeep.data import load_mnist

X_train, y_train, X_test, y_test = load_mnist()
builder = SequentialBuilder(28, 28, 1, seed=0).add(Conv2D(8, 5, stride=3)).relu().flatten()
builder = builder.dense(10).softmax().loss("categorical_cross_entropy")
model = builder.alpha(0.005).batch(32).epochs(4).build()
model.train(X_train[:1500].reshape(-1, 28, 28, 1), y_train[:1500], verbose=0)
P = model.predict(X_test[:500].reshape(-1, 28, 28, 1))
print(f"{np.mean(P.argmax(axis=1) == y_test[:500]):.0%} of 500 new digits are read correctly")

# %% [markdown]
# What your layer has learned to see in the first test image:

# %% picture: The eight outputs of the convolution for one digit, each with its own kernel.
plots.feature_maps(model, X_test[0].reshape(28, 28, 1), "1")

# %% [markdown]
# ## Questions
#
# {{question With `stride=3` and a 2 x 2 kernel, some pixels are in no window. What is dX there?}}
# 0: no path leads from them to the loss. The network cannot see them, so the choice wastes 5 of 9
# pixels.
# {{end}}
#
# {{question How many terms has one cell of dW for 32 images of 28 x 28 and a 5 x 5 kernel?}}
# 32 · 24 · 24 = 18,432: one for each window of each image.
# {{end}}
#
# {{question In the backward pass you wrote `+=` for dX, but `=` for dW. Why?}}
# Each tap `(i, j)` has its own cell of `dW`, which is written once. A pixel lies under several
# taps, so `dX` collects: slopes of several paths add.
# {{end}}
