"""Stages that read and write images and tensors where they lie, on an NVIDIA GPU."""
