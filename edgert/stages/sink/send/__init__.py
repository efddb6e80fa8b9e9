"""Sending of results and events: a lossless spool, a thread that sends it, and a publisher for each protocol."""
