"""From ONNX files to models."""
