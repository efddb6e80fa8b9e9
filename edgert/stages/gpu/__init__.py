"""Stages that read and write pictures and tensors where they lie, on an NVIDIA GPU."""
