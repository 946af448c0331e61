"""Models from PyTorch and for it."""
