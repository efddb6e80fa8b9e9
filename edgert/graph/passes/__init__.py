"""Passes over an ONNX graph: the same results from fewer nodes."""
