"""Control of a running pipeline: the same operations for Python, a Unix socket beside the run, and its live page."""
