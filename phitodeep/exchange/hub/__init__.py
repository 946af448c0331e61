"""Language models of the Hugging Face hub: their folders, configs, weights and tokenizers."""
