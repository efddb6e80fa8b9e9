"""What a board is, and what this one is."""
