"""Overheads of edgert, measured on this machine, each beside a reference."""
