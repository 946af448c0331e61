"""One file a framework. Each has `Side(workload, variant)` with

    loss(X, y)           the mean loss of the initial weights, or None where they cannot be set
    train(X, y, batch)   one step a batch, in order
    epoch(X, y, batch)   the same in a shuffled order, as its users would write it
    predict(X)           scores

and VARIANTS, the settings worth timing: {name: workloads}.
"""
