"""From models to ONNX files."""
