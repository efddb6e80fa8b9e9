"""Decoders, which turn a network's outputs into typed records in source pixels: one file per family of outputs.

``kinds.decoder_for`` returns the decoder of a task; ``guess.guess`` finds those that fit a model's outputs.
"""
