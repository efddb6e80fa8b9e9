"""Jetson boards as data, and this machine. Board records stand in :mod:`edgert.board.record`, which reads YAML."""

from edgert.board.detect import HOST, UNKNOWN, Machine, detect

__all__ = ["HOST", "UNKNOWN", "Machine", "detect"]
