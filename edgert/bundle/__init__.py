"""Bundles: a pipeline with its models prepared for a board, in one file."""
