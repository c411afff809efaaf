"""ONNX files, as networks of ours."""
