"""Measurements of edgert's overhead and speed on this machine, compared with references."""
