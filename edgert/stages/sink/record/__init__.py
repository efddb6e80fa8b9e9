"""Recordings of what cameras send, without decoding or encoding it: continuous, or clips around events."""
