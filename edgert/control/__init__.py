"""Change a running pipeline: one handler, for Python, a Unix socket beside the run, and its live page."""
