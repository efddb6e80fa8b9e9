"""Recordings of runs: MCAP files, their messages, and their reader for replays."""
