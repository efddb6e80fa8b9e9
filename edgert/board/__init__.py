"""Jetson boards as data, and this machine; :mod:`edgert.board.record` has the board records and reads YAML."""

from edgert.board.detect import HOST, UNKNOWN, Machine, detect

__all__ = ["HOST", "UNKNOWN", "Machine", "detect"]
