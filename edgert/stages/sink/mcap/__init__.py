"""Recordings of whole runs as MCAP files: what came in, what came out, and every decision in between."""
