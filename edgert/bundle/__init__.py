"""Bundles: a pipeline with its models made ready for a board, in one file."""
