"""What networks wrote, read as typed records in source pixels: one file per family of outputs.

``select.decoder_for`` makes the decoder a task asks for; ``guess.guess`` says which one fits a model's outputs.
"""
