"""Text: tokenizers, and generation of tokens one after another."""

from phitodeep.text.generation import generate, stream
from phitodeep.text.hub_tokenizer import HubTokenizer
from phitodeep.text.tokenizer import CharTokenizer

__all__ = ["CharTokenizer", "HubTokenizer", "generate", "stream"]
