"""From models to PyTorch modules."""
