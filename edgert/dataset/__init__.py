"""Images that a model is calibrated or evaluated on, and their labels."""
