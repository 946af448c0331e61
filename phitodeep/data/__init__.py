"""Data to learn with: MNIST, a part of it shipped, and small synthetic sets."""

from phitodeep.data.mnist import load_mnist
from phitodeep.data.synthetic import make_blobs, make_moons, make_spirals

__all__ = ["load_mnist", "make_blobs", "make_moons", "make_spirals"]
