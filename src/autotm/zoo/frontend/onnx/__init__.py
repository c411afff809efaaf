"""ONNX files, as networks of ours; for those who have the package `onnx`."""

from autotm.zoo.frontend.onnx.from_onnx import from_onnx

__all__ = ["from_onnx"]
