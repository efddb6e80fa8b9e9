"""A scheme and its ranges written into a model, in the form each target takes."""
