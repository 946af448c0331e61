"""Text: tokenizers, and generation of tokens one after another.

`generation` is a module of its own, because it needs all layers, and `phitodeep.data` does not.
"""

from phitodeep.text.tokenizer import CharTokenizer, HubTokenizer

__all__ = ["CharTokenizer", "HubTokenizer"]
