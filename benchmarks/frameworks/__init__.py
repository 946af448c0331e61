"""The frameworks, one file each. Each file has VARIANTS, the settings to time with their workloads,
and `Side(workload, variant)` with

    loss(X, y)           the mean loss with the initial weights, or None if they cannot be set
    train(X, y, batch)   one step per batch, in order
    epoch(X, y, batch)   the same in shuffled order, as a user of the framework would write it
    predict(X)           scores

phitodeep and PyTorch also take `threads`. They and JAX take `dtype`, and have

    gradients(X, y)      the loss of a training step, and the gradient of each parameter by name
"""
