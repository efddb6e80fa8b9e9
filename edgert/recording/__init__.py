"""Recordings of runs: MCAP files, the messages in them, and what a replay reads of them."""
