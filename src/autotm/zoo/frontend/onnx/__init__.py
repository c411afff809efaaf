"""ONNX files, as networks of ours."""

from autotm.zoo.frontend.onnx.from_onnx import from_onnx

__all__ = ["from_onnx"]
