"""A hand-written training loop: forward, loss, backward, step, as in `train`.

python examples/manual_loop.py
"""

import numpy as np

from phitodeep.data import load_mnist
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import SequentialBuilder
from phitodeep.optimization.optimizers import SGD


def main(epochs: int = 5, batch: int = 64) -> float:
    X_train, y_train, X_test, y_test = load_mnist()
    model = SequentialBuilder(28, 28, seed=0).flatten().dense(128).relu().dense(10).build()
    loss = SoftmaxCrossEntropy()
    optimizer = SGD(0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    accuracy = 0.0

    for epoch in range(1, epochs + 1):
        order, total = rng.permutation(len(X_train)), 0.0
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            X, y = X_train[rows], y_train[rows]

            logits = model.forward(X)  # each layer caches what its backward needs
            total += loss.loss_func(logits, y) * len(rows)
            gradient = loss.loss_gradient(logits, y)  # dL/dlogits, divided by the batch size
            model.backward(gradient)  # each layer leaves its gradients in layer.grads
            optimizer.step(model.layers)  # the optimizer reads them

        accuracy = float((model.predict(X_test).argmax(axis=1) == y_test).mean())
        print(f"epoch {epoch}  loss {total / len(order):.4f}  test accuracy {accuracy:.4f}")

    first = model.layers[1]
    dW = first.grads["W"]
    print(f"the last gradient of {first}: dW has shape {dW.shape},")
    print(f"and its largest absolute value is {np.abs(dW).max():.2e}")
    return accuracy


if __name__ == "__main__":
    main()
