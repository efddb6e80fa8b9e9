"""Tensors that become INT8 for each target, and groups of them that share a scale."""
