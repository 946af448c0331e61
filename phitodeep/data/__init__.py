"""Data sets: MNIST, small texts, and synthetic points. A part of MNIST comes with phitodeep."""

from phitodeep.data.mnist import load_mnist
from phitodeep.data.synthetic import make_blobs, make_moons, make_spirals
from phitodeep.data.text import load_text, windows
from phitodeep.text.tokenizer import CharTokenizer

__all__ = [
    "CharTokenizer", "load_mnist", "load_text", "make_blobs", "make_moons", "make_spirals",
    "windows",
]  # fmt: skip
