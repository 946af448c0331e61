"""Models from other libraries and for them: PyTorch, ONNX and the Hugging Face hub."""
