# %% [markdown]
# # 1. A neuron: a slope predicts
#
# A neuron multiplies its input by a number, the *weight* `w`, and adds another number, the *bias*
# `b`: `y = w x + b`. To learn is to change `w` and `b` until `y` is right. In which direction
# should you turn `w`, and how much will it help? You could try out every value. In this lesson you
# find a single number that answers both questions before you move anything.

# %%
import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.teach import grade

# %% [markdown]
# ## The forward pass, with numbers
#
# The input is 2 and the right answer is 5. The *loss* says how wrong the neuron is. Here it is the
# square of the error.

# %%
x, target = 2.0, 5.0
w, b = 1.0, 0.5
y = w * x + b
print("y =", y, " loss =", (y - target) ** 2)

# %% [markdown]
# A neuron may have several inputs, each with its own weight. Here are the formulas, in which `XW`
# is the sum of all inputs times their weights. `i` counts the inputs, and `n` the *samples*, which
# are the examples to learn from. Here, there is only one:
#
# {{forward}}
#
# ## What arrives, and what you return
#
# The neuron receives one number, `dY`, the slope of the loss with respect to `y`: if `y` changes a
# little, the loss changes `dY` times as much. In this course, `dA` always means the derivative of
# the loss with respect to `A`, also called the *gradient* of `A`. For the squared error,
# `dY = 2 (y - target)`, which is -5 here. You turn it into three derivatives. A *parameter* is a
# number that is learned, such as a weight or a bias:
#
# {{shapes}}
#
# **Predict first.** Let `w` grow by 0.01. By how much does `y` grow? If the loss changes -5 times
# as much as `y`, by how much does it change? Write your answer down. You will need it below.
#
# ## The path
#
# Open a line only if you need it. There is only one row, so `x` stands for `X[0]`, and `dy` for
# `dY[0]`.
#
# {{path dW db dX}}
#
# ## Your turn
#
# A *layer* of phitodeep is a class. `create` makes its parameters when the number of inputs is
# known. `forward` computes the output, and keeps what the way back needs with `save_for_backward`.
# `backward` is yours: it receives `dY`, gets back what was kept with `saved`, and writes the
# gradient of each parameter into the array that `grad_array` returns. `dW[...] = ...` fills this
# array, but `dW = ...` would only give its name to another one. In the end, `backward` returns
# `dX`. (`decay=True` marks the weights for a technique that this course does not use.)
#
# `X` has the shape (1, D): one row, with D inputs. `X[0]` is the row itself, and `dY[0]` is what
# arrives.
#
# The grader builds your class with other numbers, and compares each gradient with the right one. It
# also looks at special cases, such as a single input, at `float32` (an input of this type must not
# become float64), and at side effects (`X` and `dY` must not be overwritten).


# %% solution
class Neuron(Layer):
    """y = w x + b, for one sample X (1, D)."""

    W = Param(decay=True)
    b = Param()

    def create(self, shape):
        self.W, self.b = np.ones(shape[-1]), np.zeros(1)
        return (1,)

    def forward(self, X):
        self.save_for_backward(X=X)
        return (X * self.W).sum(axis=-1, keepdims=True) + self.b

    def backward(self, dY):
        X = self.saved("X")
        dW, db = self.grad_array("W"), self.grad_array("b")
        # BEGIN SOLUTION
        dW[...] = dY[0] * X[0]
        db[...] = dY[0]
        return dY * self.W
        # END SOLUTION


# %% grade
grade(Neuron, "neuron", seed=0)

# %% [markdown]
# ## The aha: know the result before you move
#
# Your backward pass gives the slope `dW`. Multiply it by a step, and compare the prediction with
# what really happens to the loss.

# %%
neuron = Neuron()
neuron.build((1,), dtype="float64")
neuron.W, neuron.b = [w], [b]
neuron.backward(2 * (neuron.forward(np.array([[x]])) - target))
slope = neuron.grads["W"][0]
print("dW =", slope)
for move in (1.0, 0.1, 0.01, 0.001):
    change = ((w + move) * x + b - target) ** 2 - (y - target) ** 2
    print(f"w moves by {move:<5}  predicted {slope * move:+.5f}  true {change:+.5f}")

# %% [markdown]
# > **Aha.** A slope predicts: `dW` times a small step is the change of the loss, known before the
# > step is taken.
#
# The smaller the step, the truer the prediction. The sign says where to go: `dW` is negative, so a
# larger `w` makes the loss smaller. To learn, move each weight a little against its slope:
# `w - 0.05 dW`. The 0.05 is called the *learning rate*, and the rule is called *gradient descent*
# (`sgd` below, for stochastic gradient descent). Here is such a step, drawn by phitodeep with the
# same numbers. Its layer is called `Dense`, and `0.dW` is the gradient of `W` in layer 0.

# %% picture: Above: the input, the output and the loss. Below: the slopes, from right to left.
from phitodeep import plots
from phitodeep.model import SequentialBuilder

model = SequentialBuilder(1).dense(1).optimizer("sgd").alpha(0.05).dtype("float64").build()
model.layers[0].W, model.layers[0].b = [[w]], [b]
plots.step(model.trace([[x]], [[target]]))

# %% [markdown]
# ## Train with your layer
#
# Ten such steps, with your backward pass.

# %%
for number in range(10):
    error = neuron.forward(np.array([[x]])) - target
    neuron.backward(2 * error)
    neuron.W = neuron.W - 0.05 * neuron.grads["W"]
    neuron.b = neuron.b - 0.05 * neuron.grads["b"]
    if number % 3 == 0:
        print(f"step {number}: loss {error[0, 0] ** 2:.5f}")
left = (neuron.forward(np.array([[x]]))[0, 0] - target) ** 2 / (y - target) ** 2
print(f"{1 - left:.0%} of the loss is gone")

# %% [markdown]
# ## Questions
#
# {{question What is dW if the input is 0? What can the neuron still learn?}}
# `dW = dY · x` is 0: turning the weight changes nothing, so this sample says nothing about it. The
# bias has the slope `dY`, and still learns.
# {{end}}
#
# {{question Why was the prediction for the step of 1 so wrong?}}
# The loss is a parabola in `w`, and its slope is the tangent at one point. Far away from that
# point, the parabola has turned away from the tangent. This is why learning rates are small.
# {{end}}
#
# {{question The neuron also returns dX, the slope of its input. Nobody can change the input, so
# what is it good for?}}
# The input may be the output of another neuron. What you return as `dX` arrives there as `dY`. The
# next lesson is about this.
# {{end}}
