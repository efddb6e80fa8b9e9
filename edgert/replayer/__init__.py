"""Replay of recorded runs: the same decisions in one thread, and whether they give the same results."""
