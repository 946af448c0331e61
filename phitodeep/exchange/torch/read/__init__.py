"""From PyTorch modules to models."""
