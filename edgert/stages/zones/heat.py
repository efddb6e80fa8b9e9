"""Heat maps of where objects were, as an image for every stream."""

import time
from pathlib import Path

import cv2
import numpy as np

from edgert import files
from edgert.stages.zones.geometry import F64

CELLS = (96, 54)
"""Columns and rows of the map."""
_EVERY_S = 60.0
_SIZE = (960, 540)


class HeatMap:
    """Counter of objects in each cell of the frame. Images are written every minute and at the end."""

    def __init__(self, path: Path) -> None:
        self._path, self._written_s = str(path), time.monotonic()
        self._counts: dict[str, F64] = {}

    def add(self, stream: str, places: F64) -> None:
        """Count (N, 2) places, fractions 0–1 of the frame."""
        counts = self._counts.setdefault(stream, np.zeros((CELLS[1], CELLS[0])))
        cells = np.clip((places * CELLS).astype(int), 0, np.array(CELLS) - 1)
        np.add.at(counts, (cells[:, 1], cells[:, 0]), 1.0)
        if time.monotonic() - self._written_s > _EVERY_S:
            self.write()

    def write(self) -> None:
        """Write the images of all streams. Raises ArtifactError."""
        self._written_s = time.monotonic()
        for stream, counts in self._counts.items():
            files.replace_bytes(Path(self._path.replace("{stream}", stream)), heat_image(counts))


def heat_image(counts: F64) -> bytes:
    """Return a PNG image, on a logarithmic scale from dark without objects to the busiest cell."""
    shares = np.log1p(counts) / max(float(np.log1p(counts.max())), 1e-9)
    smooth = cv2.resize((255 * shares).astype(np.uint8), _SIZE, interpolation=cv2.INTER_CUBIC)
    _, encoded = cv2.imencode(".png", cv2.applyColorMap(smooth, cv2.COLORMAP_INFERNO))
    return encoded.tobytes()
