"""Jetson boards as data, and detection of this machine; :mod:`edgert.board.record` has the records of boards."""

from edgert.board.detect import HOST, THIS_MACHINE, UNKNOWN, Machine, detect

__all__ = ["HOST", "THIS_MACHINE", "UNKNOWN", "Machine", "detect"]
