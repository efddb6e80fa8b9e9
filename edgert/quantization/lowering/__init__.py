"""Writing a scheme and its ranges into a model, in the form of each target."""
