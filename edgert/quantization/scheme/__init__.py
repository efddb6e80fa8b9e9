"""Which tensors become INT8, and which of them share a scale, for each target."""
