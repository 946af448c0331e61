"""Models as ONNX files, and from them."""
