"""The frameworks, one file each. Each file has `Side(workload, variant)` with

    loss(X, y)           the mean loss with the initial weights, or None if they cannot be set
    train(X, y, batch)   one step per batch, in order
    epoch(X, y, batch)   the same in shuffled order, as a user of the framework would write it
    predict(X)           scores

and VARIANTS, the settings to time: {name: workloads}.
"""
