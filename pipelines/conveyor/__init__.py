"""The demo's scene, as a source: ``source: "python:conveyor:Conveyor"``. NumPy and OpenCV only."""

from __future__ import annotations

from .scene import LABELS, Conveyor, GroundTruth

__all__ = ["LABELS", "Conveyor", "GroundTruth"]
