"""Stages that read and write images and tensors in the memory of an NVIDIA GPU."""
