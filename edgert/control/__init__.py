"""Change a running pipeline: one handler, for Python and for a Unix socket beside the run."""
