"""Recordings of cameras' own packets, neither decoded nor encoded: continuous, or clips around events."""
