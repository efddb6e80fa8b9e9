"""Rewrites that let a DLA run a model: the same results from operators and sizes that it supports."""
