"""What networks wrote, read as typed records in source pixels: one file per family of outputs.

``kinds.decoder_for`` makes the decoder a task asks for; ``guess.guess`` finds those that fit a model's outputs.
"""
