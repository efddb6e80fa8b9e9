"""Replay of recorded runs: the same decisions in one thread, and a comparison of the results."""
