"""Text: tokenizers and generation."""
