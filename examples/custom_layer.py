"""Write a layer with its own backward pass, and check it with the gradient checker.

python examples/custom_layer.py
"""

import numpy as np

from phitodeep.layers import Layer, Param
from phitodeep.model import SequentialBuilder
from phitodeep.testing import GradientError, check_gradients


class Scale(Layer):
    """Y = exp(s) X, with one learned value s per feature.

    Shapes: X, Y, dX, dY are (..., D); s is (D,).
    Backward: dx = exp(s) dy. Since dy/ds = exp(s) x = y, ds = sum_rows(dy y).
    """

    s = Param()

    def create(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.s = np.zeros(shape[-1])
        return shape

    def forward(self, X: np.ndarray) -> np.ndarray:
        Y = np.exp(self.s) * X
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: np.ndarray) -> np.ndarray:
        Y = self.saved("Y")
        rows = tuple(range(dY.ndim - 1))
        np.sum(dY * Y, axis=rows, out=self.grad_array("s"))
        return np.exp(self.s) * dY


class WrongScale(Scale):
    """The same layer with the most common mistake: dividing by the batch size again."""

    def backward(self, dY: np.ndarray) -> np.ndarray:
        dX = super().backward(dY)
        self.grads["s"] /= len(dY)
        return dX


def main() -> str:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5, 3))
    print(check_gradients(Scale(), X))

    message = ""
    try:
        check_gradients(WrongScale(), X)
    except GradientError as error:
        message = str(error)
        print(f"\nThe wrong layer is refused:\n{message}")

    y = X @ [[1.0], [2.0], [3.0]]
    model = SequentialBuilder(3, seed=0).add(Scale()).dense(1).alpha(0.1).epochs(500).build()
    history = model.train(X, y, verbose=0)
    print(f"\nThe correct layer trains: loss {history[0][0]:.3f} -> {history[-1][0]:.6f}")
    return message


if __name__ == "__main__":
    main()
